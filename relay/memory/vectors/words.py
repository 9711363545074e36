"""Words as sparse vectors, so that a store of vectors can search by them (BM25). Pure.

The entry of a word in a memory's vector is how much it says there: ``tf * (k1 + 1) / (tf + k1 *
(1 - b + b * length / mean length))``; in a query's it is 1. How rare a word is the store knows: it
multiplies by the inverse document frequency (qdrant's modifier ``idf``). Robertson and Zaragoza,
“The Probabilistic Relevance Framework: BM25 and Beyond”, 2009.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

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


def of_text(text: str) -> Sparse:
    """The vector of a memory: the words' numbers, ascending, and their weights."""
    counts = Counter(stems(text))
    norm = K1 * (1 - B + B * counts.total() / MEAN_LENGTH)
    return _sorted((word, tf * (K1 + 1) / (tf + norm)) for word, tf in counts.items())


def of_query(words: Sequence[str]) -> Sparse:
    """The vector of what is looked for."""
    return _sorted((word, 1.0) for word in {stem(word) for word in words})


def held(words: Sequence[str], text: str) -> int:
    """How many of the different ``words`` are in ``text``, in whatever form."""
    there = set(stems(text))
    return sum(1 for word in words if stem(word) in there)


def _sorted(weights: Iterable[tuple[str, float]]) -> Sparse:
    entries: dict[int, float] = {}
    for word, weight in weights:
        number = _number(word)
        entries[number] = entries.get(number, 0.0) + weight
    return sorted(entries), [entries[number] for number in sorted(entries)]


@lru_cache(maxsize=65536)
def _number(word: str) -> int:
    """32 bits: among 100 000 words a given one shares its number with 1 in 40 000."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big")


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    return str(_ENGLISH.stemWord(word))


_ENGLISH = snowballstemmer.stemmer("english")
