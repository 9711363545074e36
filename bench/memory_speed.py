"""How long a save and a search take with many memories, beside bare SQLite with the same texts.

Vectors are random ones: a model would take its own time (MiniLM: about 20 ms a text), which is not
the store's. Bare SQLite is a table and an FTS5 index, ``synchronous=FULL``, one row a commit, and
the same words searched without vectors.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.local.search import expression, words
from relay.features.memory.local.vectors import VectorMeaning
from relay.features.memory.records import Memory, Place, Scope

if TYPE_CHECKING:
    from numpy.typing import NDArray

DIMS = 384
_PLACE = Place(Scope.PROJECT, "/bench")
_NOW = 1_795_000_000_000
#: 5000 words, the commonest about 1000 times as frequent as the rarest, as in texts.
_WORDS = [f"word{number}" for number in range(5000)]
_WEIGHTS = list(itertools.accumulate(1 / (5 + number) for number in range(5000)))


class Store(Protocol):
    """What is timed."""

    def fill(self, texts: Sequence[str]) -> None:
        """Take many at once; not timed."""

    def save(self, text: str) -> object:
        """Durable when it returns."""

    def search(self, query: str) -> object:
        """The best five."""

    def close(self) -> None:
        """The end."""


class RandomVectors:
    """An embedder that costs nothing: each text has a random vector of its own."""

    name, dims = "random", DIMS

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Unit vectors, float32 (len(texts), DIMS)."""
        out: NDArray[np.float32] = np.empty((len(texts), DIMS), np.float32)
        for row, text in zip(out, texts, strict=True):
            row[:] = np.random.default_rng(zlib.crc32(text.encode())).standard_normal(DIMS)
            row /= np.linalg.norm(row)
        return out

    def close(self) -> None:
        """Nothing is held."""


class Local:
    """Relay's store; with vectors or without."""

    def __init__(self, folder: str, vectors: bool) -> None:
        self._store = LocalStore(folder, VectorMeaning(RandomVectors()) if vectors else None)

    def fill(self, texts: Sequence[str]) -> None:
        """All vectors are made."""
        self._store.restore(
            Memory(f"n{number:07}", text, _PLACE, None, None, _NOW, _NOW)
            for number, text in enumerate(texts)
        )
        self._store.catch_up(len(texts))
        self.search("word1")  # the vectors are read into memory

    def save(self, text: str) -> object:
        """As an agent saves."""
        return self._store.save(text, _PLACE, agent="a", session=None, now_ms=_NOW)

    def search(self, query: str) -> object:
        """Five hits."""
        return self._store.search(query, [_PLACE], 5)

    def close(self) -> None:
        """Close it."""
        self._store.close()


class Bare:
    """SQLite alone."""

    def __init__(self, folder: str) -> None:
        self._db = sqlite3.connect(Path(folder, "bare.db"), isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute("CREATE VIRTUAL TABLE texts USING fts5 (t, tokenize='porter unicode61')")

    def fill(self, texts: Sequence[str]) -> None:
        """In one commit."""
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO texts VALUES (?)", [(text,) for text in texts])
        self._db.execute("COMMIT")

    def save(self, text: str) -> object:
        """One row, one commit."""
        return self._db.execute("INSERT INTO texts VALUES (?)", (text,))

    def search(self, query: str) -> object:
        """Five rows."""
        return self._db.execute(
            "SELECT t FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 5",
            (expression(words(query)),),
        ).fetchall()

    def close(self) -> None:
        """Close it."""
        self._db.close()


def texts(count: int, seed: int, length: int = 14) -> list[str]:
    """Made-up memories."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(_WORDS, cum_weights=_WEIGHTS, k=length)) for _ in range(count)]


def measure(
    makers: dict[str, Callable[[str], Store]], count: int, samples: int
) -> dict[str, dict[str, float]]:
    """Milliseconds by store: save and search at p50 and p99, with ``count`` memories there.

    The stores are asked in turn, so that what else the machine does falls on all of them.
    """
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        stores: dict[str, Store] = {}
        for name, make in makers.items():
            own = Path(folder, name.replace(" ", "-"))
            own.mkdir()
            stores[name] = make(str(own))
        first = texts(count, 1)
        for store in stores.values():
            store.fill(first)
        new, asked = texts(samples, 2), texts(samples, 3, length=6)
        taken: dict[str, dict[str, list[float]]] = {
            name: {"save": [], "search": []} for name in stores
        }
        for text, query in zip(new, asked, strict=True):
            for name, store in stores.items():
                with _timed(taken[name]["search"]):
                    store.search(query)
            for name, store in stores.items():
                with _timed(taken[name]["save"]):
                    store.save(text)
        for store in stores.values():
            store.close()
    return {
        name: {
            f"{what} p{part}": percentile(values, part)
            for what, values in found.items()
            for part in (50, 99)
        }
        for name, found in taken.items()
    }


class _timed:
    def __init__(self, into: list[float]) -> None:
        self._into = into

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._into.append((time.perf_counter() - self._begin) * 1000)


def percentile(values: list[float], part: float) -> float:
    """The value below which ``part`` percent lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part / 100))]
