"""From a spec to the backend that is meant; whatever it needs is imported only now."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from relay.config.memory_providers import own_embedder
from relay.config.memory_spec import StoreSpec
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.memory.backend import Backend
from relay.memory.embedding import Embedder
from relay.memory.embedding.numeric import have_numpy
from relay.memory.embedding.setup import installed

_OLLAMA, _OPENAI = "http://127.0.0.1:11434", "https://api.openai.com"
_OLLAMA_MODEL = "nomic-embed-text"


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
            from relay.memory.local.store import LocalStore

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
    key = section.get("api_key")
    return EndpointEmbedder(
        api,
        section.get("url") or (_OLLAMA if api is Api.OLLAMA else _OPENAI),
        model,
        key_env="api_key" if key else "",
        dims=int(section.get("dims") or 0),
        timeout=float(section.get("timeout") or 20.0),
        environ={"api_key": key} if key else {},
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
