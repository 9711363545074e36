"""Checks the text of an automation's file without running any of it: ``relay automation check``,
and before a text is registered.

It runs in the process that has the file, not in the broker: the text is anybody's. What only a run
can tell (a name that is computed, a handler that is imported) is left to the worker that loads it.
"""

from __future__ import annotations

import ast
import builtins
import warnings
from collections.abc import Iterator
from dataclasses import fields

from relay.core.errors import UsageError, did_you_mean
from relay.features.automations.definition import Automation, Definition, Json, check_size

_KEYS = tuple(key.name for key in fields(Automation))
_NEEDED = ("name", "description", "handler")
#: A valid definition, into which each key is put by itself.
_VALID: Json = {"name": "name", "description": "description"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_FORM = "automation = Automation(name=…, description=…, handler=…)"
_CORRECT = "correct this line, then: relay automation check FILE"
#: With these a file may bind names that are not written in it.
_DYNAMIC = {"exec", "globals", "setattr", "vars"}


def check(source: str, path: str) -> list[str]:
    """Raises UsageError with the file, the line and the mistake; several are lines of its
    ``details["mistakes"]``. Returns the agents that results in
    the file name as they are written there."""
    check_size(path, source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source, path)
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _mistake(path, error.lineno or 1, error.msg) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}") from None
    bound, values = _top_level(tree)
    if "automation" not in bound and not _binds_unseen_names(tree):
        raise UsageError(f"{path} has no automation at its top", hint=f"write: {_FORM}")
    value = values.get("automation")
    given = None if value is None else _given(value, tree)
    if value is not None and given is not None:
        keys, is_whole = given
        mistakes = list(_mistakes_of_keys(path, value.lineno, keys, is_whole=is_whole))
        if "handler" in keys:
            try:
                _check_handler(path, keys["handler"], tree, bound)
            except UsageError as error:
                mistakes.append(error)
        if mistakes[1:]:
            lines = [one.message if one.hint == _CORRECT else one.line for one in mistakes]
            raise UsageError(f"{path} has {len(lines)} mistakes", details={"mistakes": lines})
        if mistakes:
            raise mistakes[0]
    return sorted(set(_named_agents(tree)))


def _named_agents(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        given: dict[object, ast.expr] = {}
        if isinstance(node, ast.Call):
            given = {pair.arg: pair.value for pair in node.keywords}
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            given = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
        agent = given.get("agent")
        if "fire" in given and isinstance(agent, ast.Constant) and isinstance(agent.value, str):
            yield agent.value


def _mistake(path: str, line: int, text: str, hint: str = "") -> UsageError:
    return UsageError(f"{path}:{line}: {text}", hint=hint or _CORRECT)


def _top_level(tree: ast.Module) -> tuple[list[str], dict[str, ast.expr]]:
    """The names that the file binds at its top, as often as it does; and the values of those that
    it assigns only once."""
    bound: list[str] = []
    values: dict[str, ast.expr] = {}
    for node in _statements(tree):
        if isinstance(node, _SCOPES) and not isinstance(node, ast.Lambda):
            bound.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound += [(name.asname or name.name).partition(".")[0] for name in node.names]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.append(node.id)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    values[target.id] = node.value
    return bound, {name: value for name, value in values.items() if bound.count(name) == 1}


def _binds_unseen_names(tree: ast.Module) -> bool:
    """Whether the file may bind names at its top that only a run can tell."""
    return any(
        isinstance(node, ast.Global)
        or (isinstance(node, ast.ImportFrom) and any(name.name == "*" for name in node.names))
        or (isinstance(node, ast.Name) and node.id in _DYNAMIC)
        for node in ast.walk(tree)
    )


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes of the file but for what is inside functions and classes."""
    left: list[ast.AST] = [tree]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            yield child
            if not isinstance(child, _SCOPES):
                left.append(child)


def _given(value: ast.expr, tree: ast.Module) -> tuple[dict[str, ast.expr], bool] | None:
    """The keys that the automation is given, and whether these are all. None: it is made in a way
    that only a run can tell."""
    if isinstance(value, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
        named = {str(key): given for key, given in zip(keys, value.values, strict=True) if key}
        return named, None not in keys and not _is_used(tree)
    if not isinstance(value, ast.Call) or not _is_automation(value.func, tree):
        return None
    is_whole = not any(isinstance(argument, ast.Starred) for argument in value.args)
    by_place = dict(zip(_KEYS, value.args, strict=False)) if is_whole else {}
    by_name = {pair.arg: pair.value for pair in value.keywords if pair.arg is not None}
    is_whole = is_whole and all(pair.arg is not None for pair in value.keywords)
    return {**by_place, **by_name}, is_whole


def _is_used(tree: ast.Module) -> bool:
    """Whether the file goes on to use its automation, and so may give it more keys."""
    return any(
        isinstance(node, ast.Name) and node.id == "automation" and isinstance(node.ctx, ast.Load)
        for node in ast.walk(tree)
    )


def _is_automation(called: ast.expr, tree: ast.Module) -> bool:
    """Whether it is relay's ``Automation`` that is called."""
    if isinstance(called, ast.Attribute):
        return called.attr == "Automation"
    names = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "relay"
        for name in node.names
        if name.name == "Automation"
    }
    return isinstance(called, ast.Name) and called.id in names


def _mistakes_of_keys(
    path: str, line: int, keys: dict[str, ast.expr], *, is_whole: bool
) -> Iterator[UsageError]:
    for key, value in keys.items():
        if key not in _KEYS:
            text = f"an automation has no {key!r}"
            yield _mistake(path, value.lineno, text, did_you_mean(key[:80], _KEYS))
        if key == "handler" or key not in _KEYS:
            continue
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            continue  # only a run can tell
        try:
            Definition.of(_VALID | {key: literal})
        except UsageError as error:
            yield _mistake(path, value.lineno, error.message, error.hint or "")
    missing = [key for key in _NEEDED if key not in keys]
    # An unknown key may be a needed one that is misspelled.
    if missing and is_whole and set(keys) <= set(_KEYS):
        text = f"the automation has no {' and no '.join(missing)}"
        yield _mistake(path, line, text, f"write: {_FORM}")


def _check_handler(path: str, handler: ast.expr, tree: ast.Module, bound: list[str]) -> None:
    function: ast.AST = handler
    if isinstance(handler, ast.Name):
        if handler.id not in (*bound, *dir(builtins)) and not _binds_unseen_names(tree):
            raise _mistake(path, handler.lineno, f"there is no {handler.id} in this file")
        if bound.count(handler.id) == 1:
            same = (node for node in tree.body if getattr(node, "name", None) == handler.id)
            function = next(same, handler)
    elif isinstance(handler, ast.Constant | ast.Dict | ast.List | ast.Tuple | ast.JoinedStr):
        raise _mistake(path, handler.lineno, "the handler is not a function")
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return
    if getattr(function, "decorator_list", None):
        return
    arguments = function.args
    most = len(arguments.posonlyargs + arguments.args)
    needed = most - len(arguments.defaults)
    named = sum(default is None for default in arguments.kw_defaults)
    if needed > 1 or named or (most < 1 and arguments.vararg is None):
        text = "the handler is called with one argument: def handler(ctx)"
        raise _mistake(path, function.lineno, text)
