"""The agent ledger: sessions of personas, their turns, and what was said in them.

Each turn hangs from the one before it (``parent_turn``); ``head_turn`` of a session is the last.
A turn's messages are numbered on within its session, without gaps.

Compacting shortens old turns. The tree of turns, who said what when, and the names of the tools
stay; of long messages the first words stay, of tool calls neither their parameters nor their
results. The event ledger is never compacted. It is done in steps of ``WINDOW`` turns, each in a
transaction of its own, so that the broker does other things in between.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from relay.core.ids import derived_ulid
from relay.ledger.schema import SENDER
from relay.ledger.store import Ledger
from relay.protocol.message_ops import HistoryRow, MessageAnswer
from relay.protocol.turns import TurnResult

#: The ``source`` of relay's own sessions; others are those of ingested files.
OWN = "relay"
#: Turns that one step looks at.
WINDOW = 1000
#: The newest turns of each session stay as they are: so many.
KEEP = 20
#: Characters of a message that stay; one that is not much longer stays whole.
KEPT, WHOLE = 160, 240


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """What a turn answers: a message of the event ledger, and its dispatch if it has one."""

    event: int
    content: str
    created_ms: int
    dispatch: str | None = None


def session_of(ledger: Ledger, persona: str, label: str, now_ms: int) -> str:
    """The id of a persona's session, which is made when it is missing."""
    found = ledger.row(
        "SELECT id FROM agent_sessions WHERE persona=? AND label=?", (persona, label)
    )
    if found:
        return str(found[0])
    id_ = derived_ulid(now_ms, "session", persona, label)
    ledger.change(
        "INSERT INTO agent_sessions (id, source, persona, label, created_ms, updated_ms)"
        " VALUES (?,?,?,?,?,?)",
        (id_, OWN, persona, label, now_ms, now_ms),
    )
    return id_


def answered(ledger: Ledger, session: str, events: Sequence[int]) -> set[int]:
    """Those of ``events`` that a turn of this session has answered."""
    marks = ",".join("?" * len(events))
    rows = ledger.rows(
        f"SELECT event FROM agent_messages WHERE event IN ({marks}) AND session=?",
        (*events, session),
    )
    return {int(row[0]) for row in rows}


def add_turn(
    ledger: Ledger,
    session: str,
    turn: str,
    asked: Sequence[TurnPrompt],
    ended: TurnResult,
    *,
    started_ms: int,
    now_ms: int,
) -> None:
    """Append a turn that is over to its session, in the open transaction.

    It becomes the head unless it failed: then the next one hangs from the same turn as this one.
    """
    with ledger.guard() as db:
        head, number = db.execute(
            "SELECT s.head_turn, (SELECT ifnull(max(number),0) FROM agent_messages"
            " WHERE session=s.id) FROM agent_sessions s WHERE s.id=?",
            (session,),
        ).fetchone()
        db.execute(
            "INSERT INTO agent_turns (id, session, parent_turn, model, state, reason, inferred,"
            " started_ms, ended_ms, tokens_in, tokens_out, tool_call_count)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                *(turn, session, head, ended.model, ended.state.value, ended.reason),
                *(int(ended.inferred), started_ms, ended.ended_ms or now_ms),
                *(ended.tokens_in, ended.tokens_out, len(ended.tool_calls)),
            ),
        )
        rows: list[tuple[object, ...]] = [
            ("user", ledger.shown(one.content), one.event, one.dispatch, one.created_ms)
            for one in asked
        ]
        rows.append(("assistant", ledger.shown(ended.text), None, None, ended.ended_ms or now_ms))
        ids = [derived_ulid(now_ms, turn, str(n)) for n in range(len(rows))]
        db.executemany(
            "INSERT INTO agent_messages (id, session, turn, role, content, number, event,"
            " dispatch, created_ms) VALUES (?,?,?,?,?,?,?,?,?)",
            [
                (id_, session, turn, *row[:2], number + n, *row[2:])
                for n, (id_, row) in enumerate(zip(ids, rows, strict=True), 1)
            ],
        )
        db.executemany(
            "INSERT INTO agent_tool_calls (id, session, turn, message, name, number, params_json,"
            " result_json, state, started_ms, completed_ms) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    *(derived_ulid(now_ms, turn, "call", str(n)), session, turn, ids[-1]),
                    *(
                        call.name,
                        n,
                        ledger.shown(call.params),
                        ledger.shown(call.result),
                        call.state,
                    ),
                    *(call.started_ms, call.completed_ms),
                )
                for n, call in enumerate(ended.tool_calls, 1)
            ],
        )
        db.execute(
            "UPDATE agent_sessions SET head_turn=?, message_count=message_count+?, updated_ms=?,"
            " model=ifnull(?, model) WHERE id=?",
            (turn if ended.goes_on else head, len(rows), now_ms, ended.model, session),
        )
        if ended.external_id and ended.goes_on:
            # Another session may have it already, where a conversation was gone on with by hand.
            db.execute(
                "UPDATE OR IGNORE agent_sessions SET external_id=? WHERE id=?",
                (ended.external_id, session),
            )


def external_id_of(ledger: Ledger, session: str) -> str | None:
    """What the agent calls this conversation itself, once it has told."""
    id_ = ledger.row("SELECT external_id FROM agent_sessions WHERE id=?", (session,))[0]
    return None if id_ is None else str(id_)


def history(ledger: Ledger, session: str, turns: int, longest: int) -> list[tuple[str, str]]:
    """(role, text) of the last ``turns`` turns up to the head as it is now, the newest last. Of a
    text of more than ``longest`` characters its beginning and its end."""
    found = ledger.rows(
        "WITH RECURSIVE thread (id, parent, n) AS ("
        " SELECT t.id, t.parent_turn, 1 FROM agent_sessions s JOIN agent_turns t"
        " ON t.id=s.head_turn WHERE s.id=?"
        " UNION ALL SELECT t.id, t.parent_turn, n+1 FROM agent_turns t JOIN thread"
        " ON t.id=thread.parent WHERE n<?)"
        " SELECT m.role, CASE WHEN length(m.content) <= ? THEN m.content"
        " ELSE substr(m.content, 1, ?) || ' […] ' || substr(m.content, -?) END"
        " FROM thread JOIN agent_messages m ON m.turn=thread.id"
        " ORDER BY thread.n DESC, m.number",
        (session, turns, longest, longest // 2, longest // 2),
    )
    return [(str(role), str(text)) for role, text in found]


def answers_to(ledger: Ledger, message: str) -> list[MessageAnswer]:
    """What came of the message with this id, from each that has answered it."""
    rows = ledger.rows(
        "SELECT s.persona, t.id, t.state, t.reason, t.inferred, t.model, t.tool_call_count,"
        " ifnull((SELECT content"
        " FROM agent_messages a WHERE a.turn=t.id AND a.role='assistant'"
        " ORDER BY number DESC LIMIT 1), '') FROM events e"
        " JOIN agent_messages m ON m.event=e.seq AND m.role='user'"
        " JOIN agent_turns t ON t.id=m.turn JOIN agent_sessions s ON s.id=m.session"
        " WHERE e.id=? ORDER BY m.seq",
        (message,),
    )
    names = ("from", "turn", "state", "reason", "inferred", "model", "tool_calls", "text")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [cast(MessageAnswer, {**one, "inferred": bool(one["inferred"])}) for one in found]


def with_answers(ledger: Ledger, rows: Sequence[HistoryRow]) -> list[HistoryRow]:
    """``rows``, the oldest first, with what was said in the turns that answer these messages: each
    behind the last message that it answers, which is its ``cause``."""
    said: dict[tuple[str, str], list[HistoryRow]] = {}
    told = set[str]()
    names = ("state", "started_ms", "tokens_in", "tokens_out")
    for event, asker, persona, id_, text, at_ms, *turn in ledger.rows(
        f"SELECT e.id, {SENDER}, s.persona, a.id, a.content, a.created_ms,"
        " t.state, t.started_ms, t.tokens_in, t.tokens_out FROM json_each(?) j"
        " JOIN events e ON e.id=j.value JOIN agent_messages m ON m.event=e.seq AND m.role='user'"
        " JOIN agent_turns t ON t.id=m.turn JOIN agent_sessions s ON s.id=m.session"
        " JOIN agent_messages a ON a.turn=t.id AND a.role='assistant'"
        " WHERE a.content<>'' AND s.persona NOT NULL ORDER BY e.seq DESC, a.seq",
        (json.dumps(list({row["id"] for row in rows})),),
    ):
        if id_ in told:
            continue
        told.add(id_)
        row = turn_row(id_, "assistant", text, at_ms, persona, asker)
        row["cause"], row["meta"] = event, dict(zip(names, turn, strict=True))
        said.setdefault((event, persona.lower()), []).append(row)
    out: list[HistoryRow] = []
    for row in rows:
        out += [row, *said.pop((row["id"], (row["to"] or "").lower()), [])]
    return out


def turn_row(
    id_: str, role: str, content: str, created_ms: int, persona: str, to: str
) -> HistoryRow:
    """What was said within a turn, in the shape of all rows."""
    of_agent = role == "assistant"
    return {
        "id": id_,
        "kind": "turn",
        "from": persona if of_agent else role,
        "from_kind": "agent" if of_agent else role,
        "to": to,
        "body": content,
        "mode": None,
        "thread": None,
        "created_ms": created_ms,
        "updated_ms": created_ms,
        "state": "turn",
        "reason": None,
        "proof": None,
        "attempts": 0,
        "delivery": None,
        "ledger": "agents",
    }


_OLD = """SELECT t.id FROM agent_turns t WHERE t.rowid > ? AND t.rowid <= ?
 AND t.compacted_ms IS NULL AND t.state <> 'running' AND t.ended_ms < ?
 AND (SELECT count(*) FROM (SELECT 1 FROM agent_turns n
      WHERE n.session = t.session AND n.rowid > t.rowid LIMIT ?)) = ?"""
_IN = "turn IN (SELECT value FROM json_each(?))"
_LONG = f"{_IN} AND length(content) > {WHOLE}"


@dataclass(frozen=True, slots=True)
class Compaction:
    """What one step did, or would do: turns, characters less, and where the next one begins."""

    turns: int
    characters: int
    following: int | None


def compact(ledger: Ledger, after: int, *, before_ms: int, now_ms: int, really: bool) -> Compaction:
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
    return Compaction(len(found), said + of_tools, end if end < last else None)
