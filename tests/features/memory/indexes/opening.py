"""A store with an index behind it, as relay.features.memory.store_access opens it, and an embedder
that costs nothing and always says the same: words by their hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay.features.memory.embedding import Embedder, EmbedderUnavailable
from relay.features.memory.indexes import Index, IndexMeaning
from relay.features.memory.indexes.mem0 import Mem0Index
from relay.features.memory.indexes.qdrant import QdrantIndex
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.local.search import Meaning, words
from relay.features.memory.local.vectors import VectorMeaning


def qdrant(folder: Path, embedder: Embedder | None, **store: Any) -> Index:
    return QdrantIndex(store, str(folder / "qdrant" / "qdrant"), embedder)


def mem0(folder: Path, embedder: Embedder | None, **store: Any) -> Index:
    return Mem0Index({"vector_store": store}, str(folder / "mem0"), embedder)


OPENERS: dict[str, Callable[..., Index]] = {"qdrant": qdrant, "mem0": mem0}


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(
    kind: str,
    folder: Path,
    embedder: Embedder | None = None,
    *,
    clock: Clock | None = None,
    **store: Any,
) -> LocalStore:
    """The store in ``folder``, whose index ``kind`` is ready, unless it is away. ``store``: where
    it is."""
    used = embedder or Cheap()
    if kind == "sqlite":
        return LocalStore(str(folder), VectorMeaning(used))
    meaning = IndexMeaning(
        kind, kind, lambda: OPENERS[kind](folder, used, **store), clock=clock or Clock()
    )
    found = LocalStore(str(folder), meaning)
    meaning.open(found)
    return found


def index_of(store: LocalStore) -> IndexMeaning:
    """The index behind it."""
    meaning: Meaning | None = store.meaning
    assert isinstance(meaning, IndexMeaning)
    return meaning


#: What the embedder knows of the world.
SAME = {"cache": "redis", "ship": "deploy", "release": "deploy", "bill": "invoice"}


class Cheap:
    """Texts with common words are near each other. ``problem``: it cannot answer now."""

    def __init__(self, dims: int = 64, name: str = "cheap") -> None:
        self.name, self.dims, self.problem, self.closed = name, dims, "", 0
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.problem:
            raise EmbedderUnavailable(self.problem, hint="wait")
        self.asked += texts
        made = np.zeros((len(texts), self.dims), np.float32)
        made[:, 0] = 0.1
        for row, text in enumerate(texts):
            for word in words(text):
                known = SAME.get(word, word).encode()
                made[row, 1 + hashlib.md5(known).digest()[0] % (self.dims - 1)] += 1
        made /= np.linalg.norm(made, axis=1, keepdims=True)
        return made

    def close(self) -> None:
        self.closed += 1
