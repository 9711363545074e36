"""The screen source: a terminal's bytes in, through an emulator, lines and pauses out.

A program is read in one of two ways. One that *appends* lines to the main screen is read once the
cursor has left them below (``relay.screen.append``). One that *draws* (full-screen, or it moves
the cursor up and draws again) is looked at between its frames, and what is seen is aligned with
what was already read (``relay.screen.redraw``). docs/screen.md tells what a screen cannot know.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Collection
from typing import Any

from relay.core.source_events import SourceEvent
from relay.protocol import frames
from relay.screen import checkpoint, emulator_library
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.append import AppendReader
from relay.screen.concealed import ConcealedText, whole_sequences
from relay.screen.emulator import SLICE_ROWS, Emulator, EmulatorError, slice_rows
from relay.screen.inputbox import CURSOR_SHOWN
from relay.screen.line_events import LineEmitter
from relay.screen.redraw import KEPT_ROWS, FrameScheduler, RedrawReader
from relay.screen.terminal_modes import BRACKETED_PASTE

CHECKPOINT_MAX = 256 * 1024
#: A screen that is cleared so soon after something was written to it is drawn again.
FRAME_WITHIN = 2.5
#: The form of a checkpoint; one of another form is refused.
_KIND = "screen 3"
#: The namespaces of relay's own: what is read where nobody says which are registered.
NAMESPACES = ("relay", "memory")

# Sequences that may move the cursor up, and those that switch screens or frames.
# Colours are told first and possessively: they are most of what comes, and never wanted.
_MOVES = re.compile(
    rb"\x1b(?!\[[0-9;:]*+[mK])"
    rb"(?:\[[0-9;]*+[AEFHJLMSTdfru]|\[\?[0-9;]*+[hlr]|[M8c]|\#8)"
)
_SWITCHES = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?(?:47|1047|1049)(?:;[0-9;]*)?[hlr]")
_SWITCHED = (b"47", b"1049")
_PARTIAL = re.compile(
    rb"(?:\xc2|\x1b#?|(?:\xc2\x9b|\x1b\[)[\x00-\x17\x19\x1c-?\x7f]{0,64}[ -/]{0,4})\Z"
)
_SCREENS = frozenset((b"47", b"1047", b"1049"))
_INVISIBLE = re.compile(rb"(?:\x1b\[[0-9;:]*m|[\r\x00\x07])*")


class ScreenSource:
    """Takes a terminal's bytes and the time, and returns events.

    ``feed``, ``tick``, ``resize``, ``activity`` and ``finish`` return the events that are due.
    ``now`` is in seconds of a monotonic clock and never goes back. ``namespaces`` are those for
    which there are handlers: with a program that draws they tell where a message ends.
    """

    def __init__(
        self,
        cols: int,
        rows: int,
        *,
        now: float = 0.0,
        snapshot: bytes | None = None,
        namespaces: Collection[str] = NAMESPACES,
        style: AgentStyle = UNKNOWN,
    ) -> None:
        self._emulator = Emulator(cols, rows, history=SLICE_ROWS + KEPT_ROWS, snapshot=snapshot)
        self._out = LineEmitter()
        self._redraw = RedrawReader(self._out, namespaces, style)
        self._frames = FrameScheduler(self._emulator, self._redraw, now, style)
        self._append = AppendReader(self._emulator, self._out, self._redraw.note, now, style)
        self._now = now
        self._concealed = ConcealedText()
        self._held = b""  # a control sequence that is not complete
        self._painting = False
        self._tentative = False  # nothing was drawn yet since the cursor went up
        self._homed = False  # the cursor went up to the first row, or the screen was wiped
        self._paints = False  # it has drawn before: what it clears it draws again
        self._wrote_at = now - FRAME_WITHIN  # when it last appended text

    # -- in ------------------------------------------------------------------------------------

    def feed(self, data: bytes, now: float) -> list[SourceEvent]:
        """Take what the program wrote; return Line, Pause and Proof events."""
        self._advance(now)
        data = self._held + data
        partial = _PARTIAL.search(data, max(0, len(data) - 72))
        cut = partial.start() if partial else len(data)
        self._held, data = data[cut:], data[:cut]
        self._write(self._concealed.blank(whole_sequences(data)))
        self._out.tick(now)
        return self._out.take()

    def tick(self, now: float) -> list[SourceEvent]:
        """Return the events that are due by ``now``."""
        self._advance(now)
        return self._out.take()

    def next_deadline(self) -> float | None:
        """Return when ``tick`` should be called, or None."""
        frames = self._frames.deadline if self._painting else None
        times = (self._out.deadline, self._redraw.deadline, frames)
        return min((time for time in times if time is not None), default=None)

    def resize(self, cols: int, rows: int, now: float) -> list[SourceEvent]:
        """Give the terminal a new size; the main screen is reflowed."""
        self._advance(now)
        if (cols, rows) != (self._emulator.cols, self._emulator.rows) and cols > 0 and rows > 0:
            if self._painting and self._frames.dirty:
                self._frames.look_at_whole(now)
            self._emulator.resize(cols, rows)
            self._redraw.resized(now)
            if self._painting:
                self._frames.resized(now)
        return self._out.take()

    def expect_echo(self, text: str, now: float) -> None:
        """Expect the echo of ``text``, which relay is about to type: it is not speech."""
        self._out.echo.expect(text, now, self._append.prompt())
        self._redraw.start()

    def activity(self, kind: bytes, now: float) -> list[SourceEvent]:
        """Note that the person pressed keys: frames.TYPED, ENTERED or CLEARED."""
        self._advance(now)
        self._out.echo.keyed()
        if kind == frames.ENTERED:
            self._redraw.start()
        self._frames.activity(kind)
        if not self._painting:
            self._append.activity(kind, now)
        return self._out.take()

    def finish(self, now: float) -> list[SourceEvent]:
        """Settle everything: the program has exited."""
        self._advance(now)
        self._emulator.feed(self._held)
        self._held = b""
        if self._painting:
            self._frames.look_at_whole(now, settle=True)
        else:
            self._append.read_rest(now)
        self._out.pause()
        self._out.end()
        return self._out.take()

    def _advance(self, now: float) -> None:
        """Bring everything that depends on time up to ``now``."""
        self._now = now
        self._out.tick(now)
        if self._painting:
            self._frames.tick(now)
        self._redraw.tick(now)
        self._rest_drawing()
        self._append.forget_person(now)

    # -- bytes ---------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        switches: bool | None = None  # not known before it matters: a look at all of the data
        at = 0
        while at < len(data):
            if self._painting and not self._tentative:
                if switches is None:
                    switches = any(number in data for number in _SWITCHED)
                found = _SWITCHES.search(data, at) if switches else None
                end = found.start() if found else len(data)
                self._frames.draw(data[at:end], self._now)
            else:
                found = _MOVES.search(data, at)
                end = found.start() if found else len(data)
                self._write_text(data[at:end])
                if self._painting and not self._tentative:
                    at = end  # the text has decided it: what comes is drawn
                    continue
            if found:
                self._control(found[0])
                end = found.end()
            at = end

    def _write_text(self, data: bytes) -> None:
        """Write bytes without a sequence for ``_control`` in slices."""
        at = 0
        while at < len(data):
            piece = slice_rows(data, at, self._emulator.cols)
            at += len(piece)
            visible = not _INVISIBLE.fullmatch(piece)
            if visible and not self._painting and not self._emulator.mode(CURSOR_SHOWN):
                # Who hides the cursor is about to move it: the first picture is not the last.
                self._append.read(self._now)
                self._start_painting()
            if not self._painting:
                self._append.append(piece, self._now)
                self._wrote_at = self._now if visible else self._wrote_at
                continue
            if visible:
                self._tentative, self._paints = False, True
            self._frames.draw(piece, self._now)

    def _control(self, sequence: bytes) -> None:
        """Write one sequence that may change how the program is read, or end a frame."""
        if sequence[1:3] == b"[?":
            numbers = frozenset(sequence[3:-1].split(b";"))
            if numbers & _SCREENS:
                self._switch_screen(sequence)
                return
            if b"2026" in numbers:
                self._synchronise(sequence)
                return
            if b"1048" not in numbers:
                self._emulator.feed(sequence)
                return
        if not self._painting:
            self._append.read(self._now)
        self._emulator.feed(sequence)
        self._frames.moved(self._now)
        self._judge_move(sequence)

    def _judge_move(self, sequence: bytes) -> None:
        """Decide after a move whether the program draws: not if it stays on its own line."""
        scrolls = sequence[-1:] in b"LMST" and sequence[1:2] == b"["
        self._homed = sequence[-1:] in b"HfcJ" and (self._homed or sequence[-1:] != b"J")
        cleared = self._is_cleared()
        if not scrolls and self._append.below_front():
            self._painting = self._tentative = False
            return
        if cleared and not self._redraws():  # a line program that starts again at the top
            self._painting = self._tentative = False
            self._wrote_at = self._now - FRAME_WITHIN
            self._frames.clean()
            self._append.restart(self._now)
            return
        if not self._painting:
            if self._homed:
                self._out.gap(self._now)  # what comes does not go on with what stood there
            self._start_painting()
            self._tentative = True
        if cleared:
            self._frames.begin_picture()
            self._tentative = not self._paints

    def _is_cleared(self) -> bool:
        """Whether nothing is on the screen, and the cursor did not just go up some rows."""
        above = self._emulator.cursor[1]
        return self._homed and not above and self._blank_below(self._cursor_row())

    def _redraws(self) -> bool:
        """Whether the program clears the screen to draw it again."""
        return self._paints or self._now - self._wrote_at < FRAME_WITHIN

    def _switch_screen(self, sequence: bytes) -> None:
        if not self._painting:
            self._append.read(self._now)
            self._start_painting()
        elif self._emulator.alt_screen != sequence.endswith(b"h") or sequence.endswith(b"r"):
            self._frames.look(self._now, settle=True)  # this picture goes away
        self._emulator.feed(sequence)
        self._frames.switched(self._now)
        self._tentative = False

    def _synchronise(self, sequence: bytes) -> None:
        """Begin the first frame of a program that appended lines so far."""
        if not self._painting:
            self._append.read(self._now)
            self._start_painting()
        self._tentative = False
        self._frames.draw(sequence, self._now)

    def _start_painting(self) -> None:
        self._painting = True
        self._append.drop_person()
        self._frames.absorb(self._append.front_row, self._now)

    def _rest_drawing(self) -> None:
        """Read a program that has not drawn for a while as one that appends lines."""
        if not self._painting or not self._frames.rests(self._now):
            return
        below = self._cursor_row() + 1
        if below < self._emulator.total_rows and not self._blank_below(below):
            return
        self._painting = self._tentative = False
        self._append.go_on_here(said=self._redraw.stop(self._now))

    def _cursor_row(self) -> int:
        return self._emulator.history_rows + self._emulator.cursor[1]

    def _blank_below(self, row: int) -> bool:
        bottom = self._emulator.total_rows - 1
        return not self._emulator.text((0, row), (self._emulator.cols - 1, bottom)).strip()

    @property
    def changed_at(self) -> float:
        """When a row last changed, as far as is known yet: no blinking cursor changes one."""
        return max(self._wrote_at, self._redraw.changed_at)

    # What is known of the terminal, see Screen.
    @property
    def bracketed_paste(self) -> bool:
        return self._emulator.mode(BRACKETED_PASTE)

    @property
    def alt_screen(self) -> bool:
        return self._emulator.alt_screen

    @property
    def cursor(self) -> tuple[int, int]:
        return self._emulator.cursor

    @property
    def cursor_shown(self) -> bool:
        return self._emulator.mode(CURSOR_SHOWN)

    @property
    def title(self) -> str:
        return self._emulator.title

    @property
    def columns(self) -> int:
        return self._emulator.cols

    def visible(self, *, styled: bool = False) -> list[str]:
        return self._emulator.visible(styled=styled)

    def reset_sequences(self) -> bytes:
        """What to write to the real terminal if the program died without cleaning up."""
        return self._emulator.reset_sequences()

    # -- checkpoint ----------------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """Return the state as JSON, at most 256 KiB. What does not fit is left out: the scrollback,
        colours, the picture; the end of a line that has left it, rows seen long ago, echoes."""
        state = {
            "kind": _KIND,
            "saved_at": self._now,
            "size": [self._emulator.cols, self._emulator.rows],
            "held": base64.b64encode(self._held).decode("ascii"),
            "concealed": self._concealed.save(),
            "painting": self._painting,
            "tentative": self._tentative,
            "homed": self._homed,
            "paints": self._paints,
            "wrote_at": self._wrote_at,
            "append": self._append.save(),
            "frames": self._frames.save(),
            "redraw": self._redraw.save(self._now),
            "out": self._out.save(),
        }
        return checkpoint.with_picture(state, self._emulator, CHECKPOINT_MAX)

    @classmethod
    def restore(
        cls,
        data: bytes,
        cols: int,
        rows: int,
        now: float,
        namespaces: Collection[str] = NAMESPACES,
        style: AgentStyle = UNKNOWN,
    ) -> ScreenSource:
        """Make a source that goes on from ``checkpoint``. Raises ValueError when it cannot."""
        try:
            state = json.loads(data)
            if state["kind"] != _KIND:
                raise ValueError("it is of another version of relay, or another kind of source")
            snapshot, drawn = checkpoint.picture_of(state)
            size = state["size"] if snapshot is None else (cols, rows)
            source = cls(*size, now=now, snapshot=snapshot, namespaces=namespaces, style=style)
            if drawn:
                source._emulator.feed(drawn)
            source._load(checkpoint.moved_in_time(state, now - state["saved_at"]))
        except (KeyError, TypeError, IndexError, EmulatorError) as problem:
            raise ValueError(f"not a checkpoint: {problem!r}") from problem
        if (cols, rows) != (source._emulator.cols, source._emulator.rows):
            source._emulator.resize(cols, rows)
        return source

    def _load(self, state: dict[str, Any]) -> None:
        self._held = base64.b64decode(state["held"])
        self._concealed.load(state["concealed"])
        self._painting, self._tentative = state["painting"], state["tentative"]
        self._homed, self._paints = state["homed"], state["paints"]
        self._wrote_at = state["wrote_at"]
        self._append.load(state["append"])
        self._frames.load(state["frames"])
        self._redraw.load(state["redraw"])
        self._out.load(state["out"])


def make_source(
    cols: int,
    rows: int,
    now: float,
    *,
    saved: bytes = b"",
    cache: str | None = None,
    namespaces: Collection[str],
    style: AgentStyle = UNKNOWN,
) -> ScreenSource:
    """Return a source that goes on from the checkpoint ``saved``.

    ``cache`` is a directory of the user's own for what makes the next start faster; ``namespaces``
    are those for which there are handlers; ``style`` says how the program draws. A checkpoint that
    cannot be used is told of on stderr, which is the session's log. Raises ImportError or OSError
    where there is no emulator.
    """
    emulator_library.load(cache)
    if saved:
        try:
            return ScreenSource.restore(saved, cols, rows, now, namespaces, style)
        except ValueError as problem:
            print(
                f"relay: what stood on the screen is not known any more: {problem}", file=sys.stderr
            )
    return ScreenSource(cols, rows, now=now, namespaces=namespaces, style=style)
