"""The rows of dispatches: what waits for a persona, and how far it is.

``queued`` -> ``running`` -> ``done``, ``interrupted``, ``dead`` or ``dropped``; from ``running``
back to ``queued`` for another try, from ``dead`` by the person's word. ``fence`` counts the times
that one was begun: what is told of an earlier time is told too late.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from relay.core.dispatch import BrokerDispatch
from relay.core.ids import derived_ulid
from relay.core.message import QueueMode
from relay.ledger.store import Ledger


class DispatchState(StrEnum):
    """How far a dispatch is; the first two are open."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"
    DEAD = "dead"
    DROPPED = "dropped"

    @property
    def open(self) -> bool:
        return self in (DispatchState.QUEUED, DispatchState.RUNNING)


@dataclass(frozen=True, slots=True)
class DispatchRow:
    """One dispatch, with what its event says. ``tries``: how many have failed."""

    seq: int
    id: str
    hook_id: str
    persona: str
    session: str
    mode: QueueMode
    priority: int
    created_ms: int
    hops: int
    config: str
    permissions: Mapping[str, Any]
    context: Mapping[str, Any]
    delivery: Mapping[str, Any]
    state: DispatchState
    reason: str | None
    tries: int
    fence: int
    lease_owner: str | None
    updated_ms: int
    turn: str | None
    message: str | None
    event: int
    event_id: str
    sender: str
    origin: str
    channel: str
    peer_kind: str | None
    body: str
    content_type: str

    @property
    def next_turn(self) -> str:
        """The id of the turn that it begins next, and of the message to a wrapped agent."""
        return derived_ulid(self.created_ms, "turn", self.id, str(self.fence + 1))


_COLUMNS = (
    "d.seq, d.id, d.hook_id, d.persona, d.session, d.mode, d.priority, d.created_ms, d.hops,"
    " d.config, d.permissions_json, d.context_json, d.delivery_json, d.state, d.reason, d.attempts,"
    " d.fence, d.lease_owner, d.updated_ms, d.turn, d.message, e.seq, e.id, e.agent, e.origin,"
    " e.channel, e.peer_kind, ifnull(e.body,''), ifnull(e.content_type,'text')"
)
_FROM = "FROM dispatches d JOIN events e ON e.seq = d.event"


def _row(found: Sequence[Any]) -> DispatchRow:
    values = list(found)
    values[5] = QueueMode(values[5])
    values[10:13] = map(json.loads, values[10:13])
    values[13] = DispatchState(values[13])
    return DispatchRow(*values)


def add_dispatches(
    ledger: Ledger,
    event: int,
    dispatches: Sequence[BrokerDispatch],
    *,
    config: str,
    hops: int,
    now_ms: int,
) -> list[str]:
    """Append what follows from the event number ``event``, in this order, within the transaction
    that is open. ``config``: the trusted configuration whose personas are meant. Returns the ids
    of those that were not there yet: after a kill an event is evaluated again."""
    fresh = []
    with ledger.guard() as db:
        for one in dispatches:
            context = {
                "system_prompt": one.system_prompt,
                "extracted": one.extracted,
                "include_thread_history": one.include_thread_history,
            }
            added = db.execute(
                "INSERT OR IGNORE INTO dispatches (id, event, hook_id, persona, session, mode,"
                " priority, created_ms, hops, config, permissions_json, context_json,"
                f" delivery_json, open, state, updated_ms) VALUES ({','.join('?' * 16)})",
                (
                    *(one.id, event, one.hook_id, one.persona, one.session, one.queue_mode.value),
                    *(one.priority, now_ms, hops, config),
                    json.dumps(one.permissions.to_json()),
                    json.dumps({k: v for k, v in context.items() if v is not None}),
                    json.dumps(one.delivery_context.to_json()),
                    *(1, DispatchState.QUEUED.value, now_ms),
                ),
            )
            if added.rowcount:
                fresh.append(one.id)
    return fresh


# -- reading


def lanes_after(ledger: Ledger, seq: int) -> tuple[list[tuple[str, str]], int]:
    """The (persona, session) of what is open beyond number ``seq``, and the highest number."""
    with ledger.guard() as db:
        found = db.execute(
            "SELECT DISTINCT persona, session FROM dispatches WHERE seq>? AND open", (seq,)
        ).fetchall()
        last = db.execute("SELECT ifnull(max(seq),0) FROM dispatches").fetchone()[0]
    return found, int(last)


def open_rows(
    ledger: Ledger, persona: str, sessions: Sequence[str], state: DispatchState, limit: int
) -> list[DispatchRow]:
    """What is open for a persona's session under any of its labels, from what is to be done
    first on."""
    marks = ",".join("?" * len(sessions))
    with ledger.guard() as db:
        found = db.execute(
            f"SELECT {_COLUMNS} {_FROM} WHERE d.open AND d.persona=? AND d.session IN ({marks})"
            " AND d.state=? ORDER BY d.priority DESC, d.seq LIMIT ?",
            (persona, *sessions, state.value, limit),
        ).fetchall()
    return [_row(one) for one in found]


def rows_of(ledger: Ledger, ids: Collection[str]) -> list[DispatchRow]:
    """The dispatches with these ids, from the oldest."""
    with ledger.guard() as db:
        found = db.execute(
            f"SELECT {_COLUMNS} {_FROM} WHERE d.id IN (SELECT value FROM json_each(?))"
            " ORDER BY d.seq",
            (json.dumps(list(ids)),),
        ).fetchall()
    return [_row(one) for one in found]


def listed(ledger: Ledger, limit: int, *, dead: bool = False, part: str = "") -> list[DispatchRow]:
    """The newest ``limit`` that are open, or ``dead``, oldest first; ``part``: of an id, its
    beginning or end, or a persona."""
    where, values = "d.state='dead'" if dead else "d.open", []
    if part:
        where += " AND (d.id LIKE ? OR d.id LIKE ? OR d.persona = ?)"
        values = [f"{part}%", f"%{part}", part]
    with ledger.guard() as db:
        found = db.execute(
            f"SELECT {_COLUMNS} {_FROM} WHERE {where} ORDER BY d.seq DESC LIMIT ?",
            (*values, limit),
        ).fetchall()
    return [_row(one) for one in reversed(found)]


def carried_by(ledger: Ledger, message: str) -> list[DispatchRow]:
    """The dispatches that run, and that this message to a wrapped agent has begun."""
    with ledger.guard() as db:
        found = db.execute(
            f"SELECT {_COLUMNS} {_FROM} WHERE d.open AND d.message=? ORDER BY d.seq", (message,)
        ).fetchall()
    return [_row(one) for one in found]


def counts(ledger: Ledger) -> dict[str, int]:
    """How many are queued, running and dead."""
    shown = (DispatchState.QUEUED, DispatchState.RUNNING, DispatchState.DEAD)
    with ledger.guard() as db:
        found = dict(
            db.execute(
                "SELECT state, count(*) FROM dispatches WHERE open OR state='dead' GROUP BY state"
            ).fetchall()
        )
    return {one.value: found.get(one.value, 0) for one in shown}


# -- moving them on


def begin(
    ledger: Ledger,
    ids: Collection[str],
    owner: str,
    lease_until_ms: int,
    now_ms: int,
    message: str | None = None,
) -> None:
    """They run: with a lease of ``owner``, under the next fence, and by this message if it is a
    wrapped agent that has them."""
    _update(
        ledger,
        ids,
        "state='running', reason=NULL, fence=fence+1, lease_owner=?, lease_until_ms=?, message=?",
        (owner, lease_until_ms, message),
        now_ms,
    )


def renew(ledger: Ledger, ids: Collection[str], lease_until_ms: int, now_ms: int) -> None:
    """Whoever has them is alive."""
    _update(ledger, ids, "lease_until_ms=?", (lease_until_ms,), now_ms)


def requeue(
    ledger: Ledger, ids: Collection[str], reason: str | None, now_ms: int, *, failed: bool
) -> None:
    """They wait again, in the place that they had; ``failed``: that counts as a try."""
    _update(
        ledger,
        ids,
        "state='queued', open=1, reason=?, attempts=attempts+?, message=NULL,"
        " lease_owner=NULL, lease_until_ms=NULL",
        (reason, int(failed)),
        now_ms,
    )


def revive(ledger: Ledger, ids: Collection[str], now_ms: int) -> None:
    """The person wants them tried again: tries and hops count anew."""
    _update(ledger, ids, "state='queued', open=1, reason=NULL, attempts=0, hops=0", (), now_ms)


def close(
    ledger: Ledger,
    ids: Collection[str],
    state: DispatchState,
    now_ms: int,
    *,
    reason: str | None = None,
    turn: str | None = None,
) -> None:
    """They are at their end."""
    _update(
        ledger,
        ids,
        "state=?, open=0, reason=?, turn=ifnull(?,turn), lease_owner=NULL, lease_until_ms=NULL",
        (state.value, reason, turn),
        now_ms,
    )


def _update(
    ledger: Ledger, ids: Collection[str], what: str, values: tuple[object, ...], now_ms: int
) -> None:
    ledger.begin()
    with ledger.guard() as db:
        db.execute(
            f"UPDATE dispatches SET {what}, updated_ms=?"
            " WHERE id IN (SELECT value FROM json_each(?))",
            (*values, now_ms, json.dumps(list(ids))),
        )
