"""Indexes: stores of vectors behind the files, which find memories by their meaning.

The files are the truth. Each says for every index which of its memories that holds, under which
key; the difference is what has to be added and deleted. An index is asked for ids only, and what
the files do not have is not shown: so a memory that is forgotten never comes back from one, and one
that is away, slow or empty costs nothing but the search by meaning.

The indexes that relay knows are the modules here; each is imported when it is configured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

from relay.core.errors import ConfigError, RelayError
from relay.core.files import make_private_folder, write_atomically
from relay.directive.redact import redact
from relay.features.memory.local.database import file_name
from relay.features.memory.ops import IndexFilled
from relay.features.memory.records import Memory, Place, Scope

if TYPE_CHECKING:
    from relay.features.memory.local.database import PlaceDatabase
    from relay.features.memory.local.local_store import LocalStore


#: Seconds until an index that failed is tried again; twice as long each time.
PAUSE_MIN, PAUSE_MAX = 5.0, 300.0
#: The best of one place that an index is asked for.
WANTED = 100
#: Memories of an earlier relay that are taken over at a time.
_TAKEN = 500
_REASON_MAX = 300  # characters of somebody else's words
_PREFIX = "relay:"


class Index(Protocol):
    """A store of vectors. Whatever it raises means that it cannot do it now."""

    batch: int  # memories in one ``add``
    shared: bool  # others may write to it

    def former(self) -> Iterator[tuple[str, Memory]]:
        """The memories that a relay before this one kept here alone, with their keys."""

    def start(self) -> bool:
        """Make it ready for what follows; whether it is new, so that it holds nothing."""

    def add(self, memories: Sequence[Memory]) -> list[str]:
        """Add at most ``batch``; the key of each, by which it is deleted."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete these; a key that is not there is no mistake."""

    def search(self, query: str, place: Place, limit: int) -> Mapping[str, float]:
        """Id -> likeness, at most 1, of the best of one place. One that relay does not fill may
        give texts for ids."""

    def close(self) -> None:
        """Give back what is held."""


class IndexMeaning:
    """The Meaning (see relay.features.memory.local.search) of an index.

    ``key`` names it in the files, ``title`` for people. ``filled``: relay fills it; else the user
    does. ``clock`` gives seconds.
    """

    name: str | None = None

    def __init__(
        self,
        key: str,
        title: str,
        open_index: Callable[[], Index],
        *,
        filled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.problem = ""
        self.title = title
        self._key = key
        self._open_index = open_index
        self._filled = filled
        self._clock = clock
        self._index: Index | None = None
        self._started = False
        self._query = ""
        self._pause = PAUSE_MIN
        self._not_before = 0.0

    @property
    def away(self) -> bool:
        """It failed lately, or was not opened yet."""
        return not self._started or self._clock() < self._not_before

    def open(self, store: LocalStore, places: Sequence[Place] = ()) -> None:
        """Open it, take over what an earlier relay kept there alone, and have it ready; where
        that fails now, a later call tries again.

        Of a server only ``places`` are taken over: whoever writes to it must not reach others.
        """
        untaken = {} if self._index is None else self._untaken(self._index, store, places)
        if self._clock() < self._not_before or self._started and not untaken:
            return
        with self._trying():
            if self._index is None:
                self._index = self._open_index()
            self._take_over(store, self._index, places)
            if not self._started and self._index.start():
                for database in store.databases():
                    database.unset_indexed(self._key)
            self._started = True

    def _untaken(
        self, index: Index, store: LocalStore, places: Sequence[Place]
    ) -> dict[Place | None, str]:
        """The files that will say that a place, or all of them, was taken over."""
        if not self._filled:
            return {}
        path = os.path.join(store.folder, "taken", self._key)
        paths: dict[Place | None, str] = {None: path}
        if index.shared:
            paths = {place: f"{path}-{file_name(place)[:-3]}" for place in places}
        return {place: path for place, path in paths.items() if not os.path.exists(path)}

    def _take_over(self, store: LocalStore, index: Index, places: Sequence[Place]) -> None:
        untaken = self._untaken(index, store, places)
        if not untaken:
            return
        former = (
            (key, memory)
            for key, memory in index.former()
            if None in untaken or memory.place in untaken
        )
        while page := list(islice(former, _TAKEN)):
            store.restore(memory for _, memory in page)
            for place in {memory.place for _, memory in page}:
                own = {key: memory for key, memory in page if memory.place == place}
                database = store.database(place)
                database.enrol(self._key)
                ids = {key: memory.id for key, memory in own.items()}
                database.set_indexed(self._key, ids, [memory.text for memory in own.values()])
        for path in untaken.values():
            make_private_folder(os.path.dirname(path))
            write_atomically(path, self.title + "\n")

    # -- as a Meaning

    def enrol(self, database: PlaceDatabase) -> None:
        """Fill the database into the index from now on."""
        if self._filled:
            database.enrol(self._key)

    def begin(self, query: str) -> bool:
        """Ask for ``query`` from now on."""
        self._query = query
        return not self.away

    def near(self, database: PlaceDatabase, count: int, rows: Sequence[int]) -> dict[int, float]:
        """What the index finds, and the file has."""
        if self.away or self._index is None:
            return {}
        scores: Mapping[str, float] = {}
        with self._trying():
            scores = self._index.search(self._query, database.place, min(count, WANTED))
        rows_by_name = database.rows_by_id(scores)
        if not self._filled:
            texts = [name for name in scores if name not in rows_by_name]
            rows_by_name |= database.rows_of_texts(texts)
        return {row: scores[name] for name, row in rows_by_name.items()}

    def catch_up(self, database: PlaceDatabase, limit: int) -> int:
        """Delete what is gone, then add what is new."""
        index, done = self._index, 0
        if index is None or self.away or not database.enrolled(self._key):
            return 0
        with self._trying():
            if keys := database.outdated(self._key, limit):
                index.delete(keys)
                database.unset_indexed(self._key, keys)
                done += len(keys)
            while done < limit and (
                new := database.not_indexed(self._key, min(index.batch, limit - done))
            ):
                ids = dict(zip(index.add(new), (memory.id for memory in new), strict=True))
                database.set_indexed(self._key, ids, [memory.text for memory in new])
                done += len(new)
        return done

    def pending(self, database: PlaceDatabase) -> int:
        """How many changes of the database the index does not have yet."""
        return sum(database.index_lag(self._key)) if database.enrolled(self._key) else 0

    def filled_of(self, store: LocalStore) -> IndexFilled:
        """How many of the memories that it shall have it has."""
        if not self._filled:
            return {"title": self.title, "filled": None, "total": None}
        own = [database for database in store.databases() if database.enrolled(self._key)]
        total = sum(database.count() for database in own)
        lacking = sum(database.index_lag(self._key)[0] for database in own)
        return {"title": self.title, "filled": total - lacking, "total": total}

    def drop(self, database: PlaceDatabase) -> None:
        """Nothing is held for a database."""

    def close(self) -> None:
        """Close the index."""
        index, self._index, self._started = self._index, None, False
        if index is not None:
            with self._trying():
                index.close()

    @contextmanager
    def _trying(self) -> Iterator[None]:
        """What the index raises within is its problem, and for a while it is left alone."""
        try:
            yield
        except Exception as error:
            self.problem = f"{self.title}: {reason(error)}"
            self._not_before = self._clock() + self._pause
            self._pause = min(PAUSE_MAX, 2 * self._pause)
            print(f"an index of memories failed: {self.problem}", flush=True)
        else:
            if self._started:
                self.problem, self._pause = "", PAUSE_MIN


def reason(error: BaseException) -> str:
    """Its words in one line, without secrets."""
    if isinstance(error, RelayError):
        return error.line
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):
        # pydantic repeats the whole configuration that it refuses, keys and passwords too.
        words = "; ".join(one["msg"] for one in error.errors(include_input=False))
    else:
        words = " ".join(str(error).split())
    return redact(f"{type(error).__name__}{words and ': '}{words}")[:_REASON_MAX]


def missing(extra: str, error: ImportError) -> ConfigError:
    """A library of this extra cannot be imported."""
    from relay.core.extras import adding

    return ConfigError(
        f"{error.name or extra} cannot be imported: {error}",
        hint=adding(extra),
    )


def place_name(place: Place) -> str:
    """``relay:user``, ``relay:project:/src/shop``, ``relay:agent:ada``; never a white space."""
    owner = quote(place.owner, safe="/@+=,~")
    return f"{_PREFIX}{place.scope.value}:{owner}".rstrip(":")


def place_of(name: object) -> Place | None:
    """The place of this name; None for a name that is not of relay's."""
    if not isinstance(name, str) or not name.startswith(_PREFIX):
        return None
    scope, _, owner = name.removeprefix(_PREFIX).partition(":")
    try:
        return Place(Scope(scope), unquote(owner, errors="strict"))
    except (ValueError, RelayError):
        return None
