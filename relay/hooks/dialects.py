"""Spells an event and its input as another engine does, for hooks written for that. Pure.

relay's own names are those of Gemini CLI; Claude Code has others for the same events. What stands
in the input beyond the other engine's own fields is left there: hooks ignore further fields.
Sources: the hook references of Claude Code and Gemini CLI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Dialect

_BY_CLAUDE = {spec.claude: event for event, spec in EVENTS.items() if spec.claude}

#: What each engine calls the project's folder in its hooks' environment. Gemini CLI sets Claude
#: Code's variable, too, for hooks that have moved.
PROJECT_VARIABLES: dict[Dialect, tuple[str, ...]] = {
    Dialect.RELAY: (),
    Dialect.CLAUDE: ("CLAUDE_PROJECT_DIR",),
    Dialect.GEMINI: ("GEMINI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"),
}


def spelled(event: HookEventName, dialect: Dialect) -> str:
    """What ``dialect`` calls ``event``; relay's own name where it has none."""
    return (EVENTS[event].claude if dialect is Dialect.CLAUDE else "") or event.value


def event_in(name: str, dialect: Dialect) -> HookEventName | None:
    """The event that ``dialect`` calls ``name``, with its case; None where it is none of ours."""
    if dialect is Dialect.CLAUDE:
        return _BY_CLAUDE.get(name)
    if name not in list(HookEventName):
        return None
    event = HookEventName(name)
    return event if dialect is Dialect.RELAY or EVENTS[event].gemini else None


def spelled_input(
    event: HookEventName, payload: Mapping[str, Any], dialect: Dialect
) -> dict[str, Any]:
    """The input of ``event`` in the names of ``dialect``: a new dict, whose values are shared."""
    spoken = dict(payload)
    spoken["hook_event_name"] = spelled(event, dialect)
    if dialect is Dialect.RELAY:
        return spoken
    if event is HookEventName.AFTER_AGENT:
        # Theirs is true in a turn that a hook has prolonged, so that it is not prolonged for ever.
        spoken.setdefault("stop_hook_active", False)
    if dialect is Dialect.CLAUDE:
        _add_claude(event, spoken)
    return spoken


def _add_claude(event: HookEventName, spoken: dict[str, Any]) -> None:
    if event is HookEventName.AFTER_TOOL and isinstance(spoken.get("duration"), int | float):
        spoken.setdefault("duration_ms", round(spoken["duration"] * 1000))
    elif event is HookEventName.AFTER_AGENT and "prompt_response" in spoken:
        spoken.setdefault("last_assistant_message", spoken["prompt_response"])
    elif event is HookEventName.PRE_COMPRESS:
        spoken.setdefault("custom_instructions", "")
