"""Pasting one message into a program's input line, and what proves that it went from there.

Enter is pressed only where the text is seen in the input line and nothing is asked; again only
where it provably stands there still. The program has the message when its screen shows it outside
the input line and any dialog: that it has read the bytes proves nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Set
from dataclasses import dataclass

from relay.agents.base import AgentAdapter, Blocked
from relay.core.message import AgentState, Message
from relay.directive.envelope import Envelope
from relay.screen.questions import DIALOG
from relay.session.agent_terminal import AgentTerminal, write_id
from relay.session.line_typing import PLACEHOLDER, bare, before_cursor

#: A pasted text needs this long before Enter is taken as Enter (Gemini needs 60 ms).
PASTE_REST = 0.15
#: So often an input line is looked at before a paste that it does not show is taken as lost.
PASTE_LOOKS = 20
#: How long the screen may take to show that Enter was taken.
ENTER_REST = 0.5
ENTER_TRIES, ENTER_LOOKS = 3, 10
#: A text that was left in the input line is entered again, at most so often and so seldom.
LEFT_TRIES, LEFT_REST = 10, 3.0
#: So long it is looked for there.
LEFT_PATIENCE = 600.0
#: So often what the program draws may come between a look at it and Enter.
OVERTAKEN_MAX = 200
BUSY = "the agent is busy"
#: After so many lost pastes in a row the person has to look. In a terminal of few rows after one:
#: there the text may stand out of sight.
LOSSES_MAX, FEW_ROWS = 3, 10
LOST = "what was pasted did not reach the input line"
OUT_OF_SIGHT = "what was pasted is out of sight: make the terminal larger, or press a key there"
STANDS = "its text stands in the input line; Enter there sends it"

_PASTE = "\x1b[200~{}\x1b[201~"
#: By this many last characters a pasted text is recognised in an input line.
TAIL = 10
#: What stands above an input line, and around its rows.
_BORDER = re.compile(r"\W*[─━═▔▁▄▀╌-]{3}.*")
_FRAMED = re.compile(r"\s*[│┃║|▌▐].*[│┃║|▌▐]\s*")


@dataclass(frozen=True, slots=True)
class _Look:
    """The screen at one moment, as far as one message is concerned."""

    before_cursor: str  # the cursor's row up to it, and the row above, without blanks and frames
    tails: int  # how often the text's end stands there
    placeholders: int
    marked: frozenset[tuple[str, str]]  # the rows that hold the marker, each with the one above
    folded: frozenset[tuple[str, str]]  # those that hold a placeholder


@dataclass(slots=True)
class _Left:
    """A message whose text may stand in the input line, where nobody has touched it since."""

    message: Message
    wrapped: Envelope
    sequence: int  # of the person's last key then
    at: float
    tries: int = 0  # of entering it again
    entered: bool = True


class AgentRecords:
    """Looks into an agent's own records for messages that have reached its model."""

    def __init__(self, adapter: AgentAdapter | None) -> None:
        self.adapter = adapter

    def seen(self, marker: str) -> bool | None:
        """Whether they prove that ``marker`` reached the model; None: there are no records now."""
        adapter = self.adapter
        return adapter.seen(marker) if adapter and adapter.source.trusted else None


class PasteTyper:
    """Pastes into one program; the agent's own ``records`` may prove what reached its model."""

    def __init__(self, at: AgentTerminal, records: AgentRecords) -> None:
        self._link, self._terminal, self._screen = at.link, at.terminal, at.screen
        self._guards, self._questions, self._clock = at.guards, at.questions, at.clock
        self._rules = at.questions.rules
        self._seen = records.seen
        self._half: Message | None = None
        self._last: Envelope | None = None  # pasted last, and perhaps still in the input line
        self._proven = ""  # the last marker that was seen outside of the input line
        self._left: _Left | None = None
        self._losses = 0  # pastes in a row that were lost, …
        self._lost_at = 0  # … and the person's last key then
        self._entered: tuple[str, _Look] | None = None  # marker, and the screen before Enter
        self._asked = ""  # the question for whose answer a message that was pasted waits

    @property
    def half(self) -> bool:
        """Whether a session before this one has pasted what it did not come to enter."""
        return self._half is not None

    @property
    def waits_for(self) -> str:
        """The question for whose answer a message that was pasted waits."""
        return self._asked

    def resume(self, message: Message) -> None:
        """An earlier session has pasted ``message``, and not pressed Enter."""
        self._half = message

    def leave(
        self, message: Message, wrapped: Envelope, sequence: int, *, entered: bool = True
    ) -> None:
        """``message`` was pasted and, if ``entered``, so was Enter: its text may stand there, with
        nothing of the person's as long as ``sequence`` is that of their last key."""
        self._left = _Left(message, wrapped, sequence, self._clock(), entered=entered)

    @property
    def left(self) -> bool:
        """Whether what stands in the input line is relay's own, and will be sent."""
        left = self._left
        if left is None or left.tries >= LEFT_TRIES or not self._is_ours(left):
            return False
        if not left.entered:
            self._half = left.message  # it came late
        return left.entered

    async def finish(self) -> bool:
        """Press Enter once more behind what was left in the input line, where the way is free.

        Whether there is such a text.
        """
        left, composer, now = self._left, self.composer(), self._clock()
        if left is None or not left.entered:
            return False
        gone = composer == "empty" or now - left.at > LEFT_PATIENCE or self.shown(left.wrapped)
        if gone or self._guards.sequence != left.sequence or self._seen(left.wrapped.marker):
            self._left = None
            return False
        if left.tries >= LEFT_TRIES:
            return False
        busy = self._guards.turn_since(now) or self._guards.limited(now) or self._terminal.unread()
        held = self._guards.person(now, composer="empty") or self.asks(composer)
        # A program that has drawn nothing since may have Enter, and ask something next.
        waits = max(LEFT_REST, self._guards.quiet_for(now)) > now - left.at
        waits |= self._guards.drawing(now, self._screen.changed_at) is not None
        if busy or held or waits or self._terminal.secret() or not self._is_ours(left):
            return True
        left.at, left.tries = now, left.tries + 1
        self._entered = left.wrapped.marker, self._look(left.wrapped)
        await self._link.write(
            self._rules.enter(self._screen.visible()),
            write_id=write_id(left.message, f"enter{ENTER_TRIES}"),
            sequence=left.sequence,
            offset=self._guards.heard,
        )
        return True

    async def submit(self, message: Message, wrapped: Envelope) -> Blocked | None:
        """Paste and press Enter; why not, where nothing of it stands in the input line now."""
        resumed, self._half = self._half is not None and self._half.id == message.id, None
        before = self._look(wrapped)
        sequence = self._guards.sequence
        self._last, self._left = wrapped, None
        if resumed and (self._seen(wrapped.marker) or self.shown(wrapped)):
            return None  # the person has entered it
        if not resumed:
            data = _PASTE.format(wrapped.text).encode("utf-8", "replace")
            step = write_id(message, "paste")
            heard = self._guards.heard
            done = await self._link.write(data, write_id=step, sequence=sequence, offset=heard)
            if not done:
                return Blocked("the person is typing", 1.0) if done is False else Blocked(BUSY, 0.1)
        for attempt in range(ENTER_TRIES):
            written = None
            for _ in range(OVERTAKEN_MAX):
                await asyncio.sleep(PASTE_REST)
                while attempt and self._guards.state is AgentState.BUSY:
                    await asyncio.sleep(ENTER_REST)  # it takes none while its turn runs
                asked = bool(self.asks())
                if not await self._until_it_stands(wrapped, None if resumed else before):
                    if attempt or self._seen(wrapped.marker):
                        return None
                    return self._lost(message, wrapped, sequence)
                self._losses = 0
                if asked:
                    sequence = self._guards.sequence  # those keys were for the dialog
                look = self._look(wrapped)
                self._entered, at = (wrapped.marker, look), self._clock()
                # A key pressed since the paste belongs to a draft, be it that our text is a part of
                # it: the person's own Enter submits that.
                written = await self._link.write(
                    self._rules.enter(self._screen.visible()),
                    write_id=write_id(message, f"enter{attempt}"),
                    sequence=sequence,
                    offset=self._guards.heard,
                )
                if written is not None:
                    break
            if not written:
                return None
            for _ in range(ENTER_LOOKS):
                await asyncio.sleep(ENTER_REST / ENTER_LOOKS)
                if self.shown(wrapped):
                    self._proven = wrapped.marker  # before an answer scrolls it away
                    return None
            while self._in_the_dark(wrapped):
                await asyncio.sleep(ENTER_REST)
            if not self._was_lost(wrapped, look, at):
                break
        self.leave(message, wrapped, sequence)
        return None

    def hold(self) -> Blocked | None:
        """Why nothing more may be pasted now."""
        small = len(self._screen.visible()) < FEW_ROWS
        came = self._half is not None and self._losses == 1
        lost = self._losses >= (1 if small else LOSSES_MAX) and not came
        if lost and self._guards.sequence == self._lost_at:
            often = f"{LOST}, {self._losses} times; a key there lets it be tried again"
            return Blocked(OUT_OF_SIGHT if small else often, 1.0)
        if self._last is not None and not self.stands(self._last):
            self._last = None
        if self._last is not None and self.composer() == "unknown":
            return Blocked(STANDS, 0.5)
        return None

    def asks(self, composer: str | None = None) -> str:
        """The question that the program asks its person, which a message would answer."""
        composer = self.composer() if composer is None else composer
        if composer == "dialog" or self._guards.blocked():
            return DIALOG
        return "" if composer in ("empty", "draft") else self._questions.asks()

    def composer(self) -> str:
        """How the input line is, by whoever knows this program."""
        return self._questions.composer(self._screen.visible())

    def stands(self, wrapped: Envelope) -> bool:
        """Whether the text still stands in the input line, as far as can be seen."""
        composer = self.composer()
        if composer != "unknown":
            return composer == "draft"
        return self._at_cursor(wrapped, self._look(wrapped))

    def shown(self, wrapped: Envelope) -> bool:
        """Whether the screen shows the message where it is not in an input line or a dialog."""
        if self._proven == wrapped.marker:
            return True
        look = self._look(wrapped)
        if not look.marked or self.asks():
            return not look.marked and self._shown_folded(wrapped, look) and not self.asks()
        composer = self.composer()
        if composer != "unknown":
            return composer != "draft"
        if self._at_cursor(wrapped, look):
            return False
        marker, entered = self._entered or ("", None)
        entered = entered if marker == wrapped.marker else None
        if self._screen.cursor_shown and (entered is None or self._at_cursor(wrapped, entered)):
            # It stood where the cursor was, and that takes the next words below it now.
            rows = self._screen.visible()
            last = max((n for n, row in enumerate(rows) if wrapped.marker in row), default=0)
            return self._screen.cursor[1] > last
        return _said(look.marked - (entered.marked if entered else look.marked))

    # -- inside

    def _shown_folded(self, wrapped: Envelope, look: _Look) -> bool:
        """Whether the placeholder that stood for it at Enter stands among what was said now."""
        marker, entered = self._entered or ("", None)
        if entered is None or marker != wrapped.marker or self.composer() == "draft":
            return False
        places = [found[0] for found in PLACEHOLDER.finditer(entered.before_cursor)]
        if not places or not entered.before_cursor.endswith(places[-1]):
            return False
        rows = {pair for pair in look.folded - entered.folded if places[-1] in bare(pair[1])}
        return _said(rows) and not PLACEHOLDER.search(look.before_cursor)

    def _is_ours(self, left: _Left) -> bool:
        """Whether its text stands in the input line, and no key was pressed since."""
        if self._guards.sequence != left.sequence or not self.stands(left.wrapped):
            return False
        look = self._look(left.wrapped)
        return bool(look.tails or look.placeholders or look.marked)

    def _lost(self, message: Message, wrapped: Envelope, sequence: int) -> Blocked:
        self._losses += 1
        self.leave(message, wrapped, sequence, entered=False)
        self._lost_at, self._last = self._guards.sequence, None
        return Blocked(LOST, 0.5)

    async def _until_it_stands(self, wrapped: Envelope, before: _Look | None) -> bool:
        """Wait until the input line shows the text, and nothing is asked; whether it ever does.

        A program may drop what it is sent while it starts or asks something. The person's answer
        is waited for, and the program's reading.
        """
        looks = 0
        while looks < PASTE_LOOKS:
            composer = self.composer()
            self._asked = self.asks(composer)
            if self._asked:
                await asyncio.sleep(ENTER_REST)
                looks = min(looks, PASTE_LOOKS - 2)
            elif self._stands_now(composer, wrapped, before):
                return True
            elif self._terminal.unread() is None:
                return False
            else:
                looks += not self._terminal.unread()
                await asyncio.sleep(PASTE_REST)
        return False

    def _stands_now(self, composer: str, wrapped: Envelope, before: _Look | None) -> bool:
        if composer == "draft":
            return True
        if composer != "unknown":
            return False
        look = self._look(wrapped)
        if self._at_cursor(wrapped, look):
            return True
        if before is None:
            return bool(look.marked)
        return (
            bool(look.marked - before.marked)
            or look.tails > before.tails
            or look.placeholders > before.placeholders
        )

    def _was_lost(self, wrapped: Envelope, entered: _Look, at: float) -> bool:
        """Whether Enter had no effect: the program has drawn since, and the text stands there."""
        proven = self._seen(wrapped.marker)
        if proven:
            return False
        drawn = self._guards.quiet_for(self._clock()) <= self._clock() - at
        composer = self.composer()
        if composer != "unknown":
            return composer == "draft" and (drawn or proven is False)
        look = self._look(wrapped)
        same = look.before_cursor == entered.before_cursor
        return drawn and same and self._at_cursor(wrapped, look)

    def _in_the_dark(self, wrapped: Envelope) -> bool:
        """Whether the input line is away, Enter may be lost, and only its return will tell."""
        unproven = self._rules.shows_paste and self._seen(wrapped.marker) is False
        self._asked = self.asks() if unproven else ""
        return bool(self._asked)

    @staticmethod
    def _at_cursor(wrapped: Envelope, look: _Look) -> bool:
        # A text that was pasted ends where the cursor stands; what was submitted stands elsewhere.
        tail = bare(wrapped.text)[-TAIL:]
        placeholder = list(PLACEHOLDER.finditer(look.before_cursor))
        at_end = bool(placeholder) and placeholder[-1].end() == len(look.before_cursor)
        return look.before_cursor.endswith(tail) or at_end

    def _look(self, wrapped: Envelope) -> _Look:
        rows = self._screen.visible()
        cursor = self._screen.cursor
        before = [*rows[max(0, cursor[1] - 1) : cursor[1]], before_cursor(rows, cursor)]
        solid = bare("".join(rows))
        marked = frozenset(
            (rows[n - 1] if n else "", one) for n, one in enumerate(rows) if wrapped.marker in one
        )
        return _Look(
            bare("".join(before)),
            solid.count(bare(wrapped.text)[-TAIL:]),
            sum(1 for one in rows for _ in PLACEHOLDER.finditer(one)),
            marked,
            frozenset(
                (rows[n - 1] if n else "", one)
                for n, one in enumerate(rows)
                if PLACEHOLDER.search(one)
            ),
        )


def _said(rows: Set[tuple[str, str]]) -> bool:
    """Whether one of the rows, each with the one above, stands in no box."""
    return any(not _BORDER.fullmatch(above) and not _FRAMED.fullmatch(row) for above, row in rows)
