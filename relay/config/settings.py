"""The settings, and the dictionaries of ``relay.config.py`` checked and registered."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from relay.config import door
from relay.config.door import Setting
from relay.config.mistakes import Mistakes
from relay.core.errors import ConfigError, RelayError, did_you_mean
from relay.hooks.hook_types import Command, Url
from relay.hooks.registry import (
    TIMEOUT_DEFAULT,
    TIMEOUT_MAX,
    Registry,
    checked_builtin,
    split_pattern,
)

T = TypeVar("T")
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
    "may": "what agents may do beyond messages, by their names; see docs/security.md",
    "mcp": "whether agents get relay's tools as an MCP server; see docs/mcp.md",
    "redact": "whether secrets are masked in what is stored and shown; only your own file's counts",
    "task": "what the agent is to do, as ctx.task; relay wrap --task wins",
}
#: The fields of Settings that have another name than their key.
_FIELDS = {"timeout": "handler_timeout"}
#: What ``may`` can give an agent: to see another's screen or its turns, to start agents, and to
#: follow everything that happens. Of itself an agent sees all that without.
RIGHTS = ("peek", "transcript", "spawn", "watch")
#: The keys of ``config`` that hold handlers.
TABLES = ("patterns", "hooks", "routes")
#: Those that count in the person's own file alone, as do those of features that say so.
_OWN_ONLY = frozenset({"redact"})
PATTERN_KEYS = ("handler", "override", "timeout")
ROUTE_KEYS = ("handler", "kinds", "channels", "priority", "timeout")
#: Exactly one of these says what a handler runs.
_ACTIONS = ("handler", "command", "url")
_HOOK_OPTIONS = ("matcher", "on_failure", "sequential", "priority", "timeout", "name")
HOOK_KEYS = (*_ACTIONS, *("headers", "cwd", "env", "files"), *_HOOK_OPTIONS)
#: What the decorators of ``Relay`` take by name.
_DECORATORS = {"pattern": PATTERN_KEYS[1:], "on": _HOOK_OPTIONS, "route": ROUTE_KEYS[1:]}


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration says beside its handlers. Times in seconds."""

    idle_seconds: float = IDLE_SECONDS
    handler_timeout: float = TIMEOUT_DEFAULT
    end_seconds: float = END_SECONDS
    merge: str = "apart"
    task: str | None = None
    hook_files: tuple[str, ...] = ()
    #: Rights by the globs of names that have them.
    may: Mapping[str, list[str]] = field(default_factory=dict)
    mcp: bool = False
    redact: bool = True
    #: The names of the settings that the file or the program set.
    given: frozenset[str] = frozenset()
    #: The values of features' settings that it sets.
    features: Mapping[Setting[Any], Any] = field(default_factory=dict)

    def of(self, setting: Setting[T]) -> T:
        """The value of a feature's setting."""
        value: T = self.features.get(setting, setting.default)
        return value

    def of_file(self, path: str, sha256: str) -> Settings:
        """These, as the file at ``path`` says them."""
        features = {one: one.of_file(value, path, sha256) for one, value in self.features.items()}
        return replace(self, features=features)

    def differs(self, other: Settings) -> bool:
        """Whether something has another value here, given or not."""
        mine = replace(self, given=other.given, features=other.features)
        features = {*self.features, *other.features}
        return mine != other or any(self.of(one) != other.of(one) for one in features)


def keys() -> dict[str, str]:
    """The keys of ``config = {…}``, those of features too, and what each holds."""
    return {**{one.key: one.doc for one in door.settings()}, **KEYS}


def checked_key(key: object) -> str:
    """``key`` of ``config`` in its documented spelling. Raises ConfigError."""
    if isinstance(key, str) and _snake(key) in KEYS:
        return _snake(key)  # no feature is asked
    try:
        return known_key(key, keys(), "config")
    except ConfigError as error:
        if problems := door.problems():
            raise ConfigError(error.message, hint="; ".join(problems)) from None
        raise


def with_setting(settings: Settings, key: str, value: object) -> Settings:
    """``settings`` with one of ``keys()`` changed that is not a table. Raises ConfigError."""
    given = settings.given | {key}
    if key not in KEYS:
        [setting, *_] = [one for one in door.settings() if one.key == key]
        try:
            features = {**settings.features, setting: setting.parse(value)}
        except RelayError:
            raise
        except Exception as error:
            raise ConfigError(
                f"{key} could not be read: {type(error).__name__}: {error}",
                hint="that is a fault of the feature: relay doctor lists what is installed",
            ) from error
        return replace(settings, features=features, given=given)
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
    if key == "may":
        return replace(settings, may=_may(value), given=given)
    if key in ("mcp", "redact"):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} must be True or False, not {value!r}")
        return replace(settings, **{key: value}, given=given)  # type: ignore[arg-type]
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{key} must be a string, not {value!r}")
    return replace(settings, task=value, given=given)


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


def apply_dictionaries(
    names: Mapping[str, Any],
    registry: Registry,
    settings: Settings,
    mistakes: Mistakes,
    *,
    source: str,
) -> Settings:
    """Register what the module's ``config``, ``patterns``, ``hooks``, ``routes`` and ``may``
    say, and the settings of features that may stand at the top.

    Returns the settings with those of all of these. What is wrong is left out, and noted in
    ``mistakes``.
    """
    config = names.get("config", {})
    if not isinstance(config, Mapping):
        mistakes.note(ConfigError(f"config must be a dictionary, not {type(config).__name__}"))
        config = {}
    tables: dict[str, list[object]] = {name: [] for name in TABLES}
    seen: dict[str, object] = {}
    for key, value in config.items():
        with mistakes.at(str(key)):
            name = checked_key(key)
            spell_once(seen, name, key, "config")
            if name in tables:
                tables[name].append(value)
            else:
                settings = with_setting(settings, name, value)
    # A handler or a module has that name, too. A text is taken for the backend's, and then refused.
    for name in ("may", *(one.key for one in door.settings() if one.at_top)):
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
    for name, given in tables.items():
        for table in given:
            for key, entry in _entries(name, table, mistakes):
                with mistakes.at(key):
                    add_entry(registry, name, key, entry, source)
    return settings


def add_entry(registry: Registry, table: str, key: str, entry: object, source: str) -> None:
    """Register one entry of ``patterns``, ``hooks`` or ``routes``. Raises ConfigError."""
    where = f"{table}[{key!r}]"
    if table == "patterns":
        _add_pattern(registry, key, entry, source)
    elif table == "hooks":
        action, options = _action(_options(entry, HOOK_KEYS, where), where)
        registry.add_hook(key, action, source=source, **options)
    else:
        options = _options(entry, ROUTE_KEYS, where)
        registry.add_route(key, options.pop("handler"), source=source, **options)


def plain_values(settings: Settings) -> dict[str, Any]:
    """The values of relay's own settings that are given and stand for themselves, as JSON."""
    names = [name for name in KEYS if name in settings.given and name not in ("may", *TABLES)]
    values = {name: getattr(settings, _FIELDS.get(name, name)) for name in names}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}


def own_only(settings: Settings) -> list[str]:
    """What ``settings`` gives that counts in the person's own file alone."""
    features = {one.key for one in settings.features if one.own_only}
    return sorted(settings.given & (_OWN_ONLY | features))


def without(settings: Settings, names: list[str]) -> Settings:
    """``settings`` with the defaults for ``names``."""
    defaults = Settings()
    fields = {name: getattr(defaults, name) for name in names if name in KEYS}
    features = {one: value for one, value in settings.features.items() if one.key not in names}
    return replace(settings, **fields, given=settings.given - set(names), features=features)


def merged(farther: Settings, nearer: Settings) -> Settings:
    """``farther`` with what ``nearer`` gives itself."""
    fields = {
        _FIELDS.get(name, name): getattr(nearer, _FIELDS.get(name, name))
        for name in nearer.given & KEYS.keys()
    }
    features = {**farther.features, **nearer.features}
    return replace(farther, **fields, given=farther.given | nearer.given, features=features)


def known_keys(
    table: Mapping[Any, Any], known: Mapping[str, object] | tuple[str, ...], where: str
) -> dict[str, Any]:
    """``table`` with its keys in their documented spelling. Raises ConfigError, also where two
    spellings of one key would leave it open which of their values counts."""
    found: dict[str, Any] = {}
    spelled: dict[str, object] = {}
    for key, value in table.items():
        name = known_key(key, known, where)
        spell_once(spelled, name, key, where)
        found[name] = value
    return found


def spell_once(spelled: dict[str, object], name: str, key: object, where: str) -> None:
    """Note how ``name`` is spelled. Raises ConfigError for a second spelling of it."""
    if name in spelled:
        raise ConfigError(
            f"{spelled[name]!r} and {key!r} in {where} are the same key", hint="leave one out"
        )
    spelled[name] = key


def known_options(decorator: str, words: Iterable[str]) -> None:
    """Raises ConfigError for an option that ``@relay.on``, for example, does not have."""
    for word in words:
        if word not in _DECORATORS[decorator]:
            known_key(word, _DECORATORS[decorator], f"@relay.{decorator}()")


def not_installed(module: str) -> ConfigError:
    """The file imports a module that there is not."""
    return ConfigError(
        f"it imports {module!r}, which is not installed here",
        hint=f"install it for {sys.executable}; modules beside the file are not importable",
    )


def needs_word(decorator: str) -> ConfigError:
    """``@relay.on`` stands above a function without saying for what."""
    what, example = {"on": ("event", "idle"), "pattern": ("pattern", "deploy")}[decorator]
    return ConfigError(
        f"@relay.{decorator} does not say for which {what}",
        hint=f'write @relay.{decorator}("{example}")',
    )


def relay_setting(word: str) -> str:
    """The setting that is an argument of ``Relay()``. Raises ConfigError."""
    return known_key(word, {key: "" for key in keys() if key not in TABLES}, "Relay()")


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()


def known_key(key: object, known: Mapping[str, object] | tuple[str, ...], where: str) -> str:
    """``key`` in its documented spelling (``idleSeconds`` is ``idle_seconds``)."""
    if isinstance(key, str) and _snake(key) in known:
        return _snake(key)
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
        raise ConfigError(
            f"{key} must be a number of seconds, more than 0 and at most {most:g}, not {value!r}"
        )
    return float(value)
