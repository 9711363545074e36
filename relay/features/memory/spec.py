"""What ``memory: {backend, config}`` says of how memories are found by meaning, checked. Pure.

Of the whole package a session imports nothing else than this, so it imports nothing that is large.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from relay.config.llm import (
    Section,
    check_known,
    check_url,
    llm_section,
    plain,
    resolve,
    section,
    snake,
)
from relay.core.errors import ConfigError, UsageError, did_you_mean

BACKENDS = ("local", "mem0", "qdrant")
#: Keys of ``config``, by backend. mem0's ``version`` has one value only, and is dropped.
CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "local": ("embedder", "llm"),
    "mem0": ("vector_store", "embedder", "llm"),
    "qdrant": ("vector_store", "embedder", "llm"),
}
_QDRANT_WORDS = ("url", "host", "port", "path", "api_key", "api_key_env", "collection", "https")
_NOT_USED = ("history_db_path", "reranker", "graph_store", "custom_instructions", "telemetry")
_MASK = "…"
_EMBEDDED = "within RELAY_HOME"
_SECRET = re.compile(
    r"(?:.*_)?(?:password|passwd|passphrase|token|secret|credentials?|connection_string|dsn"
    r"|authorization|(?:api|access|secret|account|private|service)_?key(?:_id)?|credentials_json)"
)
#: A user's name and password within an address.
_USERINFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


@dataclass(frozen=True)
class StoreSpec:
    """What finds by meaning in the store. ``config`` is plain JSON in snake case and without what
    parse_store understood:

    mem0 and qdrant: ``vector_store`` (of the provider qdrant), maybe ``embedder``; local: maybe
    ``embedder``; searcher, which nobody writes as a backend: nothing. A section is flat: its
    ``provider`` and, beside it, what mem0 nests in ``config``. In ``vector_store`` the names are
    mem0's (``collection_name``, ``embedding_model_dims``), a server is its ``url``; in ``embedder``
    an address is ``url`` and the vectors' length ``dims``. No ``embedder``: the default one.

    ``file`` and ``sha256``: of a searcher, the configuration that registers it.
    """

    backend: str = "local"
    config: Mapping[str, object] = field(default_factory=dict)
    file: str = ""
    sha256: str = ""

    def key(self) -> str:
        """16 hexadecimal digits: the same index has the same, whatever embeds and with which key.

        Under it the files say what the index holds.
        """
        named = {key: item for key, item in self.config.items() if key != "embedder"}
        return _digest([self.backend, _without_secrets(named), self.file])

    def fingerprint(self) -> str:
        """16 hexadecimal digits over everything: what is open for another one is opened anew."""
        return _digest([self.backend, self.config, self.file, self.sha256])

    def resolved(self, environ: Mapping[str, str]) -> StoreSpec:
        """With the values of the variables that ``…_env`` keys name. Raises ConfigError.

        Done where the user's environment is: in the session and on the command line.
        """
        return replace(self, config=resolve(self.config, environ))

    def to_json(self) -> dict[str, object]:
        """For a request to the broker; with the secrets that it holds."""
        found: dict[str, object] = {"backend": self.backend, "config": dict(self.config)}
        return found | ({"file": self.file, "sha256": self.sha256} if self.file else {})

    @classmethod
    def from_json(cls, value: object) -> StoreSpec:
        """The opposite of ``to_json``; None is the default store. Raises UsageError."""
        if value is None:
            return cls()
        if not isinstance(value, dict) or not set(value) <= set(cls.__dataclass_fields__):
            raise UsageError("the store is not what relay sends: it has unknown fields")
        file, sha256 = value.get("file", ""), value.get("sha256", "")
        backend, config = value.get("backend", "local"), value.get("config", {})
        if not isinstance(file, str) or not isinstance(sha256, str):
            raise UsageError("the store is not what relay sends: its file is not text")
        if backend == "searcher":
            if config or not file or not sha256:
                raise UsageError("a searcher is named by its file and the hash of that")
            return cls(backend, {}, file, sha256)
        try:
            return parse_store(backend, config)
        except ConfigError as error:
            raise UsageError(error.message, hint=error.hint) from None

    @property
    def title(self) -> str:
        """What it is and where, for people: no secret is in it."""
        if self.backend == "searcher":
            return f"the searcher of {self.file}"
        store = self.config.get("vector_store")
        if not isinstance(store, Mapping):
            return self.backend
        provider = str(store["provider"])
        title = provider if provider == self.backend else f"{self.backend} on {provider}"
        if url := store.get("url"):
            return f"{title} at {masked(url)}"
        return f"{title} {'in ' + str(store['path']) if store.get('path') else _EMBEDDED}"

    def masked(self) -> dict[str, object]:
        """As ``to_json``, without what is secret, for people and logs."""
        return {**self.to_json(), "config": masked(self.config)}


def parse_store(backend: object, config: object = None) -> StoreSpec:
    """``memory: {backend, config}`` as written, in either spelling. Raises ConfigError.

    The ``llm`` in it belongs to no store: see parse_llm.
    """
    if backend == "custom":
        raise ConfigError(
            "memory: the backend 'custom' is gone: memories are in relay's own store",
            hint='register a searcher, which finds more of them: "memory": {"searcher": my_search}',
        )
    if backend not in BACKENDS or not isinstance(backend, str):
        raise ConfigError(
            f"memory: there is no backend {backend!r}",
            hint=did_you_mean(str(backend)[:80], BACKENDS),
        )
    given = _config(config)
    found = plain(given, "memory.config")
    found.pop("llm", None)
    if found.get("version") in ("v1.0", "v1.1"):
        found.pop("version")
    if backend == "qdrant":
        found = _qdrant(found)
    _only(found, backend)
    parsed: dict[str, object] = {}
    if backend in ("mem0", "qdrant"):
        where = "memory.config.vector_store"
        parsed["vector_store"] = vector_store(found.get("vector_store") or {}, where)
    if found.get("embedder") is not None:
        where = "memory.config.embedder"
        parsed["embedder"] = embedder(found["embedder"], where, backend)
    return StoreSpec(backend, parsed)


def parse_llm(config: object) -> dict[str, Any] | None:
    """The ``llm`` of ``memory.config``, flat and checked, or None. Raises ConfigError."""
    for key, value in _config(config).items():
        if key == "llm" and value is not None:
            where = "memory.config.llm"
            return llm_section(plain(value, where), where)
    return None


def masked(value: Any) -> Any:
    """``value`` with every secret as “…”: by its key, by its shape, within an address."""
    if isinstance(value, Mapping):
        return {
            key: _MASK if _is_secret(key) and item else masked(item) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item) for item in value]
    if isinstance(value, str):
        from relay.directive.redact import redact

        return redact(_USERINFO.sub(_MASK, value))
    return value


def _config(config: object) -> dict[str, object]:
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"memory: the config must be a dictionary, not a {type(config).__name__}",
            hint='write {"vector_store": {…}, "embedder": {…}}',
        )
    found: dict[str, object] = {}
    for key, value in config.items():
        name = snake(str(key))
        if name in found:
            raise ConfigError(f"memory.config has {name!r} twice", hint=f"leave out {key!r}")
        found[name] = value
    return found


def _qdrant(found: dict[str, Any]) -> dict[str, Any]:
    """The server's address may stand beside the embedder, too."""
    words = {key: found.pop(key) for key in list(found) if key in _QDRANT_WORDS}
    if words and found.get("vector_store"):
        raise ConfigError(
            f"memory.config has {next(iter(words))!r} beside vector_store",
            hint="write it within vector_store",
        )
    return {**found, "vector_store": words} if words else found


def _only(found: Mapping[str, object], backend: str) -> None:
    known = CONFIG_KEYS[backend]
    for key in found:
        if key in known:
            continue
        if backend == "mem0" and key in _NOT_USED:
            raise ConfigError(
                f"memory.config: relay has no use for mem0's {key!r}", hint="leave it out"
            )
        hint = did_you_mean(key[:80], known)
        if key == "vector_store":
            hint = "a vector store needs the backend 'mem0' or 'qdrant'"
        raise ConfigError(f"memory.config: the backend {backend!r} takes no {key!r}", hint=hint)


def _is_secret(key: str) -> bool:
    return bool(_SECRET.fullmatch(key.lower().replace("-", "_")))


def _without_secrets(value: Any) -> Any:
    """Without keys, and without the password in an address."""
    if isinstance(value, Mapping):
        return {
            key: _without_secrets(item)
            for key, item in value.items()
            if not _is_secret(key.removesuffix("_env"))
        }
    return _USERINFO.sub("", value) if isinstance(value, str) else value


def _digest(value: object) -> str:
    import hashlib

    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
    _known_keys_only(found, _QDRANT_KEYS, where)
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
    _known_keys_only(found, _OWN_EMBEDDER_KEYS, where)
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


def _known_keys_only(found: Section, known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            raise ConfigError(f"unknown key {key!r} in {where}", hint=did_you_mean(key[:80], known))


def _number(found: Section, key: str, least: float, most: float, where: str) -> None:
    value = found.get(key)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(f"{where}: {key} must lie between {least:g} and {most:g}, not {value!r}")
