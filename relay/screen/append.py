"""Reads a program that appends lines: each line once the cursor has left it.

The *front* is the first cell that was not read yet. The emulator follows it through scrolling and
reflow, so nothing is read twice and, because looks are never far apart, nothing leaves unread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from relay.core.state import from_json, to_json
from relay.protocol import frames
from relay.screen import checkpoint
from relay.screen.agent_styles import UNKNOWN, AgentStyle, without_notices
from relay.screen.emulator import Emulator, Mark
from relay.screen.inputbox import CURSOR_SHOWN
from relay.screen.line_events import PAUSE_LATE, PERSON_WAIT, LineEmitter

#: A line that goes on for longer than this many characters is read without its rest.
LINE_MAX = 2 * 1024 * 1024
#: The rest after a line of a message, in seconds, in an agent's program that shows no prompt yet.
MESSAGE_REST = 2.0
#: After this many bytes without a newline the screen is looked at, in case the line scrolls.
_UNREAD_MAX = 16 * 1024
#: This many rows of a long line have left the screen before they are taken from the emulator.
_BANK_ROWS = 64
#: Bytes of such a line that a checkpoint keeps.
_HEAD_KEPT = 48 * 1024


@dataclass(slots=True)
class _State:
    """What a checkpoint keeps. Marks are written as ``Emulator.from_bottom`` has them."""

    front: list[int] | None = None
    #: The text before the front, of a line so long that it has left the screen in part.
    head: str = ""
    #: The line at the front as the other reader has emitted it.
    said: str = ""
    #: Bytes since the last look.
    unread: int = 0
    #: Where on the line being written the person's typing starts, and when they typed last.
    person: list[int] | None = None
    person_at: float = 0.0
    #: The person's typing starts behind the right edge: on the next row.
    past_edge: bool = False
    #: The person has pressed Enter.
    entered: bool = False


class AppendReader:
    """Reads the lines that a program appends. ``note`` is called with the lines that were read."""

    def __init__(
        self,
        emulator: Emulator,
        out: LineEmitter,
        note: Callable[[list[str]], bool],
        now: float,
        style: AgentStyle = UNKNOWN,
    ) -> None:
        self._emulator = emulator
        self._out = out
        self._note = note
        self._style = style
        self._state = _State(person_at=now)
        self._front: Mark = emulator.mark(0, 0)
        self._person: Mark | None = None
        self._head: list[str] = []
        self._head_size = 0
        self._agent = style is not UNKNOWN
        self._open = False  # the last line belongs to a message

    # -- lines ---------------------------------------------------------------------------------

    def append(self, piece: bytes, now: float) -> None:
        """Write bytes that do not move the cursor up, of fewer rows than the scrollback keeps."""
        self._emulator.feed(piece)
        self._state.unread += len(piece)
        if self._state.unread >= _UNREAD_MAX or any(end in piece for end in (b"\n", b"\v", b"\f")):
            self.read(now)
        elif self._open and self._agent and self._style.person.match(self.prompt()):
            self._out.rest(now, plain=True)  # the turn is over
        elif b"\r" not in piece:
            self._out.delay(now)  # the line goes on: it is no spinner

    def read(self, now: float) -> None:
        """Emit the lines that the cursor has left."""
        self._state.unread = 0
        x, row = self._cursor()
        front = self._front.position()
        if front is None:
            self.restart(now)
            return
        start = self._emulator.line_start(row, front[1]) if row > front[1] else front[1]
        if start > front[1]:
            self._emit_lines(front, start, now)
            self._set_front(0, start)
        self._bank()
        if x > 0:
            self._out.delay(now)

    def read_rest(self, now: float) -> None:
        """Emit at the end the line without a newline, and what stands below it."""
        self.read(now)
        front = self._front.position()
        if front is None:
            return
        head = self._take_head()
        text = self._emulator.text(front, (self._emulator.cols - 1, self._emulator.total_rows - 1))
        if (head or text) and head + text != self._state.said:
            self._pass_on((head + text).split("\n"), now)

    def restart(self, now: float) -> None:
        """Go on at the cursor's line: the front was lost (a reset, a cleared screen)."""
        self.go_on_here()
        self._out.gap(now)

    def go_on_here(self, *, said: bool = False) -> None:
        """Read nothing of what stands above the cursor's line. ``said``: nor that as it stands."""
        self._take_head()
        self.drop_person()
        row = self._emulator.line_start(self._cursor()[1])
        self._set_front(0, row)
        if said:
            end = (self._emulator.cols - 1, self._cursor()[1])
            self._state.said = self._emulator.text((0, row), end)

    @property
    def front_row(self) -> int | None:
        """The screen row of the first cell that was not read; None when it was lost."""
        front = self._front.position()
        return None if front is None else front[1]

    def below_front(self) -> bool | None:
        """Whether the cursor stands on the front's row or below; None when the front was lost."""
        front = self.front_row
        return None if front is None else self._cursor()[1] >= front

    def _emit_lines(self, front: tuple[int, int], end: int, now: float) -> None:
        """Emit the lines from the front to above row ``end``, but not the person's typing."""
        person = self._person.position() if self._person else None
        if self._person is None or (person is not None and person[1] >= end):
            self._pass_on(self._lines(front, end), now)
            return
        entered = self._state.entered
        past_edge = self._state.past_edge
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
            if self._out.deadline is not None:
                self._out.pause()  # a prompt does not go on with what stands above it
            self._pass_on([own.rstrip()], now)
        after = person[1] + 1
        while after < end and self._emulator.continues(after):
            after += 1
        self._out.entered(self._emulator.text(person, (self._emulator.cols - 1, after - 1)))
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
        # The formatter leaves out blank rows at the end. One that the row above ran on into is no
        # line; it was erased.
        row, blanks = end - 1, 0
        while row > front[1] and not self._emulator.row_text(row):
            blanks += not self._emulator.continues(row)
            row -= 1
        lines = text.split("\n")
        lines[0] = self._take_head() + lines[0]
        if self._state.said and lines[0] == self._state.said:
            del lines[0]
        return lines + [""] * blanks

    def _pass_on(self, lines: list[str], now: float) -> None:
        if not lines:
            return
        self._open = self._note(lines)
        if self._agent and self._out.rested and not self._style.person.match(lines[0]):
            self._out.goes_on(lines[0])
        self._out.lines(without_notices(lines, self._style), now)
        cols = self._emulator.cols
        if self._open:
            self._out.delay(now, MESSAGE_REST if self._agent else PAUSE_LATE)
        elif cols - 1 <= len(lines[-1]) <= cols:
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
        self._state.said = ""
        self._front.close()
        self._front = self._emulator.mark(x, y)

    def _cursor(self) -> tuple[int, int]:
        """The cursor in screen coordinates."""
        x, y = self._emulator.cursor
        return x, self._emulator.history_rows + y

    def prompt(self) -> str:
        """What stands on the cursor's row before it, where it is shown."""
        x, y = self._cursor()
        shown = x and self._emulator.mode(CURSOR_SHOWN)
        return self._emulator.text((0, y), (x - 1, y), trim=False) if shown else ""

    # -- the person ----------------------------------------------------------------------------

    def activity(self, kind: bytes, now: float) -> None:
        """Note that the person pressed keys: from the cursor on, the line is theirs until Enter."""
        if kind == frames.CLEARED:
            self.drop_person()
            return
        if self._person is None:
            self._person = self._emulator.mark(*self._cursor())
            self._state.past_edge = self._emulator.pending_wrap
        self._state.person_at = now
        self._state.entered = self._state.entered or kind == frames.ENTERED

    def forget_person(self, now: float) -> None:
        """Take the line for the program's own where no echo came: it reads the keys by itself."""
        if self._person is None or now - self._state.person_at <= PERSON_WAIT:
            return
        if self._person.position() == self._cursor():
            self.drop_person()

    def drop_person(self) -> None:
        """Take what comes next for the program's own."""
        if self._person is not None:
            self._person.close()
            self._person = None
        self._state.entered = False

    # -- checkpoint ----------------------------------------------------------------------------

    def save(self) -> Any:
        """Return the state as JSON values; of a line that has left the screen the beginning."""
        saved = replace(
            self._state,
            front=self._emulator.from_bottom(self._front),
            head=checkpoint.beginning("".join(self._head), _HEAD_KEPT),
            person=self._emulator.from_bottom(self._person),
        )
        return to_json(saved)

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from ``save``."""
        self._state = state = from_json(_State, saved)
        self._head, self._head_size = [state.head], len(state.head)
        self._person = self._emulator.mark_from_bottom(state.person)
        if (front := self._emulator.mark_from_bottom(state.front)) is not None:
            self._front.close()
            self._front = front
