"""Explains why a line that looks like a message is none. Pure, and tested by itself."""

from __future__ import annotations

import re
from collections.abc import Collection

from relay.core.errors import nearest
from relay.directive.line_parser import BULLETS, LineParser

_DIRECTIVE = re.compile(r"@([A-Za-z][\w-]{0,63}):(\S?)")
_LEAD = re.compile(rf"\s*(?:(?:[-*+]|\d{{1,9}}[.)]|[{BULLETS}])\s+)?")
#: What nearly is a head: emphasis, a full-width character, a space or a slip in the namespace.
_NEARLY = re.compile(
    rf" {{0,3}}(?:(?:[-*+]|\d{{1,9}}[.)]|[{BULLETS}]) +)?(?P<marks>[*_~]{{0,3}})"
    r"(?P<at>[@＠])(?P<name>[A-Za-z][\w-]{0,63})(?P<colon> ?[:：])(?P<gap> ?)"
    r"(?P<target>\S+)(?P<rest>.*)"
)
_NAME = re.compile(r"[A-Za-z][\w.-]{0,63}(?:,[A-Za-z][\w.-]{0,63})*|\*")
_MEMORY = ("save", "search", "forget", "list")
#: A shorter namespace is one slip away from too many words.
_SLIP_MIN = 5
_INSIDE = {
    "fence": "it stands in a code fence",
    "block": "it stands in a block (<<<), whose text it is",
}


class Misses:
    """Explains lines, for a set of registered namespaces."""

    def __init__(self, namespaces: Collection[str]) -> None:
        self._namespaces = {*namespaces, "broadcast"} if "relay" in namespaces else {*namespaces}
        self._parser = LineParser(namespaces)

    def looks(self, line: str) -> bool:
        """Whether a registered namespace is named on this line."""
        return any(found[1].lower() in self._namespaces for found in _DIRECTIVE.finditer(line))

    def why_not(self, line: str, inside: str = "") -> str:
        """Why ``line`` begins no message; empty when it does, or does not look like one.

        ``inside`` is what it stands in: ``fence``, ``block`` or nothing (see ``Scanner.inside``).
        """
        if self._parser.head(line) is not None:
            return _INSIDE.get(inside, "")
        for found in _DIRECTIVE.finditer(line):
            known = found[1].lower() in self._namespaces
            before = line[: found.start()]
            if known:
                return _INSIDE.get(inside) or self._known(found, before)
            if _begins(before) and not inside:
                return self._unknown(found[1])
        return ""

    def near(self, line: str, inside: str = "") -> tuple[str, str]:
        """The kind of mistake by which ``line`` is not a message, and why; two times "" mostly.

        Narrower than ``why_not``, for an agent is told of it: a whole directive but for one slip,
        at the start of a line. What is code, quoted or named in passing is none.
        """
        found = None if inside in _INSIDE else _NEARLY.match(line)
        if found is None or self._parser.head(line) is not None:
            return "", ""
        name, lower = found["name"], found["name"].lower()
        known = lower in self._namespaces
        meant = lower if known else self._slip(lower)
        target = found["target"].strip("*_~.,;:!?")
        if not meant or not _NAME.fullmatch(target) or not (found["rest"].strip(" *_~") or known):
            return "", ""
        if meant == "memory" and target.lower() not in _MEMORY:
            return "", ""
        if not known:
            return "name", f"nothing handles @{name}: (did you mean @{meant}:?)"
        if name != lower:
            return "case", f"@{name}: is not written in lower case"
        if found["at"] != "@" or found["colon"] == "：":
            return "width", "@ or : is written in full width"
        if found["marks"]:
            return "marks", f"{found['marks']} stands before it"
        if found["gap"] or found["colon"] != ":":
            return "space", f"a space stands in @{name}:{target}"
        return "", ""

    def _slip(self, name: str) -> str:
        """The namespace that ``name`` is one slip of the fingers away from, or ""."""
        long = (one for one in self._namespaces if len(one) >= _SLIP_MIN and one[0] == name[0])
        return next((one for one in sorted(long) if _one_slip(name, one)), "")

    def _known(self, found: re.Match[str], before: str) -> str:
        at_start = _begins(before)
        if before.endswith("\\"):
            return "a backslash stands before it"
        if at_start and len(before) - len(before.lstrip()) > 3:
            return "it is indented by more than three spaces, as code is"
        if at_start and found[1] not in self._namespaces:
            return f"@{found[1]}: is not written in lower case"
        if at_start:
            return f"no target follows @{found[1]}:"
        if before.lstrip().startswith(">"):
            return "it stands in a quotation"
        if before.count("`") % 2:
            return "it stands in inline code"
        return "it does not begin the line"

    def _unknown(self, name: str) -> str:
        close = nearest(name, self._namespaces)
        return f"nothing handles @{name}: (did you mean @{close}:?)" if close else ""


def _one_slip(name: str, other: str) -> bool:
    """Whether one letter is left out, added, another, or changes places with the next."""
    start = 0
    while start < min(len(name), len(other)) and name[start] == other[start]:
        start += 1
    a, b = name[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[:2][::-1] and a[2:] == b[2:])


def _begins(before: str) -> bool:
    """Whether what follows ``before`` begins its line, or the item of a list."""
    lead = _LEAD.match(before)
    return lead is not None and lead.end() == len(before)
