"""An index in mem0, by its ``add``, ``search`` and ``delete``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.features.memory.embedding import Embedder
from relay.features.memory.indexes import missing, place_name
from relay.features.memory.indexes.qdrant import ID, Collection, usable
from relay.features.memory.records import Memory, Place

_DEFAULTS = (None, "minilm", "none")


class Mem0Index:
    """See relay.features.memory.indexes. ``config``: of a resolved StoreSpec; ``folder`` has all
    that is on disk. ``embedder`` None: mem0's own, when ``config`` names one."""

    batch = 1  # mem0 takes no batches without its LLM

    def __init__(self, config: Mapping[str, Any], folder: str, embedder: Embedder | None) -> None:
        self._folder = folder
        self._section: Mapping[str, Any] = config.get("embedder") or {}
        self._embedder = embedder
        path = os.path.join(folder, "qdrant")
        self._collection = Collection(config.get("vector_store") or {}, path)
        self.shared = not self._collection.path
        self._memory: Any = None

    def former(self) -> Iterator[tuple[str, Memory]]:
        """What is in mem0's collection."""
        return self._collection.former()

    def start(self) -> bool:
        """Import mem0, which takes a while, and make the collection."""
        parts = load(self._folder)
        if self._embedder is None and self._section.get("provider") not in _DEFAULTS:
            self._embedder = parts.Mem0Embedder(self._section)
        embedder = usable(self._embedder)
        new = self._collection.make(embedder)
        store = {
            "client": self._collection.client,
            # mem0 asks for a path although it gets a client.
            "path": self._collection.path or self._folder,
            "collection_name": self._collection.name,
            "embedding_model_dims": embedder.dims,
        }
        self._memory = parts.make(store, embedder)
        return new

    def add(self, memories: Sequence[Memory]) -> list[str]:
        """One after the other."""
        return [self._add(memory) for memory in memories]

    def _add(self, memory: Memory) -> str:
        added = self._memory.add(
            memory.text,
            user_id=place_name(memory.place),
            metadata={ID: memory.id},
            infer=False,
        )
        return str(added["results"][0]["id"])

    def delete(self, keys: Sequence[str]) -> None:
        """By mem0's ids."""
        for key in keys:
            try:
                self._memory.delete(key)
            except ValueError:  # so it says that there is none
                continue

    def search(self, query: str, place: Place, limit: int) -> Mapping[str, float]:
        """By mem0's scores."""
        answer = self._memory.search(
            query, filters={"user_id": place_name(place)}, top_k=limit, threshold=0.0
        )
        return {
            str((one.get("metadata") or {}).get(ID)): float(one["score"])
            for one in answer["results"]
        }

    def close(self) -> None:
        """mem0, then its client and the embedder."""
        if self._memory is not None:
            self._memory.close()
        self._collection.client.close()
        if self._embedder is not None:
            self._embedder.close()


def load(folder: str) -> Any:
    """The module mem0_parts. mem0 reads where it may write, and whether it may tell anybody, when
    it is imported. Raises ConfigError when it cannot be imported."""
    home = os.path.join(folder, "mem0")
    os.environ.update(MEM0_DIR=home, MEM0_TELEMETRY="False")
    # Whatever goes wrong is raised too; in a log it could hold texts, for ever.
    logging.getLogger("mem0").setLevel(logging.CRITICAL)
    os.makedirs(home, mode=0o700, exist_ok=True)
    try:
        from relay.features.memory.indexes import mem0_parts
    except ImportError as error:
        raise missing("mem0", error) from error
    return mem0_parts
