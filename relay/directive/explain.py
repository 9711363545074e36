"""Explains why a line that looks like a message is none. Pure, and tested by itself."""

from __future__ import annotations

import re
from collections.abc import Collection

from relay.core.suggest import nearest
from relay.directive.line_parser import BULLETS, LineParser

_DIRECTIVE = re.compile(r"@([A-Za-z][\w-]{0,63}):(\S?)")
_LEAD = re.compile(rf"\s*(?:(?:[-*+]|\d{{1,9}}[.)]|[{BULLETS}])\s+)?")
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


def _begins(before: str) -> bool:
    """Whether what follows ``before`` begins its line, or the item of a list."""
    lead = _LEAD.match(before)
    return lead is not None and lead.end() == len(before)
