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
from collections.abc import Sequence
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
