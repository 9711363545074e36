"""Reading the ledger for people: inbox, sent, history, one message, counts.

Whatever may have to look at many events does so in slices of ``SLICE`` events, so that the broker
can do other things in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from relay.core.message import HeldFor, State
from relay.ledger import event_rows
from relay.ledger.schema import (
    BLOCK_BITS,
    COLUMNS,
    INVOCATION_COLUMNS,
    ORIGINAL,
    SENDER,
    Row,
    message_row,
)
from relay.ledger.store import Ledger
from relay.protocol.message_ops import DeliveryRow, FullMessage, HistoryRow, MessageRow

#: All recipients. They are few and the index starts with them: hop from one to the next.
RECIPIENTS = """WITH RECURSIVE recipients (name) AS (
    SELECT min(recipient) FROM deliveries
    UNION ALL
    SELECT (SELECT min(recipient) FROM deliveries WHERE recipient > recipients.name)
    FROM recipients WHERE recipients.name IS NOT NULL)"""
#: The #channel that a message ``e`` was written to.
CHANNEL = "json_extract(e.meta_json, '$.attributes.channel')"
#: Whether an agent may read a delivery ``d`` of ``e``: it is from or to it.
READABLE = f"({SENDER} = ? COLLATE NOCASE OR d.recipient = ?)"
#: The message that ``e`` follows from.
_CAUSE = "json_extract(e.meta_json, '$.cause')"
#: Of a conversation without a thread: how far back it is followed, and messages that are looked at.
CAUSES_MAX = 200
FOLLOWING_MAX = 10_000
#: How many events one call of ``slice_of`` looks at.
SLICE = 4096


@dataclass(frozen=True, slots=True)
class Filter:
    """What to look for. None means whatever; ``agent`` is its sender or its recipient."""

    kind: str | None = "message"
    sender: str | None = None
    agent: str | None = None
    thread: str | None = None
    channel: str | None = None
    since_ms: int | None = None
    tag: str | None = None  # that the person has put on it
    grep: str | None = None  # a part of the body, whatever its case
    #: Who reads, if that is an agent: only what is from or to it, and turns of it and these.
    reader: str | None = None
    turns: tuple[str, ...] = ()


def conditions(wanted: Filter) -> tuple[list[str], list[object]]:
    """What ``events e`` and ``deliveries d`` must fulfil, but for ``grep``; and its values."""
    where, values = ["1"], list[object]()
    for clause, value, times in (
        ("e.kind = ?", wanted.kind, 1),
        ("e.agent = ?", wanted.sender, 1),
        ("e.thread = ?", wanted.thread, 1),
        (f"{CHANNEL} = ?", wanted.channel, 1),
        ("e.created_ms >= ?", wanted.since_ms, 1),
        ("e.seq IN (SELECT event FROM event_tags WHERE tag = ?)", wanted.tag, 1),
        ("(e.agent = ? OR d.recipient = ?)", wanted.agent, 2),
        (READABLE, wanted.reader, 2),
    ):
        if value is not None:
            where.append(clause)
            values += [value] * times
    return where, values


def last_event(ledger: Ledger) -> int:
    """The number of the newest event, 0 without any."""
    return int(ledger.row("SELECT ifnull(max(seq),0) FROM events")[0])


def seq_of(ledger: Ledger, id_: str) -> int:
    """The number of the event with this id; 0 without one."""
    with ledger.guard() as db:
        found = db.execute("SELECT seq FROM events WHERE id=?", (id_,)).fetchone()
    return int(found[0]) if found else 0


def _newest_possible(ledger: Ledger, top: int, wanted: Filter) -> int:
    """Up to ``top``, the number beyond which no event can match; 0 when none can."""
    either = wanted.agent or (wanted.reader if wanted.sender is None else None)
    sender = either or wanted.sender
    if sender is None:
        return top
    block = ledger.row(
        "SELECT max(block) FROM senders WHERE agent=? AND block<=?",
        (sender, top >> BLOCK_BITS),
    )[0]
    found = [0 if block is None else min(top, ((block + 1) << BLOCK_BITS) - 1)]
    if either is not None:
        for flag in (0, 1):
            found += ledger.row(
                "SELECT ifnull(max(event),0) FROM deliveries"
                " WHERE recipient=? AND open=? AND event<=?",
                (sender, flag, top),
            )
    return max(found)


def slice_of(ledger: Ledger, top: int, wanted: Filter, limit: int) -> tuple[list[HistoryRow], int]:
    """Rows among ``SLICE`` events up to number ``top``, newest first, at most ``limit``.

    Begins further down where nothing above can match. Returns the rows and the number to go on
    from; 0 when nothing older can match.
    """
    top = _newest_possible(ledger, top, wanted)
    bottom = max(0, top - SLICE)
    where, values = conditions(wanted)
    if wanted.grep is not None:
        where.append("instr(lower(e.body), lower(?)) > 0")
        values.append(wanted.grep)
    rows = ledger.rows(
        f"SELECT {COLUMNS} FROM events e LEFT JOIN deliveries d ON d.event = e.seq"
        f" WHERE {' AND '.join(where)} AND e.seq > ? AND e.seq <= ?"
        " ORDER BY e.seq DESC, d.recipient DESC LIMIT ?",
        (*values, bottom, top, limit),
    )
    oldest = ledger.row(
        "SELECT created_ms FROM events WHERE seq > ? ORDER BY seq LIMIT 1", (bottom,)
    )
    if wanted.since_ms is not None and oldest is not None and oldest[0] < wanted.since_ms:
        bottom = 0
    return [message_row(row) for row in rows], bottom


def is_named(ledger: Ledger, name: str) -> bool:
    """Whether anything is from or to somebody of this name."""
    row = ledger.row(
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM senders WHERE agent=?)"
        " OR EXISTS (SELECT 1 FROM deliveries WHERE recipient=?)",
        (name, name),
    )
    return row is not None


def inbox(
    ledger: Ledger, recipient: str, *, everything: bool, after: int, limit: int, own: bool = False
) -> list[MessageRow]:
    """What waits for ``recipient`` beyond its delivery number ``after``, oldest first; with
    ``everything`` the newest ``limit`` of all that ever came, in the same order. ``own``: it asks
    itself, and so gets what waits in full."""
    columns = COLUMNS.replace("e.body", ORIGINAL) if own else COLUMNS
    part = (
        f"SELECT {columns} FROM deliveries d JOIN events e ON e.seq = d.event"
        " WHERE d.recipient=? AND d.open={} AND d.n>? ORDER BY d.event {} LIMIT ?"
    )
    if not everything:
        rows = ledger.rows(part.format(1, "ASC"), (recipient, after, limit))
    else:
        rows = []
        for flag in (0, 1):
            rows += ledger.rows(part.format(flag, "DESC"), (recipient, after, limit))
        rows = sorted(rows)[-limit:]
    return [cast(MessageRow, message_row(row)) for row in rows]


def unread(ledger: Ledger, recipient: str) -> int:
    """How many deliveries are on their way to ``recipient``; what is held waits for the person."""
    found = ledger.row(
        "SELECT count(*) FROM deliveries WHERE recipient=? AND open=1 AND state<>'held'",
        (recipient,),
    )
    return int(found[0])


def matching_ids(ledger: Ledger, part: str) -> list[str]:
    """Ids of events equal to ``part``, or else beginning or ending with it, messages before all
    others; at most 10.

    ``part`` may also be what a receiver sees: the end of the id, ``_`` and the message's nonce.

    It may also be ``channel:source_id`` of an event of another channel.

    The beginning is searched everywhere (the ids are indexed), the end among the newest 100 000.
    """
    channel, _, source_id = part.partition(":")
    if source_id and (found := event_rows.id_of(ledger, channel, source_id)):
        return [found]
    part = part.upper().strip("[]").partition("_")[0] or "_"
    if ledger.row("SELECT 1 FROM events WHERE id=?", (part,)):
        return [part]
    for kind in ("kind='message'", "kind<>'message'"):
        begin = ledger.rows(
            f"SELECT id FROM events WHERE id >= ? AND id < ? AND {kind} LIMIT 10",
            (part, part + "~"),
        )
        end = ledger.rows(
            "SELECT id FROM events WHERE seq > (SELECT max(seq) FROM events) - 100000"
            f" AND substr(id, ?) = ? AND {kind} LIMIT 10",
            (-len(part), part),
        )
        if begin or end:
            return sorted({row[0] for row in begin + end})[:10]
    return []


def message(ledger: Ledger, id_: str) -> FullMessage | None:
    found = ledger.row(
        f"SELECT {COLUMNS} FROM events e LEFT JOIN deliveries d ON d.event = e.seq"
        " WHERE e.id=? LIMIT 1",
        (id_,),
    )
    if found is None:
        return None
    of_delivery = ("to", "state", "reason", "proof", "attempts", "delivery", "updated_ms")
    row = {name: one for name, one in message_row(found).items() if name not in of_delivery}
    return cast(FullMessage, {**row, "deliveries": deliveries(ledger, id_)})


def said_in_a_turn(ledger: Ledger, part: str) -> FullMessage | None:
    """What was said in a turn under the one id that is, begins or ends with ``part``; the end is
    searched for among the newest 100 000."""
    found = ledger.rows(
        "SELECT m.id, m.turn, m.role, m.content, m.created_ms, ifnull(s.persona, s.source),"
        " ifnull(s.label, ifnull(s.external_id, s.id))"
        " FROM agent_messages m JOIN agent_sessions s ON s.id = m.session WHERE m.seq IN"
        " (SELECT seq FROM agent_messages WHERE id >= ?1 AND id < ?1 || '~' UNION"
        " SELECT seq FROM agent_messages WHERE substr(id, -length(?1)) = ?1"
        " AND seq > (SELECT max(seq) FROM agent_messages) - 100000) LIMIT 2",
        (part,),
    )
    if len(found) != 1:
        return None
    id_, turn, role, content, created_ms, persona, label = found[0]
    return {
        "id": id_,
        "kind": "turn",
        "from": persona if role == "assistant" else role,
        "from_kind": "agent" if role == "assistant" else role,
        "body": content,
        "mode": None,
        "thread": None,
        "created_ms": created_ms,
        "deliveries": [],
        "turn": turn,
        "session": f"{persona}/{label}",
    }


def origin(ledger: Ledger, id_: str) -> tuple[str, str | None, str]:
    """Who a message is from, its thread, and the #channel that it went to, or ""."""
    row = ledger.row(
        f"SELECT ifnull(e.agent, ''), e.thread, ifnull({CHANNEL}, '') FROM events e WHERE e.id=?",
        (id_,),
    )
    return (str(row[0]), row[1], str(row[2])) if row else ("", None, "")


def conversation(ledger: Ledger, id_: str) -> tuple[list[HistoryRow], bool]:
    """The messages that one without a thread follows from, itself, and what follows from them,
    oldest first; and whether there may be more than was looked at."""
    first = id_
    for _ in range(CAUSES_MAX):
        cause = ledger.row(f"SELECT {_CAUSE} FROM events e WHERE e.id=?", (first,))
        if not cause or not cause[0] or not seq_of(ledger, cause[0]):
            break
        first = cause[0]
    begin = seq_of(ledger, first)
    found, members = [], {first}
    later = ledger.rows(
        f"SELECT e.id, {_CAUSE} FROM events e WHERE e.seq >= ? AND e.kind='message'"
        " ORDER BY e.seq LIMIT ?",
        (begin, FOLLOWING_MAX),
    )
    for one, before in later:
        if one == first or before in members:
            members.add(one)
            found.append(one)
    rows = ledger.rows(
        f"SELECT {COLUMNS} FROM json_each(?) j JOIN events e ON e.id = j.value"
        " LEFT JOIN deliveries d ON d.event = e.seq ORDER BY e.seq, d.recipient",
        (json.dumps(found),),
    )
    return [message_row(row) for row in rows], len(later) == FOLLOWING_MAX


def sender_of(ledger: Ledger, id_: str) -> str:
    """Who an event is from, in lower case; empty where there is none."""
    row = ledger.row("SELECT lower(agent) FROM events WHERE id=?", (id_,))
    return str(row[0]) if row and row[0] else ""


def deliveries(ledger: Ledger, id_: str) -> list[DeliveryRow]:
    names = (
        *("to", "state", "reason", "proof", "attempts", "delivery", "delivering_ms"),
        *("submitted_ms", "updated_ms", "hops", "decided"),
    )
    rows = ledger.rows(
        "SELECT d.recipient, d.state, d.reason, d.proof, d.attempts, d.n, d.delivering_ms,"
        " d.submitted_ms, d.updated_ms, d.hops, d.decided"
        " FROM events e JOIN deliveries d ON d.event = e.seq WHERE e.id=?",
        (id_,),
    )
    return [cast(DeliveryRow, dict(zip(names, row, strict=True))) for row in rows]


#: Held messages, the names of their receivers in one text, and whether they came too fast.
_PARKED = f"""{RECIPIENTS}, parked (event, sender, names, rate) AS (
    SELECT event, sender, group_concat(recipient, char(31)), max(parked = {int(HeldFor.RATE)})
    FROM (
        SELECT d.event, {SENDER} AS sender, d.recipient, d.parked FROM recipients
            JOIN deliveries d ON d.recipient = recipients.name AND d.open = 1 AND d.parked > 0
            JOIN events e ON e.seq = d.event ORDER BY d.event, d.n)
    GROUP BY event)"""


@dataclass(frozen=True, slots=True)
class ParkedPair:
    """What one sender has written to the same receivers, and waits for the person's decision."""

    sender: str
    to: tuple[str, ...]
    count: int  # messages
    rate: bool  # whether some were more than may be written in a minute
    first: HistoryRow  # the oldest message
    last: HistoryRow  # and the newest


def parked_pairs(ledger: Ledger, limit: int) -> list[ParkedPair]:
    """Messages that wait for the person to let them go on, the oldest first."""
    rows = ledger.rows(
        f"""{_PARKED} SELECT sender, names, count(*), max(rate), min(event), max(event)
            FROM parked GROUP BY sender, names ORDER BY min(event) LIMIT ?""",
        (limit,),
    )
    events = [event for row in rows for event in row[-2:]]
    messages = {
        row[0]: message_row(row)
        for row in ledger.rows(
            f"""SELECT {COLUMNS} FROM json_each(?) JOIN events e ON e.seq = json_each.value
                JOIN deliveries d ON d.event = e.seq AND d.parked > 0 AND d.open = 1
                ORDER BY d.n DESC""",
            (json.dumps(events),),
        )
    }
    return [
        ParkedPair(
            sender, tuple(to.split("\x1f")), count, bool(rate), messages[first], messages[last]
        )
        for sender, to, count, rate, first, last in rows
    ]


def parked_messages(
    ledger: Ledger, sender: str, to: Sequence[str], last: str, limit: int
) -> list[str]:
    """The ids of what is held between these, up to the message with the id ``last``."""
    rows = ledger.rows(
        f"""{_PARKED} SELECT e.id FROM parked JOIN events e ON e.seq = parked.event
            WHERE sender = ? AND names = ? AND parked.event <= ? ORDER BY parked.event LIMIT ?""",
        (sender, "\x1f".join(to), seq_of(ledger, last), limit),
    )
    return [id_ for (id_,) in rows]


def parked_count(ledger: Ledger) -> int:
    """How many messages wait for the person."""
    return int(ledger.row(f"{_PARKED} SELECT count(*) FROM parked")[0])


def waiting_for_nobody(
    ledger: Ledger, before_ms: int, limit: int
) -> list[tuple[int, str, str, str]]:
    """[(event, recipient, id, sender)] that waits for a name since before ``before_ms``."""
    return ledger.rows(
        f"""{RECIPIENTS}
            SELECT d.event, d.recipient, e.id, e.agent FROM recipients
            JOIN deliveries d ON d.recipient = recipients.name AND d.open = 1
            JOIN events e ON e.seq = d.event
            WHERE d.state = '{State.WAITING.value}' AND d.updated_ms <= ? LIMIT ?""",
        (before_ms, limit),
    )


def exchanged_since(ledger: Ledger, since_ms: int, limit: int) -> list[tuple[str, str, int]]:
    """[(sender, recipient, created_ms)] of what agents sent since then and was let go, oldest
    first: the last ``limit`` at most."""
    found: list[tuple[str, str, int]] = []
    with ledger.guard() as db:
        rows = db.execute(
            "SELECT e.agent, d.recipient, e.created_ms, e.origin, d.parked FROM events e"
            " JOIN deliveries d ON d.event = e.seq WHERE e.kind='message' ORDER BY e.seq DESC"
        )
        for sender, to, created_ms, origin, parked in rows:
            if created_ms < since_ms or len(found) == limit:
                break
            if origin == "agent" and not parked:
                found.append((sender, to, created_ms))
        rows.close()
    return found[::-1]


def counts(ledger: Ledger) -> Row:
    """How many events there are, and how many open deliveries in each state."""
    out: Row = {"events": last_event(ledger)}
    out.update({state.value: 0 for state in State if not state.final})
    for state, number in ledger.rows(
        f"""{RECIPIENTS} SELECT d.state, count(*) FROM recipients
            JOIN deliveries d ON d.recipient = recipients.name AND d.open = 1 GROUP BY d.state"""
    ):
        out[state] += number
    return out


#: What hooks in sessions did, and what route functions said, in the same columns.
_RUNS = (
    f"SELECT {','.join(INVOCATION_COLUMNS)}, NULL, NULL, NULL FROM hook_invocations WHERE {{}}"
    " ORDER BY seq DESC LIMIT ?"
)
_SAID = (
    f"SELECT h.event, h.started_ms, '', {SENDER}, e.kind, h.hook_id, 'route', e.channel, e.id,"
    " h.error IS NULL,"
    " CASE WHEN h.error IS NOT NULL THEN '' WHEN h.fired THEN 'fired' ELSE 'not fired' END,"
    " h.latency_us / 1e6, NULL, '', '', ifnull(h.error, ''), h.result_json, d.persona, d.session"
    " FROM {} h JOIN events e ON e.seq = h.event"
    " LEFT JOIN dispatches d ON d.event = h.event AND d.hook_id = h.hook_id WHERE {}"
    " ORDER BY h.event DESC LIMIT ?"
)
#: Where ``_SAID`` finds what fired or failed, and the rest: apart, so that each is read from its
#: newest rows on.
_FIRED, _QUIET = (
    "hook_evaluations",
    (
        "(SELECT q.event, q.config || '/' || j.key AS hook_id, q.started_ms, j.value AS latency_us,"
        " 0 AS fired, NULL AS result_json, NULL AS error"
        " FROM quiet_evaluations q, json_each(q.latencies_json) j)"
    ),
)


def hook_log(
    ledger: Ledger, texts: Mapping[str, str], limit: int, *, failed: bool, quiet: bool
) -> list[Row]:
    """The newest ``limit`` runs of hooks and route functions, newest first. ``texts``: agent,
    hook (a part of its name), event (of hooks) and kind (of events). ``quiet``: route functions
    too that said nothing."""
    runs, said = ["success = 0" if failed else "1"], ["1"]
    if failed or not quiet:
        said = ["h.error IS NOT NULL" if failed else "(h.fired OR h.error IS NOT NULL)"]
    values: list[list[object]] = [[], []]
    for name, one, other in (
        ("agent", "agent = ?", f"{SENDER} = ? COLLATE NOCASE"),
        ("hook", "instr(lower(hook), lower(?))", "instr(lower(h.hook_id), lower(?))"),
        ("event", "event = ?", ""),
        ("kind", "", "e.kind = ?"),
    ):
        for test, tests, given in ((one, runs, values[0]), (other, said, values[1])):
            if test and name in texts:
                tests.append(test)
                given.append(texts[name])
    tables = [_FIRED, _QUIET] if quiet and not failed else [_FIRED]
    parts = [_RUNS.format(" AND ".join(runs))]
    parts += [_SAID.format(one, " AND ".join(said)) for one in tables]
    found = ledger.rows(
        " UNION ALL ".join(f"SELECT * FROM ({one})" for one in parts)
        + " ORDER BY created_ms DESC, seq DESC LIMIT ?",
        (*values[0], limit, *(*values[1], limit) * len(tables), limit),
    )
    names = (*INVOCATION_COLUMNS, "result", "persona", "session")
    rows = [dict(zip(names, row, strict=True)) for row in found]
    for row in rows:
        row["success"] = bool(row["success"])
        row["result"] = json.loads(row["result"]) if row["result"] else None
    return rows
