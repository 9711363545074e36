"""What governance knows of runs, in ``RELAY_HOME/governance.db``: where agents' sessions meet.

Selections, baselines, leases, projects whose governance is off, and the end of each trace. Nothing
of it is in a project, so no repository brings it along. Calls wait for the disk.

A damaged file is set aside, and all begin anew: agents select and read again, which is safe, and
governance that was off is on.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from relay.core import processes
from relay.core.errors import DamagedFile, StorageError
from relay.core.files import own_folder
from relay.core.paths import Home
from relay.core.sqlite import Schema, connect, transaction

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.features.governance.trace_records import TraceHead

#: Baselines that are kept of a run, and calls that are allowed always. The oldest is forgotten: its
#: file has to be read again, and the call is asked about.
BASELINES_MAX = 10_000
#: The same of all runs together, and runs whose selections are kept; the oldest are forgotten.
BASELINES_ALL, SELECTIONS_MAX = 1_000_000, 500
#: Baselines between two looks at whether there are too many.
_SWEEP = 64
#: What a baseline says of a file that was not there; and before the hash of one that the run has
#: moved without having read it.
ABSENT, UNREAD = "", "unread:"

SCHEMA = Schema(
    title="the state of governance {path}",
    noun="a file of governance",
    application_id=0x726B6776,  # "rkgv"
    migrations=(
        (
            "CREATE TABLE selections (run TEXT PRIMARY KEY, root TEXT NOT NULL,"
            " agent TEXT NOT NULL, intent TEXT NOT NULL, at_ms INTEGER NOT NULL)",
            "CREATE TABLE baselines (seq INTEGER PRIMARY KEY AUTOINCREMENT, run TEXT NOT NULL,"
            " path TEXT NOT NULL, hash TEXT NOT NULL, UNIQUE (run, path))",
            "CREATE INDEX baselines_run ON baselines (run, seq)",
            "CREATE TABLE leases (root TEXT NOT NULL, path TEXT NOT NULL, run TEXT NOT NULL,"
            " agent TEXT NOT NULL, pid INTEGER NOT NULL, start TEXT NOT NULL,"
            " intent TEXT NOT NULL, since_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL,"
            " PRIMARY KEY (root, path)) WITHOUT ROWID",
            "CREATE INDEX leases_run ON leases (run)",
            "CREATE TABLE switches (root TEXT PRIMARY KEY, reason TEXT NOT NULL,"
            " by TEXT NOT NULL, at_ms INTEGER NOT NULL)",
            "CREATE TABLE rules (root TEXT PRIMARY KEY, hash TEXT NOT NULL)",
            "CREATE TABLE heads (root TEXT PRIMARY KEY, size INTEGER NOT NULL, hash TEXT NOT NULL)",
        ),
        (
            "CREATE TABLE always (root TEXT NOT NULL, intent TEXT NOT NULL, call TEXT NOT NULL,"
            " PRIMARY KEY (root, intent, call))",
        ),
    ),
    # A kill of relay loses nothing; a power failure ends the runs that this is about anyway.
    pragmas=("synchronous=NORMAL",),
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The intent that an agent works on."""

    run: str
    root: str
    agent: str
    intent: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Who alone may change a file, since when, and until when at most."""

    root: str
    path: str
    run: str
    agent: str
    pid: int
    #: Of the process, so that a later one of its number is not taken for it.
    start: str
    intent: str
    since_ms: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Switch:
    """That a person has turned governance off for a project."""

    reason: str
    by: str
    at_ms: int


class GovernanceStore:
    """The state of governance. From any thread; raises StorageError."""

    def __init__(self, path: str, alive: Callable[[int, str], bool]) -> None:
        self._path = path
        self._alive = alive
        self._lock = threading.Lock()
        self._db = _connect(path)
        self._file = _file(path)

    @classmethod
    def open(cls, home: Home) -> GovernanceStore:
        """Open it, making it where it is missing. Raises StorageError."""
        try:
            own_folder(home.root, linked=True)
        except OSError as error:
            raise SCHEMA.error(error, home.root) from error
        return cls(home.governance, runs_still)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._db.close()

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The file that is there now: where somebody has taken it away all begin anew, together."""
        with self._lock:
            if _file(self._path) != self._file:
                self._db.close()
                self._db = _connect(self._path)
                self._file = _file(self._path)
            try:
                with SCHEMA.errors(self._path):
                    yield self._db
            except DamagedFile:
                if _file(self._path) == self._file:
                    _set_aside(self._path)  # the next call begins anew
                raise

    # -- selections

    def select(self, chosen: Selection) -> None:
        """Note what an agent works on from now on."""
        with self._using() as db, transaction(db):
            db.execute(
                "INSERT OR REPLACE INTO selections VALUES (?,?,?,?,?)",
                (chosen.run, chosen.root, chosen.agent, chosen.intent, chosen.at_ms),
            )
            db.execute(
                "DELETE FROM selections WHERE at_ms < (SELECT at_ms FROM selections"
                " ORDER BY at_ms DESC LIMIT 1 OFFSET ?)",
                (SELECTIONS_MAX - 1,),
            )

    def forget(self, run: str) -> None:
        """Forget a run that has ended."""
        with self._using() as db, transaction(db):
            for table in ("selections", "baselines", "leases"):
                db.execute(f"DELETE FROM {table} WHERE run=?", (run,))

    def forget_read(self, run: str) -> None:
        """Forget what a run has read."""
        with self._using() as db:
            db.execute("DELETE FROM baselines WHERE run=?", (run,))

    def unselect(self, run: str) -> None:
        """Forget what it works on."""
        with self._using() as db:
            db.execute("DELETE FROM selections WHERE run=?", (run,))

    def selection(self, run: str) -> Selection | None:
        """What it works on."""
        with self._using() as db:
            row = db.execute("SELECT * FROM selections WHERE run=?", (run,)).fetchone()
        return Selection(*row) if row else None

    def selections(self, root: str) -> list[Selection]:
        """What was selected in a project, the oldest first; also by runs that have ended."""
        query = "SELECT * FROM selections WHERE root=? ORDER BY at_ms"
        with self._using() as db:
            return [Selection(*row) for row in db.execute(query, (root,))]

    # -- baselines

    def note(self, run: str, hashes: Mapping[str, str]) -> None:
        """Note the hashes of files as the run has just read or written them."""
        if not hashes:
            return
        rows = [(run, path, hash_) for path, hash_ in hashes.items()]
        add = "INSERT OR REPLACE INTO baselines (run, path, hash) VALUES (?,?,?)"
        with self._using() as db, transaction(db):
            db.executemany(add, rows)
            newest = db.execute("SELECT max(seq) FROM baselines").fetchone()[0]
            if newest % _SWEEP < len(rows):
                db.execute("DELETE FROM baselines WHERE seq <= ?", (newest - BASELINES_ALL,))
                db.execute(
                    "DELETE FROM baselines WHERE run=? AND seq <= (SELECT seq FROM baselines"
                    " WHERE run=? ORDER BY seq DESC LIMIT 1 OFFSET ?)",
                    (run, run, BASELINES_MAX),
                )

    def baselines(self, run: str, paths: Iterable[str]) -> dict[str, str]:
        """The hashes of those of ``paths`` that the run has read."""
        found = {}
        with self._using() as db:
            for path in paths:
                query = "SELECT hash FROM baselines WHERE run=? AND path=?"
                row = db.execute(query, (run, path)).fetchone()
                if row:
                    found[path] = row[0]
        return found

    # -- leases

    def take(
        self, wanted: Sequence[Lease], now_ms: int, *, force: bool = False
    ) -> tuple[list[Lease], list[str]]:
        """Take all of ``wanted`` or none: (those of others that are in the way, what is new).
        ``force``: nothing is in the way.

        One's own last longer by it. Those of the dead, and those that are over, are taken over.
        """
        with self._using() as db, transaction(db):
            others, fresh = [], []
            for lease in wanted:
                row = db.execute(
                    "SELECT * FROM leases WHERE root=? AND path=? AND until_ms>?",
                    (lease.root, lease.path, now_ms),
                ).fetchone()
                held = Lease(*row) if row else None
                if held is None or held.run != lease.run:
                    fresh.append(lease.path)
                    if held is not None and self._alive(held.pid, held.start):
                        others.append(held)
            if others and not force:
                return others, []
            db.executemany(
                "INSERT INTO leases VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (root, path) DO UPDATE"
                " SET since_ms=iif(run=excluded.run, since_ms, excluded.since_ms),"
                " run=excluded.run, agent=excluded.agent, pid=excluded.pid, start=excluded.start,"
                " intent=excluded.intent, until_ms=excluded.until_ms",
                [tuple(getattr(lease, name) for name in Lease.__slots__) for lease in wanted],
            )
            return others, fresh

    def release(self, run: str, paths: Iterable[str] | None = None) -> None:
        """Give back the leases of a run: all, or those of ``paths``."""
        with self._using() as db, transaction(db):
            if paths is None:
                db.execute("DELETE FROM leases WHERE run=?", (run,))
            else:
                rows = [(run, path) for path in paths]
                db.executemany("DELETE FROM leases WHERE run=? AND path=?", rows)

    def expire(self, run: str, now_ms: int, known_ms: int) -> None:
        """Give back the leases of a run, and keep for ``known_ms`` that it had them last."""
        with self._using() as db, transaction(db):
            query = "UPDATE leases SET until_ms=min(until_ms, ?) WHERE run=?"
            db.execute(query, (now_ms, run))
            db.execute("DELETE FROM leases WHERE until_ms<?", (now_ms - known_ms,))

    def last(self, root: str, paths: Iterable[str]) -> list[Lease]:
        """Who had each of ``paths`` last, or has it."""
        query = "SELECT * FROM leases WHERE root=? AND path=?"
        with self._using() as db:
            return [Lease(*row) for path in paths for row in db.execute(query, (root, path))]

    def free(self, leases: Iterable[Lease], now_ms: int) -> list[Lease]:
        """Those of ``leases`` whose runs do not have the file any more."""
        query = "SELECT 1 FROM leases WHERE root=? AND path=? AND run=? AND until_ms>?"
        found = []
        with self._using() as db:
            for one in leases:
                row = db.execute(query, (one.root, one.path, one.run, now_ms)).fetchone()
                if row is None or not self._alive(one.pid, one.start):
                    found.append(one)
        return found

    def held(self, run: str) -> list[Lease]:
        """The leases that a run has taken and not given back, also those that are over."""
        with self._using() as db:
            query = "SELECT * FROM leases WHERE run=? ORDER BY path"
            return [Lease(*row) for row in db.execute(query, (run,))]

    def leases(self, root: str, now_ms: int) -> list[Lease]:
        """The leases that hold in a project now."""
        query = "SELECT * FROM leases WHERE root=? AND until_ms>? ORDER BY path"
        with self._using() as db:
            found = [Lease(*row) for row in db.execute(query, (root, now_ms))]
        return [lease for lease in found if self._alive(lease.pid, lease.start)]

    # -- what the person allows always

    def allow_always(self, root: str, intent: str, call: str) -> None:
        """Note that the person here allows an intent of a project a call always. The oldest are
        forgotten, and asked about again."""
        with self._using() as db, transaction(db):
            db.execute("INSERT OR REPLACE INTO always VALUES (?,?,?)", (root, intent, call))
            query = "SELECT max(rowid) - ? FROM always"
            db.execute(f"DELETE FROM always WHERE rowid <= ({query})", (BASELINES_MAX,))

    def always(self, root: str, intent: str, call: str) -> bool:
        """Whether they do, whatever a file says."""
        query = "SELECT 1 FROM always WHERE root=? AND intent=? AND call=?"
        with self._using() as db:
            return db.execute(query, (root, intent, call)).fetchone() is not None

    # -- governance turned off

    def switch_off(self, root: str, reason: str, by: str, now_ms: int) -> None:
        """Note that a person has turned governance off for a project."""
        with self._using() as db:
            row = (root, reason, by, now_ms)
            db.execute("INSERT OR REPLACE INTO switches VALUES (?,?,?,?)", row)

    def switch_on(self, root: str) -> None:
        """And on again."""
        with self._using() as db:
            db.execute("DELETE FROM switches WHERE root=?", (root,))

    def switch(self, root: str) -> Switch | None:
        """That it is off; None where it is on."""
        query = "SELECT reason, by, at_ms FROM switches WHERE root=?"
        with self._using() as db:
            row = db.execute(query, (root,)).fetchone()
        return Switch(*row) if row else None

    # -- the rules and the ends of traces

    def rules_changed(self, root: str, hash_: str) -> bool:
        """Note the rules of a project as somebody sees them; whether they were others before."""
        with self._using() as db, transaction(db):
            row = db.execute("SELECT hash FROM rules WHERE root=?", (root,)).fetchone()
            if row and row[0] == hash_:
                return False
            db.execute("INSERT OR REPLACE INTO rules VALUES (?,?)", (root, hash_))
            return row is not None

    def head(self, root: str) -> TraceHead | None:
        """The end of a project's trace as it was last acknowledged."""
        query = "SELECT size, hash FROM heads WHERE root=?"
        with self._using() as db:
            row = db.execute(query, (root,)).fetchone()
        from relay.features.governance.trace_records import TraceHead

        return TraceHead(*row) if row else None

    def set_head(self, root: str, head: TraceHead) -> None:
        """Note the end of a project's trace."""
        with self._using() as db:
            row = (root, head.size, head.hash)
            db.execute("INSERT OR REPLACE INTO heads VALUES (?,?,?)", row)


def _connect(path: str) -> sqlite3.Connection:
    try:
        return connect(path, SCHEMA)
    except StorageError as error:
        if not isinstance(error, DamagedFile) and "other_file" not in error.details:
            raise
        _set_aside(path)
        return connect(path, SCHEMA)


def _set_aside(path: str) -> None:
    """Keep a damaged file under another name."""
    aside = f"{path}.damaged-{time.time_ns() // 1_000_000}"
    for end in ("", "-wal", "-shm"):
        with suppress(OSError):
            os.rename(path + end, aside + end)


def _file(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def runs_still(pid: int, start: str) -> bool:
    """Whether the process ``pid`` that began at ``start`` is still there."""
    found = processes.read_process(pid)
    return found is not None and found.start == start


def start_of(pid: int) -> str:
    """When the process began, as the kernel tells it; "" where it has ended."""
    found = processes.read_process(pid)
    return "" if found is None else found.start
