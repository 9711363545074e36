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

from relay.session.ports import SourceEvent
from relay.terminal.appended import Appended
from relay.terminal.emulator import Emulator, EmulatorError, Mark
from relay.terminal.hearing import MARKS, Outlet
from relay.terminal.modes import BRACKETED_PASTE
from relay.terminal.painter import Painter
from relay.terminal.view import Snapshot

#: At most this many rows are written between two looks, so that none leaves the scrollback unread.
SLICE_ROWS = 800
SLICE_BYTES = 64 * 1024
#: Frames are looked at no oftener than this, after this much quiet, and at least this often.
FRAME_GAP = 0.030
QUIET = 0.030
FRAME_LATEST = 0.250
SYNC_LATEST = 1.0
#: A painter that has moved the cursor up for the last time this long ago is a line program again.
PAINTER_RESTS = 1.0
CHECKPOINT_MAX = 256 * 1024

# Sequences that may move the cursor up, and those that switch screens or frames.
# Colours are told first and possessively: they are most of what comes, and never wanted.
_MOVES = re.compile(rb"\x1b(?!\[[0-9;:]*+[mK])(?:\[[0-9;]*+[AEFHJLMSTdfr]|\[\?[0-9;]*+[hl]|[M78c])")
_SWITCHES = re.compile(rb"\x1b(?:\[\?[0-9;]*+[hl]|c)")
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
        self._appended = Appended(self._emulator, self._out, self._painter.note, now)
        self._now = now
        self._held = b""  # a control sequence that is not complete
        # Painters.
        self._painting = False
        self._tentative = False  # nothing was drawn yet since the cursor went up
        self._moved_at = now
        self._dirty_since: float | None = None
        self._changed_at = now
        self._looked_at = now - FRAME_GAP
        self._top: Mark = self._emulator.mark(0, 0)
        self._sync_since: float | None = None
        self._marked = False  # one of MARKS was written since the last look

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
            if self._painting and self._dirty_since is not None:
                self._look()
            self._emulator.resize(cols, rows)
            if self._painting:
                # What the reflow pushed off the screen was seen, and may be drawn again below.
                self._set_top(whole_line=False)
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
            self._appended.read_rest(now)
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
        self._appended.forget_person(now)

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
            if passed := self._pass_over(data, at):
                at += passed
                continue
            piece = data[at : at + SLICE_BYTES]
            while len(piece) > 256 and self._rows_in(piece) > SLICE_ROWS:
                piece = piece[: len(piece) // 2]
            at += len(piece)
            if self._painting:
                self._paint(piece)
            else:
                self._appended.append(piece, self._now)

    def _pass_over(self, data: bytes, at: int) -> int:
        """How many bytes from ``at`` on are a flood that nobody reads, and are dealt with."""
        if self._painting or not self._appended.passes_over(self._now):
            return 0
        for end in (len(data), at + SLICE_BYTES):
            piece = data[at:end]
            if self._appended.pass_over(piece, self._now):
                return len(piece)
        return 0

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
            self._appended.read(self._now)
        self._emulator.feed(sequence)
        self._moved_at = self._now
        if self._painting and not self._tentative:
            self._touch()
        else:
            self._judge_move(sequence)

    def _judge_move(self, sequence: bytes) -> None:
        """After a move in the line regime: a painter, unless it stays on its own line."""
        scrolls = sequence[-1:] in b"LMST" and sequence[1:2] == b"["
        if not scrolls and self._appended.below_front():
            self._painting = self._tentative = False
        elif self._blank_below(self._cursor_row()):
            # The screen was cleared: a line program that starts again at the top.
            self._painting = self._tentative = False
            self._dirty_since = None
            self._appended.restart(self._now)
        elif not self._painting:
            self._start_painting()
            self._tentative = True

    def _switch_screen(self, sequence: bytes) -> None:
        if not self._painting:
            self._appended.read(self._now)
            self._start_painting()
        elif self._emulator.alt_screen != sequence.endswith(b"h"):
            self._look(settle=True)  # this picture goes away
        self._emulator.feed(sequence)
        self._moved_at = self._now
        self._set_top()
        self._tentative = False
        self._touch()

    def _synchronise(self, sequence: bytes) -> None:
        if not self._painting:
            self._appended.read(self._now)
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

    def activity(self, kind: bytes, now: float) -> list[SourceEvent]:
        """The person pressed keys: frames.TYPED, ENTERED or CLEARED."""
        self._advance(now)
        if not self._painting:
            self._appended.activity(kind, now)
        return self._out.take()

    def _cursor_row(self) -> int:
        return self._emulator.history_rows + self._emulator.cursor[1]

    def _blank_below(self, row: int) -> bool:
        bottom = self._emulator.total_rows - 1
        return not self._emulator.text((0, row), (self._emulator.cols - 1, bottom)).strip()

    # -- painters ------------------------------------------------------------------------------

    def _start_painting(self) -> None:
        self._painting = True
        self._appended.drop_person()
        # All that stands above the front was dealt with, the person's own lines included.
        emulator = self._emulator
        top, front = emulator.history_rows, self._appended.front_row
        if front is not None and front > top:
            text = emulator.text((0, top), (emulator.cols - 1, front - 1))
            self._painter.absorb(Snapshot(text.split("\n"), -1, emulator.cols), self._now)
        self._set_top()

    def _set_top(self, *, whole_line: bool = True) -> None:
        """What stands above the screen was seen, but for a line that reaches into it."""
        emulator = self._emulator
        top = emulator.history_rows
        if whole_line:
            top = emulator.line_start(top, max(0, top - 2 * emulator.rows))
        self._top.close()
        self._top = emulator.mark(0, top)

    def _paint(self, piece: bytes) -> None:
        if self._tentative and not _INVISIBLE.fullmatch(piece):
            self._tentative = False
        self._emulator.feed(piece)
        if b"\x1b" in piece and _MOVES.search(piece):
            self._moved_at = self._now
        self._touch()
        top = self._top.position()
        self._marked = self._marked or any(mark in piece for mark in MARKS)
        leaving = top is None or self._emulator.history_rows - top[1] > SLICE_ROWS // 2
        if leaving and not self._marked and self._out.flooded(self._now):
            self._out.skip(self._now)
            self._set_top()
        elif leaving or (self._sync_since is None and self._late(FRAME_LATEST)):
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
            return max(self._sync_since + SYNC_LATEST, self._looked_at + FRAME_LATEST)
        quiet = max(self._changed_at + QUIET, self._looked_at + FRAME_GAP)
        return min(quiet, self._dirty_since + FRAME_LATEST)

    def _look(self, *, settle: bool = False) -> None:
        """Compare the screen with what was heard."""
        self._dirty_since = None
        self._looked_at = self._now
        self._marked = False
        emulator = self._emulator
        history = emulator.history_rows
        alt = emulator.alt_screen
        top = None if alt else self._top.position()
        first = history if alt or top is None else min(top[1], history)
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
        below = self._cursor_row() + 1
        if below < self._emulator.total_rows and not self._blank_below(below):
            return
        self._painting = self._tentative = False
        self._appended.go_on_here()

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
        return self._emulator.visible()

    def reset_sequences(self) -> bytes:
        """What to write to the real terminal if the program died without cleaning up."""
        return self._emulator.reset_sequences()

    # -- checkpoint ----------------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """The state as JSON, at most 256 KiB."""
        state = self._state()
        try:
            snapshot = self._emulator.snapshot()
        except EmulatorError:
            # The library cannot write down every state, such as half of a wide character.
            state["drawn"] = _pack(zlib.compress(self._emulator.redrawing()))
            return json.dumps(state).encode()
        state["emulator"] = _pack(zlib.compress(snapshot, 1))
        text = json.dumps(state).encode()
        if len(text) > CHECKPOINT_MAX:
            smaller = Emulator(1, 1, history=0, snapshot=snapshot)
            smaller.forget_history()
            state["emulator"] = _pack(zlib.compress(smaller.snapshot()))
            text = json.dumps(state).encode()
        if len(text) > CHECKPOINT_MAX:
            state["painter"] = Painter(self._out).state(self._now)
            text = json.dumps(state).encode()
        return text

    def _state(self) -> dict[str, Any]:
        now = self._now
        return {
            "kind": "screen",
            "size": [self._emulator.cols, self._emulator.rows],
            "held": _pack(self._held),
            "top": self._emulator.from_bottom(self._top),
            "appended": self._appended.state(now),
            "painting": self._painting,
            "tentative": self._tentative,
            "marked": self._marked,
            "moved_in": self._moved_at - now,
            "dirty_in": None if self._dirty_since is None else self._dirty_since - now,
            "changed_in": self._changed_at - now,
            "looked_in": self._looked_at - now,
            "sync_in": None if self._sync_since is None else self._sync_since - now,
            "out": self._out.state(now),
            "painter": self._painter.state(now),
        }

    @classmethod
    def restore(cls, data: bytes, cols: int, rows: int, now: float) -> ScreenSource:
        """A source that goes on from ``checkpoint``. Raises ValueError when it cannot."""
        try:
            state = json.loads(data)
            if state["kind"] != "screen":
                raise ValueError("the checkpoint is of another kind of source")
            if "drawn" in state:
                source = cls(*state["size"], now=now)
                source._emulator.feed(zlib.decompress(base64.b64decode(state["drawn"])))
            else:
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
        self._appended.load(state["appended"], now)
        self._top = self._emulator.mark_from_bottom(state["top"]) or self._top
        self._painting, self._tentative = state["painting"], state["tentative"]
        self._marked = state["marked"]
        self._moved_at = now + state["moved_in"]
        self._dirty_since = None if state["dirty_in"] is None else now + state["dirty_in"]
        self._changed_at = now + state["changed_in"]
        self._looked_at = now + state["looked_in"]
        self._sync_since = None if state["sync_in"] is None else now + state["sync_in"]
        self._out.load(state["out"], now)
        self._painter.load(state["painter"], now)


def _pack(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
