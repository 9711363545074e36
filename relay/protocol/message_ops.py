"""The ops about messages and events, and the rows in which they are told. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import (
    Any,
    AwaitMaybe,
    From,
    FromMaybe,
    NotRequired,
    Op,
    Record,
    Request,
)

# -- rows


class EventRow(From):
    """What every message and every event has."""

    id: str
    kind: str  # message, or that of an event
    from_kind: str  # agent, person, relay, channel
    mode: str | None  # of relay.core.message.QueueMode
    thread: str | None
    created_ms: int
    attributes: NotRequired[dict[str, Any]]
    cause: NotRequired[str]  # the id of the message that it follows from
    via: NotRequired[str]  # the terminal of the person who sent it
    proven: NotRequired[bool]  # true: the kernel says that the owner of this broker has written it
    permissions: NotRequired[dict[str, Any] | None]  # what the turn that it begins may use
    meta: NotRequired[dict[str, Any]]  # of an event


class MessageRow(EventRow):
    """One delivery of one message."""

    body: str
    to: str
    state: str  # of relay.core.message.State
    reason: str | None
    proof: str | None
    attempts: int
    delivery: int  # the recipient's own gap-free number, from 1
    updated_ms: int


class HistoryRow(EventRow):
    """One delivery of one message, or an event, which is delivered to nobody."""

    body: str | None
    to: str | None
    state: str | None
    reason: str | None
    proof: str | None
    attempts: int | None
    delivery: int | None
    updated_ms: int
    ledger: NotRequired[str]  # of a search: events, agents (what was said in a turn)
    snippet: NotRequired[str]  # of a search: the place in the body


class DeliveryState(Record):
    """How far a message is on its way to one recipient."""

    to: str
    state: str  # of relay.core.message.State
    reason: str | None
    parked: NotRequired[bool]  # it is held until the person decides


class DeliveryRow(DeliveryState):
    """All that is known of one delivery."""

    proof: str | None
    attempts: int
    decided: str | None  # who released or refused it
    delivery: int  # the recipient's own gap-free number, from 1
    hops: int  # messages that led to it without a person
    delivering_ms: int | None
    submitted_ms: int | None
    updated_ms: int


class MessageAnswer(From):
    """What came of a message at one of those who were asked."""

    text: str
    state: str  # of relay.protocol.turns.TurnState
    reason: str | None
    inferred: bool  # not told by the agent, but by its silence at the prompt
    model: str | None
    turn: str
    tool_calls: int


class EventMarks(Record):
    """What the person has noted about an event."""

    tags: list[str]
    status: str | None
    read: bool
    flagged: bool
    archived: bool


class EventFile(Record):
    """A file of an event of another channel."""

    path: str
    name: str
    size: int


class ChannelOrigin(Record):
    """What an event of another channel has beyond what every event has."""

    channel: str
    source_id: str | None
    account: str | None
    peer_kind: str
    peer: str | None
    reply_to: str | None
    content_type: str
    occurred_ms: int
    sender_type: str
    files: list[EventFile]


class FullMessage(EventRow):
    """A message or an event with all that is known of it, or what was said in a turn."""

    body: str | None
    deliveries: list[DeliveryRow]
    noted: NotRequired[EventMarks]
    outside: NotRequired[ChannelOrigin]
    turn: NotRequired[str]  # in which it was said
    session: NotRequired[str]  # PERSONA/LABEL, of that turn
    dispatches: NotRequired[list[dict[str, Any]]]  # a feature's: what has followed from it
    evaluations: NotRequired[list[dict[str, Any]]]  # a feature's: what route functions said of it
    answers: NotRequired[list[MessageAnswer]]  # of a message: what turns that answer it have said


# -- pushes


class DeliverPush(MessageRow):
    """A message for a session to deliver.

    At most ``WINDOW`` are out at once; ``submitted`` and the final states make room. A session that
    reconnects gets again what is not final.
    """

    push: str  # deliver
    attempt: int  # how many earlier tries there were that may have landed
    nonce: str  # what its sender cannot know


class ReceiptPush(Record):
    """A delivery of the session's own message has changed."""

    push: str  # receipt
    id: str
    to: str
    state: str
    reason: str | None


class InboxPush(Record):
    """Something came into the inbox that this connection follows: ask again. It is sent once until
    the next ``inbox`` request."""

    push: str  # inbox


# -- sending


class Send(Request, FromMaybe, AwaitMaybe):
    """Send a message. It is answered once that is on the disk.

    What the person sends to a configured persona that does not run is a dispatch. With ``answer``
    the turn that answers it is reported, see ``turn``; the sender is told once if that ends without
    words, or the agent is gone. With ``await`` only a message to the sender is an answer.

    A ``notice`` is from relay, to the very agent whose session sends it. True: it is a text of the
    person's handlers, or what the agent has asked for. ``about``: relay says it about something
    that the agent said, which the loop guard counts and may refuse (``loop``).
    """

    to: NotRequired[str | list[str]]  # names, roles, #channels or *; only a notice is without
    body: str
    id: NotRequired[str | None]  # the same id again changes nothing
    mode: NotRequired[str | None]  # of relay.core.message.QueueMode
    thread: NotRequired[str | None]
    re: NotRequired[str | None]  # the id of what it answers
    attributes: NotRequired[dict[str, Any] | None]
    offline: NotRequired[bool]  # to names, too, that were never seen
    answer: NotRequired[bool]  # the sender waits for the turn that answers it
    unproven: NotRequired[bool]  # these are not the person's own words, whoever asks
    notice: NotRequired[bool | str]  # true or ``about``
    by_hook: NotRequired[bool]  # of a notice: the words are those of a person's hook or handler
    question: NotRequired[str | None]  # of a notice: no answer to this id has come; told once


class MessageSent(From):
    """The message that is stored."""

    id: str
    duplicate: bool  # it was stored before
    deliveries: list[DeliveryState]
    did_you_mean: NotRequired[list[str]]  # names like those that are unknown
    present: NotRequired[list[str]]  # who is there, where a name was unknown


class StoreEvent(Request, FromMaybe):
    """Store an event that is not a message; with ``outside`` it is of another channel."""

    kind: NotRequired[str]  # needed without ``outside``
    body: NotRequired[str | None]
    meta: NotRequired[dict[str, Any] | None]
    thread: NotRequired[str | None]
    id: NotRequired[str | None]  # the same id again changes nothing
    unproven: NotRequired[bool]  # a program that relay has called sends it
    outside: NotRequired[dict[str, Any]]  # a ChannelEvent, from the person


class ChannelEvent(FromMaybe):
    """An event of another channel.

    What has the channel and the source_id of a stored event is that event, whatever else it says. A
    feature reads it, which knows other spellings of the names, too.
    """

    channel: str
    source_id: NotRequired[str]  # the channel's own id of it
    kind: NotRequired[str]  # message, without it
    sender: NotRequired[str]  # the same as ``from``
    sender_name: NotRequired[str]
    sender_type: NotRequired[str]  # unknown, webhook, system
    content: NotRequired[str]
    content_type: NotRequired[str]
    timestamp: NotRequired[int]  # in milliseconds
    account: NotRequired[str]
    peer_kind: NotRequired[str]
    peer: NotRequired[str]
    thread: NotRequired[str | int]
    reply_to: NotRequired[str]
    metadata: NotRequired[dict[str, Any]]
    files: NotRequired[list[dict[str, Any]]]  # as relay.ledger.content_files has stored them


class EventStored(From):
    """The event that is stored."""

    id: str
    duplicate: bool  # it was stored before


class Cancel(Request):
    """Withdraw a message from every recipient to whom it was not delivered yet. An agent may
    withdraw its own."""

    id: str  # whole, or a unique beginning or end of at least 4 characters


class Cancelled(Record):
    """How many recipients do not get it any more."""

    id: str
    withdrawn: int
    deliveries: list[DeliveryRow]


# -- delivering


class ReportState(Request):
    """The recipient's session reports how far a delivery is."""

    id: str
    state: str  # of relay.core.message.State
    reason: NotRequired[str | None]
    proof: NotRequired[str | None]
    attempt: NotRequired[int | None]  # the number of the try, for ``delivering``
    presence: NotRequired[bool]  # it is handed over next: with what is to be told beside it


class StateStored(Record):
    """The state that is stored."""

    id: str
    state: str
    attempts: int
    presence: NotRequired[str]  # who has come and gone since it was told last
    context: NotRequired[str]  # what automations have added to the message, as JSON


class Read(Request):
    """Mark messages as seen: in the inbox of a person, or of the shell that asks."""

    name: NotRequired[str | None]
    ids: list[str]


class MarkedRead(Record):
    """How many became ``seen``."""

    read: int


class Wait(Request):
    """Wait until all deliveries of a message are final; with ``answer``, until each is answered, or
    nobody will answer it any more.

    Of a dispatch: until its turn has begun; with ``answer``, until the last try has ended.
    """

    id: str
    timeout: float  # seconds
    answer: NotRequired[bool]


class WaitResult(Record):
    """How far the message is, when it is done or the time is up."""

    id: str
    done: bool
    deliveries: list[DeliveryState]
    answers: NotRequired[list[MessageAnswer]]


class ToolCallFields(Record):
    """One tool that was used in a turn: the fields of relay.protocol.turns.ToolCall."""

    name: str
    params: NotRequired[str | None]
    result: NotRequired[str | None]
    state: NotRequired[str | None]
    started_ms: NotRequired[int | None]
    completed_ms: NotRequired[int | None]


class TurnEndFields(Record):
    """How a turn ended: the fields of relay.protocol.turns.TurnResult."""

    state: NotRequired[str | None]
    text: NotRequired[str | None]
    cause: NotRequired[str | None]
    detail: NotRequired[str | None]
    reason: NotRequired[str | None]  # instead of both, kept by a session of an earlier version
    again: NotRequired[bool | None]  # likewise
    inferred: NotRequired[bool | None]
    model: NotRequired[str | None]
    external_id: NotRequired[str | None]
    tokens_in: NotRequired[int | None]
    tokens_out: NotRequired[int | None]
    ended_ms: NotRequired[int | None]
    tool_calls: NotRequired[list[ToolCallFields] | None]


class TurnReport(Request, TurnEndFields):
    """The session of the registered agent reports the end of a turn that somebody waits for."""

    ids: list[str]  # messages that were answered in it
    started_ms: int


class TurnStored(Record):
    """The turn is stored; the same turn told again changes nothing."""

    duplicate: bool


# -- reading


class Inbox(Request):
    """The messages in an inbox; nothing is marked as seen."""

    name: NotRequired[str | None]  # else the agent's own, or that of the person of this broker
    all: NotRequired[bool]  # those that were seen, too
    limit: NotRequired[int | None]
    after: NotRequired[int]  # a delivery number
    follow: NotRequired[bool]  # a push ``inbox`` tells of what comes later


class InboxRows(Record):
    """What is in it, the oldest first."""

    name: str
    kind: str  # person, shell, agent
    rows: list[MessageRow]
    more: bool


class SentQuery(Request):
    """The newest messages from somebody."""

    name: NotRequired[str | None]  # as of ``inbox``
    limit: NotRequired[int | None]


class SentRows(Record):
    """The newest messages, the oldest of them first."""

    name: str
    rows: list[MessageRow]
    more: bool


class Show(Request):
    """One message with all its deliveries; or the words of a turn. With the id of a dispatch it is
    what that follows from."""

    id: str  # whole, or a unique beginning or end of at least 4 characters


class Shown(Record):
    """The message."""

    message: FullMessage


class HistoryQuery(Request):
    """The newest messages and events that match.

    With ``grep``, what turns of personas said is found, too.
    """

    agent: NotRequired[str | None]  # from or to
    thread: NotRequired[str | None]
    channel: NotRequired[str | None]  # relay's own #channel
    tag: NotRequired[str | None]  # that the person has put on it
    about: NotRequired[str | None]  # an id: the conversation that it is part of, the oldest first
    since_ms: NotRequired[int | None]
    grep: NotRequired[str | None]  # a part of the body, in any case
    limit: NotRequired[int | None]
    kind: NotRequired[str | None]  # ``*`` is every event; without one: messages
    answers: NotRequired[bool]  # and what turns that answer them have said, each behind its message


class HistoryRows(Record):
    """The newest, the oldest of them first."""

    rows: list[HistoryRow]
    more: bool
    only: NotRequired[str]  # why it is the events alone that were searched


SEND = Op("send", Send, MessageSent)
EVENT = Op("event", StoreEvent, EventStored)
CANCEL = Op("cancel", Cancel, Cancelled)
STATE = Op("state", ReportState, StateStored)
READ = Op("read", Read, MarkedRead)
WAIT = Op("wait", Wait, WaitResult)
TURN = Op("turn", TurnReport, TurnStored)
INBOX = Op("inbox", Inbox, InboxRows)
SENT = Op("sent", SentQuery, SentRows)
SHOW = Op("show", Show, Shown)
HISTORY = Op("history", HistoryQuery, HistoryRows)
