"""Reading the ledger by anybody's SQL, in the process of who asks: it cannot write or run away.

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
from relay.ledger.schema import SCHEMA

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
            raise UsageError("that is no SELECT", hint=_HINT)
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


_HINT = "one SELECT (or WITH … SELECT); the tables are in docs/broker.md, and in sqlite_master"


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
