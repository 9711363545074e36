"""Whether two texts are the same program in another form: their syntax trees are compared. Pure.

A file of its own because it alone knows languages: Python by ``ast``, others by tree-sitter's
wheels where they are installed (``relay[syntax]``). Comments, form, docstrings, the order of the
top-level definitions, and a consistent renaming of what the file itself defines make no difference.
In doubt two programs are not the same.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

#: ending -> (the module of the grammar, its function).
_GRAMMARS = {
    **dict.fromkeys((".js", ".jsx", ".mjs", ".cjs"), ("tree_sitter_javascript", "language")),
    **dict.fromkeys((".ts", ".mts", ".cts"), ("tree_sitter_typescript", "language_typescript")),
    ".tsx": ("tree_sitter_typescript", "language_tsx"),
    ".go": ("tree_sitter_go", "language"),
    ".rs": ("tree_sitter_rust", "language"),
    ".java": ("tree_sitter_java", "language"),
    **dict.fromkeys((".c", ".h"), ("tree_sitter_c", "language")),
}


def same_program(path: str, before: bytes, after: bytes) -> bool | None:
    """Whether the two are the same program; None for a language that is not known here."""
    ending = "." + path.lower().rpartition(".")[2]
    try:
        if ending in (".py", ".pyi"):
            return _same_python(ast.parse(before), ast.parse(after))
        language = _language(ending)
        if language is None:
            return None
        parser = importlib.import_module("tree_sitter").Parser(language)
        return _same_trees(parser.parse(before), parser.parse(after))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


class _Renaming:
    """Which name of the one text is which of the other: one to one, wherever they stand."""

    def __init__(self, old: Iterable[str] = (), new: Iterable[str] = ()) -> None:
        self.old, self.new = frozenset(old), frozenset(new)
        self._there: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def agrees(self, old: str, new: str) -> bool:
        """Whether the two can be the same; from then on they are."""
        if old != new and (
            not (old in self.old and new in self.new) or new in self.old or old in self.new
        ):
            return False  # it is somebody else's name, or two have changed places
        return self._there.setdefault(old, new) == new and self._back.setdefault(new, old) == old


# -- Python


_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Matched = ast.MatchAs | ast.MatchStar | ast.MatchMapping
_Naming = ast.Name | ast.arg | ast.ExceptHandler | _Defined | _Matched
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
#: What stands in the scope of a function or comprehension itself.
_INNER = ("args", "body", "elt", "key", "value", "generators")
#: Fields that say nothing about the program.
_SILENT = {"type_ignores", "type_comment", "kind"}


def _same_python(before: ast.Module, after: ast.Module) -> bool:
    members = _Renaming(_members(before), _members(after))
    scope = _Renaming(_bound(before.body), _bound(after.body))
    return any(
        _PythonPair(members, [scope]).same(order(before.body), order(after.body))
        for order in (list, _by_name)
    )


def _by_name(body: list[ast.stmt]) -> list[ast.stmt]:
    """The definitions by their names, behind all other statements."""
    return sorted(body, key=lambda one: one.name if isinstance(one, _Defined) else "")


def _members(tree: ast.Module) -> Iterator[str]:
    """What classes of the file define: methods, fields, and attributes that are assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _bound(node.body)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _bound(body: Iterable[ast.AST]) -> Iterator[str]:
    """The names that statements bind in their own scope."""
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Defined):
            yield node.name
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


class _PythonPair:
    """Two trees, compared node by node, with the scopes around the place that is looked at."""

    def __init__(self, members: _Renaming, scopes: list[_Renaming]) -> None:
        self._members = members
        self._scopes = scopes
        self._class_body = False

    def same(self, old: object, new: object) -> bool:
        if type(old) is not type(new):
            return False
        if isinstance(old, list):
            assert isinstance(new, list)
            return len(old) == len(new) and all(map(self.same, old, new))
        if not isinstance(old, ast.AST):
            return repr(old) == repr(new)
        if isinstance(old, _Function | _Comprehension):
            return self._same_scope(old, new)
        return self._same_fields(old, new)

    def _same_fields(self, old: ast.AST, new: Any, *but: str) -> bool:
        return all(
            self._same_field(old, name, getattr(old, name, None), getattr(new, name, None))
            for name in old._fields
            if name not in _SILENT and name not in but
        )

    def _same_field(self, node: ast.AST, name: str, old: Any, new: Any) -> bool:
        if isinstance(old, str) and isinstance(new, str):
            return self._same_name(node, name, old, new)
        if name == "names" and isinstance(node, ast.Global | ast.Nonlocal):
            return len(old) == len(new) and all(map(self._same_variable, old, new))
        if name == "body" and isinstance(old, list):
            old, new = _without_docstring(node, old), _without_docstring(node, new)
            if isinstance(node, ast.ClassDef):
                outside, self._class_body = self._class_body, True
                try:
                    return self.same(old, new)
                finally:
                    self._class_body = outside
        return self.same(old, new)

    def _same_name(self, node: ast.AST, name: str, old: str, new: str) -> bool:
        if isinstance(node, ast.Attribute) and name == "attr":
            return self._members.agrees(old, new)
        if isinstance(node, _Naming):
            return self._same_variable(old, new)
        if isinstance(node, ast.alias):
            if name == "asname":
                return self._same_variable(old, new)
            imported = old.partition(".")[0]
            return old == new and (
                node.asname is not None or self._same_variable(imported, imported)
            )
        return old == new

    def _same_variable(self, old: str, new: str) -> bool:
        if self._class_body and old in self._members.old:
            return self._members.agrees(old, new)
        for scope in reversed(self._scopes):
            if old in scope.old or new in scope.new:
                return scope.agrees(old, new)
        return self._scopes[0].agrees(old, new)

    def _same_scope(self, old: Any, new: Any) -> bool:
        """A function or comprehension: its name and defaults are of the scope around."""
        comprehends = isinstance(old, _Comprehension)
        if not self._same_fields(old, new, *_INNER):
            return False
        if not comprehends and not (
            self.same(old.args.defaults, new.args.defaults)
            and self.same(old.args.kw_defaults, new.args.kw_defaults)
        ):
            return False
        scope = _Renaming(_bound_in(old), _bound_in(new))
        outside, self._class_body = self._class_body, False
        self._scopes.append(scope)
        try:
            if comprehends:
                return all(
                    self.same(getattr(old, name, None), getattr(new, name, None)) for name in _INNER
                )
            return self._same_fields(
                old.args, new.args, "defaults", "kw_defaults"
            ) and self._same_field(old, "body", old.body, new.body)
        finally:
            self._scopes.pop()
            self._class_body = outside


def _bound_in(node: Any) -> set[str]:
    """The names of a function's or comprehension's own scope."""
    if isinstance(node, _Comprehension):
        return set(_bound(one.target for one in node.generators))
    body = node.body if isinstance(node.body, list) else [node.body]
    arguments = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    outer = {
        name
        for one in ast.walk(node)
        if isinstance(one, ast.Global | ast.Nonlocal)
        for name in one.names
    }
    return arguments | (set(_bound(body)) - outer)


def _without_docstring(node: ast.AST, body: list[Any]) -> list[Any]:
    if isinstance(node, _Defined | ast.Module) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            body = body[1:]
    return [] if len(body) == 1 and isinstance(body[0], ast.Pass) else body


# -- other languages, by tree-sitter

#: Nodes whose ``name`` or target this file defines: their types end so.
_DEFINING = (
    "declaration",
    "definition",
    "declarator",
    "_item",
    "_spec",
    "parameter",
    "parameters",
) + ("type_alias", "signature", "enumerator", "closure_parameters", "catch_clause")
_FOREIGN = ("import", "use", "extern")
_TARGETS = {"name", "declarator", "pattern", "left", "parameter", None}
#: Leaves that can be renamed. A shorthand property is none: its name is a key too.
_NAMES = {
    *("identifier", "type_identifier", "property_identifier", "field_identifier"),
    "private_property_identifier",
}
#: Top-level nodes whose order says nothing.
_MOVABLE = ("function", "class", "method", "struct", "enum", "interface", "trait", "type_alias")
_FORM = {";"}
#: Of a type that has one of these in it the text counts, but for the kind of quote.
_TEXTS = ("string", "char", "template", "regex")
_CLOSING = {")", "]", "}"}


@cache
def _language(ending: str) -> Any:
    """The grammar of a language; None where it is not installed, or there is none."""
    if ending not in _GRAMMARS:
        return None
    module, function = _GRAMMARS[ending]
    try:
        library: Any = importlib.import_module("tree_sitter")
        grammar: Any = importlib.import_module(module)
        return library.Language(getattr(grammar, function)())
    except (ImportError, AttributeError, ValueError, TypeError):
        return None  # missing, or of another version than the library


def _same_trees(old: Any, new: Any) -> bool:
    before, after = old.root_node, new.root_node
    if before.has_error or after.has_error:
        return False
    bound = set(_defined(before)), set(_defined(after))
    return any(
        _same_nodes(order(_children(before)), order(_children(after)), _Renaming(*bound))
        for order in (list, _movable_last)
    )


def _same_nodes(before: list[Any], after: list[Any], names: _Renaming) -> bool:
    if len(before) != len(after):
        return False
    waiting = list(zip(reversed(before), reversed(after), strict=True))
    while waiting:
        (old_field, old), (new_field, new) = waiting.pop()
        if old.type != new.type or old_field != new_field:
            return False
        if any(word in old.type for word in _TEXTS):
            if _unquoted(old) != _unquoted(new):
                return False
            continue
        below, above = _children(old), _children(new)
        if len(below) != len(above):
            return False
        if below:
            waiting += zip(reversed(below), reversed(above), strict=True)
        elif old.type in _NAMES:
            if not names.agrees(_text(old), _text(new)):
                return False
        elif _text(old) != _text(new):
            return False
    return True


def _children(node: Any) -> list[tuple[str | None, Any]]:
    """What a node is made of, with the fields; without comments and what is mere form."""
    found = []
    for number, child in enumerate(node.children):
        if "comment" in child.type or child.type in _FORM:
            continue
        after = node.children[number + 1].type if number + 1 < node.child_count else ""
        if child.type == "," and after in _CLOSING:
            continue
        found.append((node.field_name_for_child(number), child))
    return found


def _movable_last(nodes: list[tuple[str | None, Any]]) -> list[tuple[str | None, Any]]:
    return sorted(nodes, key=lambda one: _movable_name(one[1]))


def _movable_name(node: Any) -> str:
    inner = node.child_by_field_name("declaration") or node  # behind an export
    if not any(word in inner.type for word in _MOVABLE):
        return ""
    name = inner.child_by_field_name("name") or inner.child_by_field_name("declarator")
    return "" if name is None else _text(name)


def _defined(root: Any) -> Iterator[str]:
    """The names that a file defines somewhere."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        defines = node.type.endswith(_DEFINING) and not node.type.startswith(_FOREIGN)
        for number, child in enumerate(node.children):
            waiting.append(child)
            if defines and node.field_name_for_child(number) in _TARGETS:
                if child.type in _NAMES:
                    yield _text(child)
                elif child.type == "expression_list":  # Go: a, b := …
                    yield from (_text(one) for one in child.children if one.type in _NAMES)


def _unquoted(node: Any) -> str:
    text = _text(node)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _text(node: Any) -> str:
    return bytes(node.text or b"").decode("utf-8", "surrogateescape")
