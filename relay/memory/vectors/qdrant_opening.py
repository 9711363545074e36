"""A client of qdrant's: of a server, or of a folder that is this process's alone."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any
from urllib.parse import urlsplit

from relay.core.errors import ConfigError, StorageError
from relay.memory.backend import StoreUnavailable
from relay.memory.vectors import payload
from relay.memory.vectors.faults import mapped, reason

#: Seconds for one request.
TIMEOUT = 10
#: Seconds that a folder which another process has open is waited for.
LOCKED = 10.0
COLLECTION = "relay"
#: The sparse vector's name; it is mem0's, so that both read what the other wrote.
WORDS = "bm25"
_NEW_META: dict[str, object] = {"collections": {}, "aliases": {}}
#: What qdrant-client warns of, and relay knows.
_KNOWN = r"(Local mode is not recommended|Payload indexes have no effect|Api key is used with)"


@dataclass(frozen=True)
class Opened:
    """A client. ``server``: its address, "" for ``path``. ``words``: the collection has sparse
    vectors; one that an older mem0 made has none."""

    client: Any
    collection: str
    server: str
    path: str
    words: bool

    @property
    def problem(self) -> str:
        """Why a search is not what it could be, or ""."""
        if self.words or not self.server:
            return ""
        return (
            f"the collection {self.collection!r} has no sparse vectors {WORDS!r}: it is searched by"
            " meaning alone; a new collection_name has them"
        )


def open_client(
    store: Mapping[str, Any],
    path: str,
    dims: int,
    embedder: str,
) -> Opened:
    """The client that ``store`` (a vector_store section, see config.memory_spec) names, with its
    collection made and checked. ``path``: the folder, when no server is named.

    Raises ConfigError, StoreUnavailable, StorageError.
    """
    try:
        importlib.import_module("qdrant_client")
    except ImportError as error:
        raise ConfigError(
            f"qdrant-client cannot be imported: {error}",
            hint=f"install it for relay's Python: {sys.executable} -m pip install qdrant-client",
        ) from error
    warnings.filterwarnings("ignore", message=_KNOWN, category=UserWarning)
    server = server_name(store)
    path = "" if server else str(store.get("path") or path)
    client = _remote(store, server) if server else _embedded(path)
    collection = str(store.get("collection_name") or COLLECTION)
    try:
        with mapped(server):
            words = _collection(client, collection, dims, embedder, local=not server)
        if not server:
            _make_durable(client, collection, path)
    except BaseException as error:
        client.close()
        if server and isinstance(error, StorageError):
            why = reason(error.__cause__ or error)
            raise ConfigError(
                f"{server} does not answer as a qdrant server does: {why}",
                hint="correct the address in memory.config; it has no path behind the port",
                details={"server": server},
            ) from error
        raise
    return Opened(client, collection, server, path, words)


def server_name(store: Mapping[str, Any]) -> str:
    """The address of the server without names and passwords; "" when there is none."""
    if url := store.get("url"):
        parts = urlsplit(str(url))
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return ""


def _remote(store: Mapping[str, Any], server: str) -> Any:
    from qdrant_client import QdrantClient

    with mapped(server):
        return QdrantClient(
            store["url"],
            api_key=store.get("api_key"),
            timeout=max(1, int(store.get("timeout") or TIMEOUT)),
            check_compatibility=False,  # it asks in a thread, and warns on stderr
        )


def _embedded(path: str) -> Any:
    """Raises StoreUnavailable when another process has the folder open for too long."""
    from qdrant_client import QdrantClient

    _prepare(path)
    end, pause = time.monotonic() + LOCKED, threading.Event()
    while True:
        # It reads everything before it looks at the lock: so that is looked at first.
        if not _is_locked(path):
            try:
                with mapped(""):
                    return QdrantClient(path=path, force_disable_check_same_thread=True)
            except StorageError as error:
                if "already accessed" not in error.message:
                    raise
        if time.monotonic() >= end:
            raise StoreUnavailable(
                f"another process has the memories in {path} open",
                hint="end the program that uses them; an embedded store is one process's alone,"
                " a server is for many",
                details={"path": path},
            )
        pause.wait(0.05)


def _prepare(path: str) -> None:
    """The folder, with a whole ``meta.json``: qdrant-client, killed while it writes the first one,
    leaves an empty file that it cannot read."""
    meta = os.path.join(path, "meta.json")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        # Under its lock, so that nobody's file that was written meanwhile is replaced.
        with open(os.path.join(path, ".lock"), "a+b") as lock:
            if not _locked(lock) or os.path.exists(meta) and os.path.getsize(meta) > 0:
                return
            temporary = f"{meta}.new"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(_NEW_META, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, meta)
    except OSError as error:
        raise StorageError(
            f"cannot make the folder of memories {path}: {error.strerror}",
            hint="make its parent writable, or set RELAY_HOME to another directory",
        ) from error


def _is_locked(path: str) -> bool:
    with open(os.path.join(path, ".lock"), "a+b") as lock:
        return not _locked(lock)


def _locked(file: IO[bytes]) -> bool:
    """Whether it could be locked, until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _collection(client: Any, name: str, dims: int, embedder: str, *, local: bool) -> bool:
    """Make it where it is missing; whether it has words."""
    from qdrant_client import models

    if not client.collection_exists(name):
        dense = models.VectorParams(size=dims, distance=models.Distance.COSINE, on_disk=True)
        sparse = models.SparseVectorParams(modifier=models.Modifier.IDF)
        try:
            client.create_collection(
                name, vectors_config=dense, sparse_vectors_config={WORDS: sparse}
            )
        except Exception:
            if not client.collection_exists(name):  # another client may have been faster
                raise
    params = client.get_collection(name).config.params
    size = getattr(params.vectors, "size", None)
    if size != dims:
        raise ConfigError(
            f"the collection {name!r} holds vectors of {size or 'several kinds'}"
            f"{' numbers' if size else ''}, but the embedder {embedder} makes such of {dims}",
            hint="choose the former embedder, or another collection_name in memory.config.vector_"
            "store; relay memory export and import move what is there",
            details={"dims": dims},
        )
    if not local:
        for field in payload.EXACT:
            client.create_payload_index(name, field, models.PayloadSchemaType.KEYWORD)
        client.create_payload_index(name, payload.UPDATED, models.PayloadSchemaType.INTEGER)
    return bool(params.sparse_vectors and WORDS in params.sparse_vectors)


def _make_durable(client: Any, collection: str, path: str) -> None:
    """What is written survives a power failure, and what is deleted is overwritten with zeros.

    qdrant-client commits each point to SQLite, with SQLite's defaults: these lack both.
    """
    try:
        connection = client._client.collections[collection].storage.storage
        assert isinstance(connection, sqlite3.Connection)
        connection.execute("PRAGMA synchronous=EXTRA")
        connection.execute("PRAGMA secure_delete=ON")
        (secure,) = connection.execute("PRAGMA secure_delete").fetchone()
        assert secure == 1
    except (AttributeError, KeyError, TypeError, AssertionError, sqlite3.Error) as error:
        raise StorageError(
            "this qdrant-client keeps embedded memories in a way that relay does not know, so what"
            " is forgotten might stay on the disk",
            hint="install qdrant-client 1.20 for relay's Python, or use a server",
        ) from error
    for name in (os.path.join(path, "meta.json"), path):
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
