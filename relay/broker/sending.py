"""The ``send`` and ``event`` ops: from a request to rows, many requests at a time."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from relay.broker.committer import Batch
from relay.broker.directory import Directory, Member
from relay.broker.protocol import Json
from relay.broker.router import EVERYONE, Route, Routing, route
from relay.errors import RelayError, UsageError
from relay.ids import new_ulid
from relay.ledger import queries
from relay.ledger.rows import AgentRecord
from relay.ledger.store import DeliveryTuple, EventTuple, Ledger
from relay.model import BODY_MAX, AgentState, Mode, State, valid_name

if TYPE_CHECKING:
    from relay.broker.connection import Connection

_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_MODES = frozenset(mode.value for mode in Mode)
_FOLLOWUP = Mode.FOLLOWUP.value
_SURROGATE = re.compile("[\ud800-\udfff]")
THREAD_MAX = 256
META_MAX = 64 * 1024


class Accepted:
    """A request that will be a row: everything is checked, nothing is stored yet."""

    __slots__ = (
        "connection",
        "n",
        "id",
        "given",
        "kind",
        "sender",
        "origin",
        "mode",
        "thread",
        "body",
        "meta",
        "routing",
        "seq",
        "numbers",
        "created_ms",
    )

    connection: Connection | None
    n: int
    id: str
    given: bool  # the client chose the id, so it may be a repetition
    kind: str
    sender: str
    origin: str
    mode: str | None
    thread: str | None
    body: str | None
    meta: str | None
    routing: Routing | None
    seq: int
    numbers: list[int]
    created_ms: int


class Sending:
    """Checks, routes and stores messages. Holds no state of its own but the names it was given."""

    def __init__(self, ledger: Ledger, directory: Directory, owner: str) -> None:
        self._ledger = ledger
        self._directory = directory
        self._owner = owner

    # -- the ops

    def send(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        """Check and route one message; it is stored by ``flush``."""
        body = checked_body(request.get("body"))
        if request.get("notice"):
            self._notice(connection, request, batch, body)
            return
        sender, origin = self._sender(connection, request, batch)
        message = self._accept(connection, request, batch, "message", body)
        message.sender = sender
        message.origin = origin
        mode = request.get("mode")
        message.mode = _FOLLOWUP if mode is None else mode
        if not isinstance(message.mode, str) or message.mode not in _MODES:
            raise UsageError(
                f"there is no mode {mode!r}", hint=f"modes: {', '.join(sorted(_MODES))}"
            )
        attributes = request.get("attributes") or {}
        if not isinstance(attributes, dict):
            raise UsageError("attributes are names with values")
        to = request.get("to")
        if to == EVERYONE or (isinstance(to, list) and EVERYONE in to):
            # Each recipient gets a row of its own, and should know that it is not the only one.
            attributes = {**attributes, "audience": "everyone"}
        if attributes:
            message.meta = _meta({"attributes": attributes})
        try:
            message.routing = self._route(to, sender, origin, request)
        except RelayError:
            if not message.given or not self._ledger.known([message.id]):
                raise
            # It was accepted before the answer got lost; who is there has changed since.
            message.routing = Routing(())
        batch.sends.append(message)

    def _notice(
        self, connection: Connection | None, request: Json, batch: Batch, body: str
    ) -> None:
        """A message from relay itself to the agent whose session asks for it, and to no other."""
        member = connection.member if connection is not None else None
        if member is None:
            raise UsageError("only a registered session can leave its agent a notice")
        message = self._accept(connection, request, batch, "message", body)
        message.sender, message.origin = "relay", "relay"
        message.mode = Mode.FOLLOWUP.value
        message.routing = Routing((Route(member.name),))
        batch.sends.append(message)

    def event(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        """Check one event that is no message."""
        kind = request.get("kind")
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", kind):
            raise UsageError("an event needs a kind: lower-case letters, digits, _ . -")
        if kind == "message":
            raise UsageError("a message is sent with the op send")
        body = request.get("body")
        text = "" if body is None else _text(body, "body")
        event = self._accept(connection, request, batch, kind, text)
        if len(event.body or "") > BODY_MAX:
            raise _too_large(len(event.body or ""))
        event.sender, event.origin = self._sender(connection, request, batch)
        meta = request.get("meta")
        event.meta = _meta({"meta": meta}) if meta else None
        batch.sends.append(event)

    # -- storing

    def flush(self, batch: Batch) -> None:
        """Store what the batch collected, and answer it. Raises StorageError."""
        sends = batch.sends
        if not sends:
            return
        batch.sends = []
        ledger = self._ledger
        given = [message.id for message in sends if message.given]
        known = ledger.known(given) if given else set()
        now_ms = batch.now_ms
        events: list[EventTuple] = []
        deliveries: list[DeliveryTuple] = []
        fresh: list[Accepted] = []
        repeated: list[Accepted] = []
        for message in sends:
            if message.id in known:
                repeated.append(message)
                continue
            known.add(message.id)
            fresh.append(message)
            message.created_ms = now_ms
            events.append(_event_row(message, ledger.next_seq()))
            if message.routing is not None:
                _delivery_rows(message, ledger, now_ms, deliveries)
        if events:
            ledger.begin()
            ledger.add(events, deliveries)
        for message in fresh:
            _answer(batch, message)
        for message in repeated:
            self._answer_repeated(batch, message)
        batch.sends = fresh

    def _answer_repeated(self, batch: Batch, message: Accepted) -> None:
        fields: Json = {"id": message.id, "from": message.sender, "duplicate": True}
        if message.kind == "message":
            fields["deliveries"] = [
                {"to": d["to"], "state": d["state"], "reason": d["reason"]}
                for d in queries.deliveries(self._ledger, message.id)
            ]
        batch.answer(message.connection, message.n, fields)

    # -- who speaks, who hears

    def authenticated(self, connection: Connection | None, request: Json) -> Member | None:
        """The agent that a request is from, if it is from one. Raises RelayError for a lie."""
        if connection is not None and connection.member is not None:
            return connection.member
        auth = request.get("auth")
        if auth is None:
            return None
        member = None
        if isinstance(auth, dict):
            member = self._directory.authenticated(auth.get("run"), auth.get("token"))
        if member is None:
            raise RelayError(
                "this run of an agent is not known to the broker",
                hint="unset RELAY_RUN and RELAY_TOKEN to speak as a person",
                code="forbidden",
            )
        return member

    def _sender(
        self, connection: Connection | None, request: Json, batch: Batch
    ) -> tuple[str, str]:
        member = self.authenticated(connection, request)
        name = request.get("from")
        if member is not None:
            if name is not None and str(name).lower() != member.name.lower():
                raise UsageError(
                    f"{member.name} cannot speak as {name}", hint="leave the sender out"
                )
            return member.name, "agent"
        if name is None:
            return self._owner, "person"
        return self.person(name, batch), "person"

    def person(self, name: object, batch: Batch) -> str:
        """A person's name as it is known, made known if it is new. Agents' names are refused."""
        if not isinstance(name, str) or not valid_name(name):
            raise UsageError(
                f"{name!r} cannot be a name",
                hint="letters, digits, _ . - (at most 64), and none of relay's own words",
            )
        member = self._directory.get(name)
        if member is not None and not member.person:
            raise UsageError(
                f"{member.name} is an agent; nobody else can speak as it",
                hint="choose another name with --from, or leave it out",
            )
        if member is not None:
            return member.name
        record = AgentRecord(
            name=name,
            person=True,
            kind="person",
            state=AgentState.IDLE.value,
            since_ms=batch.now_ms,
            last_seen_ms=batch.now_ms,
        )
        self._ledger.begin()
        self._ledger.save_agent(record)
        self._ledger.release_held(name, batch.now_ms)
        directory = self._directory
        batch.after.append(lambda: _known(directory, record))
        batch.cut = True  # the next message may be to this person
        return name

    def _route(self, to: Any, sender: str, origin: str, request: Json) -> Routing:
        if type(to) is str:
            # The common case, without the general one's lists.
            member = self._directory.members.get(to.lower())
            if member is not None and member.name != sender:
                return member.routing
            targets = [to]
        elif isinstance(to, list) and all(isinstance(one, str) for one in to):
            targets = to
        else:
            raise UsageError("a message needs a recipient", hint="relay send NAME TEXT")
        strict = origin == "person" and not request.get("offline")
        return route(targets, sender, self._directory.members, strict=strict)

    def _accept(
        self, connection: Connection | None, request: Json, batch: Batch, kind: str, body: str
    ) -> Accepted:
        accepted = Accepted()
        accepted.connection = connection
        accepted.n = request["n"]
        id_ = request.get("id")
        accepted.given = id_ is not None
        if id_ is None:
            id_ = new_ulid(batch.now_ms)
        elif type(id_) is not str or not _ID.fullmatch(id_):
            raise UsageError(f"{id_!r} is not a ULID")
        accepted.id = id_
        accepted.kind = kind
        accepted.body = body
        accepted.mode = None
        accepted.meta = None
        accepted.routing = None
        thread = request.get("thread")
        if thread is not None and len(_text(thread, "thread")) > THREAD_MAX:
            raise UsageError(f"a thread's name has at most {THREAD_MAX} characters")
        accepted.thread = thread
        return accepted


def checked_body(body: Any) -> str:
    """The body of a message. Raises UsageError when it is empty, too large or no text."""
    if type(body) is not str:
        raise UsageError("a message needs a text", hint="relay send NAME TEXT")
    size = len(body)
    if size * 3 > BODY_MAX or not body.isascii():
        try:
            size = len(body.encode())
        except UnicodeEncodeError as error:
            raise _not_unicode() from error
    if size > BODY_MAX:
        raise _too_large(size)
    if not body or body.isspace():
        raise UsageError("the message is empty", hint="relay send NAME TEXT")
    return body


def _too_large(size: int) -> UsageError:
    return UsageError(
        f"the text is {size} bytes long; at most {BODY_MAX} are possible",
        hint="put it in a file and send its path",
        code="too_large",
    )


def _not_unicode() -> UsageError:
    return UsageError("the text holds half of a surrogate pair", hint="send valid Unicode")


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a text")
    if _SURROGATE.search(value):
        raise _not_unicode()
    return value


def _meta(fields: Json) -> str:
    text = json.dumps(fields)
    if len(text) > META_MAX:
        raise UsageError(f"attributes of more than {META_MAX} bytes")
    return text


def _known(directory: Directory, record: AgentRecord) -> None:
    if directory.get(record.name) is None:
        directory.put(record)


def _event_row(message: Accepted, seq: int) -> EventTuple:
    message.seq = seq
    return (
        seq,
        message.id,
        message.kind,
        message.sender,
        message.origin,
        message.mode,
        message.thread,
        message.body,
        message.meta,
        message.created_ms,
    )


def _delivery_rows(
    message: Accepted, ledger: Ledger, now_ms: int, out: list[DeliveryTuple]
) -> None:
    assert message.routing is not None
    message.numbers = []
    for one in message.routing.routes:
        number = ledger.next_number(one.to)
        message.numbers.append(number)
        if one.state is State.QUEUED:  # nearly all: spared the enum's slow attributes
            out.append((message.seq, one.to, number, 1, "queued", None, now_ms))
            continue
        is_open = 0 if one.state.final else 1
        out.append((message.seq, one.to, number, is_open, one.state.value, one.reason, now_ms))


def _answer(batch: Batch, message: Accepted) -> None:
    connection = message.connection
    if connection is None:
        return
    routing = message.routing
    if routing is None:
        fields: Json = {"id": message.id, "from": message.sender, "duplicate": False}
        batch.answer(connection, message.n, fields)
        return
    routes = routing.routes
    if len(routes) == 1 and routes[0].state is State.QUEUED:
        # Names are plain ASCII, so the commonest answer can be written without an encoder.
        line = (
            f'{{"n":{message.n},"ok":true,"id":"{message.id}","from":"{message.sender}",'
            f'"duplicate":false,"deliveries":[{{"to":"{routes[0].to}","state":"queued",'
            '"reason":null}]}\n'
        )
        batch.answers.append((connection, line.encode()))
        return
    batch.answer(
        connection,
        message.n,
        {
            "id": message.id,
            "from": message.sender,
            "duplicate": False,
            "deliveries": [
                {"to": one.to, "state": one.state.value, "reason": one.reason} for one in routes
            ],
            "did_you_mean": routing.did_you_mean,
            "present": routing.present,
        },
    )


def pushed(message: Accepted, index: int) -> Json:
    """The row of a message that was just stored, for its recipient number ``index``."""
    assert message.routing is not None
    one = message.routing.routes[index]
    row: Json = {
        "id": message.id,
        "kind": message.kind,
        "from": message.sender,
        "from_kind": message.origin,
        "to": one.to,
        "body": message.body,
        "mode": message.mode,
        "thread": message.thread,
        "created_ms": message.created_ms,
        "updated_ms": message.created_ms,
        "state": one.state.value,
        "reason": one.reason,
        "proof": None,
        "attempts": 0,
        "delivery": message.numbers[index],
    }
    if message.meta:
        row.update(json.loads(message.meta))
    return row
