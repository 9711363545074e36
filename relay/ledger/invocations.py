"""The rows of ``hook_invocations``: each run of a hook, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relay.ledger.rows import Row
from relay.ledger.store import Ledger

#: The columns, in the order of their tuples; the first is given by the ledger.
COLUMNS = (
    "seq",
    "created_ms",
    "run",
    "agent",
    "event",
    "hook",
    "kind",
    "source",
    "correlation_id",
    "success",
    "decision",
    "duration",
    "exit_status",
    "stdout",
    "stderr",
    "error",
)
_INSERT = (
    f"INSERT INTO hook_invocations ({','.join(COLUMNS[1:])})"
    f" VALUES ({','.join('?' * (len(COLUMNS) - 1))})"
)

#: One row without its number.
Invocation = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look for; None means whatever. ``before``: only rows with a lower number."""

    agent: str | None = None
    event: str | None = None
    hook: str | None = None  # a part of its name, whatever its case
    failed: bool = False
    before: int | None = None


def add(ledger: Ledger, rows: Sequence[Invocation]) -> None:
    """Add rows to the open transaction. Raises StorageError."""
    with ledger.guard() as db:
        db.executemany(_INSERT, rows)


def select(ledger: Ledger, wanted: Wanted, limit: int) -> list[Row]:
    """The newest ``limit`` rows that match, newest first. Raises StorageError."""
    tests = ["1"]
    values: list[object] = []
    for column, value in (("agent", wanted.agent), ("event", wanted.event)):
        if value is not None:
            tests.append(f"{column}=?")
            values.append(value)
    if wanted.hook is not None:
        tests.append("instr(lower(hook),lower(?))")
        values.append(wanted.hook)
    if wanted.failed:
        tests.append("success=0")
    if wanted.before is not None:
        tests.append("seq<?")
        values.append(wanted.before)
    with ledger.guard() as db:
        found = db.execute(
            f"SELECT {','.join(COLUMNS)} FROM hook_invocations WHERE {' AND '.join(tests)}"
            " ORDER BY seq DESC LIMIT ?",
            (*values, limit),
        ).fetchall()
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in found]
    for row in rows:
        row["success"] = bool(row["success"])
    return rows
