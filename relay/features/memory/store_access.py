"""From a spec to the store, and to what finds by meaning in it, opened when it is first needed.

The store is always the one in RELAY_HOME. Whatever is needed beyond SQLite is imported only then.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from relay.config.llm import LLMApi, on_server
from relay.core.errors import ConfigError, RelayError
from relay.core.files import unlink_if_there
from relay.core.paths import Home
from relay.features.memory.embedding import Embedder, have_numpy
from relay.features.memory.embedding.setup import installed
from relay.features.memory.indexes import Index, IndexMeaning
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.local.search import Meaning
from relay.features.memory.records import ORIGIN, Memory, Place, Scope, may_replace
from relay.features.memory.spec import StoreSpec, own_embedder

_OLLAMA, _OPENAI = "http://127.0.0.1:11434", "https://api.openai.com"
_OLLAMA_MODEL = "nomic-embed-text"
#: Memories that are taken over before the next look for a request.
_AT_ONCE = 16


def make(spec: StoreSpec, home: Home) -> Index:
    """The index that ``spec``, which must be resolved, names. Raises whatever is wrong with it."""
    if spec.backend == "searcher":
        from relay.features.memory.indexes.searcher import SearcherIndex, load

        return SearcherIndex(load(spec, home))
    folder = os.path.join(home.memory, spec.backend)
    embedder = make_embedder(spec.config, home)
    try:
        if spec.backend == "mem0":
            from relay.features.memory.indexes.mem0 import Mem0Index

            return Mem0Index(spec.config, folder, embedder)
        from relay.features.memory.indexes.qdrant import QdrantIndex

        store: Any = spec.config.get("vector_store") or {}
        return QdrantIndex(store, os.path.join(folder, "qdrant"), embedder)
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
    from relay.features.memory.embedding.endpoint import PATHS, TIMEOUT, EndpointEmbedder

    api = LLMApi.OLLAMA if provider == "ollama" else LLMApi.OPENAI
    url = section.get("url") or (_OLLAMA if api is LLMApi.OLLAMA else _OPENAI)
    name, key = section.get("model") or _OLLAMA_MODEL, str(section.get("api_key") or "")
    return EndpointEmbedder(
        on_server(api, url, PATHS[api], name, key),
        dims=int(section.get("dims") or 0),
        timeout=float(section.get("timeout") or TIMEOUT),
    )


def _minilm(home: Home, *, asked: bool) -> Embedder | None:
    folder = installed(home.models)
    if folder is None or not have_numpy():
        if not asked:
            return None
        raise ConfigError(
            "memory: the embedder 'minilm' is not set up here", hint="relay memory setup"
        )
    from relay.features.memory.embedding.minilm import MiniLM

    return MiniLM(folder)


class StoreAccess:
    """The store, with what ``spec`` names for finding by meaning. Used by one thread."""

    def __init__(self, spec: StoreSpec, home: Home) -> None:
        self._spec = spec
        self._home = home
        self._named = "embedder" in spec.config
        self._store: LocalStore | None = None
        self._index: IndexMeaning | None = None
        if spec.backend != "local":
            self._index = IndexMeaning(
                spec.key(),
                spec.title,
                lambda: make(spec, home),
                filled=spec.backend != "searcher",
            )
        self._problem = ""  # why there is no embedder, although one is set up
        self._pending = 0  # memories that wait for their vectors, as far as is known

    def opened(self, places: Sequence[Place] | None = None) -> LocalStore:
        """The store; anew when an embedder was set up since it was opened.

        ``places``: what is in these is wanted, for which the index is opened, if it can be now.
        """
        if self._store is None or self._index is None and self._can_embed_now():
            self.close()
            meaning = self._index if self._index is not None else self._vectors()
            self._store = LocalStore(self._home.memory, meaning)
            take_over(self._home.memory, self._store)
            self._pending = 1
        if places is not None and self._index is not None:
            self._index.open(self._store, places)
        return self._store

    def added(self, count: int) -> None:
        """Up to ``count`` memories are new."""
        self._pending += count

    def caught_up(self) -> bool:
        """Let some of what is new be found by its meaning, while nobody asks; whether that was all,
        or all that can be done now."""
        if self._store is None:
            return True
        if self._index is not None:
            # Others save into the same files: the index asks them each time.
            self._index.open(self._store)
        elif not self._pending:
            return True
        before, self._pending = self._pending, self._store.catch_up(_AT_ONCE)
        if self._index is not None:
            return not self._pending or self._index.away
        # No progress: the embedder is away. The next search or save tries again.
        if self._pending >= before:
            self._pending = 0
        return not self._pending

    @property
    def index(self) -> IndexMeaning | None:
        """The index behind the store."""
        return self._index

    @property
    def problem(self) -> str:
        """Why there are no vectors, although there could be."""
        return self._problem

    def close(self) -> None:
        """Close the store, if it is open."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _can_embed_now(self) -> bool:
        without = self._store is not None and self._store.meaning is None and not self._problem
        if not without or self._named:
            return False
        return installed(self._home.models) is not None and have_numpy()

    def _vectors(self) -> Meaning | None:
        try:
            embedder = make_embedder(self._spec.config, self._home)
            if embedder is None:
                return None
            from relay.features.memory.local.vectors import VectorMeaning

            return VectorMeaning(embedder)
        except RelayError as error:
            if self._named:
                raise
            self._problem = error.message
            print(f"no vectors for the memory: {error.message}", flush=True)
            return None


#: Of saves that an earlier relay kept for a store that was away: they go into the files, once.
_COLUMNS = "id, text, scope, owner, agent, session, supersedes, meta, now_ms"


def take_over(folder: str, store: LocalStore) -> None:
    """Take what is in ``folder``/kept into ``store``, in the order in which it was saved, and
    remove the files. One that cannot be read, or is another process's still, stays."""
    kept = os.path.join(folder, "kept")
    try:
        names = sorted(name for name in os.listdir(kept) if name.endswith(".db"))
    except OSError:
        return
    for name in names:
        path = os.path.join(kept, name)
        try:
            with open(path + ".lock", "a+b") as lock:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _take(path, store)
                for tail in ("", "-wal", "-shm", ".lock"):
                    unlink_if_there(path + tail)
        except (OSError, sqlite3.Error, ValueError, RelayError) as error:
            print(f"kept saves in {path} cannot be taken over yet: {error}", flush=True)


def _take(path: str, store: LocalStore) -> None:
    with closing(sqlite3.connect(path)) as db:
        ids = dict(db.execute("SELECT told, id FROM aliases").fetchall())
        for row in db.execute(f"SELECT {_COLUMNS} FROM saves ORDER BY seq").fetchall():
            store.restore([_memory(row, ids, store)])


def _memory(row: tuple[Any, ...], ids: dict[str, str], store: LocalStore) -> Memory:
    id_, text, scope, owner, agent, session, supersedes, meta, now_ms = row
    place = Place(Scope(scope), owner)
    fields: dict[str, object] = {} if meta is None else json.loads(meta)
    supersedes = None if supersedes is None else ids.get(supersedes, supersedes)
    if supersedes is not None and agent is not None:
        # What an agent may not replace, or what nobody can look at now, it does not hide.
        own = (place, Place(Scope.AGENT, agent), Place(Scope.USER))
        try:
            old = store.get(supersedes)
        except RelayError:
            supersedes = None
        else:
            replaceable = old.place in own and may_replace(old, agent, fields.get(ORIGIN))
            supersedes = old.id if replaceable else None
    return Memory(id_, text, place, agent, session, now_ms, now_ms, supersedes, fields)
