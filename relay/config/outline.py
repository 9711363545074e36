"""What a configuration file would register, read from its source without running any of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from relay.config.load import compile_config
from relay.config.settings import (
    HOOK_KEYS,
    KEYS,
    PATTERN_KEYS,
    Settings,
    known_key,
    with_memory_table,
    with_setting,
)
from relay.config.trust import ConfigFile
from relay.core.errors import ConfigError
from relay.hooks.events import event_names
from relay.hooks.registry import checked_builtin, checked_pattern, split_pattern

#: Stands for a key that is only known when the file runs.
COMPUTED = "(computed)"


@dataclass(slots=True)
class Outline:
    """Names as they stand in the file. ``problems`` are lines for people: ``line 3: …``.

    ``settings`` holds what is written as a plain value; ``computed`` the keys that are not.
    """

    patterns: list[str] = field(default_factory=list)
    hooks: list[str] = field(default_factory=list)
    settings: Settings = field(default_factory=Settings)
    computed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def outline(file: ConfigFile) -> Outline:
    """The outline of ``file``. Raises ConfigError when it is no Python source."""
    compile_config(file)
    found = Outline()
    for node in ast.walk(ast.parse(file.data)):
        if isinstance(node, ast.Call):
            _call(found, node)
    for statement in ast.parse(file.data).body:
        for name, value in _assignments(statement):
            _assigned(found, name, value)
    return found


def _assignments(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            if isinstance(target, ast.Name):
                yield target.id, statement.value
    elif (
        isinstance(statement, ast.AnnAssign)
        and statement.value is not None
        and isinstance(statement.target, ast.Name)
    ):
        yield statement.target.id, statement.value


def _call(found: Outline, node: ast.Call) -> None:
    """``something.pattern("deploy", …)``, ``something.on("idle", …)`` and ``Relay(…)``."""
    function = node.func
    if isinstance(function, ast.Name) and function.id == "Relay":
        for keyword in node.keywords:
            if keyword.arg in ("idle_seconds", "timeout", "task", "end_seconds", "memory"):
                _setting(found, keyword.arg, keyword.value)
    if not isinstance(function, ast.Attribute) or function.attr not in ("pattern", "on"):
        return
    if not node.args or not isinstance(function.value, ast.Name):
        return
    key = node.args[0]
    name = _text(key)
    if function.attr == "pattern":
        _pattern(found, name, key)
    else:
        _hook(found, name, key)


def _assigned(found: Outline, name: str, value: ast.expr) -> None:
    if name == "patterns":
        _patterns(found, value)
    elif name == "hooks":
        _hooks(found, value)
    elif name == "config" and isinstance(value, ast.Dict):
        seen: set[str] = set()
        for key, entry in _pairs(value):
            _config_entry(found, key, entry, seen)
    elif name == "memory":
        _memory(found, value)


def _memory(found: Outline, value: ast.expr) -> None:
    """A top-level ``memory = {…}``; what is computed may be a handler of that name."""
    if not isinstance(value, ast.Dict) and _text(value) is None:
        return
    try:
        table = ast.literal_eval(value)
    except (ValueError, TypeError, MemoryError, RecursionError):
        found.computed.append("memory")
        return
    with _problem(found, value):
        found.settings = with_memory_table(found.settings, table)


def _config_entry(found: Outline, key: ast.expr, entry: ast.expr, seen: set[str]) -> None:
    text = _text(key)
    if text is None:
        found.computed.append(COMPUTED)
        return
    with _problem(found, key):
        name = known_key(text, KEYS, "config")
        if name in seen:
            raise ConfigError(f"config has {name!r} twice", hint=f"leave out {text!r}")
        seen.add(name)
        if name == "patterns":
            _patterns(found, entry)
        elif name == "hooks":
            _hooks(found, entry)
        else:
            _setting(found, name, entry)


def _patterns(found: Outline, table: ast.expr) -> None:
    if not isinstance(table, ast.Dict):
        found.patterns.append(COMPUTED)
        return
    for key, entry in _pairs(table):
        _pattern(found, _text(key), key)
        with _problem(found, entry):
            text = _text(entry)
            if text == "builtin":
                checked_builtin(split_pattern(_text(key) or "")[0])
            elif text is not None:
                raise ConfigError(f"a handler cannot be the string {text!r}")
            _option_keys(entry, PATTERN_KEYS, "a pattern's dictionary")


def _hooks(found: Outline, table: ast.expr) -> None:
    if not isinstance(table, ast.Dict):
        found.hooks.append(COMPUTED)
        return
    for key, entry in _pairs(table):
        _hook(found, _text(key), key)
        with _problem(found, entry):
            _option_keys(entry, HOOK_KEYS, "a hook's dictionary")


def _option_keys(entry: ast.expr, known: tuple[str, ...], where: str) -> None:
    if isinstance(entry, ast.Dict):
        for key, _value in _pairs(entry):
            text = _text(key)
            if text is not None:
                known_key(text, known, where)


def _pattern(found: Outline, name: str | None, node: ast.expr) -> None:
    found.patterns.append(COMPUTED if name is None else name)
    if name is not None:
        with _problem(found, node):
            checked_pattern(*split_pattern(name))


def _hook(found: Outline, name: str | None, node: ast.expr) -> None:
    if name is None:
        found.hooks.append(COMPUTED)
        return
    found.hooks.append(name)
    with _problem(found, node):
        found.hooks[-1:] = [event.registration for event in event_names(name)]


def _setting(found: Outline, name: str, node: ast.expr) -> None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        found.computed.append(name)
        return
    with _problem(found, node):
        found.settings = with_setting(found.settings, name, value)


def _pairs(table: ast.Dict) -> Iterator[tuple[ast.expr, ast.expr]]:
    for key, value in zip(table.keys, table.values, strict=True):
        if key is not None:  # None stands for ** of another dictionary
            yield key, value


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


class _problem:
    """Turns a ConfigError inside the block into a line of ``found.problems``."""

    def __init__(self, found: Outline, node: ast.expr) -> None:
        self._found = found
        self._line = node.lineno

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, ConfigError):
            return False
        self._found.problems.append(f"line {self._line}: {error.line}")
        return True
