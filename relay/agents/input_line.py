"""The input line of a program that draws one: where it stands and what is in it. Pure.

A file of its own: it is tested by itself, without a profile's file. What the patterns are is said
by a program's profile (relay.agents.profile), how they are used here, for every program alike::

    ────────────────────────────    above: the row above it
    ❯ what the person types         prompt: how its first row begins
      and goes on with
    ────────────────────────────    below: the first row that is its own no more

In a box with sides (``│``) ``side`` is what each of its rows begins with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

#: The input line: ``dialog`` stands in its place, there is none now (``busy``), or ``unknown``.
ComposerState = Literal["empty", "draft", "dialog", "busy", "unknown"]
#: Tells it by the screen's rows.
Composer = Callable[[list[str]], ComposerState]

_BLANK = re.compile(r"\s*$")
#: A choice of a dialog; the mark of one that is selected often is the input line's own.
_CHOICE = re.compile(r"[\s│┃|]*(?:[❯›>●○]\s*)?(\d{1,2})[.)]\s+\S")

Patterns = tuple[re.Pattern[str], ...]


def nobody_knows(rows: list[str]) -> ComposerState:
    """The composer of a program of which nothing but general rules is known."""
    return "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class InputLine:
    """How one program draws its input line. Patterns are matched at the beginning of a row.

    The lowest place on the screen where all of this holds is the input line.
    """

    #: How its first row begins; what follows is text.
    prompt: re.Pattern[str] | None = None
    #: The row above it, ...
    above: re.Pattern[str] | None = None
    #: ... which may stand this many rows higher.
    above_within: int = 1
    #: What each of its rows begins with, in a box that has sides.
    side: re.Pattern[str] | None = None
    #: The first row below it; one must be there. Without it, a blank one.
    below: re.Pattern[str] | None = None
    #: Its last row, where that tells something and is no text (a box that names the model).
    status: re.Pattern[str] | None = None
    #: A row that, standing anywhere below it, says that something else is read now.
    covered: re.Pattern[str] | None = None
    #: The first row or the status begins so where words would be commands: always a draft.
    other_mode: re.Pattern[str] | None = None
    #: All of the text that an empty one shows.
    placeholder: Patterns = ()
    #: The same where it may as well be the person's: nobody knows whether it is empty.
    suggestion: Patterns = ()
    #: A part of a row below that is shown only while it is empty.
    empty_below: re.Pattern[str] | None = None

    @property
    def boxed(self) -> bool:
        """Whether it is known by what stands around it, and not by its mark alone."""
        return (self.above or self.side or self.below) is not None

    def state(self, rows: Sequence[str], dialog: Patterns) -> ComposerState:
        """Tell by the screen's rows, from top to bottom, how the input line is.

        ``dialog`` is searched for below it, and everywhere where there is none. ``unknown`` is a
        screen without both, into which nothing may be typed that is not safe anywhere.
        """
        place = self.find(rows)
        if place is None:
            return "dialog" if _shows_choices(rows) or _any(dialog, rows) else "unknown"
        first, end = place
        if _any(dialog, rows[end:]):
            return "dialog"
        inside = [self.text(row) for row in rows[first : end - (self.status is not None)]]
        if _CHOICE.match(inside[0]) and any(map(_CHOICE.match, rows[first + 1 :])):
            return "dialog"
        if self.other_mode and any(map(self.other_mode.match, (rows[first], rows[end - 1]))):
            return "draft"
        if self.empty_below and end - first == 1 and _any((self.empty_below,), rows[end:]):
            return "empty"
        text = "\n".join(inside).strip("\n").rstrip()
        if not text.strip() or any(one.fullmatch(text) for one in self.placeholder):
            return "empty"
        return "unknown" if any(one.fullmatch(text) for one in self.suggestion) else "draft"

    def above_it(self, rows: Sequence[str]) -> list[str]:
        """The rows above it and above what encloses it; all where it is not on the screen."""
        place = self.find(rows)
        return list(rows[: place[0] - (self.above is not None)] if place else rows)

    def find(self, rows: Sequence[str]) -> tuple[int, int] | None:
        """Where it begins, and the row behind its end; None where it is not on the screen."""
        for first in range(len(rows) - 1, -1, -1):
            if not self._begins(rows, first):
                continue
            end = self._end(rows, first)
            if end is None:
                continue
            others = [*rows[first + 1 : end], *rows[end + 1 :]]
            return None if self.covered and any(map(self.covered.match, others)) else (first, end)
        return None

    def text(self, row: str) -> str:
        """What stands in one of its rows, without mark and frame."""
        for mark in (self.prompt, self.side):
            if mark is not None and (found := mark.match(f"{row} ")):
                row = row[found.end() :]
                return re.sub(r"\s*[│┃|]\s*$", "", row) if self.side else row.rstrip()
        return row.rstrip()

    def _begins(self, rows: Sequence[str], at: int) -> bool:
        if self.above is not None:
            higher = rows[max(0, at - self.above_within) : at]
            if not any(map(self.above.match, higher)):
                return False
        marks = [mark for mark in (self.prompt, self.other_mode) if mark is not None]
        if self.prompt is not None:
            # A screen's rows come without the blanks at their ends, a mark may end in one.
            return any(mark.match(f"{rows[at]} ") for mark in marks)
        if self.side is not None:
            return not (at and self.side.match(rows[at - 1]))
        return self.above is not None

    def _end(self, rows: Sequence[str], first: int) -> int | None:
        below = self.below or _BLANK
        ends = (at for at in range(first + 1, len(rows)) if below.match(rows[at]))
        # Below the screen's last row all is blank.
        end = next(ends, len(rows) if below.match("") else None)
        if end is None:
            return None
        if self.side is not None and not all(map(self.side.match, rows[first:end])):
            return None
        if self.status is not None:
            return end if end - first > 1 and self.status.match(rows[end - 1]) else None
        return end


def _shows_choices(rows: Sequence[str]) -> bool:
    """Whether numbered choices stand on the screen."""
    numbers = {found[1] for row in rows if (found := _CHOICE.match(row))}
    return {"1", "2"} <= numbers


def _any(patterns: Patterns, rows: Sequence[str]) -> bool:
    return any(pattern.search(row) for row in rows for pattern in patterns)
