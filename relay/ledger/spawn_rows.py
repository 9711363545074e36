"""The rows of agents that were started without a terminal: what, where, and on whose word."""

from __future__ import annotations

import json

from relay.ledger.schema import Row
from relay.ledger.store import Ledger

#: Rows that are kept; of more the oldest go.
_ROWS_MAX = 500


def save(ledger: Ledger, name: str, parent: str, wanted: Row, now_ms: int) -> None:
    """``parent`` is the agent that starts ``name``, "" for the person."""
    values = (name, parent, json.dumps(wanted), now_ms)
    ledger.change("INSERT OR REPLACE INTO spawned VALUES (?,?,?,?)", values)
    ledger.change(
        "DELETE FROM spawned WHERE started_ms <"
        " (SELECT started_ms FROM spawned ORDER BY started_ms DESC LIMIT 1 OFFSET ?)",
        (_ROWS_MAX - 1,),
    )


def find(ledger: Ledger, name: str) -> Row | None:
    """What was started last under this name, with its ``name`` and ``parent``."""
    row = ledger.row("SELECT name, parent, wanted_json FROM spawned WHERE name=?", (name,))
    return None if row is None else {**json.loads(row[2]), "name": row[0], "parent": row[1]}


def helpers(ledger: Ledger, parent: str) -> list[tuple[str, int]]:
    """[(name, when it was started)] of what this agent has started."""
    return ledger.rows("SELECT name, started_ms FROM spawned WHERE parent=?", (parent,))
