"""The sections of a store's configuration: its server, and which embedders there are. Pure.

The embedders of mem0 2.2 are written down here, so that a mistake is told without importing it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from relay.config.llm import Section, check_known, check_url, section
from relay.core.errors import ConfigError
from relay.core.suggest import did_you_mean

#: What relay asks itself, for every backend; a provider of mem0's that has a ``url`` is asked as
#: OpenAI is.
EMBEDDERS = ("minilm", "none", "ollama", "openai")
#: Those that only mem0 knows.
MEM0_EMBEDDERS = (
    *("aws_bedrock", "azure_openai", "fastembed", "gemini", "huggingface", "langchain"),
    *("lmstudio", "together", "vertexai"),
)
_OWN_EMBEDDER_KEYS = ("provider", "model", "url", "api_key", "api_key_env", "dims", "timeout")
_QDRANT_KEYS = (
    *("provider", "url", "host", "port", "path", "api_key", "api_key_env", "https"),
    *("collection_name", "embedding_model_dims", "on_disk", "timeout"),
)
#: Other words for a key, in a store's section and in an embedder's.
_STORE_WORDS = {
    "collection": "collection_name",
    "dims": "embedding_model_dims",
    "embedding_dims": "embedding_model_dims",
}
_EMBEDDER_WORDS = {
    "embedding_dims": "dims",
    "embedding_model_dims": "dims",
    "base_url": "url",
    "ollama_base_url": "url",
    "openai_base_url": "url",
    "lmstudio_base_url": "url",
}
_OPENAI_KEY = "OPENAI_API_KEY"


def vector_store(value: object, where: str) -> Section:
    """The section of qdrant, the one store of vectors; a server is its ``url``."""
    found = section(value, where, _STORE_WORDS)
    if found.setdefault("provider", "qdrant") != "qdrant":
        raise ConfigError(
            f"{where}: relay keeps no memories in {str(found['provider'])[:80]!r}",
            hint="write the provider 'qdrant'; any other is searched by a searcher of your own",
        )
    _only(found, _QDRANT_KEYS, where)
    _number(found, "port", 1, 65535, where)
    _number(found, "embedding_model_dims", 1, 65536, where)
    host, port, https = (found.pop(key, None) for key in ("host", "port", "https"))
    if host is None and (port or https):
        raise ConfigError(f"{where} names no host beside its port", hint="write it into the url")
    if host is not None:
        found.setdefault("url", f"http{'s' if https else ''}://{host}:{port or 6333}")
    check_url(found, where)
    path = found.get("path")
    if path is not None and not (isinstance(path, str) and posixpath.isabs(path)):
        raise ConfigError(
            f"{where}: the path {path!r} is not an absolute one",
            hint="leave it out: then it is in RELAY_HOME",
        )
    if path is not None and "url" in found:
        raise ConfigError(
            f"{where} names a server and a path", hint="leave one out: path is for no server"
        )
    return found


def embedder(value: object, where: str, backend: str) -> Section:
    """An embedder's section, flat; ``url`` and ``dims`` whatever mem0 calls them."""
    found = section(value, where, _EMBEDDER_WORDS)
    provider = found.setdefault("provider", "minilm")
    check_known(provider, (*EMBEDDERS, *MEM0_EMBEDDERS), f"{where}: there is no embedder")
    if provider == "none" and backend in ("mem0", "qdrant"):
        raise ConfigError(
            f"{where}: the backend {backend!r} needs vectors, so it needs an embedder",
            hint="leave it out and run: relay memory setup; or use the backend 'local'",
        )
    if not own_embedder(found):
        if backend == "mem0":
            return found
        raise ConfigError(
            f"{where}: {provider!r} is an embedder of mem0's, not of the backend {backend!r}",
            hint="give the url of its OpenAI-compatible server, or use the backend 'mem0'",
        )
    _only(found, _OWN_EMBEDDER_KEYS, where)
    _number(found, "dims", 1, 16384, where)
    _number(found, "timeout", 0.1, 60, where)
    check_url(found, where)
    if not isinstance(found.get("model", "x"), str) or found.get("model") == "":
        raise ConfigError(f"{where}: the model must be a name, not {found['model']!r}")
    if provider not in ("minilm", "none", "ollama") and not found.get("model"):
        raise ConfigError(f"{where}: the embedder {provider!r} needs the name of a model")
    has_key = "api_key" in found or "api_key_env" in found
    if provider == "openai" and not found.get("url") and not has_key:
        found["api_key_env"] = _OPENAI_KEY  # its own server wants one
    return found


def own_embedder(section: Mapping[str, object]) -> bool:
    """Whether relay itself asks this one, so that mem0 need not know it."""
    provider = section.get("provider", "minilm")
    return provider in EMBEDDERS or bool(section.get("url")) and provider != "azure_openai"


def _only(found: Section, known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {where}", hint=did_you_mean(key[:80], known))


def _number(found: Section, key: str, least: float, most: float, where: str) -> None:
    value = found.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{where}: {key} must lie between {least:g} and {most:g}, not {value!r}")
