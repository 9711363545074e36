"""The settings of memory: ``memory = {…}`` of a ``relay.config.py``, checked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from relay.config.door import Setting
from relay.config.settings import known_keys
from relay.core.errors import ConfigError
from relay.features.memory.spec import StoreSpec, parse_llm, parse_store

Json = dict[str, Any]
#: The keys of ``memory = {…}``.
MEMORY_KEYS = (
    *("backend", "prompt_on_end", "inject_on_start", "secrets", "auto_save", "config"),
    "searcher",
)
SECRETS = ("redact", "refuse", "keep")
_SWITCHES = ("prompt_on_end", "inject_on_start", "auto_save")


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """``memory: {…}``, with the defaults of what it does not name.

    ``llm``: what ``auto_save`` asks (see spec.parse_llm), its key still a variable's
    name. ``searcher``: the user's own function (see relay.features.memory.indexes.searcher).
    """

    store: StoreSpec = field(default_factory=StoreSpec)
    prompt_on_end: bool = False
    inject_on_start: bool = True
    secrets: str = "redact"
    auto_save: bool = False
    llm: Mapping[str, Any] | None = None
    searcher: Any = field(default=None, compare=False, repr=False)

    @property
    def backend(self) -> str:
        """``local``, ``mem0``, ``qdrant`` or ``searcher``."""
        return self.store.backend

    def of_file(self, path: str, sha256: str) -> MemorySettings:
        """These, as the file says them: a searcher is made by running it again."""
        if self.backend != "searcher":
            return self
        return replace(self, store=replace(self.store, file=path, sha256=sha256))

    def shown(self) -> Json:
        """For people: what is set, without what is secret."""
        from relay.features.memory.spec import masked

        found: Json = {
            "backend": self.backend,
            "config": masked(self.store.config),
            "prompt_on_end": self.prompt_on_end,
            "inject_on_start": self.inject_on_start,
            "secrets": self.secrets,
            "auto_save": self.auto_save,
        }
        return found | ({} if self.llm is None else {"llm": masked(self.llm)})


def memory_settings(value: object) -> MemorySettings:
    """``memory: {…}`` in either spelling, checked. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"memory must be a dictionary, not {value!r}", hint='write {"backend": "local"}'
        )
    found = known_keys(value, MEMORY_KEYS, "memory")
    for key in _SWITCHES:
        if not isinstance(found.get(key, False), bool):
            raise ConfigError(f"memory: {key} must be True or False, not {found[key]!r}")
    secrets = found.get("secrets", "redact")
    if secrets not in SECRETS:
        raise ConfigError(f'memory: secrets must be "redact", "refuse" or "keep", not {secrets!r}')
    config = found.get("config")
    store, llm = parse_store(found.get("backend", "local"), config), parse_llm(config)
    auto_save = found.get("auto_save", False)
    if auto_save and llm is None:
        raise ConfigError(
            "memory: auto_save needs an LLM, and none is configured",
            hint='write "config": {"llm": {"provider": "ollama", "model": "…"}},'
            " or leave auto_save out: agents save with @memory:save",
        )
    searcher = found.get("searcher")
    if searcher is not None:
        store = _searched(searcher, store)
    return MemorySettings(
        store,
        found.get("prompt_on_end", False),
        found.get("inject_on_start", True),
        secrets,
        auto_save,
        llm,
        searcher,
    )


def _searched(searcher: Any, store: StoreSpec) -> StoreSpec:
    """The spec of a searcher; ``file`` is missing still, which only the loader knows."""
    if not callable(searcher) and not callable(getattr(searcher, "search", None)):
        raise ConfigError(
            f"memory: the searcher {searcher!r} cannot be called",
            hint="give a function search(query, limit, scope) that returns ids or texts",
        )
    if store != StoreSpec():
        raise ConfigError(
            "memory: a searcher takes the place of a backend and of an embedder",
            hint="leave out the searcher, or backend, vector_store and embedder",
        )
    return StoreSpec("searcher")


def config_warnings(settings: MemorySettings, environ: Mapping[str, str]) -> list[str]:
    """What is allowed in the settings, but cannot work here or looks like a mistake."""
    found = []
    sections = [settings.store.config, {"llm": settings.llm} if settings.llm else {}]
    for name in sorted({name for one in sections for name in _variables(one)}):
        if not environ.get(name, "").strip():
            found.append(f"memory: the environment variable {name} is not set here")
    if settings.llm and not settings.auto_save:
        found.append("memory: the llm is not used, because auto_save is not on")
    return found


def _variables(section: Any) -> Iterator[str]:
    if isinstance(section, Mapping):
        for key, value in section.items():
            if key.endswith("_env") and isinstance(value, str):
                yield value
            else:
                yield from _variables(value)
    elif isinstance(section, list):
        for item in section:
            yield from _variables(item)


class _Memory(Setting[MemorySettings]):
    def of_file(self, value: MemorySettings, path: str, sha256: str) -> MemorySettings:
        return value.of_file(path, sha256)

    def kept(self, value: MemorySettings) -> Json:
        return {**value.shown(), "store": value.store.to_json()}

    def summary(self, kept: Json | None) -> Json | None:
        return kept and {name: item for name, item in kept.items() if name != "store"}

    def shown(self, value: MemorySettings) -> Json:
        return value.shown()

    def warnings(self, value: MemorySettings, environ: Mapping[str, str]) -> list[str]:
        return config_warnings(value, environ)


MEMORY = _Memory(
    "memory",
    "how memories are kept, and what the agent is told of them; see docs/memory.md",
    memory_settings,
    MemorySettings(),
    at_top=True,
)
SETTINGS = (MEMORY,)
