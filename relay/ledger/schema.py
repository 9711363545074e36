"""The ledger's file: its schema, its versions, and how it is opened without harming it."""

from __future__ import annotations

import os
import sqlite3
import struct
from urllib.parse import quote

from relay.core.errors import StorageError

#: "rely": marks the file as ours.
APPLICATION_ID = 0x72656C79
_MAGIC = b"SQLite format 3\x00"

#: One tuple of statements for each version, applied in one transaction each.
#:
#: ``events`` is append-only: everything that happens is a row, a message is one of kind
#: ``message``. ``agent`` is who it came from, ``origin`` what that is (agent, person, relay).
#: ``deliveries`` is keyed so that new rows are appended, and has one index: by recipient, the open
#: ones first. That serves the queue, the inbox and the count of unread with one B-tree to write.
#: ``senders`` says in which blocks of ``1 << BLOCK_BITS`` events somebody spoke: it lets a search
#: for one sender skip the others' blocks, for a row a block instead of an index entry a message.
#: ``hops`` counts the messages between agents that led to this one, itself included; one that is
#: ``parked`` is offered to nobody before the person lets it go on (see relay.broker.loop_guard).
#: ``hook_invocations`` holds each run of a hook (see relay.hooks.records); ``duration`` in seconds.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE events (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            agent TEXT COLLATE NOCASE,
            origin TEXT NOT NULL,
            mode TEXT,
            thread TEXT,
            body TEXT,
            meta_json TEXT,
            created_ms INTEGER NOT NULL
        )""",
        """CREATE TABLE deliveries (
            event INTEGER NOT NULL REFERENCES events (seq),
            recipient TEXT NOT NULL COLLATE NOCASE,
            n INTEGER NOT NULL,
            open INTEGER NOT NULL,
            state TEXT NOT NULL,
            reason TEXT,
            proof TEXT,
            attempts INTEGER NOT NULL DEFAULT 0,
            delivering_ms INTEGER,
            submitted_ms INTEGER,
            updated_ms INTEGER NOT NULL,
            PRIMARY KEY (event, recipient)
        ) WITHOUT ROWID""",
        "CREATE INDEX deliveries_recipient ON deliveries (recipient, open, event)",
        """CREATE TABLE agents (
            name TEXT PRIMARY KEY COLLATE NOCASE,
            person INTEGER NOT NULL,
            run TEXT,
            token_hash TEXT,
            kind TEXT NOT NULL,
            pid INTEGER,
            cwd TEXT,
            command TEXT,
            state TEXT NOT NULL,
            reason TEXT,
            since_ms INTEGER NOT NULL,
            last_seen_ms INTEGER NOT NULL
        ) WITHOUT ROWID""",
    ),
    (
        """CREATE TABLE senders (
            agent TEXT NOT NULL COLLATE NOCASE,
            block INTEGER NOT NULL,
            PRIMARY KEY (agent, block)
        ) WITHOUT ROWID""",
        "INSERT INTO senders SELECT DISTINCT agent, seq >> 12 FROM events WHERE agent NOT NULL",
    ),
    (
        "ALTER TABLE deliveries ADD COLUMN hops INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE deliveries ADD COLUMN parked INTEGER NOT NULL DEFAULT 0",
    ),
    (
        """CREATE TABLE hook_invocations (
            seq INTEGER PRIMARY KEY,
            created_ms INTEGER NOT NULL,
            run TEXT NOT NULL,
            agent TEXT NOT NULL COLLATE NOCASE,
            event TEXT NOT NULL,
            hook TEXT NOT NULL,
            kind TEXT NOT NULL,
            source TEXT NOT NULL,
            correlation_id TEXT NOT NULL,
            success INTEGER NOT NULL,
            decision TEXT NOT NULL,
            duration REAL NOT NULL,
            exit_status INTEGER,
            stdout TEXT NOT NULL,
            stderr TEXT NOT NULL,
            error TEXT NOT NULL
        )""",
    ),
)
VERSION = len(MIGRATIONS)
BLOCK_BITS = 12


def connect(path: str) -> sqlite3.Connection:
    """Open the ledger at ``path`` for writing, creating or migrating it.

    Raises StorageError, with the file as it was, when it is not a ledger, is damaged, or was
    written by a newer relay. The connection may be used from any thread, by one at a time.
    """
    _inspect(path)
    connection = None
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        os.chmod(path, 0o600)
        _configure(connection)
        _migrate(connection)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise storage_error(error, path) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def storage_error(error: Exception, path: str) -> StorageError:
    """What went wrong with the file, for a person."""
    text = str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        hint = "free some space on that disk; nothing was stored and nothing acknowledged"
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "move the file away, or restore it from a copy; relay starts a new one"
    elif code == sqlite3.SQLITE_IOERR:
        hint = "check the disk and its free space; nothing was stored and nothing acknowledged"
    else:
        hint = "check that the file and its directory are writable"
    return StorageError(f"the ledger {path} cannot be used: {text}", hint=hint)


def _inspect(path: str) -> None:
    """Refuse what is not ours by reading alone: SQLite would write to some of it on opening."""
    try:
        with open(path, "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"the ledger {path} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    if not header:
        return
    if len(header) < 100 or not header.startswith(_MAGIC):
        raise StorageError(
            f"{path} is not a ledger of relay",
            hint="move the file away; relay starts a new one",
        )
    marks = struct.unpack(">I16xI4xI", header[40:72])
    if os.path.exists(path + "-wal"):
        # The header may lag behind the log. A read-only connection sees both and writes neither.
        marks = _read_only_marks(path)
    _check(path, *marks)


def _read_only_marks(path: str) -> tuple[int, int, int]:
    try:
        connection = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise storage_error(error, path) from error
    try:
        names = ("schema_version", "user_version", "application_id")
        schema, version, application = (
            int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names
        )
    except sqlite3.Error as error:
        raise storage_error(error, path) from error
    finally:
        connection.close()
    return schema, version, application


def _check(path: str, schema: int, version: int, application: int) -> None:
    if schema == 0 and version == 0 and application == 0:
        return  # empty: created, but killed before the first migration committed
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


def _configure(connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"write-ahead logging is not available here ({mode})")
    # FULL syncs the log at every commit: what was acknowledged survives a power failure.
    connection.execute("PRAGMA synchronous=FULL")
    if os.uname().sysname == "Darwin":
        # macOS keeps an fsync in the drive's cache unless it is asked for more.
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute("PRAGMA checkpoint_fullfsync=ON")
    # 16 MB of log before it is moved: pages that change often are moved once, with fewer syncs.
    connection.execute("PRAGMA wal_autocheckpoint=4000")
    connection.execute("PRAGMA temp_store=MEMORY")
    connection.execute("PRAGMA cache_size=-16384")
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("PRAGMA journal_size_limit=67108864")


def _migrate(connection: sqlite3.Connection) -> None:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
