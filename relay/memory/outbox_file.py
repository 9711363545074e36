"""The file of kept saves: its schema, who owns it, and how it is opened without harming it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable

from relay.core.errors import StorageError
from relay.memory.backend import StoreUnavailable

#: How long to wait for the process that has the file. Seconds.
OWNER_WAIT = 10.0
#: How long SQLite waits for somebody who reads the file. Seconds.
_BUSY = 10.0
#: "rkpt": marks the file as ours.
_APPLICATION_ID = 0x726B7074
_VERSION = 1
_SCHEMA = (
    """CREATE TABLE saves (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        text TEXT NOT NULL,
        scope TEXT NOT NULL,
        owner TEXT NOT NULL,
        agent TEXT,
        session TEXT,
        supersedes TEXT,
        meta TEXT,
        now_ms INTEGER NOT NULL,
        tries INTEGER NOT NULL DEFAULT 0,
        refused TEXT
    )""",
    # To count them, and to find the oldest, without reading their texts.
    "CREATE INDEX saves_refused ON saves (refused)",
    "CREATE TABLE aliases (seq INTEGER PRIMARY KEY AUTOINCREMENT, told TEXT NOT NULL UNIQUE,"
    " id TEXT NOT NULL)",
)


def opened(path: str) -> sqlite3.Connection:
    """The database, made when it is missing. Raises StorageError."""
    db = None
    try:
        # Before SQLite makes it: its log takes over the permissions.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(path, flags, 0o600))
        db = sqlite3.connect(path, timeout=_BUSY, isolation_level=None)
        _prepare(db, path)
    except (sqlite3.Error, OSError) as error:
        if db is not None:
            db.close()
        raise storage_error(path, error) from error
    except BaseException:
        if db is not None:
            db.close()
        raise
    return db


def own(path: str, clock: Callable[[], float] = time.monotonic) -> int:
    """The descriptor of the lock of ``path``, which makes this process its owner.

    Of the POSIX kind: a child that somebody forks does not have it.
    """
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise storage_error(path, error) from error
    end = clock() + OWNER_WAIT
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except (BlockingIOError, PermissionError) as error:
            if clock() > end:
                os.close(lock)
                raise StoreUnavailable(
                    "another process of relay still has this store",
                    hint="it ends by itself when its broker has ended: try again",
                ) from error
            time.sleep(0.05)  # it ends; there is no event to wait for with a deadline
        except OSError as error:
            os.close(lock)
            raise storage_error(path, error) from error


def storage_error(path: str, error: Exception) -> StorageError:
    """What went wrong with the file, for a person."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        hint = "free some space on that disk; nothing was stored"
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "move the file away, or restore it from a copy; relay starts a new one"
    else:
        hint = "check that the file and its directory are writable, and the disk's free space"
    reason = error.strerror if isinstance(error, OSError) else error
    return StorageError(f"the saves kept in {path} cannot be used: {reason}", hint=hint)


def _prepare(db: sqlite3.Connection, path: str) -> None:
    version = _pragma(db, "user_version")
    marked = _pragma(db, "application_id") == _APPLICATION_ID
    if not marked and _pragma(db, "schema_version") or marked and version > _VERSION:
        raise StorageError(
            f"{path} holds no saves of this version of relay",
            hint="upgrade relay, or move the file away",
        )
    db.execute("PRAGMA journal_mode=WAL")
    # The log is synced at every commit: what was confirmed survives a power failure.
    db.execute("PRAGMA synchronous=FULL")
    if os.uname().sysname == "Darwin":
        db.execute("PRAGMA fullfsync=ON")
        db.execute("PRAGMA checkpoint_fullfsync=ON")
    db.execute("PRAGMA secure_delete=ON")
    db.execute("PRAGMA temp_store=MEMORY")
    if version < _VERSION:
        db.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            db.execute(statement)
        db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version={_VERSION}")
        db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
