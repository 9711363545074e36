"""The rows of tokens used: by run, model, day and the message that the agent was at work on.

A file of its own, for the broker writes them and asks for their sums.
"""

from __future__ import annotations

from typing import Any

from relay.ledger.store import Ledger

Json = dict[str, Any]

#: Tokens that the model was told beside what it had cached, that it has said, had cached, and has
#: cached for later.
COUNTS = ("input", "output", "cached", "written")
#: Rows of one answer.
ROWS_MAX = 5000
_SUMS = ", ".join(f"ifnull(sum({name}), 0)" for name in COUNTS)


def add_usage(
    ledger: Ledger, run: str, agent: str, model: str, day: str, task: str, total: list[int]
) -> bool:
    """Store what a run has used of a model by now, and is not stored yet, as of this day and task.
    Whether there was any. The same total again adds nothing."""
    before = ledger.row(f"SELECT {_SUMS} FROM usage WHERE run=? AND model=?", (run, model))
    more = [max(0, now - then) for now, then in zip(total, before, strict=True)]
    if not any(more):
        return False
    ledger.begin()
    ledger.change(
        "INSERT INTO usage VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
        " input=input+excluded.input, output=output+excluded.output,"
        " cached=cached+excluded.cached, written=written+excluded.written",
        (run, model, day, task, agent, *more),
    )
    return True


def usage_of_day(ledger: Ledger, day: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """What each agent has used of each model on this day: (agent, model, counts)."""
    found = ledger.rows(
        f"SELECT agent, model, {_SUMS} FROM usage WHERE day=? GROUP BY agent, model", (day,)
    )
    return [(row[0], row[1], tuple(row[2:])) for row in found]


def usage(ledger: Ledger, since: str, since_ms: int) -> list[Json]:
    """All since the day ``since``, the newest day first; turns of headless personas as well, whose
    day begins at ``since_ms``. ``about``: the beginning of the message that is the task."""
    names = ("agent", "day", "task", "about", "model", *COUNTS)
    found = ledger.rows(
        f"SELECT u.agent, u.day, u.task, substr(e.body, 1, 200), u.model, {_SUMS} FROM usage u"
        " LEFT JOIN events e ON e.id = u.task WHERE u.day >= ?"
        " GROUP BY u.agent COLLATE NOCASE, u.day, u.task, u.model"
        " UNION ALL SELECT s.persona, date(t.started_ms / 1000, 'unixepoch', 'localtime'), '',"
        " s.label, ifnull(t.model, ''), sum(t.tokens_in), ifnull(sum(t.tokens_out), 0), 0, 0"
        " FROM agent_turns t JOIN agent_sessions s ON s.id = t.session"
        " WHERE s.persona NOT NULL AND t.tokens_in NOT NULL AND t.started_ms >= ?"
        " GROUP BY 1, 2, 4, 5 ORDER BY 2 DESC, 1 LIMIT ?",
        (since, since_ms, ROWS_MAX + 1),
    )
    return [dict(zip(names, row, strict=True)) for row in found]
