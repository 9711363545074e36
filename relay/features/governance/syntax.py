"""Whether two texts are the same program in another form: the leaves of their trees are compared.

Pure. A file of its own because it alone knows languages: Python by ``ast``, others by tree-sitter's
wheels where they are installed (``relay[syntax]``). Comments, form, docstrings, the order of the
top-level definitions, and a consistent renaming of what the file itself defines make no difference.
In doubt two programs are not the same.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Sequence
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
#: A leaf: where it stands, its text, and whether that is a name.
_Leaf = tuple[tuple[object, ...], str, bool]


class _Program:
    """A text as the leaves of its top-level statements, and the names in it."""

    def __init__(self) -> None:
        #: With the name of what is defined there, "" for other statements.
        self.parts: list[tuple[str, list[_Leaf]]] = []
        self.names: set[str] = set()
        self.defined: set[str] = set()

    def begin(self, name: str) -> None:
        """The next leaves are those of another top-level statement."""
        self.parts.append((name, []))

    def add(self, place: tuple[object, ...], text: str, *, name: bool, defined: bool) -> None:
        """The next leaf."""
        self.parts[-1][1].append((place, text, name))
        if name:
            self.names.add(text)
            if defined:
                self.defined.add(text)


def same_program(path: str, before: bytes, after: bytes) -> bool | None:
    """Whether the two are the same program; None for a language that is not known here."""
    ending = "." + path.lower().rpartition(".")[2]
    read = _python if ending in (".py", ".pyi") else _other(ending)
    if read is None:
        return None
    try:
        old, new = read(before), read(after)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    in_order = [leaves for _, leaves in old.parts], [leaves for _, leaves in new.parts]
    by_name = [[one[1] for one in sorted(p.parts, key=lambda o: o[0])] for p in (old, new)]
    return any(_agree(old, new, *parts) for parts in (in_order, by_name))


def _agree(
    old: _Program, new: _Program, before: Sequence[list[_Leaf]], after: Sequence[list[_Leaf]]
) -> bool:
    """Whether all leaves are the same under one renaming, from and to names of the file's own that
    the other text does not have."""
    there: dict[str, str] = {}
    if [len(leaves) for leaves in before] != [len(leaves) for leaves in after]:
        return False
    for was, now in zip(before, after, strict=True):
        for (place, text, name), (new_place, new_text, _) in zip(was, now, strict=True):
            if place != new_place or (not name and text != new_text):
                return False
            if name and there.setdefault(text, new_text) != new_text:
                return False
    changed = {text: other for text, other in there.items() if text != other}
    return (
        len(set(changed.values())) == len(changed)
        and changed.keys() <= old.defined - new.names
        and set(changed.values()) <= new.defined - old.names
    )


# -- Python

_Defined = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Naming = ast.arg | ast.ExceptHandler | ast.MatchAs | ast.MatchStar | ast.MatchMapping | _Defined
#: Fields that say nothing about the program.
_SILENT = {"type_ignores", "type_comment", "kind"}


def _python(data: bytes) -> _Program:
    """Raises SyntaxError, ValueError, RecursionError, MemoryError."""
    program = _Program()
    tree = ast.parse(data)
    for statement in _without_docstring(tree):
        program.begin(statement.name if isinstance(statement, _Defined) else "")
        waiting: list[tuple[int, Any, str, Any]] = [(0, None, "", statement)]
        while waiting:
            depth, parent, field, value = waiting.pop()
            place = (depth, type(parent).__name__, field, type(value).__name__)
            name = isinstance(value, str) and not isinstance(parent, ast.Constant)
            if isinstance(value, ast.AST):
                text = ""
                for below in reversed(value._fields):
                    inner = getattr(value, below, None)
                    if below == "body" and isinstance(value, _Defined):
                        inner = _without_docstring(value)
                    if below not in _SILENT:
                        waiting.append((depth + 1, value, below, inner))
            elif isinstance(value, list):
                text = str(len(value))
                waiting += [(depth + 1, parent, field, one) for one in reversed(value)]
            else:
                text = value if name else repr(value)
            stored = isinstance(getattr(parent, "ctx", None), ast.Store)
            defined = isinstance(parent, _Naming) or stored or field == "asname"
            program.add(place, text, name=name, defined=defined)
    return program


def _without_docstring(node: Any) -> list[Any]:
    body: list[Any] = node.body
    if body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            body = body[1:]
    return [] if len(body) == 1 and isinstance(body[0], ast.Pass) else body


# -- other languages, by tree-sitter

#: The types of nodes that define what stands in these fields of theirs end, and do not begin, so.
_DEFINING = ("declaration", "definition", "declarator", "_item", "_spec", "parameter", "parameters")
_FOREIGN = ("import", "use", "extern")
_TARGETS = {"name", "declarator", "pattern", "left", None}
#: Leaves that can be renamed. A shorthand property is none: its name is a key too.
_NAMES = {"identifier", "type_identifier", "property_identifier", "field_identifier"}
#: Top-level nodes whose order says nothing.
_MOVABLE = ("function", "class", "method", "struct", "enum", "interface", "trait")
#: Of a type that has one of these in it the whole text counts, but for the kind of quote.
_TEXTS = ("string", "char", "template", "regex")


@cache
def _language(ending: str) -> Any:
    """The grammar of a language; None where it is not installed, or there is none."""
    module, function = _GRAMMARS.get(ending, ("", ""))
    try:
        library: Any = importlib.import_module("tree_sitter")
        return library.Language(getattr(importlib.import_module(module), function)())
    except (ImportError, AttributeError, ValueError, TypeError):
        return None  # missing, or of another version than the library


def _other(ending: str) -> Any:
    language = _language(ending)
    return (lambda data: _tree(language, data)) if language else None


def _tree(language: Any, data: bytes) -> _Program:
    """Raises SyntaxError."""
    root = importlib.import_module("tree_sitter").Parser(language).parse(data).root_node
    if root.has_error:
        raise SyntaxError
    program = _Program()
    for statement in root.children:
        program.begin(_movable_name(statement))
        waiting: list[tuple[int, str, str | None, Any]] = [(0, "", None, statement)]
        while waiting:
            depth, parent, field, node = waiting.pop()
            is_text = any(word in node.type for word in _TEXTS)
            if "comment" in node.type or _is_form(node):
                continue
            if node.child_count and not is_text:
                inner = [(node.type, node.field_name_for_child(n)) for n in range(node.child_count)]
                if node.type == "expression_list":  # Go: a, b := …
                    inner = [(parent, field)] * node.child_count
                below = zip(inner, node.children, strict=True)
                waiting += [(depth + 1, *where, child) for where, child in reversed([*below])]
                continue
            defines = parent.endswith(_DEFINING) and not parent.startswith(_FOREIGN)
            program.add(
                (depth, parent, field, node.type),
                _text(node, unquoted=is_text),
                name=node.type in _NAMES,
                defined=defines and field in _TARGETS,
            )
    program.parts = [part for part in program.parts if part[1]]
    return program


def _is_form(node: Any) -> bool:
    """Whether it is a sign that could be left out: a last comma, or a semicolon at the end."""
    after = node.next_sibling
    if node.type == ",":
        return after is not None and after.type in (")", "]", "}")
    return node.type == ";" and (after is None or after.type == "}")


def _movable_name(node: Any) -> str:
    inner = node.child_by_field_name("declaration") or node  # behind an export
    if not any(word in inner.type for word in _MOVABLE):
        return ""
    name = inner.child_by_field_name("name") or inner.child_by_field_name("declarator")
    return "" if name is None else _text(name)


def _text(node: Any, *, unquoted: bool = False) -> str:
    text = bytes(node.text or b"").decode("utf-8", "surrogateescape")
    quoted = unquoted and len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text
