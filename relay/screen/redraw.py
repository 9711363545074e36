"""Reads a program that draws: looks at its screen in, settled lines out.

``FrameScheduler`` decides when the screen is read, between the program's frames, and from which row
on. ``RedrawReader`` aligns each look with what was seen before (``relay.screen.alignment``). A new
row settles when it has not changed for a while, the end of the text, where an agent still streams,
later.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from relay.core.state import from_json, to_json
from relay.directive.grammar import Scanner, is_marked
from relay.protocol import frames
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.alignment import Entry, ScreenAlignment
from relay.screen.checkpoint import beginning, size_of
from relay.screen.emulator import Emulator, Mark, Style, slice_rows
from relay.screen.inputbox import CURSOR_SHOWN, InputBox
from relay.screen.line_events import LineEmitter, solid
from relay.screen.rows import (
    HIDDEN,
    HIDDEN_AGENT,
    SPOKEN,
    Breaking,
    Kind,
    Row,
    Snapshot,
    Unsettled,
    View,
    changed_at,
    fields_of,
    hidden,
    keep_beginning,
    keep_owners,
    lines_of,
    marks_of_work,
    may_be_emitted,
    paragraphs,
    place_of,
    read_rows,
    recall,
    stands_grown,
    unsettled,
)

# -- when it is looked at

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

# -- what is read then

#: A paragraph with more text below it settles after this many seconds without change.
SETTLE = 0.120
#: The last one settles after this much rest of the whole screen, or this much of its own.
SETTLE_QUIET, SETTLE_LAST = 0.300, 1.0
#: ... or after this much, while the cursor stands on it.
SETTLE_WRITTEN = 2.0
#: While the agent shows that it works, the last one does not settle at all: the model may only
#: pause. After this many seconds it is told that a message may be held back by that.
HELD_TOLD = 60.0
#: A mark that shows work in any program does so no longer when it has not changed for so long.
MARK_STANDS = 10.0
#: What keeps changing for this long (a clock, a spinner) no longer holds up what stands below.
RESTLESS = 2.0
#: For this long after a resize remains of the old size may stand about.
STALE = 2.0
#: More rows than a look shows.
ALL_ROWS = 1 << 30
#: Lines that were read without a look and are remembered.
_NOTED = 400
#: What a checkpoint keeps: this many rows seen last, in bytes, and of a line that has begun.
_SAVED_ROWS = 300
_KEPT_SIZE = 104 * 1024
_BEGUN_KEPT = 8 * 1024
#: What goes on with the text right above it, unless it has a mark of its own.
_GOES_ON = (Kind.AGENT, Kind.DRAFT)
#: What ends a block, however it is drawn.
CLOSING = ">>>"
#: What the person and the agent are told of a message that is held back.
HELD = (
    "the end of what the agent said has stood for a minute while its program shows that it works:"
    " a message there is sent when the program goes on below it or comes to rest"
)
HELD_AGENT = (
    "the message at the end of what you said is held back, because your program has shown for a"
    " minute that you go on with it. It is sent as soon as you say something else below it, behind"
    " a blank line, or your turn ends. Do not say it again"
)


@dataclass(slots=True)
class _Schedule:
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
        self._state = _Schedule(
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
        self._state = state = from_json(_Schedule, saved)
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


@dataclass(slots=True)
class _State:
    """What a checkpoint keeps beside the rows. Times are of the source's clock, in seconds."""

    #: The agent was asked something. What a known agent draws before was said in another session.
    started: bool
    #: It was told that a frame or a bar may hold a message.
    told_hidden: bool = False
    #: A message has begun outside of any.
    sent: bool = False
    #: Something was entered since the message that is open began.
    asked: bool = False
    #: When the screen was looked at, and when a look found a change.
    looked_at: float = 0.0
    changed_at: float = 0.0
    #: When the terminal got another size, and when the program wiped the scrollback.
    resized_at: float = -STALE
    wiped_at: float = -STALE
    #: So many rows of the last look will stand above the next.
    above: int = 0
    #: The program shows that the agent is at work: as its profile tells, or by a mark that shows
    #: that in any program, and when that last became another.
    works: bool = False
    mark: str = ""
    mark_at: float = 0.0
    #: It was told that the end of what was said is held back.
    told_held: bool = False
    #: A line of which the rest is still in view.
    begun: str = ""
    #: No blank line was emitted after the last line.
    open: bool = False
    #: A pause is due or past.
    resting: bool = True
    #: How the program breaks its lines.
    breaking: Breaking = field(default_factory=Breaking)
    #: The grammar's state: what the next line would stand in.
    grammar: dict[str, Any] = field(default_factory=dict)


class RedrawReader:
    """Emits the lines of a drawn screen into ``out``, each once."""

    def __init__(
        self, out: LineEmitter, namespaces: Collection[str], style: AgentStyle = UNKNOWN
    ) -> None:
        self._out = out
        self._namespaces = namespaces
        self._style = style
        self._alignment = ScreenAlignment()
        self._state = _State(started=not style.turns)
        #: Follows what is emitted and collects nothing: only its state is of use.
        self._scanner = Scanner(namespaces, body_max=0, drawn=True)
        #: Lines that were read without a look since the last one.
        self._noted: deque[str] = deque(maxlen=_NOTED)
        #: What was read without a look and stands at the top of the next one.
        self._absorbed: list[Entry] | None = None
        self._view: View = []
        self.deadline: float | None = None  # when something may settle
        #: The last row of the line that was emitted last.
        self._last: Entry | None = None

    def note(self, lines: list[str]) -> bool:
        """Remember lines that were emitted without a look; only the latest matter.

        Says whether the last of them belongs to a message that may go on.
        """
        self._noted.extend(lines)
        for line in lines:
            self._scanner.line(line)
        return self._scanner.inside == "message"

    def start(self) -> None:
        """Emit what is said from now on: the agent was asked something."""
        self._state.started = self._state.asked = True

    def wiped(self, now: float) -> None:
        """Note that the program has wiped the scrollback, and prints again what it held."""
        if self._style.reprints:
            self._state.wiped_at = now

    def scrolled(self, rows: int) -> None:
        """Note that the next look will not show the first ``rows`` of the last one."""
        self._state.above = rows
        self._absorbed = None

    def resized(self, now: float) -> None:
        """Note that the terminal has another size."""
        self._state.resized_at = now

    # -- looks ---------------------------------------------------------------------------------

    def look(self, snapshot: Snapshot, now: float, *, settle: bool = False, gone: int = 0) -> None:
        """Read the screen, which shows ``snapshot``. ``settle``: for the last time, so settle all.

        ``gone``: this many of its first rows have left the screen and settle now.
        """
        self._learn_noted(now)
        growing = self._growing()
        self._note_work(snapshot, now)
        rows = read_rows(snapshot, self._out.echo, self._style, self._state.breaking)
        self._tell_hidden(rows)
        keys = [row.key for row in rows]
        resized = now - self._state.resized_at < STALE
        before = self._view
        standing = self._standing()  # a resize moves all rows, once
        stood = standing if self._state.looked_at > self._state.resized_at else []
        anew, self._state.above = self._state.above == ALL_ROWS, 0
        aligned = self._alignment.align(
            keys, now, self._state.looked_at, resized=resized, stood=stood, anew=anew
        )
        self._view = list(zip(rows, aligned.entries, strict=True))
        keep_beginning(self._view, before)
        if (at := place_of(self._view, self._last)) >= 0:
            self._last = self._view[at][1]  # in other rows it is another entry
        self._state.looked_at = now
        if now - self._state.wiped_at < STALE:
            recall(self._view, self._last)
        keep_owners(self._view, gaps=self._style.call is not None)
        if aligned.changed or len(before) != len(self._view):
            self._state.changed_at = now
        if aligned.gone:
            self._put_gone(before, {id(entry) for entry in aligned.gone} - growing)
        if gone:
            above = [p for p in paragraphs(self._view) if p[-1][0].number < gone]
            fresh = {id(entry) for p in above for _, entry in p if not entry.emitted}
            self._put_gone(self._view, fresh)
        self._settle(now, everything=settle)

    def _growing(self) -> set[int]:
        """The entries at the end of the text that the program was still writing, by their id."""
        if not self._state.works:
            return set()
        last = [paragraph for paragraph, last, _ in unsettled(self._view) if last]
        return {id(entry) for paragraph in last for _, entry in paragraph}

    def _note_work(self, snapshot: Snapshot, now: float) -> None:
        mark = marks_of_work(snapshot, self._style)
        if mark != self._state.mark:
            self._state.mark, self._state.mark_at = mark, now
        self._state.works = snapshot.works
        self._state.started = self._state.started or snapshot.works or mark != ""

    def _tell_hidden(self, rows: list[Row]) -> None:
        """Tell once of a line that may be a message, in a frame or behind a bar."""
        if self._state.told_hidden or not self._style.panels:  # of known frames all is known
            return
        texts = (hidden(row, self._namespaces) for row in rows)
        if any(text and not self._out.echo.part_of_text(solid(text)) for text in texts):
            self._state.told_hidden = True
            self._out.degraded(HIDDEN, "" if self._state.sent else HIDDEN_AGENT)

    def _standing(self) -> list[Entry]:
        """What stands at the top of the screen if nothing was drawn there since the last look."""
        stood, self._absorbed = self._absorbed, None
        seen = (entry for row, entry in self._view if row.number >= self._state.above % ALL_ROWS)
        return [*seen] if stood is None else stood

    def absorb(self, snapshot: Snapshot, now: float) -> None:
        """Take all of ``snapshot``, which the screen shows, for emitted."""
        self._learn_noted(now)
        keys = [row.key for row in read_rows(snapshot, self._out.echo, self._style)]
        if not keys:  # the screen was wiped
            self.scrolled(ALL_ROWS)
            return
        aligned = self._alignment.align(keys, now, self._state.looked_at, stood=self._standing())
        self._absorbed = aligned.entries
        for entry in aligned.entries:
            entry.emitted = True

    def _learn_noted(self, now: float) -> None:
        if self._noted:
            self._alignment.add_emitted([solid(line) for line in self._noted], now)
            self._noted.clear()

    def _put_gone(self, view: View, which: set[int]) -> None:
        """Emit rows that left the screen before they settled: they cannot change any more."""
        gone: View = []
        gap = False
        for row, entry in view:
            if id(entry) in which:
                row.gap = row.gap or gap
                gone.append((row, entry))
                gap = False
            else:  # emitted already: only the last line is gone on with
                gap = (gap or row.gap) and not (self._last and entry.key == self._last.key)
        rest = False  # whether the first row in view is the rest of a line that has left in part
        if self._view and view is not self._view:
            row, entry = next((pair for pair in self._view if pair[0].is_rest), self._view[0])
            rest = row.kind is Kind.AGENT and row.joins is not None and not entry.emitted
        for paragraph in paragraphs(gone):
            if paragraph[0][0].kind in SPOKEN:
                self._put(paragraph, goes_on=rest and paragraph[-1] == gone[-1])

    # -- settling ------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether anything on the screen may still be emitted."""
        return any(may_be_emitted(row, entry) for row, entry in self._view)

    @property
    def changed_at(self) -> float:
        """When a look last found a change."""
        return self._state.changed_at

    def stop(self, now: float) -> bool:
        """Rest after the last message, whatever stands below; is the cursor's row emitted?"""
        if not self._state.resting:
            self._state.resting = True
            self._out.rest(now, plain=False)
        return any(row.written and entry.emitted for row, entry in self._view)

    @property
    def awaits(self) -> bool:
        """Whether a message is open, or a row that is not emitted yet may begin one."""
        fresh = (row for row, entry in self._view if may_be_emitted(row, entry))
        return self._scanner.open or any(is_marked(row.text) for row in fresh)

    def _next_settling(self, waiting: list[Unsettled]) -> float | None:
        times: list[float] = []
        blocked = 0.0
        for paragraph, last, born in waiting:
            due = self._due(paragraph, last)
            times.append(max(due, blocked))
            blocked = max(blocked, min(due, born + RESTLESS))
        if not self._state.told_held:
            times.append(self._held_until(waiting))
        due = min(times, default=math.inf)
        return due if due < math.inf else None

    def _held_until(self, waiting: list[Unsettled]) -> float:
        """When it is time to tell that a message at the end of the text is held back."""
        for paragraph, last, _ in waiting:
            row = paragraph[0][0]
            if last and row.kind is Kind.AGENT and self._state.started:
                begins = any(f"@{name}:" in row.text for name in self._namespaces)
                if begins or self._scanner.inside == "message":
                    return changed_at(paragraph) + HELD_TOLD
        return math.inf

    def tick(self, now: float) -> None:
        """Settle what has rested for long enough."""
        if self.deadline is not None and now >= self.deadline:
            self._settle(now)

    def settle_all(self, now: float) -> None:
        """Settle what was seen last: there will be no further look."""
        self._settle(now, everything=True)

    def _due(self, paragraph: View, last: bool) -> float:
        changed = changed_at(paragraph)
        if not last:
            return changed + SETTLE + self._style.restyles
        if paragraph[0][0].kind is Kind.AGENT:
            if self._state.works:
                return math.inf
            if self._state.mark:  # it may as well stand there for good
                return max(changed + SETTLE_LAST, self._state.mark_at + MARK_STANDS)
        if paragraph[-1][0].written:  # a known agent's is in its input line when it is at rest
            return changed + (SETTLE_WRITTEN if self._style is UNKNOWN else MARK_STANDS)
        return min(max(changed, self._state.changed_at) + SETTLE_QUIET, changed + SETTLE_LAST)

    def _settle(self, now: float, *, everything: bool = False) -> None:
        waiting = unsettled(self._view)
        changed = False
        for paragraph, last, born in waiting:
            if not everything and now < self._due(paragraph, last):
                # In order: what stands below waits too, unless this never comes to rest.
                if now < born + RESTLESS:
                    break
                continue
            resized = now - self._state.resized_at <= STALE
            if resized and self._style.tail and stands_grown(self._view, paragraph[-1]):
                for _, entry in paragraph:
                    entry.emitted = True
            else:
                self._put(paragraph)
            changed = True
        if self._state.begun and not unsettled(self._view):
            self._put_begun()
        if not self._state.resting:
            self._close(now)
        waiting = unsettled(self._view) if changed else waiting
        if not self._state.told_held and now >= self._held_until(waiting):
            self._state.told_held = True
            self._out.degraded(HELD, HELD_AGENT)
        self.deadline = self._next_settling(waiting)

    def _close(self, now: float) -> None:
        """End the message after settling if its block of text is over."""
        below = [row for row, _ in self._view[place_of(self._view, self._last) + 1 :]]
        if below and below[0].kind in _GOES_ON and not below[0].gap and not below[0].marked:
            return  # the block goes on, its next rows have not settled
        # A block may end with a mark that is not drawn, when nothing is said after it.
        if below and below[0].finished and below[0].blanks > 1 and self._in_block:
            self._speak(CLOSING)
        elif any(row.kind is Kind.AGENT for row in below):
            self._speak("")
            self._state.open = False
        self._state.resting = True
        self._out.rest(now, plain=True)

    def _put(self, paragraph: View, *, goes_on: bool = False) -> None:
        fresh = [row for row, entry in paragraph if not entry.emitted]
        for _, entry in paragraph:
            entry.emitted = True
        if not fresh:
            return
        if fresh[0].kind is Kind.PERSON or fresh[0].joins is None:
            self._put_begun()
        asked = self._style.turns or self._state.asked
        # Where nobody has entered anything since the block began, ``>`` is a quotation in it.
        quoted = self._in_block and not asked and fresh[0].text.lstrip()[:1] == ">"
        if fresh[0].kind is Kind.PERSON and not quoted:
            if asked and self._scanner.inside:  # what was being said is over
                self._scanner.end()
                self._out.end()
            if len("".join(row.key for row in fresh)) > 1:  # more than an empty prompt
                self._out.proof("\n".join(row.text for row in fresh))
            return
        if self._state.started and self._state.resting and self._goes_on(fresh[0]):
            self._out.goes_on(next(lines_of(fresh)))
        begun, self._state.begun = self._state.begun, ""
        if begun:
            pass  # these rows are the rest of a line
        elif self._style.blank_closing and fresh[0].blanks > 1 and self._in_block:
            self._speak(CLOSING)
        elif self._state.open and fresh[0].gap:
            self._speak("")
        if fresh[0].closing and self._in_block:
            self._speak(CLOSING)
            fresh = fresh[1:]
        lines = [*lines_of(fresh, begun)] if self._state.started else []
        if goes_on and lines:
            self._state.begun = lines.pop()
        for line in lines:
            self._speak(line)
        self._last = paragraph[-1][1]
        self._state.told_held = False
        self._state.open = True
        self._state.resting = False

    def _goes_on(self, row: Row) -> bool:
        """Whether ``row`` goes on with what was emitted last: right below it, or grown of it."""
        at = place_of(self._view, self._last)
        if at < 0:
            return self._last is not None and row.key.startswith(self._last.key)
        below = self._view[at + 1][0] if at + 1 < len(self._view) else None
        return below is row and not row.gap and not row.marked

    def _speak(self, text: str) -> None:
        self._out.speak(text)
        self._state.asked = self._state.asked and bool(self._scanner.inside)
        self._scanner.line(text)
        self._state.sent = self._state.sent or self._scanner.open

    @property
    def _in_block(self) -> bool:
        """Whether what comes next belongs to a message that ends at ``>>>`` only."""
        return self._scanner.inside == "block"

    def _put_begun(self) -> None:
        """Emit a line that has left in part, of which the rest does not come."""
        if self._state.begun:
            self._speak(self._state.begun)
            self._state.begun = ""

    # -- checkpoint ----------------------------------------------------------------------------

    def save(self, now: float) -> dict[str, Any]:
        """Return the state as JSON values, with the latest rows, at most 104 KiB of them."""
        self._learn_noted(now)
        visible = {id(entry): fields_of(row) for row, entry in self._view}
        seen: list[dict[str, Any]] = []
        room = _KEPT_SIZE
        for entry in reversed(self._alignment.entries[-_SAVED_ROWS:]):
            row = visible.get(id(entry))
            kept = {"entry": fields_of(entry), "row": row, "last": entry is self._last}
            if (room := room - size_of(kept)) < 0:
                break
            seen.append(kept)
        begun = beginning(self._state.begun, _BEGUN_KEPT)
        above = self._state.above if self._absorbed is None else ALL_ROWS
        state = replace(self._state, begun=begun, above=above, grammar=self._scanner.state())
        return {**to_json(state), "seen": seen[::-1]}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from ``save``."""
        for kept in saved.pop("seen"):
            entry = from_json(Entry, kept["entry"])
            self._alignment.entries.append(entry)
            if kept["row"]:
                self._view.append((from_json(Row, kept["row"]), entry))
            self._last = entry if kept["last"] else self._last
        self._state = from_json(_State, saved)
        self._scanner.restore(self._state.grammar)
        self.deadline = self._next_settling(unsettled(self._view))
