"""Brings messages into one agent: by its terminal, or by an interface of the agent's own.

The typist hands over whole messages, and says how far each got. It never retries by itself:
relay.session.delivery does, once it has checked whether the last attempt arrived.

Into a terminal there are three ways: whole lines where the kernel edits them, one line at a time
where the program does (line_typing), or a bracketed paste and Enter (paste_typing).
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from relay.agents.base import Blocked
from relay.core.errors import RelayError
from relay.core.message import Message, QueueMode
from relay.directive.envelope import LINE_BYTES, Envelope, Style, envelope, envelopes, marker_of
from relay.session.agent_terminal import AgentTerminal, write_id
from relay.session.line_typing import WAY_OUT, LineTyper
from relay.session.paste_typing import STANDS, AgentRecords, PasteTyper
from relay.session.typing_policy import DRAFT, TYPING, waits

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

#: After so many seconds an agent's transcript shows a message that it took through its channel.
CHANNEL_LANDING = 3.0
#: Seconds that the agent's own records may take to show typed text, and between two looks.
RECORDS_PATIENCE, RECORDS_LOOK = 10.0, 0.05

NEITHER = f"the program takes neither lines nor pastes now; {WAY_OUT}"
AWAY = f"it is busy, or reads lines without a prompt; {WAY_OUT}"


@dataclass(frozen=True, slots=True)
class Submitted:
    """How many messages of a batch were handed over whole; of the others not a byte went."""

    count: int
    hold: Blocked | None = None


@dataclass(frozen=True, slots=True)
class ReadProof:
    """The proof that the program has taken a batch. Without one: why there is none, or empty where
    it is still expected."""

    proof: str | None
    why: str = ""


class AgentRoute(Enum):
    """How a message gets into the agent."""

    TYPED = auto()
    CHANNEL = auto()  # the agent's own message interface: also while it works, and beside drafts
    TYPED_FIRST = auto()  # typed, or by the channel while a draft stands in the input line


class Typist:
    """Types messages into one agent, or hands them to its channel.

    ``written`` holds the ids of the writes that the pump is known to have finished; the pump keeps
    them across a session's death, so a retry never types the same bytes twice.

    Where there are no ``records``, lines that were read count as seen, and what was typed into a
    program that reads keys when its screen shows it.
    """

    #: The agent was given relay's primer: its envelopes are short.
    primed = False

    def __init__(
        self,
        at: AgentTerminal,
        records: AgentRecords,
        *,
        ascii_only: bool = False,
        written: frozenset[int] = frozenset(),
    ) -> None:
        self._link, self._terminal, self._screen = at.link, at.terminal, at.screen
        self._guards, self._questions, self._clock = at.guards, at.questions, at.clock
        self._rules = at.questions.rules
        self.primed = self._rules.primed
        self._records = records
        self._adapter = records.adapter
        self._channel = None if self._adapter is None else self._adapter.channel
        self._ascii_only = ascii_only
        self._written = written
        self._built = at.clock()
        self._line = LineTyper(at)
        self._paste = PasteTyper(at, records)
        self._past_draft = False  # a message with both routes goes by the channel now
        self._outstanding: list[tuple[Message, int]] = []  # typed and perhaps not read: bytes
        self._raw: OrderedDict[str, Message] = OrderedDict()  # that it was read proves nothing
        self._started = False  # the program was seen to wait for input
        self._begun = "", 0  # of this message so many pieces have been typed
        self._reads: int | None = None  # how often the program had read before a batch

    # -- which way ----------------------------------------------------------------------------

    def route(self, message: Message) -> AgentRoute:
        """How this message goes: the person's own words are typed where the agent's channel would
        show them as somebody else's."""
        return AgentRoute.TYPED if message.proven and self._frames_peers else self._usual_route()

    def _usual_route(self) -> AgentRoute:
        if self._channel is None or self._adapter is None:
            return AgentRoute.TYPED
        if self._adapter.typed_first:
            return AgentRoute.TYPED_FIRST
        young = self._clock() - self._built < self._adapter.patience
        return AgentRoute.CHANNEL if self._channel.available or young else AgentRoute.TYPED

    @property
    def steers(self) -> bool:
        """Whether messages can go into the running turn, be it with the answers to hooks."""
        adapter = self._adapter
        return adapter is not None and (adapter.steers or adapter.injection is not None)

    @property
    def _frames_peers(self) -> bool:
        return self._adapter is not None and self._adapter.frames_peers

    @property
    def _types(self) -> bool:
        """Whether any message is typed now."""
        return self._frames_peers or self._usual_route() is not AgentRoute.CHANNEL

    def _by_channel(self, message: Message) -> bool:
        route = self.route(message)
        return route is AgentRoute.CHANNEL or (route is AgentRoute.TYPED_FIRST and self._past_draft)

    # -- when ---------------------------------------------------------------------------------

    def hold(self, message: Message, now: float) -> Blocked | None:
        """Why this message cannot go now; the same for all of its route and mode."""
        route = self.route(message)
        steer = message.mode is QueueMode.STEER and self._usual_route() is not AgentRoute.TYPED
        if route is AgentRoute.TYPED:
            return self.typing_hold(now, steer=steer)
        return self._route_hold(route, now)

    def waits(self, message: Message, now: float, underway: float | None) -> Blocked | None:
        """Why a message waits though the agent would take it into its running turn: only those that
        are meant for it go there. ``underway``: see relay.session.typing_policy."""
        steers = self._adapter is not None and self._adapter.steers
        if not steers or self._usual_route() is not AgentRoute.CHANNEL:
            return None
        return waits(message, self._guards, now, underway)

    def at_prompt(self, now: float) -> bool:
        """Whether the agent could take a message now, apart from what the person is doing. True of
        a program into which nothing is ever typed."""
        held = self._route_hold(self._usual_route(), now)
        return held is None or held.reason in (DRAFT, TYPING, self._rules.refusal)

    def _route_hold(self, route: AgentRoute, now: float) -> Blocked | None:
        if route is AgentRoute.CHANNEL:
            return self._channel_hold(now)
        held = self.typing_hold(now)
        if route is AgentRoute.TYPED_FIRST:
            available = self._channel is not None and self._channel.available
            self._past_draft = held is not None and held.reason is DRAFT and available
            return self._channel_hold(now) if self._past_draft else held
        return held

    def _channel_hold(self, now: float) -> Blocked | None:
        if self._channel is None or self._adapter is None or not self._channel.available:
            return Blocked("the agent's message channel is closed", 0.5)
        return self._adapter.hold(now)

    def typing_hold(self, now: float, *, steer: bool = False) -> Blocked | None:
        """Why nothing may be typed now. ``steer``: what is typed while the program works goes into
        its running turn."""
        if self._rules.refusal:
            return Blocked(self._rules.refusal)
        rows = self._screen.visible()
        composer = self._questions.composer(rows)
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

    # -- handing over -------------------------------------------------------------------------

    def batch(self, ready: Sequence[Message]) -> list[Message]:
        """Which of the ``ready`` messages, oldest first, go over in one piece."""
        first = ready[0]
        route = self.route(first)
        ready = [message for message in ready if self.route(message) is route]
        if first.mode is QueueMode.COLLECT and self._combines(first):
            return ready
        if self._by_channel(first) or not self._by_lines():
            return ready[:1]
        chosen: list[Message] = []
        size = 0
        for message in ready:
            size += len(self._typed(self._wrap(message)))
            if len(chosen) == BATCH_MAX or (chosen and size > COOKED_MAX):
                break
            chosen.append(message)
        return chosen

    def _combines(self, message: Message) -> bool:
        """Whether several messages can be handed over as one text, with a proof for each."""
        if self._by_channel(message):
            return True
        return not (self.proves_reading or self._by_lines() or self._line.applies)

    def offered(self, message: Message) -> None:
        """A message waits from now on: what of it stands in the input line is no draft."""
        steps = ("paste", "probe", "rest", "enter0")
        done = [step for step in steps if write_id(message, step) in self._written]
        if done == ["paste"]:
            self._paste.resume(message)
        elif done and "enter0" not in done:
            self._line.resume(message, self._wrap(message, "line"), whole="rest" in done)

    async def submit(self, batch: list[Message]) -> Submitted:
        """Hand the batch over, in order."""
        if self._by_channel(batch[0]):
            return await self._native(batch)
        self._reads = self._terminal.reads()
        if self._line.applies:
            held = await self._type_one_line(batch[0])
        elif not self._by_lines():
            held = await self._paste_batch(batch)
        elif len(batch) > 1:
            return await self._type_lines(batch)
        else:
            held = await self._type_long(batch[0])
        return Submitted(0 if held else len(batch), held)

    def asked(self, message: Message) -> str:
        """The question that keeps a message from going on that is being handed over."""
        return "" if self._by_channel(message) else self._paste.waits_for

    async def finish(self) -> bool:
        """Press Enter for a text that was left in the input line; whether there is one."""
        return self._types and await self._paste.finish()

    async def _native(self, batch: list[Message]) -> Submitted:
        """Hand the batch to the agent's own message interface."""
        assert self._adapter is not None and self._channel is not None
        wrapped = envelopes(batch)
        if self._adapter.accepted(wrapped.marker):
            return Submitted(len(batch))  # an attempt that seemed to fail has arrived
        try:
            await self._channel.submit(wrapped.text, wrapped.marker)
        except (OSError, RelayError) as error:
            return Submitted(0, Blocked(f"the agent's message channel failed: {error}", 1.0))
        return Submitted(len(batch))

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
            wrapped = envelopes([self._spelled(one) for one in batch])
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

    # -- what became of it --------------------------------------------------------------------

    async def read(self, batch: list[Message]) -> ReadProof:
        """Wait until the program has taken the batch; the next message must not go before."""
        marker = marker_of(batch[-1])
        if self._by_channel(batch[-1]):
            # Usually proven later, by the agent's own hooks and transcript; after a restart it may
            # have been proven to the session before this one.
            assert self._adapter is not None
            return ReadProof("transcript" if self._adapter.seen(marker) else None)
        if self.route(batch[-1]) is AgentRoute.TYPED or self._records.seen(marker) is None:
            return await self._read_typed(batch)
        reading = asyncio.ensure_future(self._read_typed(batch))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECORDS_PATIENCE):
                    while self._records.seen(marker) is False:
                        await asyncio.sleep(RECORDS_LOOK)
            return ReadProof("transcript") if self._records.seen(marker) else await reading
        finally:
            reading.cancel()

    async def _read_typed(self, batch: list[Message]) -> ReadProof:
        if not await self._until_read():
            return self._not_proven()  # the end of the agent, not its reading, emptied it
        self._outstanding.clear()
        last = batch[-1]
        seen = self._records.seen(marker_of(last))
        if seen is not None:
            return ReadProof("transcript") if seen else self._not_proven()
        if last.id not in self._raw and not self._terminal.cooked():
            return self._not_proven(UNSHOWN)  # it has read it as keys, or thrown it away
        if last.id not in self._raw:
            for _ in range(PROOF_LOOKS):
                if self._reads is None or self._reads != self._terminal.reads():
                    return self._not_proven() if self._terminal.secret() else ReadProof("read")
                await asyncio.sleep(PROOF_LOOK)  # the reader may not have been told of yet
            return self._not_proven(THROWN_AWAY)
        for _ in range(PROOF_LOOKS):
            if self.shown(last):
                return ReadProof("screen")
            await asyncio.sleep(PROOF_LOOK)
        stands = self._paste.stands(self._wrap(last, "paste"))
        return self._not_proven(STANDS if stands else UNSHOWN)

    def _not_proven(self, why: str = "") -> ReadProof:
        return ReadProof(None, why or self._paste.waits_for)

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
        """Whether there is a proof on the screen by now that a submitted message was taken."""
        if (
            self.route(message) is AgentRoute.CHANNEL
            or self._records.seen(marker_of(message)) is not None
        ):
            return False  # the agent's records tell it
        if message.id not in self._raw:
            return False  # the kernel's echo shows it, whoever reads it
        return self._paste.shown(self._wrap(message, "paste"))

    @property
    def proves_reading(self) -> bool:
        """Whether bytes that are no longer unread prove that a typed message was seen."""
        return self._types and self._records.seen("") is None

    def landing_takes(self, message: Message) -> float:
        """After so many seconds ``landed`` knows of all attempts of earlier sessions."""
        route = self.route(message)
        typed = 0.0 if self._records.seen("") is None else TYPED_LANDING
        return typed if route is AgentRoute.TYPED else max(typed, CHANNEL_LANDING)

    def landed(self, message: Message) -> bool:
        """Whether an earlier attempt, perhaps of a killed session, has arrived."""
        route = self.route(message)
        if route is not AgentRoute.CHANNEL and self._landed_typed(message):
            return True
        accepted = self._adapter is not None and self._adapter.accepted(marker_of(message))
        return route is not AgentRoute.TYPED and accepted

    def _landed_typed(self, message: Message) -> bool:
        # In either way: the program may have changed the mode of its terminal since.
        typed = self._typed(self._wrap(message, "plain"))
        last = write_id(message, f"line{len(in_pieces(typed, COOKED_MAX)) - 1}")
        if self._written.isdisjoint((last, write_id(message, "enter0"))):
            # The person may have pressed Enter behind what an earlier session had pasted.
            return bool(self._records.seen(marker_of(message)))
        self._outstanding.append((message, len(typed)))
        if write_id(message, "enter0") in self._written:
            self._raw[message.id] = message
            if not self._line.applies and (self._guards.entered or not self._guards.sequence):
                # Else what stands there may be the person's, from before this session.
                wrapped = self._wrap(message, "paste")
                self._paste.leave(message, wrapped, self._guards.sequence)
        return True

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        """Forget the last ``unread`` bytes; the messages among them, newest first, and whether
        all of each was."""
        if not self.proves_reading:
            return []
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
        """Which typed messages were not read, when the last ``unread`` bytes were not."""
        left = list(self._raw.values())
        for message, size in reversed(self._outstanding):
            if unread > 0 and message.id not in self._raw:
                left.append(message)
            unread -= size
        return left

    # -- the terminal -------------------------------------------------------------------------

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
        spelled = self._spelled(message)
        if style == "plain" and len(message.body) < ONE_LINE:
            # A line program takes each line for a message of its own.
            short = envelope(spelled, style="line", ascii_only=self._ascii_only)
            if len(short.text.encode()) <= ONE_LINE:
                return short
        return envelope(spelled, style=style, ascii_only=self._ascii_only)

    def _spelled(self, message: Message) -> Message:
        spell = self._rules.spell
        return replace(message, body=spell(message.body), context=spell(message.context))

    @staticmethod
    def _typed(wrapped: Envelope) -> bytes:
        return "".join(line + "\n" for line in wrapped.lines).encode("utf-8", "replace")


def in_pieces(typed: bytes, most: int) -> list[bytes]:
    """Whole lines in pieces of at most ``most`` bytes (a longer line stands alone)."""
    chunks: list[bytes] = []
    current = b""
    for line in typed.splitlines(keepends=True):
        if current and len(current) + len(line) > most:
            chunks.append(current)
            current = b""
        current += line
    return [*chunks, current] if current else chunks
