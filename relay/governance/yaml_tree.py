"""The YAML of ``active_intents.yaml`` as a tree that knows its lines. Pure.

A file of its own beside ``intents``, which says what has to stand in it. The file may come with a
repository: no anchors, aliases or tags are read, and depth and number of its parts are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from relay.core.errors import RelayError

#: What messages call the file.
_FILE = ".orchestration/active_intents.yaml"
#: Mistakes that are told at once.
MISTAKES_MAX = 20
#: How deep lists and names lie in each other, and parts of the whole document.
DEPTH_MAX, PARTS_MAX = 8, 30_000
#: What YAML reads as something else where it is not in quotes.
_NEEDS_QUOTES = re.compile(r"(?:^\s*(?:-\s+)*|[:,\[]\s*)[*&!%@`]|: .*: ")
_QUOTE = "put it in quotes"
#: With it a repository could hide from a reader what stands behind a comment.
_HIDDEN_BREAK = re.compile("[\x85\u2028\u2029]|\r(?!\n)")
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong in the file. The line counts from 1; 0 where it is the file as a whole."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


class IntentsError(RelayError):
    """The file cannot be used. It says every mistake, at most twenty of them."""

    code = "intents_invalid"

    def __init__(self, mistakes: Iterable[Mistake], hint: str = "") -> None:
        found = sorted(mistakes, key=lambda one: one.line)
        #: In the file's order.
        self.mistakes = tuple(found[:MISTAKES_MAX])
        more = len(found) - len(self.mistakes)
        said = "; ".join(map(str, self.mistakes)) + (f"; and {more} more" if more else "")
        details: dict[str, object] = {
            "mistakes": [{"line": one.line, "text": one.text} for one in self.mistakes]
        }
        super().__init__(f"{_FILE}: {said}", hint=hint, details=details)


class YamlNode:
    """A part of the document: a text, a list, or names with values."""

    __slots__ = ("kind", "value", "items", "pairs", "line", "start", "end", "quote", "plain")

    def __init__(self, kind: str, event: Any, offset: int) -> None:
        self.kind = kind
        self.value: str = getattr(event, "value", "")
        self.items: list[YamlNode] = []
        self.pairs: list[tuple[YamlNode, YamlNode]] = []
        self.line: int = event.start_mark.line + 1
        self.start: int = event.start_mark.index + offset
        self.end: int = event.end_mark.index + offset
        style = getattr(event, "style", None) or ""
        self.plain = style == ""
        self.quote = style if style in ("'", '"') else ""

    @property
    def is_null(self) -> bool:
        return self.kind == "text" and self.plain and self.value in _NULLS

    def get(self, name: str) -> YamlNode:
        return next(value for key, value in self.pairs if key.value == name)


def read_tree(text: str) -> tuple[YamlNode | None, list[Mistake]]:
    """The document, None where it is empty, and what in it is not read.

    Raises IntentsError for what is no YAML.
    """
    import yaml  # 15 ms: only where there is a file to read

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    offset = 1 if text.startswith("\ufeff") else 0
    mistakes: list[Mistake] = []
    if hidden := _HIDDEN_BREAK.search(text):
        line = text.count("\n", 0, hidden.start()) + 1
        said = f"a sign ({hidden[0]!r}) that ends a line for YAML, and for no editor"
        raise IntentsError([Mistake(line, said)])
    try:
        # Of events, not by compose(): that one calls itself for each level, without a bound.
        return _built(yaml, yaml.parse(text[offset:], Loader=loader), offset, mistakes), mistakes
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML")
        line = mark.line + 1 if mark else 0
        rows = text.split("\n")
        if line and line <= len(rows) and _NEEDS_QUOTES.search(rows[line - 1]):
            said = f"{_QUOTE} ({said})"
        raise IntentsError([*mistakes, Mistake(line, said)]) from None
    except UnicodeEncodeError:
        raise IntentsError([Mistake(0, "it is not UTF-8")]) from None


def _built(
    yaml: Any, events: Iterator[Any], offset: int, mistakes: list[Mistake]
) -> YamlNode | None:
    root: YamlNode | None = None
    open_nodes: list[YamlNode] = []
    keys: list[YamlNode | None] = []  # of each open one: the name that waits for its value
    for count, event in enumerate(events):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
            keys.pop()
            continue
        if isinstance(event, yaml.DocumentStartEvent) and root is not None:
            raise IntentsError([Mistake(line, "a second document begins here, and one is read")])
        if not isinstance(event, yaml.NodeEvent):
            continue
        is_list = isinstance(event, yaml.SequenceStartEvent)
        is_text = isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent))
        node = YamlNode("text" if is_text else "list" if is_list else "map", event, offset)
        tag = getattr(event, "tag", None)
        if event.anchor is not None:
            mark = "*" if isinstance(event, yaml.AliasEvent) else "&"
            node.value = f"{mark}{event.anchor}"
        elif tag is not None:
            node.value = str(tag)
        if event.anchor is not None or tag is not None:
            shown = node.value[:40]
            mistakes.append(Mistake(line, f"{shown!r} begins with a sign of YAML's own: {_QUOTE}"))
        if len(open_nodes) >= DEPTH_MAX or count > PARTS_MAX:
            raise IntentsError([Mistake(line, "it is too deep or too long from here on")])
        if not open_nodes:
            root = node
        elif open_nodes[-1].kind == "list":
            open_nodes[-1].items.append(node)
        elif (key := keys[-1]) is None:
            keys[-1] = node
        else:
            open_nodes[-1].pairs.append((key, node))
            keys[-1] = None
        if not is_text:
            open_nodes.append(node)
            keys.append(None)
    return None if root is None or root.is_null else root
