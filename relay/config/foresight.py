"""For which events a configuration may register hooks, read from its source without running it.

An agent is asked only for those, and it starts before the configuration runs. An event that is
missed would leave a gate open, so whatever cannot be told for certain means every event; the price
of one too many is a question to the session that nobody answers.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from relay.config.load import compile_config
from relay.config.settings import KEYS, known_key
from relay.config.trust import ConfigFile
from relay.core.errors import ConfigError
from relay.hooks.events import HookEventName, event_names

#: Modules of relay's that register nothing when they are used.
_PLAIN = frozenset(
    (
        "relay",
        "relay.core.errors",
        "relay.core.message",
        "relay.hooks.events",
        "relay.hooks.hook_types",
    )
)
_TABLES = frozenset(("hooks", "config"))
_REGISTERS = frozenset(("on", "add_hook"))
#: With these a file can do what cannot be read from it.
_DYNAMIC = frozenset(("eval", "exec", "globals", "locals", "setattr", "vars", "__import__"))


class _Uncertain(Exception):
    """It cannot be told what this registers."""


def foreseen(file: ConfigFile) -> tuple[HookEventName, ...]:
    """The events, in the order of HookEventName; all of them where there is a doubt.

    Raises ConfigError when the file is no Python source.
    """
    compile_config(file)
    try:
        found = set(_events(ast.parse(file.data)))
    except _Uncertain:
        return tuple(HookEventName)
    return tuple(event for event in HookEventName if event in found)


def _events(tree: ast.Module) -> Iterator[HookEventName]:
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    classes = set(_classes(tree))
    relays = set(_relays(tree, classes))
    tables = [table for statement in tree.body for table in _tables(statement)]
    seen = {name for name, _ in tables}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _check_import(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _refuse_if(node.name in _TABLES)
        elif isinstance(node, ast.Name):
            _refuse_if(node.id in _TABLES and node not in seen)
            _check_name(node, parents[node], classes, relays)
        elif isinstance(node, ast.Attribute):
            _check_attribute(node, parents[node])
        elif isinstance(node, ast.Call) and _registers(node):
            yield from _named(_event_argument(node))
    for name, table in tables:
        yield from _hooks(table) if name.id == "hooks" else _config(table)


def _registers(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _REGISTERS


def _event_argument(call: ast.Call) -> ast.expr:
    if call.args:
        return call.args[0]
    for keyword in call.keywords:
        if keyword.arg == "event":
            return keyword.value
    raise _Uncertain


def _named(node: ast.expr) -> tuple[HookEventName, ...]:
    """The events of a name that stands there as it is."""
    if isinstance(node, ast.Attribute) and node.attr in HookEventName.__members__:
        return (HookEventName[node.attr],)
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise _Uncertain
    try:
        return event_names(node.value)
    except ConfigError:
        return ()  # then the whole file is refused, or this is something else's ``on``


def _tables(statement: ast.stmt) -> Iterator[tuple[ast.Name, ast.expr]]:
    """``hooks = {…}`` and ``config = {…}``."""
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    else:
        return
    for target in targets:
        if isinstance(target, ast.Name) and target.id in _TABLES and statement.value is not None:
            yield target, statement.value


def _hooks(table: ast.expr) -> Iterator[HookEventName]:
    if not isinstance(table, ast.Dict):
        raise _Uncertain
    for key in table.keys:
        if key is None:  # ** of another dictionary
            raise _Uncertain
        yield from _named(key)


def _config(table: ast.expr) -> Iterator[HookEventName]:
    if not isinstance(table, ast.Dict):
        raise _Uncertain
    for key, value in zip(table.keys, table.values, strict=True):
        if not isinstance(key, ast.Constant):
            raise _Uncertain
        try:
            name = known_key(key.value, KEYS, "config")
        except ConfigError:
            continue  # then the whole file is refused
        _refuse_if(name == "hook_files")
        if name == "hooks":
            yield from _hooks(value)


def _check_import(node: ast.Import | ast.ImportFrom) -> None:
    """Something that is imported may be a Relay with hooks of its own, or may be given one."""
    for alias in node.names:
        _refuse_if((alias.asname or alias.name).partition(".")[0] in _TABLES)
        module = alias.name if isinstance(node, ast.Import) else node.module or ""
        if module.partition(".")[0] == "relay":
            _refuse_if(module not in _PLAIN or alias.name in ("*", "integrations", "app", "hooks"))
        elif isinstance(node, ast.ImportFrom):
            _refuse_if(module.partition(".")[0] not in sys.stdlib_module_names)


def _check_name(
    node: ast.Name, parent: ast.AST, classes: set[str], relays: set[ast.AST | str]
) -> None:
    if node.id in classes:
        _refuse_if(not isinstance(parent, ast.Call) or parent not in relays)
    elif node.id in relays and isinstance(node.ctx, ast.Load):
        _refuse_if(not isinstance(parent, ast.Attribute))
    _refuse_if(node.id in _DYNAMIC)


def _check_attribute(node: ast.Attribute, parent: ast.AST) -> None:
    called = isinstance(parent, ast.Call) and parent.func is node
    _refuse_if(node.attr in _REGISTERS and not called)
    _refuse_if(node.attr in ("Relay", "registry", "__dict__"))


def _classes(tree: ast.Module) -> Iterator[str]:
    """What ``Relay`` is called here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "relay":
            yield from (alias.asname or "Relay" for alias in node.names if alias.name == "Relay")


def _relays(tree: ast.Module, classes: set[str]) -> Iterator[ast.AST | str]:
    """The names of what ``Relay()`` makes at the top, and the calls themselves."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            continue
        call = statement.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if call.func.id in classes and len(names) == len(targets):
            yield call
            yield from names


def _refuse_if(doubt: bool) -> None:
    if doubt:
        raise _Uncertain
