"""Where the backend of a desk comes from, and what is to be done for it while nobody asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from relay.config.memory_spec import StoreSpec
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.memory.backend import Backend
from relay.memory.embedding import Embedder
from relay.memory.embedding.numeric import have_numpy
from relay.memory.embedding.setup import installed
from relay.memory.local.store import LocalStore
from relay.memory.opening import make_embedder

#: Vectors that are made before the next look for a request.
_VECTORS = 16


class Source(Protocol):
    """Opens the backend when it is first needed. Used by one thread."""

    def opened(self) -> Backend:
        """The backend. Raises RelayError."""

    def added(self, count: int) -> None:
        """So many memories are new, maybe."""

    def caught_up(self, now_ms: int) -> bool:
        """Do a little of what can be done while nobody asks; whether that was all."""

    @property
    def problem(self) -> str:
        """Why the backend is not what it could be, or ""."""

    def close(self) -> None:
        """Close the backend, if it is open."""


class LocalSource:
    """The local store; ``spec`` may name an embedder, else it is the one that is set up.

    ``log`` is for what nobody waits for.
    """

    def __init__(self, home: Home, spec: StoreSpec, log: Callable[[str], None]) -> None:
        self._home = home
        self._spec = spec
        self._log = log
        self._named = "embedder" in spec.config
        self._store: LocalStore | None = None
        self._hybrid = False
        self._problem = ""  # why there is no embedder, although it is set up
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
        """Their vectors are missing."""
        self._pending += count

    def caught_up(self, now_ms: int) -> bool:
        """Make some of the vectors that are missing."""
        if self._store is None or not self._hybrid or not self._pending:
            return True
        before = self._pending
        self._pending = self._store.catch_up(_VECTORS, now_ms=now_ms)
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
            self._log(f"no vectors for the memory: {error.message}")
            return None
