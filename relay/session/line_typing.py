"""One line typed into a program that edits its lines itself and takes no pastes.

At each step relay checks that the program shows what it was given. One key goes first. The rest
follows only if that key appears at the cursor and nothing else moves, and Enter only if the end of
the line stands there. So a menu, a pager or a single-key question gets one key, which means nothing
to most, and no Enter. Typed text is not taken back, because no key does that in every program. It
stays until the person submits or clears it, and nothing is typed beside it.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from relay.agents.base import Blocked
from relay.core.message import Message
from relay.directive.envelope import Envelope
from relay.session.agent_terminal import AgentTerminal, write_id
from relay.session.typing_policy import TYPING

#: Such a program rests when it has written nothing for this many seconds and shows a prompt.
LINE_REST = 1.0
#: How often relay checks whether the typed text is shown, and the seconds between two checks.
ECHO_LOOKS = 30
ECHO_PAUSE = 0.05
#: Enter waits until nothing was drawn for so many seconds: a program may draw the text before its
#: handler of Enter has it (in Ink the handlers follow the picture).
ENTER_REST = 0.2
#: A typed line is recognised by so many last characters, and its beginning by so many first ones,
#: which hold the message's marker.
LINE_TAIL, LINE_HEAD = 24, 32

WAY_OUT = "relay wrap --type line types there whenever it rests"
NO_PROMPT = f"it takes no pastes and shows no prompt; {WAY_OUT}"
NOT_SHOWN = "it does not show what is typed, so Enter was not pressed: press Enter or Ctrl-U there"

# What an input line begins with: a symbol, or the side of a box.
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
    entered: bool = False  # Enter was pressed, and nothing shows yet that it was taken


class LineTyper:
    """Types one line at a time into a program that edits its lines itself."""

    def __init__(
        self,
        at: AgentTerminal,
    ) -> None:
        self._link, self._terminal, self._screen = at.link, at.terminal, at.screen
        self._guards, self._questions, self._clock = at.guards, at.questions, at.clock
        self._rules = at.questions.rules
        self._vouched = self._rules.vouched
        self._edits = False  # whether relay has typed into it in this way
        self._typed: _Typed | None = None

    @property
    def applies(self) -> bool:
        """Whether the program edits its lines itself now, and each message is one of them."""
        if self._terminal.cooked():
            return False
        takes = self._rules.takes or ("paste" if self._screen.bracketed_paste else "line")
        return takes == "line"

    def is_away(self) -> bool:
        """Whether the kernel edits the lines now of a program that does so itself when it rests."""
        if self._rules.takes == "line":
            return False
        edits = self._edits or self._questions.edits or self._rules.takes == "paste"
        return edits and not self._at_prompt()

    def hold(self, now: float, *, composer: str) -> Blocked | None:
        """Why nothing may be typed now; ``composer`` is the state of the input line."""
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
        """Whether relay's text stands in the input line, and the person typed nothing."""
        return self._typed is not None and not self._guards.draft

    def resume(self, message: Message, wrapped: Envelope, *, whole: bool) -> None:
        """An earlier session has typed a line or its first character, but not pressed Enter."""
        count = len(wrapped.text) if whole else 1
        self._typed = _Typed(message.id, wrapped.text, [], (-1, -1), None, count)

    async def submit(self, message: Message, wrapped: Envelope) -> Blocked | None:
        """Type the line and press Enter. Returns why it is not submitted."""
        typed = self._typed
        if typed is not None and self._guards.sequence != typed.sequence:
            # The person has submitted or cleared the text.
            self._typed = typed = None
            if self._guards.entered and wrapped.marker in "".join(self._screen.visible()):
                return None
        elif typed is not None and typed.entered and not self._shows(typed):
            if wrapped.marker not in "".join(self._screen.visible()):
                return Blocked(NOT_SHOWN, 0.5)
            self._typed = None
            return None  # a slow program: it has begun to answer
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
        if asked := self._questions.asks():
            return Blocked(asked, 1.0)
        before = self._screen.visible()
        key = self._rules.enter(before)
        if not await self._write(key, write_id(message, "enter0"), typed):
            return Blocked(TYPING, 0.2)
        typed.entered = True
        self._questions.enters(typed.before, typed.cursor)
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
        """Whether the typed text stands before the place where the program writes next.

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
        """Whether the text before the cursor looks like a prompt."""
        rows = self._screen.visible()
        if not self._screen.cursor_shown:
            return any(_INPUT_ROW.match(row) for row in rows)
        column, row = self._screen.cursor
        return bool(_PROMPT.search("".join(rows[row : row + 1])[:column]))


def before_cursor(rows: list[str], cursor: tuple[int, int]) -> str:
    """The text before the cursor on its row.

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
    """Whether ``shown`` has all of the typed text, in order, as far as it is in view.

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
