"""Memories with mem0: on its qdrant store, which is read directly, or on any other of its own."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.core.errors import ConfigError, RelayError, StorageError
from relay.memory.backend import Backend
from relay.memory.days import day
from relay.memory.embedding import Embedder
from relay.memory.embedding.numeric import load_numpy
from relay.memory.records import Memory, Place
from relay.memory.vectors import mem0_config, payload
from relay.memory.vectors.embedding import Embedding, needed
from relay.memory.vectors.faults import mapped, reason
from relay.memory.vectors.port import Answer, Found
from relay.memory.vectors.qdrant_opening import LOCKED, TIMEOUT, FolderLock, Opened, open_client
from relay.memory.vectors.qdrant_points import QdrantReader
from relay.memory.vectors.vector_backend import VectorBackend

#: Rows of one listing: mem0 has no pages. Search engines give no more than the smaller number.
_ROWS_MAX = 1_000_000
_ROWS_FEW = 10_000
_MANY_ROWS = (
    *("azure_mysql", "chroma", "faiss", "mongodb", "oracledb", "pgvector", "qdrant", "supabase"),
)
#: Where mem0 has read whether it may tell anything.
_TELLING = ("mem0.memory.telemetry", "mem0.memory.main")
#: Given to mem0 beside what it makes itself.
_MEM0_SETS = (payload.TEXT, payload.PLACE, "updated_at")


def open_mem0(config: Mapping[str, Any], folder: str, embedder: Embedder | None) -> Backend:
    """The backend. ``config``: of a resolved StoreSpec; ``folder``: all that is on disk is in it.

    ``embedder`` None: mem0's own, when ``config`` names one. mem0 is imported here. Raises
    ConfigError, StoreUnavailable, StorageError; then the embedder stays the caller's.
    """
    parts = load(folder, telemetry=config.get("telemetry") is True)
    section = config.get("embedder")
    if embedder is None and section and section.get("provider") not in (None, "minilm", "none"):
        embedder = _mem0_embedder(parts, section)
    embedding = Embedding(needed(embedder))
    vector_store = config.get("vector_store") or {}
    _check_dims(mem0_config.wanted_dims(vector_store), embedding)
    provider, store = mem0_config.store(vector_store, folder, embedding.dims)
    if provider != "qdrant":
        return _elsewhere(parts, provider, store, embedding)
    path = os.path.join(folder, "qdrant")
    opened = open_client(store, path, embedding.dims, embedding.name)
    try:
        # mem0 asks for a path although it gets a client.
        given = {
            "client": opened.client,
            "path": opened.path or path,
            "collection_name": opened.collection,
            "embedding_model_dims": embedding.dims,
        }
        memory = _memory(parts, provider, given, embedding, opened.server)
        encoder = parts.Encoder()
        memory.vector_store._bm25_encoder = encoder
    except BaseException:
        opened.client.close()
        raise
    return VectorBackend(Mem0OnQdrant(opened, embedding, memory, encoder), opened.problem)


def _elsewhere(parts: Any, provider: str, store: dict[str, Any], embedding: Embedding) -> Backend:
    """On a store that is not qdrant. In a folder, that is locked: of two processes with faiss each
    would write over what the other has saved, and none would say so."""
    server = mem0_config.server(provider, store)
    lock = None if server else FolderLock(str(store["path"]), LOCKED)
    try:
        memory = _memory(parts, provider, store, embedding, server)
    except BaseException:
        if lock is not None:
            lock.close()
        raise
    return VectorBackend(Mem0Points(memory, provider, server, lock, embedding))


def load(folder: str, *, telemetry: bool) -> Any:
    """The module mem0_parts. mem0 reads where it may write, and what it may tell whom, when it is
    imported. Raises ConfigError when it cannot be imported."""
    home = os.path.join(folder, "mem0")
    wanted = {"MEM0_DIR": home, "MEM0_TELEMETRY": str(telemetry)}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    # Whatever goes wrong is raised too; in a log it could hold texts, for ever.
    logging.getLogger("mem0").setLevel(logging.CRITICAL)
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
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
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)  # another store may be opened at the same time
            else:
                os.environ[name] = value
    if not telemetry:
        # Somebody may have imported mem0 before, without a word about it.
        for module in (sys.modules.get(name) for name in _TELLING):
            if module is not None:
                vars(module)["MEM0_TELEMETRY"] = False
    return mem0_parts


class _Mem0Writer:
    """Writing through mem0's own Memory, which embeds and stores."""

    name = "mem0"

    def __init__(self, memory: Any, server: str) -> None:
        self._memory = memory
        self._server = server

    def insert(self, memories: Sequence[Memory]) -> list[str]:
        """One after the other: mem0 takes no batches without its LLM."""
        return [self._add(memory) for memory in memories]

    def _add(self, memory: Memory) -> str:
        with mapped(self._server):
            added = self._memory.add(
                memory.text,
                user_id=payload.place_name(memory.place),
                metadata=_metadata(memory),
                infer=False,
            )
        return str(added["results"][0]["id"])

    def replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        """mem0 merges the metadata; every field is given."""
        with mapped(self._server):
            self._memory.update(
                key, text=memory.text if text_changed else None, metadata=_metadata(memory)
            )

    def remove(self, key: str) -> None:
        """By mem0's id."""
        with mapped(self._server):
            self._memory.delete(key)


class Mem0OnQdrant(_Mem0Writer, QdrantReader):
    """mem0 writes, into its qdrant store; relay reads that as its own, words and all."""

    def __init__(self, opened: Opened, embedding: Embedding, memory: Any, encoder: Any) -> None:
        _Mem0Writer.__init__(self, memory, opened.server)
        QdrantReader.__init__(self, opened, embedding)
        self._encoder = encoder

    def _add(self, memory: Memory) -> str:
        self._encoder.also = day(memory.updated_ms)
        with self._changing():
            key = super()._add(memory)
        self._written(key, memory)
        return key

    def replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        """With its words."""
        self._encoder.also = day(memory.updated_ms)
        with self._changing():
            super().replace(key, memory, text_changed=text_changed)
        self._written(key, memory)

    def remove(self, key: str) -> None:
        """With its words."""
        with self._changing():
            super().remove(key)
        self._removed(key)

    def close(self) -> None:
        """mem0, then the client and the embedder."""
        self._memory.close()
        QdrantReader.close(self)


class Mem0Points(_Mem0Writer):
    """The port (see relay.memory.vectors.port) on any store of mem0's, by what all of them can.

    What they list comes whole and in no order, so that an export or a list reads all of a place.
    """

    alone = False

    def __init__(
        self,
        memory: Any,
        provider: str,
        server: str,
        lock: FolderLock | None,
        embedding: Embedding,
    ) -> None:
        """``lock``: of the folder, when there is no server."""
        super().__init__(memory, server)
        self._store = memory.vector_store
        self._provider, self._lock, self._embedding = provider, lock, embedding
        self._rows_max = _ROWS_MAX if provider in _MANY_ROWS else _ROWS_FEW

    @property
    def embedder(self) -> str:
        """The embedder's name."""
        return self._embedding.name

    def fetch(self, keys: Sequence[str]) -> list[Found]:
        """One after the other."""
        with mapped(self._server):
            rows = [self._store.get(vector_id=key) for key in keys]
        return _memories(row for row in rows if row is not None)

    def match(self, fields: Mapping[str, str | int], limit: int) -> list[Found]:
        """By fields."""
        return _memories(self._rows(fields, limit))

    def with_ids(self, ids: Sequence[str]) -> list[Found]:
        """One after the other."""
        return [found for id_ in ids for found in self.match({payload.ID: id_}, 2)]

    def scan(
        self, fields: Mapping[str, str | int], names: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """All at once. Raises StorageError rather than to leave some out."""
        rows = self._rows(fields, self._rows_max)
        if len(rows) >= self._rows_max:
            raise StorageError(
                f"the store {self._provider} holds more memories than mem0 can list:"
                f" {self._rows_max}",
                hint="use mem0 or relay's own backend 'qdrant' with a qdrant server",
            )
        for row in rows:
            if payload.from_payload(row.payload) is not None:
                yield str(row.id), row.payload

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        """All of the places, put in order here."""
        found = [
            one.memory
            for place in places
            for one in _memories(
                self._rows({payload.PLACE: payload.place_name(place)}, self._rows_max)
            )
        ]
        if before is not None:
            found = [one for one in found if (one.updated_ms, one.id) < before]
        return sorted(found, key=lambda one: (one.updated_ms, one.id), reverse=True)[:limit]

    def counts(self) -> dict[Place, int]:
        """Counted one by one."""
        names = Counter(fields.get(payload.PLACE) for _, fields in self.scan({}, [payload.PLACE]))
        known = ((payload.place_of(name), count) for name, count in names.items())
        return {place: count for place, count in known if place is not None}

    def find(self, query: str, words: Sequence[str], place: Place, count: int) -> Answer:
        """What mem0 finds, with its own scores."""
        with mapped(self._server):
            answer = self._memory.search(
                query.replace("\0", " "),
                filters={payload.PLACE: payload.place_name(place)},
                top_k=count,
                threshold=0.0,
                show_expired=True,
            )
        rows = [
            (str(row["id"]), row)
            for row in answer["results"]
            if (row.get("metadata") or {}).get(payload.OURS) == payload.VERSION
        ]
        return Answer(
            None,
            {key: float(row["score"]) for key, row in rows},
            {key: str(row["metadata"].get(payload.ID)) for key, row in rows},
        )

    def size(self) -> int:
        """Of the files, where they are in a folder."""
        total = 0
        for folder, _, names in os.walk(self._lock.folder) if self._lock else ():
            total += sum(os.stat(os.path.join(folder, name)).st_size for name in names)
        return total

    def close(self) -> None:
        """mem0, its connections as far as they can be closed, and the embedder."""
        self._memory.close()
        for name in ("client", "connection_pool"):
            close = getattr(getattr(self._store, name, None), "close", None)
            if callable(close):
                with mapped(self._server):
                    close()
        if self._lock is not None:
            self._lock.close()
        self._embedding.close()

    def _rows(self, fields: Mapping[str, str | int], limit: int) -> list[Any]:
        with mapped(self._server):
            listed = self._store.list(
                filters={payload.OURS: payload.VERSION, **fields}, top_k=limit
            )
        if isinstance(listed, list | tuple) and listed and isinstance(listed[0], list | tuple):
            listed = listed[0]
        return [row for row in listed or () if getattr(row, "payload", None)]


def _memory(
    parts: Any, provider: str, store: dict[str, Any], embedding: Embedding, server: str
) -> Any:
    try:
        with mapped(server):
            if address := store.get("connection_string") if provider == "pgvector" else None:
                _reach(str(address))
            memory = parts.make(provider, store, embedding)
    except StorageError as error:
        cause = error.__cause__
        if isinstance(cause, ValueError | TypeError | ImportError):
            raise ConfigError(
                f"mem0 cannot use its store {provider} so: {reason(cause)}",
                hint="correct memory.config.vector_store, or install what it asks for into"
                f" relay's Python: {sys.executable}",
            ) from error
        raise
    pool = getattr(memory.vector_store, "connection_pool", None)
    if pool is not None and hasattr(pool, "timeout"):
        # Its own pauses between two tries become minutes; so what asks next makes it try anew.
        pool.timeout = pool.reconnect_timeout = TIMEOUT
    return memory


def _reach(address: str) -> None:
    """Raises what is wrong with a PostgreSQL: psycopg's pool, which mem0 uses, connects later and
    then says no more than that it took too long."""
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError:
        return  # psycopg2's pool connects at once; without either mem0 says what is missing
    psycopg.connect(address).close()


def _mem0_embedder(parts: Any, section: Mapping[str, Any]) -> Embedder:
    provider, config = mem0_config.embedder(section)
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


def _check_dims(wanted: int | None, embedding: Embedding) -> None:
    if wanted is not None and wanted != embedding.dims:
        raise ConfigError(
            f"memory.config.vector_store wants vectors of {wanted} numbers, but the embedder"
            f" {embedding.name} makes such of {embedding.dims}",
            hint="leave embedding_model_dims out: relay asks the embedder",
        )


def _metadata(memory: Memory) -> dict[str, str | int]:
    fields = payload.to_payload(memory)
    return {key: value for key, value in fields.items() if key not in _MEM0_SETS}


def _memories(rows: Any) -> list[Found]:
    read = ((str(row.id), payload.from_payload(row.payload)) for row in rows)
    return [Found(key, memory) for key, memory in read if memory is not None]
