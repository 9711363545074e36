"""One place's file: its schema, its versions, and how it is opened without harming it."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import quote

from relay.core.errors import StorageError
from relay.memory.records import Place, Scope

#: "rmem": marks the file as ours.
APPLICATION_ID = 0x726D656D
_MAGIC = b"SQLite format 3\x00"
#: How long a statement waits for other processes that write to the same file, in seconds.
BUSY = 30.0

#: One tuple of statements for each version, applied in one transaction each.
#:
#: ``day`` is when the text was written, in words ("22 November 2026"): questions name days. It is
#: indexed, but not embedded: in a vector it only blurs what the text says.
#: ``near`` is a hash of the text's key (see near.py). ``vectors`` holds float16, of length 1, for
#: the one embedder of ``state``; ``stamp`` grows with every vector that is written, and
#: ``state.removed`` with every one that goes, so that what others changed is read, and no more.
#: ``pending`` are the rows without a vector.
#: ``state.unclean``: something was forgotten, and the log may still hold its text.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE memories (
            row INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            text TEXT NOT NULL,
            day TEXT NOT NULL,
            near BLOB NOT NULL,
            agent TEXT,
            session TEXT,
            created_ms INTEGER NOT NULL,
            updated_ms INTEGER NOT NULL,
            supersedes TEXT,
            meta TEXT NOT NULL
        )""",
        "CREATE INDEX memories_near ON memories (near)",
        "CREATE INDEX memories_updated ON memories (updated_ms)",
        "CREATE INDEX memories_supersedes ON memories (supersedes) WHERE supersedes NOT NULL",
        "CREATE VIRTUAL TABLE texts USING fts5 (text, day, content='memories', content_rowid='row',"
        " tokenize='porter unicode61')",
        "CREATE TABLE vectors"
        " (row INTEGER PRIMARY KEY, stamp INTEGER NOT NULL, data BLOB NOT NULL)",
        "CREATE INDEX vectors_stamp ON vectors (stamp)",
        "CREATE TABLE pending (row INTEGER PRIMARY KEY)",
        """CREATE TABLE state (
            scope TEXT NOT NULL,
            owner TEXT NOT NULL,
            embedder TEXT NOT NULL DEFAULT '',
            dims INTEGER NOT NULL DEFAULT 0,
            removed INTEGER NOT NULL DEFAULT 0,
            unclean INTEGER NOT NULL DEFAULT 0
        )""",
    ),
)
VERSION = len(MIGRATIONS)


def connect(path: str, place: Place | None) -> sqlite3.Connection | None:
    """Open the file at ``path``; for ``place`` it is created where there is none.

    None when there is none and no place was given. Raises StorageError, with the file as it was,
    when it is not ours, holds another place, is damaged, or was written by a newer relay.
    """
    if place is None and not os.path.exists(path):
        return None
    _inspect(path)
    connection = None
    try:
        if place is not None:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        connection = sqlite3.connect(
            path, timeout=BUSY, isolation_level=None, check_same_thread=False
        )
        version = _version(connection)
        if version == 0 and place is None:  # killed before its first migration: it is empty
            connection.close()
            return None
        if version < VERSION:
            _migrate(connection, place)
        _configure(connection)
        if place is not None and read_place(connection) != place:
            raise StorageError(
                f"{path} holds the memories of another place",
                hint="move the file away; relay starts a new one",
            )
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise storage_error(error, path) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def read_place(connection: sqlite3.Connection) -> Place:
    """Whose memories the file holds."""
    scope, owner = connection.execute("SELECT scope, owner FROM state").fetchone()
    return Place(Scope(scope), owner)


def has_id(path: str, id_: str) -> bool:
    """Whether the file holds the id, without keeping it open. False for what cannot be read."""
    try:
        with closing(_read_only(path)) as connection:
            found = connection.execute("SELECT 1 FROM memories WHERE id=?", (id_,)).fetchone()
    except sqlite3.Error:
        return False
    return found is not None


@contextmanager
def guard(path: str) -> Iterator[None]:
    """SQLite's errors as StorageError."""
    try:
        yield
    except sqlite3.Error as error:
        raise storage_error(error, path) from error


def storage_error(error: Exception, path: str) -> StorageError:
    """What went wrong with the file, for a person."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        hint = "free some space on that disk; nothing was stored"
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "move the file away, or restore it from a copy; relay starts a new one"
    elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        hint = "another program holds it for long: end that, and try again"
    elif code == sqlite3.SQLITE_IOERR:
        hint = "check the disk and its free space; nothing was stored"
    elif "no such module" in str(error):
        hint = "this Python's SQLite lacks full-text search (FTS5): run relay with another Python"
    else:
        hint = "check that the file and its directory are writable"
    return StorageError(f"the memories in {path} cannot be used: {error}", hint=hint)


def _read_only(path: str) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True, timeout=BUSY)


def _inspect(path: str) -> None:
    """Refuse what is not ours by reading alone: SQLite would write to some of it on opening."""
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"the memories in {path} cannot be read: {error.strerror}",
            hint="check the permissions of the file and its directory",
        ) from error
    if not header:
        return
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise StorageError(
            f"{path} holds no memories of relay",
            hint="move the file away, or restore it from a copy; relay starts a new one",
        )
    marks = struct.unpack(">I16xI4xI", header[40:72])
    if os.path.exists(path + "-wal"):
        # The header may lag behind the log. A read-only connection sees both and writes neither.
        marks = _marks_with_log(path)
    _check(path, *marks)


def _marks_with_log(path: str) -> tuple[int, int, int]:
    try:
        with closing(_read_only(path)) as connection:
            schema, version, application = (
                int(connection.execute(f"PRAGMA {name}").fetchone()[0])
                for name in ("schema_version", "user_version", "application_id")
            )
    except sqlite3.Error as error:
        raise storage_error(error, path) from error
    return schema, version, application


def _check(path: str, schema: int, version: int, application: int) -> None:
    if schema == 0 and version == 0 and application == 0:
        return  # created, but killed before the first migration committed
    if application != APPLICATION_ID:
        raise StorageError(
            f"{path} is a database of another program",
            hint="move the file away; relay starts a new one",
        )
    if version > VERSION:
        raise StorageError(
            f"{path} was written by a newer relay (schema {version}, this one knows {VERSION})",
            hint="upgrade relay, or set RELAY_HOME to another directory",
        )


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _configure(connection: sqlite3.Connection) -> None:
    # FULL syncs the log at every commit: what was confirmed survives a power failure.
    connection.execute("PRAGMA synchronous=FULL")
    if os.uname().sysname == "Darwin":
        # macOS keeps an fsync in the drive's cache unless it is asked for more.
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
    # What is forgotten is overwritten with zeros.
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA cache_size=-16384")


def _migrate(connection: sqlite3.Connection, place: Place | None) -> None:
    """Bring the file to VERSION; several processes may try to at once."""
    _use_log(connection)
    for number, statements in enumerate(MIGRATIONS, start=1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            if number > _version(connection):
                _step(connection, number, statements, place)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _use_log(connection: sqlite3.Connection) -> None:
    """Turn on write-ahead logging. SQLite does not wait by itself while others do the same."""
    end, pause = time.monotonic() + BUSY, threading.Event()
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            pause.wait(0.01)
            continue
        if mode != "wal":
            raise sqlite3.OperationalError(f"write-ahead logging is not available here ({mode})")
        return


def _step(
    connection: sqlite3.Connection, number: int, statements: tuple[str, ...], place: Place | None
) -> None:
    for statement in statements:
        connection.execute(statement)
    if number == 1:
        assert place is not None
        connection.execute(
            "INSERT INTO state (scope, owner) VALUES (?,?)", (place.scope.value, place.owner)
        )
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={number}")
