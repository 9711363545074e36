"""The settings, and the dictionaries of ``relay.config.py`` checked and registered."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from relay.config.llm_settings import parse_llm
from relay.config.mistakes import Mistakes
from relay.core.errors import ConfigError
from relay.core.suggest import did_you_mean
from relay.features.memory.memory_settings import MEMORY_KEYS, MemorySettings, parsed
from relay.features.notify.notices import parse_notify
from relay.features.personas.personas import PersonaSpec, parse_personas
from relay.hooks.hook_types import Command, Url
from relay.hooks.registration import (
    TIMEOUT_DEFAULT,
    TIMEOUT_MAX,
    checked_builtin,
    split_pattern,
)
from relay.hooks.registry import Registry

IDLE_SECONDS = 30.0
END_SECONDS = 10.0
_END_MAX = 60.0

MERGE = ("apart", "same_session")
_CHOICES = {"merge": MERGE}

#: The keys of ``config = {…}`` and what each holds, for the documentation and its tests.
KEYS = {
    "patterns": 'handlers of @namespace:target, by "namespace" or "namespace:target"',
    "hooks": "handlers of events, by the event's name",
    "routes": "route functions, by their names; see docs/broker.md",
    "merge": "dispatches of one event: apart, or same_session for one to each persona's session",
    "idle_seconds": "seconds without output after which on_idle runs",
    "timeout": "seconds that a handler may take",
    "end_seconds": "seconds that an agent has, after its terminal was closed, for its last hooks",
    "hook_files": "hook files of Claude Code or Gemini CLI that apply too",
    "memory": "how memories are kept, and what the agent is told of them; see docs/memory.md",
    "personas": "who takes what routes dispatch, by name; see docs/broker.md",
    "llm": "the language model that automations ask; see docs/automations.md",
    "automations": "whether agents may register some, and how many run at once: your own file's",
    "caps": "what agents may cost, in US dollars a day: your own file's; see docs/cost.md",
    "may": "what agents may do beyond messages, by their names; see docs/security.md",
    "mcp": "whether agents get relay's tools as an MCP server; see docs/mcp.md",
    "notify": "what you are told of while you look elsewhere; see docs/notifications.md",
    "redact": "whether secrets are masked in what is stored and shown: your own file's",
    "task": "what the agent is to do, as ctx.task; relay wrap --task wins",
}
#: The fields of Settings that have another name than their key.
_FIELDS = {"timeout": "handler_timeout"}
#: Those that do something also where nothing is registered.
DO_ALONE = frozenset(
    {
        "hook_files",
        "memory",
        "personas",
        "llm",
        "automations",
        "may",
        "mcp",
        "caps",
        "notify",
        "redact",
    }
)
#: The keys of ``automations``, with what counts where nothing is said.
AUTOMATION_KEYS = {"agents": True, "workers": 4}
#: In ``caps`` it stands for all agents together.
CAP_OF_ALL = "all"
#: What ``may`` can give an agent: to see another's screen or its turns, to start agents, and to
#: follow everything that happens. Of itself an agent sees all that without.
RIGHTS = ("peek", "transcript", "spawn", "watch")
PATTERN_KEYS = ("handler", "override", "timeout")
ROUTE_KEYS = ("handler", "kinds", "channels", "priority", "timeout")
#: Exactly one of these says what a handler runs.
_ACTIONS = ("handler", "command", "url")
HOOK_KEYS = (
    *("handler", "command", "url", "headers", "cwd", "env", "files"),
    *("matcher", "on_failure", "sequential", "priority", "timeout", "name"),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration says beside its handlers. Times in seconds."""

    idle_seconds: float = IDLE_SECONDS
    handler_timeout: float = TIMEOUT_DEFAULT
    end_seconds: float = END_SECONDS
    merge: str = "apart"
    task: str | None = None
    hook_files: tuple[str, ...] = ()
    memory: MemorySettings = MemorySettings()
    personas: Mapping[str, PersonaSpec] = field(default_factory=dict)
    llm: dict[str, Any] | None = None
    automations: dict[str, Any] = field(default_factory=lambda: dict(AUTOMATION_KEYS))
    #: Rights by the globs of names that have them.
    may: Mapping[str, list[str]] = field(default_factory=dict)
    caps: Mapping[str, float] = field(default_factory=dict)
    mcp: bool = False
    redact: bool = True
    #: All keys of relay.features.notify.notices; None: the person is not told.
    notify: dict[str, Any] | None = None
    #: The names of the settings that the file or the program set.
    given: frozenset[str] = frozenset()


def with_setting(settings: Settings, key: str, value: object) -> Settings:
    """``settings`` with one of KEYS that is no table set. Raises ConfigError."""
    given = settings.given | {key}
    if key == "idle_seconds":
        return replace(settings, idle_seconds=_seconds(key, value), given=given)
    if key == "timeout":
        return replace(settings, handler_timeout=_seconds(key, value), given=given)
    if key == "end_seconds":
        return replace(settings, end_seconds=_seconds(key, value, _END_MAX), given=given)
    if key == "hook_files":
        files = [value] if isinstance(value, str) else value
        if not isinstance(files, list | tuple) or not all(isinstance(one, str) for one in files):
            raise ConfigError(f"{key} must be a list of paths, not {value!r}")
        return replace(settings, hook_files=tuple(files), given=given)
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise ConfigError(f"{key} must be {' or '.join(_CHOICES[key])}, not {value!r}")
        return replace(settings, **{key: str(value)}, given=given)  # type: ignore[arg-type]
    if key == "memory":
        return replace(settings, memory=memory_settings(value), given=given)
    if key == "personas":
        return replace(settings, personas=parse_personas(value), given=given)
    if key == "llm":
        return replace(settings, llm=None if value is None else parse_llm(value), given=given)
    if key == "automations":
        return replace(settings, automations=_automations(value), given=given)
    if key == "may":
        return replace(settings, may=_may(value), given=given)
    if key == "caps":
        return replace(settings, caps=_caps(value), given=given)
    if key == "notify":
        notify = None if value in (None, False) else parse_notify(value)
        return replace(settings, notify=notify, given=given)
    if key in ("mcp", "redact"):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} must be True or False, not {value!r}")
        return replace(settings, **{key: value}, given=given)  # type: ignore[arg-type]
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{key} must be a string, not {value!r}")
    return replace(settings, task=value, given=given)


def memory_settings(value: object) -> MemorySettings:
    """``memory: {…}`` in either spelling, checked. Raises ConfigError."""
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"memory must be a dictionary, not {value!r}", hint='write {"backend": "local"}'
        )
    return parsed(known_keys(value, MEMORY_KEYS, "memory"))


def _automations(value: object) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"automations must be a dictionary, not {value!r}", hint='write {"agents": False}'
        )
    found = {**AUTOMATION_KEYS, **known_keys(value, AUTOMATION_KEYS, "automations")}
    if not isinstance(found["agents"], bool):
        raise ConfigError(f"automations: agents must be True or False, not {found['agents']!r}")
    if type(found["workers"]) is not int or found["workers"] < 1:
        raise ConfigError(f"automations: workers must be 1 or more, not {found['workers']!r}")
    return found


def _may(value: object) -> dict[str, list[str]]:
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"may must be a dictionary, not {value!r}", hint='write {"Bob": ["peek"]}'
        )
    found: dict[str, list[str]] = {}
    for name, rights in value.items():
        given = [rights] if isinstance(rights, str) else rights
        if not isinstance(name, str) or not isinstance(given, list | tuple):
            raise ConfigError(f"may[{name!r}] must be a list of rights, not {rights!r}")
        for one in given:
            if one not in RIGHTS:
                hint = did_you_mean(str(one)[:80], RIGHTS) or f"there are {', '.join(RIGHTS)}"
                raise ConfigError(f"unknown right {one!r} in may[{name!r}]", hint=hint)
        found[name] = list(given)
    return found


def _caps(value: object) -> dict[str, float]:
    example = f'write {{"Bob": 5, "{CAP_OF_ALL}": 20}}: US dollars a day'
    if not isinstance(value, Mapping):
        raise ConfigError(f"caps must be a dictionary, not {value!r}", hint=example)
    for name, most in value.items():
        number = isinstance(most, int | float) and not isinstance(most, bool)
        if not isinstance(name, str) or not number or not (math.isfinite(most) and most >= 0):
            raise ConfigError(f"caps[{name!r}] must be dollars a day, not {most!r}", hint=example)
    return {name: float(most) for name, most in value.items()}


def apply_dictionaries(
    names: Mapping[str, Any],
    registry: Registry,
    settings: Settings,
    mistakes: Mistakes,
    *,
    source: str,
) -> Settings:
    """Register what the module's ``config``, ``patterns``, ``hooks``, ``routes``, ``memory`` and
    ``may`` say.

    Returns the settings with those of ``config``, ``memory``, ``may`` and ``caps``. What is wrong
    is left out, and noted in ``mistakes``.
    """
    config = names.get("config", {})
    if not isinstance(config, Mapping):
        mistakes.note(ConfigError(f"config must be a dictionary, not {type(config).__name__}"))
        config = {}
    tables: dict[str, list[object]] = {"patterns": [], "hooks": [], "routes": []}
    seen: set[str] = set()
    for key, value in config.items():
        with mistakes.at(str(key)):
            [(name, value)] = known_keys({key: value}, KEYS, "config").items()
            if name in seen:
                raise ConfigError(f"config has {name!r} twice", hint=f"leave out {key!r}")
            seen.add(name)
            if name in tables:
                tables[name].append(value)
            else:
                settings = with_setting(settings, name, value)
    # A handler or a module has that name, too. A text is taken for the backend's, and then refused.
    for name in ("memory", "may", "caps"):
        if isinstance(value := names.get(name), Mapping | str):
            with mistakes.at(name):
                if name in settings.given:
                    raise ConfigError(
                        f"{name} is given twice: at the top, and in config or Relay()",
                        hint="keep one of the two",
                    )
                settings = with_setting(settings, name, value)
    for name in tables:
        if name in names:
            tables[name].append(names[name])
    for table in tables["patterns"]:
        for key, entry in _entries("patterns", table, mistakes):
            with mistakes.at(key):
                _add_pattern(registry, key, entry, source)
    for table in tables["hooks"]:
        for key, entry in _entries("hooks", table, mistakes):
            with mistakes.at(key):
                where = f"hooks[{key!r}]"
                action, options = _action(_options(entry, HOOK_KEYS, where), where)
                registry.add_hook(key, action, source=source, **options)
    for table in tables["routes"]:
        for key, entry in _entries("routes", table, mistakes):
            with mistakes.at(key):
                options = _options(entry, ROUTE_KEYS, f"routes[{key!r}]")
                registry.add_route(key, options.pop("handler"), source=source, **options)
    return settings


def merged(farther: Settings, nearer: Settings) -> Settings:
    """``farther`` with what ``nearer`` gives itself."""
    fields = {
        _FIELDS.get(name, name): getattr(nearer, _FIELDS.get(name, name)) for name in nearer.given
    }
    return replace(farther, **fields, given=farther.given | nearer.given)


def known_keys(
    table: Mapping[Any, Any], known: Mapping[str, object] | tuple[str, ...], where: str
) -> dict[str, Any]:
    """``table`` with its keys in their documented spelling. Raises ConfigError, also where two
    spellings of one key would leave it open which of their values counts."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = known_key(key, known, where)
        if name in found:
            raise ConfigError(f"{where} has {name!r} twice", hint=f"leave out {key!r}")
        found[name] = value
    return found


def known_key(key: object, known: Mapping[str, object] | tuple[str, ...], where: str) -> str:
    """``key`` in its documented spelling (``idleSeconds`` is ``idle_seconds``)."""
    if isinstance(key, str):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
        if snake in known:
            return snake
    hint = did_you_mean(str(key)[:80], known)
    if key == "shell_output":
        hint = "leave it out: a shell is not heard, unless it is started with relay wrap --hear"
    if key == "name" and where == "config":
        hint = "the agent's name is given with: relay wrap --name"
    raise ConfigError(f"unknown key {key!r} in {where}", hint=hint)


def _entries(name: str, table: object, mistakes: Mistakes) -> Iterator[tuple[str, object]]:
    if not isinstance(table, Mapping):
        with mistakes.at(name):
            raise ConfigError(f"{name} must be a dictionary, not {type(table).__name__}")
        return
    for key, value in table.items():
        if not isinstance(key, str):
            with mistakes.at(name):
                raise ConfigError(f"a key of {name} must be a string, not {key!r}")
            continue
        for entry in value if isinstance(value, list | tuple) else [value]:
            yield key, entry


def _add_pattern(registry: Registry, key: str, entry: object, source: str) -> None:
    namespace, target = split_pattern(key)
    if isinstance(entry, str):
        if entry != "builtin":
            raise ConfigError(
                f"patterns[{key!r}] is the string {entry!r}",
                hint='give a function, a dictionary with "handler", or "builtin"',
            )
        checked_builtin(namespace)
        return
    options = _options(entry, PATTERN_KEYS, f"patterns[{key!r}]")
    registry.add_pattern(namespace, target, options.pop("handler"), source=source, **options)


def _options(entry: object, known: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        return {"handler": entry}
    options = known_keys(entry, known, where)
    wanted = [key for key in _ACTIONS if key in known]
    if sum(key in options for key in wanted) != 1:
        words = f"more than one of {', '.join(wanted)}"
        if not any(key in options for key in wanted):
            words = f'no "{wanted[0]}"'
        raise ConfigError(f"{where} has {words}", hint='write {"handler": function}')
    return options


def _action(options: dict[str, Any], where: str) -> tuple[Any, dict[str, Any]]:
    """What a hook runs, and its other options."""
    command, url = options.pop("command", None), options.pop("url", None)
    headers, cwd = options.pop("headers", None), options.pop("cwd", "")
    env, files = options.pop("env", None), options.pop("files", ())
    if "handler" in options:
        return options.pop("handler"), options
    if command is None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise ConfigError(f"{where}: the url must begin with http://, not {url!r}")
        return Url(url, _pairs(headers, f"{where}: headers")), options
    added = _pairs(env, f"{where}: env")
    if not isinstance(cwd, str):
        raise ConfigError(f"{where}: cwd must be a string, not {cwd!r}")
    if not isinstance(files, list | tuple) or not all(isinstance(one, str) for one in files):
        raise ConfigError(f"{where}: files must be a list of paths, not {files!r}")
    made = Command(cwd=cwd, env=added, files=tuple(files))
    if isinstance(command, str) and command.strip():
        return replace(made, shell=command), options
    if isinstance(command, list | tuple) and command and all(isinstance(w, str) for w in command):
        return replace(made, argv=tuple(command)), options
    raise ConfigError(
        f"{where}: the command is {command!r}",
        hint='write "command line", or ["program", "argument"]',
    )


def _pairs(value: object, where: str) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()
    ):
        raise ConfigError(f"{where} must be a dictionary of strings")
    return tuple((str(key), str(item)) for key, item in value.items())


def _seconds(key: str, value: object, most: float = TIMEOUT_MAX) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0 < value <= most
    ):
        raise ConfigError(f"{key} must be seconds, more than 0 and at most {most:g}, not {value!r}")
    return float(value)
