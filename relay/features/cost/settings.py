"""The setting ``caps``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relay.config.door import Setting
from relay.core.errors import ConfigError

#: In ``caps`` it stands for all agents together.
CAP_OF_ALL = "all"


def parse_caps(value: object) -> dict[str, float]:
    """``caps = {…}``: US dollars a day, by globs of names. Raises ConfigError."""
    example = f'write {{"Bob": 5, "{CAP_OF_ALL}": 20}} in US dollars a day'
    if not isinstance(value, Mapping):
        raise ConfigError(f"caps must be a dictionary, not {value!r}", hint=example)
    for name, most in value.items():
        number = isinstance(most, int | float) and not isinstance(most, bool)
        if not isinstance(name, str) or not number or not (math.isfinite(most) and most >= 0):
            raise ConfigError(
                f"caps[{name!r}] must be a number of US dollars, not {most!r}", hint=example
            )
    return {name: float(most) for name, most in value.items()}


class _Caps(Setting[dict[str, float]]):
    def summary(self, kept: Any) -> list[str]:
        return [f"{name} (${most:g} a day)" for name, most in (kept or {}).items()]


CAPS = _Caps(
    "caps",
    "what agents may cost, in US dollars a day; only your own file's counts; see docs/cost.md",
    parse_caps,
    {},
    at_top=True,
    own_only=True,
)
SETTINGS = (CAPS,)
