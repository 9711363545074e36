"""The session's vocabulary: events go in, commands come out.

Nothing else reaches a session's state, and a session does nothing else. A test plays events and
reads commands (tests/session/playbook.py); the driver (relay.session.driver) carries the commands
out and posts what comes of them as events again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.directive.grammar import Match
from relay.hooks.add_ons import AddOnCommand
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, CallOutcome
from relay.hooks.outputs import Result
from relay.session.detector import Detection, Heard

# -- events: from the pump ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentWrote:
    """The agent wrote ``data``."""

    data: bytes


@dataclass(frozen=True, slots=True)
class PersonTyped:
    """The person pressed keys."""

    sequence: int
    activity: bytes  # one of the ACTIVITY bytes of relay.protocol.frames
    unread: int = 0  # after FLUSHED: bytes of input that the agent will never read


@dataclass(frozen=True, slots=True)
class TerminalResized:
    """The terminal has another size."""

    cols: int
    rows: int


@dataclass(frozen=True, slots=True)
class OutputRested:
    """The agent wrote nothing for ``seconds`` before the output that comes next."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AgentStopped:
    """The agent was stopped by job control, or goes on."""

    stopped: bool


@dataclass(frozen=True, slots=True)
class TerminalGone:
    """The person's terminal has gone; the agent's follows when the session has let it."""


@dataclass(frozen=True, slots=True)
class AgentExited:
    """The agent is gone."""

    unread: int | None  # bytes of its input that it had not read; None: not known


@dataclass(frozen=True, slots=True)
class PumpLost:
    """The pump has hung up."""


@dataclass(frozen=True, slots=True)
class PumpHello:
    """The first frame of the pump's: what this run is."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PumpCheckpoint:
    """The second frame of the pump's: where an earlier session of this run was."""

    state: dict[str, Any]


# -- events: from the broker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageArrived:
    """The broker has a message for the agent."""

    message: Message


@dataclass(frozen=True, slots=True)
class ReceiptArrived:
    """A message of the agent's own changed its state (the push ``receipt``)."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionAsked:
    """Another process asks something of this session (the push ``ask``)."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BrokerReturned:
    """The broker is there again, perhaps another one: it knows nothing of the agent."""


@dataclass(frozen=True, slots=True)
class SendAnswered:
    """The broker's answer to a SendMessage."""

    id: str
    answer: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SendFailed:
    """A SendMessage was refused, or could not be taken now."""

    id: str
    error: RelayError


@dataclass(frozen=True, slots=True)
class DeliveryReported:
    """A delivery to the agent has got this far."""

    id: str
    state: State


# -- events: from the agent's own interfaces ------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HookReported:
    """The agent's own hook reports."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SourcesHeard:
    """The agent's own records said this, or cannot be read any more."""

    heard: list[Heard]


@dataclass(frozen=True, slots=True)
class SourcesRead:
    """The agent's own records have been read so far: the checkpoint may say so."""


# -- events: from handlers and hooks --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandlersEnded:
    """What came of a RunHandlers."""

    detection: Detection
    outcomes: list[CallOutcome[Result]] = field(default_factory=list)
    error: RelayError | None = None


@dataclass(frozen=True, slots=True)
class HooksFired:
    """What came of a FireHooks; ``result`` is None when its time was up, or it is no first time."""

    hook: HookEventName
    result: Aggregated | None


@dataclass(frozen=True, slots=True)
class SendRequested:
    """A handler, a hook or relay itself sends a message."""

    fields: dict[str, Any]  # of the broker's op ``send``, with ``id``


@dataclass(frozen=True, slots=True)
class HooksObserved:
    """The agent tells of something that it does not wait for: its hooks may run."""

    hook: HookEventName
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class InjectRequested:
    """A hook that the agent waits for has a text for it."""

    text: str


@dataclass(frozen=True, slots=True)
class AddOnRequested:
    """The agent or a handler has something done by an add-on."""

    namespace: str
    command: AddOnCommand


@dataclass(frozen=True, slots=True)
class InjectionRefused:
    """A text that a hook or a handler had for the agent cannot be sent."""

    inject: InjectText
    error: RelayError


@dataclass(frozen=True, slots=True)
class AgentNotice:
    """A service has something to explain to the agent."""

    text: str


@dataclass(frozen=True, slots=True)
class PersonNote:
    """A service has something for the person: ``relay status`` shows it."""

    text: str


# -- events: of the session's own life ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """Everything is connected: deliveries and hooks may begin."""


@dataclass(frozen=True, slots=True)
class AgentGone:
    """The agent's last output was heard: from now on nobody is told anything."""


@dataclass(frozen=True, slots=True)
class LastHooksDue:
    """The hooks of what the agent did have run: those of its end may."""

    seconds: float  # that they may take


@dataclass(frozen=True, slots=True)
class EverythingSettled:
    """The agent is gone, and what it said is dealt with: the last acknowledgement may go."""


@dataclass(frozen=True, slots=True)
class KeptStateChanged:
    """A service has dealt with something that the checkpoint holds."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Something of the session may be due."""


SessionEvent = (
    AgentWrote
    | PersonTyped
    | TerminalResized
    | OutputRested
    | AgentStopped
    | TerminalGone
    | AgentExited
    | PumpLost
    | PumpHello
    | PumpCheckpoint
    | MessageArrived
    | ReceiptArrived
    | SessionAsked
    | BrokerReturned
    | SendAnswered
    | SendFailed
    | DeliveryReported
    | HookReported
    | SourcesHeard
    | SourcesRead
    | HandlersEnded
    | HooksFired
    | SendRequested
    | HooksObserved
    | InjectRequested
    | AddOnRequested
    | InjectionRefused
    | AgentNotice
    | PersonNote
    | SessionStarted
    | AgentGone
    | LastHooksDue
    | EverythingSettled
    | KeptStateChanged
    | TimePassed
)

# -- commands: to the pump ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """All output before ``offset`` is dealt with; a next session goes on from ``checkpoint``."""

    offset: int
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class PauseReading:
    """Read no output for the moment: the pump keeps it."""


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Read output again."""


@dataclass(frozen=True, slots=True)
class KeepTerminal:
    """Once the person's terminal has gone, keep the agent's for ``seconds``; 0: let it go."""

    seconds: float


# -- commands: to the broker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message; a SendAnswered or a SendFailed follows."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportAgent:
    """Tell the broker how the agent is: what ``relay status`` shows."""

    state: str
    reason: str
    source: str  # what is believed: "structured" or "screen"
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportPerson:
    """Tell the broker that the person has spoken to the agent."""


@dataclass(frozen=True, slots=True)
class ReportDelivery:
    """Tell the broker how far a delivery is."""

    message: Message
    state: State
    reason: str = ""


# -- commands: to the deliveries ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliverMessage:
    """Bring a message to the agent, when nothing stands in the way."""

    message: Message


@dataclass(frozen=True, slots=True)
class StartDelivering:
    """Deliver from now on."""


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Something changed that may let a message through."""


@dataclass(frozen=True, slots=True)
class InputFlushed:
    """The last ``unread`` bytes of the agent's input will never be read."""

    unread: int


@dataclass(frozen=True, slots=True)
class TextProven:
    """``text`` has reached the agent, as ``by`` shows: messages in it are seen."""

    text: str
    by: str


@dataclass(frozen=True, slots=True)
class TurnChanged:
    """The agent's state is another: what was given in a turn got in by now, or waits again."""

    state: AgentState


@dataclass(frozen=True, slots=True)
class CheckSteered:
    """The agent's records were read: messages that were given with answers may be in them."""


@dataclass(frozen=True, slots=True)
class TellHeldAgain:
    """The broker may have forgotten why messages are held."""


# -- commands: to handlers and hooks --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallBuiltin:
    """Call relay's own handlers of this find, here and now: they only hand over."""

    detection: Detection


@dataclass(frozen=True, slots=True)
class RunHandlers:
    """Run the user's handlers of this find, once in the run; a HandlersEnded follows."""

    detection: Detection


@dataclass(frozen=True, slots=True)
class FireHooks:
    """Run the hooks of an event; a HooksFired follows."""

    hook: HookEventName
    fields: dict[str, Any]
    seconds: float | None = None  # that they may take in all


@dataclass(frozen=True, slots=True)
class InjectText:
    """Give the agent what a hook or a handler has for it, under this id, unless it is too much."""

    id: str
    text: str
    match: Match | None = None  # what the handler was for


@dataclass(frozen=True, slots=True)
class SettleSend:
    """A message has this answer: whoever sent it from a handler may know."""

    id: str
    answer: dict[str, Any] | RelayError


@dataclass(frozen=True, slots=True)
class ResetHandlerLimits:
    """The person has spoken to the agent: handlers may give it texts again."""


@dataclass(frozen=True, slots=True)
class DoAddOnCommand:
    """Have the add-on of this namespace do it, and tell the agent what came of it."""

    namespace: str
    command: AddOnCommand


@dataclass(frozen=True, slots=True)
class TellAddOns:
    """The agent said these lines."""

    texts: list[str]


@dataclass(frozen=True, slots=True)
class AnswerRemote:
    """Answer what another process asks of this session."""

    fields: dict[str, Any]


# -- commands that the session carries out itself -------------------------------------------------


@dataclass(frozen=True, slots=True)
class TellAgent:
    """Explain something to the agent, as a message from relay."""

    text: str


@dataclass(frozen=True, slots=True)
class NotePerson:
    """Something for the person: in ``relay status``, never in the agent's terminal."""

    text: str


SessionCommand = (
    Acknowledge
    | PauseReading
    | ResumeReading
    | KeepTerminal
    | SendMessage
    | ReportAgent
    | ReportPerson
    | ReportDelivery
    | DeliverMessage
    | StartDelivering
    | LookAgain
    | InputFlushed
    | TextProven
    | TurnChanged
    | CheckSteered
    | TellHeldAgain
    | CallBuiltin
    | RunHandlers
    | FireHooks
    | InjectText
    | SettleSend
    | ResetHandlerLimits
    | DoAddOnCommand
    | TellAddOns
    | AnswerRemote
    | TellAgent
    | NotePerson
)


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
        """The next event, waited for."""
        await self.filled()
        return self._events.popleft()

    async def filled(self) -> None:
        """Wait until there is an event."""
        while not self._events:
            self._posted.clear()
            await self._posted.wait()
