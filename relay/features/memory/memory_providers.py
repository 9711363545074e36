"""The sections of a store's configuration: its server, which embedders and LLMs there are. Pure.

The embedders of mem0 2.2 are written down here, so that a mistake is told without importing it.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Mapping
from typing import Any

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
#: Those whose address relay knows (relay.features.memory.llm); any other is asked as OpenAI is, by
#: ``url``.
LLMS = (
    *("anthropic", "deepseek", "gemini", "groq", "lmstudio", "ollama", "openai", "openrouter"),
    *("together", "vllm"),
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
_LLM_WORDS = {key: word for key, word in _EMBEDDER_WORDS.items() if word == "url"}
#: What stands in these has names of its own.
_FREE = ("headers", "default_headers", "http_client_proxies", "model_kwargs", "metadata", "extra")
_DEPTH_MAX = 8
_OPENAI_KEY = "OPENAI_API_KEY"

Section = dict[str, Any]


def plain(value: object, where: str, depth: int = 0) -> Any:
    """``value`` as plain JSON whose keys are in snake case. Raises ConfigError, naming the key."""
    if depth > _DEPTH_MAX:
        raise ConfigError(f"{where} is nested too deeply")
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [plain(item, where, depth + 1) for item in value]
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} is of the type {type(value).__name__}",
            hint="give a text, a number, True, or a dict",
        )
    free = where.rpartition(".")[2] in _FREE
    found: Section = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise ConfigError(f"{where}: the key {key!r} is no text")
        name = key if free else snake(key)
        if name in found:
            raise ConfigError(f"{where} has {name!r} twice", hint=f"leave out {key!r}")
        found[name] = plain(item, f"{where}.{name}", depth + 1)
    return found


def snake(key: str) -> str:
    """``vectorStore`` as ``vector_store``; what is no name stays as it is."""
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]*", key):
        return key
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def vector_store(value: object, where: str) -> Section:
    """The section of qdrant, the one store of vectors; a server is its ``url``."""
    found = _section(value, where, _STORE_WORDS)
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
    _url(found, where)
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
    found = _section(value, where, _EMBEDDER_WORDS)
    provider = found.setdefault("provider", "minilm")
    _known(provider, (*EMBEDDERS, *MEM0_EMBEDDERS), f"{where}: there is no embedder")
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
    _url(found, where)
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


def llm(value: object, where: str) -> Section:
    """The section of an LLM, flat; who uses it says which of them it can ask."""
    found = _section(value, where, _LLM_WORDS)
    if "provider" not in found:
        raise ConfigError(
            f"{where} has no provider", hint='write {"provider": "ollama", "model": "…"}'
        )
    if not found.get("url") or not isinstance(found["provider"], str):
        _known(found["provider"], LLMS, f"{where}: without a url relay knows no LLM of")
    _url(found, where)
    if not isinstance(found.get("model"), str) or not found["model"]:
        raise ConfigError(f"{where} needs the name of a model")
    return found


def _section(value: object, where: str, words: Mapping[str, str]) -> Section:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"{where} must be a dictionary, not {value!r}", hint='write {"provider": "…"}'
        )
    given = dict(value)
    nested = given.pop("config", None)
    found: Section = {}
    for part in (given, nested or {}):
        if not isinstance(part, Mapping):
            raise ConfigError(f"{where}.config must be a dictionary, not {part!r}")
        for key, item in part.items():
            name = words.get(key, key)
            if name in found:
                raise ConfigError(f"{where} has {name!r} twice", hint=f"leave out {key!r}")
            found[name] = item
    _no_doubles(found, where)
    return found


def _no_doubles(found: Section, where: str) -> None:
    for key, name in found.items():
        if not key.endswith("_env"):
            continue
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # What stands here may be the secret itself: it is not repeated.
            raise ConfigError(
                f"{where}: {key} is not the name of an environment variable",
                hint=f"write the variable's name, or the value itself as {key[:-4]!r}",
            )
        if key[:-4] in found:
            raise ConfigError(f"{where} has {key[:-4]!r} and {key!r}", hint="leave one out")


def _known(word: object, known: tuple[str, ...], what: str) -> None:
    if word not in known:
        raise ConfigError(f"{what} {word!r}", hint=did_you_mean(str(word)[:80], known))


def _only(found: Section, known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {where}", hint=did_you_mean(key[:80], known))


def _url(found: Section, where: str) -> None:
    url = found.get("url")
    if url is None:
        return
    if not isinstance(url, str) or not re.match(r"https?://[^/\s]", url):
        raise ConfigError(f"{where}: the url must begin with http:// or https://")
    found["url"] = url.rstrip("/")


def _number(found: Section, key: str, least: float, most: float, where: str) -> None:
    value = found.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{where}: {key} must lie between {least:g} and {most:g}, not {value!r}")
