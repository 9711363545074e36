"""Compacting the agent ledger: old turns stay, and of what was said in them its beginning.

A file of its own: nothing else takes anything away from a ledger. The tree of turns, who said what
when, and the names of the tools stay; of long messages the first words stay, of tool calls neither
their parameters nor their results. The event ledger is never compacted. Done in steps of ``WINDOW``
turns, each in a transaction of its own, so that the broker does other things in between.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from relay.ledger.store import Ledger

#: Turns that one step looks at.
WINDOW = 1000
#: The newest turns of each session stay as they are: so many.
KEEP = 20
#: Characters of a message that stay; one that is not much longer stays whole.
KEPT, WHOLE = 160, 240

_OLD = """SELECT t.id FROM agent_turns t WHERE t.rowid > ? AND t.rowid <= ?
 AND t.compacted_ms IS NULL AND t.state <> 'running' AND t.ended_ms < ?
 AND (SELECT count(*) FROM (SELECT 1 FROM agent_turns n
      WHERE n.session = t.session AND n.rowid > t.rowid LIMIT ?)) = ?"""
_IN = "turn IN (SELECT value FROM json_each(?))"
_LONG = f"{_IN} AND length(content) > {WHOLE}"


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, or would do: turns, characters less, and where the next one begins."""

    turns: int
    characters: int
    following: int | None


def step(ledger: Ledger, after: int, *, before_ms: int, now_ms: int, really: bool) -> Step:
    """Look at the turns beyond row ``after``; ``really`` compact those that ended before
    ``before_ms``, but for the newest of each session. In the open transaction."""
    with ledger.guard() as db:
        last = int(db.execute("SELECT ifnull(max(rowid),0) FROM agent_turns").fetchone()[0])
        found = db.execute(_OLD, (after, after + WINDOW, before_ms, KEEP, KEEP)).fetchall()
        turns = json.dumps([row[0] for row in found])
        said, of_tools = (
            int(db.execute(f"SELECT ifnull(sum({size}), 0) FROM {where}", (turns,)).fetchone()[0])
            for size, where in (
                (f"length(content) - {KEPT}", f"agent_messages WHERE {_LONG}"),
                (
                    "ifnull(length(params_json), 0) + ifnull(length(result_json), 0)",
                    f"agent_tool_calls WHERE {_IN}",
                ),
            )
        )
        if really and found:
            db.execute(
                "UPDATE agent_messages SET content = substr(content, 1, ?) || '… [compacted: '"
                f" || length(content) || ' characters]' WHERE {_LONG.replace('?', '?2')}",
                (KEPT, turns),
            )
            db.execute(
                f"UPDATE agent_tool_calls SET params_json=NULL, result_json=NULL WHERE {_IN}",
                (turns,),
            )
            db.executemany(
                "UPDATE agent_turns SET compacted_ms=? WHERE id=?",
                [(now_ms, row[0]) for row in found],
            )
    end = after + WINDOW
    return Step(len(found), said + of_tools, end if end < last else None)
