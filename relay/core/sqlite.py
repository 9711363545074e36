"""SQLite files that relay owns: opened without harm, checked, migrated, synced at every commit."""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import quote

from relay.core.errors import DamagedFile, StorageError

_MAGIC = b"SQLite format 3\x00"
_HEADER_SIZE = 100
# SQLITE_IOERR_SHORT_READ: a file that was cut.
_SHORT_READ = 522

#: A statement and its values.
Statement = tuple[str, tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class Schema:
    """One kind of file: what it is called, how it is marked, what is in it."""

    #: What people read, with ``{path}``: "the ledger {path}".
    title: str
    #: And what a file of another kind is not: "a ledger".
    noun: str
    #: The mark in the file's header: 4 ASCII letters as a number.
    application_id: int
    #: The statements of each version, applied in one transaction each.
    migrations: tuple[tuple[str, ...], ...]
    #: Further PRAGMAs for a connection: "secure_delete=ON".
    pragmas: tuple[str, ...] = ()
    #: Seconds that a statement waits for another process that writes.
    busy: float = 5.0

    @property
    def version(self) -> int:
        """The version of a file that is up to date."""
        return len(self.migrations)

    def error(self, error: Exception, path: str) -> StorageError:
        """What went wrong with the file, for a person."""
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if code == sqlite3.SQLITE_FULL:
            hint = "free some space on that disk; nothing was stored"
        elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            hint = "move the file away, or restore it from a copy; relay starts a new one"
        elif code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            hint = "another program holds it for long: end that, and try again"
        elif code == sqlite3.SQLITE_IOERR:
            hint = "check the disk and its free space; nothing was stored"
        elif "no such module" in str(error):
            hint = "this Python's SQLite lacks full-text search (FTS5): use another Python"
        else:
            hint = "check that the file and its directory are writable"
        reason = error.strerror if isinstance(error, OSError) else error
        damaged = code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or extended == _SHORT_READ
        kind = DamagedFile if damaged else StorageError
        return kind(f"{self.title.format(path=path)} cannot be used: {reason}", hint=hint)

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self.error(error, path) from error


def connect(path: str, schema: Schema, first: Sequence[Statement] = ()) -> sqlite3.Connection:
    """Open the file for writing, creating or migrating it; ``first`` is run when it is created.

    Raises StorageError, with the file as it was, when it is not of this kind, is damaged, or was
    written by a newer relay. The connection may be used from any thread, by one at a time.
    """
    inspect(path, schema)
    connection = None
    try:
        # Before SQLite makes it: its log takes over the permissions.
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        os.chmod(path, 0o600)
        connection = sqlite3.connect(
            address(path),
            uri=True,  # for what it may attach
            timeout=schema.busy,
            isolation_level=None,
            check_same_thread=False,
        )
        _use_log(connection, schema.busy)
        _configure(connection, schema)
        _migrate(connection, schema, first)
    except (sqlite3.Error, OSError) as error:
        if connection is not None:
            connection.close()
        raise schema.error(error, path) from error
    except BaseException:
        if connection is not None:
            connection.close()
        raise
    return connection


def connect_read_only(path: str, schema: Schema) -> sqlite3.Connection:
    """Open the file for reading; nothing is written. Raises sqlite3.Error."""
    return sqlite3.connect(address(path, read_only=True), uri=True, timeout=schema.busy)


def address(path: str, *, read_only: bool = False) -> str:
    """The file as SQLite's URI, for ``connect`` and ATTACH."""
    return f"file:{quote(os.fsencode(path))}" + ("?mode=ro" if read_only else "")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is written inside, or undo it all when something is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def is_database(header: bytes) -> bool:
    """Whether a file that begins with these 100 bytes is one of SQLite's."""
    return len(header) >= _HEADER_SIZE and header.startswith(_MAGIC)


def inspect(path: str, schema: Schema) -> int:
    """The version of the file at ``path``, 0 where there is none or it is empty.

    Raises StorageError for a file that is not of this kind or newer. Reads alone: SQLite would
    write to some of them on opening.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_SIZE)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StorageError(
            f"{schema.title.format(path=path)} cannot be read: {error.strerror}",
            hint="check the permissions of the file and its directory",
        ) from error
    if not header:
        return 0
    if not is_database(header):
        raise StorageError(
            f"{path} is not {schema.noun} of relay",
            hint="move the file away, or restore it from a copy; relay starts a new one",
            details={"other_file": True},
        )
    cookie, version, application = struct.unpack(">I16xI4xI", header[40:72])
    if os.path.exists(path + "-wal"):
        # The header may lag behind the log. A read-only connection sees both and writes neither.
        with schema.errors(path), closing(connect_read_only(path, schema)) as connection:
            cookie = _pragma(connection, "schema_version")
            version = _pragma(connection, "user_version")
            application = _pragma(connection, "application_id")
    if cookie == version == application == 0:
        return 0  # created, but killed before the first migration committed
    if application != schema.application_id:
        raise StorageError(
            f"{path} is a database of another program",
            hint="move the file away; relay starts a new one",
        )
    if version > schema.version:
        raise StorageError(
            f"{path} was written by a newer relay (schema {version},"
            f" this one knows {schema.version})",
            hint="upgrade relay, or set RELAY_HOME to another directory",
        )
    return int(version)


def _configure(connection: sqlite3.Connection, schema: Schema) -> None:
    # FULL syncs the log at every commit: what was acknowledged survives a power failure.
    pragmas = ["synchronous=FULL", "temp_store=MEMORY", "cache_size=-16384"]
    if os.uname().sysname == "Darwin":
        # macOS keeps an fsync in the drive's cache unless it is asked for more.
        pragmas += ["fullfsync=ON", "checkpoint_fullfsync=ON"]
    for pragma in (*pragmas, *schema.pragmas):
        connection.execute(f"PRAGMA {pragma}")


def _use_log(connection: sqlite3.Connection, busy: float) -> None:
    """Turn on write-ahead logging. SQLite does not wait by itself while others do the same."""
    end, pause = time.monotonic() + busy, threading.Event()
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            pause.wait(0.01)
    if mode != "wal":
        raise sqlite3.OperationalError(f"write-ahead logging is not available here ({mode})")


def _migrate(connection: sqlite3.Connection, schema: Schema, first: Sequence[Statement]) -> None:
    """Bring the file to the newest version; several processes may try to at once."""
    for number in range(_pragma(connection, "user_version") + 1, schema.version + 1):
        with transaction(connection):
            if number > _pragma(connection, "user_version"):
                for statement in schema.migrations[number - 1]:
                    connection.execute(statement)
                for sql, values in first if number == 1 else ():
                    connection.execute(sql, values)
                connection.execute(f"PRAGMA application_id={schema.application_id}")
                connection.execute(f"PRAGMA user_version={number}")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
