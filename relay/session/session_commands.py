"""The commands of a session: it does nothing else; relay.session.driver carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.directive.grammar import Match
from relay.hooks.events import HookEventName
from relay.session.detector import Detection
from relay.session.question_watch import ScreenQuestion
from relay.session.session_events import SessionEvent


class DriverCommand:
    """Something that is to be done."""

    __slots__ = ()


@dataclass(frozen=True)
class FeatureCommand:
    """One ``@NAMESPACE:action text`` that a feature carries out: in order, and after a kill again
    by the next session."""

    id: str  # stays the same when it is heard again
    action: str
    text: str
    attributes: dict[str, str] = field(default_factory=dict)


# -- to the pump ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acknowledge(DriverCommand):
    """All output before ``offset`` is dealt with; a next session goes on from ``checkpoint``."""

    offset: int
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class ReadPump(DriverCommand):
    """Read the agent's output, or for the moment do not: the pump keeps it."""

    on: bool


@dataclass(frozen=True, slots=True)
class KeepTerminal(DriverCommand):
    """Once the person's terminal has gone, keep the agent's for ``seconds``; 0: let it go."""

    seconds: float


# -- to the broker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendMessage(DriverCommand):
    """Send a message; a SendAnswered or a SendFailed follows."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportAgent(DriverCommand):
    """Tell the broker how the agent is: what ``relay status`` shows."""

    state: str
    reason: str
    source: str  # what is believed: "structured" or "screen"
    notes: tuple[str, ...]
    conversation: str = ""  # the agent's own id of it
    #: The tokens that the run has used so far, by the model.
    usage: tuple[tuple[str, tuple[int, ...]], ...] = ()
    question: ScreenQuestion | None = None  # what it asks its person on its screen
    retry: float | None = None  # seconds from the state's begin until a limit ends


@dataclass(frozen=True, slots=True)
class ReportPerson(DriverCommand):
    """Tell the broker that the person has spoken to the agent."""


@dataclass(frozen=True, slots=True)
class ReportDelivery(DriverCommand):
    """Tell the broker how far a delivery is."""

    message: Message
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LookUpDeliveries(DriverCommand):
    """Ask the broker how far these deliveries to the agent are; DeliveryReported events follow."""

    ids: list[str]
    name: str


@dataclass(frozen=True, slots=True)
class ReportTurn(DriverCommand):
    """Tell the broker how a turn ended (its op ``turn``); a TurnReported follows."""

    fields: dict[str, Any]


# -- to the deliveries ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliverMessage(DriverCommand):
    """Bring a message to the agent, when nothing stands in the way."""

    message: Message


@dataclass(frozen=True, slots=True)
class StartDelivering(DriverCommand):
    """Deliver from now on."""


@dataclass(frozen=True, slots=True)
class LookAgain(DriverCommand):
    """Something changed that may let a message through."""


@dataclass(frozen=True, slots=True)
class InputFlushed(DriverCommand):
    """The last ``unread`` bytes of the agent's input will never be read."""

    unread: int


@dataclass(frozen=True, slots=True)
class TextProven(DriverCommand):
    """``text`` has reached the agent, as ``by`` shows: messages in it are seen."""

    text: str
    by: str


@dataclass(frozen=True, slots=True)
class TurnChanged(DriverCommand):
    """The agent's state is another: what was given in a turn got in by now, or waits again."""

    state: AgentState


@dataclass(frozen=True, slots=True)
class CheckSteered(DriverCommand):
    """The agent's records were read: messages that were given with answers may be in them."""


@dataclass(frozen=True, slots=True)
class TellHeldAgain(DriverCommand):
    """The broker may have forgotten why messages are held."""


# -- to handlers and hooks --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CallBuiltin(DriverCommand):
    """Call relay's own handlers of this find (``@memory:``, ``@intent:``), here and now: they only
    hand over."""

    detection: Detection


@dataclass(frozen=True, slots=True)
class RunHandlers(DriverCommand):
    """Run the user's handlers of this find, once in the run; a HandlersEnded follows."""

    detection: Detection


@dataclass(frozen=True, slots=True)
class FireHooks(DriverCommand):
    """Run the hooks of an event; a HooksFired follows."""

    hook: HookEventName
    fields: dict[str, Any]
    seconds: float | None = None  # that they may take in all


@dataclass(frozen=True, slots=True)
class InjectText(DriverCommand):
    """Give the agent what a hook or a handler has for it, under this id, unless it is too much."""

    id: str
    text: str
    match: Match | None = None  # what the handler was for


@dataclass(frozen=True, slots=True)
class SettleSend(DriverCommand):
    """Tell the handler that sent a message what the broker answered."""

    id: str
    answer: dict[str, Any] | RelayError


@dataclass(frozen=True, slots=True)
class ResetHandlerLimits(DriverCommand):
    """The person has spoken to the agent: handlers may give it texts again."""


@dataclass(frozen=True, slots=True)
class TellFeatures(DriverCommand):
    """The agent said these lines."""

    texts: list[str]


# -- that services post as events, and the session passes on as they are --------------------------


@dataclass(frozen=True, slots=True)
class SessionAsked(DriverCommand, SessionEvent):
    """Another process asks something of this session (the push ``ask``): answer it."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportEvent(DriverCommand, SessionEvent):
    """Tell the broker of something that happened, for the event ledger and route functions."""

    kind: str
    body: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    id: str = ""  # "": a new one


@dataclass(frozen=True, slots=True)
class FeatureRequested(DriverCommand, SessionEvent):
    """The agent or a handler wants something of a feature: have it done."""

    namespace: str
    command: FeatureCommand


# -- that the session carries out itself; services may post them as events, too -------------------


@dataclass(frozen=True, slots=True)
class AgentNotice(DriverCommand, SessionEvent):
    """Explain something to the agent, as a message from relay.

    ``each_time``: it is no repetition though its words may be the same. ``question``: the message
    to which it says that no answer has come; the broker knows whether the agent was told already.
    """

    text: str
    each_time: bool = False
    question: str = ""


@dataclass(frozen=True, slots=True)
class PersonNote(DriverCommand, SessionEvent):
    """Tell the person something: in ``relay status``, never in the agent's terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class SendRequested(DriverCommand, SessionEvent):
    """The agent, a handler, a hook or relay itself sends a message."""

    fields: dict[str, Any]  # of the broker's op ``send``, with ``id``
