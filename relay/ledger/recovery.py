"""What becomes of the ledger when its file is removed, replaced or damaged beneath the broker.

A file of its own: the ledger's store knows only that it has to ask. Nothing is deleted: a damaged
file is set aside under another name, and what can be read of it is copied into a fresh one.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress

from relay.core import sqlite
from relay.core.errors import DamagedFile, FileLost, StorageError
from relay.core.files import open_private, sync_folder, unlink_if_there
from relay.ledger.schema import SCHEMA

#: How long is looked for single rows around what cannot be read. Seconds.
PATIENCE = 4.0
#: Beyond any number of an event, for a table whose last one cannot be read.
_LAST = 1 << 40
#: The end of the name of the file that says how far the ledger came.
_MARK = "-reached"
#: Rows that are written at a time.
_ROWS = 4096
#: All but those that are made of others.
_TABLES = (
    "SELECT name FROM sqlite_master WHERE type='table' AND name<>'senders'"
    " AND name NOT LIKE 'sqlite%'"
)
_SENDERS = "INSERT INTO senders SELECT DISTINCT agent, seq >> 12 FROM events WHERE agent NOT NULL"

#: Device, inode and size of a file.
_Status = tuple[int, int, int]
_NOTHING: _Status = (0, 0, 0)


class LedgerFile:
    """The names of an open ledger: whether what is written can be found under them.

    Beside it stands how far it came, written after each commit: a log that was cut, or of which a
    bit is not what it was, ends there for SQLite, which says nothing of it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._main = self._log = _NOTHING
        self._mark = open_private(path + _MARK, os.O_RDWR | os.O_CREAT)
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
                    hint="the next command starts another broker, with what can be read of it",
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


def recover(path: str) -> str:
    """Set a damaged ledger aside and copy what can be read of it into a fresh one at ``path``.

    Returns what to tell the person. Nobody may have the file open. Raises StorageError.
    """
    fresh, aside = f"{path}.{os.getpid()}.tmp", _free_name(f"{path}.damaged")
    try:
        for name in (fresh, fresh + "-wal", fresh + "-shm"):
            unlink_if_there(name)
        with closing(sqlite.connect(fresh, SCHEMA)) as db:
            db.execute("PRAGMA foreign_keys=OFF")  # what a row belongs to may not be readable
            kept, problem = _copy(path, db)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        os.link(path, aside)
        with suppress(FileNotFoundError):
            os.rename(path + "-wal", aside + "-wal")
        for name in ("-shm", _MARK):
            unlink_if_there(path + name)
        os.replace(fresh, path)
        sync_folder(os.path.dirname(path))
    except (OSError, sqlite3.Error) as error:
        raise StorageError(
            f"the ledger {path} is damaged, and cannot be recovered: {error}",
            hint="free some space on that disk, or move the file away; relay starts a new one",
        ) from error
    return (
        f"The ledger was damaged ({problem}). {kept} of its messages and events could be read, and"
        f" are in a new ledger; the damaged file is kept as {aside}."
    )


def _free_name(path: str) -> str:
    name = f"{path}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    return name if not os.path.lexists(name) else f"{name}-{time.monotonic_ns()}"


def _copy(path: str, db: sqlite3.Connection) -> tuple[int, str]:
    """Copy what can be read of ``path``: how many events that is, and what was wrong."""
    # Two connections: in one, what cannot be read here would spoil what is written there.
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        try:
            problem = str(old.execute("PRAGMA quick_check(1)").fetchone()[0]).splitlines()[-1]
            problem = "a part of it was cut off" if problem == "ok" else problem
        except sqlite3.DatabaseError as error:
            problem = str(error)
        with sqlite.transaction(db):
            end = time.monotonic() + PATIENCE
            tables = [row[0] for row in db.execute(_TABLES)]
            for table in tables:
                if columns := _columns(old, db, table):
                    if key := _number_of(db, table):
                        _copy_range(old, db, table, key, columns, end)
                    else:
                        _copy_rows(old, db, table, columns)
            with suppress(sqlite3.DatabaseError):
                _copy_open(old, db)
            while any([_drop_orphans(db, table) for table in tables]):
                continue  # what referred to them may be an orphan now
            db.execute(_SENDERS)
    return int(db.execute("SELECT count(*) FROM events").fetchone()[0]), problem


def _number_of(db: sqlite3.Connection, table: str) -> str:
    """What numbers a table's rows, in their order in the file; empty where nothing does."""
    for _, name, kind, _, _, place in db.execute(f"PRAGMA table_info({table})"):
        if place == 1 and kind == "INTEGER":
            return str(name)
    try:
        db.execute(f"SELECT rowid FROM {table} LIMIT 0")
    except sqlite3.OperationalError:
        return ""
    return "" if table == "nonce_key" else "rowid"


def _drop_orphans(db: sqlite3.Connection, table: str) -> int:
    """Let no row refer to one that could not be read: how many did and were changed."""
    changed = 0
    may_lack = {
        name: not needed and not place
        for _, name, _, needed, _, place in db.execute(f"PRAGMA table_info({table})")
    }
    for _, _, other, column, there, *_ in db.execute(f"PRAGMA foreign_key_list({table})"):
        action = f"UPDATE {table} SET {column}=NULL" if may_lack[column] else f"DELETE FROM {table}"
        changed += db.execute(
            f"{action} WHERE {column} IS NOT NULL AND {column} NOT IN (SELECT {there} FROM {other})"
        ).rowcount
    return changed


def _columns(old: sqlite3.Connection, db: sqlite3.Connection, table: str) -> list[str]:
    """The columns that both have: an older ledger has fewer. None when nothing can be read."""
    try:
        there = {row[1] for row in old.execute(f"PRAGMA table_info({table})")}
    except sqlite3.DatabaseError:
        return []
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] in there]


def _insert(
    db: sqlite3.Connection, table: str, columns: list[str], rows: list[tuple[object, ...]]
) -> None:
    marks = ",".join("?" * len(columns))
    into = f"{table} ({','.join(columns)})"
    db.executemany(f"INSERT OR IGNORE INTO {into} VALUES ({marks})", rows)


def _copy_range(
    old: sqlite3.Connection,
    db: sqlite3.Connection,
    table: str,
    key: str,
    columns: list[str],
    end: float,
) -> None:
    """Copy a table in the order of ``key``; what cannot be read is narrowed down in halves."""
    read = f"SELECT {key},{','.join(columns)} FROM {table} WHERE {key} BETWEEN ? AND ? ORDER BY 1"
    waiting = [(0, _LAST)]
    while waiting:
        low, high = waiting.pop()
        rows: list[tuple[object, ...]] = []
        try:
            for number, *row in old.execute(read, (low, high)):
                rows.append(tuple(row))
                # Beyond the last that was read is the first that cannot be.
                low = number + 1
                if len(rows) == _ROWS:
                    _insert(db, table, columns, rows)
                    rows = []
        except sqlite3.DatabaseError:
            middle = (low + high) // 2
            if low < high and time.monotonic() < end:
                waiting += [(middle + 1, high), (low, middle)]
        _insert(db, table, columns, rows)


def _copy_rows(
    old: sqlite3.Connection, db: sqlite3.Connection, table: str, columns: list[str]
) -> None:
    """Copy a small table from both ends, as far as it can be read."""
    rows: list[tuple[object, ...]] = []
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.DatabaseError):
            for row in old.execute(f"SELECT {','.join(columns)} FROM {table} ORDER BY 1 {order}"):
                rows.append(row)
    if rows and table == "nonce_key":
        db.execute("DELETE FROM nonce_key")
        del rows[1:]
    _insert(db, table, columns, rows)


def _copy_open(old: sqlite3.Connection, db: sqlite3.Connection) -> None:
    """Whose delivery cannot be read is in the index still: what was not seen is offered again."""
    numbers: dict[str, int] = {}
    for recipient, event in old.execute(
        "SELECT recipient, event FROM deliveries INDEXED BY deliveries_recipient WHERE open=1"
        " AND recipient > '' ORDER BY recipient, open, event"
    ):
        there = "SELECT 1 FROM deliveries WHERE event=? AND recipient=?"
        if db.execute(there, (event, recipient)).fetchone():
            continue
        if recipient not in numbers:
            last = "SELECT ifnull(max(n),0) FROM deliveries WHERE recipient=?"
            numbers[recipient] = db.execute(last, (recipient,)).fetchone()[0]
        numbers[recipient] += 1
        db.execute(
            "INSERT INTO deliveries (event, recipient, n, open, state, attempts, updated_ms)"
            " SELECT seq, ?, ?, 1, 'queued', 1, created_ms FROM events WHERE seq=?",
            (recipient, numbers[recipient], event),
        )
