"""The words of one place in memory, for a store in a folder: qdrant-client compares a query with
one memory after the other there, which takes seconds where this takes milliseconds.

Needs numpy. 8 bytes for each word of each memory.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

#: When this part of the slots is of memories that are gone, they are given back.
_WASTE = 0.25
_FEW = 64


class Lexicon:
    """BM25 over the memories of a place, with the place's own statistics."""

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
