"""The queue of what handlers are to be asked: the rows of the ledger's table ``due``.

A row says that a handler is to be asked about an event. It is stored with its event, and goes with
the commit that has what the handler said: a broker that is killed in between begins again with what
is due, and an answer that comes twice finds nothing due. ``handler`` is the key of a configuration,
whose route functions are asked; other features have keys of their own (OtherHandlers.owns).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import NamedTuple

from relay.ledger.store import Ledger


class DueState(StrEnum):
    """Whether a handler is asked now."""

    READY = "ready"
    HELD = "held"  # once the person has let the event go
    BLOCKED = "blocked"  # once the blocking automations have run for the event


class Due(NamedTuple):
    """An event that a handler is to be asked about. ``tries``: how often the worker has ended while
    it was asked."""

    event: int
    hops: int
    tries: int


def add(ledger: Ledger, rows: Iterable[tuple[str, int, str, int]]) -> None:
    """Append (handler, event, state, hops), within the open transaction. What is there stays."""
    with ledger.guard() as db:
        db.executemany("INSERT OR IGNORE INTO due VALUES (?,?,?,?,0)", rows)


def handlers(ledger: Ledger) -> list[str]:
    """The handlers that can be asked about something."""
    return [row[0] for row in ledger.rows("SELECT DISTINCT handler FROM due WHERE state='ready'")]


def first(
    ledger: Ledger, handler: str, limit: int, *, after: int = 0, without: Collection[int] = ()
) -> list[Due]:
    """The first ``limit`` events beyond ``after`` that a handler can be asked about, in their
    order; not those of ``without``."""
    if limit <= 0:
        return []
    rows = ledger.rows(
        "SELECT event, hops, tries FROM due WHERE handler=? AND event>? AND state='ready'"
        " ORDER BY event LIMIT ?",
        (handler, after, limit + len(without)),
    )
    return [Due(*row) for row in rows if row[0] not in without][:limit]


def of_event(ledger: Ledger, event: int) -> dict[str, DueState]:
    """The handlers that are still to be asked about an event."""
    rows = ledger.rows("SELECT handler, state FROM due WHERE event=?", (event,))
    return {handler: DueState(state) for handler, state in rows}


def is_blocked(ledger: Ledger, handler: str, event: int) -> bool:
    """Whether blocking automations still run for an event that is due to this handler."""
    row = ledger.row("SELECT state FROM due WHERE handler=? AND event=?", (handler, event))
    return row is not None and row[0] == DueState.BLOCKED


def again(ledger: Ledger, handler: str, event: int) -> int:
    """The worker has ended while it was asked: it will be asked again, within the open transaction.
    Returns how often that was so; 0: nothing is due any more."""
    row = ledger.row(
        "UPDATE due SET tries=tries+1 WHERE handler=? AND event=? RETURNING tries", (handler, event)
    )
    return 0 if row is None else int(row[0])


def settle(ledger: Ledger, handler: str, event: int) -> int | None:
    """The handler was asked, within the open transaction. Returns the event's hops; None if nothing
    was due."""
    row = ledger.row("DELETE FROM due WHERE handler=? AND event=? RETURNING hops", (handler, event))
    return None if row is None else int(row[0])


def drop(ledger: Ledger, handler: str, limit: int = -1) -> list[int]:
    """A handler will not be asked about the first ``limit`` events that are due to it, or about any
    of them, within the open transaction. Returns these events."""
    rows = ledger.rows(
        "DELETE FROM due WHERE handler=?1 AND event IN"
        " (SELECT event FROM due WHERE handler=?1 ORDER BY event LIMIT ?2) RETURNING event",
        (handler, limit),
    )
    return [int(row[0]) for row in rows]


# -- events that wait


def block(ledger: Ledger, event: int) -> None:
    """Blocking automations run for this event before anything else, within the open transaction."""
    ledger.change("UPDATE due SET state='blocked' WHERE event=?", (event,))


def blocked(ledger: Ledger, handler: str, limit: int) -> list[Due]:
    """The first events that wait for blocking automations, of those due to this handler."""
    rows = ledger.rows(
        "SELECT event, hops, tries FROM due WHERE handler=? AND state='blocked'"
        " ORDER BY event LIMIT ?",
        (handler, limit),
    )
    return [Due(*row) for row in rows]


def unblock(ledger: Ledger, event: int) -> list[str]:
    """The blocking automations have run for this event, within the open transaction. Returns the
    handlers that can be asked now."""
    rows = ledger.rows(
        "UPDATE due SET state='ready' WHERE event=? AND state='blocked' RETURNING handler", (event,)
    )
    return [row[0] for row in rows]


def let_go(ledger: Ledger, event: int) -> list[str]:
    """The person has decided on a delivery of this event, within the open transaction. Once none of
    it waits for that any more its handlers are asked, unless all of it was refused. Returns the
    handlers that can be asked now."""
    waits, said = ledger.row(
        "SELECT max(parked), max(ifnull(decided,'') NOT LIKE 'refused%') FROM deliveries"
        " WHERE event=?",
        (event,),
    )
    if waits:
        return []
    if not said:
        ledger.change("DELETE FROM due WHERE event=? AND state='held'", (event,))
        return []
    # As with its deliveries, hops count anew from here.
    rows = ledger.rows(
        "UPDATE due SET state='ready', hops=0 WHERE event=? AND state='held' RETURNING handler",
        (event,),
    )
    return [row[0] for row in rows]
