"""Whether an event's input is what its hooks may rely on. Pure.

Checked before any hook is started: a guard that is given half an input guards nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from relay.hooks.events import HookEventName
from relay.hooks.results import shown

#: What is wrong with a value, as the end of a sentence that begins with its name; "" if nothing.
Check = Callable[[object], str]


def problem(event: HookEventName, payload: object) -> str:
    """What is wrong with ``payload`` as the input of ``event``, for people; "" when it is valid.

    Fields that are not known are let through.
    """
    if not isinstance(payload, Mapping):
        return f"the input of {event} is {shown(payload)}, not an object"
    odd = next((key for key in payload if not isinstance(key, str)), None)
    if odd is not None:
        return f"the input of {event} has the key {shown(odd)}, which is no string"
    named = payload.get("hook_event_name")
    if named is not None and named != event.value:
        return f"hook_event_name is {shown(named)}, but the event is {event}"
    for field, check in _REQUIRED[event].items():
        if field not in payload:
            return f"the input of {event} has no {field}"
        wrong = check(payload[field])
        if wrong:
            return f"{field} {wrong}"
    for field, check in {**_BASE, **_OPTIONAL.get(event, {})}.items():
        wrong = check(payload[field]) if field in payload else ""
        if wrong:
            return f"{field} {wrong}"
    return ""


def required(event: HookEventName) -> tuple[str, ...]:
    """The fields that the input of ``event`` must have, beside what every input has."""
    return tuple(_REQUIRED[event])


def _text(value: object) -> str:
    return "" if isinstance(value, str) else f"is {shown(value)}, not a text"


def _word(value: object) -> str:
    if isinstance(value, str) and not value.strip():
        return "is empty"
    return _text(value)


def _object(value: object) -> str:
    if not isinstance(value, Mapping):
        return f"is {shown(value)}, not an object"
    odd = next((key for key in value if not isinstance(key, str)), None)
    return "" if odd is None else f"has the key {shown(odd)}, which is no string"


def _seconds(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"is {shown(value)}, not a number of seconds"
    usable = isinstance(value, int) or math.isfinite(value)
    return "" if usable and value >= 0 else f"is {shown(value)}: seconds are 0 or more"


def _seconds_or_none(value: object) -> str:
    return "" if value is None else _seconds(value)


def _anything(_value: object) -> str:
    return ""


def _one_of(*words: str) -> Check:
    def check(value: object) -> str:
        known = isinstance(value, str) and value in words
        return "" if known else f"is {shown(value)}, not one of {', '.join(words)}"

    return check


_BASE: dict[str, Check] = {
    field: _text
    for field in (
        "session_id",
        "cwd",
        "hook_event_name",
        "timestamp",
        "transcript_path",
        "correlation_id",
        "agent_name",
    )
}
_TOOL: dict[str, Check] = {"tool_name": _word, "tool_input": _object}
_REQUIRED: dict[HookEventName, dict[str, Check]] = {
    HookEventName.SESSION_START: {"source": _one_of("startup", "resume", "clear", "compact")},
    HookEventName.SESSION_END: {"reason": _text},
    HookEventName.OUTPUT: {"output": _text},
    HookEventName.IDLE: {"idle_seconds": _seconds},
    HookEventName.MESSAGE_RECEIVED: {"sender": _word, "body": _text},
    HookEventName.BEFORE_TOOL: _TOOL,
    # A tool may give back anything, also nothing; but that it did must be said.
    HookEventName.AFTER_TOOL: {**_TOOL, "tool_response": _anything},
    HookEventName.BEFORE_AGENT: {"prompt": _text},
    HookEventName.AFTER_AGENT: {"prompt": _text, "prompt_response": _text},
    HookEventName.BEFORE_MODEL: {"llm_request": _object},
    HookEventName.AFTER_MODEL: {"llm_request": _object, "llm_response": _object},
    HookEventName.BEFORE_TOOL_SELECTION: {"llm_request": _object},
    HookEventName.NOTIFICATION: {"notification_type": _word, "message": _text},
    HookEventName.PRE_COMPRESS: {"trigger": _one_of("manual", "auto")},
}
_OPTIONAL: dict[HookEventName, dict[str, Check]] = {
    HookEventName.BEFORE_TOOL: {"tool_use_id": _text},
    HookEventName.AFTER_TOOL: {"tool_use_id": _text, "duration": _seconds_or_none},
}
