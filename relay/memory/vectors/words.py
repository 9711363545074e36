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
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import snowballstemmer

from relay.memory.local.query import STOP_WORDS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

K1, B = 1.2, 0.75
#: Words that tell something in a usual memory; a store of vectors keeps no such statistics.
MEAN_LENGTH = 16
#: When this part of the slots is of memories that are gone, they are given back.
_WASTE = 0.25
_FEW = 64
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
    """BM25 over the memories of a place, with the place's own statistics. Needs numpy.

    For a store in a folder: qdrant-client compares a query with one memory after the other there,
    which takes seconds where this takes milliseconds. 8 bytes for each word of each memory.
    """

    def __init__(self) -> None:
        self._slots: list[tuple[str, str]] = []  # (key, id) by slot
        self._at: dict[str, int] = {}
        self._live = bytearray()
        self._postings: dict[int, tuple[array[int], array[float]]] = {}

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def id_of(self, key: str) -> str:
        """The id of the memory that ``key`` has."""
        return self._slots[self._at[key]][1]

    def put(self, key: str, id_: str, weights: Mapping[int, float]) -> None:
        """Its words are these from now on."""
        self.drop(key)
        slot = len(self._slots)
        self._slots.append((key, id_))
        self._live.append(1)
        self._at[key] = slot
        for number, weight in weights.items():
            posting = self._postings.get(number)
            if posting is None:
                posting = self._postings[number] = (array("I"), array("f"))
            posting[0].append(slot)
            posting[1].append(weight)

    def drop(self, key: str) -> None:
        """It is gone; nothing when it was not there."""
        slot = self._at.pop(key, None)
        if slot is None:
            return
        self._live[slot] = 0
        wasted = len(self._slots) - len(self._at)
        if wasted > _FEW and wasted > _WASTE * len(self._slots):
            self._compact()

    def search(self, numbers: Sequence[int], count: int) -> dict[str, float]:
        """Key -> BM25 of at most ``count`` that hold any of these words."""
        import numpy as np

        live = np.frombuffer(self._live, np.bool_)
        scores: NDArray[np.float64] = np.zeros(len(self._slots))
        for number in numbers:
            if number not in self._postings:
                continue
            slots, weights = self._postings[number]
            rows = np.frombuffer(slots, np.uint32)
            frequency = int(np.count_nonzero(live[rows]))
            rarity = math.log(1 + (len(self._at) - frequency + 0.5) / (frequency + 0.5))
            scores[rows] += rarity * np.frombuffer(weights, np.float32)
        scores[~live] = 0.0
        held = np.flatnonzero(scores > 0)
        if len(held) > count:
            held = held[np.argpartition(scores[held], -count)[-count:]]
        return {self._slots[slot][0]: float(scores[slot]) for slot in held.tolist()}

    def _compact(self) -> None:
        """Give back the slots of what is gone."""
        import numpy as np

        live = np.frombuffer(self._live, np.bool_).copy()
        moved = np.cumsum(live) - 1
        self._slots = [one for one, lives in zip(self._slots, live.tolist(), strict=True) if lives]
        self._live = bytearray(b"\1" * len(self._slots))
        self._at = {key: slot for slot, (key, _) in enumerate(self._slots)}
        kept: dict[int, tuple[array[int], array[float]]] = {}
        for number, (slots, weights) in self._postings.items():
            rows = np.frombuffer(slots, np.uint32)
            stays = live[rows]
            if stays.any():
                found = array("I", moved[rows[stays]].astype(np.uint32).tobytes())
                kept[number] = (
                    found,
                    array("f", np.frombuffer(weights, np.float32)[stays].tobytes()),
                )
        self._postings = kept
