"""Delivering by an agent's own message interface, or by typing and beside a draft by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from relay.agents.base import AgentAdapter, AgentStart, Blocked
from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.message import Message, QueueMode
from relay.directive.envelope import marker_of
from relay.session import native_channel
from relay.session.delivery_channel import Submitted
from relay.session.native_channel import (
    AgentRecords,
    ChannelSelector,
    FallbackChannel,
    NativeChannel,
)
from relay.session.typing_channel import TypingChannel
from relay.session.typing_policy import DRAFT, Guards
from tests.session.test_typing_channel import message


class FakeInterface(AgentAdapter):
    """An agent whose message interface fails with ``error`` once it has taken ``room``."""

    def __init__(self, error: Exception, room: int) -> None:
        super().__init__(AgentStart(0, 1, "/", "/", {}, {}, {}, lambda: 0.0))
        self.source = StructuredSource(SourceState())
        self.available = True
        self.texts: list[str] = []
        self.error, self.room = error, room

    async def submit(self, text: str, marker: str) -> None:
        if len(self.texts) >= self.room:
            self.texts.append(text)
            raise self.error
        self.texts.append(text)

    def accepted(self, marker: str) -> bool:
        return isinstance(self.error, TimeoutError) and any(marker in t for t in self.texts)


def test_a_channel_hands_over_one_message_and_says_when_it_is_closed() -> None:
    agent = FakeInterface(ConnectionRefusedError("refused"), room=1)
    channel = NativeChannel(agent, agent)
    assert channel.hold(0.0) is None
    assert asyncio.run(channel.submit([message("hello")])).count == 1
    refused = asyncio.run(channel.submit([message("hello")]))
    assert refused.count == 0 and refused.hold is not None
    agent.available = False
    assert channel.hold(0.0) is not None


def test_a_try_that_only_seemed_to_fail_is_not_repeated() -> None:
    agent = FakeInterface(TimeoutError("no answer"), room=0)
    channel = NativeChannel(agent, agent)
    assert asyncio.run(channel.submit([message("hello")])).count == 0
    assert asyncio.run(channel.submit([message("hello")])).count == 1
    assert len(agent.texts) == 1


class FakeChannel(NativeChannel):
    """Takes one message, and remembers it."""

    landing_takes = 2.0
    proves_reading = False

    def __init__(self) -> None:
        self.held: Blocked | None = None
        self.took: list[str] = []
        self.ends = True  # whether ``read`` comes to an end
        self.has_landed = False
        self.open = True

    @property
    def available(self) -> bool:
        return self.open

    def hold(self, now: float) -> Blocked | None:
        return self.held

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        return list(waiting[:1])

    async def submit(self, batch: list[Message]) -> Submitted:
        self.took += [one.body for one in batch]
        return Submitted(len(batch))

    async def read(self, batch: list[Message]) -> str | None:
        if not self.ends:
            await asyncio.Event().wait()
        return "read"

    def shown(self, message: Message) -> bool:
        return False

    @property
    def unproven(self) -> str:
        return ""

    def landed(self, message: Message) -> bool:
        return self.has_landed

    def left_unread(self, unread: int) -> list[Message]:
        return []

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        return []


class Both(AgentRecords):
    def __init__(self) -> None:
        self.typed, self.channel = FakeChannel(), FakeChannel()
        self.proof: bool | None = False
        self.proofs: Iterator[bool | None] = iter(())  # what is answered first
        self.asked: list[str] = []
        self.door = FallbackChannel(self.typed, self.channel, self)

    def seen(self, marker: str) -> bool | None:
        self.asked.append(marker)
        return next(self.proofs, self.proof)

    def pass_on(self, body: str = "hello") -> str | None:
        """Hand one message over; returns the proof."""
        batch = self.door.batch([message(body)])

        async def hand_over() -> str | None:
            await self.door.submit(batch)
            return await self.door.read(batch)

        return asyncio.run(hand_over())


def test_it_types_where_it_can() -> None:
    both = Both()
    assert both.door.hold(0.0) is None
    both.proof = True
    assert both.pass_on() == "transcript"
    assert both.typed.took == ["hello"] and both.channel.took == []
    assert both.asked[-1] == marker_of(message("hello"))


def test_beside_a_draft_the_channel_is_used_if_it_is_open() -> None:
    both = Both()
    both.typed.held = Blocked(DRAFT, 1.0)
    assert both.door.hold(0.0) is None
    assert both.pass_on() == "read"
    assert both.channel.took == ["hello"] and both.typed.took == []
    both.channel.open = False
    assert both.door.hold(0.0) == both.typed.held


@pytest.mark.parametrize("reason", ["a dialog waits for the person", "the agent is busy"])
def test_nothing_goes_past_a_dialog_or_into_a_turn(reason: str) -> None:
    both = Both()
    both.typed.held = Blocked(reason)
    assert both.door.hold(0.0) == both.typed.held


def test_the_next_one_waits_until_what_was_typed_has_begun_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Both()
    both.typed.ends = False  # it stands in the input line, for all that can be seen
    both.proof, both.proofs = True, iter([False, False, False, True])
    assert both.door.hold(0.0) is None
    assert both.pass_on() == "transcript"
    monkeypatch.setattr(native_channel, "PROOF_PATIENCE", 0.01)
    both = Both()
    assert both.door.hold(0.0) is None
    assert both.pass_on() == "read"


def test_without_records_what_was_read_counts() -> None:
    both = Both()
    both.proof = None
    assert both.door.hold(0.0) is None
    assert both.pass_on() == "read"


class FakeTyping(TypingChannel):
    """Holds what does not go into the running turn."""

    def __init__(self) -> None:
        pass

    def hold(self, now: float, *, steer: bool = False) -> Blocked | None:
        return None if steer else Blocked(DRAFT)


def test_the_persons_word_is_typed_where_the_channel_would_frame_it_as_a_peers() -> None:
    agent = FakeInterface(TimeoutError("no answer"), room=9)
    agent.channel, typing = agent, FakeTyping()
    own, other = replace(message("hello"), proven=True), message("hello")

    def selector() -> ChannelSelector:
        return ChannelSelector(typing, agent, AgentRecords(agent), Guards(), lambda: 0.0)

    ways = selector()
    assert ways.way(own) is ways.way(other) is ways.current() is not typing
    agent.frames_peers = True
    ways = selector()
    assert ways.way(other) is ways.current() and ways.hold(other, 0.0) is None
    assert ways.way(own) is typing and ways.ways() == {typing, ways.current()}
    assert ways.hold(own, 0.0) == Blocked(DRAFT)  # what others send goes past the draft
    assert ways.hold(replace(own, mode=QueueMode.STEER), 0.0) is None
    agent.available = False  # then all are typed, when the agent rests
    assert ways.way(other) is typing
    assert ways.hold(replace(own, mode=QueueMode.STEER), 0.0) == Blocked(DRAFT)


@pytest.mark.parametrize("way", ["typed", "channel"])
def test_an_earlier_try_may_have_gone_either_way(way: str) -> None:
    both = Both()
    assert not both.door.landed(message("hello"))
    getattr(both, way).has_landed = True
    assert both.door.landed(message("hello"))
    assert both.door.landing_takes == 2.0
