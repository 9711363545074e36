"""The events of a session, its only input.

A session takes events and answers with commands (relay.session.session_commands). A test plays
events and reads commands (tests/session/playbook.py). The driver (relay.session.driver) carries the
commands out and posts their results as events.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from relay.core.errors import RelayError
from relay.core.message import Message, State
from relay.directive.grammar import Match
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, CallOutcome, HookOutput
from relay.session.detector import Detection, Heard


class SessionEvent:
    """Something that has happened."""

    __slots__ = ()


# -- from the pump ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentWrote(SessionEvent):
    """The agent wrote ``data``."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PersonTyped(SessionEvent):
    """The person pressed keys."""

    sequence: int
    activity: bytes  # one of the ACTIVITY bytes of relay.protocol.frames
    unread: int = 0  # after FLUSHED: bytes of input that the agent will never read


@dataclass(frozen=True, slots=True)
class TerminalResized(SessionEvent):
    """The terminal has another size."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class OutputRested(SessionEvent):
    """The agent wrote nothing for ``seconds`` before the output that comes next."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AgentStopped(SessionEvent):
    """The agent was stopped by job control, or goes on."""

    stopped: bool


@dataclass(frozen=True, slots=True)
class TerminalGone(SessionEvent):
    """The person's terminal has gone; the agent's follows when the session has let it."""


@dataclass(frozen=True, slots=True)
class AgentExited(SessionEvent):
    """The agent is gone."""

    unread: int | None  # bytes of its input that it had not read; None: not known


@dataclass(frozen=True, slots=True)
class PumpLost(SessionEvent):
    """The pump has hung up."""


@dataclass(frozen=True, slots=True)
class PumpHello(SessionEvent):
    """The pump's first frame: the facts of this run."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PumpCheckpoint(SessionEvent):
    """The pump's second frame: the checkpoint of an earlier session of this run."""

    state: dict[str, Any]


# -- from the broker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageArrived(SessionEvent):
    """The broker has a message for the agent."""

    message: Message


@dataclass(frozen=True, slots=True)
class ReceiptArrived(SessionEvent):
    """A message of the agent's own changed its state (the push ``receipt``)."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BrokerReturned(SessionEvent):
    """The broker is there again, perhaps another one: it knows nothing of the agent."""


@dataclass(frozen=True, slots=True)
class SendAnswered(SessionEvent):
    """The broker's answer to a SendMessage."""

    id: str
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SendFailed(SessionEvent):
    """A SendMessage was refused, or could not be taken now."""

    id: str
    error: RelayError


@dataclass(frozen=True, slots=True)
class DeliveryReported(SessionEvent):
    """A delivery to the agent has reached ``state``."""

    id: str
    state: State


@dataclass(frozen=True, slots=True)
class TurnStopped(SessionEvent):
    """The agent was told to stop its turn, for this: another message, or the person."""

    what: str


@dataclass(frozen=True, slots=True)
class TurnReported(SessionEvent):
    """The broker has the report of a turn with these messages, or has refused it for good."""

    ids: list[str]


# -- from the agent's own interfaces ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HookReported(SessionEvent):
    """A report of the agent's own hook."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourcesHeard(SessionEvent):
    """The agent's own records said this, or cannot be read any more."""

    heard: list[Heard]


@dataclass(frozen=True, slots=True)
class SourcesRead(SessionEvent):
    """The agent's records were read, or a command or request was handled: report and keep it."""


# -- from handlers and hooks --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandlersEnded(SessionEvent):
    """The result of a RunHandlers."""

    detection: Detection
    outcomes: list[CallOutcome[HookOutput]] = field(default_factory=list)
    error: RelayError | None = None


@dataclass(frozen=True, slots=True)
class HooksFired(SessionEvent):
    """The result of a FireHooks; ``result`` is None after a timeout, or if it was fired before."""

    hook: HookEventName
    result: Aggregated | None


@dataclass(frozen=True, slots=True)
class HooksObserved(SessionEvent):
    """The agent reports an event that it does not wait for: its hooks may run."""

    hook: HookEventName
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class KindsWanted(SessionEvent):
    """The kinds of optional events that the broker wants."""

    kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class InjectRequested(SessionEvent):
    """A hook that the agent waits for has a text for it."""

    text: str


@dataclass(frozen=True, slots=True)
class InjectionRefused(SessionEvent):
    """A text that a hook or a handler had for the agent cannot be sent."""

    id: str
    match: Match | None  # the match of the handler
    error: RelayError


# -- from the session's own life ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionStarted(SessionEvent):
    """Everything is connected: deliveries and hooks may begin."""


@dataclass(frozen=True, slots=True)
class AgentGone(SessionEvent):
    """The agent's last output was heard: from now on there are no notices."""


@dataclass(frozen=True, slots=True)
class LastHooksDue(SessionEvent):
    """The hooks of earlier events have run: the session-end hooks may run."""

    seconds: float  # their time limit


@dataclass(frozen=True, slots=True)
class EverythingSettled(SessionEvent):
    """The agent is gone, and its words are handled: the last acknowledgement may go."""


@dataclass(frozen=True, slots=True)
class TimePassed(SessionEvent):
    """Something of the session may be due."""


class EventQueue:
    """Where everything of one session posts its events, in the loop's thread."""

    def __init__(self) -> None:
        self._events: deque[SessionEvent] = deque()
        self._posted = asyncio.Event()

    def post(self, event: SessionEvent) -> None:
        """Queue ``event``; it is handled in the loop's next turn, after those before it."""
        self._events.append(event)
        self._posted.set()

    def take(self) -> SessionEvent | None:
        """The next event, if there is one."""
        if self._events:
            return self._events.popleft()
        self._posted.clear()
        return None

    async def next(self) -> SessionEvent:
        """Wait for the next event."""
        await self.filled()
        return self._events.popleft()

    async def filled(self) -> None:
        """Wait until there is an event."""
        while not self._events:
            self._posted.clear()
            await self._posted.wait()
