"""The store of memories: one SQLite file for each place, in one folder.

What is here is the truth. Vectors and indexes (see relay.features.memory.indexes) only help to
find it.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

from relay.core.errors import NotFound, StorageError
from relay.features.memory import rules
from relay.features.memory.local.database import PlaceDatabase, file_name, is_ours
from relay.features.memory.local.search import Meaning, Searcher
from relay.features.memory.records import (
    Hit,
    Memory,
    Outcome,
    Place,
    Restored,
    Saved,
    Stats,
    check_memory,
    check_meta,
    check_text,
)
from relay.features.memory.rules import new_id as random_id
from relay.features.memory.rules import readings

#: Files that are open at once; the one that was used least recently is closed for another.
OPEN_MAX = 16
_BATCH = 500
#: Named here, because the store has a method ``list``.
Errors = list[StorageError]
Hits = list[Hit]
Memories = list[Memory]
_SUGGESTED_FROM = 500


class LocalStore:
    """Memories in SQLite files in ``folder``, which is made.

    Any number of processes may use the same folder. ``meaning`` is closed with the store. A save
    does not wait for it: what it does not know yet is found by its words, and is taken over in
    ``catch_up`` or at the next search. All times are milliseconds since the epoch. Whatever is
    wrong with a request is a UsageError, whatever is wrong with a file a StorageError; then
    nothing was changed.
    """

    def __init__(self, folder: str, meaning: Meaning | None = None) -> None:
        self.folder = folder
        self.meaning = meaning
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the folder of memories {folder}: {error.strerror}",
                hint="make its parent writable, or set RELAY_HOME to another directory",
            ) from error
        self._databases: OrderedDict[str, PlaceDatabase] = OrderedDict()
        self._search = Searcher(meaning)

    def save(
        self,
        text: str,
        place: Place,
        *,
        agent: str | None,
        session: str | None,
        supersedes: str | None = None,
        meta: Mapping[str, object] | None = None,
        now_ms: int,
        new_id: str | None = None,
    ) -> Saved:
        """Remember ``text``; it is durable before this returns.

        What is there already in ``place``, exactly or nearly (see
        relay.features.memory.rules), is updated instead. ``supersedes`` (an id, or a
        unique prefix of one) is what this one replaces: it stays, but is not found by a search any
        more. Raises NotFound when that is unknown. ``new_id``: the id of a memory that is new."""
        text = check_text(text)
        check_meta(meta)
        old = self.get(supersedes).id if supersedes is not None else None
        database = self.database(place)
        if self.meaning is not None:
            self.meaning.enrol(database)
        id_ = new_id or random_id()
        fresh = check_memory(
            Memory(id_, text, place, agent, session, now_ms, now_ms, old, dict(meta or {}))
        )
        with database.writing():
            known = database.alike(text, old)
            if known is None:
                if not database.insert(fresh):
                    raise StorageError(f"another memory has the id {id_}", hint="save it again")
                return Saved(fresh, Outcome.NEW)
            row, there = known
            saved = rules.updated(there, fresh, meta is not None)
            if saved.outcome is Outcome.SAME:
                database.touch(row, now_ms)
            else:
                database.replace(row, saved.memory)
            return saved

    def search(self, query: str, places: Sequence[Place], limit: int) -> Hits:
        """The best for ``query``, plain text, in ``places`` (the most specific first), the best
        first. No superseded memories. For the scores see relay.features.memory.local.search."""
        limit = rules.check_limit(limit)
        rules.check_query(query)
        return self._search.search(query, list(dict.fromkeys(places)), self._open, limit)

    def get(self, id_: str) -> Memory:
        """The memory with this id, or whose id begins so, in whatever place.

        Raises NotFound, with what is near in its hint; UsageError of the code ``ambiguous``, with
        ``matches`` (memories as JSON) in its details, when several ids begin so.
        """
        damage: StorageError | None = None
        for wanted in readings(id_):
            found: Memories = []
            for path in self._paths():
                try:
                    if (database := self._database(path)) is not None:
                        found += database.starting_with(wanted, rules.MATCHES_MAX)
                except StorageError as error:
                    damage = damage or error  # it must not hide what the other files hold
            exact = [memory for memory in found if memory.id == wanted]
            if len(exact or found) == 1:
                return (exact or found)[0]
            if found:
                raise rules.ambiguous(id_, exact or found)
        raise damage or self._unknown(id_)

    def forget(self, id_: str) -> Memory:
        """Remove it, and return it. Errors as for ``get``.

        Nothing of the text is left: not in the table, the index, free pages or the log.
        """
        memory = self.get(id_)
        database = self.database(memory.place)
        with database.writing():
            gone = database.remove(memory.id)
            database.relink(memory.id, memory.supersedes)
        if not gone:
            raise self._unknown(id_)
        for other in self.databases():
            with suppress(StorageError):  # it is damaged inside: the memory is gone all the same
                if memory.id in other.superseded():
                    with other.writing():
                        other.relink(memory.id, memory.supersedes)
        self.database(memory.place).purge()  # to look at the others may have closed it
        return memory

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        """The newest first, by ``updated_ms`` and then by id, superseded ones too.

        At most backend_rules.LIMIT_MAX. Only those before ``before_ms`` when it is given, and of
        that very time those whose id is less than ``before_id``: with both from the last of a page
        the next page begins.
        """
        limit = rules.check_limit(limit)
        found = [
            memory
            for place in dict.fromkeys(places)
            if (database := self._open(place))
            for memory in database.newest(limit, before_ms, before_id)
        ]
        return sorted(found, key=lambda memory: (memory.updated_ms, memory.id))[: -limit - 1 : -1]

    def export(self, *, after: tuple[Place, str] | None = None) -> Iterator[Memory]:
        """Every memory, superseded ones too, for ``restore``.

        File after file by their names, in each by id: saves and forgets do not change this order.
        ``after``: only what stands behind this place and id there, be it forgotten meanwhile.
        """
        first, last_id = ("", "") if after is None else (self._path(after[0]), after[1])
        for path in self._paths():
            if path < first:
                continue
            at = last_id if path == first else ""
            # Opened again for each page: meanwhile others may have taken its place.
            while (database := self._database(path)) is not None and (page := database.page(at)):
                yield from page
                at = page[-1].id

    def restore(self, memories: Iterable[Memory]) -> Restored:
        """Store memories as they are; ids that are there already stay as they are.

        In batches, each of which is durable before the next one is read.
        """
        counts: Counter[str] = Counter()
        remaining = iter(memories)
        while batch := [check_memory(memory) for memory in islice(remaining, _BATCH)]:
            known: dict[str, Memory] = {}
            for database in self.databases():
                known |= database.by_ids(memory.id for memory in batch)
            by_place: dict[Place, Memories] = {}
            for memory in rules.not_there(batch, known, counts):
                by_place.setdefault(memory.place, []).append(memory)
            for place, new in by_place.items():
                database = self.database(place)
                with database.writing():
                    added = sum(1 for memory in new if database.insert(memory))
                counts["new"] += added
                counts["conflicting"] += len(new) - added
        return Restored(**counts)

    def stats(self) -> Stats:
        """``size`` counts the files and their logs."""
        counts: dict[Place, int] = {}
        pending = 0
        damaged: Errors = []
        for database in self.databases(damaged):
            try:
                counts[database.place] = database.count()
                pending += self.meaning.pending(database) if self.meaning is not None else 0
            except StorageError as error:
                damaged.append(error)
        size = sum(_size(path + tail) for path in self._paths() for tail in ("", "-wal", "-shm"))
        meaning = self.meaning
        problem = damaged[0].message if damaged else meaning.problem if meaning is not None else ""
        name = None if meaning is None else meaning.name
        return Stats(self._search.tier, counts, size, name, pending, problem)

    def close(self) -> None:
        """Close every file, and the meaning."""
        while self._databases:
            self._databases.popitem()[1].close()
        if self.meaning is not None:
            self.meaning.close()

    def catch_up(self, limit: int) -> int:
        """Let the meaning take over at most ``limit`` changes; how many it does not know then.

        Called when no request waits.
        """
        left = 0
        if self.meaning is not None:
            for database in self.databases():
                if limit > 0:
                    limit -= self.meaning.catch_up(database, limit)
                left += self.meaning.pending(database)
        return left

    # -- files

    def _path(self, place: Place) -> str:
        return os.path.join(self.folder, file_name(place))

    def _paths(self) -> Sequence[str]:
        try:
            names = sorted(name for name in os.listdir(self.folder) if is_ours(name))
        except OSError as error:
            raise StorageError(
                f"cannot read the folder of memories {self.folder}: {error.strerror}",
                hint="check that it is there and readable",
            ) from error
        return [os.path.join(self.folder, name) for name in names]

    def _database(self, path: str, place: Place | None = None) -> PlaceDatabase | None:
        database = self._databases.get(path)
        if database is not None and not database.moved():
            self._databases.move_to_end(path)
            return database
        if database is not None:  # somebody put another file there, or took it away
            self._close(path)
        database = PlaceDatabase.open(path, place)
        if database is not None:
            self._databases[path] = database
            while len(self._databases) > OPEN_MAX:
                self._close(next(iter(self._databases)))
        return database

    def _close(self, path: str) -> None:
        database = self._databases.pop(path)
        if self.meaning is not None:
            self.meaning.drop(database)
        database.close()

    def database(self, place: Place) -> PlaceDatabase:
        """The file of ``place``, which is made."""
        database = self._database(self._path(place), place)
        assert database is not None
        return database

    def _open(self, place: Place) -> PlaceDatabase | None:
        database = self._database(self._path(place))
        if database is not None and database.place != place:
            raise StorageError(
                f"{database.path} holds the memories of another place: {database.place}",
                hint="move the file back to where it was; relay starts a new one",
            )
        return database

    def databases(self, damaged: Errors | None = None) -> Iterator[PlaceDatabase]:
        """Every file that can be opened; what is wrong with the others goes into ``damaged``."""
        for path in self._paths():
            try:
                database = self._database(path)
            except StorageError as error:
                if damaged is not None:
                    damaged.append(error)
                continue
            if database is not None:
                yield database

    # -- parts of the above

    def _unknown(self, id_: str) -> NotFound:
        newest = [
            known for database in self.databases() for known in database.newest_ids(_SUGGESTED_FROM)
        ]
        return rules.unknown(id_, newest[: rules.SUGGESTED_FROM])


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
