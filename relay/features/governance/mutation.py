"""What a tool call did to a file: which lines, and what sort of change it was. Pure.

Whether two texts are the same program in another form is told from the leaves of their trees:
Python by ``ast``, other languages by tree-sitter's wheels where they are installed
(the extra ``languages``). Comments, form, docstrings, the order of the top-level definitions, and a
consistent renaming of what the file itself defines make no difference. In doubt two programs are
not the same.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

#: The hash of a file that is not there.
ABSENT = ""
#: Said in the place of the hash of a file of which only its size and times were known.
UNKNOWN = "unknown"
#: Bytes of a file whose lines are told; of a larger one only the hashes are.
LINES_MAX = 2 * 1024 * 1024
#: Lines before times lines after, of what differs: beyond it all that lies between the first and
#: the last difference is one range, because telling them apart would take seconds.
_PAIRS_MAX = 4_000_000
#: Bytes of a file whose syntax tree is looked at.
_SYNTAX_MAX = 256 * 1024
_CONFIG_ENDINGS = frozenset(
    (".cfg", ".conf", ".config", ".env", ".gradle", ".hcl", ".ini", ".json", ".json5", ".jsonc")
    + (".lock", ".plist", ".properties", ".tf", ".toml", ".xml", ".yaml", ".yml")
)
_CONFIG_NAMES = frozenset(
    ("brewfile", "build.bazel", "cmakelists.txt", "codeowners", "dockerfile", "gemfile", "go.mod")
    + ("go.sum", "jenkinsfile", "justfile", "makefile", "manifest.in", "pipfile", "procfile")
    + ("rakefile", "setup.py", "vagrantfile", "workspace")
)


class MutationClass(StrEnum):
    """What sort of change it was."""

    CONFIG_CHANGE = "CONFIG_CHANGE"  # how the project is built or set up
    AST_REFACTOR = "AST_REFACTOR"  # another form of the same program
    INTENT_EVOLUTION = "INTENT_EVOLUTION"  # it does something else now
    SAFE_READ = "SAFE_READ"  # nothing is different


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines of a file, from 1, both included, with the hash of what stands there."""

    start_line: int
    end_line: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class FileMutation:
    """What became of one file. ``path`` is relative to the project's root."""

    path: str
    before: str
    after: str
    mutation_class: MutationClass
    #: The lines that are new, as the file is now; and those that they replaced, as it was.
    ranges: tuple[LineRange, ...] = ()
    replaced: tuple[LineRange, ...] = ()
    moved_from: str = ""


def content_hash(data: bytes) -> str:
    """The hash of a file's or a range's bytes, as the trace has it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def compare(
    path: str, before: bytes | None, after: bytes | None, *, moved_from: str = ""
) -> FileMutation:
    """What a call did to the file ``path``; None: there is none."""
    ranges, replaced = _line_ranges(before or b"", after or b"")
    was, now = (ABSENT if data is None else content_hash(data) for data in (before, after))
    mutation = _classify(path, before, after)
    return FileMutation(path, was, now, mutation, ranges, replaced, moved_from)


def opaque(path: str, before: str, after: str, *, moved_from: str = "") -> FileMutation:
    """The same where only the hashes are known: the file is too large."""
    mutation = MutationClass.INTENT_EVOLUTION
    if before == after:
        mutation = MutationClass.SAFE_READ
    elif _is_config(path):
        mutation = MutationClass.CONFIG_CHANGE
    return FileMutation(path, before, after, mutation, moved_from=moved_from)


def overall(classes: Iterable[MutationClass]) -> MutationClass:
    """The class of a call that changed several files: the gravest of theirs."""
    order = ("INTENT_EVOLUTION", "CONFIG_CHANGE", "AST_REFACTOR", "SAFE_READ")
    return min(classes, key=order.index, default=MutationClass.SAFE_READ)


def _classify(path: str, before: bytes | None, after: bytes | None) -> MutationClass:
    if before == after:
        return MutationClass.SAFE_READ
    if _is_config(path):
        return MutationClass.CONFIG_CHANGE
    if before is None or after is None or max(len(before), len(after)) > _SYNTAX_MAX:
        return MutationClass.INTENT_EVOLUTION
    same = same_program(path, before, after)
    if same is None:
        same = _shown(before) == _shown(after)
    return MutationClass.AST_REFACTOR if same else MutationClass.INTENT_EVOLUTION


def _shown(data: bytes) -> list[bytes]:
    """The lines that show something, without what no one sees at their ends."""
    return [line.rstrip() for line in data.split(b"\n") if line.strip()]


def _is_config(path: str) -> bool:
    *folders, name = path.lower().split("/")
    return (
        name.startswith((".", "dockerfile.", "requirements"))
        or name in _CONFIG_NAMES
        or "." + name.rpartition(".")[2] in _CONFIG_ENDINGS
        or ".github" in folders
    )


def _line_ranges(old: bytes, new: bytes) -> tuple[tuple[LineRange, ...], tuple[LineRange, ...]]:
    """The lines that are new, and those that are gone."""
    if old == new or max(len(old), len(new)) > LINES_MAX or b"\0" in old or b"\0" in new:
        return (), ()
    was, now = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = 0
    while start < min(len(was), len(now)) and was[start] == now[start]:
        start += 1
    end = 0
    while end < min(len(was), len(now)) - start and was[-1 - end] == now[-1 - end]:
        end += 1
    was_middle, now_middle = was[start : len(was) - end], now[start : len(now) - end]
    if len(was_middle) * len(now_middle) > _PAIRS_MAX:
        hunks = [(0, len(was_middle), 0, len(now_middle))]
    else:
        matcher = difflib.SequenceMatcher(None, was_middle, now_middle)
        hunks = [found[1:] for found in matcher.get_opcodes() if found[0] != "equal"]
    ranges = [
        _range(now, start + first, start + last) for _, _, first, last in hunks if last > first
    ]
    replaced = [
        _range(was, start + first, start + last) for first, last, *_ in hunks if last > first
    ]
    return tuple(ranges), tuple(replaced)


def _range(lines: list[bytes], first: int, last: int) -> LineRange:
    return LineRange(first + 1, last, content_hash(b"".join(lines[first:last])))


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


def unread_ending(path: str) -> str:
    """How the file's name ends, where the grammar of its language is not installed; else ""."""
    ending = "." + path.lower().rpartition(".")[2]
    return ending if ending in _GRAMMARS and _language(ending) is None else ""


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
    """Whether it is a character that could be left out: a last comma, or a semicolon at the end."""
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
