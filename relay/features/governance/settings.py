"""The setting ``claims``: what an agent is told of files that another one changes."""

from __future__ import annotations

from typing import Any

from relay.config.door import Setting
from relay.core.errors import ConfigError

NOTICE, REFUSE, OFF = "notice", "refuse", "off"
MODES = (NOTICE, REFUSE, OFF)


def parse_claims(value: object) -> str:
    """``claims: "refuse"``. Raises ConfigError."""
    if value not in MODES:
        raise ConfigError(f'claims must be "notice", "refuse" or "off", not {value!r}')
    return str(value)


class _Claims(Setting[str]):
    def kept(self, value: str) -> Any:
        return {"mode": value}

    def summary(self, kept: Any) -> Any:
        return [kept["mode"]] if kept else None

    def shown(self, value: str) -> Any:
        return value if value != NOTICE else None


CLAIMS = _Claims(
    "claims",
    "what agents in one folder are told of each other's changes; see docs/claims.md",
    parse_claims,
    NOTICE,
)
SETTINGS = (CLAIMS,)
