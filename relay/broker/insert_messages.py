"""From the messages of a batch to rows, answers and pushes, many at a time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from relay.broker.batch import Batch
from relay.broker.routing import Routing
from relay.core.message import Mode, State
from relay.ledger import queries
from relay.ledger.store import DeliveryTuple, EventTuple, Ledger, PlainDelivery, PlainEvent
from relay.protocol.broker import Json

if TYPE_CHECKING:
    from relay.broker.connection import Connection

_FOLLOWUP = Mode.FOLLOWUP.value


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
        "hops",
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
    hops: int


class _Rows:
    """What a batch adds to the ledger: the plain messages apart, because they are cheaper."""

    __slots__ = ("events", "deliveries", "plain_events", "plain_deliveries")

    def __init__(self) -> None:
        self.events: list[EventTuple] = []
        self.deliveries: list[DeliveryTuple] = []
        self.plain_events: list[PlainEvent] = []
        self.plain_deliveries: list[PlainDelivery] = []


def store(ledger: Ledger, batch: Batch) -> None:
    """Write the messages that the batch collected, and answer them once it is committed.

    They go from ``batch.sends`` to ``batch.stored``. Raises StorageError."""
    sends, batch.sends = batch.sends, []
    given = [message.id for message in sends if message.given]
    known = ledger.known(given) if given else set()
    rows = _Rows()
    repeated: list[Accepted] = []
    for message in sends:
        if message.id in known:
            repeated.append(message)
            continue
        known.add(message.id)
        message.seq = ledger.next_seq()
        message.created_ms = batch.now_ms
        if _is_plain(message):
            _add_plain(message, ledger, rows, batch)
        else:
            _add(message, ledger, rows, batch)
        batch.stored.append(message)
    if len(repeated) < len(sends):
        ledger.begin()
        ledger.add(rows.events, rows.deliveries)
        ledger.add_plain(rows.plain_events, rows.plain_deliveries)
    for message in repeated:
        _answer_repeated(ledger, batch, message)


def _is_plain(message: Accepted) -> bool:
    """Whether it is what most messages are: nothing special, to one who is known."""
    return (
        _is_simple(message.routing)
        and message.mode == _FOLLOWUP
        and message.thread is None
        and message.meta is None
    )


def _is_simple(routing: Routing | None) -> bool:
    return (
        routing is not None and len(routing.routes) == 1 and routing.routes[0].state is State.QUEUED
    )


def _add_plain(message: Accepted, ledger: Ledger, rows: _Rows, batch: Batch) -> None:
    assert message.routing is not None
    to = message.routing.routes[0].to
    seq, id_, sender, now_ms = message.seq, message.id, message.sender, message.created_ms
    number = ledger.next_number(to)
    message.numbers = [number]
    rows.plain_events.append((seq, id_, sender, message.origin, message.body, now_ms))
    rows.plain_deliveries.append((seq, to, number, now_ms, message.hops))
    _answer_simple(message, to, batch)


def _add(message: Accepted, ledger: Ledger, rows: _Rows, batch: Batch) -> None:
    seq, now_ms = message.seq, message.created_ms
    rows.events.append(
        (
            seq,
            message.id,
            message.kind,
            message.sender,
            message.origin,
            message.mode,
            message.thread,
            message.body,
            message.meta,
            now_ms,
        )
    )
    routing = message.routing
    if routing is not None:
        message.numbers = [ledger.next_number(one.to) for one in routing.routes]
        for one, number in zip(routing.routes, message.numbers, strict=True):
            state = one.state
            is_open = 0 if state.final else 1
            step = (is_open, state.value, one.reason, now_ms)
            rows.deliveries.append((seq, one.to, number, *step, message.hops, int(one.parked)))
        if _is_simple(routing):
            _answer_simple(message, routing.routes[0].to, batch)
            return
    _answer(message, routing, batch)


def _answer_simple(message: Accepted, to: str, batch: Batch) -> None:
    if message.connection is not None:
        # Names are plain ASCII, so the commonest answer can be written without an encoder.
        line = (
            f'{{"n":{message.n},"ok":true,"id":"{message.id}","from":"{message.sender}",'
            f'"duplicate":false,"deliveries":[{{"to":"{to}","state":"queued",'
            '"reason":null}]}\n'
        )
        batch.answers.append((message.connection, line.encode()))


def _answer(message: Accepted, routing: Routing | None, batch: Batch) -> None:
    fields: Json = {"id": message.id, "from": message.sender, "duplicate": False}
    if routing is not None:
        fields["deliveries"] = [
            {"to": one.to, "state": one.state.value, "reason": one.reason}
            | ({"parked": True} if one.parked else {})
            for one in routing.routes
        ]
        fields["did_you_mean"] = routing.did_you_mean
        fields["present"] = routing.present
    batch.answer(message.connection, message.n, fields)


def _answer_repeated(ledger: Ledger, batch: Batch, message: Accepted) -> None:
    fields: Json = {"id": message.id, "from": message.sender, "duplicate": True}
    if message.kind == "message":
        fields["deliveries"] = [
            {"to": d["to"], "state": d["state"], "reason": d["reason"]}
            for d in queries.deliveries(ledger, message.id)
        ]
    batch.answer(message.connection, message.n, fields)


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
