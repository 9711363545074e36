"""Hearing a program that prints lines and draws the last few of them again and again.

Its answer grows at the end of the main screen. What stands above the rows that it still draws
never changes: only that is read, once, from the front on, paragraph by paragraph; all the rest
when the program stands at its prompt.
"""

from __future__ import annotations

import re
from typing import Any

from relay.screen.agent_styles import Dialect
from relay.screen.emulator import Emulator, Mark
from relay.screen.line_events import LineEmitter
from relay.screen.rows import joined, shown_text
from relay.screen.styles import told_apart
from relay.screen.terminal_modes import BRACKETED_PASTE

#: What was written is looked at after so much quiet, in seconds, and at least this often.
QUIET = 0.030
LATEST = 0.250
#: A paragraph of more rows is read before its end.
ROWS_MAX = 400

_RULE = re.compile(r"\s*[─━]{8,}\s*")
_NUMBERS = re.compile(r"Tokens: ")
_THINKS = re.compile(r"\W*► \W*THINKING\b")
_ANSWERS = re.compile(r"\W*► \W*ANSWER\b")


class Reprinted:
    """Reads the rows of such a program into ``out``, each once."""

    def __init__(self, emulator: Emulator, out: LineEmitter, dialect: Dialect, now: float) -> None:
        self._emulator = emulator
        self._out = out
        self._dialect = dialect
        self._front: Mark = emulator.mark(0, 0)
        self._dirty_since: float | None = None
        self._changed_at = now
        self._person = False  # the rows from the front on are what the person entered
        self._thinking = False

    def draw(self, data: bytes, now: float) -> None:
        """The program wrote ``data``, few enough rows that none leaves the scrollback unread."""
        self._emulator.feed(data)
        self._changed_at = now
        if self._dirty_since is None:
            self._dirty_since = now
        if self._rows_unread() > ROWS_MAX:
            self.look(now)

    @property
    def deadline(self) -> float | None:
        """When the next look is due."""
        if self._dirty_since is None:
            return None
        return min(self._changed_at + QUIET, self._dirty_since + LATEST)

    def tick(self, now: float) -> None:
        """Look if a look is due."""
        due = self.deadline
        if due is not None and now >= due:
            self.look(now)

    def look(self, now: float, *, over: bool = False) -> None:
        """Read what cannot change any more; ``over``: all that there is."""
        self._dirty_since = None
        if self._emulator.alt_screen:
            return  # an editor, a pager: not the program's own words
        cursor = self._emulator.history_rows + self._emulator.cursor[1]
        position = self._front.position()
        front = position[1] if position else 0
        bottom = self._emulator.total_rows if over else cursor + 1
        rows = self._rows(front, bottom)
        at_prompt = self._emulator.mode(BRACKETED_PASTE)
        sure = len(rows) if over else max(0, len(rows) - self._dialect.redraws)
        if at_prompt and not over:
            sure = max((n + 1 for n, row in enumerate(rows) if _RULE.fullmatch(row)), default=sure)
        elif not over:
            sure = max(_paragraphs_end(rows[:sure]), self._entered(rows))
        if sure == 0 and len(rows) > ROWS_MAX:
            sure = len(rows) - self._dialect.redraws
        self._read(_without_broken(rows, self._dialect.redraws)[:sure], now)
        self._front.close()
        self._front = self._emulator.mark(0, front + sure)

    def _rows_unread(self) -> int:
        position = self._front.position()
        return self._emulator.total_rows - (position[1] if position else 0)

    def _rows(self, start: int, end: int) -> list[str]:
        """The rows from ``start`` to above ``end``, one by one."""
        if start >= end:
            return []
        last = (self._emulator.cols - 1, end - 1)
        rows = self._emulator.text((0, start), last, unwrap=False).split("\n")
        rows = told_apart(self._emulator, rows, start, self._dialect)
        return [shown_text(row, self._dialect) for row in rows + [""] * (end - start - len(rows))]

    def _entered(self, rows: list[str]) -> int:
        """The end of what the person entered, which is not drawn again."""
        if not self._person:
            return 0
        return next((number for number, row in enumerate(rows) if not row.strip()), 0)

    def _read(self, rows: list[str], now: float) -> None:
        self._out.spend(len(rows))
        paragraph: list[str] = []
        for row in [*rows, ""]:
            if row.strip() and not _RULE.fullmatch(row):
                paragraph.append(row)
                continue
            if paragraph:
                self._read_paragraph(paragraph, now)
                paragraph = []
            if row.strip():
                self._out.turn()
                self._person, self._thinking = True, False

    def _read_paragraph(self, rows: list[str], now: float) -> None:
        if self._person:
            self._out.proof("\n".join(rows))
            self._person = False
            return
        if _NUMBERS.match(rows[0]):
            self._out.turn()
        if _THINKS.match(rows[0]) or _ANSWERS.match(rows[0]):
            self._thinking = _THINKS.match(rows[0]) is not None
            rows = rows[1:]
        if self._thinking or not rows:
            return
        for line in joined(rows, self._emulator.cols - (self._dialect.wraps_at or 0)):
            self._out.speak(line)
        self._out.speak("")
        self._out.rest(now, plain=True)

    # -- checkpoint ----------------------------------------------------------------------------

    def state(self, now: float) -> dict[str, Any]:
        """As JSON; times become distances from ``now``."""
        return {
            "front": self._emulator.from_bottom(self._front),
            "dirty_in": None if self._dirty_since is None else self._dirty_since - now,
            "changed_in": self._changed_at - now,
            "person": self._person,
            "thinking": self._thinking,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        front = self._emulator.mark_from_bottom(state["front"])
        if front is not None:
            self._front.close()
            self._front = front
        self._dirty_since = None if state["dirty_in"] is None else now + state["dirty_in"]
        self._changed_at = now + state["changed_in"]
        self._person, self._thinking = state["person"], state["thinking"]


def _without_broken(rows: list[str], redraws: int) -> list[str]:
    """``rows`` without what was broken off by Ctrl-C: it is drawn once more below."""
    for number, row in enumerate(rows):
        if row.endswith("^C"):
            first = max(0, number - redraws)
            rows = [*rows[:first], *([""] * (number + 1 - first)), *rows[number + 1 :]]
    return rows


def _paragraphs_end(rows: list[str]) -> int:
    """How many rows there are up to the last blank one."""
    return max((number + 1 for number, row in enumerate(rows) if not row.strip()), default=0)
