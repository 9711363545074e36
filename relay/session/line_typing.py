"""One line typed into a program that edits its lines itself and takes no pastes.

A file of its own: the only way in that looks at each step whether the program shows what it was
given. One key goes first. Only where that appears behind the cursor, and nothing else changes its
place, does the rest follow, and Enter only where the end of the whole stands there: a menu, a pager
or a single-key question gets one key that means nothing to most, and no Enter. What was typed is
not taken back: no key is known to do that everywhere. It stands until the person submits or clears
it, and nothing goes beside it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

from relay.agents.base import Blocked
from relay.core.message import Message
from relay.core.source_events import Screen, Terminal
from relay.directive.envelope import Envelope
from relay.session.delivery_channel import WriteLink, write_id
from relay.session.prompt_watch import PromptWatch
from relay.session.typing_policy import TYPING, Guards

#: Such a program rests when it has written nothing for this many seconds and shows a prompt.
LINE_REST = 1.0
#: How often it is looked at whether what was typed is shown, and how long between two looks.
ECHO_LOOKS = 30
ECHO_PAUSE = 0.05
#: Enter waits until nothing was drawn for this long: a program that has drawn the text may not have
#: put it where its Enter takes it from yet (Ink's handlers follow the picture).
ENTER_REST = 0.2
#: By this many last characters a typed line is recognised, and by so many first ones, which hold
#: the message's marker, where it begins.
LINE_TAIL, LINE_HEAD = 24, 32

WAY_OUT = "relay wrap --type line types there whenever it rests"
NO_PROMPT = f"it takes no pastes and shows no prompt; {WAY_OUT}"
NOT_SHOWN = "it does not show what is typed, so Enter was not pressed: press Enter or Ctrl-U there"

# What an input line begins with: a sign, or the side of a box.
_PROMPT = re.compile(r"[>$#%❯›»➜λ:│┃║|\])]\s*$")
_INPUT_ROW = re.compile(r"^[\s│┃║|]*[\w ]{0,16}[>❯›»➜](?:\s|$)")
_NOT_TEXT = re.compile(r"[\s│┃║|╭╮╰╯─━█▌▏▎]+")
#: What stands in an input line for a long text, as in ``[Pasted text #1 +5 lines]``.
PLACEHOLDER = re.compile(
    r"[\[(<«‹⟨][^\[\]()<>]{0,40}(?:paste|\blines?\b|\bchars?)[^\[\]()<>]{0,40}[\])>»›⟩]", re.I
)


@dataclass(slots=True)
class _Typed:
    """A line that is being typed: how much of it, and what the screen showed before."""

    id: str
    text: str
    before: list[str]
    cursor: tuple[int, int]
    sequence: int | None  # of the person's last key then
    count: int = 0
    entered: bool = False  # Enter was pressed, and nothing showed yet that it was taken


class LineTyper:
    """Types one line at a time into a program of its own line editing."""

    def __init__(
        self,
        link: WriteLink,
        terminal: Terminal,
        screen: Screen,
        guards: Guards,
        prompt: PromptWatch,
        clock: Callable[[], float],
    ) -> None:
        self._link = link
        self._terminal = terminal
        self._screen = screen
        self._guards = guards
        self._prompt = prompt
        self._clock = clock
        self._rules = prompt.rules
        self._vouched = self._rules.vouched
        self._edits = False  # it was typed into in this way
        self._typed: _Typed | None = None

    @property
    def applies(self) -> bool:
        """Whether the program edits its lines itself now, and each message is one of them."""
        if self._terminal.cooked() or self._rules.style is not None:
            return False
        takes = self._rules.takes or ("paste" if self._screen.bracketed_paste else "line")
        return takes == "line"

    def is_away(self) -> bool:
        """Whether a program whose lines the kernel edits now does so itself when it rests."""
        if self._rules.is_shell or self._rules.comment or self._rules.takes == "line":
            return False
        edits = self._edits or self._prompt.edits or self._rules.takes == "paste"
        return edits and not self._at_prompt()

    def hold(self, now: float, *, composer: str) -> Blocked | None:
        """Why nothing may be typed now; ``composer`` is what is known of the input line."""
        held = self._unready(now, composer)
        self._edits |= held is None
        return held

    def _unready(self, now: float, composer: str) -> Blocked | None:
        rest = LINE_REST - self._guards.quiet_for(now)
        if rest > 0:
            return Blocked("the agent is busy", max(rest, 0.02))
        typed = self._typed
        if typed is not None and typed.sequence is None:
            typed.sequence = self._guards.sequence
        if typed is not None and self._guards.sequence == typed.sequence:
            shown = self._vouched or typed.entered or self._shows(typed)
            return None if shown else Blocked(NOT_SHOWN, 0.5)
        if typed is not None or self._vouched or composer == "empty":
            return None
        return None if self._at_prompt() else Blocked(NO_PROMPT, 0.5)

    @property
    def stands(self) -> bool:
        """Whether what was typed here stands in the input line, and the person typed nothing."""
        return self._typed is not None and not self._guards.draft

    def resume(self, message: Message, wrapped: Envelope, *, whole: bool) -> None:
        """A session before this one has typed a line or its first character, and not Enter."""
        count = len(wrapped.text) if whole else 1
        self._typed = _Typed(message.id, wrapped.text, [], (-1, -1), None, count)

    async def submit(self, message: Message, wrapped: Envelope) -> Blocked | None:
        """Type the line and press Enter; why it is not submitted."""
        typed = self._typed
        if typed is not None and self._guards.sequence != typed.sequence:
            # The person has submitted or cleared what stood there.
            self._typed = typed = None
            if self._guards.entered and wrapped.marker in "".join(self._screen.visible()):
                return None
        elif typed is not None and typed.entered and not self._shows(typed):
            if wrapped.marker not in "".join(self._screen.visible()):
                return Blocked(NOT_SHOWN, 0.5)
            self._typed = None
            return None  # a slow one: it has begun to answer
        if typed is None or typed.id != message.id:
            before = self._screen.visible()
            cursor, sequence = self._screen.cursor, self._guards.sequence
            typed = _Typed(message.id, wrapped.text, before, cursor, sequence)
            self._screen.expect_echo(wrapped.text, self._clock())
        for step, count in (("probe", 1), ("rest", len(wrapped.text))):
            if typed.count < count:
                data = wrapped.text[typed.count : count].encode("utf-8", "replace")
                data = data.replace(b"\\", self._rules.literal + b"\\")
                if not await self._write(data, write_id(message, step), typed):
                    return Blocked(TYPING, 1.0)
                self._typed, typed.count = typed, count
            if not await self._is_shown(typed):
                return Blocked(NOT_SHOWN, 0.5)
        for _ in range(ECHO_LOOKS):
            if self._guards.quiet_for(self._clock()) >= ENTER_REST:
                break
            await asyncio.sleep(ECHO_PAUSE)
        return await self._enter(typed, message)

    async def _enter(self, typed: _Typed, message: Message) -> Blocked | None:
        if asked := self._prompt.asks():
            return Blocked(asked, 1.0)
        before = self._screen.visible()
        key = self._rules.enter(before)
        if not await self._write(key, write_id(message, "enter0"), typed):
            return Blocked(TYPING, 0.2)
        typed.entered = True
        self._prompt.questions.enters(typed.before, typed.cursor)
        for _ in range(ECHO_LOOKS):
            await asyncio.sleep(ECHO_PAUSE)
            stands = self._screen.cursor_shown and self._shows(typed)
            # A line editor that hands its line over gives the terminal back to the kernel.
            if self._terminal.cooked() or (not stands and self._screen.visible() != before):
                break
        else:
            if not self._vouched:
                return Blocked("Enter was not taken", 0.5)
        self._typed = None
        return None

    async def _write(self, data: bytes, number: int, typed: _Typed) -> bool:
        sequence, heard = typed.sequence or 0, self._guards.heard
        return bool(await self._link.write(data, write_id=number, sequence=sequence, offset=heard))

    async def _is_shown(self, typed: _Typed) -> bool:
        for _ in range(ECHO_LOOKS):
            await asyncio.sleep(ECHO_PAUSE)
            if self._shows(typed):
                return True
        return self._vouched

    def _shows(self, typed: _Typed) -> bool:
        """Whether the end of what was typed stands where the program writes next, all of it above.

        A character that is a key to the program would be missing.
        """
        tail = bare(typed.text[: typed.count])[-LINE_TAIL:]
        rows = self._screen.visible()
        if self._screen.cursor_shown:
            column, row = self._screen.cursor
            here = before_cursor(rows, (column, row))
            near = bare("".join(rows[max(0, row - 2) : row]) + here)
            if self._screen.cursor == typed.cursor:
                return False
            whole = near.endswith(tail) and _lacks_nothing(bare("".join(rows[:row]) + here), typed)
            return whole or bool(PLACEHOLDER.search(near))
        if typed.count == 1:
            pairs = zip(typed.before, rows, strict=False)
            return any(bare(new[_same(old, new) :]) == tail for old, new in pairs)
        drawn = bare("".join(row for row in rows if row not in typed.before))
        whole = tail in drawn and _lacks_nothing(bare("".join(rows)), typed)
        return whole or bool(PLACEHOLDER.search(drawn))

    def _at_prompt(self) -> bool:
        """Whether what stands before the cursor looks like a prompt."""
        rows = self._screen.visible()
        if not self._screen.cursor_shown:
            return any(_INPUT_ROW.match(row) for row in rows)
        column, row = self._screen.cursor
        return bool(_PROMPT.search("".join(rows[row : row + 1])[:column]))


def before_cursor(rows: list[str], cursor: tuple[int, int]) -> str:
    """What stands on the cursor's row before it.

    A row that is filled to the right edge has its cursor on its last character, not behind it: it
    goes to the next row only with the next character.
    """
    column, row = cursor
    text = "".join(rows[row : row + 1])
    at_edge = column + 1 == len(text) == max(map(len, rows))
    return text if at_edge else text[:column]


def bare(text: str) -> str:
    """``text`` without white space and frames: the same however a screen lays it out."""
    return _NOT_TEXT.sub("", text)


def _lacks_nothing(shown: str, typed: _Typed) -> bool:
    """Whether ``shown`` has all that was typed, in order, unless it begins above what is in view.

    More may stand between (marks before each row), and only ASCII is drawn alike everywhere.
    """
    text = bare(typed.text[: typed.count])
    begins = shown.rfind(text[:LINE_HEAD])
    left = iter(shown[begins:])
    return begins < 0 or all(char in left for char in text if char.isascii())


def _same(old: str, new: str) -> int:
    """How many characters the two begin with alike."""
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other:
            return at
    return min(len(old), len(new))
