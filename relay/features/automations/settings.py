"""The settings ``automations`` and ``llm``, the language model that they ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from relay.config.door import Setting
from relay.config.llm import from_config, llm_section, plain
from relay.config.settings import known_keys
from relay.core.errors import ConfigError, did_you_mean
from relay.features.personas.settings import HEADLESS, parse_persona

if TYPE_CHECKING:
    from relay.broker.trusted_configs import TrustedConfigs

Json = dict[str, Any]
#: Automations that run at once, unless the person says otherwise.
WORKERS = 4
#: The keys of an ``llm`` that is a server.
_KEYS = ("provider", "model", "url", "api_key_env")


@dataclass(frozen=True, slots=True)
class AutomationSettings:
    """The person's setting ``automations``."""

    agents: bool = True
    workers: int = WORKERS


def _parsed(value: object) -> AutomationSettings:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"automations must be a dictionary, not {value!r}", hint='write {"agents": False}'
        )
    keys = tuple(AutomationSettings.__dataclass_fields__)
    settings = AutomationSettings(**known_keys(value, keys, "automations"))
    if not isinstance(settings.agents, bool):
        raise ConfigError(f"automations: agents must be True or False, not {settings.agents!r}")
    if type(settings.workers) is not int or settings.workers < 1:
        raise ConfigError(f"automations: workers must be 1 or more, not {settings.workers!r}")
    return settings


def parse_llm(value: object) -> Json | None:
    """The setting ``llm``, flat and checked, as ``resolved`` or a persona takes it: it has a
    ``command`` or a ``provider``, and no secret. Raises ConfigError."""
    if value is None:
        return None
    if isinstance(value, Mapping) and "command" in value:
        if value.get("mode", HEADLESS) != HEADLESS:
            raise ConfigError("llm: a program that is asked is headless", hint="leave out mode")
        return parse_persona("llm", {**value, "mode": HEADLESS}, where="llm").to_json()
    section = llm_section(plain(value, "llm"), "llm")
    for key in section:
        if key not in _KEYS:
            raise ConfigError(f"unknown key {key!r} in llm", hint=did_you_mean(key, _KEYS))
    from_config(section)
    return section


class _Automations(Setting[AutomationSettings]):
    def kept(self, value: AutomationSettings) -> Json:
        return asdict(value)

    def summary(self, kept: Any) -> Any:
        return kept


class _Llm(Setting[Json | None]):
    def summary(self, kept: Any) -> list[str]:
        if kept is None:
            return []
        server = (kept.get("model"), "of", kept.get("url", kept.get("provider")))
        return [" ".join(kept.get("command") or server)]


AUTOMATIONS = _Automations(
    "automations",
    "whether agents may register some, and how many run at once; only your own file's counts",
    _parsed,
    AutomationSettings(),
    own_only=True,
)
LLM = _Llm(
    "llm", "the language model that automations ask; see docs/automations.md", parse_llm, None
)
SETTINGS = (AUTOMATIONS, LLM)


def automation_settings(configs: TrustedConfigs) -> AutomationSettings:
    """The person's own, as they are now."""
    kept = configs.own_setting(AUTOMATIONS.key)
    return AutomationSettings(**kept) if kept else AutomationSettings()


def llm_settings(configs: TrustedConfigs, folder: str | None) -> Json | None:
    """The setting ``llm`` for automations of the project ``folder`` (None: of no project): the
    nearest configuration's, else the person's own."""
    for one in reversed(configs.applying(folder)):
        llm: Json | None = one.manifest.features.get(LLM.key) if one.manifest is not None else None
        if llm is not None:
            return llm
    return None
