"""Saves that wait for a store that cannot be reached: one SQLite file for each store.

A save is on the disk when ``add`` returns, and leaves only after the store has it, or when somebody
forgets it. What leaves is overwritten with zeros, in the log too.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import quote

from relay.core.errors import RelayError
from relay.memory import outbox_file
from relay.memory.records import Memory, Place, Scope

#: Bounds of what waits: beyond them a save is refused.
SAVES_MAX = 10_000
SIZE_MAX = 64 * 1024 * 1024
#: Ids that were told for what the store had under another one; the oldest are forgotten.
ALIASES_MAX = 10_000
#: Bytes of a store's title.
_TITLE_MAX = 4096
_COLUMNS = "id, text, scope, owner, agent, session, supersedes, meta, now_ms, tries, refused"


@dataclass(frozen=True, slots=True)
class Waiting:
    """One save as it was asked for. ``meta`` None: none was given, which is not the same as {}.

    ``tries``: how often the store failed at it. ``refused``: why the store will never take it.
    """

    id: str
    text: str
    place: Place
    agent: str | None
    session: str | None
    supersedes: str | None
    meta: dict[str, object] | None
    now_ms: int
    tries: int = 0
    refused: str | None = None

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


class Outbox:
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
        self._lock = outbox_file.own(path)
        try:
            self._entitle(title)
            self._db = outbox_file.opened(path)
            with self._guarded():
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

    def add(self, save: Waiting) -> None:
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

    def first(self) -> Waiting | None:
        """The oldest that the store has not refused."""
        found = self._rows("WHERE refused IS NULL ORDER BY seq LIMIT 1")
        return found[0] if found else None

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many the store has refused."""
        with self._guarded():
            waiting, refused = self._db.execute(
                "SELECT count(*) FILTER (WHERE refused IS NULL), count(refused) FROM saves"
            ).fetchone()
        return waiting, refused

    def ids(self) -> list[str]:
        """Of all that are here, refused ones too, the oldest first."""
        with self._guarded():
            return [id_ for (id_,) in self._db.execute("SELECT id FROM saves ORDER BY seq")]

    def last_refused(self) -> Waiting | None:
        """The newest that the store has refused."""
        found = self._rows("WHERE refused NOT NULL ORDER BY seq DESC LIMIT 1")
        return found[0] if found else None

    def starting_with(self, prefix: str, limit: int) -> list[Waiting]:
        """Those whose ids begin so, refused ones too; the one with just this id alone."""
        exact = self._rows("WHERE id=?", prefix)
        return exact or self._rows(
            "WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", prefix, prefix + "\U0010ffff", limit
        )

    def alias(self, told: str) -> str | None:
        """The store's id for what was told ``told`` when it was kept."""
        with self._guarded():
            row = self._db.execute("SELECT id FROM aliases WHERE told=?", (told,)).fetchone()
        return None if row is None else str(row[0])

    def applied(self, save: Waiting, id_: str) -> None:
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

    def trying(self, save: Waiting) -> None:
        """The store is about to get it; outlives this process, though not the machine's power."""
        self._set_tries(save.id, save.tries + 1)

    def untried(self, save: Waiting) -> None:
        """It came to nothing, and was not its fault."""
        self._set_tries(save.id, save.tries)

    def refuse(self, save: Waiting, why: str) -> None:
        """The store will never take it. It stays, and is tried no more.

        What supersedes it supersedes what it would have, as when one forgets.
        """
        with self._writing():
            self._db.execute("UPDATE saves SET refused=? WHERE id=?", (why, save.id))
            self._relink(save)

    def remove(self, save: Waiting) -> None:
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
        with self._guarded():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def close(self) -> None:
        """Close the file, and let the next process have it."""
        if self._lock < 0:
            return
        try:
            with self._guarded():
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
            raise outbox_file.storage_error(self.path, error) from error

    def _set_tries(self, id_: str, tries: int) -> None:
        with self._guarded():
            self._db.execute("PRAGMA synchronous=NORMAL")
            try:
                self._db.execute("UPDATE saves SET tries=? WHERE id=?", (tries, id_))
            finally:
                self._db.execute("PRAGMA synchronous=FULL")

    def _relink(self, save: Waiting) -> None:
        self._db.execute(
            "UPDATE saves SET supersedes=? WHERE supersedes=?", (save.supersedes, save.id)
        )

    def _gone(self, save: Waiting) -> None:
        self._count -= 1
        self._size -= _size(save)

    def _rows(self, where: str, *values: object) -> list[Waiting]:
        with self._guarded():
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM saves {where}", values).fetchall()
        return [_waiting(row) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction, on the disk at its end."""
        with self._guarded():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise outbox_file.storage_error(self.path, error) from error


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
    """How many saves wait and were refused, by the key of their store; whoever has it open.

    What cannot be read counts as nothing: to say why is for whoever opens it.
    """
    kept = os.path.join(folder, "kept")
    try:
        names = sorted(name for name in os.listdir(kept) if name.endswith(".db"))
    except OSError:
        return {}
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        path = os.fsencode(os.path.join(kept, name))  # a folder's name may be no Unicode
        address = f"file:{quote(path)}?mode=ro"
        try:
            with closing(sqlite3.connect(address, uri=True, timeout=1.0)) as db:
                waiting, refused = db.execute(
                    "SELECT count(*) FILTER (WHERE refused IS NULL), count(refused) FROM saves"
                ).fetchone()
        except sqlite3.Error:
            continue
        if waiting or refused:
            found[name.removesuffix(".db")] = (waiting, refused)
    return found


def _size(save: Waiting) -> int:
    """Bytes, as they are counted when the file is opened."""
    meta = "" if save.meta is None else json.dumps(save.meta, ensure_ascii=False)
    return len(save.text.encode()) + len(meta.encode())


def _waiting(row: tuple[object, ...]) -> Waiting:
    id_, text, scope, owner, agent, session, supersedes, meta, now_ms, tries, refused = row
    return Waiting(
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
