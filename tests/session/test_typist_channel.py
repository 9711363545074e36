"""By an agent's own message interface, or by typing and beside a draft by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from relay.agents.base import AgentAdapter, AgentStart
from relay.agents.profile import ComposerState
from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.message import QueueMode
from relay.directive.envelope import marker_of
from relay.session import typist
from relay.session.agent_terminal import write_id
from relay.session.typing_policy import DRAFT
from relay.session.typist import AgentRoute
from tests.session.playbook import why
from tests.session.test_typist import Desk, message


class FakeInterface(AgentAdapter):
    """An agent with a message interface, which fails with ``error`` once it has taken ``room``."""

    typed_first = False

    def __init__(self, error: Exception | None = None, room: int = 9) -> None:
        super().__init__(AgentStart(0, 1, "/", "/", {}, {}, {}, lambda: 0.0))
        self.source = StructuredSource(SourceState())
        self.channel = self
        self.available = True
        self.texts: list[str] = []
        self.error, self.room = error or TimeoutError("no answer"), room

    async def submit(self, text: str, marker: str) -> None:
        if len(self.texts) >= self.room:
            self.texts.append(text)
            raise self.error
        self.texts.append(text)

    def accepted(self, marker: str) -> bool:
        return isinstance(self.error, TimeoutError) and any(marker in t for t in self.texts)


HELLO = message("hello")


def test_a_channel_hands_over_one_message_and_says_when_it_is_closed() -> None:
    agent = FakeInterface(ConnectionRefusedError("refused"), room=1)
    agent.typed_first = True
    desk = Desk(paste=True, composer=lambda rows: "draft", adapter=agent)
    assert desk.door.hold(HELLO, desk.now) is None
    assert asyncio.run(desk.door.submit([HELLO])).count == 1
    refused = asyncio.run(desk.door.submit([HELLO]))
    assert refused.count == 0 and refused.hold is not None
    agent.available = False
    assert desk.door.hold(HELLO, desk.now) is not None


def test_a_try_that_only_seemed_to_fail_is_not_repeated() -> None:
    agent = FakeInterface(room=0)
    desk = Desk(adapter=agent)
    assert asyncio.run(desk.door.submit([HELLO])).count == 0
    assert asyncio.run(desk.door.submit([HELLO])).count == 1
    assert len(agent.texts) == 1 and desk.link.written == []


class Both(Desk):
    """An agent that is typed into first, with an input line that holds ``composer``."""

    def __init__(self, composer: ComposerState = "empty", *, cooked: bool = False) -> None:
        self.composer: ComposerState = composer
        self.agent = FakeInterface()
        self.agent.typed_first = True
        self.asked: list[str] = []
        self.proof: bool | None = False
        self.proofs: Iterator[bool | None] = iter(())  # what is answered first
        super().__init__(
            cooked=cooked, paste=not cooked, composer=lambda rows: self.composer, adapter=self.agent
        )
        self.records.prove = self.prove

    def prove(self, marker: str) -> bool | None:
        self.asked.append(marker)
        return next(self.proofs, self.proof)

    def pass_on(self) -> str | None:
        """Hand one message over; returns the proof."""
        assert self.door.hold(HELLO, self.now) is None
        batch = self.door.batch([HELLO])

        async def hand_over() -> str | None:
            assert (await self.door.submit(batch)).count == 1
            return (await self.door.read(batch)).proof

        return asyncio.run(hand_over())


def test_it_types_where_it_can() -> None:
    both = Both(cooked=True)
    both.proof = True
    assert both.pass_on() == "transcript"
    assert len(both.link.written) == 1 and both.agent.texts == []
    assert both.asked[-1] == marker_of(HELLO)


def test_beside_a_draft_the_channel_is_used_if_it_is_open() -> None:
    both = Both("draft")
    both.pass_on()
    assert len(both.agent.texts) == 1 and both.link.written == []
    both.agent.available = False
    assert why(both.door.hold(HELLO, both.now)) == DRAFT


@pytest.mark.parametrize("composer", ["dialog", "busy"])
def test_nothing_goes_past_a_dialog_or_into_a_turn(composer: ComposerState) -> None:
    both = Both(composer)
    assert both.door.hold(HELLO, both.now) == both.door.typing_hold(both.now) is not None


def test_the_next_one_waits_until_what_was_typed_has_begun_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Both(cooked=True)
    both.terminal.left = 10  # nobody has read it, for all that can be seen
    both.link.refuse = lambda count: False
    assert both.door.hold(HELLO, both.now) is not None
    both.terminal.left = 0
    both.proof, both.proofs = True, iter([False, False, False, True])
    assert both.pass_on() == "transcript"
    monkeypatch.setattr(typist, "RECORDS_PATIENCE", 0.01)
    both = Both(cooked=True)
    assert both.pass_on() is None  # the records do not show it


def test_collected_messages_go_as_one_text_where_there_is_a_proof_for_each() -> None:
    collected = [replace(message(f"m{n}", n), mode=QueueMode.COLLECT) for n in range(3)]
    by_paste = Desk(paste=True)
    by_paste.records.prove = lambda marker: False
    assert by_paste.door.batch(collected) == collected
    assert Desk(paste=True).door.batch(collected) == collected[:1]
    assert Desk(adapter=FakeInterface()).door.batch(collected) == collected


def test_the_persons_word_is_typed_where_the_channel_would_frame_it_as_a_peers() -> None:
    agent = FakeInterface()
    own, steered = replace(HELLO, proven=True), replace(HELLO, proven=True, mode=QueueMode.STEER)
    desk = Desk(paste=True, composer=lambda rows: "empty", adapter=agent)
    desk.guards.output(desk.now)  # it works: nothing is typed but what steers
    assert desk.door.route(own) is desk.door.route(HELLO) is AgentRoute.CHANNEL
    assert not desk.door.proves_reading
    agent.frames_peers = True
    assert desk.door.route(HELLO) is AgentRoute.CHANNEL and desk.door.hold(HELLO, desk.now) is None
    assert desk.door.route(own) is AgentRoute.TYPED and desk.door.proves_reading
    assert desk.door.batch([HELLO, own]) == [HELLO]
    assert desk.door.hold(own, desk.now) is not None  # what others send goes meanwhile
    assert desk.door.hold(steered, desk.now) is None
    agent.available = False  # then all are typed, when the agent rests
    assert desk.door.route(HELLO) is AgentRoute.TYPED
    assert desk.door.hold(steered, desk.now) is not None


@pytest.mark.parametrize("way", ["typed", "channel"])
def test_an_earlier_try_may_have_gone_either_way(way: str) -> None:
    typed = write_id(HELLO, "line0") if way == "typed" else 0
    agent = FakeInterface()
    agent.typed_first = True
    desk = Desk(adapter=agent, written=frozenset({typed}))
    if way == "channel":
        assert not desk.door.landed(HELLO)
        agent.texts.append(marker_of(HELLO))
    assert desk.door.landed(HELLO)
    assert desk.door.landing_takes(HELLO) == typist.CHANNEL_LANDING
