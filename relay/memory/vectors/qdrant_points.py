"""Memories in qdrant itself: in a folder, or on a server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from relay.memory.backend import Backend
from relay.memory.embedding import Embedder
from relay.memory.records import Memory
from relay.memory.vectors import payload, words
from relay.memory.vectors.embedding import Embedding, needed
from relay.memory.vectors.merging import spoken
from relay.memory.vectors.qdrant_opening import WORDS, open_client
from relay.memory.vectors.qdrant_reader import QdrantReader
from relay.memory.vectors.vector_backend import VectorBackend

#: A memory's key is made of its id, so that one that is written twice is there once.
_NAMESPACE = uuid.UUID("5f5c5f0e-0d0b-5c0a-9c0c-72656c617921")


def open_qdrant(config: Mapping[str, Any], folder: str, embedder: Embedder | None) -> Backend:
    """The backend. ``config``: of a resolved StoreSpec; without ``url`` and ``host`` the memories
    are in ``folder``, or in its ``path``.

    Raises ConfigError, StoreUnavailable, StorageError; then the embedder stays the caller's.
    """
    embedding = Embedding(needed(embedder))
    store = config.get("vector_store") or {}
    path = os.path.join(folder, "qdrant")
    opened = open_client(store, path, embedding.dims, embedding.name)
    return VectorBackend(QdrantPoints(opened, embedding), opened.problem)


class QdrantPoints(QdrantReader):
    """The port (see relay.memory.vectors.port) on a collection that relay writes itself."""

    name = "qdrant"

    def insert(self, memories: Sequence[Memory]) -> list[str]:
        """All of them, or none, for a server; a folder takes one after the other."""
        keys = [str(uuid.uuid5(_NAMESPACE, memory.id)) for memory in memories]
        self._write(keys, memories)
        return keys

    def replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        """A new time alone needs no new vectors: on a server its words are of the former day."""
        if text_changed:
            self._write([key], [memory])
            return
        with self._changing():
            self._client.overwrite_payload(
                self._collection, payload.to_payload(memory), points=[key], wait=True
            )
        self._written(key, memory)

    def remove(self, key: str) -> None:
        """By its key."""
        selector = self._models.PointIdsList(points=[key])
        with self._changing():
            self._client.delete(self._collection, points_selector=selector, wait=True)
        self._removed(key)

    def _write(self, keys: Sequence[str], memories: Sequence[Memory]) -> None:
        made = self._embedding.vectors([memory.text for memory in memories])
        points = [
            self._models.PointStruct(
                id=key, vector=self._vectors(memory, dense), payload=payload.to_payload(memory)
            )
            for key, memory, dense in zip(keys, memories, made, strict=True)
        ]
        with self._changing():
            self._client.upsert(self._collection, points, wait=True)
        for key, memory in zip(keys, memories, strict=True):
            self._written(key, memory)

    def _vectors(self, memory: Memory, dense: list[float]) -> dict[str, Any]:
        if not self._opened.words:
            return {"": dense}
        numbers, weights = words.of_text(spoken(memory.text, memory.updated_ms))
        return {"": dense, WORDS: self._models.SparseVector(indices=numbers, values=weights)}
