"""Searches several places' files at once, by words and, where that can be had, by meaning.

A person's words become an expression of FTS5 in which nothing of theirs is syntax. The two ways to
search become one order. Within a place, with ``b`` the BM25 of a memory and ``c`` the cosine of its
vector and the query's::

    fused = .5 * b / max(b) + .5 * max(c, 0) / max(c)

(``b / max(b)`` alone where there are no vectors.) These are relative: the best of every place would
have about 1, however bad it is, and BM25 itself cannot be compared between places, each of which
has its own statistics. So a place's scores are multiplied by how well its best memories answer the
query in absolute terms, the *fit*: the share of the query's words that they hold (with vectors, the
mean of that and their cosine), and the best of them counts.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol, TypeVar

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
        relay.features.memory.local.search.

        The score of a hit is its fused score times the fit of its place, from 0 to 1; those in one
        step (see ranking.STEP) are in the order of ``places``. ``open_database`` is asked each
        time: to open one may close another.
        """
        asked = words(text)
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
            scores = self._rank(database, asked, meaning, hidden, limit)
            tier = Tier.WORDS if meaning is None or meaning.away else Tier.HYBRID
            for row, memory in database.rows(list(scores)).items():
                hits.append((rank, Hit(memory, scores[row], tier)))
        return ordered(hits)[:limit]

    def _rank(
        self,
        database: PlaceDatabase,
        asked: list[str],
        meaning: Meaning | None,
        hidden: set[str],
        limit: int,
    ) -> dict[int, float]:
        """Row -> score of the best of one database."""
        out = set(database.rows_by_id(hidden).values()) if hidden else set()
        count = max(CANDIDATES, limit) + len(out)
        matches = database.match(expression(asked), count) if asked else {}
        cosines: dict[int, float] | None = None
        if meaning is not None:
            cosines = meaning.near(database, count, list(matches))
            if meaning.away:
                cosines = None
        for row in out:
            matches.pop(row, None)
            if cosines:
                cosines.pop(row, None)
        scores = fuse(matches, cosines)
        rows = best(scores, limit)
        fits = (_fit(database, row, asked, cosines) for row in rows[:_JUDGED])
        most = max(fits, default=0.0)
        return {row: min(1.0, scores[row] * most) for row in rows if scores[row] > 0}


def _fit(
    database: PlaceDatabase, row: int, asked: list[str], cosines: dict[int, float] | None
) -> float:
    held = database.holds(row, [expression([word]) for word in asked])
    return fit(held, len(asked), None if cosines is None else cosines.get(row, 0.0))


#: Different words of a query that are looked for; a longer one is judged by its first words.
WORDS_MAX = 64
_WORD = re.compile(r"[^\W_]+")
#: Words that nearly every English text holds: they cost time and add noise.
_STOP = (
    "a about all am an and any are as at be been being but by can could did do does doing for from"
    " had has have having he her hers him his how i if in into is it its just me my no nor not of"
    " off on or our ours out over own same she should so some such than that the their theirs them"
    " then there these they this those to too under until up very was we were what when where"
    " which while who whom why will with would you your yours s t d ll m re ve don isn doesn didn"
    " please"
)
STOP_WORDS = frozenset(_STOP.split())


def words(query: str) -> list[str]:
    """The different words of ``query`` that are looked for, at most WORDS_MAX.

    Stop words are left out, unless there is nothing else.
    """
    composed = unicodedata.normalize("NFC", query)
    found = dict.fromkeys(word.lower() for word in _WORD.findall(composed))
    telling = [word for word in found if word not in STOP_WORDS]
    return (telling or list(found))[:WORDS_MAX]


def expression(found: list[str]) -> str:
    """The FTS5 expression for any of the words; each is quoted, so that none is an operator."""
    return " OR ".join(f'"{word}"' for word in found)


#: Whatever names a memory: a row, a key.
Row = TypeVar("Row", bound=Hashable)

#: Scores that fall into the same step, as a part of the best score of all, are equally good: the
#: more specific place then comes first. A part, because few words of a long query are in any text.
STEP = 0.05


def fuse(words: Mapping[Row, float], cosines: Mapping[Row, float] | None) -> dict[Row, float]:
    """Scores from 0 to 1 by row: ``words`` are BM25 (higher is better), ``cosines`` -1 to 1."""
    top = max(words.values(), default=0.0)
    relative = {row: max(value, 0.0) / top if top > 0 else 0.0 for row, value in words.items()}
    if cosines is None:
        return relative
    near = max(cosines.values(), default=0.0)
    return {
        row: 0.5 * relative.get(row, 0.0)
        + (0.5 * max(cosines.get(row, 0.0), 0.0) / near if near > 0 else 0.0)
        for row in {*words, *cosines}
    }


def best(scores: Mapping[int, float], count: int) -> list[int]:
    """The ``count`` best rows, the best first; of equal ones the newest (highest) row."""
    return sorted(scores, key=lambda row: (-scores[row], -row))[:count]


def fit(held: int, asked: int, cosine: float | None) -> float:
    """How well a memory answers: it holds ``held`` of ``asked`` words; its cosine, if there is."""
    share = held / asked if asked else 0.0
    if cosine is None:
        return share
    # Without a word to look for, the vector alone says it.
    return 0.5 * (share + max(cosine, 0.0)) if asked else max(cosine, 0.0)


def ordered(hits: Sequence[tuple[int, Hit]]) -> list[Hit]:
    """The hits in the order of an answer; each comes with the rank of its place, 0 being the most
    specific."""
    top = max((hit.score for _, hit in hits), default=0.0)

    def order(one: tuple[int, Hit]) -> tuple[int, int, float, int]:
        place, hit = one
        return -round(hit.score / top / STEP), place, -hit.score, -hit.memory.updated_ms

    return [hit for _, hit in sorted(hits, key=order)]
