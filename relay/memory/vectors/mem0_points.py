"""Memories with mem0, on its qdrant store, which is read directly."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from relay.core.errors import ConfigError, RelayError, StorageError
from relay.memory.backend import Backend
from relay.memory.days import day
from relay.memory.embedding import Embedder
from relay.memory.embedding.numeric import load_numpy
from relay.memory.records import Memory
from relay.memory.vectors import payload
from relay.memory.vectors.embedding import Embedding, needed
from relay.memory.vectors.faults import mapped, reason
from relay.memory.vectors.qdrant_opening import Opened, open_client
from relay.memory.vectors.qdrant_points import QdrantReader
from relay.memory.vectors.vector_backend import VectorBackend

#: Given to mem0 beside what it makes itself.
_MEM0_SETS = (payload.TEXT, payload.PLACE, "updated_at")


def open_mem0(config: Mapping[str, Any], folder: str, embedder: Embedder | None) -> Backend:
    """The backend. ``config``: of a resolved StoreSpec; ``folder``: all that is on disk is in it.

    ``embedder`` None: mem0's own, when ``config`` names one. mem0 is imported here. Raises
    ConfigError, StoreUnavailable, StorageError; then the embedder stays the caller's.
    """
    parts = load(folder)
    section = config.get("embedder")
    if embedder is None and section and section.get("provider") not in (None, "minilm", "none"):
        embedder = _mem0_embedder(parts, section)
    embedding = Embedding(needed(embedder))
    path = os.path.join(folder, "qdrant")
    store = config.get("vector_store") or {}
    opened = open_client(store, path, embedding.dims, embedding.name)
    try:
        with mapped(opened.server):
            memory = parts.make(
                {
                    "client": opened.client,
                    # mem0 asks for a path although it gets a client.
                    "path": opened.path or path,
                    "collection_name": opened.collection,
                    "embedding_model_dims": embedding.dims,
                },
                embedding,
            )
        encoder = parts.Encoder()
        memory.vector_store._bm25_encoder = encoder
    except BaseException:
        opened.client.close()
        raise
    return VectorBackend(Mem0Points(opened, embedding, memory, encoder), opened.problem)


def load(folder: str) -> Any:
    """The module mem0_parts. mem0 reads where it may write, and whether it may tell anybody, when
    it is imported. Raises ConfigError when it cannot be imported."""
    home = os.path.join(folder, "mem0")
    os.environ.update(MEM0_DIR=home, MEM0_TELEMETRY="False")
    # Whatever goes wrong is raised too; in a log it could hold texts, for ever.
    logging.getLogger("mem0").setLevel(logging.CRITICAL)
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        load_numpy()  # before mem0 imports it with as many threads as there are cores
        from relay.memory.vectors import mem0_parts
    except ImportError as error:
        raise ConfigError(
            f"mem0 cannot be imported: {error}",
            hint=f"install it for relay's Python: {sys.executable} -m pip install 'mem0ai<3'",
        ) from error
    except OSError as error:
        raise StorageError(
            f"cannot make the folder {home}: {error.strerror}",
            hint="make its parent writable, or set RELAY_HOME to another directory",
        ) from error
    return mem0_parts


class Mem0Points(QdrantReader):
    """The port (see relay.memory.vectors.port) where mem0 writes, which embeds and stores, into its
    qdrant store; relay reads that as its own, words and all."""

    name = "mem0"

    def __init__(self, opened: Opened, embedding: Embedding, memory: Any, encoder: Any) -> None:
        super().__init__(opened, embedding)
        self._memory = memory
        self._encoder = encoder

    def insert(self, memories: Sequence[Memory]) -> list[str]:
        """One after the other: mem0 takes no batches without its LLM."""
        return [self._add(memory) for memory in memories]

    def _add(self, memory: Memory) -> str:
        self._encoder.also = day(memory.updated_ms)
        with self._changing():
            added = self._memory.add(
                memory.text,
                user_id=payload.place_name(memory.place),
                metadata=_metadata(memory),
                infer=False,
            )
        key = str(added["results"][0]["id"])
        self._written(key, memory)
        return key

    def replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        """mem0 merges the metadata; every field is given."""
        self._encoder.also = day(memory.updated_ms)
        with self._changing():
            self._memory.update(
                key, text=memory.text if text_changed else None, metadata=_metadata(memory)
            )
        self._written(key, memory)

    def remove(self, key: str) -> None:
        """By mem0's id."""
        with self._changing():
            self._memory.delete(key)
        self._removed(key)

    def close(self) -> None:
        """mem0, then the client and the embedder."""
        self._memory.close()
        super().close()


def _mem0_embedder(parts: Any, section: Mapping[str, Any]) -> Embedder:
    config = dict(section)
    provider = str(config.pop("provider"))
    if dims := config.pop("dims", None):
        config["embedding_dims"] = dims
    if url := config.pop("url", None):
        config[f"{provider}_base_url"] = url
    try:
        made: Embedder = parts.Mem0Embedder(provider, config)
    except RelayError:
        raise
    except Exception as error:
        raise ConfigError(
            f"mem0 cannot make its embedder {provider}: {reason(error)}",
            hint="correct memory.config.embedder, or install what it asks for into relay's"
            f" Python: {sys.executable}",
        ) from error
    return made


def _metadata(memory: Memory) -> dict[str, str | int]:
    fields = payload.to_payload(memory)
    return {key: value for key, value in fields.items() if key not in _MEM0_SETS}
