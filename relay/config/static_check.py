"""Finds the mistakes in a configuration that can be seen without running any of it.

Values that stand there as such are checked as those of a file that runs. Of functions only the
signature is known, of everything else nothing: that is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from relay.config import door
from relay.config.mistakes import Mistakes
from relay.config.settings import (
    HOOK_KEYS,
    PATTERN_KEYS,
    ROUTE_KEYS,
    TABLES,
    Settings,
    add_entry,
    checked_key,
    keys,
    known_key,
    known_options,
    needs_word,
    not_installed,
    relay_setting,
    spell_once,
    with_setting,
)
from relay.core.errors import ConfigError, nearest
from relay.hooks.registry import Registry, split_pattern

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OPTIONS = {"patterns": PATTERN_KEYS, "hooks": HOOK_KEYS, "routes": ROUTE_KEYS}
#: The decorators of ``Relay``, by the table that says the same.
_DECORATORS = {"pattern": "patterns", "on": "hooks", "route": "routes"}


def check_source(source: bytes, mistakes: Mistakes) -> None:
    """Note what is wrong in a file of which nothing runs. It has been compiled."""
    _Source(ast.parse(source), mistakes).check()


def idle_names(source: bytes) -> list[str]:
    """Lines about names at the top of a file that look like relay's, and that nothing uses."""
    tree = ast.parse(source)
    used = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and _is_read(one)}
    tables = (*TABLES, "config", "may", *(one.key for one in door.settings() if one.at_top))
    lines = []
    for name, value, line in _assigned(tree):
        if name in used or name in tables:
            continue
        close = nearest(name, tables) if isinstance(value, ast.Dict) else None
        if close:
            lines.append(f"line {line}: nothing reads {name}; did you mean {close}?")
        elif name in keys() and isinstance(value, ast.Constant):
            lines.append(f'line {line}: nothing reads {name}; write config = {{"{name}": …}}')
    return lines


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    """The names that the top of a file gives values, with their lines."""
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [one.id for one in node.targets if isinstance(one, ast.Name)]
            yield from ((name, node.value, node.lineno) for name in names)


def _bound(tree: ast.Module) -> Iterator[str]:
    """Each name that the file gives something to, as often as it does."""
    for node in ast.walk(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Name) and not _is_read(node):
            yield node.id
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _is_text(node: ast.stmt) -> bool:
    """Whether it is a docstring or the like, which does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass
class _Source:
    tree: ast.Module
    mistakes: Mistakes
    registry: Registry = field(default_factory=Registry)
    #: The functions at the top, without what they do.
    functions: dict[str, Callable[..., object]] = field(default_factory=dict)

    def check(self) -> None:
        bound = Counter(_bound(self.tree))
        self.functions = {
            node.name: _stub(node)
            for node in self.tree.body
            if isinstance(node, _FUNCTIONS) and not node.decorator_list and bound[node.name] == 1
        }
        names = {name: value for name, value, _ in _assigned(self.tree)}
        self._imports()
        self._dictionary("config", names.get("config"))
        spelled: dict[str, object] = {}
        for key, value in _items(names.get("config")):
            with self.mistakes.at(key):
                name = checked_key(key)
                spell_once(spelled, name, key, "config")
                if name in TABLES:
                    self._table(name, value)
                else:
                    self._setting(name, value)
        at_top = ("may", *(one.key for one in door.settings() if one.at_top))
        for name in TABLES:
            self._table(name, names.get(name))
        for name in at_top:
            if isinstance(names.get(name), ast.Dict):
                with self.mistakes.at(name):
                    self._setting(name, names[name])
        relays = {name for name, value in names.items() if _called(value) == "Relay"}
        for name in relays:
            self._relay(names[name])
        for node in self.tree.body:
            if isinstance(node, _FUNCTIONS):
                for decorator in reversed(node.decorator_list):
                    if not self._decorator(relays, decorator, _stub(node)):
                        break  # those above it get what it makes of the function

    def _imports(self) -> None:
        """Modules that are not installed. What an ``if`` or a ``try`` imports may be missing, and
        what stands behind a statement may be found by it, as where it adds to ``sys.path``."""
        for node in self.tree.body:
            if not isinstance(node, ast.Import | ast.ImportFrom) and not _is_text(node):
                return
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in (one.partition(".")[0] for one in names):
                if name not in sys.modules and not importlib.util.find_spec(name):
                    self.mistakes.note(not_installed(name), node.lineno)

    def _setting(self, name: str, value: ast.expr) -> None:
        with suppress(_NotKnown):
            with_setting(Settings(), name, self._value(value))

    def _dictionary(self, name: str, value: ast.expr | None) -> None:
        """Note where ``value`` can be seen to be something else."""
        if isinstance(value, ast.List | ast.Tuple | ast.Set | ast.Constant):
            shown = value.value if isinstance(value, ast.Constant) else value
            kind = type(shown).__name__.lower()
            with self.mistakes.at(name):
                raise ConfigError(f"{name} must be a dictionary, not {kind}")

    def _table(self, table: str, value: ast.expr | None) -> None:
        """The entries of ``patterns``, ``hooks`` or ``routes``."""
        self._dictionary(table, value)
        for key, entries in _items(value):
            many = entries.elts if isinstance(entries, ast.List | ast.Tuple) else [entries]
            for entry in many:
                with self.mistakes.at(key):
                    add_entry(self.registry, table, key, self._entry(table, key, entry), "")

    def _entry(self, table: str, key: str, node: ast.expr) -> object:
        """One entry, with a function that takes nothing for a handler that is not known."""
        if not isinstance(node, ast.Dict):
            try:
                return self._value(node)
            except _NotKnown:
                return _anything
        options = {}
        for name, value in _items(node):
            with suppress(_NotKnown):
                options[name] = self._value(value)
                continue
            known_key(name, _OPTIONS[table], f"{table}[{key!r}]")
            if name == "handler":
                options[name] = _anything
            elif name == "command":
                options[name] = "unknown"
            elif name == "url":
                options[name] = "http://unknown"
        if None in node.keys:  # {**others}
            options.setdefault("handler", _anything)
        return options

    def _relay(self, call: ast.expr) -> None:
        for option in call.keywords if isinstance(call, ast.Call) else ():
            if option.arg in (None, "name", "home"):
                continue
            with self.mistakes.at_line(option.value.lineno):
                name = relay_setting(str(option.arg))
                with suppress(_NotKnown):
                    value = self._value(option.value)
                    if value is not None:
                        with_setting(Settings(), name, value)

    def _decorator(self, relays: set[str], node: ast.expr, function: Any) -> bool:
        """Check a decorator of ``Relay``; whether it is one, which leaves the function as it is."""
        called = node.func if isinstance(node, ast.Call) else node
        if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
            return False
        table = _DECORATORS.get(called.attr)
        if table is None or called.value.id not in relays:
            return False
        with self.mistakes.at_line(node.lineno), suppress(_NotKnown):
            if not isinstance(node, ast.Call):
                if table == "routes":
                    add_entry(self.registry, table, function.__name__, function, "")
                    return True
                raise needs_word(called.attr)
            known_options(called.attr, [one.arg for one in node.keywords if one.arg])
            key = self._value(node.args[0]) if node.args else function.__name__
            options = {}
            for option in node.keywords:
                with suppress(_NotKnown):
                    options[str(option.arg)] = self._value(option.value)
            if table == "patterns":
                self.registry.add_pattern(*split_pattern(key), function, **options)
            elif table == "hooks":
                self.registry.add_hook(key, function, **options)
            else:
                self.registry.add_route(key, function, **options)
        return True

    def _value(self, node: ast.expr) -> Any:
        """What ``node`` is without running anything. Raises _NotKnown."""
        if isinstance(node, ast.Name) and node.id in self.functions:
            return self.functions[node.id]
        if isinstance(node, ast.Lambda):
            return _stub(node)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise _NotKnown from None


class _NotKnown(Exception):
    """Only a run can tell."""


def _anything() -> None:
    """Stands for a handler that is not known."""


def _called(node: ast.expr) -> str:
    """The name that is called; "" for anything else."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _items(table: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    """The keys of a dictionary that stand there as texts, and their values."""
    if isinstance(table, ast.Dict):
        for key, value in zip(table.keys, table.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, value


def _stub(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Callable[..., object]:
    """A function with this signature that does nothing."""
    nothing = ast.Constant(None)
    arguments = node.args
    bare = ast.arguments(
        posonlyargs=[ast.arg(one.arg) for one in arguments.posonlyargs],
        args=[ast.arg(one.arg) for one in arguments.args],
        vararg=arguments.vararg and ast.arg(arguments.vararg.arg),
        kwonlyargs=[ast.arg(one.arg) for one in arguments.kwonlyargs],
        kw_defaults=[one and nothing for one in arguments.kw_defaults],
        kwarg=arguments.kwarg and ast.arg(arguments.kwarg.arg),
        defaults=[nothing for _ in arguments.defaults],
    )
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(bare, nothing)))
    function: Callable[..., object] = eval(compile(tree, "stub", "eval"), {"__builtins__": {}})
    function.__name__ = getattr(node, "name", "<lambda>")
    return function
