"""From a spec to the store that is meant, opened when it is first needed.

Whatever a store needs beyond SQLite is imported only then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from relay.config.memory_providers import own_embedder
from relay.config.memory_spec import StoreSpec
from relay.core.errors import ConfigError, RelayError
from relay.core.paths import Home
from relay.memory.backend import Backend
from relay.memory.embedding import Embedder
from relay.memory.embedding.numeric import have_numpy
from relay.memory.embedding.setup import installed
from relay.memory.kept_saves import KeptSaves, path_of
from relay.memory.local.local_store import LocalStore
from relay.memory.write_queue import WriteQueue

_OLLAMA, _OPENAI = "http://127.0.0.1:11434", "https://api.openai.com"
_OLLAMA_MODEL = "nomic-embed-text"
#: Vectors that are made before the next look for a request.
_VECTORS = 16
#: Seconds for which kept saves are applied before the next look for a request.
_APPLY_FOR = 0.5

#: From a spec to its backend, as ``make`` does.
Opener = Callable[[StoreSpec, Home], Backend]


def make(spec: StoreSpec, home: Home) -> Backend:
    """The opened store. ``spec`` must be resolved.

    Raises ConfigError for what cannot be used, StoreUnavailable when a server is away,
    StorageError; EmbedderUnavailable when weights are damaged.
    """
    if spec.backend == "custom":
        from relay.memory.custom import load

        return load(spec, home)
    embedder = make_embedder(spec.config, home)
    try:
        if spec.backend == "local":
            return LocalStore(home.memory, embedder)
        folder = os.path.join(home.memory, spec.backend)
        if spec.backend == "mem0":
            from relay.memory.vectors.mem0_points import open_mem0

            return open_mem0(spec.config, folder, embedder)
        from relay.memory.vectors.qdrant_points import open_qdrant

        return open_qdrant(spec.config, folder, embedder)
    except BaseException:
        if embedder is not None:
            embedder.close()
        raise


def make_embedder(config: Mapping[str, Any], home: Home) -> Embedder | None:
    """The embedder that ``config`` names, else MiniLM where it is set up.

    None: there is none, none is wanted, or mem0 itself makes it.
    """
    section = config.get("embedder") or {}
    provider = section.get("provider", "minilm")
    if provider == "none" or not own_embedder(section):
        return None
    if provider == "minilm":
        return _minilm(home, asked="embedder" in config)
    from relay.memory.embedding.endpoint import Api, EndpointEmbedder

    api = Api.OLLAMA if provider == "ollama" else Api.OPENAI
    model = section.get("model") or _OLLAMA_MODEL
    return EndpointEmbedder(
        api,
        section.get("url") or (_OLLAMA if api is Api.OLLAMA else _OPENAI),
        model,
        key=str(section.get("api_key") or ""),
        dims=int(section.get("dims") or 0),
        timeout=float(section.get("timeout") or 20.0),
    )


def _minilm(home: Home, *, asked: bool) -> Embedder | None:
    folder = installed(home.models)
    if folder is None or not have_numpy():
        if not asked:
            return None
        raise ConfigError(
            "memory: the embedder 'minilm' is not set up here", hint="relay memory setup"
        )
    from relay.memory.embedding.minilm import MiniLM

    return MiniLM(folder)


class LocalAccess:
    """The local store; ``spec`` may name an embedder, else it is the one that is set up."""

    def __init__(self, spec: StoreSpec, home: Home) -> None:
        self._spec = spec
        self._home = home
        self._named = "embedder" in spec.config
        self._store: LocalStore | None = None
        self._hybrid = False
        self._problem = ""  # why there is no embedder, although one is set up
        self._pending = 0  # vectors that are missing, as far as is known

    def opened(self) -> LocalStore:
        """The store; anew when an embedder was set up since it was opened."""
        if self._store is not None and (self._hybrid or self._problem or not self._can_embed()):
            return self._store
        self.close()
        embedder = self._embedder()
        self._hybrid = embedder is not None
        self._store = LocalStore(self._home.memory, embedder)
        self._pending = 1 if self._hybrid else 0
        return self._store

    def added(self, count: int) -> None:
        """Up to ``count`` memories are new: their vectors are missing."""
        self._pending += count

    def caught_up(self) -> bool:
        """Make some of the vectors that are missing, while nobody asks; whether that was all."""
        if self._store is None or not self._hybrid or not self._pending:
            return True
        before = self._pending
        self._pending = self._store.catch_up(_VECTORS)
        # No progress: the embedder is away. The next search or save tries again.
        if self._pending >= before:
            self._pending = 0
        return not self._pending

    @property
    def problem(self) -> str:
        """Why there are no vectors, although there could be."""
        return self._problem

    def close(self) -> None:
        """Close the store, if it is open."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _can_embed(self) -> bool:
        return not self._named and installed(self._home.models) is not None and have_numpy()

    def _embedder(self) -> Embedder | None:
        try:
            return make_embedder(self._spec.config, self._home)
        except RelayError as error:
            if self._named:
                raise
            self._problem = error.message
            print(f"no vectors for the memory: {error.message}", flush=True)
            return None


class QueuedAccess:
    """A store that may be away: what it cannot take now waits in a WriteQueue."""

    problem = ""  # its statistics say what is wrong

    def __init__(self, spec: StoreSpec, home: Home, opener: Opener) -> None:
        self._spec = spec
        self._home = home
        self._opener = opener
        self._queue: WriteQueue | None = None

    def opened(self) -> Backend:
        """The store with what is kept for it. Raises RelayError."""
        if self._queue is None:
            path = path_of(self._home.memory, self._spec.key())
            saves = KeptSaves(path, title=self._spec.title)
            self._queue = WriteQueue(
                lambda: self._opener(self._spec, self._home), saves, name=self._spec.backend
            )
        return self._queue

    def added(self, count: int) -> None:
        """Nothing follows: the save itself makes the vector."""

    def caught_up(self) -> bool:
        """Apply some of what is kept; also True when the store is away, and it must wait."""
        if self._queue is None:
            return True
        try:
            before = self._queue.waiting()
            left = self._queue.catch_up(_APPLY_FOR)
        except RelayError:
            return True  # the next request is told why
        return not left or left >= before

    def close(self) -> None:
        """Close the store and the queue."""
        queue, self._queue = self._queue, None
        if queue is not None:
            queue.close()


#: Opens a store's backend when it is first needed. Used by one thread.
StoreAccess = LocalAccess | QueuedAccess


def folder_of(spec: StoreSpec, home: Home) -> str | None:
    """The folder in which the store is on this disk, for people; None where that is not known."""
    if spec.backend == "local":
        return home.memory
    store = spec.config.get("vector_store")
    if not isinstance(store, dict) or store.get("url"):
        return None
    return str(store.get("path") or os.path.join(home.memory, spec.backend))
