"""Hook events: their names, what hooks of each are given, and whether an input is valid. Pure.

Each event is declared once, in EVENTS. An input is checked before any hook is started: a guard
that is given half an input guards nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from relay.core.errors import ConfigError, did_you_mean, nearest
from relay.core.plain import shown


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
    WEDGED = "Wedged"
    AFTER_RECEIVE_EVENT = "AfterReceiveEvent"
    AFTER_RESOLVE_IDENTITY = "AfterResolveIdentity"
    AFTER_RUN_AUTOMATIONS = "AfterRunAutomations"
    AFTER_ASSEMBLE_CONTEXT = "AfterAssembleContext"
    AFTER_EXECUTE_AGENT = "AfterExecuteAgent"
    AFTER_DELIVER_RESPONSE = "AfterDeliverResponse"
    UNANSWERED = "Unanswered"

    @property
    def registration(self) -> str:
        """The spelling that the documentation uses in a configuration: ``on_session_start``."""
        return "on_" + re.sub(r"(?<!^)(?=[A-Z])", "_", self.value).lower()


class RegistrationError(ConfigError):
    """A handler that cannot be registered; nothing was."""

    code = "registration"


#: What is wrong with a value, as the end of a sentence that begins with its name; "" if nothing.
Check = Callable[[object], str]


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
    return "" if odd is None else f"has the key {shown(odd)}, which is not a string"


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


@dataclass(frozen=True, slots=True)
class EventSpec:
    """What one event is."""

    #: What a function that handles it may take, in order. ``event`` is the whole input, a dict.
    offered: tuple[str, ...]
    #: The fields that its input must have, beside those of every input, and those it may have.
    required: Mapping[str, Check] = field(default_factory=dict)
    optional: Mapping[str, Check] = field(default_factory=dict)
    #: What stands in the input that a program fires without saying these.
    defaults: Mapping[str, object] = field(default_factory=dict)
    #: The field that is offered as ``response``.
    response: str = ""
    #: The field that its hooks' matchers are about; "" for an event that has no matchers.
    matched: str = ""
    #: Whether a hook may deny it. After a tool that is the result, which the model does not get as
    #: it is; after a turn it is the end: the agent goes on.
    deniable: bool = False
    #: Its name for Claude Code, "" where that has no such event.
    claude: str = ""
    #: Whether Gemini CLI has it, by the same name.
    gemini: bool = False
    #: Whether it is about what goes to a model or comes from it. No wrapped agent tells of these:
    #: they are fired by programs that use the engine themselves.
    of_model: bool = False
    #: Whether it is a stage of the broker's: hooks of the person's own configuration are told.
    of_broker: bool = False


def _of_broker(names: str) -> EventSpec:
    kinds: dict[str, Check] = {"received": _object, "principal": _object}
    kinds |= {"automations": _anything, "dispatches": _anything}
    checks = {name: kinds.get(name, _text) for name in names.split()}
    return EventSpec((*checks, "event"), checks, of_broker=True)


_TOOL: dict[str, Check] = {"tool_name": _word, "tool_input": _object}
_TOOL_OFFERED = ("tool", "input", "ctx", "phase", "response", "event")
EVENTS: dict[HookEventName, EventSpec] = {
    HookEventName.SESSION_START: EventSpec(
        ("ctx", "source", "event"),
        {"source": _one_of("startup", "resume", "clear", "compact")},
        defaults={"source": "startup"},
        matched="source",
        claude="SessionStart",
        gemini=True,
    ),
    HookEventName.SESSION_END: EventSpec(
        ("ctx", "reason", "event"),
        # relay's own words, then those of the agents.
        {
            "reason": _one_of(
                *("exit", "hangup", "clear", "logout", "prompt_input_exit", "other"),
            )
        },
        matched="reason",
        claude="SessionEnd",
        gemini=True,
    ),
    HookEventName.OUTPUT: EventSpec(("output", "ctx", "event"), {"output": _text}),
    HookEventName.IDLE: EventSpec(("ctx", "event"), {"idle_seconds": _seconds}),
    HookEventName.MESSAGE_RECEIVED: EventSpec(
        ("sender", "body", "ctx", "event"), {"sender": _word, "body": _text}
    ),
    HookEventName.BEFORE_TOOL: EventSpec(
        _TOOL_OFFERED,
        _TOOL,
        {"tool_use_id": _text},
        defaults={"tool_use_id": ""},
        matched="tool_name",
        deniable=True,
        claude="PreToolUse",
        gemini=True,
    ),
    HookEventName.AFTER_TOOL: EventSpec(
        _TOOL_OFFERED,
        # A tool may give back anything, also nothing; but that it did must be said.
        {**_TOOL, "tool_response": _anything},
        {"tool_use_id": _text, "duration": _seconds_or_none},
        defaults={"tool_use_id": "", "duration": None},
        response="tool_response",
        matched="tool_name",
        deniable=True,
        claude="PostToolUse",
        gemini=True,
    ),
    HookEventName.BEFORE_AGENT: EventSpec(
        ("prompt", "ctx", "event"),
        {"prompt": _text},
        deniable=True,
        claude="UserPromptSubmit",
        gemini=True,
    ),
    HookEventName.AFTER_AGENT: EventSpec(
        ("response", "ctx", "prompt", "event"),
        {"prompt": _text, "prompt_response": _text},
        response="prompt_response",
        deniable=True,
        claude="Stop",
        gemini=True,
    ),
    HookEventName.BEFORE_MODEL: EventSpec(
        ("request", "ctx", "event"),
        {"llm_request": _object},
        deniable=True,
        gemini=True,
        of_model=True,
    ),
    HookEventName.AFTER_MODEL: EventSpec(
        ("response", "ctx", "request", "event"),
        {"llm_request": _object, "llm_response": _object},
        response="llm_response",
        gemini=True,
        of_model=True,
    ),
    HookEventName.BEFORE_TOOL_SELECTION: EventSpec(
        ("request", "ctx", "event"), {"llm_request": _object}, gemini=True, of_model=True
    ),
    HookEventName.NOTIFICATION: EventSpec(
        ("message", "ctx", "kind", "event"),
        {"notification_type": _word, "message": _text},
        matched="notification_type",
        claude="Notification",
        gemini=True,
    ),
    HookEventName.PRE_COMPRESS: EventSpec(
        ("ctx", "trigger", "event"),
        {"trigger": _one_of("manual", "auto")},
        defaults={"trigger": "auto"},
        matched="trigger",
        claude="PreCompact",
        gemini=True,
    ),
    HookEventName.WEDGED: EventSpec(("ctx", "why", "event"), {"why": _word}),
    # What the broker does with an event.
    HookEventName.AFTER_RECEIVE_EVENT: _of_broker("received"),
    HookEventName.AFTER_RESOLVE_IDENTITY: _of_broker("principal received session"),
    HookEventName.AFTER_RUN_AUTOMATIONS: _of_broker("automations received dispatches"),
    HookEventName.AFTER_ASSEMBLE_CONTEXT: _of_broker("prompt persona session dispatches"),
    HookEventName.AFTER_EXECUTE_AGENT: _of_broker("response persona session turn state dispatches"),
    HookEventName.AFTER_DELIVER_RESPONSE: _of_broker("response persona channel to state reason"),
    HookEventName.UNANSWERED: _of_broker("agent asker id why"),
}
#: The events of what the broker does, which hooks in a worker observe.
OF_BROKER = frozenset(event for event, spec in EVENTS.items() if spec.of_broker)
#: What every input has.
_BASE: dict[str, Check] = dict.fromkeys(
    (
        "session_id",
        "cwd",
        "hook_event_name",
        "timestamp",
        "transcript_path",
        "correlation_id",
        "agent_name",
    ),
    _text,
)
#: Where in the input what is offered stands, where its name is another one.
_FIELDS = {
    "tool": "tool_name",
    "input": "tool_input",
    "request": "llm_request",
    "kind": "notification_type",
}
#: Fields that are one of a few words.
_WORDS = ("source", "reason", "trigger")
#: Both of these at once, told apart by ``phase``: "before" or "after".
TOOL_CALL = (HookEventName.BEFORE_TOOL, HookEventName.AFTER_TOOL)
#: What a pattern's handler may take, in order.
PATTERN_OFFERED = ("target", "message", "ctx")
#: The events that a hook may deny.
DENIABLE = frozenset(event for event, spec in EVENTS.items() if spec.deniable)
_BY_KEY = {name.value.lower(): name for name in HookEventName}
#: Claude Code's own names, which people write here too.
_BY_CLAUDE = {spec.claude.lower(): event for event, spec in EVENTS.items() if spec.claude}


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
        own = _BY_CLAUDE.get(key.removeprefix("on"))
        # Half of "idel" and "on_idle" is the prefix that everyone may leave out.
        close = nearest(key.removeprefix("on"), [_key(one.value) for one in EVENTS])
        own = own or (_BY_KEY[close] if close else None)
        hint = f"did you mean {own.registration!r}?" if own else did_you_mean(text, _known())
        raise RegistrationError(f"unknown event {text!r}", hint=hint)
    return found


def arguments(event: HookEventName, payload: Mapping[str, Any], ctx: object) -> list[object]:
    """What a function gets for ``payload``, as the event offers it; None for what is missing."""
    spec = EVENTS[event]
    given: dict[str, object] = {
        "ctx": ctx,
        "event": payload,
        "phase": "after" if event is HookEventName.AFTER_TOOL else "before",
    }
    if spec.response:
        given["response"] = payload.get(spec.response)
    return [
        given[name] if name in given else payload.get(_FIELDS.get(name, name))
        for name in spec.offered
    ]


def wrong_word(event: HookEventName, fields: Mapping[str, Any]) -> str:
    """What is wrong with the source, reason or trigger of an event that has one; "" if nothing."""
    name = EVENTS[event].matched
    if name not in _WORDS or name not in fields:
        return ""
    wrong = EVENTS[event].required[name](fields[name])
    return f"{name} {wrong}" if wrong else ""


def problem(event: HookEventName, payload: object) -> str:
    """What is wrong with ``payload`` as the input of ``event``, for people; "" when it is valid.

    Fields that are not known are let through.
    """
    if not isinstance(payload, Mapping):
        return f"the input of {event.registration} is {shown(payload)}, not an object"
    odd = next((key for key in payload if not isinstance(key, str)), None)
    if odd is not None:
        return f"the input of {event.registration} has the key {shown(odd)}, which is not a string"
    if (named := payload.get("hook_event_name")) not in (None, event.value):
        return f"hook_event_name is {shown(named)}, but the event is {event.value}"
    for name, check in EVENTS[event].required.items():
        if name not in payload:
            return f"the input of {event.registration} has no {name}"
        if wrong := check(payload[name]):
            return f"{name} {wrong}"
    for name, check in {**_BASE, **EVENTS[event].optional}.items():
        wrong = check(payload[name]) if name in payload else ""
        if wrong:
            return f"{name} {wrong}"
    return ""


def example(event: HookEventName) -> dict[str, object]:
    """The fields that an input of ``event`` must have, with values that are valid."""
    possible: tuple[object, ...] = ("...", {}, 0)
    return {
        name: next((one for one in possible if not check(one)), None)
        for name, check in EVENTS[event].required.items()
    }


def _key(text: str) -> str:
    return re.sub(r"[_\-\s]", "", text).lower()


def _known() -> list[str]:
    return [*(event.registration for event in EVENTS), "on_tool_call"]
