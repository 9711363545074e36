"""Hearing a program that draws: looks at its screen in, settled lines out.

Every look is aligned with the transcript of what was seen (``transcript``). A row that is new is
pending; it settles when it has not changed for a while, and the end of the text, where an agent
still streams, only when it has rested longer. Rows that were wrapped are joined into one line.
"""

from __future__ import annotations

from typing import Any

from relay.screen.agent_styles import UNKNOWN, Dialect
from relay.screen.alignment import Entry, ScreenAlignment
from relay.screen.encoded import beginning, size_of
from relay.screen.line_events import LineEmitter, solid
from relay.screen.paragraphs import HEARD, first_born, keep_owners, may_be_heard, paragraphs
from relay.screen.rows import Kind, Row, Snapshot, looks_busy, read_rows

#: A paragraph with more text below it settles after this many seconds without change.
SETTLE = 0.120
#: The last one settles after this much rest of the whole screen, or this much of its own.
SETTLE_QUIET = 0.300
SETTLE_LAST = 1.0
#: ... or after this much, while the program says that the agent is at work.
SETTLE_BUSY = 2.0
#: What keeps changing for this long (a clock, a spinner) no longer holds up what stands below.
RESTLESS = 2.0
#: For so long after a resize remains of the old size may stand about.
STALE = 2.0
_NOTED = 400
_KEPT_ROWS = 300
_KEPT_SIZE = 104 * 1024
_BEGUN_KEPT = 8 * 1024
#: What ends a block, however it is drawn.
CLOSING = ">>>"


#: A paragraph, whether it is the last text, and when its first row came.
_Waiting = tuple[list[tuple[Row, Entry]], bool, float]


class RedrawReader:
    """Puts the lines of a painted screen into ``out``, each once."""

    def __init__(self, out: LineEmitter, dialect: Dialect = UNKNOWN) -> None:
        self._out = out
        self._dialect = dialect
        self._transcript = ScreenAlignment()
        self._noted: list[str] = []
        self._view: list[tuple[Row, Entry]] = []
        self._looked_at = 0.0
        self._changed_at = 0.0
        self._deadline: float | None = None
        self._patient = False
        # What a known agent draws before anybody has asked it anything was said in another session.
        self._started = not dialect.turns
        self._begun = ""  # a line of which the rest is still in view
        self._resized_at = self._wiped_at = -STALE
        self._last: Entry | None = None  # of the line that was put out last
        self._open = False  # no blank line was put out after the last line
        self._resting = True  # ... and a pause is due or past
        self._matter: list[Entry] | None = None  # the rows in view that may matter, once looked for

    def note(self, lines: list[str]) -> None:
        """Lines that were heard without a look; only the latest matter."""
        self._noted += lines[-_NOTED:]
        if len(self._noted) > 4 * _NOTED:
            del self._noted[:-_NOTED]

    def start(self) -> None:
        """The agent was asked something: what it says from now on is news."""
        self._started = True

    def wiped(self, now: float) -> None:
        """The program has wiped the scrollback, and prints again what it held."""
        if self._dialect.reprints:
            self._wiped_at = now

    def resized(self, now: float) -> None:
        """The terminal has another size."""
        self._resized_at = now

    def leave_out(self, rows: list[str]) -> None:
        """In a flood: ``rows`` have left and are not heard; nothing that was in view matters."""
        self.note(rows)
        self._view = []
        self._matter = None
        self._deadline = None

    def awaits(self) -> bool:
        """Whether something in view that may matter is not heard yet."""
        if self._matter is None:
            self._matter = [
                entry
                for row, entry in self._view
                if may_be_heard(row, entry) and self._out.awaited(row.text) is not None
            ]
        return any(not entry.heard for entry in self._matter)

    # -- looks ---------------------------------------------------------------------------------

    def look(self, snapshot: Snapshot, now: float, *, settle: bool = False, gone: int = 0) -> None:
        """The screen shows ``snapshot``. ``settle``: it will not be seen again, settle all.

        ``gone``: so many of its rows have left the screen and settle now.
        """
        self._learn_noted(now)
        self._patient = self._dialect.turns and looks_busy(snapshot, self._dialect)
        self._started = self._started or self._patient
        rows = read_rows(snapshot, self._out.echo.part_of_text, self._dialect)
        keys = [row.key for row in rows]
        resized = now - self._resized_at < STALE
        aligned = self._transcript.align(keys, now, self._looked_at, resized=resized)
        before = self._view
        self._view = list(zip(rows, aligned.entries, strict=True))
        self._keep_beginning(before)
        self._matter = None
        self._looked_at = now
        if now - self._wiped_at < STALE:
            self._recall()
        keep_owners(self._view, gaps=self._dialect.call is not None)
        if aligned.changed or len(before) != len(self._view):
            self._changed_at = now
        if aligned.scrolled:
            self._put_gone(before, {id(entry) for entry in aligned.scrolled})
        if gone:
            above = [p for p in paragraphs(self._view) if p[-1][0].number < gone]
            fresh = {id(entry) for p in above for _, entry in p if not entry.heard}
            self._put_gone(self._view, fresh)
        self._settle(now, everything=settle)

    def _recall(self) -> None:
        """What is printed again above what was heard last has been heard too."""
        at = max((n for n, (_, entry) in enumerate(self._view) if entry is self._last), default=0)
        for row, entry in self._view[:at]:
            if row.kind in HEARD:
                entry.heard = True

    def _keep_beginning(self, before: list[tuple[Row, Entry]]) -> None:
        """What stood above the first row has scrolled away: it goes on whatever it went on."""
        if self._view:
            first, entry = self._view[0]
            was = next((row for row, old in before if old is entry), first)
            first.gap, first.joins = was.gap, was.joins

    def absorb(self, snapshot: Snapshot, now: float) -> None:
        """The screen shows ``snapshot``, and nothing of it is to be heard any more."""
        self._learn_noted(now)
        keys = [row.key for row in read_rows(snapshot, self._out.echo.part_of_text, self._dialect)]
        for entry in self._transcript.align(keys, now, self._looked_at).entries:
            entry.heard = True

    def _learn_noted(self, now: float) -> None:
        if self._noted:
            self._transcript.add_heard([solid(line) for line in self._noted[-_NOTED:]], now)
            self._noted = []

    def _put_gone(self, view: list[tuple[Row, Entry]], which: set[int]) -> None:
        """Rows that left the screen before they settled: they cannot change any more."""
        gone: list[tuple[Row, Entry]] = []
        gap = False
        for row, entry in view:
            if id(entry) in which:
                row.gap = row.gap or gap
                gone.append((row, entry))
                gap = False
            else:  # heard already: only what was put out last is gone on with
                gap = (gap or row.gap) and not self._is_last(entry)
        below = self._view[0] if self._view and view is not self._view else None
        for paragraph in paragraphs(gone):
            if paragraph[0][0].kind in HEARD:
                goes_on = paragraph[-1] == gone[-1] and below is not None and self._goes_on(*below)
                self._put(paragraph, goes_on=goes_on)

    def _goes_on(self, row: Row, entry: Entry) -> bool:
        """Whether the first row in view is the rest of a line that has left in part."""
        return row.kind is Kind.AGENT and row.joins is not None and not entry.heard

    def _is_last(self, entry: Entry) -> bool:
        return self._last is not None and entry.key == self._last.key

    # -- settling ------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether anything on the screen may still be heard."""
        return any(may_be_heard(row, entry) for row, entry in self._view)

    @property
    def deadline(self) -> float | None:
        """When something may settle, or None."""
        return self._deadline

    def _next_settling(self, waiting: list[_Waiting]) -> float | None:
        earliest: float | None = None
        blocked = 0.0
        for paragraph, last, born in waiting:
            due = self._due(paragraph, last)
            when = max(due, blocked)
            earliest = when if earliest is None else min(earliest, when)
            blocked = max(blocked, min(due, born + RESTLESS))
        return earliest

    def tick(self, now: float) -> None:
        """Settle what has rested for long enough."""
        if self._deadline is not None and now >= self._deadline:
            self._settle(now)

    def settle_all(self, now: float) -> None:
        """Nothing will be seen any more: settle what was seen last."""
        self._settle(now, everything=True)

    def _waiting(self) -> list[_Waiting]:
        """The paragraphs that are not heard yet, from the top."""
        latest = -1.0  # when the youngest text below came: a footer does not end the text above it
        found: list[_Waiting] = []
        partial = False
        for paragraph in reversed(list(paragraphs(self._view))):
            kind = paragraph[0][0].kind
            if kind not in HEARD:
                partial = False
                continue
            born = first_born(paragraph)
            last = born > latest
            if any(not entry.heard for _, entry in paragraph):
                found.append((paragraph, last or partial, born))
            # A word that is still being written may turn out to have been wrapped, and some
            # programs show the end of what they have got below what they have drawn so far.
            partial = last and len(paragraph) == 1 and paragraph[0][0].partial
            if kind is Kind.AGENT and born > latest:
                latest = born
        return found[::-1]

    def _due(self, paragraph: list[tuple[Row, Entry]], last: bool) -> float:
        changed = max(entry.changed for _, entry in paragraph)
        if not last:
            return changed + SETTLE + self._dialect.restyles
        if self._patient:
            return changed + SETTLE_BUSY
        return min(max(changed, self._changed_at) + SETTLE_QUIET, changed + SETTLE_LAST)

    def _settle(self, now: float, *, everything: bool = False) -> None:
        waiting = self._waiting()
        changed = False
        for paragraph, last, born in waiting:
            if not everything and now < self._due(paragraph, last):
                # In order: what stands below waits too, unless this never comes to rest.
                if now < born + RESTLESS:
                    break
                continue
            if self._is_stale(paragraph, now):
                for _, entry in paragraph:
                    entry.heard = True
            else:
                self._put(paragraph)
            changed = True
        if self._begun and not self._waiting():
            self._put_begun()
        if not self._resting:
            self._close(now)
        self._deadline = self._next_settling(self._waiting() if changed else waiting)

    def _is_stale(self, paragraph: list[tuple[Row, Entry]], now: float) -> bool:
        """Whether a resize has left behind how a line looked that stands, grown, further down."""
        if not self._dialect.tail or now - self._resized_at > STALE:
            return False
        row, entry = paragraph[-1]
        at = next((n for n, (_, other) in enumerate(self._view) if other is entry), 0)
        below = (other.key for _, other in self._view[at + 1 :])
        return any(key != row.key and key.startswith(row.key) for key in below)

    def _close(self, now: float) -> None:
        """After settling: end the message if its block of text is over."""
        at = max((i for i, (_, entry) in enumerate(self._view) if entry is self._last), default=-1)
        below = [row for row, _ in self._view[at + 1 :]]
        if below and below[0].kind is Kind.AGENT and not below[0].gap:
            return  # the block goes on, its next rows have not settled
        if below and self._ended(below):
            self._out.speak(CLOSING)
        elif any(row.kind is Kind.AGENT for row in below):
            self._out.speak("")
            self._open = False
        self._resting = True
        self._out.rest(now, plain=True)

    def _ended(self, below: list[Row]) -> bool:
        """Whether a block ends with a mark that is not drawn, and nothing is said after it."""
        return below[0].finished and below[0].blanks > 1 and self._out.in_block

    def _put(self, paragraph: list[tuple[Row, Entry]], *, goes_on: bool = False) -> None:
        fresh = [row for row, entry in paragraph if not entry.heard]
        for _, entry in paragraph:
            entry.heard = True
        if not fresh:
            return
        if fresh[0].kind is Kind.PERSON or fresh[0].joins is None:
            self._put_begun()
        if fresh[0].kind is Kind.PERSON:
            if self._dialect.turns:
                self._out.turn()
            if len("".join(row.key for row in fresh)) > 1:  # more than an empty prompt
                self._out.proof("\n".join(row.text for row in fresh))
            return
        begun, self._begun = self._begun, ""
        if begun:
            pass
        elif self._dialect.blank_closing and fresh[0].blanks > 1 and self._out.in_block:
            self._out.speak(CLOSING)
        elif self._open and fresh[0].gap:
            self._out.speak("")
        if fresh[0].closing and self._out.in_block:
            self._out.speak(CLOSING)
            fresh = fresh[1:]
        text = begun
        for row in fresh:
            text += (row.joins or "") + row.text.strip() if text else row.text
        if not self._started:
            pass
        elif goes_on:
            self._begun = text
        elif text:
            self._out.speak(text)
        self._last = paragraph[-1][1]
        self._open = True
        self._resting = False

    def _put_begun(self) -> None:
        """The rest of a line that has left in part does not come."""
        if self._begun:
            self._out.speak(self._begun)
            self._begun = ""

    # -- checkpoint ----------------------------------------------------------------------------

    def state(self, now: float) -> dict[str, Any]:
        """As JSON; times become distances from ``now``. The latest rows, at most 104 KiB."""
        self._learn_noted(now)
        visible = {id(entry): row for row, entry in self._view}
        entries: list[list[Any]] = []
        rows: dict[int, list[Any]] = {}
        room = _KEPT_SIZE
        for entry in reversed(self._transcript.entries[-_KEPT_ROWS:]):
            times = [entry.born - now, entry.changed - now, entry.seen - now]
            row = visible.get(id(entry))
            what = [entry.owner, row is not None, entry is self._last]
            kept = [entry.key, entry.heard, *times, *what]
            seen = row and [
                *(row.text, row.key, row.kind, row.gap, row.joins, row.marked),
                *(row.blanks, row.closing, row.finished, row.partial),
            ]
            room -= size_of([kept, seen])
            if room < 0:
                break
            entries.append(kept)
            if seen:
                rows[id(entry)] = seen
        return {
            "entries": entries[::-1],
            "rows": [rows[id(entry)] for _, entry in self._view if id(entry) in rows],
            "looked_in": self._looked_at - now,
            "changed_in": self._changed_at - now,
            "patient": self._patient,
            "started": self._started,
            "begun": beginning(self._begun, _BEGUN_KEPT),
            "resized_in": self._resized_at - now,
            "wiped_in": self._wiped_at - now,
            "open": self._open,
            "resting": self._resting,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        shown: list[Entry] = []
        for key, heard, born, changed, seen, owner, visible, last in state["entries"]:
            entry = Entry(key, heard, now + born, now + changed, now + seen, owner)
            self._transcript.entries.append(entry)
            if visible:
                shown.append(entry)
            if last:
                self._last = entry
        rows = [
            Row(text, key, Kind(kind), gap, joins, marked, -1, *more)
            for text, key, kind, gap, joins, marked, *more in state["rows"]
        ]
        if len(rows) == len(shown):
            self._view = list(zip(rows, shown, strict=True))
        self._looked_at = now + state["looked_in"]
        self._changed_at = now + state["changed_in"]
        self._resized_at, self._wiped_at = now + state["resized_in"], now + state["wiped_in"]
        self._open, self._resting = state["open"], state["resting"]
        self._patient, self._begun = state["patient"], state["begun"]
        self._started = state["started"]
        self._deadline = self._next_settling(self._waiting())
