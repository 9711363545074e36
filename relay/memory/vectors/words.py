"""Words as sparse vectors, so that a store of vectors can search by them (BM25). Pure.

The entry of a word in a memory's vector is how much it says there: ``tf * (k1 + 1) / (tf + k1 *
(1 - b + b * length / mean length))``; in a query's it is 1. How rare a word is the store knows: it
multiplies by the inverse document frequency (qdrant's modifier ``idf``). Robertson and Zaragoza,
“The Probabilistic Relevance Framework: BM25 and Beyond”, 2009.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from heapq import nlargest

import snowballstemmer

from relay.memory.local.query import STOP_WORDS

K1, B = 1.2, 0.75
#: Words that tell something in a usual memory; a store of vectors keeps no such statistics.
MEAN_LENGTH = 16
_WORD = re.compile(r"[^\W_]+")

Sparse = tuple[list[int], list[float]]


def stems(text: str) -> list[str]:
    """The words of ``text`` that tell something, in their order, as stems."""
    composed = unicodedata.normalize("NFC", text)
    found = [word.lower() for word in _WORD.findall(composed)]
    return [stem(word) for word in found if word not in STOP_WORDS] or [stem(one) for one in found]


def stem(word: str) -> str:
    """What the forms of an English word have in common; of another word, itself."""
    return _stem(word) if word.isascii() and word.isalpha() else word


def weights(text: str) -> dict[int, float]:
    """The entries of a memory's vector, by the words' numbers."""
    counts = Counter(stems(text))
    norm = K1 * (1 - B + B * counts.total() / MEAN_LENGTH)
    found: dict[int, float] = {}
    for word, tf in counts.items():
        number = _number(word)
        found[number] = found.get(number, 0.0) + tf * (K1 + 1) / (tf + norm)
    return found


def of_text(text: str) -> Sparse:
    """The vector of a memory: the words' numbers, ascending, and their weights."""
    found = sorted(weights(text).items())
    return [number for number, _ in found], [weight for _, weight in found]


def of_query(words: Sequence[str]) -> Sparse:
    """The vector of what is looked for."""
    numbers = sorted({_number(stem(word)) for word in words})
    return numbers, [1.0] * len(numbers)


def held(words: Sequence[str], text: str) -> int:
    """How many of the different ``words`` are in ``text``, in whatever form."""
    there = set(stems(text))
    return sum(1 for word in words if stem(word) in there)


@lru_cache(maxsize=65536)
def _number(word: str) -> int:
    """32 bits: among 100 000 words a given one shares its number with 1 in 40 000."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big")


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return str(_ENGLISH.stemWord(word))


_ENGLISH = snowballstemmer.stemmer("english")


class Lexicon:
    """BM25 over the memories of a place, with the place's own statistics.

    For a store in a folder: qdrant-client compares sparse vectors there a hundred times as slowly.
    """

    def __init__(self) -> None:
        self._held: dict[str, tuple[str, Mapping[int, float]]] = {}  # key -> id and words

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def id_of(self, key: str) -> str:
        """The id of the memory that ``key`` has."""
        return self._held[key][0]

    def put(self, key: str, id_: str, weights: Mapping[int, float]) -> None:
        """Its words are these from now on."""
        self._held[key] = (id_, weights)

    def drop(self, key: str) -> None:
        """It is gone; nothing when it was not there."""
        self._held.pop(key, None)

    def search(self, numbers: Sequence[int], count: int) -> dict[str, float]:
        """Key -> BM25 of at most ``count`` that hold any of these words."""
        scores: defaultdict[str, float] = defaultdict(float)
        for number in numbers:
            holding = [
                (key, weights[number])
                for key, (_, weights) in self._held.items()
                if number in weights
            ]
            rarity = math.log(1 + (len(self) - len(holding) + 0.5) / (len(holding) + 0.5))
            for key, weight in holding:
                scores[key] += rarity * weight
        return dict(nlargest(count, scores.items(), key=lambda one: one[1]))
