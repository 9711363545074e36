"""A YAML file as a tree that knows its lines, and what is checked of its parts. Pure.

Intents, teams, prices and profiles say what has to stand in theirs. Such a file may come with a
repository: no anchors, aliases or tags are read, and depth and number of its parts are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from relay.core.errors import RelayError, did_you_mean

#: Mistakes that are told at once.
MISTAKES_MAX = 20
#: How deep lists and names lie in each other, and parts of the whole document.
DEPTH_MAX, PARTS_MAX = 8, 30_000
#: What YAML reads as something else where it is not in quotes.
_NEEDS_QUOTES = re.compile(r"(?:^\s*(?:-\s+)*|[:,\[]\s*)[*&!%@`]|: .*: ")
_QUOTE = "put it in quotes"
#: With it a repository could hide from a reader what stands behind a comment.
_HIDDEN_BREAK = re.compile("[\x85\u2028\u2029]|\r(?!\n)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong in the file. The line counts from 1; 0 where it is the file as a whole."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


class YamlError(RelayError):
    """The file cannot be used. It names every mistake, at most twenty of them."""

    #: What messages call the file.
    file = "the file"

    def __init__(self, mistakes: Iterable[Mistake], hint: str = "", *, file: str = "") -> None:
        found = sorted(mistakes, key=lambda one: one.line)
        #: In the file's order.
        self.mistakes = tuple(found[:MISTAKES_MAX])
        more = len(found) - len(self.mistakes)
        first, *others = self.mistakes
        place = f":{first.line}" if first.line else ""
        said = "; ".join([first.text, *map(str, others)]) + (f"; and {more} more" if more else "")
        details: dict[str, object] = {
            "mistakes": [{"line": one.line, "text": one.text} for one in self.mistakes]
        }
        super().__init__(f"{file or self.file}{place}: {said}", hint=hint, details=details)


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


def read_tree(text: str, wrong: type[YamlError]) -> tuple[YamlNode | None, list[Mistake]]:
    """The document, None where it is empty, and what in it is not read.

    Raises ``wrong`` for what is no YAML.
    """
    import yaml  # 15 ms: only where there is a file to read

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    offset = 1 if text.startswith("\ufeff") else 0
    mistakes: list[Mistake] = []
    if hidden := _HIDDEN_BREAK.search(text):
        line = text.count("\n", 0, hidden.start()) + 1
        said = f"a character ({hidden[0]!r}) that ends a line for YAML, and for no editor"
        raise wrong([Mistake(line, said)])
    try:
        # Of events, not by compose(): that one calls itself for each level, without a bound.
        events = yaml.parse(text[offset:], Loader=loader)
        return _built(yaml, events, offset, mistakes, wrong), mistakes
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        said = str(getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML")
        line = mark.line + 1 if mark else 0
        rows = text.split("\n")
        if line and line <= len(rows) and _NEEDS_QUOTES.search(rows[line - 1]):
            said = f"{_QUOTE} ({said})"
        raise wrong([*mistakes, Mistake(line, said)]) from None
    except UnicodeEncodeError:
        raise wrong([Mistake(0, "it is not UTF-8")]) from None


def _built(
    yaml: Any,
    events: Iterator[Any],
    offset: int,
    mistakes: list[Mistake],
    wrong: type[YamlError],
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
            raise wrong([Mistake(line, "a second document begins here, and one is read")])
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
            said = f"{shown!r} begins with a character that YAML uses: {_QUOTE}"
            mistakes.append(Mistake(line, said))
        if len(open_nodes) >= DEPTH_MAX or count > PARTS_MAX:
            raise wrong([Mistake(line, "it is too deep or too long from here on")])
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


class YamlForm:
    """Checks parts of a document, and notes every mistake on the way."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = [*mistakes]

    def short(self, found: dict[str, YamlNode], name: str, most: int) -> str:
        """A text of one line, of ``most`` characters; "" where it is wrong, or missing."""
        if name not in found:
            return ""
        text = self.text(found[name], name, most)
        if "\n" in text.strip("\n"):
            self.wrong(found[name], f"{name}: one line is meant here")
        return text.strip("\n")

    def text(self, node: YamlNode, name: str, most: int) -> str:
        """A text of at most ``most`` characters; "" where it is wrong."""
        if node.kind != "text":
            said = f"{name}: text is meant here"
            if node.kind == "map" and node.pairs:
                said += "; one with ': ' in it stands in quotes"
            elif node.kind == "list":
                said += "; one that begins with '[' stands in quotes"
            self.wrong(node, said)
        elif node.is_null or not node.value.strip():
            self.wrong(node, f"{name}: text is missing here")
        elif len(node.value) > most:
            self.wrong(node, f"{name}: there are more than {most} characters")
        elif _CONTROL.search(node.value):
            self.wrong(node, f"{name}: there is a control character")
        else:
            return node.value
        return ""

    def entries(self, node: YamlNode, name: str) -> list[YamlNode]:
        if node.kind == "list":
            return node.items
        if not node.is_null:
            self.wrong(node, f"{name}: a list is meant here, a line with '- ' for each")
        return []

    def mapping(
        self, node: YamlNode, known: tuple[str, ...], needed: tuple[str, ...], path: str = ""
    ) -> dict[str, YamlNode]:
        """The values of a table by their names, each of which is ``known``; ``path`` names it."""
        at = f"{path}: " if path else ""
        if node.kind != "map":
            self.wrong(node, f"{at}names with values are meant here: {', '.join(known)}")
            return {}
        found: dict[str, YamlNode] = {}
        for key, value in node.pairs:
            name = key.value
            if key.kind != "text" or name not in known:
                hint = did_you_mean(name[:40], known)
                self.wrong(key, f"{at}there is no {name[:40]!r} here ({hint})")
            elif name in found:
                self.wrong(key, f"{at}{name!r} is here twice, first in line {found[name].line}")
            else:
                found[name] = value
        if missing := [name for name in needed if name not in found]:
            self.wrong(node, f"{at}{', '.join(missing)} missing")
        return found

    def wrong(self, node: YamlNode, text: str) -> None:
        """Note a mistake."""
        self.mistakes.append(Mistake(node.line, text))
