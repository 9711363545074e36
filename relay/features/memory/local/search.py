"""Searching several databases at once, by words and, where that can be had, by meaning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from relay.features.memory.local import query as queries
from relay.features.memory.local import ranking
from relay.features.memory.local.database import PlaceDatabase
from relay.features.memory.records import Hit, Place, Tier

#: Memories of each way to search that are fused; others have no score of that way.
CANDIDATES = 1000
#: A place's best memories that are asked how well they answer; the best of them speaks for it.
_JUDGED = 3
#: Memories that a search makes findable by meaning before it begins; the rest waits for
#: ``catch_up``.
_FRESH = 16


class Meaning(Protocol):
    """What finds memories by their meaning: vectors in the files, or an index behind them.

    It never raises for what is wrong with itself: then the words alone find, and ``problem`` says
    why. What is wrong with a file is a StorageError.
    """

    name: str | None  # the embedder's, where one is known
    problem: str  # why it does not find all that it could, or ""

    @property
    def away(self) -> bool:
        """It did not answer the last time."""

    def enrol(self, database: PlaceDatabase) -> None:
        """The memories of this database are saved and searched here."""

    def begin(self, query: str) -> bool:
        """Ask for ``query`` from now on; False when there is no answer now."""

    def near(self, database: PlaceDatabase, count: int, rows: Sequence[int]) -> dict[int, float]:
        """Row -> likeness from -1 to 1, of the ``count`` best, and of ``rows`` where it is known;
        after ``begin``."""

    def catch_up(self, database: PlaceDatabase, limit: int) -> int:
        """Take over at most ``limit`` of the database's changes; how many were."""

    def pending(self, database: PlaceDatabase) -> int:
        """How many of the database's memories it does not know yet."""

    def drop(self, database: PlaceDatabase) -> None:
        """The database is closed."""

    def close(self) -> None:
        """Give back what is held."""


class Searcher:
    """The ways to search. ``meaning``: None where there are words only."""

    def __init__(self, meaning: Meaning | None) -> None:
        self._meaning = meaning

    @property
    def tier(self) -> Tier:
        """What a search would do now, as far as is known."""
        return Tier.WORDS if self._meaning is None or self._meaning.away else Tier.HYBRID

    def search(
        self,
        text: str,
        places: Sequence[Place],
        open_database: Callable[[Place], PlaceDatabase | None],
        limit: int,
    ) -> list[Hit]:
        """The best of ``places`` (the most specific first): see
        relay.features.memory.local.ranking.

        The score of a hit is its fused score times the fit of its place, from 0 to 1; those in one
        step (see ranking.STEP) are in the order of ``places``. ``open_database`` is asked each
        time: to open one may close another.
        """
        words = queries.words(text)
        meaning = self._meaning if self._meaning is not None and self._meaning.begin(text) else None
        hidden: set[str] = set()
        for place in places:
            if database := open_database(place):
                hidden |= database.superseded()
                if meaning is not None:
                    meaning.enrol(database)
                    meaning.catch_up(database, _FRESH)
        hits: list[tuple[int, Hit]] = []
        for rank, place in enumerate(places):
            if (database := open_database(place)) is None:
                continue
            scores = self._rank(database, words, meaning, hidden, limit)
            tier = Tier.WORDS if meaning is None or meaning.away else Tier.HYBRID
            for row, memory in database.rows(list(scores)).items():
                hits.append((rank, Hit(memory, scores[row], tier)))
        return ranking.ordered(hits)[:limit]

    def _rank(
        self,
        database: PlaceDatabase,
        found: list[str],
        meaning: Meaning | None,
        hidden: set[str],
        limit: int,
    ) -> dict[int, float]:
        """Row -> score of the best of one database."""
        out = set(database.rows_by_id(hidden).values()) if hidden else set()
        count = max(CANDIDATES, limit) + len(out)
        words = database.match(queries.expression(found), count) if found else {}
        cosines: dict[int, float] | None = None
        if meaning is not None:
            cosines = meaning.near(database, count, list(words))
            if meaning.away:
                cosines = None
        for row in out:
            words.pop(row, None)
            if cosines:
                cosines.pop(row, None)
        scores = ranking.fuse(words, cosines)
        best = ranking.best(scores, limit)
        fit = max((self._fit(database, row, found, cosines) for row in best[:_JUDGED]), default=0.0)
        return {row: min(1.0, scores[row] * fit) for row in best if scores[row] > 0}

    def _fit(
        self, database: PlaceDatabase, row: int, found: list[str], cosines: dict[int, float] | None
    ) -> float:
        held = database.holds(row, [queries.expression([word]) for word in found])
        return ranking.fit(held, len(found), None if cosines is None else cosines.get(row, 0.0))
