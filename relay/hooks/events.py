"""The names of hook events, and what the handlers of each are given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from relay.core.errors import ConfigError
from relay.core.suggest import did_you_mean


class HookEventName(StrEnum):
    """Every event that has a name. Routing goes by these members, never by a raw string."""

    SESSION_START = "SessionStart"
    SESSION_END = "SessionEnd"
    OUTPUT = "Output"
    IDLE = "Idle"
    MESSAGE_RECEIVED = "MessageReceived"
    BEFORE_TOOL = "BeforeTool"
    AFTER_TOOL = "AfterTool"
    BEFORE_AGENT = "BeforeAgent"
    AFTER_AGENT = "AfterAgent"
    BEFORE_MODEL = "BeforeModel"
    AFTER_MODEL = "AfterModel"
    BEFORE_TOOL_SELECTION = "BeforeToolSelection"
    NOTIFICATION = "Notification"
    PRE_COMPRESS = "PreCompress"

    @property
    def registration(self) -> str:
        """The spelling that the documentation uses in a configuration: ``on_session_start``."""
        return "on_" + re.sub(r"(?<!^)(?=[A-Z])", "_", self.value).lower()


class RegistrationError(ConfigError):
    """A handler that cannot be registered; nothing was."""

    code = "registration"


#: What a function that handles an event may take, in order. ``event`` is the whole input, a dict.
OFFERED: dict[HookEventName, tuple[str, ...]] = {
    HookEventName.SESSION_START: ("ctx", "source", "event"),
    HookEventName.SESSION_END: ("ctx", "reason", "event"),
    HookEventName.OUTPUT: ("output", "ctx", "event"),
    HookEventName.IDLE: ("ctx", "event"),
    HookEventName.MESSAGE_RECEIVED: ("sender", "body", "ctx", "event"),
    HookEventName.BEFORE_TOOL: ("tool", "input", "ctx", "phase", "response", "event"),
    HookEventName.AFTER_TOOL: ("tool", "input", "ctx", "phase", "response", "event"),
    HookEventName.BEFORE_AGENT: ("prompt", "ctx", "event"),
    HookEventName.AFTER_AGENT: ("response", "ctx", "prompt", "event"),
    HookEventName.BEFORE_MODEL: ("request", "ctx", "event"),
    HookEventName.AFTER_MODEL: ("response", "ctx", "request", "event"),
    HookEventName.BEFORE_TOOL_SELECTION: ("request", "ctx", "event"),
    HookEventName.NOTIFICATION: ("message", "ctx", "kind", "event"),
    HookEventName.PRE_COMPRESS: ("ctx", "trigger", "event"),
}
#: Where in the input what is offered stands, where its name is another one.
_FIELDS = {
    "tool": "tool_name",
    "input": "tool_input",
    "request": "llm_request",
    "kind": "notification_type",
}
_RESPONSES = {
    HookEventName.AFTER_TOOL: "tool_response",
    HookEventName.AFTER_AGENT: "prompt_response",
    HookEventName.AFTER_MODEL: "llm_response",
}
#: What no wrapped agent tells of: fired by programs that use the engine themselves.
OF_MODELS = frozenset(
    {
        HookEventName.BEFORE_MODEL,
        HookEventName.AFTER_MODEL,
        HookEventName.BEFORE_TOOL_SELECTION,
    }
)
#: Both of these at once, told apart by ``phase``: "before" or "after".
TOOL_CALL = (HookEventName.BEFORE_TOOL, HookEventName.AFTER_TOOL)
#: What a pattern's handler may take, in order.
PATTERN_OFFERED = ("target", "message", "ctx")

#: What Claude Code calls otherwise: people write it here too.
_CLAUDE = {
    "pretooluse": HookEventName.BEFORE_TOOL,
    "posttooluse": HookEventName.AFTER_TOOL,
    "userpromptsubmit": HookEventName.BEFORE_AGENT,
    "stop": HookEventName.AFTER_AGENT,
    "precompact": HookEventName.PRE_COMPRESS,
}
_BY_KEY = {name.value.lower(): name for name in HookEventName}


def event_names(text: str | HookEventName) -> tuple[HookEventName, ...]:
    """The events for any accepted spelling of one; ``tool_call`` is two.

    Raises RegistrationError with the nearest name for another word.
    """
    if isinstance(text, str) and _key(text).removeprefix("on") == "toolcall":
        return TOOL_CALL
    return (event_name(text),)


def event_name(text: str | HookEventName) -> HookEventName:
    """The event for any accepted spelling of it.

    ``SessionStart``, ``session_start``, ``on_session_start``, ``sessionStart`` and
    ``onSessionStart`` are one. Raises RegistrationError with the nearest name for another word.
    """
    if isinstance(text, HookEventName):
        return text
    if not isinstance(text, str):
        raise RegistrationError(
            f"an event's name is a string, not {type(text).__name__}",
            hint=did_you_mean("", _known()),
        )
    key = _key(text)
    if key.removeprefix("on") == "toolcall":
        raise RegistrationError(
            f"{text} is two events", hint="name one of them: on_before_tool or on_after_tool"
        )
    found = _BY_KEY.get(key) or _BY_KEY.get(key.removeprefix("on"))
    if found is None:
        own = _CLAUDE.get(key.removeprefix("on"))
        hint = f"here it is {own.registration}" if own else did_you_mean(text, _known())
        raise RegistrationError(f"unknown event {text!r}", hint=hint)
    return found


def arguments(event: HookEventName, payload: Mapping[str, Any], ctx: object) -> list[object]:
    """What a function gets for ``payload``, in the order of OFFERED; None for what is not there."""
    given: dict[str, object] = {
        "ctx": ctx,
        "event": payload,
        "phase": "after" if event is HookEventName.AFTER_TOOL else "before",
    }
    if event in _RESPONSES:
        given["response"] = payload.get(_RESPONSES[event])
    return [
        given[name] if name in given else payload.get(_FIELDS.get(name, name))
        for name in OFFERED[event]
    ]


def _key(text: str) -> str:
    return re.sub(r"[_\-\s]", "", text).lower()


def _known() -> list[str]:
    return [*(event.registration for event in OFFERED), "on_tool_call"]
