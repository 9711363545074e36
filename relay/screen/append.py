"""Hearing a line program through the emulator: what it appends is read once the cursor has left it.

The *front* is the first cell that is not heard yet. It is followed through scrolling and reflow,
so nothing is read twice and, because looks are never far apart, nothing leaves unread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relay.protocol import frames
from relay.screen import encoded, flood
from relay.screen.emulator import Emulator, Mark
from relay.screen.line_events import PERSON_WAIT, LineEmitter

#: A line that goes on for longer than this many characters is heard without its rest.
LINE_MAX = 2 * 1024 * 1024
_UNREAD_MAX = 16 * 1024
_BANK_ROWS = 64
_HEAD_KEPT = 48 * 1024
#: Of lines that nobody reads the emulator gets as many as fill this many screens: a line that
#: reaches into the screen from above is followed up for two.
_SCREENS_KEPT = 4
#: Of the line being written so many bytes are kept to be told by; a longer one may hold anything.
_BEGUN_MAX = 4096
_NOTED = 400


class AppendReader:
    """Reads the lines that a program appends. ``note`` is told what was read."""

    def __init__(
        self, emulator: Emulator, out: LineEmitter, note: Callable[[list[str]], None], now: float
    ) -> None:
        self._emulator = emulator
        self._out = out
        self._note = note
        self._front: Mark = emulator.mark(0, 0)
        # The text that came before the front of a line so long that it has left the screen.
        self._head: list[str] = []
        self._head_size = 0
        self._unread = 0  # bytes since the last look
        # What was written of the line being written; None when it is not known.
        self._begun: bytes | None = b""
        self._at_edge = True  # it began at the left edge
        self._pace = flood.FloodPace()
        # Where on the line being written the person's own typing starts, and since when.
        self._person: Mark | None = None
        self._person_past_edge = False
        self._person_at = now
        self._entered = False

    # -- lines ---------------------------------------------------------------------------------

    def append(self, piece: bytes, now: float) -> None:
        """Bytes that do not move the cursor up, few enough that no row leaves the scrollback."""
        self._emulator.feed(piece)
        self._unread += len(piece)
        written = None if self._begun is None else self._begun + piece
        newline = max(piece.rfind(end) for end in (b"\n", b"\x0b", b"\x0c"))
        begun = written if newline < 0 else piece[newline + 1 :]
        self._begun = begun if begun is not None and len(begun) <= _BEGUN_MAX else None
        if newline >= 0:
            self._at_edge = piece[max(0, newline - 1) : newline + 1] == b"\r\n"
        if newline < 0 and self._unread < _UNREAD_MAX:
            return
        flooded = self._person is None and self._out.flooded(now)
        self.read(now, skip=flooded and written is not None and self._means_nothing(written))

    def disturbed(self) -> None:
        """The line being written may read otherwise than what was appended."""
        self._begun = None

    def slice_end(self, data: bytes, at: int, now: float) -> int:
        """The end of what is to be read next of ``data``; only a flood is read in pieces."""
        return self._pace.read(data, at) if self._out.pressed(now) else len(data)

    def pass_over(self, data: bytes, at: int, now: float) -> int:
        """How many bytes from ``at`` on are lines of a flood that are dealt with as they are."""
        if self._begun is None or self._person is not None or not self._out.pressed(now):
            return 0
        lines = data[at : self._pace.sifted(data, at)]
        size = 0
        if self._out.flooded(now):
            size = max(0, self._out.clean(self._begun + lines) - len(self._begun))
        text = None
        if not self._pace.passed(size) and size < len(lines) and self._at_edge:
            lines = data[at : self._pace.read(data, at)]
            text = flood.shown(self._begun + lines)
            size = size if text is None else len(lines)
        if not size:
            return 0
        lines = lines[:size]
        last, left_out = flood.last_lines(lines, _SCREENS_KEPT * self._emulator.rows) or (lines, 0)
        self._emulator.feed(last)
        if text is None:
            self._out.skip(now, left_out)
            self.read(now, skip=True)
        else:
            self._read_as(text, now)
        self._begun = b""
        self._at_edge = lines.endswith(b"\r\n")
        return size

    def _read_as(self, text: str, now: float) -> None:
        """Hear the lines of a flood as ``text``, which is what the cursor has left."""
        self._unread = 0
        self._out.spend(text.count("\n"))
        self._out.sift(text, now)
        last = text.rsplit("\n", _NOTED)[1:]
        self._note(last)
        if self._emulator.cols - 1 <= len(last[-1]) <= self._emulator.cols:
            self._out.delay(now)
        self._take_head()
        self._set_front(0, self._emulator.line_start(self._cursor()[1]))

    def _means_nothing(self, written: bytes) -> bool:
        if self._out.clean(written) == len(written):
            return True
        return not any(mark in written for mark in flood.MARKS)

    def read(self, now: float, *, skip: bool = False) -> None:
        """Hear the lines that the cursor has left; with ``skip`` only pass over them."""
        self._unread = 0
        x, row = self._cursor()
        front = self._front.position()
        if front is None:
            self.restart(now)
            return
        start = self._emulator.line_start(row, front[1]) if row > front[1] else front[1]
        if start > front[1]:
            if skip:
                self._take_head()
                self._out.skip(now, start - front[1])
            else:
                self._hear(front, start, now)
            self._set_front(0, start)
        self._bank()
        if x > 0:
            self._out.delay(now)

    def read_rest(self, now: float) -> None:
        """At the end: the line without a newline, and whatever stands below it."""
        self.read(now)
        front = self._front.position()
        if front is None:
            return
        head = self._take_head()
        text = self._emulator.text(front, (self._emulator.cols - 1, self._emulator.total_rows - 1))
        if head or text:
            self._pass_on((head + text).split("\n"), now)

    def restart(self, now: float) -> None:
        """The front was lost (a reset, a cleared screen): go on at the cursor's line."""
        self.go_on_here()
        self._out.gap(now)

    def go_on_here(self) -> None:
        """What stands above the cursor's line is dealt with."""
        self._begun = None
        self._take_head()
        self.drop_person()
        self._set_front(0, self._emulator.line_start(self._cursor()[1]))

    @property
    def front_row(self) -> int | None:
        """The screen row of the first cell that is not heard; None when it was lost."""
        front = self._front.position()
        return None if front is None else front[1]

    def below_front(self) -> bool | None:
        """Whether the cursor stands on the front's row or below; None when the front was lost."""
        front = self.front_row
        return None if front is None else self._cursor()[1] >= front

    def _hear(self, front: tuple[int, int], end: int, now: float) -> None:
        """Pass on the lines from the front to above row ``end``, but not the person's typing."""
        person = self._person.position() if self._person else None
        if self._person is None or (person is not None and person[1] >= end):
            self._pass_on(self._lines(front, end), now)
            return
        entered = self._entered
        past_edge = self._person_past_edge
        self.drop_person()
        if not entered or person is None or person[::-1] < front[::-1]:
            # A newline before Enter is the program's own: no way to tell whose the line was.
            self._pass_on(self._lines(front, end), now)
            return
        start = self._emulator.line_start(person[1], front[1])
        if start > front[1]:
            self._pass_on(self._lines(front, start), now)
            front = (0, start)
        own = self._take_head() + self._text_before(front, person, past_edge)
        if own.strip():
            self._pass_on([own.rstrip()], now)
        after = person[1] + 1
        while after < end and self._emulator.continues(after):
            after += 1
        if after < end:
            self._pass_on(self._lines((0, after), end), now)

    def _text_before(self, front: tuple[int, int], person: tuple[int, int], past_edge: bool) -> str:
        """What the program had written on the line before the person typed."""
        x, y = person[0] + past_edge - 1, person[1]
        if x < 0:
            x, y = self._emulator.cols - 1, y - 1
        return self._emulator.text(front, (x, y)) if (y, x) >= front[::-1] else ""

    def _lines(self, front: tuple[int, int], end: int) -> list[str]:
        """The logical lines from cell ``front`` to above row ``end``, which starts a line."""
        text = self._emulator.text(front, (self._emulator.cols - 1, end - 1))
        # The formatter leaves out blank rows at the end.
        row = end - 1
        while row > front[1] and not self._emulator.row_text(row):
            row -= 1
        lines = text.split("\n")
        lines[0] = self._take_head() + lines[0]
        return lines + [""] * (end - 1 - row)

    def _pass_on(self, lines: list[str], now: float) -> None:
        self._note(lines)
        self._out.lines(lines, now)
        cols = self._emulator.cols
        if cols - 1 <= len(lines[-1]) <= cols:
            self._out.delay(now)

    def _bank(self) -> None:
        """Take the rows of an endless line that have left the screen: they cannot change."""
        front = self._front.position()
        history = self._emulator.history_rows
        if front is None or history - front[1] < _BANK_ROWS:
            return
        text = self._emulator.text(front, (self._emulator.cols - 1, history - 1), trim=False)
        if self._head_size < LINE_MAX:
            self._head.append(text)
            self._head_size += len(text)
        self._set_front(0, history)

    def _take_head(self) -> str:
        head = "".join(self._head)
        self._head, self._head_size = [], 0
        return head

    def _set_front(self, x: int, y: int) -> None:
        self._front.close()
        self._front = self._emulator.mark(x, y)

    def _cursor(self) -> tuple[int, int]:
        """The cursor in screen coordinates."""
        x, y = self._emulator.cursor
        return x, self._emulator.history_rows + y

    # -- the person ----------------------------------------------------------------------------

    def activity(self, kind: bytes, now: float) -> None:
        """The person pressed keys: from the cursor on, this line is theirs until Enter."""
        if kind == frames.CLEARED:
            self.drop_person()
            return
        if self._person is None:
            self._person = self._emulator.mark(*self._cursor())
            self._person_past_edge = self._emulator.pending_wrap
        self._person_at = now
        self._entered = self._entered or kind == frames.ENTERED

    def forget_person(self, now: float) -> None:
        """Without an echo the program reads the keys by itself, and the line is its own."""
        if self._person is None or now - self._person_at <= PERSON_WAIT:
            return
        if self._person.position() == self._cursor():
            self.drop_person()

    def drop_person(self) -> None:
        """What comes is the program's."""
        if self._person is not None:
            self._person.close()
            self._person = None
        self._entered = False

    # -- checkpoint ----------------------------------------------------------------------------

    def state(self, now: float) -> dict[str, Any]:
        """As JSON. Of a line that has left the screen the first 48 KiB are kept."""
        return {
            "front": self._emulator.from_bottom(self._front),
            "head": encoded.beginning("".join(self._head), _HEAD_KEPT),
            "unread": self._unread,
            "begun": self._begun != b"" or not self._at_edge,
            "person": self._emulator.from_bottom(self._person),
            "past_edge": self._person_past_edge,
            "person_in": self._person_at - now,
            "entered": self._entered,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        front = self._emulator.mark_from_bottom(state["front"])
        if front is not None:
            self._front.close()
            self._front = front
        self._head = [state["head"]] if state["head"] else []
        self._head_size = len(state["head"])
        self._unread = state["unread"]
        self._begun = None if state["begun"] else b""
        self._person = self._emulator.mark_from_bottom(state["person"])
        self._person_past_edge = state["past_edge"]
        self._person_at = now + state["person_in"]
        self._entered = state["entered"]
