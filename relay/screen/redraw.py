"""Schedules the looks at a program that draws: when its screen is read, and from which row on.

Between its frames the screen is read and given to ``relay.screen.redraw_reader``, which aligns it
with what was seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from relay.core.state import from_json, to_json
from relay.protocol import frames
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.checkpoint import size_of
from relay.screen.emulator import Emulator, Mark, Style, slice_rows
from relay.screen.inputbox import CURSOR_SHOWN, InputBox
from relay.screen.redraw_reader import ALL_ROWS, RedrawReader
from relay.screen.rows import Snapshot

#: Frames are looked at no oftener than this, after this much quiet, and at least this often.
FRAME_GAP = 0.030
QUIET = 0.030
FRAME_LATEST = 0.250
SYNC_LATEST = 1.0
#: An update in which nothing more is drawn was torn off, and may still be gone on with.
SYNC_STALLS = 5.0
#: A program that has moved the cursor up for the last time this long ago appends lines again.
PAINTER_RESTS = 1.0
SYNCHRONISED = 2026

#: Rows that have left the screen and can still be read beside those of one slice.
KEPT_ROWS = 600
#: After this many rows that left the screen it is looked at.
_LEAVING = 400
#: Bytes of an earlier picture that a checkpoint keeps.
_PICTURE_KEPT = 24 * 1024

_MOVES = re.compile(rb"\x1b(?:\[[0-9;]*+[AEFHJLMSTdfru]|\[\?(?:[0-9]+;)*+2026|[M8c])")
_HOME = rb"1?;?1?[Hf]"
#: What wipes the screen, with all that stands there and moves or wipes too.
_CLEARS = re.compile(
    rb"\x1b(?:\[(?:(?:%b|3J)\x1b\[)*2J|c|\[%b(?:\x1b\[3J)*\x1b\[0?J)"
    rb"(?:\x1b(?:\[(?:%b|[023]?J)|c))*+" % (_HOME, _HOME, _HOME)
)
_SYNC_BEGINS = b"\x1b[?2026h"
_SYNC_END = b"\x1b[?2026l"
_SYNC_ENDS = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?2026(?:;[0-9;]*)?l")
_ONLY_MODES = re.compile(rb"(?:\x1b\[\?[0-9;]*+[hl])*+")
_WIPES = b"\x1b[3J"  # the scrollback too: all that was said is printed again

# Indentation, a bullet or list mark before a directive: all of them one cell wide.
_HEAD = re.compile(r"[\s│┃●⏺•✦◆*+-]*(?:\d{1,3}[.)]? +)?(?=@[\w*-]+:)")
_WORD = re.compile(r"\S+\s*")


@dataclass(slots=True)
class _State:
    """What a checkpoint keeps. Times are of the source's clock, in seconds."""

    #: When the cursor went up or the screen was switched, something was drawn, and was looked at.
    moved_at: float
    changed_at: float
    looked_at: float
    #: When the terminal got another size, for which nothing may have been drawn yet.
    resized_at: float
    #: When the first of what was not looked at was drawn; None: all was looked at.
    dirty_at: float | None = None
    #: When the synchronised update that is open began.
    sync_at: float | None = None
    #: That update was too long to wait for its end.
    sync_seen: bool = False
    #: What was drawn before the update, unless it was looked at, and when.
    picture: Snapshot | None = None
    picture_at: float = 0.0
    #: The first row that was not seen yet, as ``Emulator.from_bottom`` has it.
    top: list[int] | None = None
    input: Any = None
    #: The person has pressed keys since Enter.
    typing: bool = False


class FrameScheduler:
    """Decides when ``reader`` looks at the screen of a program that draws."""

    def __init__(
        self, emulator: Emulator, reader: RedrawReader, now: float, style: AgentStyle = UNKNOWN
    ) -> None:
        self._emulator = emulator
        self._style = style
        self._reader = reader
        self._state = _State(
            moved_at=now, changed_at=now, looked_at=now - FRAME_GAP, resized_at=now
        )
        self._top: Mark = emulator.mark(0, 0)
        self._input = InputBox()

    # -- bytes ---------------------------------------------------------------------------------

    def draw(self, data: bytes, now: float) -> None:
        """Write bytes that do not switch between the screens."""
        at = 0
        while at < len(data):
            at += self._draw_some(data, at, now)

    def _draw_some(self, data: bytes, at: int, now: float) -> int:
        """Write up to the next moment at which a look may be due; return the number of bytes."""
        piece = slice_rows(data, at, self._emulator.cols)
        ends = _SYNC_ENDS.search(piece) if now >= self._state.looked_at + FRAME_GAP else None
        if ends:
            piece = piece[: ends.end()]
        elif (frame := piece.rfind(_SYNC_END)) >= 0:
            piece = piece[: frame + len(_SYNC_END)]  # a look in the middle of a frame may mislead
        elif self._state.sync_at is None and (begin := piece.find(_SYNC_BEGINS)) >= 0:
            if not begin and self.dirty:
                self._state.picture, _ = self._take_picture()
                self._state.picture_at = now
            piece = piece[:begin] or piece
        wipes = b"J" in piece or b"\x1bc" in piece  # few do: this is asked of every byte
        clears = _CLEARS.search(piece) if wipes else None
        if clears:
            piece, ends = piece[: clears.start()] or clears[0], None
        if clears and not clears.start():
            self._end_picture(now)
        self._emulator.feed(piece)
        self._follow(piece, now)
        if clears and not clears.start():
            self.begin_picture()
        if ends and self._state.dirty_at is not None:
            self.look(now)
        else:
            self._look_if_late(now)
        return len(piece)

    def _end_picture(self, now: float) -> None:
        """Look before the screen is wiped, unless it was just looked at."""
        soon = now < self._state.looked_at + FRAME_GAP
        drawn = self.dirty and self._state.changed_at > self._state.resized_at
        if drawn and not soon and self._state.sync_at is None:
            self.look(now)

    def begin_picture(self) -> None:
        """Leave to the picture that was wiped what of it has scrolled away."""
        self._state.dirty_at = None
        if not self._emulator.alt_screen:
            self.set_top(whole_line=False)
            self._reader.scrolled(ALL_ROWS)

    def _follow(self, piece: bytes, now: float) -> None:
        """Note what ``piece``, which was drawn, says of frames."""
        if not _ONLY_MODES.fullmatch(piece):
            self.touch(now)
        if _WIPES in piece:
            self._reader.wiped(now)
        if self._state.moved_at != now and _MOVES.search(piece):
            self._state.moved_at = now
        if not self._emulator.mode(SYNCHRONISED):
            self._state.sync_at = self._state.picture = None
            self._state.sync_seen = False
        elif self._state.sync_at is None or _SYNC_BEGINS in piece:
            self._state.sync_at = now

    def activity(self, kind: bytes) -> None:
        """Note that the person pressed keys: frames.TYPED, ENTERED or CLEARED."""
        self._state.typing = kind == frames.TYPED

    def moved(self, now: float) -> None:
        """Note that the cursor went up, or the screen was switched."""
        self._state.moved_at = now

    def switched(self, now: float) -> None:
        """Note that the other screen is shown."""
        self.moved(now)
        self.set_top()
        self._reader.scrolled(ALL_ROWS)
        self.touch(now)

    def touch(self, now: float) -> None:
        """Note that something was drawn."""
        self._state.changed_at = now
        if self._state.dirty_at is None:
            self._state.dirty_at = now

    def resized(self, now: float) -> None:
        """Note that the terminal has another size."""
        # What the reflow pushed off the screen was seen, and may be drawn again below.
        self.set_top(whole_line=False)
        self._state.resized_at = now
        self.touch(now)

    def clean(self) -> None:
        """Forget that something was drawn."""
        self._state.dirty_at = None

    # -- looks ---------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When the next look at the screen is due."""
        if self._state.dirty_at is None:
            return None
        if self._state.sync_at is not None and self._state.picture is not None:
            return max(self._state.picture_at + QUIET, self._state.looked_at + FRAME_GAP)
        if self._state.sync_at is not None:
            stalls = self._state.changed_at - self._state.sync_at < SYNC_LATEST
            latest = self._state.sync_at + (SYNC_STALLS if stalls else SYNC_LATEST)
            if self._state.sync_seen:
                latest = self._state.changed_at + QUIET
            return max(latest, self._state.looked_at + FRAME_LATEST)
        quiet = max(self._state.changed_at + QUIET, self._state.looked_at + FRAME_GAP)
        return min(quiet, self._state.dirty_at + FRAME_LATEST)

    @property
    def dirty(self) -> bool:
        """Whether anything was drawn since the last look."""
        return self._state.dirty_at is not None

    def rests(self, now: float) -> bool:
        """Whether nothing was painted for a while, and nothing on the screen is still awaited."""
        if self.dirty or self._reader.pending or self._emulator.alt_screen:
            return False
        return now - self._state.moved_at >= PAINTER_RESTS

    def _look_if_late(self, now: float) -> None:
        top = self._top.position()
        leaving = _LEAVING if self._state.sync_at is None else KEPT_ROWS
        if top is None or self._emulator.history_rows - top[1] > leaving:
            self._state.sync_seen = self._state.sync_at is not None
            self.look(now, leaving=True)
        elif self._state.sync_at is None and self._late(now):
            self.look(now)

    def _late(self, now: float) -> bool:
        return self._state.dirty_at is not None and now - self._state.dirty_at > FRAME_LATEST

    def look(self, now: float, *, settle: bool = False, leaving: bool = False) -> None:
        """Have the screen read. ``leaving``: rows are about to be lost."""
        self._state.dirty_at = self._state.picture = None
        self._state.looked_at = now
        self._state.sync_seen = self._state.sync_at is not None
        alt = self._emulator.alt_screen
        seen, first = self._take_picture()
        gone = 0
        if leaving and not alt:
            gone = self._lines_between(first, self._first_row())
        self._reader.look(seen, now, settle=settle, gone=gone)
        if not alt:
            self.set_top(block=leaving and self._reader.awaits)
            top = self._top.position()
            if top is not None and top[1] > first:
                self._reader.scrolled(self._lines_between(first, top[1]))

    def tick(self, now: float) -> None:
        """Look if a look is due."""
        due = self.deadline
        if due is not None and now >= due and not self._look_at_picture(now):
            self.look(now)

    def look_at_whole(self, now: float, *, settle: bool = False) -> None:
        """Look, but not at an update that is not complete: nobody has seen anything of it."""
        if self._state.sync_at is None or self._state.sync_seen:
            self.look(now, settle=settle)
            return
        self._look_at_picture(now)
        if settle:
            self._reader.settle_all(now)

    def _look_at_picture(self, now: float) -> bool:
        """Look at what was drawn before the update, if that was not looked at."""
        picture, self._state.picture = self._state.picture, None
        if picture is None or self._state.sync_at is None:
            return False
        self._state.looked_at = now
        self._reader.look(picture, now)
        return True

    def _take_picture(self) -> tuple[Snapshot, int]:
        """What a look would see now, and the first row of it."""
        emulator = self._emulator
        history = emulator.history_rows
        top = None if emulator.alt_screen else self._top.position()
        first = history if top is None else min(top[1], history)
        end = (emulator.cols - 1, emulator.total_rows - 1)
        cursor_row = history + emulator.cursor[1]
        if emulator.alt_screen and self._style.rows_apart:
            rows = emulator.text((0, first), end, unwrap=False).split("\n")
            above = cursor_row - first
        else:
            rows = emulator.text((0, first), end).split("\n")
            above = self._lines_between(first, emulator.line_start(cursor_row, first))
        shown = emulator.mode(CURSOR_SHOWN)
        if shown:
            self._input.forget()
        else:
            row = emulator.cursor[1]
            above = self._input.line(rows, above, row, emulator.cols, emulator.rows)
        rows = told_apart(emulator, rows, first, self._style)
        works = self._style.works
        at_work = works is not None and works(emulator.visible(), emulator.title)
        typing = shown and self._state.typing
        return Snapshot(rows, above, emulator.cols, typing, at_work), first

    def absorb(self, front: int | None, now: float) -> None:
        """Take what stands above row ``front`` for emitted, the person's own lines included."""
        emulator = self._emulator
        top = self._first_row()
        if front is not None and front > top:
            text = emulator.text((0, top), (emulator.cols - 1, front - 1))
            self._reader.absorb(Snapshot(text.split("\n"), -1, emulator.cols), now)
        self.set_top()

    def set_top(self, *, whole_line: bool = True, block: bool = False) -> None:
        """Take what stands above the screen for seen, but for a line that reaches into it.

        ``block``: and but for a block of text that does.
        """
        row = self._first_row() if whole_line else self._emulator.history_rows
        if block:
            row = self._block_start(row)
        self._top.close()
        self._top = self._emulator.mark(0, row)

    def _block_start(self, end: int) -> int:
        """The row where the block of text begins that reaches over row ``end``."""
        above = max(0, end - 2 * self._emulator.rows)
        if above >= end or not self._emulator.row_text(end - 1):
            return end
        text = self._emulator.text((0, above), (self._emulator.cols - 1, end - 1), unwrap=False)
        return end - 1 - text.rpartition("\n\n")[2].count("\n")

    def _first_row(self) -> int:
        top = self._emulator.history_rows
        return self._emulator.line_start(top, max(0, top - 2 * self._emulator.rows))

    def _lines_between(self, first: int, end: int) -> int:
        """How many logical lines stand in the rows from ``first`` to above ``end``."""
        blank = 0
        while end > first and not self._emulator.row_text(end - 1):
            end -= 1
            blank += 1
        if end <= first:
            return blank
        text = self._emulator.text((0, first), (self._emulator.cols - 1, end - 1))
        return blank + text.count("\n") + 1

    # -- checkpoint ----------------------------------------------------------------------------

    def save(self) -> Any:
        """Return the state as JSON values. A picture of more than 24 KiB is left out."""
        state = self._state
        return to_json(
            replace(
                state,
                picture=state.picture if size_of(state.picture) <= _PICTURE_KEPT else None,
                top=self._emulator.from_bottom(self._top),
                input=self._input.save(),
            )
        )

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from ``save``."""
        self._state = state = from_json(_State, saved)
        state.picture = Snapshot(*state.picture) if state.picture else None
        self._top = self._emulator.mark_from_bottom(state.top) or self._top
        self._input.load(state.input)


def told_apart(emulator: Emulator, rows: list[str], first: int, style: AgentStyle) -> list[str]:
    """Return ``rows`` with a backslash before each directive that is not drawn like plain text.

    What is faint is thinking, or the person's. One drawn as code or in bold has lost the marks
    around it, but not the style. That is only compared within it and with the words behind it,
    because colours are the theme's.

    The first of them begins at screen row ``first``; rows that the terminal wrapped are one.
    """
    if not any("@" in row for row in rows):
        return rows
    told: list[str] = []
    y = first
    for row in rows:
        told.append(_told(emulator, row, y, style))
        y += 1
        while y < emulator.total_rows and len(row) > emulator.cols and emulator.continues(y):
            y += 1
    return told


def _is_usual(style: Style) -> bool:
    return style.is_grey and not style.background


def _told(emulator: Emulator, row: str, y: int, known: AgentStyle) -> str:
    head = _HEAD.match(row)
    if head is None or head.end() >= emulator.cols:
        return row
    at = head.end()
    style = emulator.style(at, y)
    word = _WORD.match(row, at)
    if style.faint:
        return f"{row[:at]}\\{row[at:]}"
    end = min(word.end() + 1 if word else at, len(row), emulator.cols)
    others = (emulator.style(x, y) for x in range(at + 1, end) if row[x] != " ")
    code = known.styled and any(other[1:] != style[1:] for other in others)
    told = known.styled and (style.bold or (known.plain and not _is_usual(style)))
    return f"{row[:at]}\\{row[at:]}" if code or told else row
