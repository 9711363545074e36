"""The setting ``confine``: which agents the kernel holds to their folders, and what else they, and
programs under ``relay confine``, may write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.config.door import Setting
from relay.core.errors import ConfigError

_EXAMPLE = 'write {"agents": ["*"], "writable": ["~/.cache/tool"]}'


def parse_confine(value: object) -> dict[str, list[str]]:
    """``confine: {…}``, with both keys; True: all agents. Raises ConfigError."""
    given = {"agents": ["*"]} if value is True else {} if value in (None, False) else value
    if not isinstance(given, Mapping):
        raise ConfigError(f"confine must be True or a dictionary, not {value!r}", hint=_EXAMPLE)
    settings: dict[str, list[str]] = {"agents": [], "writable": []}
    for key, words in given.items():
        if key not in settings:
            raise ConfigError(f"unknown key {key!r} in confine", hint=_EXAMPLE)
        listed = isinstance(words, list | tuple)
        if not listed or not all(isinstance(one, str) and one for one in words):
            raise ConfigError(f"confine: {key} must be a list of strings", hint=_EXAMPLE)
        settings[key] = list(words)
    for path in settings["writable"]:
        if not path.startswith(("/", "~/", "${")):
            raise ConfigError(
                f"confine: writable: {path!r} has to begin with / or ~/", hint=_EXAMPLE
            )
    return settings


class _Confine(Setting[dict[str, list[str]]]):
    def summary(self, kept: Any) -> list[str]:
        given = kept or {}
        agents = [f"agents {' '.join(given['agents'])}"] if given.get("agents") else []
        return agents + [f"writable {path}" for path in given.get("writable", ())]

    def shown(self, value: dict[str, list[str]]) -> Any:
        return value if any(value.values()) else None


CONFINE = _Confine(
    "confine",
    "agents that the kernel lets write only in their folders; see docs/confine.md",
    parse_confine,
    {"agents": [], "writable": []},
)
SETTINGS = (CONFINE,)
