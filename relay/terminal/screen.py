"""Hearing any program through a terminal emulator.

Two regimes. A *line program* appends to the main screen: its lines are read once the cursor has
left them below. A *painter* (full-screen, or one that moves the cursor up and draws again) is
looked at between its frames, and what is seen is aligned with what was already heard: see
``relay.terminal.painter``. docs/screen.md tells what a screen cannot know.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

from relay.session import frames
from relay.session.ports import SourceEvent
from relay.terminal.emulator import Emulator, EmulatorError, Mark
from relay.terminal.hearing import MARKS, Outlet
from relay.terminal.lines import PERSON_WAIT
from relay.terminal.modes import BRACKETED_PASTE, DISTURBING, EXPECTED, reset_bytes
from relay.terminal.painter import Painter
from relay.terminal.view import Snapshot

#: At most this many rows are written between two looks, so that none leaves the scrollback unread.
SLICE_ROWS = 800
SLICE_BYTES = 64 * 1024
#: A line that goes on for longer than this many characters is heard without its rest.
LINE_MAX = 2 * 1024 * 1024
#: Frames are looked at no oftener than this, after this much quiet, and at least this often.
FRAME_GAP = 0.030
QUIET = 0.030
FRAME_LATEST = 0.250
SYNC_LATEST = 1.0
#: A painter that has moved the cursor up for the last time this long ago is a line program again.
PAINTER_RESTS = 1.0
CHECKPOINT_MAX = 256 * 1024

# Sequences that may move the cursor up, and those that switch screens or frames.
_MOVES = re.compile(rb"\x1b(?:\[[0-9;]*[AEFHJLMSTdfr]|\[\?[0-9;]*[hl]|[M78c])")
_SWITCHES = re.compile(rb"\x1b(?:\[\?[0-9;]*[hl]|c)")
_PARTIAL = re.compile(rb"\x1b(?:\[[0-?]{0,64}[ -/]{0,4})?\Z")
_SCREENS = frozenset((b"47", b"1047", b"1049"))
_ROWS_BY_ESCAPE = (b"\x1bD", b"\x1bE")
_INVISIBLE = re.compile(rb"(?:\x1b\[[0-9;:]*m|[\r\x00\x07])*")


class ScreenSource:
    """Bytes of a program's terminal and the time in, events out.

    ``feed``, ``tick``, ``resize``, ``activity`` and ``finish`` return the events that are due.
    ``now`` is in seconds of a monotonic clock and never goes back.
    """

    def __init__(
        self, cols: int, rows: int, *, now: float = 0.0, snapshot: bytes | None = None
    ) -> None:
        self._emulator = Emulator(cols, rows, history=SLICE_ROWS + 400, snapshot=snapshot)
        self._out = Outlet(now)
        self._painter = Painter(self._out)
        self._now = now
        self._held = b""  # a control sequence that is not complete
        # Line programs: the first cell that is not heard yet, and the text that came before it
        # of a line so long that it has left the screen.
        self._front: Mark = self._emulator.mark(0, 0)
        self._head: list[str] = []
        self._head_size = 0
        self._unread = 0  # bytes since the last look
        self._marked = False  # the line being written holds one of MARKS
        # The person's typing on the line being written.
        self._person: Mark | None = None
        self._person_past_edge = False
        self._person_at = now
        self._entered = False
        # Painters.
        self._painting = False
        self._tentative = False  # nothing was drawn yet since the cursor went up
        self._moved_at = now
        self._dirty_since: float | None = None
        self._changed_at = now
        self._looked_at = now - FRAME_GAP
        self._top: Mark = self._emulator.mark(0, 0)
        self._sync_since: float | None = None

    # -- in ------------------------------------------------------------------------------------

    def feed(self, data: bytes, now: float) -> list[SourceEvent]:
        """The program wrote ``data``. Events: Line, Pause, Proof."""
        self._advance(now)
        data = self._held + data
        partial = _PARTIAL.search(data, max(0, len(data) - 72))
        cut = partial.start() if partial else len(data)
        self._held, data = data[cut:], data[:cut]
        self._write(data)
        self._out.tick(now)
        return self._out.take()

    def tick(self, now: float) -> list[SourceEvent]:
        """What is due by ``now``."""
        self._advance(now)
        return self._out.take()

    def next_deadline(self) -> float | None:
        """When ``tick`` should be called, or None."""
        times = [self._out.deadline, self._painter.deadline, self._look_at()]
        return min((time for time in times if time is not None), default=None)

    def resize(self, cols: int, rows: int, now: float) -> list[SourceEvent]:
        """The terminal has a new size; the main screen is reflowed."""
        self._advance(now)
        if (cols, rows) != (self._emulator.cols, self._emulator.rows) and cols > 0 and rows > 0:
            self._emulator.resize(cols, rows)
            if self._painting:
                self._touch()
        return self._out.take()

    def expect_echo(self, text: str, now: float) -> None:
        """``text`` is about to be typed by relay; what it shows as is not the program's speech."""
        self._out.echo.expect(text, now)

    def finish(self, now: float) -> list[SourceEvent]:
        """The program has exited: everything is settled."""
        self._advance(now)
        if self._held:
            self._emulator.feed(self._held)
            self._held = b""
        if self._painting:
            self._look(settle=True)
        else:
            self._read_lines()
            self._read_rest()
        self._out.pause()
        self._out.end()
        return self._out.take()

    def _advance(self, now: float) -> None:
        """Bring everything that depends on time up to ``now``."""
        self._now = now
        self._out.tick(now)
        due = self._look_at()
        if due is not None and now >= due:
            self._look()
        self._painter.tick(now)
        self._rest_painter()
        self._forget_person()

    # -- bytes ---------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            pattern = _SWITCHES if self._painting and not self._tentative else _MOVES
            found = pattern.search(data, at)
            end = found.start() if found else len(data)
            if end > at:
                self._write_text(data[at:end])
            if not found:
                return
            self._control(found[0])
            at = found.end()

    def _write_text(self, data: bytes) -> None:
        """Bytes that hold no sequence which ``_control`` wants to see, in slices."""
        at = 0
        while at < len(data):
            piece = data[at : at + SLICE_BYTES]
            while len(piece) > 256 and self._rows_in(piece) > SLICE_ROWS:
                piece = piece[: len(piece) // 2]
            at += len(piece)
            if self._painting:
                self._paint(piece)
            else:
                self._append(piece)

    def _rows_in(self, piece: bytes) -> int:
        rows = piece.count(b"\n") + piece.count(b"\x0b") + piece.count(b"\x0c")
        if b"\x1b" in piece:
            rows += sum(piece.count(sequence) for sequence in _ROWS_BY_ESCAPE)
        return rows + len(piece) // self._emulator.cols

    def _control(self, sequence: bytes) -> None:
        """One sequence that may end the regime, or a frame."""
        if sequence[1:3] == b"[?":
            numbers = frozenset(sequence[3:-1].split(b";"))
            if numbers & _SCREENS:
                self._switch_screen(sequence)
                return
            if b"2026" in numbers:
                self._synchronise(sequence)
                return
            self._emulator.feed(sequence)
            return
        if not self._painting:
            self._read_lines()
        self._emulator.feed(sequence)
        self._moved_at = self._now
        if self._painting and not self._tentative:
            self._touch()
        else:
            self._judge_move(sequence)

    def _judge_move(self, sequence: bytes) -> None:
        """After a move in the line regime: a painter, unless it stays on its own line."""
        front = self._front.position()
        row = self._cursor_row()
        scrolls = sequence[-1:] in b"LMST" and sequence[1:2] == b"["
        if not scrolls and front is not None and row >= front[1]:
            if self._tentative:
                self._appending(row)
            return
        if front is None or self._blank_below(row):
            # The screen was cleared: a line program that starts again at the top.
            self._appending(row)
        elif not self._painting:
            self._start_painting()
            self._tentative = True

    def _switch_screen(self, sequence: bytes) -> None:
        if self._painting:
            self._look(settle=self._emulator.alt_screen)
        else:
            self._read_lines()
        self._emulator.feed(sequence)
        self._moved_at = self._now
        if not self._painting:
            self._start_painting()
        self._tentative = False
        self._touch()

    def _synchronise(self, sequence: bytes) -> None:
        if not self._painting:
            self._read_lines()
            self._start_painting()
        self._tentative = False
        self._moved_at = self._now
        self._emulator.feed(sequence)
        if sequence.endswith(b"h"):
            self._sync_since = self._now
        else:
            self._sync_since = None
            if self._dirty_since is not None and self._now >= self._looked_at + FRAME_GAP:
                self._look()

    # -- line programs -------------------------------------------------------------------------

    def _append(self, piece: bytes) -> None:
        self._emulator.feed(piece)
        self._unread += len(piece)
        newline = piece.rfind(b"\n")
        if newline < 0 and self._unread < 16_384 and b"\x0b" not in piece and b"\x0c" not in piece:
            self._marked = self._marked or any(mark in piece for mark in MARKS)
            return
        unmarked = not self._marked and not any(mark in piece for mark in MARKS)
        if newline >= 0:
            self._marked = any(mark in piece[newline:] for mark in MARKS)
        else:
            self._marked = not unmarked
        self._read_lines(skip=unmarked and self._person is None and self._out.flooded(self._now))

    def _read_lines(self, *, skip: bool = False) -> None:
        """Hear the lines that the cursor has left."""
        self._unread = 0
        row = self._cursor_row()
        front = self._front.position()
        if front is None:
            self._restart(row)
            return
        x, y = front
        start = self._emulator.line_start(row, y) if row > y else y
        if start > y:
            if skip:
                self._head, self._head_size = [], 0
                self._out.skip(self._now, start - y)
            else:
                self._hear((x, y), start)
            self._set_front(0, start)
        self._bank()
        if self._emulator.cursor[0] > 0:
            self._out.delay(self._now)

    def _hear(self, front: tuple[int, int], end: int) -> None:
        """Pass on the lines from the front to above row ``end``."""
        person = self._person.position() if self._person else None
        if person is None or person[1] >= end or person < front:
            if self._person is not None and (person is None or person < front):
                self._drop_person()
            self._pass_on(self._read(front, end))
            return
        start = self._emulator.line_start(person[1], front[1])
        after = person[1] + 1
        while after < end and self._emulator.continues(after):
            after += 1
        if not self._entered:
            # A newline before Enter is the program's own: no way to tell whose the line was.
            self._drop_person()
            self._pass_on(self._read(front, end))
            return
        if start > front[1]:
            self._pass_on(self._read(front, start))
            front = (0, start)
        own = self._text_before(front, person)
        self._head, self._head_size = [], 0
        self._drop_person()
        if own:
            self._pass_on([own])
        if after < end:
            self._pass_on(self._read((0, after), end))

    def _text_before(self, front: tuple[int, int], person: tuple[int, int]) -> str:
        """What the program had written on the line before the person typed."""
        x, y = person
        if self._person_past_edge:
            x += 1
        if x == 0:
            x, y = self._emulator.cols, y - 1
        if (x - 1, y)[::-1] < front[::-1]:
            return "".join(self._head).rstrip()
        return ("".join(self._head) + self._emulator.text(front, (x - 1, y))).rstrip()

    def _read(self, front: tuple[int, int], end: int) -> list[str]:
        """The logical lines from cell ``front`` to above row ``end``, which starts a line."""
        text = self._emulator.text(front, (self._emulator.cols - 1, end - 1))
        if text:
            lines = text.split("\n")
            # The formatter leaves out blank rows at the end.
            row = end - 1
            while row > front[1] and not self._emulator.row_text(row):
                lines.append("")
                row -= 1
        else:
            lines = [""] * (end - front[1])
        if self._head:
            lines[0] = "".join(self._head) + lines[0]
            self._head, self._head_size = [], 0
        return lines

    def _pass_on(self, lines: list[str]) -> None:
        self._painter.note(lines)
        self._out.lines(lines, self._now)
        cols = self._emulator.cols
        if lines and cols - 1 <= len(lines[-1]) <= cols:
            self._out.delay(self._now)

    def _bank(self) -> None:
        """Take the rows of an endless line that have left the screen: they cannot change."""
        front = self._front.position()
        history = self._emulator.history_rows
        if front is None or history - front[1] < 64:
            return
        text = self._emulator.text(front, (self._emulator.cols - 1, history - 1), trim=False)
        if self._head_size < LINE_MAX:
            self._head.append(text)
            self._head_size += len(text)
        self._set_front(0, history)

    def _read_rest(self) -> None:
        """At the end: the line without a newline, and whatever stands below."""
        front = self._front.position()
        if front is None:
            return
        bottom = self._emulator.total_rows - 1
        text = self._emulator.text(front, (self._emulator.cols - 1, bottom))
        if self._head or text:
            lines = text.split("\n")
            lines[0] = "".join(self._head) + lines[0]
            self._pass_on(lines)

    def _restart(self, row: int) -> None:
        """The front was lost (a reset, an erased scrollback): go on at the cursor."""
        self._head, self._head_size = [], 0
        self._drop_person()
        self._out.skip(self._now)
        self._set_front(0, self._emulator.line_start(row))

    def _appending(self, row: int) -> None:
        self._painting = self._tentative = False
        self._dirty_since = None
        self._restart(row)

    def _set_front(self, x: int, y: int) -> None:
        self._front.close()
        self._front = self._emulator.mark(x, y)

    def _cursor_row(self) -> int:
        return self._emulator.history_rows + self._emulator.cursor[1]

    def _blank_below(self, row: int) -> bool:
        bottom = self._emulator.total_rows - 1
        return not self._emulator.text((0, row), (self._emulator.cols - 1, bottom)).strip()

    # -- the person ----------------------------------------------------------------------------

    def activity(self, kind: bytes, now: float) -> list[SourceEvent]:
        """The person pressed keys: frames.TYPED, ENTERED or CLEARED."""
        self._advance(now)
        if kind == frames.CLEARED:
            self._drop_person()
        elif not self._painting:
            if self._person is None:
                x, y = self._emulator.cursor
                self._person = self._emulator.mark(x, self._emulator.history_rows + y)
                self._person_past_edge = self._emulator.pending_wrap
            self._person_at = now
            self._entered = self._entered or kind == frames.ENTERED
        return self._out.take()

    def _forget_person(self) -> None:
        """Without an echo the program reads the keys by itself, and the line is its own."""
        if self._person is None or self._now - self._person_at <= PERSON_WAIT:
            return
        x, y = self._emulator.cursor
        if self._person.position() == (x, self._emulator.history_rows + y):
            self._drop_person()

    def _drop_person(self) -> None:
        if self._person is not None:
            self._person.close()
            self._person = None
        self._entered = False

    # -- painters ------------------------------------------------------------------------------

    def _start_painting(self) -> None:
        self._painting = True
        self._drop_person()
        self._head, self._head_size = [], 0
        self._set_top()

    def _set_top(self) -> None:
        self._top.close()
        self._top = self._emulator.mark(0, self._emulator.history_rows)

    def _paint(self, piece: bytes) -> None:
        if self._tentative and not _INVISIBLE.fullmatch(piece):
            self._tentative = False
        self._emulator.feed(piece)
        if b"\x1b" in piece and _MOVES.search(piece):
            self._moved_at = self._now
        self._touch()
        top = self._top.position()
        if top is None or self._emulator.history_rows - top[1] > SLICE_ROWS // 2:
            self._look()
        elif self._sync_since is None and self._late(FRAME_LATEST):
            self._look()

    def _touch(self) -> None:
        self._changed_at = self._now
        if self._dirty_since is None:
            self._dirty_since = self._now

    def _late(self, limit: float) -> bool:
        return self._dirty_since is not None and self._now - self._dirty_since > limit

    def _look_at(self) -> float | None:
        """When the next look at a painter's screen is due."""
        if not self._painting or self._dirty_since is None:
            return None
        if self._sync_since is not None:
            return self._sync_since + SYNC_LATEST
        quiet = max(self._changed_at + QUIET, self._looked_at + FRAME_GAP)
        return min(quiet, self._dirty_since + FRAME_LATEST)

    def _look(self, *, settle: bool = False) -> None:
        """Compare the screen with what was heard."""
        self._dirty_since = None
        self._looked_at = self._now
        emulator = self._emulator
        history = emulator.history_rows
        alt = emulator.alt_screen
        top = None if alt else self._top.position()
        first = history if alt or top is None else min(top[1], history)
        first = emulator.line_start(first, max(0, first - 2 * emulator.rows))
        text = emulator.text((0, first), (emulator.cols - 1, emulator.total_rows - 1))
        rows = text.split("\n")
        cursor_row = emulator.line_start(history + emulator.cursor[1], first)
        above = self._lines_between(first, cursor_row)
        self._painter.look(Snapshot(rows, above, emulator.cols), self._now, settle=settle)
        if not alt:
            self._set_top()

    def _lines_between(self, first: int, end: int) -> int:
        """How many logical lines stand in the rows from ``first`` to above ``end``."""
        blank = 0
        while end > first and not self._emulator.row_text(end - 1):
            end -= 1
            blank += 1
        if end == first:
            return blank
        text = self._emulator.text((0, first), (self._emulator.cols - 1, end - 1))
        return blank + text.count("\n") + 1

    def _rest_painter(self) -> None:
        """Back to the line regime when nothing has been painted for a while."""
        if not self._painting or self._dirty_since is not None or self._painter.pending:
            return
        if self._now - self._moved_at < PAINTER_RESTS or self._emulator.alt_screen:
            return
        row = self._cursor_row()
        below = row + 1
        if below < self._emulator.total_rows and not self._blank_below(below):
            return
        self._painting = self._tentative = False
        self._head, self._head_size = [], 0
        self._set_front(0, self._emulator.line_start(row))

    # -- what is known of the terminal ---------------------------------------------------------

    @property
    def bracketed_paste(self) -> bool:
        """Whether the program has asked for bracketed paste."""
        return self._emulator.mode(BRACKETED_PASTE)

    @property
    def alt_screen(self) -> bool:
        return self._emulator.alt_screen

    @property
    def cursor(self) -> tuple[int, int]:
        """(x, y) on the screen, from 0."""
        return self._emulator.cursor

    @property
    def title(self) -> str:
        return self._emulator.title

    def visible(self) -> list[str]:
        """The rows on the screen, top to bottom."""
        emulator = self._emulator
        history = emulator.history_rows
        end = (emulator.cols - 1, history + emulator.rows - 1)
        rows = emulator.text((0, history), end, unwrap=False).split("\n")
        return rows + [""] * (emulator.rows - len(rows))

    def reset_sequences(self) -> bytes:
        """What to write to the real terminal if the program died without cleaning up."""
        emulator = self._emulator
        return reset_bytes(
            [mode for mode in DISTURBING if emulator.mode(mode)],
            [mode for mode in EXPECTED if not emulator.mode(mode)],
            kitty=bool(emulator.kitty_flags),
            alt=emulator.alt_screen,
            insert=emulator.mode(4, ansi=True),
        )

    # -- checkpoint ----------------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """The state as JSON, at most 256 KiB."""
        state = self._state()
        text = json.dumps(state).encode()
        if len(text) > CHECKPOINT_MAX:
            smaller = Emulator(1, 1, history=0, snapshot=zlib.decompress(self._snapshot()))
            smaller.forget_history()
            state["emulator"] = _pack(zlib.compress(smaller.snapshot()))
            state["head"] = "".join(self._head)[:32_768]
            text = json.dumps(state).encode()
        if len(text) > CHECKPOINT_MAX:
            state["painter"] = Painter(self._out).state(self._now)
            text = json.dumps(state).encode()
        return text

    def _snapshot(self) -> bytes:
        return zlib.compress(self._emulator.snapshot(), 1)

    def _state(self) -> dict[str, Any]:
        now = self._now
        return {
            "kind": "screen",
            "emulator": _pack(self._snapshot()),
            "held": _pack(self._held),
            "front": self._from_bottom(self._front),
            "top": self._from_bottom(self._top),
            "person": self._from_bottom(self._person),
            "entered": self._entered,
            "past_edge": self._person_past_edge,
            "person_in": self._person_at - now,
            "head": "".join(self._head)[:65_536],
            "marked": self._marked,
            "unread": self._unread,
            "painting": self._painting,
            "tentative": self._tentative,
            "moved_in": self._moved_at - now,
            "dirty_in": None if self._dirty_since is None else self._dirty_since - now,
            "changed_in": self._changed_at - now,
            "looked_in": self._looked_at - now,
            "sync_in": None if self._sync_since is None else self._sync_since - now,
            "out": self._out.state(now),
            "painter": self._painter.state(now),
        }

    def _from_bottom(self, mark: Mark | None) -> list[int] | None:
        """A mark as it can be kept: its row counted from the last one."""
        position = mark.position() if mark else None
        if position is None:
            return None
        return [position[0], self._emulator.total_rows - 1 - position[1]]

    @classmethod
    def restore(cls, data: bytes, cols: int, rows: int, now: float) -> ScreenSource:
        """A source that goes on from ``checkpoint``. Raises ValueError when it cannot."""
        try:
            state = json.loads(data)
            if state["kind"] != "screen":
                raise ValueError("the checkpoint is of another kind of source")
            snapshot = zlib.decompress(base64.b64decode(state["emulator"]))
            source = cls(cols, rows, now=now, snapshot=snapshot)
            source._load(state, now)
        except (KeyError, TypeError, IndexError, zlib.error, EmulatorError) as problem:
            raise ValueError(f"not a checkpoint: {problem!r}") from problem
        if (cols, rows) != (source._emulator.cols, source._emulator.rows):
            source._emulator.resize(cols, rows)
        return source

    def _load(self, state: dict[str, Any], now: float) -> None:
        self._held = base64.b64decode(state["held"])
        self._front = self._to_mark(state["front"]) or self._front
        self._top = self._to_mark(state["top"]) or self._top
        self._person = self._to_mark(state["person"])
        self._entered, self._person_past_edge = state["entered"], state["past_edge"]
        self._person_at = now + state["person_in"]
        self._head = [state["head"]] if state["head"] else []
        self._head_size = len(state["head"])
        self._marked, self._unread = state["marked"], state["unread"]
        self._painting, self._tentative = state["painting"], state["tentative"]
        self._moved_at = now + state["moved_in"]
        self._dirty_since = None if state["dirty_in"] is None else now + state["dirty_in"]
        self._changed_at = now + state["changed_in"]
        self._looked_at = now + state["looked_in"]
        self._sync_since = None if state["sync_in"] is None else now + state["sync_in"]
        self._out.load(state["out"], now)
        self._painter.load(state["painter"], now)

    def _to_mark(self, kept: list[int] | None) -> Mark | None:
        if kept is None:
            return None
        row = self._emulator.total_rows - 1 - kept[1]
        return self._emulator.mark(kept[0], max(0, row))


def _pack(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
