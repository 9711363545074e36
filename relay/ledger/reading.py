"""Reads the ledger in the process of who asks, so that reading much does not delay the broker.

Anybody's SQL is answered, and cannot write or run away. The traffic is read as a person looks at
it: pages of messages, the hooks on a message's way, and figures for charts.

A connection that is opened for reading alone, an authorizer that lets SELECT through and nothing
else, and limits on time, memory, rows and lengths. What is secret (what the nonces are made with,
the hashes of the agents' tokens) is not shown.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from relay.core import sqlite
from relay.core.errors import NotFound, RelayError, Timeout, UsageError
from relay.ledger.schema import COLUMNS, SCHEMA, SENDER, Row, message_row

#: How long a query may take, unless who asks says otherwise. Seconds.
PATIENCE = 10.0
#: Bytes of memory that SQLite may use for one, and of the answer.
MEMORY_MAX, ANSWER_MAX = 256 << 20, 64 << 20
#: The longest text or blob in it.
TEXT_MAX = 8 << 20
#: Tables that a query finds nothing in, and an export leaves out.
SECRET_TABLES = frozenset({"nonce_key", "originals"})
#: Columns that read as NULL.
SECRET_COLUMNS = frozenset({("agents", "token_hash")})
_STEPS = 20_000
_HARMLESS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
_OF_THE_FILE = (
    *(sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL),
    *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN),
)
#: What loads code, or hands out pointers.
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})
#: Figures are of at most so many of the newest events, and of deliveries as many.
EVENTS_MAX = 200_000
#: Runs of hooks that are shown with a message; those within this time around its way count.
HOOKS_MAX, AROUND_MS = 100, 1_000


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """The rows of a query, and whether there are more."""

    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]
    more: bool


def query(
    path: str, sql: str, limit: int, seconds: float = PATIENCE, params: Sequence[object] = ()
) -> QueryAnswer:
    """What the SELECT ``sql`` finds in the ledger at ``path``: at most ``limit`` rows. ``params``
    are the values of its ``?``.

    Raises UsageError for whatever is not one harmless SELECT, Timeout for what takes too long.
    """
    found: list[QueryAnswer | Exception] = []

    def run() -> None:
        try:
            found.append(_select(path, sql, limit, seconds, params))
        except Exception as error:
            found.append(error)

    # Some functions (instr, trim) ask nobody how long they may take: then the query is left to
    # itself, and ends with the process.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds + 1.0)
    if not found:
        raise _too_long(seconds)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def _select(
    path: str, sql: str, limit: int, seconds: float, params: Sequence[object]
) -> QueryAnswer:
    with _reading(path) as db:
        _limit(db, time.monotonic() + seconds)
        try:
            cursor = db.execute(sql, params)
            columns = tuple(str(one[0]) for one in cursor.description or ())
            rows: list[tuple[object, ...]] = []
            size = 0
            for row in cursor:
                size += sum(len(one) if isinstance(one, str | bytes) else 8 for one in row)
                if len(rows) == limit or size > ANSWER_MAX:
                    return QueryAnswer(columns, rows, more=True)
                rows.append(row)
        except (sqlite3.Error, sqlite3.Warning, MemoryError, ValueError) as error:
            raise _refused(error, path, seconds) from error
        if not columns:
            raise UsageError("that is not a SELECT", hint=_HINT)
        return QueryAnswer(columns, rows, more=False)


def export(path: str) -> Generator[tuple[str, dict[str, object]], None, None]:
    """Every row as (table, columns), all of one moment; not what is secret, or made of others."""
    with _reading(path) as db, SCHEMA.errors(path):
        db.execute("BEGIN")
        tables = db.execute(
            "SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite%'"
        )
        for name in sorted({row[0] for row in tables} - SECRET_TABLES - {"senders"}):
            columns = [
                row[1]
                for row in db.execute(f"PRAGMA table_info({name})")
                if (name, row[1]) not in SECRET_COLUMNS
            ]
            for row in db.execute(f"SELECT {','.join(columns)} FROM {name}"):
                yield name, dict(zip(columns, row, strict=True))


_HINT = "one SELECT (or WITH … SELECT); the tables are in docs/ledger.md, and in sqlite_master"


@contextmanager
def _reading(path: str) -> Iterator[sqlite3.Connection]:
    if not os.path.exists(path):
        raise NotFound(
            "there is no ledger yet", hint="relay status starts a broker, which makes it"
        )
    sqlite.inspect(path, SCHEMA)
    with SCHEMA.errors(path), closing(sqlite.connect_read_only(path, SCHEMA)) as db:
        db.text_factory = _text
        db.execute("PRAGMA query_only=ON")
        db.execute("PRAGMA trusted_schema=OFF")
        db.execute("PRAGMA temp_store=MEMORY")
        yield db


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


def _limit(db: sqlite3.Connection, end: float) -> None:
    db.execute(f"PRAGMA hard_heap_limit={MEMORY_MAX}")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TEXT_MAX)
    db.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
    db.set_authorizer(_authorize)


def _authorize(
    action: int, one: str | None, two: str | None, database: str | None, source: str | None
) -> int:
    if action in _HARMLESS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ:
        if one in SECRET_TABLES:
            return sqlite3.SQLITE_DENY
        hidden = (one, two) in SECRET_COLUMNS
        return sqlite3.SQLITE_IGNORE if hidden else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (two or "").lower() not in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _refused(error: Exception, path: str, seconds: float) -> RelayError:
    """What is wrong with a query, for a person."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return _too_long(seconds)
    if isinstance(error, MemoryError) or code in (sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_TOOBIG):
        return UsageError(
            f"the query needs more than {MEMORY_MAX >> 20} MiB of memory, or too long a text",
            hint="narrow it down, or leave out ORDER BY",
        )
    if code in _OF_THE_FILE:
        return SCHEMA.error(error, path)
    if "authoriz" in str(error) or "prohibited" in str(error):
        return UsageError(f"the ledger can only be read ({error})", hint=_HINT)
    return UsageError(f"SQL: {error}", hint=_HINT)


def _too_long(seconds: float) -> Timeout:
    hint = "narrow it down, or give --timeout S"
    return Timeout(f"the query took more than {seconds:g} s", hint=hint)


def page(path: str, *, before: int | None, limit: int, text: str = "") -> tuple[list[Row], bool]:
    """The newest ``limit`` deliveries of messages before the event with that number, the newest
    first, each with ``seq``; and whether there are more. ``text`` is in the body or in an answer,
    in any case, or is who it is from or for."""
    where, values = ["e.kind = 'message'"], list[object]()
    if before is not None:
        where.append("e.seq < ?")
        values.append(before)
    if text:
        where.append(
            f"(instr(lower(e.body), lower(?)) OR {SENDER} = ? COLLATE NOCASE OR d.recipient = ?"
            " OR e.seq IN (SELECT m.event FROM agent_messages m JOIN agent_messages a"
            "  ON a.turn = m.turn AND a.role = 'assistant' AND instr(lower(a.content), lower(?))"
            "  WHERE m.role = 'user'))"
        )
        values += [text] * 4
    found = query(
        path,
        f"SELECT {COLUMNS} FROM events e LEFT JOIN deliveries d ON d.event = e.seq"
        f" WHERE {' AND '.join(where)} ORDER BY e.seq DESC, d.recipient DESC",
        limit,
        params=values,
    )
    return [{**message_row(row), "seq": row[0]} for row in found.rows], found.more


def answers(path: str, ids: Sequence[str]) -> list[Row]:
    """What agents said last in the turns that answer these messages: {asked (the newest message
    that it answers), from, to, body, created_ms}."""
    found = query(
        path,
        f"SELECT max(e.seq), e.id, s.persona, {SENDER}, a.content, a.created_ms"
        " FROM events e JOIN agent_messages m ON m.event = e.seq AND m.role = 'user'"
        " JOIN agent_turns t ON t.id = m.turn JOIN agent_sessions s ON s.id = m.session"
        " JOIN agent_messages a ON a.seq = (SELECT max(seq) FROM agent_messages"
        "  WHERE turn = t.id AND role = 'assistant' AND content <> '')"
        f" WHERE e.id IN ({','.join('?' * len(ids))}) AND s.persona NOT NULL GROUP BY t.id",
        EVENTS_MAX,
        params=ids,
    )
    names = ("asked", "from", "to", "body", "created_ms")
    return [dict(zip(names, row[1:], strict=True)) for row in found.rows]


def hooks_on_the_way(path: str, id_: str, agents: list[str], until_ms: int) -> list[Row]:
    """What ran for the message ``id_``: route functions that evaluated it, and the hooks of these
    agents from just before it was said until just after ``until_ms``; the oldest first."""
    exact = query(
        path,
        "SELECT h.started_ms, h.hook_id, h.fired, h.latency_us / 1e6, ifnull(h.error, '')"
        " FROM hook_evaluations h JOIN events e ON e.seq = h.event WHERE e.id = ?",
        HOOKS_MAX,
        params=(id_,),
    ).rows
    rows: list[Row] = [
        {"at_ms": at, "hook": hook, "of": "", "event": "route", "seconds": seconds, "error": error}
        | {"decision": "fired" if fired else "not fired"}
        for at, hook, fired, seconds, error in exact
    ]
    near = query(
        path,
        "SELECT h.created_ms, h.hook, h.decision, h.duration, h.error, h.agent, h.event"
        " FROM hook_invocations h, (SELECT created_ms FROM events WHERE id = ?) e"
        " WHERE h.seq > (SELECT max(seq) FROM hook_invocations) - ?"
        f" AND h.agent IN ({','.join('?' * len(agents))}) AND h.kind <> 'batch'"
        " AND h.created_ms BETWEEN e.created_ms - ? AND ? ORDER BY h.seq",
        HOOKS_MAX,
        params=(id_, EVENTS_MAX, *agents, AROUND_MS, until_ms + AROUND_MS),
    ).rows
    rows += [
        {"at_ms": at, "hook": hook, "of": agent, "event": event, "seconds": seconds}
        | {"error": error, "decision": decision}
        for at, hook, decision, seconds, error, agent, event in near
    ]
    return sorted(rows, key=lambda row: int(row["at_ms"]))


def figures(path: str, *, since_ms: int, bucket_ms: int) -> Row:
    """Of messages since then: ``sent`` [[who, number of the bucket, messages]], ``latency`` of the
    deliveries to each agent {who: {number, median_ms, p95_ms}}, ``states`` {state: deliveries}."""
    newest = f"e.seq > (SELECT max(seq) FROM events) - {EVENTS_MAX} AND e.kind = 'message'"
    sent = query(
        path,
        f"SELECT {SENDER}, (e.created_ms - ?) / ?, count(*) FROM events e"
        f" WHERE {newest} AND e.created_ms >= ? GROUP BY 1, 2",
        EVENTS_MAX,
        params=(since_ms, bucket_ms, since_ms),
    )
    ways = query(
        path,
        "SELECT d.recipient, d.state, d.submitted_ms - e.created_ms FROM events e"
        f" JOIN deliveries d ON d.event = e.seq WHERE {newest} AND e.created_ms >= ?"
        " ORDER BY e.seq DESC",
        EVENTS_MAX,
        params=(since_ms,),
    )
    states: dict[str, int] = {}
    took: dict[str, list[int]] = {}
    for who, state, milliseconds in ways.rows:
        states[str(state)] = states.get(str(state), 0) + 1
        if isinstance(milliseconds, int):
            took.setdefault(str(who), []).append(max(0, milliseconds))
    latency = {
        who: {"number": len(all_), "median_ms": _percentile(all_, 50)}
        | {"p95_ms": _percentile(all_, 95)}
        for who, all_ in took.items()
    }
    return {"sent": [list(row) for row in sent.rows], "latency": latency, "states": states}


def _percentile(values: list[int], percent: int) -> int:
    if len(values) == 1:
        return values[0]
    from statistics import quantiles  # slow to import, and charts alone need it

    return round(quantiles(values, n=100, method="inclusive")[percent - 1])
