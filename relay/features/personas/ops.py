"""The ops about persons, notes on events, route functions and dispatches. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.message_ops import EventMarks
from relay.protocol.op import Any, From, NotRequired, Op, Record, Request

# -- notes on events


class EventMark(Request):
    """Note one thing about events. For the person."""

    what: str  # tag, status, read, flagged, archived
    ids: list[str]  # or ends of ids
    word: NotRequired[str | None]  # the tag, or the status
    undo: NotRequired[bool]  # take it back


class MarkedEvent(EventMarks):
    """An event, with what is noted about it now."""

    id: str


class MarkedEvents(Record):
    """In the order in which they were named."""

    rows: list[MarkedEvent]


# -- persons


class PersonRow(Record):
    """Who is behind addresses."""

    id: str
    name: str
    type: str  # of relay.core.dispatch.PersonType
    relationship: str | None
    created_ms: int
    updated_ms: int
    addresses: list[tuple[str, str]]  # [channel, address]


class PersonsQuery(Request):
    """Everybody, or one of them."""

    who: NotRequired[str | None]  # a name, an id or its end, channel:address


class PersonRows(Record):
    """The persons."""

    persons: list[PersonRow]
    more: bool


class PersonAdd(Request):
    """Make somebody known, or add to what is known of them. Not for agents."""

    name: str
    addresses: NotRequired[list[list[str]] | None]  # [channel, address]
    type: NotRequired[str | None]
    relationship: NotRequired[str | None]


class PersonMerge(Request):
    """Two persons are one. Not for agents."""

    one: str  # a name, an id or its end, channel:address
    into: str  # the one that stays


class PersonChanged(Record):
    """The person as it is then."""

    person: PersonRow


# -- route functions


class HookOff(Record):
    """Since when a route function is switched off, and why."""

    reason: str
    event: str | None  # the id of the event that it failed at
    disabled_ms: int


class RouteRow(Record):
    """A route function. Without ``kinds`` or ``channels`` it evaluates events of all of them."""

    hook: str
    kinds: list[str] | None
    channels: list[str] | None
    priority: int
    path: str
    disabled: HookOff | None


class RoutesQuery(Request):
    """The route functions that evaluate the events of an agent in a folder, or of no agent."""

    cwd: NotRequired[str | None]


class RouteRows(Record):
    """The route functions."""

    rows: list[RouteRow]
    problems: dict[str, str]  # by path: why a configuration evaluates nothing
    off: dict[str, HookOff]  # hooks of the broker's events that are switched off, by id


class HookSwitch(Request):
    """Switch a route function, or a hook of the broker's events, off or on again. Not for
    agents."""

    hook: str  # an id, or the only such name
    on: bool


class HookSwitched(Record):
    """The id, and whether it is on."""

    hook: str
    on: bool


# -- dispatches


class DispatchAsked(Request):
    """Ask a persona something, without a route function. It is answered once that is on the disk.
    For the person."""

    persona: str
    body: str
    session: NotRequired[str | None]  # the label of one of its sessions
    mode: NotRequired[str | None]  # of relay.core.message.QueueMode
    priority: NotRequired[int]
    permissions: NotRequired[dict[str, Any] | None]  # what the turn may use; left out: everything
    system_prompt: NotRequired[str | None]
    extracted: NotRequired[dict[str, Any] | None]
    thread_history: NotRequired[bool | None]
    id: NotRequired[str | None]  # the same id again changes nothing
    unproven: NotRequired[bool]  # these are not the person's own words, whoever asks


class DispatchMade(Record):
    """The dispatch that is stored."""

    id: str
    event: str  # the id of the event that it follows from
    duplicate: bool  # it was there already
    waits: str | None  # for what; null: it goes on at once


class DispatchesQuery(Request):
    """What is open, or dead. For the person."""

    dead: NotRequired[bool]
    which: NotRequired[str | None]  # a part of an id, or a persona
    limit: NotRequired[int]


class DispatchShown(From):
    """A dispatch, or (``what``: ``answer``) the answer of one to another channel."""

    what: str
    id: str
    state: str
    reason: str | None
    persona: str
    session: str
    mode: str
    priority: int
    channel: str
    body: str  # its beginning
    hook: str
    event: str
    tries: int
    turn: str | None
    created_ms: int
    updated_ms: int


class DispatchRows(Record):
    """The newest, oldest first."""

    rows: list[DispatchShown]


class Redispatch(Request):
    """Try dead ones again, or drop them. Not for agents."""

    which: NotRequired[list[str] | None]  # parts of ids, personas; left out: all
    drop: NotRequired[bool]


EVENT_MARK = Op("event_mark", EventMark, MarkedEvents)
PERSONS = Op("persons", PersonsQuery, PersonRows)
PERSON_ADD = Op("person_add", PersonAdd, PersonChanged)
PERSON_MERGE = Op("person_merge", PersonMerge, PersonChanged)
ROUTES = Op("routes", RoutesQuery, RouteRows)
HOOK_SWITCH = Op("hook_switch", HookSwitch, HookSwitched)
DISPATCH = Op("dispatch", DispatchAsked, DispatchMade)
DISPATCHES = Op("dispatches", DispatchesQuery, DispatchRows)
REDISPATCH = Op("redispatch", Redispatch, DispatchRows)
