"""How words get into an agent by its terminal: typed lines, or a paste and Enter."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from relay.agents.base import Blocked
from relay.core.message import Message
from relay.core.source_events import Screen, Terminal
from relay.directive.envelope import LINE_BYTES, Envelope, Style, envelope, marker_of
from relay.screen.questions import DIALOG
from relay.session.delivery_channel import Submitted, WriteLink, in_pieces, write_id
from relay.session.line_typing import PLACEHOLDER, WAY_OUT, LineTyper, bare
from relay.session.prompt_watch import PromptWatch
from relay.session.typing_policy import Guards

#: A cooked terminal keeps 4095 bytes and drops the rest without a word (macOS: 1024 a line), so
#: never more than this stands unread in it.
COOKED_MAX = 2048
#: Up to so many bytes a message for a line program is one line (macOS takes no longer ones).
ONE_LINE = LINE_BYTES if sys.platform == "darwin" else 3800
#: The pump refuses more writes at a time.
BATCH_MAX = 16
#: A pasted text needs this long before Enter is taken as Enter (Gemini needs 60 ms).
PASTE_REST = 0.15
#: So often an input line that must show a paste is looked at before the paste is taken as lost.
PASTE_LOOKS = 20
#: How long the screen may take to show that Enter was taken.
ENTER_REST = 0.5
ENTER_TRIES = 3
#: What an earlier session has typed stands in the agent's own records after this many seconds.
TYPED_LANDING = 3.0

NEITHER = f"the program takes neither lines nor pastes now; {WAY_OUT}"
AWAY = f"it is busy, or reads lines without a prompt; {WAY_OUT}"

_PASTE = "\x1b[200~{}\x1b[201~"
#: By this many last characters a pasted text is recognised in an input line.
TAIL = 10


class TypingChannel:
    """Typing: whole lines for line programs, bracketed paste and Enter for the others.

    ``written`` holds the ids of the writes that the pump is known to have finished; the pump keeps
    them across a session's death, so a retry never types the same bytes twice.

    ``seen`` says of a marker whether the agent's own records prove that it reached
    the model, or None where there are no such records now: then what was read counts as seen.
    """

    def __init__(
        self,
        link: WriteLink,
        terminal: Terminal,
        screen: Screen,
        guards: Guards,
        prompt: PromptWatch,
        clock: Callable[[], float],
        *,
        ascii_only: bool = False,
        composer: Callable[[list[str]], str] | None = None,
        written: frozenset[int] = frozenset(),
        seen: Callable[[str], bool | None] = lambda marker: None,
    ) -> None:
        self._link = link
        self._terminal = terminal
        self._screen = screen
        self._guards = guards
        self._prompt = prompt
        self._clock = clock
        self._rules = prompt.rules
        self._ascii_only = ascii_only
        self._composer = composer
        self._written = written
        self._seen = seen
        self._line = LineTyper(link, terminal, screen, guards, prompt, clock)
        self._outstanding: list[tuple[Message, int]] = []  # typed and perhaps not read: bytes
        self._pasted = False  # this program has turned bracketed paste on at some time
        self._half: Message | None = None  # pasted by a session that died before it pressed Enter

    # -- when ---------------------------------------------------------------------------------

    def hold(self, now: float) -> Blocked | None:
        if self._rules.refusal:
            return Blocked(self._rules.refusal)
        rows = self._screen.visible()
        composer = self._composer(rows) if self._composer else "unknown"
        composer = "empty" if self._prompt.shows(now) else composer
        if composer == "draft" and self._half is not None:
            if self._guards.draft:
                # No other message may go beside it: the person's Enter submits this one.
                return Blocked("this message stands in the input line, with a draft", 1.0)
            composer = "empty"
        held = self._guards.person(now, composer=composer)
        if held:
            return held
        alone = self._rules.in_front() if self._rules.is_shell else None
        # What a program that was started from the shell has turned on is not the shell's.
        self._pasted |= self._screen.bracketed_paste and alone is not False
        cooked = self._terminal.cooked()
        if cooked and self._rules.cooked:
            return Blocked(self._rules.cooked, 0.5)
        if cooked and self._line.is_away():
            return Blocked(AWAY, 0.5)
        typing = cooked or self._rules.comment or alone or self._line.applies or self._rules.takes
        if not typing and not self._screen.bracketed_paste:
            return Blocked(NEITHER, 0.5)
        if alone is False or (cooked and self._rules.is_shell and self._pasted):
            return Blocked("a command is running in the shell", 0.5)
        unread = self._terminal.unread()
        if unread is None:
            return Blocked("the agent is gone", 1.0)
        if unread:
            return Blocked("the program has not read its input yet", 0.05)
        if unproven := self._prompt.blocked(now):
            return unproven
        if self._terminal.secret():
            return Blocked("a password is asked for", 1.0)
        if asked := self._asks(composer):
            return Blocked(asked, 1.0)
        if self._line.applies:
            return self._line.hold(now, composer=composer)
        if cooked or self._by_lines() or alone or self._rules.comment:
            return None
        return self._guards.drawing(now)

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        if not self._by_lines():
            return list(waiting[:1])
        chosen: list[Message] = []
        size = 0
        for message in waiting:
            size += len(self._typed(self._wrap(message)))
            if len(chosen) == BATCH_MAX or (chosen and size > COOKED_MAX):
                break
            chosen.append(message)
        return chosen

    def offered(self, message: Message) -> None:
        """A message is going to be handed over: what of it stands in the input line is no draft."""
        steps = ("paste", "probe", "rest", "enter0")
        done = [step for step in steps if write_id(message, step) in self._written]
        if done == ["paste"]:
            self._half = message
        elif done and "enter0" not in done:
            self._line.resume(message, self._wrap(message, "line"), whole="rest" in done)

    # -- how ----------------------------------------------------------------------------------

    async def submit(self, batch: list[Message]) -> Submitted:
        if self._line.applies:
            held = await self._type_one_line(batch[0])
            return Submitted(0 if held else 1, held)
        if not self._by_lines():
            held = await self._paste(batch[0])
            return Submitted(0 if held else 1, held)
        if len(batch) == 1:
            held = await self._type_long(batch[0])
            return Submitted(0 if held else 1, held)
        return await self._type_lines(batch)

    async def read(self, batch: list[Message]) -> str | None:
        if not self._terminal.cooked():
            # Enter was not taken though it was pressed again: the person has to look at it.
            wrapped = self._wrap(batch[-1])
            while self._stands_in_composer(wrapped) and not self._seen(wrapped.marker):
                await asyncio.sleep(ENTER_REST)
        pause = 0.001
        empty = 0
        while empty < 2:
            # The kernel moves input in steps: only two looks in a row show that all was read.
            await asyncio.sleep(pause)
            unread = self._terminal.unread()
            if unread is None:
                return None  # the end of the agent, not its reading, emptied it
            empty = 0 if unread else empty + 1
            pause = 0.002 if empty else min(pause * 2, 0.5)
        self._outstanding.clear()
        proven = self._seen(marker_of(batch[-1]))
        if proven is not None:
            return "transcript" if proven else None
        rows = "" if self._terminal.cooked() else "\n".join(self._screen.visible())
        return "screen" if self._wrap(batch[-1]).marker in rows else "read"

    @property
    def landing_takes(self) -> float:
        return 0.0 if self.proves_reading else TYPED_LANDING

    @property
    def proves_reading(self) -> bool:
        return self._seen("") is None

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        sizes: dict[str, int] = {}
        lost: dict[str, int] = {}
        for message, size in reversed(self._outstanding):
            sizes[message.id] = sizes.get(message.id, 0) + size
            if unread > 0:
                lost[message.id] = lost.get(message.id, 0) + min(size, unread)
                unread -= size
        found = {message.id: message for message, _ in self._outstanding}
        self._outstanding = [one for one in self._outstanding if one[0].id not in lost]
        return [(found[id_], lost[id_] == sizes[id_]) for id_ in lost]

    def left_unread(self, unread: int) -> list[Message]:
        left = []
        for message, size in reversed(self._outstanding):
            if unread <= 0:
                break
            left.append(message)
            unread -= size
        return left

    def landed(self, message: Message) -> bool:
        # In either way: the program may have changed the mode of its terminal since.
        typed = self._typed(self._wrap(message, "plain"))
        last = write_id(message, f"line{len(in_pieces(typed, COOKED_MAX)) - 1}")
        if self._written.isdisjoint((last, write_id(message, "enter0"))):
            # The person may have pressed Enter behind what an earlier session had pasted.
            return bool(self._seen(marker_of(message)))
        self._outstanding.append((message, len(typed)))
        return True

    async def _type_lines(self, batch: list[Message]) -> Submitted:
        """Several small messages, one write each, so that each is known to have landed or not."""
        writes = []
        sizes: list[int] = []
        for message in batch:
            wrapped = self._wrap(message)
            self._screen.expect_echo(wrapped.text, self._clock())
            typed = self._typed(wrapped)
            sizes.append(len(typed))
            writes.append(
                self._link.write(
                    typed,
                    write_id=write_id(message, "line0"),
                    sequence=self._guards.sequence,
                )
            )
        done = list(await asyncio.gather(*writes))
        count = done.index(False) if False in done else len(done)
        self._outstanding += zip(batch[:count], sizes, strict=False)
        return Submitted(
            count, None if count == len(done) else Blocked("the person is typing", 1.0)
        )

    async def _type_long(self, message: Message) -> Blocked | None:
        """One message, in pieces that the program must have read before the next one follows."""
        wrapped = self._wrap(message)
        self._screen.expect_echo(wrapped.text, self._clock())
        for index, chunk in enumerate(in_pieces(self._typed(wrapped), COOKED_MAX)):
            step = write_id(message, f"line{index}")
            if step not in self._written:
                if index:
                    await self.read([message])
                if not await self._until_written(chunk, step, patient=index > 0):
                    return Blocked("the person is typing", 1.0)
            self._outstanding.append((message, len(chunk)))
        return None

    async def _type_one_line(self, message: Message) -> Blocked | None:
        wrapped = self._wrap(message)
        held = await self._line.submit(message, wrapped)
        if held is None:
            self._outstanding.append((message, len(wrapped.text.encode()) + 1))
        return held

    async def _paste(self, message: Message) -> Blocked | None:
        wrapped = self._wrap(message)
        self._screen.expect_echo(wrapped.text, self._clock())
        paste = write_id(message, "paste")
        data = _PASTE.format(wrapped.text).encode("utf-8", "replace")
        known = paste in self._written
        sequence, self._half = self._guards.sequence, None
        if not known and not await self._link.write(data, write_id=paste, sequence=sequence):
            return Blocked("the person is typing", 1.0)
        self._outstanding.append((message, len(data)))
        for attempt in range(ENTER_TRIES):
            await asyncio.sleep(PASTE_REST)
            if self._rules.shows_paste and not attempt and not await self._shows_paste():
                self._outstanding.pop()
                self._written -= {paste}  # whichever session typed it, it is lost
                return Blocked("what was typed has not reached the input line", 0.5)
            if self._dialog():
                # A dialog that opened meanwhile drops what is pasted, and Enter would answer it.
                while self._dialog():
                    await asyncio.sleep(ENTER_REST)
                if not self._stands_in_composer(wrapped):
                    self._written -= {paste}
                    return Blocked("a dialog waits for the person", 0.5)
                sequence = self._guards.sequence  # those keys were for the dialog
            enter = write_id(message, f"enter{attempt}")
            # A key pressed since the paste belongs to a draft, be it that our text is a part of it:
            # the person's own Enter submits that.
            key = self._rules.enter(self._screen.visible())
            if not await self._link.write(key, write_id=enter, sequence=sequence):
                return None
            self._outstanding.append((message, 1))
            await asyncio.sleep(ENTER_REST)
            while self._in_the_dark(wrapped):
                await asyncio.sleep(ENTER_REST)
            if not self._stands_in_composer(wrapped):
                return None
        return None

    async def _shows_paste(self) -> bool:
        """Whether the input line is no longer empty: a program may drop keys while it starts."""
        for _ in range(PASTE_LOOKS):
            rows = self._screen.visible()
            if self._composer is None or self._composer(rows) not in ("empty", "busy"):
                return True
            await asyncio.sleep(PASTE_REST)
        return False

    def _in_the_dark(self, wrapped: Envelope) -> bool:
        """Whether the input line is away, Enter may be lost, and only its return will tell."""
        unproven = self._rules.shows_paste and self._seen(wrapped.marker) is False
        return unproven and self._dialog()

    async def _until_written(self, data: bytes, step: int, *, patient: bool) -> bool:
        """Type ``data``. When ``patient``, a person who types is waited for instead of yielded to:
        the first pieces of this message stand in the terminal already."""
        while True:
            now = self._clock()
            held = self._guards.person(now) or self._prompt.blocked(now)
            if held is None or not patient:
                sequence = self._guards.sequence
                if await self._link.write(data, write_id=step, sequence=sequence):
                    return True
                if not patient:
                    return False
            await asyncio.sleep(held.again if held and held.again else 0.1)

    def _stands_in_composer(self, wrapped: Envelope) -> bool:
        """Whether our text still stands where the cursor is: Enter was not taken."""
        if self._rules.is_shell or self._rules.comment:
            return False
        rows = self._screen.visible()
        composer = self._composer(rows) if self._composer else "unknown"
        if composer != "unknown":
            return composer == "draft"
        # A text that was pasted ends where the cursor stands; what was submitted stands elsewhere.
        column, row = self._screen.cursor
        before = bare(
            "".join([*rows[max(0, row - 1) : row], *[r[:column] for r in rows[row:][:1]]])
        )
        return before.endswith(bare(wrapped.text)[-TAIL:]) or bool(PLACEHOLDER.search(before))

    def _asks(self, composer: str) -> str:
        """The question that the program asks its person, which a message would answer."""
        if composer == "dialog" or self._guards.blocked():
            return DIALOG
        return "" if composer in ("empty", "draft") else self._prompt.asks()

    def _dialog(self) -> bool:
        composer = self._composer(self._screen.visible()) if self._composer else "unknown"
        return bool(self._asks(composer))

    def _by_lines(self) -> bool:
        """Whether lines are typed, not pasted: to a shell that takes no pastes, and always to an
        interpreter, which takes a pasted text for one input that it may not think complete."""
        if self._terminal.cooked() or self._rules.comment:
            return self._rules.takes != "paste"
        if self._rules.style == "shell" and self._rules.takes == "line":
            return True
        return self._rules.is_shell and not self._screen.bracketed_paste

    def _wrap(self, message: Message, style: Style | None = None) -> Envelope:
        if style is None:
            style = (
                "plain" if self._terminal.cooked() else "line" if self._line.applies else "paste"
            )
        style = self._rules.style or style
        spelled = replace(message, body=self._rules.spell(message.body))
        if style == "plain" and len(message.body) < ONE_LINE:
            # A line program takes each line for a message of its own.
            short = envelope(spelled, style="line", ascii_only=self._ascii_only)
            if len(short.text.encode()) <= ONE_LINE:
                return short
        return envelope(
            spelled, style=style, ascii_only=self._ascii_only, comment=self._rules.comment
        )

    @staticmethod
    def _typed(wrapped: Envelope) -> bytes:
        return "".join(line + "\n" for line in wrapped.lines).encode("utf-8", "replace")
