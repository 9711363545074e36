"""The setting ``personas = {"atlas": {"command": "claude", "mode": "headless"}}``, checked."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.agents.headless import HeadlessForm
from relay.config.door import Setting
from relay.core.agent_names import valid_name
from relay.core.errors import ConfigError, UsageError
from relay.hooks.registry import TIMEOUT_MAX

INTERACTIVE, HEADLESS = "interactive", "headless"
MODES = (INTERACTIVE, HEADLESS)
#: Seconds that a turn may take.
DEADLINE = 600.0
#: The keys of one persona, and what each holds, for the documentation and its tests.
PERSONA_KEYS = {
    "command": "the program, with its arguments: a text or a list",
    "mode": "interactive (the default: a wrapped agent of this name) or headless",
    "model": "the model, where the program takes one",
    "cwd": "the folder that it works in; by default that of the project, else your home folder",
    "deadline": "seconds that a turn may take (600)",
    "env": "what its environment has beside the usual; None: as the broker has it",
    "credentials": "secrets by name: each a dictionary of variables and where their values are",
    "tools": "False says that the program has no tools, so that nothing must be kept from it",
    "headless": "how a program that relay does not know is asked one question",
}
#: Where the value of a credential is found.
SOURCES = ("env:", "file:")
_EXAMPLE = 'write {"atlas": {"command": "claude", "mode": "headless"}}'
_NAMES = "letters, digits, _ . and -, at most 64, none of relay's own names"


@dataclass(frozen=True, slots=True)
class PersonaSpec:
    """One persona; ``cwd`` is as it was written."""

    name: str
    command: tuple[str, ...]
    mode: str = INTERACTIVE
    model: str = ""
    cwd: str = ""
    deadline: float = DEADLINE
    #: None: as the broker's environment has it.
    env: Mapping[str, str | None] = field(default_factory=dict)
    #: By the credential's name: variables, each with its source.
    credentials: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    tools: bool = True
    headless: HeadlessForm | None = None

    def to_json(self) -> dict[str, Any]:
        """As a manifest and a TurnRequest hold it."""
        made: dict[str, Any] = {
            "command": list(self.command),
            "mode": self.mode,
            "model": self.model,
            "cwd": self.cwd,
            "deadline": self.deadline,
            "env": dict(self.env),
            "credentials": {name: dict(one) for name, one in self.credentials.items()},
            "tools": self.tools,
        }
        return made | ({"headless": self.headless.to_json()} if self.headless else {})


def parse_personas(value: object) -> dict[str, PersonaSpec]:
    """``personas = {…}``. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"personas must be a dictionary, not {value!r}", hint=_EXAMPLE)
    found: dict[str, PersonaSpec] = {}
    for name, entry in value.items():
        if not isinstance(name, str) or not valid_name(name):
            raise ConfigError(f"{name!r} cannot be a persona's name", hint=_NAMES)
        if name.lower() in (one.lower() for one in found):
            raise ConfigError(f"personas has {name!r} twice")
        found[name] = parse_persona(name, entry)
    return found


def parse_persona(name: str, entry: object, where: str = "") -> PersonaSpec:
    """One persona, as a person writes it or as ``to_json`` made it. Raises ConfigError."""
    where = where or f"personas[{name!r}]"
    if isinstance(entry, str):
        entry = {"command": entry}
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where} must be a dictionary, not {entry!r}", hint=_EXAMPLE)
    for key in entry:
        if key not in PERSONA_KEYS:
            raise ConfigError(
                f"unknown key {key!r} in {where}", hint=f"known: {', '.join(PERSONA_KEYS)}"
            )
    mode = entry.get("mode", INTERACTIVE)
    if mode not in MODES:
        raise ConfigError(f"{where}: the mode is {mode!r}", hint=f"one of {', '.join(MODES)}")
    tools = entry.get("tools", True)
    if not isinstance(tools, bool):
        raise ConfigError(f"{where}: tools must be True or False, not {tools!r}")
    try:
        form = HeadlessForm.from_json(entry["headless"]) if entry.get("headless") else None
    except UsageError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error
    return PersonaSpec(
        name,
        _command(where, entry.get("command")),
        mode,
        _text(where, "model", entry.get("model")),
        _text(where, "cwd", entry.get("cwd")),
        _deadline(where, entry.get("deadline", DEADLINE)),
        _env(where, entry.get("env") or {}),
        _credentials(where, entry.get("credentials") or {}),
        tools,
        form,
    )


def _command(where: str, value: object) -> tuple[str, ...]:
    words: object = value
    if isinstance(value, str):
        try:
            words = shlex.split(value)
        except ValueError as error:
            raise ConfigError(f"{where}: the command cannot be read: {error}") from error
    if (
        not isinstance(words, list | tuple)
        or not words
        or not all(isinstance(word, str) and "\0" not in word for word in words)
        or not words[0]
    ):
        raise ConfigError(
            f"{where}: the command must be a string or a list of strings, not {value!r}"
            if value is not None
            else f"{where} has no command",
            hint='write "claude", or ["program", "argument"]',
        )
    return tuple(words)


def _text(where: str, key: str, value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{where}: {key} must be a text, not {value!r}")
    return value


def _deadline(where: str, value: object) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not 0 < float(value) <= TIMEOUT_MAX:  # type: ignore[arg-type]
        raise ConfigError(
            f"{where}: deadline must be a number of seconds, more than 0 and at most"
            f" {TIMEOUT_MAX:g}, not {value!r}"
        )
    return float(value)  # type: ignore[arg-type]


def _env(where: str, value: object) -> dict[str, str | None]:
    if not isinstance(value, Mapping) or not all(
        _variable(name) and (one is None or isinstance(one, str)) for name, one in value.items()
    ):
        raise ConfigError(f"{where}: env must be a dictionary of texts (or None: as it is)")
    return {name: one for name, one in value.items()}


def _credentials(where: str, value: object) -> dict[str, dict[str, str]]:
    hint = '{"github": {"GITHUB_TOKEN": "file:~/.github-token"}}, or {"github": "GITHUB_TOKEN"}'
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: credentials must be a dictionary", hint=f"write {hint}")
    found: dict[str, dict[str, str]] = {}
    for name, one in value.items():
        table = {one: f"env:{one}"} if isinstance(one, str) else one
        if (
            not isinstance(name, str)
            or not isinstance(table, Mapping)
            or not all(
                _variable(key) and isinstance(source, str) and source.startswith(SOURCES)
                for key, source in table.items()
            )
        ):
            raise ConfigError(
                f"{where}: the credential {name!r} needs variables with env:NAME or file:PATH",
                hint=f"write {hint}",
            )
        found[name] = {str(key): str(source) for key, source in table.items()}
    return found


def _variable(name: object) -> bool:
    """Whether it can be a variable's name; relay's own are not for personas to set."""
    return (
        isinstance(name, str)
        and name.isidentifier()
        and name.isascii()
        and not name.startswith("RELAY_")
    )


class _Personas(Setting[Mapping[str, PersonaSpec]]):
    def kept(self, value: Mapping[str, PersonaSpec]) -> dict[str, Any]:
        return {name: one.to_json() for name, one in value.items()}

    def summary(self, kept: Any) -> list[str]:
        return [f"{name} ({' '.join(one['command'])})" for name, one in (kept or {}).items()]


PERSONAS = _Personas(
    "personas", "who takes what routes dispatch, by name; see docs/broker.md", parse_personas, {}
)
SETTINGS = (PERSONAS,)
