"""A session between a fake pump and a fake broker."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from relay.agents.base import StructuredSource
from relay.agents.codex.source import CodexSource
from relay.core.errors import BrokerUnavailable, RelayError, StorageError, UsageError
from relay.core.message import AgentState, Message, State
from relay.core.source_events import StateChange
from relay.directive.grammar import Match
from relay.hooks.context import Context
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.protocol import frames
from relay.screen.line_source import LineSource
from relay.session import builtin, retrying
from relay.session.delivery import DeliveryQueue
from relay.session.detector import Detection, DirectiveDetector
from relay.session.run_info import Facts
from relay.session.session import Session
from relay.session.sources import SourceSelector
from relay.session.typing_policy import Guards
from tests.session.test_delivery import FakeDoor


class FakeBroker:
    """Remembers what it is asked; ``errors`` are raised first, by op."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.errors: dict[str, list[RelayError]] = {}
        self.answer: dict[str, Any] = {}

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        if self.errors.get(op):
            raise self.errors[op].pop(0)
        self.asked.append((op, fields))
        return self.answer

    def states(self, op: str) -> list[str]:
        return [fields["state"] for asked, fields in self.asked if asked == op]


class FakeLink:
    def __init__(self) -> None:
        self.acks: list[tuple[int, bytes]] = []

    def ack(self, offset: int, checkpoint: bytes) -> None:
        self.acks.append((offset, checkpoint))

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def notice(self, text: str) -> None: ...
    def farewell(self, seconds: float) -> None: ...


class Desk:
    def __init__(
        self,
        registry: Registry | None = None,
        *,
        restarts: int = 0,
        started_ms: int = 0,
        structured: StructuredSource | None = None,
        handler_timeout: float = 30.0,
    ) -> None:
        self.broker = FakeBroker()
        self.link = FakeLink()
        self.door = FakeDoor()
        loop = asyncio.get_running_loop()
        facts = Facts(
            "run",
            "Ben",
            "me",
            started_ms,
            "/",
            {},
            restarts=restarts,
            handler_timeout=handler_timeout,
        )
        self.session = Session(
            facts,
            registry or Registry(),
            self.broker,
            self.link,
            Guards(),
            clock=loop.time,
            now_ms=lambda: 0,
        )
        session = self.session
        ears = SourceSelector(
            DirectiveDetector("run", 0, {"relay", "deploy"}),
            LineSource(80, 24, now=loop.time()),
            structured,
            on_heard=session.heard,
            on_text=session.said,
            on_state=session.state_changed,
            on_proof=session.proof,
        )
        session.connect(ears, DeliveryQueue(lambda: self.door, session.reports.delivery, loop.time))


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


async def until(check: Callable[[], object]) -> None:
    """Give the others their turn until ``check`` says so."""
    while not check():
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "RETRY_SECONDS", 0.0)


MESSAGE = Message(id=f"01K{1:023d}", sender="Ann", to="Ben", body="hi", created_at=0)
FIND = Detection(f"01K{2:023d}", Match("deploy", "x", "y", {}, False, "@deploy:x y"))


def test_what_came_of_a_message_is_reported_once_the_broker_can_take_it() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.session.begin()
        desk.broker.errors["state"] = [
            BrokerUnavailable("away"),
            StorageError("the disk is full"),
        ]
        desk.session.deliver(MESSAGE)
        await until(lambda: len(desk.broker.states("state")) == 3)
        assert desk.broker.states("state") == ["delivering", "submitted", "seen"]
        desk.broker.errors["state"] = [UsageError("no such step")]
        await desk.session.reports.delivery(MESSAGE, State.SEEN, "", "read")
        assert any("no such step" in note for note in desk.session.ears.notes)
        await desk.session.end()

    play(scenario)


def test_nothing_is_typed_that_the_broker_does_not_know_of() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.session.begin()
        desk.broker.errors["state"] = [BrokerUnavailable("away")] * 50
        desk.session.deliver(MESSAGE)
        await until(lambda: len(desk.broker.errors["state"]) < 10)
        assert desk.door.through == []
        await until(lambda: desk.door.through)
        await desk.session.end()

    play(scenario)


@pytest.mark.parametrize("restarts, calls", [(0, ["x"]), (1, [])])
def test_a_repeated_claim_is_our_own_unless_there_was_a_session_before(
    restarts: int, calls: list[str]
) -> None:
    called: list[str] = []
    registry = Registry()
    registry.add_pattern("deploy", "*", lambda target: called.append(target))

    async def scenario() -> None:
        desk = Desk(registry, restarts=restarts)
        desk.broker.answer = {"duplicate": True}
        desk.session.heard(FIND)
        await desk.session.dispatcher.settle(10.0)
        await desk.session.end()

    play(scenario)
    assert called == calls


def test_a_state_is_reported_when_the_broker_can_take_it_and_again_when_it_returns() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.broker.errors["agent_state"] = [BrokerUnavailable("away")] * 3
        desk.session.begin()
        await until(lambda: desk.broker.states("agent_state") == ["idle"])
        desk.session.state_changed(StateChange(AgentState.BUSY))
        await until(lambda: desk.broker.states("agent_state") == ["idle", "busy"])
        desk.session.introduce()
        await until(lambda: desk.broker.states("agent_state") == ["idle", "busy", "busy"])
        await desk.session.end()

    play(scenario)


def test_only_the_newest_state_is_reported_late() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.broker.errors["agent_state"] = [BrokerUnavailable("away")]
        desk.session.begin()
        await until(lambda: not desk.broker.errors["agent_state"])
        desk.session.state_changed(StateChange(AgentState.BUSY))
        await until(lambda: desk.broker.states("agent_state"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert desk.broker.states("agent_state") == ["busy"]
        await desk.session.end()

    play(scenario)


def test_a_failure_inside_is_noted_and_nothing_else_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scenario() -> None:
        desk = Desk()

        async def broken() -> None:
            raise KeyError("what")

        desk.session.spawn(broken())
        await until(lambda: desk.session.ears.notes)
        assert "KeyError" in desk.session.ears.notes[0]
        await desk.session.end()

    play(scenario)
    assert "KeyError" in capsys.readouterr().err


def test_a_checkpoint_that_fits_into_no_frame_is_not_sent() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.session.more_state = lambda: {"transcript": "x" * frames.FRAME_MAX}
        desk.session.frame(frames.OUTPUT, b"hello\n")
        await desk.session.end()
        assert desk.link.acks == [(6, b"")]
        assert any("too much waits" in note for note in desk.session.ears.notes)

    play(scenario)


def test_a_slow_handler_at_the_end_leaves_no_doubt_what_was_read() -> None:
    registry = Registry()

    async def scenario() -> None:
        desk = Desk(registry)
        order: list[str] = []

        async def on_end() -> None:
            order.extend(desk.broker.states("state"))

        registry.add_hook("on_session_end", on_end)
        desk.door.proof = None
        desk.session.begin()
        desk.session.deliver(MESSAGE)
        await until(lambda: desk.broker.states("state")[-1:] == ["submitted"])
        desk.session.frame(frames.EXIT, json.dumps({"unread": 0}).encode())
        await desk.session.end()
        assert order == ["delivering", "submitted", "seen"]

    play(scenario)


def test_the_start_hooks_of_a_run_are_fired_once_however_often_its_session_dies() -> None:
    fired: list[str] = []
    ids: list[str] = []

    async def start(restarts: int) -> None:
        registry = Registry()
        registry.add_hook("session_start", lambda ctx: fired.append(ctx.agent_name))
        desk = Desk(registry, restarts=restarts)
        desk.broker.answer = {"duplicate": restarts > 0}
        desk.session.begin()
        await until(lambda: fired and any(op == "event" for op, _ in desk.broker.asked))
        await desk.session.end()
        ids.extend(fields["id"] for op, fields in desk.broker.asked if op == "event")

    async def scenario() -> None:
        await start(0)
        await start(1)

    play(scenario)
    assert len(ids) == 2 and ids[0] == ids[1]
    assert fired == ["Ben"]


def test_the_start_and_the_last_words_come_before_the_end_however_short_the_life() -> None:
    async def scenario() -> None:
        fired: list[str] = []
        registry = Registry()
        registry.add_hook("session_start", lambda ctx: fired.append("start"))
        registry.add_hook("output", lambda output: fired.append(output))
        registry.add_hook("session_end", lambda reason: fired.append(reason))
        desk = Desk(registry)
        desk.session.begin()
        desk.session.frame(frames.OUTPUT, b"ERROR: boom\r\n")
        await desk.session.end()
        assert sorted(fired[:2]) == ["ERROR: boom", "start"] and fired[2:] == ["exit"]

    play(scenario)


def test_what_relay_told_an_earlier_agent_of_that_name_is_not_for_this_one() -> None:
    async def scenario() -> None:
        desk = Desk(started_ms=1000)
        desk.session.begin()
        answer = replace(MESSAGE, sender="relay", sender_kind="relay", created_at=999)
        desk.session.deliver(answer)
        await until(lambda: desk.broker.states("state"))
        [(_, reported)] = [asked for asked in desk.broker.asked if asked[0] == "state"]
        assert reported["state"] == "failed" and "has ended" in reported["reason"]
        # What others said waits for whoever has the name, and what relay says now is for this one.
        desk.session.deliver(replace(MESSAGE, id=f"01K{8:023d}", created_at=999))
        desk.session.deliver(replace(answer, id=f"01K{9:023d}", created_at=1000))
        await until(lambda: len(desk.door.through) == 2)
        await desk.session.end()

    play(scenario)


def test_a_key_that_an_earlier_session_dealt_with_hides_no_line_of_the_agents() -> None:
    async def scenario() -> None:
        enter = (3).to_bytes(4, "big") + frames.ENTERED
        first = Desk()
        first.session.begin()
        first.session.frame(frames.ACTIVITY, enter)
        first.session.frame(frames.OUTPUT, b"echo\r\nsaid\r\n")
        await first.session.end()
        checkpoint = json.loads(first.link.acks[-1][1])
        # The pump repeats the last key for a next session.
        registry = Registry()
        builtin.register(registry)
        second = Desk(registry, restarts=1)
        second.session.restore(checkpoint)
        second.session.begin()
        second.session.frame(frames.ACTIVITY, enter)
        second.session.frame(frames.OUTPUT, b"@relay:Ann first\r\n\r\n")
        assert second.session.guards.sequence == 3
        # A key that is new is the person's, and so is its echo.
        second.session.frame(frames.ACTIVITY, (4).to_bytes(4, "big") + frames.ENTERED)
        second.session.frame(frames.OUTPUT, b"@relay:Ann typed\r\n@relay:Ann second\r\n\r\n")
        await second.session.end()
        sent = [fields["body"] for op, fields in second.broker.asked if op == "send"]
        assert sent == ["first", "second"]

    play(scenario)


def test_last_words_are_saved_and_the_next_agent_of_that_name_is_not_told() -> None:
    async def scenario() -> None:
        registry = Registry()
        builtin.register(registry)
        saved: list[bool] = []

        async def last(ctx: Context) -> None:
            await until(lambda: "memory_save" in [op for op, _ in desk.broker.asked])
            await until(lambda: not desk.session.remembering.state())  # it has its answer
            saved.append(True)

        registry.add_hook("session_end", last)
        desk = Desk(registry)
        desk.broker.answer = {
            "memory": {"id": "k23fb0fc", "text": "x", "scope": "project"},
            "outcome": "new",
            "redacted": [],
        }
        desk.session.begin()
        found = Match("memory", "save", "x", {}, False, "@memory:save x")
        desk.session.heard(Detection(f"01K{3:023d}", found))
        await desk.session.end()
        assert saved and "send" not in [op for op, _ in desk.broker.asked]

    play(scenario)


def test_last_hooks_that_take_too_long_are_ended_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("relay.session.shutdown.CLOSING_DEADLINE", 0.3)

    async def hang(ctx: object) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        registry = Registry()
        registry.add_hook("session_end", hang)
        desk = Desk(registry)
        desk.session.begin()
        await desk.session.end()
        told = [fields["notes"] for op, fields in desk.broker.asked if op == "agent_state"]
        assert any("on_session_end took too long" in note for note in told[-1])

    play(scenario)


def test_hooks_have_the_time_that_the_configuration_gives_handlers() -> None:
    registry = Registry()
    released = threading.Event()
    registry.add_hook("session_start", lambda ctx: released.wait(60))

    async def scenario() -> None:
        desk = Desk(registry, handler_timeout=0.1)
        result = await desk.session.engine.fire(HookEventName.SESSION_START, {"source": "startup"})
        released.set()
        assert "did not end within 0.1 s" in result.errors[0].message
        await desk.session.end()

    play(scenario)


def test_a_key_that_flushes_counts_like_every_other_key() -> None:
    """The pump numbers it: a session that forgot it would have every later write refused."""

    async def scenario() -> None:
        desk = Desk()
        desk.session.begin()
        desk.session.frame(frames.ACTIVITY, (7).to_bytes(4, "big") + frames.FLUSHED + bytes(4))
        assert desk.session.guards.sequence == 7
        assert desk.session.guards.person(1e9) is None
        await desk.session.end()

    play(scenario)


@pytest.mark.parametrize(
    ("state", "held"),
    [
        (AgentState.IDLE, None),
        (AgentState.BUSY, None),
        (AgentState.BLOCKED, "a dialog waits for the person"),
        (AgentState.LIMITED, "its model does not answer"),
    ],
)
def test_a_next_session_knows_the_state_that_its_source_was_left_in(
    state: AgentState, held: str | None
) -> None:
    async def scenario() -> None:
        source = CodexSource(0.0)
        source.restore({**source.state(), "state": state.value})
        desk = Desk(restarts=1, structured=source)
        desk.session.begin()
        await until(lambda: desk.broker.states("agent_state"))
        assert desk.broker.states("agent_state") == [state.value]
        guards, now = desk.session.guards, asyncio.get_running_loop().time()
        hold = guards.person(now) or guards.limited(now)
        assert (hold.reason if hold else None) == held

    play(scenario)


def test_a_word_of_the_person_counts_also_after_a_session_that_was_killed() -> None:
    async def scenario() -> None:
        # What has reached the agent, the session before this one reported.
        desk = Desk(restarts=1)
        desk.session.frame(frames.ACTIVITY, (1).to_bytes(4, "big") + frames.ENTERED)
        await until(lambda: ("person", {}) in desk.broker.asked)

    play(scenario)
