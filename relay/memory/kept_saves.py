"""Saves that wait for a store that cannot be reached: an SQLite file for each store.

A save is on the disk when ``add`` returns, and leaves only after the store has it, or when somebody
forgets it. What leaves is overwritten with zeros, in the log too.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from relay.core import sqlite
from relay.core.errors import RelayError
from relay.core.files import make_private_folder
from relay.memory.backend import StoreUnavailable
from relay.memory.records import Memory, Place, Scope

#: Bounds of what waits: beyond them a save is refused.
SAVES_MAX = 10_000
SIZE_MAX = 64 * 1024 * 1024
#: Ids that were told for what the store had under another one; the oldest are forgotten.
ALIASES_MAX = 10_000
#: Seconds to wait for the process that has the file.
OWNER_WAIT = 10.0
#: Bytes of a store's title.
_TITLE_MAX = 4096
_COLUMNS = "id, text, scope, owner, agent, session, supersedes, meta, now_ms, tries, refused"

_MIGRATION = (
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
SCHEMA = sqlite.Schema(
    title="the saves kept in {path}",
    noun="a file of kept saves",
    application_id=0x726B7074,  # "rkpt"
    migrations=(_MIGRATION,),
    pragmas=("secure_delete=ON",),  # what leaves is overwritten with zeros
    busy=10.0,
)


@dataclass(frozen=True, slots=True)
class KeptSave:
    """One save as it was asked for."""

    id: str
    text: str
    place: Place
    agent: str | None
    session: str | None
    supersedes: str | None
    meta: dict[str, object] | None  # None: none was given, which is not the same as {}
    now_ms: int
    tries: int = 0  # failures of the store at it
    refused: str | None = None  # why the store will never take it

    def memory(self) -> Memory:
        """What it will be, unless the store has it already."""
        return Memory(
            self.id,
            self.text,
            self.place,
            self.agent,
            self.session,
            self.now_ms,
            self.now_ms,
            self.supersedes,
            dict(self.meta or {}),
        )


class KeptSaves:
    """The saves that wait, oldest first. Raises StorageError; only one process has it open.

    Some seconds are given to a former process that is just ending, then
    StoreUnavailable is raised.
    """

    def __init__(
        self,
        path: str,
        *,
        title: str = "",
        saves_max: int = SAVES_MAX,
        size_max: int = SIZE_MAX,
    ) -> None:
        """``title``: what people call the store; it stays beside the file, see ``title_of``."""
        self.path = path
        self._saves_max = saves_max
        self._size_max = size_max
        self._lock = own(path)
        try:
            self._entitle(title)
            self._db = sqlite.connect(path, SCHEMA)
            with SCHEMA.errors(path):
                count, size = self._db.execute(
                    "SELECT count(*), coalesce(sum(length(CAST(text AS BLOB))"
                    " + coalesce(length(CAST(meta AS BLOB)), 0)), 0) FROM saves"
                ).fetchone()
            self.purge()  # who had it before may have been killed
        except BaseException:
            os.close(self._lock)
            raise
        self._count: int = count
        self._size: int = size

    def add(self, save: KeptSave) -> None:
        """Keep it. Raises RelayError of the code ``full`` when no more may wait."""
        size = _size(save)
        if self._count >= self._saves_max or self._size + size > self._size_max:
            raise RelayError(
                f"{self._count} saves wait for the store already, and no more are kept:"
                " this one was not saved",
                hint="start the store's server, then save it again",
                code="full",
            )
        meta = None if save.meta is None else json.dumps(save.meta, ensure_ascii=False)
        values = (
            *(save.id, save.text, save.place.scope.value, save.place.owner, save.agent),
            *(save.session, save.supersedes, meta, save.now_ms, save.tries, save.refused),
        )
        with self._writing():
            self._db.execute(
                f"INSERT INTO saves ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", values
            )
        self._count += 1
        self._size += size

    def first(self) -> KeptSave | None:
        """The oldest that the store has not refused."""
        found = self._rows("WHERE refused IS NULL ORDER BY seq LIMIT 1")
        return found[0] if found else None

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many the store has refused."""
        with SCHEMA.errors(self.path):
            waiting, refused = self._db.execute(
                "SELECT count(*) FILTER (WHERE refused IS NULL), count(refused) FROM saves"
            ).fetchone()
        return waiting, refused

    def ids(self) -> list[str]:
        """Of all that are here, refused ones too, the oldest first."""
        with SCHEMA.errors(self.path):
            return [id_ for (id_,) in self._db.execute("SELECT id FROM saves ORDER BY seq")]

    def last_refused(self) -> KeptSave | None:
        """The newest that the store has refused."""
        found = self._rows("WHERE refused NOT NULL ORDER BY seq DESC LIMIT 1")
        return found[0] if found else None

    def starting_with(self, prefix: str, limit: int) -> list[KeptSave]:
        """Those whose ids begin so, refused ones too; the one with just this id alone."""
        exact = self._rows("WHERE id=?", prefix)
        return exact or self._rows(
            "WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", prefix, prefix + "\U0010ffff", limit
        )

    def alias(self, told: str) -> str | None:
        """The store's id for what was told ``told`` when it was kept."""
        with SCHEMA.errors(self.path):
            row = self._db.execute("SELECT id FROM aliases WHERE told=?", (told,)).fetchone()
        return None if row is None else str(row[0])

    def applied(self, save: KeptSave, id_: str) -> None:
        """The store has it, as ``id_``."""
        with self._writing():
            self._db.execute("DELETE FROM saves WHERE id=?", (save.id,))
            if id_ != save.id:
                self._db.execute(
                    "INSERT OR REPLACE INTO aliases (told, id) VALUES (?,?)", (save.id, id_)
                )
                self._db.execute(
                    "DELETE FROM aliases WHERE seq <= (SELECT max(seq) FROM aliases) - ?",
                    (ALIASES_MAX,),
                )
        self._gone(save)

    def trying(self, save: KeptSave) -> None:
        """The store is about to get it; outlives this process, though not the machine's power."""
        self._set_tries(save.id, save.tries + 1)

    def untried(self, save: KeptSave) -> None:
        """It came to nothing, and was not its fault."""
        self._set_tries(save.id, save.tries)

    def refuse(self, save: KeptSave, why: str) -> None:
        """The store will never take it. It stays, and is tried no more.

        What supersedes it supersedes what it would have, as when one forgets.
        """
        with self._writing():
            self._db.execute("UPDATE saves SET refused=? WHERE id=?", (why, save.id))
            self._relink(save)

    def remove(self, save: KeptSave) -> None:
        """Forget it: nothing of its text is left. The same that was said again goes with it, for in
        the store they were one; but not what another save replaces, nor what is said anew then."""
        same = self._rows(
            "WHERE text=? AND scope=? AND owner=?"
            " AND id NOT IN (SELECT supersedes FROM saves WHERE supersedes NOT NULL)",
            *(save.text, save.place.scope.value, save.place.owner),
        )
        gone = same if any(one.id == save.id for one in same) else [save]
        with self._writing():
            for one in gone:
                self._db.execute("DELETE FROM saves WHERE id=?", (one.id,))
                self._relink(one)
        for one in gone:
            self._gone(one)
        self.purge()

    def purge(self) -> None:
        """Empty the log: what has left stands in it still."""
        with SCHEMA.errors(self.path):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def close(self) -> None:
        """Close the file, and let the next process have it."""
        if self._lock < 0:
            return
        try:
            with SCHEMA.errors(self.path):
                self._db.close()
        finally:
            os.close(self._lock)
            self._lock = -1

    # -- parts of the above

    def _entitle(self, title: str) -> None:
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, title.encode(errors="replace")[:_TITLE_MAX], 0)
        except OSError as error:
            raise SCHEMA.error(error, self.path) from error

    def _set_tries(self, id_: str, tries: int) -> None:
        with SCHEMA.errors(self.path):
            self._db.execute("PRAGMA synchronous=NORMAL")
            try:
                self._db.execute("UPDATE saves SET tries=? WHERE id=?", (tries, id_))
            finally:
                self._db.execute("PRAGMA synchronous=FULL")

    def _relink(self, save: KeptSave) -> None:
        self._db.execute(
            "UPDATE saves SET supersedes=? WHERE supersedes=?", (save.supersedes, save.id)
        )

    def _gone(self, save: KeptSave) -> None:
        self._count -= 1
        self._size -= _size(save)

    def _rows(self, where: str, *values: object) -> list[KeptSave]:
        with SCHEMA.errors(self.path):
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM saves {where}", values).fetchall()
        return [_kept_save(row) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, on the disk at its end."""
        with SCHEMA.errors(self.path), sqlite.transaction(self._db):
            yield


def own(path: str, clock: Callable[[], float] = time.monotonic) -> int:
    """The descriptor of the lock of ``path``, which makes this process its owner.

    Of the POSIX kind: a child that somebody forks does not have it.
    """
    try:
        make_private_folder(os.path.dirname(path))
        lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise SCHEMA.error(error, path) from error
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
            raise SCHEMA.error(error, path) from error


def path_of(folder: str, key: str) -> str:
    """The file of the store ``key`` in the folder ``folder`` of a RELAY_HOME's memory."""
    return os.path.join(folder, "kept", f"{key}.db")


def title_of(folder: str, key: str) -> str:
    """What people call the store ``key``; "" where that is not known."""
    try:
        with open(path_of(folder, key) + ".lock", "rb") as file:
            return file.read(_TITLE_MAX).decode(errors="replace")
    except OSError:
        return ""


def waiting_in(folder: str) -> dict[str, tuple[int, int]]:
    """Count the saves that wait and that were refused, by the key of their store.

    What cannot be read counts as nothing: opening it says why.
    """
    kept = os.path.join(folder, "kept")
    try:
        names = sorted(name for name in os.listdir(kept) if name.endswith(".db"))
    except OSError:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        try:
            with closing(sqlite.connect_read_only(os.path.join(kept, name), SCHEMA)) as db:
                waiting, refused = db.execute(
                    "SELECT count(*) FILTER (WHERE refused IS NULL), count(refused) FROM saves"
                ).fetchone()
        except sqlite3.Error:
            continue
        if waiting or refused:
            found[name.removesuffix(".db")] = (waiting, refused)
    return found


def _size(save: KeptSave) -> int:
    """Bytes, as they are counted when the file is opened."""
    meta = "" if save.meta is None else json.dumps(save.meta, ensure_ascii=False)
    return len(save.text.encode()) + len(meta.encode())


def _kept_save(row: tuple[object, ...]) -> KeptSave:
    id_, text, scope, owner, agent, session, supersedes, meta, now_ms, tries, refused = row
    return KeptSave(
        str(id_),
        str(text),
        Place(Scope(str(scope)), str(owner)),
        _optional(agent),
        _optional(session),
        _optional(supersedes),
        None if meta is None else json.loads(str(meta)),
        int(str(now_ms)),
        int(str(tries)),
        _optional(refused),
    )


def _optional(value: object) -> str | None:
    return None if value is None else str(value)
