"""When a program that draws is looked at, and from which row on.

Between its frames the screen is read and given to ``relay.screen.redraw_reader``, which aligns it
with what was seen. Under a flood rows that hold nothing of matter leave without such a look.
"""

from __future__ import annotations

import re
from typing import Any

from relay.screen import flood
from relay.screen.agent_styles import UNKNOWN, Dialect
from relay.screen.emulator import Emulator, Mark
from relay.screen.encoded import size_of
from relay.screen.inputbox import CURSOR_SHOWN, InputBox
from relay.screen.line_events import LEAVING_COSTS, LineEmitter
from relay.screen.redraw_reader import RedrawReader
from relay.screen.rows import Snapshot, begins_part
from relay.screen.slices import slice_rows
from relay.screen.styles import told_apart

#: Frames are looked at no oftener than this, after this much quiet, and at least this often.
FRAME_GAP = 0.030
QUIET = 0.030
FRAME_LATEST = 0.250
SYNC_LATEST = 1.0
#: An update in which nothing more is drawn was torn off, and may still be gone on with.
SYNC_STALLS = 5.0
#: A painter that has moved the cursor up for the last time this long ago is a line program again.
PAINTER_RESTS = 1.0
SYNCHRONISED = 2026

#: So many rows that have left the screen can be read beside those of one slice.
KEPT_ROWS = 600
_PICTURE_KEPT = 24 * 1024

# Rows that leave the screen are looked at together, in a flood fewer while a message is awaited.
_LEAVING = 400
_LEAVING_IN_FLOOD = 64
# In a flood so many screens of plain lines are drawn at least, and less than this is not sifted.
_SCREENS_KEPT = 4
_SIFTED = 16 * 1024

_MOVES = re.compile(rb"\x1b(?:\[[0-9;]*+[AEFHJLMSTdfru]|\[\?(?:[0-9]+;)*+2026|[M8c])")
_SYNC_BEGINS = b"\x1b[?2026h"
_SYNC_END = b"\x1b[?2026l"
_SYNC_ENDS = re.compile(rb"\x1b\[\?(?:[0-9;]*;)?2026(?:;[0-9;]*)?l")
_ONLY_MODES = re.compile(rb"(?:\x1b\[\?[0-9;]*+[hl])*+")
_WIPES = b"\x1b[3J"  # the scrollback too: all that was said is printed again


class FrameScheduler:
    """The screen of a program that draws."""

    def __init__(
        self, emulator: Emulator, out: LineEmitter, now: float, dialect: Dialect = UNKNOWN
    ) -> None:
        self._emulator = emulator
        self._out = out
        self._dialect = dialect
        self.painter = RedrawReader(out, dialect)
        self._moved_at = now
        self._dirty_since: float | None = None
        self._changed_at = now
        self._looked_at = now - FRAME_GAP
        self._top: Mark = emulator.mark(0, 0)
        self._known = 0  # so many rows from there on were left out of a flood
        self._sync_since: float | None = None
        # What was drawn before the update, unless it was looked at, and when.
        self._picture: Snapshot | None = None
        self._picture_at = now
        self._sync_seen = False  # the update was too long to wait for its end
        self._pace = flood.FloodPace()
        self._input = InputBox()

    # -- bytes ---------------------------------------------------------------------------------

    def draw(self, data: bytes, now: float) -> None:
        """Bytes that do not switch between the screens."""
        at = 0
        while at < len(data):
            at += self._pass_over(data, at, now) or self._draw_some(data, at, now)

    def _draw_some(self, data: bytes, at: int, now: float) -> int:
        """Draw up to the next moment at which a look may be due; how many bytes that were."""
        piece = slice_rows(data, at, self._emulator.cols)
        ends = _SYNC_ENDS.search(piece) if now >= self._looked_at + FRAME_GAP else None
        if ends:
            piece = piece[: ends.end()]
        elif (frame := piece.rfind(_SYNC_END)) >= 0:
            piece = piece[: frame + len(_SYNC_END)]  # a look in the middle of a frame may mislead
        elif self._sync_since is None and (begin := piece.find(_SYNC_BEGINS)) >= 0:
            if not begin and self.dirty:
                self._picture, _ = self._take_picture()
                self._picture_at = now
            piece = piece[:begin] or piece
        self._emulator.feed(piece)
        self._follow(piece, now)
        if ends and self._dirty_since is not None:
            self.look(now)
        else:
            self._look_if_late(now)
        return len(piece)

    def _follow(self, piece: bytes, now: float) -> None:
        """Note what ``piece``, which was drawn, says of frames."""
        if not _ONLY_MODES.fullmatch(piece):
            self.touch(now)
        if _WIPES in piece:
            self.painter.wiped(now)
        if self._moved_at != now and _MOVES.search(piece):
            self._moved_at = now
        if not self._emulator.mode(SYNCHRONISED):
            self._sync_since = self._picture = None
            self._sync_seen = False
        elif self._sync_since is None or _SYNC_BEGINS in piece:
            self._sync_since = now

    def moved(self, now: float) -> None:
        """The cursor went up, or the screen was switched."""
        self._moved_at = now

    def touch(self, now: float) -> None:
        """Something was drawn."""
        self._changed_at = now
        if self._dirty_since is None:
            self._dirty_since = now

    def clean(self) -> None:
        """What was drawn is of no interest."""
        self._dirty_since = None

    # -- floods --------------------------------------------------------------------------------

    def _pass_over(self, data: bytes, at: int, now: float) -> int:
        """How many bytes from ``at`` on are plain lines of a flood, of which the last are drawn."""
        if len(data) - at < _SIFTED or not self._floods(now) or self._emulator.alt_screen:
            return 0
        first = data.find(b"\n", at) + 1  # the end of a line of which not all is known
        end = self._pace.sifted(data, at)
        size = self._out.clean(data[first:end]) if at < first < end else 0
        self._pace.passed(size)
        last = flood.last_lines(data[first : first + size], _SCREENS_KEPT * self._emulator.rows)
        if last is None:
            return 0
        self._emulator.feed(data[at:first])
        shown = self._text_from_top(self._emulator.total_rows)
        if self._out.awaited(shown) is not None:
            self._follow(data[at:first], now)
            return first - at
        self._emulator.feed(last[0])
        self._follow(last[0], now)
        end = self._first_row()
        self.painter.leave_out(shown.split("\n"))
        self._leave_out(max(0, end - self._emulator.rows), end, last[1], now)
        return first + size - at

    def _floods(self, now: float) -> bool:
        """Whether rows without matter need not be looked at, and no other waits for its end."""
        return self._out.flooded(now) and not self.painter.awaits()

    def _leaves_unseen(self, now: float) -> bool:
        """In a flood: whether all that has left the screen was dealt with, because it is nothing.

        Else what stands above the part in which there is something is left out.
        """
        top = self._top.position()
        if not self._floods(now):
            return False
        end = self._first_row()
        if top is None:
            self._known = 0
            self._leave_out(end, end, 0, now)
            return True
        rows = self._text_from_top(end)
        place = self._out.awaited(rows)
        if place is None:
            self._leave_out(top[1] + self._known, end, 0, now)
            return True
        texts = rows.split("\n")
        matters = rows.count("\n", 0, place)
        part = next(
            (n for n in range(matters, self._known, -1) if begins_part(texts[n], self._dialect)), 0
        )
        if part:
            end = self._emulator.line_start(top[1] + part)
            self._leave_out(top[1] + self._known, end, 0, now)
        return False

    def _leave_out(self, start: int, end: int, more: int, now: float) -> None:
        """The rows from ``start`` to above ``end`` and so many more are dealt with, unheard.

        Of them as many as a screen has are seen with what follows: they tell where it belongs.
        """
        emulator = self._emulator
        if start < end:
            text = emulator.text((0, start), (emulator.cols - 1, end - 1))
            self.painter.leave_out(text.split("\n"))
        size = max(0, end - start)
        self._out.skip(now, size + more)
        self._known = min(emulator.rows, self._known + size)
        self._top.close()
        self._top = emulator.mark(0, end - self._known)

    def _text_from_top(self, end: int) -> str:
        """The rows that were not dealt with, one by one, up to above row ``end``."""
        top = self._top.position()
        if top is None or top[1] >= end:
            return ""
        return self._emulator.text((0, top[1]), (self._emulator.cols - 1, end - 1), unwrap=False)

    # -- looks ---------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When the next look at the screen is due."""
        if self._dirty_since is None:
            return None
        if self._sync_since is not None and self._picture is not None:
            return max(self._picture_at + QUIET, self._looked_at + FRAME_GAP)
        if self._sync_since is not None:
            stalls = self._changed_at - self._sync_since < SYNC_LATEST
            latest = self._sync_since + (SYNC_STALLS if stalls else SYNC_LATEST)
            if self._sync_seen:
                latest = self._changed_at + QUIET
            return max(latest, self._looked_at + FRAME_LATEST)
        quiet = max(self._changed_at + QUIET, self._looked_at + FRAME_GAP)
        return min(quiet, self._dirty_since + FRAME_LATEST)

    @property
    def dirty(self) -> bool:
        """Whether anything was drawn since the last look."""
        return self._dirty_since is not None

    def rests(self, now: float) -> bool:
        """Whether nothing was painted for a while, and nothing on the screen is still awaited."""
        if self.dirty or self.painter.pending or self._emulator.alt_screen:
            return False
        return now - self._moved_at >= PAINTER_RESTS

    def _look_if_late(self, now: float) -> None:
        top = self._top.position()
        leaving = _LEAVING
        if self._sync_since is not None:
            leaving = KEPT_ROWS
        elif self._out.pressed(now):
            leaving = _LEAVING_IN_FLOOD
        if top is None or self._emulator.history_rows - top[1] > leaving:
            self._sync_seen = self._sync_since is not None
            if not self._leaves_unseen(now):
                self.look(now, leaving=True)
        elif self._sync_since is None and self._late(now):
            self.look(now)

    def _late(self, now: float) -> bool:
        return self._dirty_since is not None and now - self._dirty_since > FRAME_LATEST

    def look(self, now: float, *, settle: bool = False, leaving: bool = False) -> None:
        """Compare the screen with what was heard; ``leaving``: now, or it is never seen."""
        self._dirty_since = self._picture = None
        self._looked_at = now
        self._sync_seen = self._sync_since is not None
        alt = self._emulator.alt_screen
        seen, first = self._take_picture()
        self._out.spend(len(seen.rows) * (LEAVING_COSTS if leaving else 1.0))
        gone = 0
        if leaving and not alt:
            gone = self._lines_between(first, self._first_row())
        self.painter.look(seen, now, settle=settle, gone=gone)
        if not alt:
            self.set_top(block=leaving or self._out.pressed(now))

    def tick(self, now: float) -> None:
        """Look if a look is due."""
        due = self.deadline
        if due is not None and now >= due and not self._look_at_picture(now):
            self.look(now)

    def look_at_whole(self, now: float, *, settle: bool = False) -> None:
        """As ``look``; but of an update that is not complete nobody has seen anything."""
        if self._sync_since is None or self._sync_seen:
            self.look(now, settle=settle)
            return
        self._look_at_picture(now)
        if settle:
            self.painter.settle_all(now)

    def _look_at_picture(self, now: float) -> bool:
        """Look at what was drawn before the update, if that was not looked at."""
        picture, self._picture = self._picture, None
        if picture is None or self._sync_since is None:
            return False
        self._looked_at = now
        self._out.spend(len(picture.rows))
        self.painter.look(picture, now)
        return True

    def _take_picture(self) -> tuple[Snapshot, int]:
        """What a look would see now, and the first row of it."""
        emulator = self._emulator
        history = emulator.history_rows
        top = None if emulator.alt_screen else self._top.position()
        first = history if top is None else min(top[1], history)
        end = (emulator.cols - 1, emulator.total_rows - 1)
        cursor_row = history + emulator.cursor[1]
        if emulator.alt_screen and self._dialect.rows_apart:
            rows = emulator.text((0, first), end, unwrap=False).split("\n")
            above = cursor_row - first
        else:
            rows = emulator.text((0, first), end).split("\n")
            above = self._lines_between(first, emulator.line_start(cursor_row, first))
        if emulator.mode(CURSOR_SHOWN):
            self._input.forget()
        else:
            row = emulator.cursor[1]
            above = self._input.line(rows, above, row, emulator.cols, emulator.rows)
        rows = told_apart(emulator, rows, first, self._dialect)
        return Snapshot(rows, above, emulator.cols), first

    def absorb(self, front: int | None, now: float) -> None:
        """All that stands above row ``front`` was dealt with, the person's own lines included."""
        emulator = self._emulator
        top = emulator.history_rows
        if front is not None and front > top:
            text = emulator.text((0, top), (emulator.cols - 1, front - 1))
            self.painter.absorb(Snapshot(text.split("\n"), -1, emulator.cols), now)
        self.set_top()

    def set_top(self, *, whole_line: bool = True, block: bool = False) -> None:
        """What stands above the screen was seen, but for a line that reaches into it.

        ``block``: and but for a message that does.
        """
        row = self._first_row() if whole_line else self._emulator.history_rows
        if block and (self._out.open or self.painter.awaits()):
            row = self._block_start(row)
        self._known = 0
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
        if end == first:
            return blank
        text = self._emulator.text((0, first), (self._emulator.cols - 1, end - 1))
        return blank + text.count("\n") + 1

    # -- checkpoint ----------------------------------------------------------------------------

    def state(self, now: float) -> dict[str, Any]:
        """As JSON; times become distances from ``now``. A picture beyond 24 KiB is left out."""
        picture = self._picture if size_of(self._picture) <= _PICTURE_KEPT else None
        return {
            "picture": picture,
            "picture_in": self._picture_at - now,
            "sync_seen": self._sync_seen,
            "input": self._input.state(),
            "top": self._emulator.from_bottom(self._top),
            "known": self._known,
            "moved_in": self._moved_at - now,
            "dirty_in": None if self._dirty_since is None else self._dirty_since - now,
            "changed_in": self._changed_at - now,
            "looked_in": self._looked_at - now,
            "sync_in": None if self._sync_since is None else self._sync_since - now,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        self._top = self._emulator.mark_from_bottom(state["top"]) or self._top
        self._known = state["known"]
        self._picture = Snapshot(*state["picture"]) if state["picture"] else None
        self._picture_at = now + state["picture_in"]
        self._sync_seen = state["sync_seen"]
        self._input.load(state["input"])
        self._moved_at = now + state["moved_in"]
        self._dirty_since = None if state["dirty_in"] is None else now + state["dirty_in"]
        self._changed_at = now + state["changed_in"]
        self._looked_at = now + state["looked_in"]
        self._sync_since = None if state["sync_in"] is None else now + state["sync_in"]
