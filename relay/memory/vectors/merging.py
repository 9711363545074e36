"""From what a store finds in each place to one list of hits. Pure.

The scores are those of relay.memory.local.ranking: words and meaning are fused within a place, and
a place counts by how well its best memories answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.memory.days import day
from relay.memory.local import ranking
from relay.memory.records import Hit, Memory, Tier
from relay.memory.vectors import words as sparse
from relay.memory.vectors.port import Answer

#: Memories of each way to search that are fused at least; others have no score of that way.
_CANDIDATES = 200
#: A place's best memories that are asked how well they answer; the best of them speaks for it.
_JUDGED = 3


def candidates(limit: int) -> int:
    """How many of each way to search are wanted for ``limit`` hits."""
    return max(_CANDIDATES, 2 * limit)


def best(answer: Answer, hidden: set[str], limit: int) -> dict[str, float]:
    """Key -> score of the best of one place, the best first, without the ids ``hidden``."""
    seen = [key for key, id_ in answer.ids.items() if id_ not in hidden]
    meaning = {key: answer.scores[key] for key in seen if key in answer.scores}
    words = {key: answer.words[key] for key in seen if key in answer.words}
    fused = ranking.fuse(words, meaning)
    scores = {key: score for key, score in fused.items() if score > 0}
    order = sorted(scores, key=lambda key: (-scores[key], answer.ids[key]))
    return {key: scores[key] for key in order[:limit]}


def fit(
    answer: Answer, chosen: Mapping[str, float], words: Sequence[str], found: Mapping[str, Memory]
) -> float:
    """How well the place answers in absolute terms, from 0 to 1."""
    judged = [key for key in chosen if key in found][:_JUDGED]
    return max(
        (
            ranking.fit(
                sparse.held(words, spoken(found[key].text, found[key].updated_ms)),
                len(words),
                answer.scores.get(key, 0.0),
            )
            for key in judged
        ),
        default=0.0,
    )


def spoken(text: str, updated_ms: int) -> str:
    """What is searched by its words: the text, and the day as questions name it."""
    return f"{text}\n{day(updated_ms)}"


def hit(memory: Memory, score: float) -> Hit:
    """A hit; rounding may have made its score a little more than 1."""
    return Hit(memory, min(score, 1.0), Tier.HYBRID)
