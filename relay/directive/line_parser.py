"""Parses one line: whether it is a head, an escape, a fence or a list item. Pure, tested by itself.

Every pattern here is anchored at the start of the line and its parts exclude each other, so the
time is linear in the length of the line whatever stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

#: The glyphs with which agents mark what they say.
BULLETS = "●•✦◆◇⏺"
#: The attributes that may follow a target. Other words in brackets belong to the body.
ATTRIBUTES = ("thread", "mode", "await", "re")
#: Those of the namespaces that have others.
OWN_ATTRIBUTES = {"memory": ("scope", "supersedes", "limit")}

_EVERYONE = frozenset({"", "*", "all", "everyone"})
_TARGET_START = re.compile(r"[\w*#./~-]")
_NAMESPACE = re.compile(r"@([^\s:@\\]{1,64}):")
_TRAILING = ",;:.!?"


def _shape(names: Collection[str]) -> re.Pattern[str]:
    return re.compile(rf"\[({'|'.join(names)}):[ ]?([^\[\]\s]{{1,200}})\]")


_ATTRIBUTE = _shape(ATTRIBUTES)
_OWN = {namespace: _shape(names) for namespace, names in OWN_ATTRIBUTES.items()}


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a message.

    ``text`` is what follows the target and its attributes (without ``<<<``); ``closed`` whether
    the block that it opens ends on the same line. ``marker`` is the
    indentation of the list marker or glyph before the head, or None, and ``glyph`` whether it is a
    glyph; ``indent`` is the column at which the head begins, which is also what its continuation
    lines may be indented by.
    """

    namespace: str
    target: str
    text: str
    block: bool
    indent: int
    marker: int | None
    glyph: bool
    closed: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fence:
    """An open code fence: its character and how many of them."""

    char: str
    length: int

    def closed_by(self, line: str) -> bool:
        """Whether ``line`` closes this fence: the same character, as many, nothing else."""
        mark = line.strip()
        return len(mark) >= self.length and not mark.strip(self.char)


class LineParser:
    """Reads single lines for a set of registered namespaces."""

    def __init__(self, namespaces: Collection[str]) -> None:
        self._namespaces = frozenset(namespaces)
        # "@broadcast:" is another way to say "@relay:*".
        self._broadcast = "relay" in self._namespaces
        marker = f"[-*+]|[0-9]{{1,9}}[.)]|[{BULLETS}]"
        self._prefix = re.compile(rf"( {{0,3}})(?:({marker}) {{1,4}})?(?=@)")
        self._item = re.compile(rf"( *)({marker})(?: |$)")
        self._fence = re.compile(rf"[ \t]*(?:(?:{marker})[ \t]+)?(`{{3,}}|~{{3,}})(.*)", re.DOTALL)
        names = sorted(self._namespaces | ({"broadcast"} if self._broadcast else set()))
        self._escaped = re.compile(rf"\\(@(?:{'|'.join(map(re.escape, names))}):)")

    def head(self, line: str) -> Head | None:
        """The head that ``line`` is, or None."""
        prefix = self._prefix.match(line)
        if prefix is None:
            return None
        named = _NAMESPACE.match(line, prefix.end())
        if named is None:
            return None
        namespace = named[1]
        broadcast = self._broadcast and namespace == "broadcast"
        if not broadcast and namespace not in self._namespaces:
            return None
        shape = _OWN.get(namespace, _ATTRIBUTE)
        at = named.end()
        found = _everyone(line, at) if broadcast else _target(line, at, shape)
        if found is None:
            return None
        target, at = found
        attributes, at = _attributes(line, at, shape)
        text, block, closed = _text(line[at:])
        return Head(
            namespace="relay" if broadcast else namespace,
            target=target,
            text=text,
            block=block,
            indent=prefix.end(),
            marker=len(prefix[1]) if prefix[2] else None,
            glyph=prefix[2] is not None and prefix[2] in BULLETS,
            closed=closed,
            attributes=attributes,
        )

    def fence(self, line: str) -> Fence | None:
        """The code fence that ``line`` opens, or None."""
        if "```" not in line and "~~~" not in line:
            return None
        match = self._fence.match(line)
        if match is None:
            return None
        marks = match[1]
        if marks[0] == "`" and "`" in match[2]:
            return None  # inline code that happens to begin the line
        return Fence(marks[0], len(marks))

    def item(self, line: str) -> tuple[int, bool] | None:
        """The indentation of the list item that ``line`` begins, and whether a glyph marks it."""
        match = self._item.match(line)
        return None if match is None else (len(match[1]), match[2] in BULLETS)

    def unescape(self, text: str) -> str:
        r"""``text`` with one backslash taken from before each registered ``@namespace:``."""
        return self._escaped.sub(r"\1", text) if "\\@" in text else text


def _target(line: str, at: int, shape: re.Pattern[str] = _ATTRIBUTE) -> tuple[str, int] | None:
    """The target that begins at ``at`` and where it ends; None when there is none."""
    end = _word_end(line, at)
    glued = shape.search(line, at, end)
    if glued is not None:
        end = glued.start()
    elif line.endswith("<<<", at, end):
        end -= 3
    target = line[at:end].rstrip(_TRAILING)
    if not target or _TARGET_START.match(target) is None:
        return None
    return target, end


def _everyone(line: str, at: int) -> tuple[str, int] | None:
    """``@broadcast:`` needs no target: a word there that does not mean everyone is text."""
    end = _word_end(line, at)
    if line[at:end].rstrip(_TRAILING) in _EVERYONE:
        return "*", end
    found = _target(line, at)
    if found is None:
        return None
    word, end = found
    return ("*", end) if word in _EVERYONE else ("*", at)


def _word_end(line: str, at: int) -> int:
    words = line[at:].split(None, 1)
    if not words or line[at].isspace():
        return at
    return at + len(words[0])


def _attributes(line: str, at: int, shape: re.Pattern[str]) -> tuple[dict[str, str], int]:
    """The known attributes that begin at ``at``, and where the rest begins. The last one counts."""
    found: dict[str, str] = {}
    while True:
        start = at
        while start < len(line) and line[start] == " ":
            start += 1
        match = shape.match(line, start)
        if match is None:
            return found, at
        found[match[1]] = match[2]
        at = match.end()


def _text(rest: str) -> tuple[str, bool, bool]:
    """The text of a head's line, whether it opens a block, and whether it closes it too.

    ``<<<`` stands at the end, or right behind the target: the text that follows it there is the
    block's first line, which renderers put beside it.
    """
    text = rest.strip()
    if text == "<<<":
        return "", True, False
    if text.endswith("<<<") and text[-4].isspace():
        return text[:-3].rstrip(), True, False
    if text.startswith("<<<") and text[3].isspace():
        closed = text.endswith(">>>") and text[-4].isspace()
        return text[3 : -3 if closed else None].strip(), True, closed
    return text, False, False
