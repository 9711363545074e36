"""The setting ``personas``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.config.door import Setting
from relay.features.personas.personas import PersonaSpec, parse_personas


class _Personas(Setting[Mapping[str, PersonaSpec]]):
    def kept(self, value: Mapping[str, PersonaSpec]) -> dict[str, Any]:
        return {name: one.to_json() for name, one in value.items()}

    def summary(self, kept: Any) -> list[str]:
        return [f"{name} ({' '.join(one['command'])})" for name, one in (kept or {}).items()]


PERSONAS = _Personas(
    "personas", "who takes what routes dispatch, by name; see docs/broker.md", parse_personas, {}
)
SETTINGS = (PERSONAS,)
