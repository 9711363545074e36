"""How the two ways to search become one order. Pure.

Within a place, with ``b`` the BM25 of a memory and ``c`` the cosine of its vector and the query's::

    fused = .5 * b / max(b) + .5 * max(c, 0) / max(c)

(``b / max(b)`` alone where there are no vectors.) These are relative: the best of every place would
have about 1, however bad it is, and BM25 itself cannot be compared between places, each of which
has its own statistics. So a place's scores are multiplied by how well its best memories answer the
query in absolute terms, the *fit*: the share of the query's words that they hold (with vectors, the
mean of that and their cosine), and the best of them counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from relay.features.memory.records import Hit

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
