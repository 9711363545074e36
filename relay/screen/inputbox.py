"""The input line of a program that hides the cursor and draws one itself. Pure, tested by itself.

Such a program may leave the hidden cursor where the input line was: one made with Textual moves it
with the text that is typed, but not when its layout changes around that. The rows to which it then
points by chance are no draft, and what stands in the box still is one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

#: The DEC private mode in which the cursor is shown.
CURSOR_SHOWN = 25

_LINES = "─━═╌╍┄┅▔▁▀▄╭╮╰╯┌┐└┘╔╗╚╝┏┓┗┛▊▎▋_-"
_BEGINS = frozenset(_LINES + " ")
#: A rule, or a frame's edge with a title in it.
_RULE = re.compile(rf"( *+)([{_LINES}])(?:[{_LINES}]{{7,}}+|[─━═]+ [^│]+ [─━═]*[╮╯┐┘┓┛╗╝─━═]) *+")


class _Rule(NamedTuple):
    """How a rule looks."""

    indent: int
    first: str
    width: int
    right: int  # columns behind it

    def like(self, other: _Rule) -> bool:
        """Whether they are one, drawn for two widths of the screen, or left by the old width."""
        same = self.indent == other.indent and self.first == other.first
        return same and (self.right == other.right or self.width == other.width)


class _Box(NamedTuple):
    above: _Rule
    below: _Rule
    top: int  # the screen's rows of the two
    bottom: int


#: Two neighbouring rules, each with the number of its row.
_Pair = tuple[tuple[int, _Rule], tuple[int, _Rule]]


class InputBox:
    """The two rules between which the hidden cursor was seen, and where they were then."""

    def __init__(self) -> None:
        self._box: _Box | None = None

    def line(self, rows: Sequence[str], at: int, row: int, cols: int, height: int) -> int:
        """In which of ``rows`` the input line stands; -1: a blank row in no box is none.

        The hidden cursor is in ``rows[at]``, which is row ``row`` (from 0) of a screen of ``cols``
        columns and ``height`` rows.
        """
        pairs = list(pairwise(_rules(rows, cols)))
        around = next((pair for pair in pairs if pair[0][0] < at < pair[1][0]), None)
        if (old := self._box) is not None and not (around and _same(around, old)):
            # The cursor did not leave the place. A screen of fewer rows has it in its last one.
            stayed = min(old.top + 1, height - 1) <= row < old.bottom
            went = next((pair for pair in reversed(pairs) if _same(pair, old)), None)
            if stayed and went is not None:
                return went[0][0] + 1
        elif around and old is not None and around[0][1].right != old.above.right:
            return at  # the screen has another width, for which nothing was drawn yet
        if around:
            (first, above), (last, below) = around
            self._box = _Box(above, below, row - (at - first), row + (last - at))
            return at
        return at if rows[at : at + 1] != [""] else -1

    def forget(self) -> None:
        """The cursor is shown: the program has it where it means it to be."""
        self._box = None

    def save(self) -> _Box | None:
        """Return the state as JSON values."""
        return self._box

    def load(self, saved: Sequence[Any] | None) -> None:
        """Go on from ``save``."""
        if saved is not None:
            above, below, top, bottom = saved
            self._box = _Box(_Rule(*above), _Rule(*below), top, bottom)


def _rules(rows: Sequence[str], cols: int) -> list[tuple[int, _Rule]]:
    """The rules among ``rows``, and in which of them each is."""
    return [
        (number, _Rule(len(rule[1]), rule[2], width, cols - width))
        for number, text in enumerate(rows)
        if text[:1] in _BEGINS  # most rows do not: this is asked at every look
        and (rule := _RULE.fullmatch(text))
        and (width := len(text.rstrip()))
    ]


def _same(pair: _Pair, box: _Box) -> bool:
    return pair[0][1].like(box.above) and pair[1][1].like(box.below)
