"""The commands of a session, its only output; relay.session.driver carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.core.source_events import LimitCause
from relay.directive.grammar import Match
from relay.hooks.events import HookEventName
from relay.session.agent_questions import ScreenQuestion
from relay.session.detector import Detection
from relay.session.session_events import SessionEvent


class DriverCommand:
    """Something to be done."""

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
    """All output before ``offset`` is handled; a next session continues from ``checkpoint``."""

    offset: int
    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class ReadPump(DriverCommand):
    """Read the agent's output, or pause: the pump keeps it meanwhile."""

    on: bool


@dataclass(frozen=True, slots=True)
class KeepTerminal(DriverCommand):
    """Once the person's terminal has gone, keep the agent's open for ``seconds``; 0: close it."""

    seconds: float


# -- to the broker ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendMessage(DriverCommand):
    """Send a message; a SendAnswered or a SendFailed follows."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportAgent(DriverCommand):
    """Report the agent's state to the broker: ``relay status`` shows it."""

    state: str
    reason: str
    source: str  # the source in use: "structured" or "screen"
    notes: tuple[str, ...]
    conversation: str = ""  # the agent's own id of its conversation
    #: The tokens that the run has used so far, by the model.
    usage: tuple[tuple[str, tuple[int, ...]], ...] = ()
    question: ScreenQuestion | None = None  # the question on its screen
    retry: float | None = None  # seconds from the beginning of the state until a usage limit ends
    cause: LimitCause | None = None  # why it is limited
    remark: str = ""  # said beside a state that has no reason


@dataclass(frozen=True, slots=True)
class ReportPerson(DriverCommand):
    """Tell the broker that the person has spoken to the agent."""


@dataclass(frozen=True, slots=True)
class ReportDelivery(DriverCommand):
    """Report the state of a delivery to the broker."""

    message: Message
    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LookUpDeliveries(DriverCommand):
    """Ask the broker for the states of these deliveries; DeliveryReported events follow."""

    ids: list[str]
    name: str


@dataclass(frozen=True, slots=True)
class ReportTurn(DriverCommand):
    """Report the end of a turn to the broker (its op ``turn``); a TurnReported follows."""

    fields: dict[str, Any]


# -- to the deliveries ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeliverMessage(DriverCommand):
    """Deliver a message to the agent, once nothing is in the way."""

    message: Message


@dataclass(frozen=True, slots=True)
class StartDelivering(DriverCommand):
    """Deliver from now on."""


@dataclass(frozen=True, slots=True)
class LookAgain(DriverCommand):
    """Check again whether waiting messages may go."""


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
    """The agent's state has changed: messages given in a turn have arrived, or wait again."""

    state: AgentState


@dataclass(frozen=True, slots=True)
class CheckSteered(DriverCommand):
    """The agent's records were read: they may prove messages that were given with answers."""


@dataclass(frozen=True, slots=True)
class TellHeldAgain(DriverCommand):
    """Report again to the broker why messages wait."""


# -- to handlers and hooks --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunHandlers(DriverCommand):
    """Run the user's handlers of this detection, once in the run; a HandlersEnded follows."""

    detection: Detection


@dataclass(frozen=True, slots=True)
class FireHooks(DriverCommand):
    """Run the hooks of an event; a HooksFired follows."""

    hook: HookEventName
    fields: dict[str, Any]
    seconds: float | None = None  # their time limit in all


@dataclass(frozen=True, slots=True)
class InjectText(DriverCommand):
    """Give the agent a text of a hook or a handler, under this id, unless there are too many."""

    id: str
    text: str
    match: Match | None = None  # the match of the handler


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


# -- services post these as events, and the session passes them on --------------------------


@dataclass(frozen=True, slots=True)
class SessionAsked(DriverCommand, SessionEvent):
    """Answer the request of another process to this session (the push ``ask``)."""

    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReportEvent(DriverCommand, SessionEvent):
    """Report an event to the broker, for the event ledger and route functions."""

    kind: str
    body: str = ""
    meta: dict[str, Any] = field(default_factory=dict)
    id: str = ""  # "": a new one


@dataclass(frozen=True, slots=True)
class FeatureRequested(DriverCommand, SessionEvent):
    """Have a feature carry out a command of the agent or a handler."""

    namespace: str
    command: FeatureCommand


# -- the session carries these out itself; services may post them as events, too -------------------


@dataclass(frozen=True, slots=True)
class AgentNotice(DriverCommand, SessionEvent):
    """Explain something to the agent, as a message from relay.

    ``each_time``: it is no repetition even if its words are the same. ``question``: the message
    to which no answer has come; the broker knows whether the agent was told that already.
    ``mistake``: the agent's own, of which the person hears too if it goes on.
    """

    text: str
    each_time: bool = False
    question: str = ""
    mistake: bool = True


@dataclass(frozen=True, slots=True)
class PersonNote(DriverCommand, SessionEvent):
    """Tell the person something: in ``relay status``, never in the agent's terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class NoteOver(DriverCommand, SessionEvent):
    """What a PersonNote said, or all that began so, is no longer so."""

    text: str


@dataclass(frozen=True, slots=True)
class AgentRemark(DriverCommand, SessionEvent):
    """Say something beside the agent's state, until something else is said; "": nothing."""

    text: str


@dataclass(frozen=True, slots=True)
class SendRequested(DriverCommand, SessionEvent):
    """The agent, a handler, a hook or relay itself sends a message."""

    fields: dict[str, Any]  # of the broker's op ``send``, with ``id``
