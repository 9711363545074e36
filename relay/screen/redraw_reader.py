"""Reads a program that draws: looks at its screen in, settled lines out. Pure.

Every look is aligned with what was seen before (``relay.screen.alignment``). A new row settles
when it has not changed for a while, the end of the text, where an agent still streams, later.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from relay.core.state import from_json, to_json
from relay.directive.grammar import Scanner, is_marked
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.alignment import Entry, ScreenAlignment
from relay.screen.checkpoint import beginning, size_of
from relay.screen.line_events import LineEmitter, solid
from relay.screen.paragraphs import (
    HIDDEN,
    HIDDEN_AGENT,
    SPOKEN,
    Unsettled,
    View,
    changed_at,
    fields_of,
    hidden,
    keep_beginning,
    keep_owners,
    lines_of,
    may_be_emitted,
    paragraphs,
    place_of,
    recall,
    stands_grown,
    unsettled,
)
from relay.screen.rows import Breaking, Kind, Row, Snapshot, marks_of_work, read_rows

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
_KEPT_ROWS = 300
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
            self._put_gone(before, {id(entry) for entry in aligned.gone})
        if gone:
            above = [p for p in paragraphs(self._view) if p[-1][0].number < gone]
            fresh = {id(entry) for p in above for _, entry in p if not entry.emitted}
            self._put_gone(self._view, fresh)
        self._settle(now, everything=settle)

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
        for entry in reversed(self._alignment.entries[-_KEPT_ROWS:]):
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
        self._scanner = Scanner.from_state(
            self._state.grammar, self._namespaces, body_max=0, drawn=True
        )
        self.deadline = self._next_settling(unsettled(self._view))
