"""Messages with the answers to an agent's hooks: given once, proven, or waiting again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from relay.agents.base import Blocked
from relay.agents.context_door import InjectionProof
from relay.agents.hook_codec import AgentHookCall
from relay.agents.qwen.adapter import QwenAdapter, TurnProof
from relay.core.message import AgentState, Message, QueueMode, State
from relay.core.source_events import StateChange
from relay.directive.envelope import marker_of
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated
from relay.session import steering
from relay.session.background import Tasks
from relay.session.delivery import DeliveryQueue
from relay.session.session_events import EventQueue
from relay.session.steering import MESSAGES_MAX, HookAttachment, Steering, chosen
from relay.session.typing_policy import Guards, waits
from relay.session.typist import Submitted
from tests.session.test_delivery import FakeReports, FakeStopper, FakeTypist

AFTER = AgentHookCall(HookEventName.AFTER_TOOL, {"tool_use_id": "call-1"}, True)


def message(number: int, mode: QueueMode = QueueMode.STEER, attempt: int = 0) -> Message:
    return Message(
        id=f"01K{number:023d}", sender="Ann", to="Ben", body=f"m{number}", created_at=0, mode=mode,
        attempt=attempt,
    )  # fmt: skip


class Records(InjectionProof):
    """An agent's records, which show what it was given."""

    room = 10_000

    def __init__(self) -> None:
        self.shown: set[str] = set()

    async def own(self, call: AgentHookCall) -> bool:
        return not call.native.get("agent_id")

    def landed(self, marker: str) -> bool:
        return marker in self.shown


class Asked:
    """A Qwen Code whose model has begun ``answers`` answers."""

    trusted = True
    answers = 3

    @property
    def source(self) -> Asked:
        return self

    def went_on(self, count: int) -> bool:
        return self.answers > count

    async def own(self, call: str) -> bool:
        return call == "call-1"


class Desk:
    """A queue whose channel is shut while the agent is busy, and what gives beside it."""

    def __init__(self) -> None:
        self.channel = FakeTypist()
        self.channel.steers = True
        self.channel.closed = Blocked("the agent is busy", 0.01)
        self.now = 0.0
        self.shows = Records()
        self.records: InjectionProof = self.shows
        self.reports: list[tuple[str, str]] = []
        self.held_up: asyncio.Event | None = None  # the broker is away until this is set
        self.withdrawn: set[str] = set()
        self.tasks = Tasks(EventQueue())
        self.accounts = FakeReports(self.report)
        self.queue = DeliveryQueue(
            *(self.channel, self.accounts, Guards(), lambda: self.now), *(FakeStopper(),)
        )
        self.steering = self.start()

    def start(self) -> Steering:
        """What gives in one session; the next one has its own."""
        return Steering(self.queue, self.records, self.accounts, self.tasks, lambda: self.now)

    async def report(self, one: Message, state: State, reason: str, proof: str) -> bool:
        if self.held_up is not None:
            await self.held_up.wait()
        self.reports.append((one.body, state.value))
        return one.body not in self.withdrawn

    async def settle(self) -> None:
        await self.tasks.settle(10.0)

    async def give(
        self, call: AgentHookCall = AFTER, result: Aggregated | None = None
    ) -> HookAttachment | None:
        return await self.steering.attach(call, result or Aggregated())

    def left(self) -> list[str]:
        return [one.body for one in self.queue.waiting(lambda one: True)]


async def given(desk: Desk) -> HookAttachment:
    attachment = await desk.give()
    assert attachment is not None
    return attachment


async def test_a_steer_message_goes_with_the_answer_and_the_others_wait() -> None:
    desk = Desk()
    for number, mode in enumerate(
        (QueueMode.FOLLOWUP, QueueMode.STEER, QueueMode.COLLECT, QueueMode.STEER)
    ):
        desk.queue.offer(message(number, mode))
    attachment = await given(desk)
    assert [marker_of(message(n)) in attachment.text for n in range(4)] == [0, 1, 0, 1]
    assert desk.reports == [("m1", "delivering"), ("m3", "delivering")]
    attachment.sent(True)
    await desk.settle()
    assert desk.reports[2:] == [("m1", "submitted"), ("m3", "submitted")]
    assert desk.left() == ["m0", "m2"]
    assert await desk.give() is None  # not twice
    proven = desk.steering.proven(attachment.text, "transcript")
    assert [(one.body, by) for one, by in proven] == [("m1", "transcript"), ("m3", "transcript")]
    assert desk.steering.proven(attachment.text, "transcript") == []


async def test_an_answer_that_did_not_go_out_gives_nothing() -> None:
    desk = Desk()
    for number in range(3):
        desk.queue.offer(message(number, QueueMode.FOLLOWUP if number == 2 else QueueMode.STEER))
    (await given(desk)).sent(False)
    assert desk.left() == ["m0", "m1", "m2"]
    assert ("m0", "submitted") not in desk.reports
    # The turn is over meanwhile: it goes through the channel like any other.
    desk.channel.closed = None
    task = asyncio.ensure_future(desk.queue.run())
    async with asyncio.timeout(10):
        while ("m2", "seen") not in desk.reports:
            await asyncio.sleep(0)
    task.cancel()
    assert desk.channel.through == ["m0", "m1", "m2"]


async def test_what_was_withdrawn_meanwhile_goes_with_no_answer() -> None:
    desk = Desk()
    desk.withdrawn = {"m0"}
    for number in range(2):
        desk.queue.offer(message(number))
    attachment = await given(desk)
    assert [marker_of(message(n)) in attachment.text for n in range(2)] == [0, 1]
    attachment.sent(True)
    await desk.settle()
    assert ("m0", "submitted") not in desk.reports and desk.left() == []


async def test_two_hooks_at_once_share_nothing() -> None:
    desk = Desk()
    for number in range(MESSAGES_MAX + 1):
        desk.queue.offer(message(number))
    attachments = await asyncio.gather(desk.give(), desk.give(), desk.give())
    texts = [attachment.text for attachment in attachments if attachment is not None]
    assert len(texts) == 2
    markers = [marker_of(message(n)) for n in range(MESSAGES_MAX + 1)]
    assert [sum(marker in text for text in texts) for marker in markers] == [1] * len(markers)


async def test_what_a_door_takes_no_hook_gives() -> None:
    desk = Desk()
    desk.channel.closed = None
    desk.channel.proof = None
    begun, let_go = asyncio.Event(), asyncio.Event()
    submit = desk.channel.submit

    async def slow(batch: list[Message]) -> Submitted:
        begun.set()
        await let_go.wait()
        return await submit(batch)

    desk.channel.submit = slow  # type: ignore[method-assign]
    desk.queue.offer(message(1))
    task = asyncio.ensure_future(desk.queue.run())
    await begun.wait()
    assert await desk.give() is None
    desk.queue.offer(message(2))
    attachment = await given(desk)  # that one is in nobody's hand
    assert marker_of(message(2)) in attachment.text
    attachment.sent(False)
    let_go.set()
    async with asyncio.timeout(10):
        while desk.channel.through != ["m1", "m2"]:
            await asyncio.sleep(0)
    task.cancel()


async def test_what_a_hook_gives_no_door_takes() -> None:
    desk = Desk()
    desk.queue.offer(message(1))
    task = asyncio.ensure_future(desk.queue.run())
    attachment = await given(desk)
    desk.channel.closed = None
    desk.queue.look_again()
    for _ in range(20):
        await asyncio.sleep(0)
    attachment.sent(True)
    await desk.queue.thrown_away(1000)  # the person's Ctrl-C throws typed bytes away only
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    assert desk.channel.through == [] and desk.left() == []


async def test_a_broker_that_is_away_does_not_keep_the_agent_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steering, "WRITTEN_DOWN", 0.01)
    desk = Desk()
    desk.held_up = asyncio.Event()
    desk.queue.offer(message(1))
    assert await desk.give() is None
    assert desk.left() == ["m1"] and desk.reports == []


async def test_an_agent_that_leaves_while_the_broker_writes_gets_nothing() -> None:
    desk = Desk()
    desk.held_up = asyncio.Event()
    desk.queue.offer(message(1))
    giving = asyncio.ensure_future(desk.give())
    while desk.left():
        await asyncio.sleep(0)
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    assert desk.left() == ["m1"]


async def test_what_a_turn_did_not_take_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering, "PROOF_PATIENCE", 0.01)
    desk = Desk()
    desk.queue.offer(message(1))
    desk.queue.offer(message(2))
    desk.queue.offer(message(3))
    attachment = await given(desk)
    attachment.sent(True)
    desk.shows.shown.add(marker_of(message(2)))  # its record is there, and will be read
    assert [one.body for one, _ in desk.steering.proven(marker_of(message(3)), "x")] == ["m3"]
    desk.steering.state_changed(AgentState.BUSY)
    await desk.settle()
    assert desk.left() == []
    desk.steering.state_changed(AgentState.IDLE)
    await desk.settle()
    assert desk.left() == ["m1"]
    [again] = desk.queue.waiting(lambda one: True)
    assert again.attempt == 1  # the envelope says so, and the records are looked into first
    assert [one.body for one, _ in desk.steering.proven(marker_of(message(2)), "x")] == ["m2"]


async def test_an_agent_that_was_asked_again_has_what_it_was_given(tmp_path: Path) -> None:
    asked, file = Asked(), str(tmp_path / "given.json")

    def records() -> TurnProof:
        return TurnProof(file, cast(QwenAdapter, asked))

    desk = Desk()
    desk.records = records()
    desk.steering = desk.start()
    desk.queue.offer(message(1))
    subagents = AgentHookCall(HookEventName.AFTER_TOOL, {"tool_use_id": "other"}, True)
    assert await desk.give(subagents) is None
    attachment = await given(desk)
    asked.answers = 4
    assert desk.steering.landed() == []  # not before it went out
    asked.answers = 3
    attachment.sent(True)
    assert desk.steering.landed() == []
    # A session that follows this one can tell, once it has read what this one had not.
    marker = marker_of(message(1))
    after = records()
    assert not after.landed(marker)
    asked.answers = 4
    assert after.landed(marker)
    assert [(one.body, by) for one, by in desk.steering.landed()] == [("m1", "hook")]
    assert desk.steering.landed() == []

    desk.queue.offer(message(2))
    (await given(desk)).sent(False)
    asked.answers = 9
    assert not records().landed(marker_of(message(2)))


async def test_a_session_that_was_killed_after_the_answer_gives_nothing_twice() -> None:
    desk = Desk()
    again = message(1, attempt=1)
    desk.queue.offer(again)
    assert await desk.give() is None  # what the last session gave is not read yet
    desk.now = 10.0
    desk.shows.shown.add(marker_of(again))
    assert await desk.give() is None  # it is there: the queue accounts for it
    desk.shows.shown.clear()
    assert "sent again" in (await given(desk)).text


async def test_nothing_is_given_where_it_would_not_reach_the_model() -> None:
    desk = Desk()
    desk.queue.offer(message(1))
    before = AgentHookCall(HookEventName.BEFORE_TOOL, {}, True)
    assert await desk.give(before) is None
    assert await desk.give(AFTER, Aggregated(stop=True)) is None
    subagents = AgentHookCall(HookEventName.AFTER_TOOL, {}, True, {"agent_id": "a"})
    assert await desk.give(subagents) is None
    desk.shows.room = 0
    assert await desk.give() is None
    desk.shows.room = 400
    assert await desk.give(AFTER, Aggregated(context="x" * 390)) is None
    assert desk.left() == ["m1"] and desk.reports == []
    assert await desk.give() is not None


def test_a_few_go_at_a_time_and_what_never_fits_is_passed_over() -> None:
    sizes = {"m0": 50, "m1": 2000, "m2": 60, "m3": 10}
    waiting = [message(number) for number in range(4)]

    def size(one: Message) -> int:
        return sizes[one.body]

    assert [one.body for one in chosen(waiting, size, 100)] == ["m0"]  # m3 stays behind m2
    assert [one.body for one in chosen(waiting[1:], size, 100)] == ["m2", "m3"]
    assert len(chosen([message(n) for n in range(20)], lambda one: 1)) == MESSAGES_MAX


def test_only_what_is_meant_for_it_goes_into_a_running_turn() -> None:
    guards = Guards()
    steer, later = message(1), message(2, QueueMode.FOLLOWUP)
    notice = Message(id="01K", sender="relay", to="Ben", body="", created_at=0, sender_kind="relay")

    def reasons(now: float, underway: float | None = None) -> list[str]:
        held = [waits(one, guards, now, underway) for one in (steer, notice, later)]
        return [one.reason if one else "" for one in held]

    assert reasons(0.0) == ["", "", ""]
    assert reasons(0.0, 1.0) == ["", "", "another message is on its way"]
    assert reasons(0.0, 6.0) == ["", "", ""]
    guards.changed(StateChange(AgentState.BUSY), 0.0)
    guards.output(0.0)
    assert reasons(1.0) == ["", "", "the agent is busy"]
    assert reasons(60.0) == ["", "", ""]  # nothing works for so long and draws nothing
    guards.changed(StateChange(AgentState.BLOCKED), 60.0)
    assert reasons(120.0) == ["", "", "a dialog waits for the person"]
    guards.changed(StateChange(AgentState.IDLE), 120.0)
    assert reasons(120.0) == ["", "", ""]
