"""One connection to the ledger's file: begin, write, commit, or roll back. One owner.

The file may be removed, replaced or damaged beneath the broker. Nothing is deleted then: a damaged
file is set aside under another name, and the person is told the command that recovers it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from relay.core import sqlite
from relay.core.errors import DamagedFile, FileLost, StorageError
from relay.core.files import open_private, sync_folder, unlink_if_there
from relay.ledger.schema import SCHEMA

#: The end of the name of the file that says how far the ledger came.
MARK = "-reached"
#: Device, inode and size of a file.
_Status = tuple[int, int, int]
_NOTHING: _Status = (0, 0, 0)


class Transactions:
    """The ledger's file, open for writing. Raises StorageError wherever SQLite fails.

    ``commit`` may run in another thread, while nothing else is called.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._untold = ""  # of what was done to the file: for the person, with the next commit
        self._open()

    def _open(self) -> None:
        self._db = sqlite.connect(self.path, SCHEMA)
        try:
            self._file = LedgerFile(self.path)
        except OSError as error:
            self._db.close()
            raise SCHEMA.error(error, self.path) from error
        try:
            with self.guard() as db:
                self._untold = self._file.missing(db) or self._untold
        except StorageError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; what was not committed is gone."""
        self._db.close()
        self._file.close()

    @contextmanager
    def guard(self) -> Iterator[sqlite3.Connection]:
        """The connection, with SQLite's errors turned into StorageError."""
        try:
            yield self._db
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    def rows(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        """What one statement finds."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    def row(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        """The first row that one statement finds, or None."""
        try:
            return self._db.execute(sql, values).fetchone()
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    def change(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> int:
        """Run one statement. Returns how many rows it has changed."""
        try:
            return self._db.execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise SCHEMA.error(error, self.path) from error

    # -- transactions

    def begin(self) -> None:
        """Start a transaction if none is open, in a file that has its name."""
        if not self._db.in_transaction:
            self._check()
            self.change("BEGIN IMMEDIATE")

    @property
    def in_transaction(self) -> bool:
        """Whether something waits for ``commit``."""
        return self._db.in_transaction

    def commit(self) -> None:
        """Put everything since ``begin`` on the disk, synchronously."""
        self.change("COMMIT")
        self._check()
        self._file.note()

    def _check(self) -> None:
        """Put the file back where it was removed. Raises StorageError where it cannot be."""
        if not self._file.check():
            self._file.put_back(self._db)
            self.close()
            self._open()
            self._untold = f"The ledger {self.path} was removed. It has been put back, as it was."

    def rollback(self) -> None:
        """Forget everything since the last commit. Never raises."""
        self._forget()
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error:
                # SQLite rolls back by itself after the errors that end up here.
                return

    def part(self) -> _Part:
        """What is written within is undone where it raises anything but StorageError."""
        return _Part(self)

    def undo_part(self) -> None:
        """Undo what was written since ``SAVEPOINT part``."""
        self.change("ROLLBACK TO part")
        self.change("RELEASE part")
        self._forget()

    def _forget(self) -> None:
        """What is kept of this transaction's rows is not so."""

    def checkpoint(self) -> None:
        """Move the log into the main file. A log that cannot be moved now stays where it is."""
        self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        self._file.note()

    def put_in_order(self) -> str:
        """Set the damaged file aside and begin anew. Returns what to tell the person. Raises
        StorageError."""
        self.close()
        told = set_aside(self.path)
        self._open()
        return told


class _Part:
    """``Transactions.part``."""

    __slots__ = ("_ledger", "_nested")

    def __init__(self, ledger: Transactions) -> None:
        self._ledger = ledger
        self._nested = ledger.in_transaction

    def __enter__(self) -> None:
        if self._nested:
            self._ledger.change("SAVEPOINT part")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if self._nested:
                self._ledger.change("RELEASE part")
        elif issubclass(kind, StorageError):
            return
        elif self._nested:
            self._ledger.undo_part()
        else:
            self._ledger.rollback()


class LedgerFile:
    """The names of an open ledger: whether what is written can be found under them.

    Beside it stands how far it came, written after each commit: a log that was cut, or of which a
    bit is not what it was, ends there for SQLite, which says nothing of it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._main = self._log = _NOTHING
        self._mark = open_private(path + MARK, os.O_RDWR | os.O_CREAT)
        self.note()

    def close(self) -> None:
        """Look after it no more."""
        mark, self._mark = self._mark, -1
        if mark >= 0:
            os.close(mark)

    def missing(self, db: sqlite3.Connection) -> str:
        """What to tell the person where events are missing that had been stored; else nothing."""
        noted = os.pread(self._mark, 8, 0)
        last = int(db.execute("SELECT ifnull(max(seq), 0) FROM events").fetchone()[0])
        lost = int.from_bytes(noted, "little") - last
        self.reached(last)
        if lost <= 0 or last == 0:  # a ledger that is begun anew
            return ""
        return (
            f"The last {lost} messages and events that the ledger {self._path} held are missing: it"
            " was cut, a disk did not keep what it had confirmed, or an older copy was put there."
        )

    def reached(self, seq: int) -> None:
        """Note that the ledger holds the events up to this number. Not synced: it is behind, not
        ahead, after a power failure. Never raises: the commit is done."""
        with suppress(OSError):
            os.pwrite(self._mark, seq.to_bytes(8, "little"), 0)

    def note(self) -> None:
        """What is there now has been written by the ledger."""
        if self._main is _NOTHING or self._is_same(self._path, self._main):
            self._main = _status(self._path)
        log = self._path + "-wal"
        if self._log is _NOTHING or self._is_same(log, self._log):
            self._log = _status(log)  # it is there since the first commit at the latest

    def check(self) -> bool:
        """Whether both names are still those of the files that are written. Raises DamagedFile
        where one was cut."""
        whole = True
        for path, known in ((self._path, self._main), (self._path + "-wal", self._log)):
            if known is _NOTHING:
                continue
            now = _status(path)
            if now[:2] != known[:2]:
                whole = False
            elif now[2] < known[2]:
                raise DamagedFile(
                    f"{path} was cut while the broker ran",
                    hint="the next command starts another broker, with a new ledger",
                )
        return whole

    def _is_same(self, path: str, known: _Status) -> bool:
        return _status(path)[:2] == known[:2]

    def put_back(self, db: sqlite3.Connection) -> None:
        """Write all that ``db`` still holds under the ledger's name, before ``db`` is closed.

        Raises FileLost where another file has that name now (what ``db`` holds is then kept under
        another one), or no file can.
        """
        if not os.path.isdir(os.path.dirname(self._path)):
            raise lost(self._path, "its folder is gone")
        if _status(self._path)[:2] not in (_NOTHING[:2], self._main[:2]):
            kept = _free_name(f"{self._path}.removed")
            self._write(db, kept)
            raise lost(self._path, f"another file has taken its place. What it held is in {kept}")
        self._write(db, self._path)

    def _write(self, db: sqlite3.Connection, name: str) -> None:
        copy = f"{self._path}.{os.getpid()}.tmp"
        try:
            unlink_if_there(copy)
            with closing(sqlite3.connect(copy)) as target:
                os.chmod(copy, 0o600)
                db.backup(target)
            os.replace(copy, name)
            sync_folder(os.path.dirname(name))
        except (OSError, sqlite3.Error) as error:
            with suppress(OSError):
                unlink_if_there(copy)
            raise lost(self._path, f"and it cannot be put back: {error}") from error


def lost(path: str, why: str) -> FileLost:
    """The error for a ledger that has no name any more."""
    return FileLost(
        f"the ledger {path} was removed while the broker ran; {why}. Nothing more is stored in it",
        hint="the next command starts another broker, with the ledger that is there then",
    )


def _status(path: str) -> _Status:
    try:
        status = os.stat(path)
    except OSError:
        return _NOTHING
    return status.st_dev, status.st_ino, status.st_size


def set_aside(path: str) -> str:
    """Give a damaged ledger another name; the next that is opened at ``path`` begins anew.

    Returns what to tell the person. Nobody may have the file open. Raises StorageError.
    """
    aside = _free_name(f"{path}.damaged")
    try:
        with open(path, "rb") as file:
            header = file.read(100)
        os.link(path, aside)  # under both names, until its log has the other one too
        with suppress(FileNotFoundError):
            os.rename(path + "-wal", aside + "-wal")
        for name in ("", "-shm", MARK):
            unlink_if_there(path + name)
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise StorageError(
            f"the ledger {path} is damaged, and cannot be set aside: {error.strerror}",
            hint="move the file away; relay begins a new one",
        ) from error
    kept = f"The ledger was damaged, and a new one begins. The damaged one is kept as {aside}."
    if not sqlite.is_database(header):
        return (
            f"{kept}\nIts beginning is overwritten, so sqlite3 cannot read it. If you have a copy"
            f" of the ledger, put it there: relay broker stop && mv COPY {shlex.quote(path)}"
        )
    copy = shlex.quote(recovered := f"{aside}-recovered.db")
    version = int.from_bytes(header[60:64], "big")
    lines = [
        kept,
        f"This command copies what can be read of it: {_recovery(aside, version, recovered)}",
        # Of a copy without events nothing could start.
        "This puts the copy in the ledger's place: relay broker stop &&"
        f" sqlite3 {copy} 'SELECT count(*) FROM events' && mv {copy} {shlex.quote(path)}",
    ]
    if shutil.which("sqlite3") is None:
        lines[1] += " (install the program sqlite3 first)"
    return "\n".join(lines)


def _recovery(aside: str, version: int, recovered: str) -> str:
    """The command that copies what can be read of the file ``aside`` to a fresh one.

    By ``.dump``: many systems' sqlite3 is made without what ``.recover`` needs. That fails a file
    of which anything cannot be read, and says nothing of whose and which version it is.
    """
    dump = f"sqlite3 {shlex.quote(aside)} 'PRAGMA writable_schema=ON' .dump"
    kind = f"PRAGMA application_id={SCHEMA.application_id}; PRAGMA user_version={version}"
    load = f"sqlite3 -cmd '{kind}' {shlex.quote(recovered)}"
    return f"{dump} | sed 's/^ROLLBACK.*/COMMIT;/' | {load}"


def _free_name(path: str) -> str:
    name = f"{path}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    return name if not os.path.lexists(name) else f"{name}-{time.monotonic_ns()}"
