"""An index in qdrant, in a folder of this process's alone or on a server."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.core.errors import ConfigError, RelayError, StorageError
from relay.features.memory.embedding import Embedder, embed_texts, load_numpy
from relay.features.memory.indexes import missing, place_name
from relay.features.memory.records import Memory, Place, from_json

#: Seconds for one request.
TIMEOUT = 10
COLLECTION = "relay"
#: Fields of a point. "data" and "user_id" are mem0's names, of a text and of whose that is.
PLACE, ID, _TEXT = "user_id", "relay_id", "data"
#: In what an earlier relay kept here alone: its version, and the memory without its text.
_OURS, _VERSION, _RECORD = "relay_version", "1", "relay_record"
_PAGE = 1000
#: A memory's key is made of its id, so that one that is added twice is there once.
_NAMESPACE = uuid.UUID("5f5c5f0e-0d0b-5c0a-9c0c-72656c617921")
#: What qdrant-client warns of, and relay knows.
_KNOWN = r"(Local mode is not recommended|Payload indexes have no effect|Api key is used with)"


class Collection:
    """A collection of qdrant's. ``store``: the section vector_store of a resolved StoreSpec;
    ``path``: the folder, when that names no server."""

    def __init__(self, store: Mapping[str, Any], path: str) -> None:
        load_numpy()  # before qdrant imports it with as many threads as there are cores
        try:
            from qdrant_client import QdrantClient, models
        except ImportError as error:
            raise missing("qdrant", error) from error
        warnings.filterwarnings("ignore", message=_KNOWN, category=UserWarning)
        self.models = models
        self.name = str(store.get("collection_name") or COLLECTION)
        self.path = "" if store.get("url") else str(store.get("path") or path)
        if self.path:
            _prepare(self.path)
            self.client = QdrantClient(path=self.path, force_disable_check_same_thread=True)
            return
        self.client = QdrantClient(
            store["url"],
            api_key=store.get("api_key"),
            timeout=max(1, int(store.get("timeout") or TIMEOUT)),
            check_compatibility=False,  # it asks in a thread, and warns on stderr
        )

    def former(self) -> Iterator[tuple[str, Memory]]:
        """The memories that an earlier relay kept here alone."""
        offset = None
        while self.client.collection_exists(self.name):
            records, offset = self.client.scroll(
                self.name, limit=_PAGE, offset=offset, with_payload=True
            )
            for record in records:
                if (memory := _former(record.payload or {})) is not None:
                    yield str(record.id), memory
            if offset is None:
                return

    def make(self, embedder: Embedder) -> bool:
        """Make it for this embedder's vectors, unless it is there; whether it is new."""
        new = not self.client.collection_exists(self.name)
        if new:
            params = self.models.VectorParams(
                size=embedder.dims, distance=self.models.Distance.COSINE, on_disk=True
            )
            self.client.create_collection(self.name, vectors_config=params)
        size = getattr(self.client.get_collection(self.name).config.params.vectors, "size", None)
        if size != embedder.dims:
            raise ConfigError(
                f"the collection {self.name!r} holds vectors of {size or 'several kinds'}"
                f"{' numbers' if size else ''}, but the embedder {embedder.name} makes such of"
                f" {embedder.dims}",
                hint="choose another collection_name in memory.config.vector_store: it is filled"
                " anew; or the former embedder",
            )
        if self.path:
            self._overwrite_deleted()
        else:
            self.client.create_payload_index(
                self.name, PLACE, self.models.PayloadSchemaType.KEYWORD
            )
        return new

    def _overwrite_deleted(self) -> None:
        """What is deleted is overwritten with zeros: of a folder, which SQLite files are in."""
        try:
            local: Any = self.client._client
            connection = local.collections[self.name].storage.storage
            assert isinstance(connection, sqlite3.Connection)
            connection.execute("PRAGMA secure_delete=ON")
        except (AttributeError, KeyError, TypeError, AssertionError, sqlite3.Error) as error:
            raise StorageError(
                "this qdrant-client keeps its files in a way that relay does not know, so what is"
                " forgotten might stay on the disk",
                hint="install qdrant-client 1.20 for relay's Python, or use a server",
            ) from error


class QdrantIndex:
    """See relay.features.memory.indexes. A point holds no text, only the memory's place and id."""

    batch = 32

    def __init__(self, store: Mapping[str, Any], path: str, embedder: Embedder | None) -> None:
        self._collection = Collection(store, path)
        self._client, self._models = self._collection.client, self._collection.models
        self.shared = not self._collection.path
        self._embedder = embedder

    def former(self) -> Iterator[tuple[str, Memory]]:
        """What is in the collection."""
        return self._collection.former()

    def start(self) -> bool:
        """Make the collection."""
        return self._collection.make(usable(self._embedder))

    def add(self, memories: Sequence[Memory]) -> list[str]:
        """All of them, or none, on a server; in a folder one after the other."""
        keys = [str(uuid.uuid5(_NAMESPACE, memory.id)) for memory in memories]
        vectors = embed_texts(usable(self._embedder), [memory.text for memory in memories])
        points = [
            self._models.PointStruct(
                id=key,
                vector=vector.tolist(),
                payload={PLACE: place_name(memory.place), ID: memory.id},
            )
            for key, memory, vector in zip(keys, memories, vectors, strict=True)
        ]
        self._client.upsert(self._collection.name, points, wait=True)
        return keys

    def delete(self, keys: Sequence[str]) -> None:
        """By their keys."""
        selector = self._models.PointIdsList(points=list(keys))
        self._client.delete(self._collection.name, points_selector=selector, wait=True)

    def search(self, query: str, place: Place, limit: int) -> Mapping[str, float]:
        """By their vectors."""
        models = self._models
        own = models.FieldCondition(key=PLACE, match=models.MatchValue(value=place_name(place)))
        points = self._client.query_points(
            self._collection.name,
            query=embed_texts(usable(self._embedder), [query])[0].tolist(),
            query_filter=models.Filter(must=[own]),
            limit=limit,
            with_payload=[ID],
        ).points
        return {str((one.payload or {}).get(ID)): float(one.score) for one in points}

    def close(self) -> None:
        """Close the client and the embedder."""
        self._client.close()
        if self._embedder is not None:
            self._embedder.close()


def usable(embedder: Embedder | None) -> Embedder:
    """The embedder, which knows how long its vectors are. Raises ConfigError where there is none,
    EmbedderUnavailable."""
    if embedder is None:
        raise ConfigError(
            "this index needs an embedder, and none is set up",
            hint="run: relay memory setup; or name one in memory.config.embedder; or use the"
            " backend 'local', which needs none",
        )
    if embedder.dims == 0:
        embed_texts(embedder, ["a"])  # its first answer shows it
    return embedder


def _prepare(path: str) -> None:
    """The folder. qdrant-client reads all of it before it looks at the lock; and killed while it
    writes its first ``meta.json``, it leaves an empty one that it cannot read."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    with open(os.path.join(path, ".lock"), "a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(
                f"another program has {path} open",
                hint="end that; an embedded qdrant is one program's alone, a server is for many",
            ) from None
        meta = os.path.join(path, "meta.json")
        if os.path.exists(meta) and os.path.getsize(meta) == 0:
            os.unlink(meta)


def _former(payload: Mapping[str, Any]) -> Memory | None:
    """The memory, or None for what is not of relay's or was spoilt by others."""
    text, record = payload.get(_TEXT), payload.get(_RECORD)
    if payload.get(_OURS) != _VERSION or not isinstance(text, str) or not isinstance(record, str):
        return None
    try:
        return from_json({**json.loads(record), "text": text.strip()})
    except (ValueError, TypeError, RelayError):
        return None
