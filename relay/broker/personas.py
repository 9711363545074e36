"""Which persona a dispatch means, and how its program is started.

A file of its own: it will read trusted configurations.
"""

from __future__ import annotations

from typing import Protocol

from relay.broker.trusted_configs import TrustedConfigs
from relay.core.dispatch import PermissionSet
from relay.core.paths import Home
from relay.protocol.broker import Json


class PersonaSpec(Protocol):
    """One persona, as it is configured."""

    @property
    def mode(self) -> str: ...
    @property
    def deadline(self) -> float: ...
    def to_json(self) -> Json: ...


class Personas:
    """All personas that are configured."""

    def __init__(self, home: Home, configs: TrustedConfigs) -> None:
        self._home = home
        self._configs = configs

    def find(self, persona: str, config: str) -> PersonaSpec | None:
        """The persona that this configuration, or the person's own, calls so."""
        return None

    def environment(self, spec: PersonaSpec, permissions: PermissionSet) -> dict[str, str]:
        """The variables of the credentials that are permitted. Raises RelayError."""
        return {}

    def start_detached(self, spec: PersonaSpec) -> None:
        """Start its program in a terminal of its own, unless that was just done."""
