"""The names of hook events, and what the handlers of each are given."""

from __future__ import annotations

import re
from enum import StrEnum

from relay.errors import ConfigError
from relay.suggest import did_you_mean


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


#: What a handler of each event may take, in order. An event that is missing here has a name but
#: is not fired by this version, so registering for it is refused rather than silently idle.
OFFERED: dict[HookEventName, tuple[str, ...]] = {
    HookEventName.SESSION_START: ("ctx",),
    HookEventName.SESSION_END: ("ctx",),
    HookEventName.OUTPUT: ("output", "ctx"),
    HookEventName.IDLE: ("ctx",),
    HookEventName.MESSAGE_RECEIVED: ("sender", "body", "ctx"),
}
#: What a pattern's handler may take, in order.
PATTERN_OFFERED = ("target", "message", "ctx")

_BY_KEY = {name.value.lower(): name for name in HookEventName}


def event_name(text: str) -> HookEventName:
    """The event for any accepted spelling of it.

    ``SessionStart``, ``session_start``, ``on_session_start``, ``sessionStart`` and
    ``onSessionStart`` are one. Raises RegistrationError with the nearest name for another word.
    """
    if isinstance(text, HookEventName):
        return text
    if not isinstance(text, str):
        raise RegistrationError(
            f"an event's name is a string, not {type(text).__name__}",
            hint=did_you_mean("", _fired()),
        )
    key = re.sub(r"[_\-\s]", "", text).lower()
    found = _BY_KEY.get(key) or _BY_KEY.get(key.removeprefix("on"))
    if found is None:
        raise RegistrationError(f"unknown event {text!r}", hint=did_you_mean(text, _fired()))
    return found


def offered(event: HookEventName) -> tuple[str, ...]:
    """The arguments for handlers of ``event``; RegistrationError when it is never fired."""
    names = OFFERED.get(event)
    if names is None:
        raise RegistrationError(
            f"this version of relay does not fire {event.value}",
            hint="it fires " + ", ".join(sorted(_fired())),
        )
    return names


def _fired() -> list[str]:
    return [event.registration for event in OFFERED]
