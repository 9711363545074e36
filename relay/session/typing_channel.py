"""How words get into an agent by its terminal: typed lines, or a paste and Enter."""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace

from relay.agents.base import Blocked
from relay.agents.profile import Composer, nobody_knows
from relay.core.message import Message
from relay.directive.envelope import LINE_BYTES, Envelope, Style, envelope, envelopes, marker_of
from relay.session.delivery_channel import AgentTerminal, Submitted, in_pieces, write_id
from relay.session.line_typing import WAY_OUT, LineTyper
from relay.session.paste_typing import STANDS, PasteTyper

#: A cooked terminal keeps 4095 bytes and drops the rest without a word (macOS: 1024 a line), so
#: never more than this stands unread in it.
COOKED_MAX = 2048
#: Up to so many bytes a message for a line program is one line (macOS takes no longer ones).
ONE_LINE = LINE_BYTES if sys.platform == "darwin" else 3800
#: The pump refuses more writes at a time.
BATCH_MAX = 16
STARTING = "the program does not read its terminal yet"
#: Messages of which it is remembered that reading their bytes proves nothing.
RAW_MAX = 1000
#: So often, and with rests of this many seconds, a program's screen is looked at for a message.
PROOF_LOOKS, PROOF_LOOK = 100, 0.05
THROWN_AWAY = "the program seems to have thrown it away unread"
UNSHOWN = "it was typed and read, but the program does not show it"
#: What an earlier session has typed stands in the agent's own records after this many seconds.
TYPED_LANDING = 3.0

NEITHER = f"the program takes neither lines nor pastes now; {WAY_OUT}"
AWAY = f"it is busy, or reads lines without a prompt; {WAY_OUT}"


class TypingChannel:
    """Typing: whole lines for line programs, bracketed paste and Enter for the others.

    ``written`` holds the ids of the writes that the pump is known to have finished; the pump keeps
    them across a session's death, so a retry never types the same bytes twice.

    ``seen`` says of a marker whether the agent's own records prove that it reached the model, or
    None where there are no such records now: then lines that were read count as seen, and what was
    typed into a program that reads keys when its screen shows it.
    """

    def __init__(
        self,
        at: AgentTerminal,
        *,
        ascii_only: bool = False,
        composer: Composer = nobody_knows,
        written: frozenset[int] = frozenset(),
        seen: Callable[[str], bool | None] = lambda marker: None,
    ) -> None:
        self._link, self._terminal, self._screen = at.link, at.terminal, at.screen
        self._guards, self._questions, self._clock = at.guards, at.questions, at.clock
        self._rules = at.questions.rules
        self._ascii_only = ascii_only
        self._composer = composer = at.questions.composer(composer)
        self._written = written
        self._seen = seen
        self._line = LineTyper(at)
        self._outstanding: list[tuple[Message, int]] = []  # typed and perhaps not read: bytes
        self._paste = PasteTyper(at, composer=composer, seen=seen)
        self._raw: OrderedDict[str, Message] = OrderedDict()  # that it was read proves nothing
        self._started = False  # the program was seen to wait for input
        self._begun = "", 0  # of this message so many pieces have been typed
        self._reads: int | None = None  # how often the program had read before a batch
        self._unproven = ""

    # -- when ---------------------------------------------------------------------------------

    def hold(self, now: float, *, steer: bool = False) -> Blocked | None:
        """``steer``: what is typed while the program works goes into its running turn."""
        if self._rules.refusal:
            return Blocked(self._rules.refusal)
        rows = self._screen.visible()
        composer = self._composer(rows)
        if self._paste.left:
            return Blocked(STANDS, 0.5)
        if composer == "draft" and self._paste.half:
            if self._guards.draft:
                # No other message may go beside it: the person's Enter submits this one.
                return Blocked("this message stands in the input line, with a draft", 1.0)
            composer = "empty"
        if composer == "draft" and self._line.stands:
            composer = "empty"
        held = self._guards.person(now, composer=composer)
        if held:
            return held
        cooked = self._terminal.cooked()
        if cooked and self._starts(rows):
            return Blocked(STARTING, 0.1)
        if cooked and self._rules.cooked:
            return Blocked(self._rules.cooked, 0.5)
        if cooked and (self._line.is_away() or self._is_away()):
            return Blocked(AWAY, 0.5)
        typing = cooked or self._line.applies or self._rules.takes
        if not typing and not self._screen.bracketed_paste:
            return Blocked(NEITHER, 0.5)
        unread = self._terminal.unread()
        if unread is None:
            return Blocked("the agent is gone", 1.0)
        if unread:
            return Blocked("the program has not read its input yet", 0.05)
        if self._terminal.secret():
            return Blocked("a password is asked for", 1.0)
        if asked := self._paste.asks(composer):
            return Blocked(asked, 1.0)
        if self._line.applies:
            return self._line.hold(now, composer=composer)
        if cooked:
            return None
        if not any(row.strip() for row in rows):
            return Blocked("the program has shown nothing yet", 0.5)
        if (stands := self._paste.hold()) or (steer and composer == "empty"):
            return stands
        return self._guards.drawing(now, self._screen.changed_at)

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
            self._paste.resume(message)
        elif done and "enter0" not in done:
            self._line.resume(message, self._wrap(message, "line"), whole="rest" in done)

    # -- how ----------------------------------------------------------------------------------

    @property
    def combines(self) -> bool:
        return not (self.proves_reading or self._by_lines() or self._line.applies)

    async def submit(self, batch: list[Message]) -> Submitted:
        self._reads, self._unproven = self._terminal.reads(), ""
        if self._line.applies:
            held = await self._type_one_line(batch[0])
            return Submitted(0 if held else 1, held)
        if not self._by_lines():
            held = await self._paste_batch(batch)
            return Submitted(0 if held else len(batch), held)
        if len(batch) == 1:
            held = await self._type_long(batch[0])
            return Submitted(0 if held else 1, held)
        return await self._type_lines(batch)

    async def finish(self) -> bool:
        return await self._paste.finish()

    async def read(self, batch: list[Message]) -> str | None:
        if not await self._until_read():
            return None  # the end of the agent, not its reading, emptied it
        self._outstanding.clear()
        last = batch[-1]
        proven = self._seen(marker_of(last))
        if proven is not None:
            return "transcript" if proven else None
        if last.id not in self._raw and not self._terminal.cooked():
            self._unproven = UNSHOWN  # it has read it as keys, or thrown it away
            return None
        if last.id not in self._raw:
            for _ in range(PROOF_LOOKS):
                if self._reads is None or self._reads != self._terminal.reads():
                    return None if self._terminal.secret() else "read"
                await asyncio.sleep(PROOF_LOOK)  # the reader may not have been told of yet
            self._unproven = THROWN_AWAY
            return None
        for _ in range(PROOF_LOOKS):
            if self.shown(last):
                return "screen"
            await asyncio.sleep(PROOF_LOOK)
        self._unproven = STANDS if self._paste.stands(self._wrap(last, "paste")) else UNSHOWN
        return None

    async def _until_read(self) -> bool:
        """Wait until the program has taken all bytes; False when it is gone."""
        pause = 0.001
        empty = 0
        while empty < 2:
            # The kernel moves input in steps: only two looks in a row show that all was read.
            await asyncio.sleep(pause)
            unread = self._terminal.unread()
            if unread is None:
                return False
            empty = 0 if unread else empty + 1
            pause = 0.002 if empty else min(pause * 2, 0.5)
        return True

    def shown(self, message: Message) -> bool:
        if self._seen(marker_of(message)) is not None:
            return False  # the agent's records tell it
        if message.id not in self._raw:
            return False  # the kernel's echo shows it, whoever reads it
        return self._paste.shown(self._wrap(message, "paste"))

    @property
    def unproven(self) -> str:
        return self._unproven or self._paste.waits_for

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
        self._begun = "", 0
        return [(found[id_], lost[id_] == sizes[id_]) for id_ in lost]

    def left_unread(self, unread: int) -> list[Message]:
        left = list(self._raw.values())
        for message, size in reversed(self._outstanding):
            if unread > 0 and message.id not in self._raw:
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
        if write_id(message, "enter0") in self._written:
            self._raw[message.id] = message
            if not self._line.applies and (self._guards.entered or not self._guards.sequence):
                # Else what stands there may be the person's, from before this session.
                wrapped = self._wrap(message, "paste")
                self._paste.leave(message, wrapped, self._guards.sequence)
        return True

    async def _type_lines(self, batch: list[Message]) -> Submitted:
        """Several small messages, one write each, so that each is known to have landed or not."""
        self._questions.enters()
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
        """One message, in pieces that the program must have read before the next one follows.

        Where somebody types or is asked in between, the rest follows later.
        """
        wrapped = self._wrap(message)
        self._screen.expect_echo(wrapped.text, self._clock())
        if self._begun[0] != message.id:
            self._questions.enters()
            self._begun = message.id, 0
        for index, chunk in enumerate(in_pieces(self._typed(wrapped), COOKED_MAX)):
            step = write_id(message, f"line{index}")
            if step not in self._written and index >= self._begun[1]:
                if index:
                    await self._until_read()
                    now = self._clock()
                    if (held := self._guards.person(now)) or (asked := self._paste.asks()):
                        return held or Blocked(asked, 1.0)
                if not await self._link.write(chunk, write_id=step, sequence=self._guards.sequence):
                    return Blocked("the person is typing", 1.0)
                self._begun = message.id, index + 1
            self._outstanding.append((message, len(chunk)))
        self._begun = "", 0
        return None

    async def _type_one_line(self, message: Message) -> Blocked | None:
        wrapped = self._wrap(message)
        held = await self._line.submit(message, wrapped)
        if held is None:
            self._typed_raw(message, wrapped)
        return held

    async def _paste_batch(self, batch: list[Message]) -> Blocked | None:
        message, wrapped = batch[0], self._wrap(batch[0])
        if len(batch) > 1:
            wrapped = envelopes([replace(m, body=self._rules.spell(m.body)) for m in batch])
        self._screen.expect_echo(wrapped.text, self._clock())
        held = await self._paste.submit(message, wrapped)
        if held is None:
            self._typed_raw(message, wrapped)
        return held

    def _typed_raw(self, message: Message, wrapped: Envelope) -> None:
        self._outstanding.append((message, len(wrapped.text.encode("utf-8", "replace")) + 1))
        self._raw[message.id] = message
        while len(self._raw) > RAW_MAX:
            self._raw.popitem(last=False)

    def _starts(self, rows: list[str]) -> bool:
        """Whether the program may still be on its way to what it reads: most full-screen programs
        begin in a cooked terminal, and throw away or misread what was typed there. However long
        that takes; where the system does not say who reads, it has to have shown something."""
        if not self._started:
            reads = self._terminal.waits()
            drawn = reads is None and any(row.strip() for row in rows)
            self._started = self._rules.vouched or bool(reads) or drawn
        return not self._started

    def _is_away(self) -> bool:
        """Whether a program that takes pastes when it rests lets the kernel edit lines now."""
        return self._questions.pastes and self._rules.takes != "line"

    def _by_lines(self) -> bool:
        """Whether lines are typed, not pasted: the kernel edits them."""
        return self._terminal.cooked() and self._rules.takes != "paste"

    def _wrap(self, message: Message, style: Style | None = None) -> Envelope:
        if style is None:
            style = (
                "plain" if self._terminal.cooked() else "line" if self._line.applies else "paste"
            )
        spelled = replace(message, body=self._rules.spell(message.body))
        if style == "plain" and len(message.body) < ONE_LINE:
            # A line program takes each line for a message of its own.
            short = envelope(spelled, style="line", ascii_only=self._ascii_only)
            if len(short.text.encode()) <= ONE_LINE:
                return short
        return envelope(spelled, style=style, ascii_only=self._ascii_only)

    @staticmethod
    def _typed(wrapped: Envelope) -> bytes:
        return "".join(line + "\n" for line in wrapped.lines).encode("utf-8", "replace")
