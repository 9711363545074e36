"""The rows of obligations: answers that were asked for and have not come. Deliveries have no room
for it, as hardly one of them asks."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import NamedTuple

from relay.ledger.schema import SENDER
from relay.ledger.store import Ledger
from relay.protocol.broker import OBLIGATION


class ObligationRow(NamedTuple):
    """One answer that ``asker`` waits for from ``recipient``."""

    event: int
    recipient: str
    by_message: bool  # only a message to the asker counts; else what is said in the turn does, too
    id: str
    asker: str
    origin: str  # of the asker: person or agent
    body: str


_SELECT = (
    f"SELECT o.event, o.recipient, o.by_message, e.id, {SENDER}, e.origin, ifnull(e.body, '')"
    " FROM obligations o JOIN events e ON e.seq=o.event WHERE o.recipient=?"
)


def add(ledger: Ledger, event: int, recipients: Iterable[str], by_message: bool) -> None:
    """The recipients of a message owe its sender an answer."""
    for recipient in recipients:
        ledger.change(
            "INSERT OR IGNORE INTO obligations VALUES (?,?,?)", (recipient, event, by_message)
        )


def of(
    ledger: Ledger, recipient: str, events: Collection[int] | None = None
) -> list[ObligationRow]:
    """What ``recipient`` owes, the oldest first; of ``events`` alone where they are given."""
    if events is None:
        found = ledger.rows(f"{_SELECT} ORDER BY o.event", (recipient,))
    else:
        marks = ",".join("?" * len(events))
        found = ledger.rows(
            f"{_SELECT} AND o.event IN ({marks}) ORDER BY o.event", (recipient, *events)
        )
    return [ObligationRow(*row) for row in found]


def settle(ledger: Ledger, row: ObligationRow) -> bool:
    """Nothing is owed any more; False: nothing was."""
    where = "recipient=? AND event=?"
    return ledger.change(f"DELETE FROM obligations WHERE {where}", (row.recipient, row.event)) > 0


def drop(ledger: Ledger, message: str, recipient: str) -> None:
    """The message with this id does not reach ``recipient``, who is told so otherwise."""
    ledger.change(
        "DELETE FROM obligations WHERE recipient=? AND event=(SELECT seq FROM events WHERE id=?)",
        (recipient, message),
    )


def has_written(ledger: Ledger, row: ObligationRow) -> bool:
    """Whether the recipient has sent the asker a message since it was asked."""
    return bool(
        ledger.row(
            "SELECT 1 FROM deliveries d JOIN events e ON e.seq=d.event WHERE d.recipient=?"
            " AND d.open IN (0, 1) AND d.event>? AND e.agent=? AND e.kind='message' LIMIT 1",
            (row.asker, row.event, row.recipient),
        )
    )


def asked(ledger: Ledger, message: str, asker: str) -> list[str]:
    """Whom the asker's message with this id went to."""
    found = ledger.rows(
        "SELECT d.recipient FROM deliveries d JOIN events e ON e.seq=d.event"
        " WHERE e.id=? AND e.agent=?",
        (message, asker),
    )
    return [str(name) for (name,) in found]


def told_meta(message: str) -> str:
    """Marks a notice that says that the message with this id gets no answer."""
    return json.dumps({"attributes": {OBLIGATION: message}})


def was_told(ledger: Ledger, message: str, asker: str) -> bool:
    """Whether the asker has such a notice already."""
    return bool(
        ledger.row(
            "SELECT 1 FROM deliveries d JOIN events e ON e.seq=d.event WHERE d.recipient=?"
            " AND d.event>(SELECT seq FROM events WHERE id=?) AND e.origin='relay'"
            " AND e.meta_json=? LIMIT 1",
            (asker, message, told_meta(message)),
        )
    )
