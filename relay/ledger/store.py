"""Writing to the ledger: events, deliveries, agents. One connection, one owner.

The owner calls ``begin``, any of the writers, then ``commit``. Writers are here, or in the modules
of rows beside this one, whose functions take the Ledger and use its ``guard``. Every failure is a
StorageError; ``rollback`` then puts the ledger back to the last commit.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, fields
from itertools import chain
from os import urandom
from time import time
from typing import Any, TypeVar, cast

from relay.core.agent_names import owner_name
from relay.core.ids import new_ulid, nonce
from relay.core.message import QueueMode, State
from relay.ledger.schema import (
    BLOCK_BITS,
    COLUMNS,
    INVOCATION_COLUMNS,
    ORIGINAL,
    AgentRecord,
    Delivery,
    message_row,
)
from relay.ledger.transactions import Transactions
from relay.protocol.message_ops import MessageRow

EventTuple = tuple[
    int, str, str, str | None, str, str | None, str | None, str | None, str | None, int
]
#: As ``_DELIVERIES`` names them.
DeliveryTuple = tuple[int, str, int, int, str, str | None, int, int, int]

StrOrNone = TypeVar("StrOrNone", str, str | None)

#: Rows in one statement. SQLite spends half of an insert on starting the statement.
_ROWS = 16


class _Insert:
    """An INSERT that takes many rows at a time."""

    def __init__(self, into: str, values: str) -> None:
        self._one = f"INSERT INTO {into} VALUES {values}"
        self._many = f"INSERT INTO {into} VALUES {','.join([values] * _ROWS)}"

    def run(self, db: sqlite3.Connection, rows: Sequence[tuple[object, ...]]) -> None:
        rest = len(rows) - len(rows) % _ROWS
        for start in range(0, rest, _ROWS):
            db.execute(self._many, tuple(chain.from_iterable(rows[start : start + _ROWS])))
        if rest < len(rows):
            db.executemany(self._one, rows[rest:])


_COLUMNS = "seq, id, kind, agent, origin, mode, thread, body, meta_json, created_ms"
_EVENTS = _Insert(f"events ({_COLUMNS})", "(?,?,?,?,?,?,?,?,?,?)")
_DELIVERIES = _Insert(
    "deliveries (event, recipient, n, open, state, reason, updated_ms, hops, parked)",
    "(?,?,?,?,?,?,?,?,?)",
)
_UPDATE_DELIVERY = (
    "UPDATE deliveries SET open=?, state=?, reason=?, proof=?, attempts=?, delivering_ms=?,"
    " submitted_ms=?, updated_ms=? WHERE event=? AND recipient=?"
)
_DELIVERY_COLUMNS = (
    "d.state, d.reason, d.proof, d.attempts, d.delivering_ms, d.submitted_ms, d.updated_ms"
)
_INSERT_INVOCATION = (
    f"INSERT INTO hook_invocations ({','.join(INVOCATION_COLUMNS[1:])})"
    f" VALUES ({','.join('?' * (len(INVOCATION_COLUMNS) - 1))})"
)
_FORGET_ORIGINALS = (
    "DELETE FROM originals AS o WHERE NOT EXISTS"
    " (SELECT 1 FROM deliveries WHERE event = o.event AND open)"
    " AND NOT EXISTS (SELECT 1 FROM due WHERE event = o.event)"
    " AND NOT EXISTS (SELECT 1 FROM dispatches WHERE event = o.event AND (open OR state='dead'))"
)
_AGENT_COLUMNS = tuple(field.name for field in fields(AgentRecord))
#: What ``save_agent`` writes.
_SAVED = tuple(name for name in _AGENT_COLUMNS if name != "hops")


class Ledger(Transactions):
    """The ledger: its file, and the rows that the broker writes with every message."""

    def __init__(self, path: str) -> None:
        self._seq: int | None = None
        self._added = 0  # the number of the last event of this transaction
        self._numbers: dict[str, int] = {}
        self._newest: str | None = None
        self._senders: set[tuple[str | None, int]] = set()  # some of those that are noted
        #: Secrets are masked in what is stored, as the person's setting ``redact`` has it.
        self.redacts = True
        self._mask: Callable[[str], str] | None = None
        super().__init__(path)

    def _open(self) -> None:
        super()._open()
        found = self.row("SELECT key FROM nonce_key")
        self._nonce_key: bytes = found[0] if found else urandom(32)
        self._has_originals = self.row("SELECT 1 FROM originals LIMIT 1") is not None

    # -- transactions: see relay.ledger.transactions

    def commit(self) -> None:
        """Put everything since ``begin`` on the disk, synchronously."""
        super().commit()
        if self._added:
            self._file.reached(self._added)
            self._added = 0
        told, self._untold = self._untold, ""
        if told:
            self.tell(told)

    def _forget(self) -> None:
        self._seq = None
        self._added = 0
        self._numbers.clear()
        self._senders.clear()

    def mend(self) -> None:
        """Set the damaged file aside and begin anew. Raises StorageError."""
        self.rollback()
        self._newest = None
        self.tell(self.put_in_order())

    def tell(self, text: str) -> None:
        """Store a message of relay's to the person."""
        now_ms, to = int(time() * 1000), owner_name()
        self.begin()
        seq = self.next_seq()
        row = (seq, new_ulid(now_ms), "message", "relay", "relay", QueueMode.FOLLOWUP.value)
        self.add(
            [(*row, "ledger", text, None, now_ms)],
            [(seq, to, self.next_number(to), 1, State.QUEUED.value, None, now_ms, 0, 0)],
        )
        self.commit()

    # -- numbers

    def next_seq(self) -> int:
        if self._seq is None:
            self._seq = int(self.row("SELECT ifnull(max(seq),0) FROM events")[0])
        self._seq += 1
        return self._seq

    def next_number(self, recipient: str) -> int:
        """The next of the recipient's own numbers: 1, 2, 3 … without gaps."""
        key = recipient.lower()
        last = self._numbers.get(key)
        if last is None:
            last = self._last_number(recipient)
            if len(self._numbers) >= 4096:
                self._numbers.clear()
        self._numbers[key] = last + 1
        return last + 1

    def _last_number(self, recipient: str) -> int:
        # Two searches, because the index has the open ones apart.
        part = (
            "SELECT ifnull((SELECT n FROM deliveries WHERE recipient=? AND open={}"
            " ORDER BY event DESC LIMIT 1), 0)"
        )
        last = [self.row(part.format(flag), (recipient,))[0] for flag in (0, 1)]
        return int(max(last))

    # -- events and deliveries

    def known(self, ids: Collection[str]) -> set[str]:
        # They begin with the time: nearly always they are newer than all that is stored.
        newest = self._newest_id()
        old = [id_ for id_ in ids if id_ <= newest]
        if not old:
            return set()
        found = self.rows(
            "SELECT e.id FROM json_each(?) j CROSS JOIN events e ON e.id = j.value",
            (json.dumps(old),),
        )
        return {row[0] for row in found}

    def _newest_id(self) -> str:
        if self._newest is None:
            found = self.row("SELECT ifnull(max(id),'') FROM events")
            self._newest = str(found[0])
        return self._newest

    def note_events(
        self, events: Sequence[tuple[Any, ...]], senders: set[tuple[str | None, int]]
    ) -> None:
        """Keep what searches rely on: the newest id, and who spoke in which block."""
        self._added = max([self._added, *(event[0] for event in events[-1:])])
        # Not undone by ``rollback``: too new an id only makes ``known`` look more often.
        newest = self._newest_id()
        self._newest = max([newest, *(event[1] for event in events)])
        fresh = [one for one in senders - self._senders if one[0] is not None]
        if fresh:
            with self.guard() as db:
                db.executemany("INSERT OR IGNORE INTO senders VALUES (?,?)", fresh)
            if len(self._senders) >= 4096:
                self._senders.clear()
            self._senders.update(fresh)

    def shown(self, text: StrOrNone) -> StrOrNone:
        """A text as it may be stored and shown."""
        if not text or not self.redacts:
            return text
        if self._mask is None:
            from relay.directive.redact import mask  # on use: a broker starts sooner without it

            self._mask = mask
        return self._mask(text)

    def body_of(self, seq: int, body: str | None) -> str | None:
        """The body of event ``seq`` as it may be stored and shown; what it is in full is kept for
        those who have to get it."""
        shown = self.shown(body)
        if shown != body:
            self._has_originals = True
            self.change("INSERT OR REPLACE INTO originals VALUES (?,?)", (seq, body))
        return shown

    def forget_originals(self) -> None:
        """Of events that nobody has to get any more only what is shown is kept."""
        if self._has_originals:
            self.change(_FORGET_ORIGINALS)

    def add(self, events: Sequence[EventTuple], deliveries: Sequence[DeliveryTuple]) -> None:
        events = [self._as_shown(one) for one in events]
        self.note_events(events, {(event[3], event[0] >> BLOCK_BITS) for event in events})
        with self.guard() as db:
            _EVENTS.run(db, events)
            _DELIVERIES.run(db, deliveries)

    def _as_shown(self, event: EventTuple) -> EventTuple:
        body = self.body_of(event[0], event[7])
        return event if body is event[7] else (*event[:7], body, *event[8:])

    def delivery(self, id_: str, recipient: str) -> tuple[int, str, Delivery] | None:
        """(event, sender, delivery) of the message ``id_`` to ``recipient``."""
        row = self.row(
            f"SELECT e.seq, e.agent, {_DELIVERY_COLUMNS} FROM events e JOIN deliveries d"
            " ON d.event = e.seq WHERE e.id=? AND d.recipient=?",
            (id_, recipient),
        )
        if row is None:
            return None
        return row[0], row[1], Delivery(State(row[2]), *row[3:])

    def update_delivery(self, event: int, recipient: str, delivery: Delivery) -> None:
        state = delivery.state
        values = (0 if state.final else 1, state.value, *astuple(delivery)[1:], event, recipient)
        self.change(_UPDATE_DELIVERY, values)
        if state.final:
            self.forget_originals()

    def open_deliveries(
        self, recipient: str, after: int, limit: int, max_bytes: int
    ) -> tuple[list[tuple[int, MessageRow]], bool]:
        """What waits for ``recipient`` beyond event ``after``: [(event, row)], in order, and
        whether more is left. Stops at ``limit`` rows or once the bodies exceed ``max_bytes``."""
        out: list[tuple[int, MessageRow]] = []
        size = 0
        with self.guard() as db:
            cursor = db.execute(
                f"SELECT {COLUMNS.replace('e.body', ORIGINAL)} FROM deliveries d"
                " JOIN events e ON e.seq = d.event"
                " WHERE d.recipient=? AND d.open=1 AND d.event>? AND d.parked=0 ORDER BY d.event",
                (recipient, after),
            )
            for columns in cursor:
                if len(out) >= limit or size >= max_bytes:
                    cursor.close()
                    return out, True
                row = cast(MessageRow, message_row(columns))
                size += len(row["body"])
                out.append((columns[0], row))
        return out, False

    def release_waiting(self, recipient: str, now_ms: int) -> list[tuple[str, str]]:
        """The name appeared: what waited for it is queued. Returns [(id, sender)]."""
        where = f"recipient=? AND open=1 AND state='{State.WAITING.value}'"
        rows = self.rows(
            "SELECT e.id, e.agent FROM deliveries d JOIN events e ON e.seq = d.event"
            f" WHERE {where} ORDER BY d.event",
            (recipient,),
        )
        if rows:
            self.change(
                f"UPDATE deliveries SET state='queued', reason=NULL, updated_ms=? WHERE {where}",
                (now_ms, recipient),
            )
        return rows

    def readdress(self, role: str, name: str, now_ms: int) -> list[tuple[str, str]]:
        """What waits for somebody called as the role ``role`` goes to ``name``, which has it.
        Returns [(id, sender)]."""
        waiting = f"recipient=? AND open=1 AND state='{State.WAITING.value}'"
        rows = self.rows(
            "SELECT d.event, e.id, e.agent FROM deliveries d JOIN events e ON e.seq = d.event"
            f" WHERE {waiting} AND e.agent<>? AND NOT EXISTS"
            " (SELECT 1 FROM deliveries o WHERE o.event = d.event AND o.recipient=?)"
            " ORDER BY d.event",
            (role, name, name),
        )
        for event, _, _ in rows:
            self.change(
                "UPDATE deliveries SET recipient=?, n=?, state='queued', reason=NULL, updated_ms=?"
                f" WHERE event=? AND {waiting}",
                (name, self.next_number(name), now_ms, event, role),
            )
        return [(id_, sender) for _, id_, sender in rows]

    def nonce(self, id_: str, recipient: str) -> str:
        """What the sender of the message ``id_`` to ``recipient`` cannot know."""
        return nonce(self._nonce_key, id_, recipient.lower())

    # -- the loop guard

    def hops(self, id_: str, recipient: str) -> int:
        """How many messages between agents led to this one; 0 when it is not known."""
        found = self.row(
            "SELECT d.hops FROM events e JOIN deliveries d ON d.event = e.seq"
            " WHERE e.id=? AND d.recipient=?",
            (id_, recipient),
        )
        return int(found[0]) if found else 0

    def unpark(self, event: int, recipient: str, delivery: Delivery, decided: str) -> None:
        """The person has ``decided``: store the state, and begin to count anew."""
        self.update_delivery(event, recipient, delivery)
        self.change(
            "UPDATE deliveries SET parked=0, hops=0, decided=? WHERE event=? AND recipient=?",
            (decided, event, recipient),
        )

    # -- agents

    def agents(self) -> list[AgentRecord]:
        """Everybody who was ever registered."""
        rows = self.rows(f"SELECT {', '.join(_AGENT_COLUMNS)} FROM agents")
        records = [AgentRecord(*row) for row in rows]
        for record in records:
            record.person = bool(record.person)
        return records

    def save_agent(self, record: AgentRecord) -> None:
        marks = ",".join("?" * len(_SAVED))
        updates = ",".join(f"{name}=excluded.{name}" for name in _SAVED)
        self.change(
            f"INSERT INTO agents ({','.join(_SAVED)}) VALUES ({marks})"
            f" ON CONFLICT (name) DO UPDATE SET {updates}",
            tuple(getattr(record, name) for name in _SAVED),
        )

    def save_hops(self, name: str, hops: int) -> None:
        """Store how many messages led to what this agent says now."""
        self.change("UPDATE agents SET hops=? WHERE name=?", (hops, name))

    # -- hooks

    def add_invocations(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append runs of hooks: ``INVOCATION_COLUMNS`` without the number."""
        with self.guard() as db:
            db.executemany(_INSERT_INVOCATION, rows)
