"""Messages to an agent: once each, in order, every state reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from relay.agents.base import Blocked
from relay.core.errors import NotDelivered
from relay.core.message import AgentState, Message, QueueMode, State
from relay.core.source_events import StateChange
from relay.directive.envelope import marker_of
from relay.session import delivery
from relay.session.broker_reports import BrokerReports
from relay.session.delivery import DeliveryQueue
from relay.session.turn_stopper import CANNOT, UNSTOPPED, TurnStopper
from relay.session.typing_policy import Guards
from relay.session.typist import AgentRoute, ReadProof, Submitted, Typist


def message(number: int, attempt: int = 0) -> Message:
    return Message(
        id=f"01K{number:023d}", sender="Ann", to="Ben", body=f"m{number}", created_at=0,
        attempt=attempt,
    )  # fmt: skip


class FakeTypist(Typist):
    """Takes messages as told; remembers what went through. ``holds`` says why a message waits
    though the way is open."""

    proves_reading = True
    steers = False

    def __init__(self) -> None:
        self.through: list[str] = []
        self.batches: list[int] = []
        self.closed: Blocked | None = None
        self.proof: str | None = "read"
        self.submitted: list[Message] = []
        self.take = 64
        self.landed_before: set[str] = set()
        self.thrown: list[tuple[Message, bool]] = []
        self.on_screen: set[str] = set()  # bodies that the screen shows by now
        self.unproven = ""
        self.holds: Callable[[Message], Blocked | None] = lambda message: None

    def route(self, message: Message) -> AgentRoute:
        return AgentRoute.TYPED

    def offered(self, message: Message) -> None:
        pass

    def hold(self, message: Message, now: float) -> Blocked | None:
        return self.closed

    def waits(self, message: Message, now: float, underway: float | None) -> Blocked | None:
        return self.holds(message)

    def batch(self, ready: Sequence[Message]) -> list[Message]:
        return list(ready if ready[0].mode is QueueMode.COLLECT else ready[:3])

    async def submit(self, batch: list[Message]) -> Submitted:
        taken = batch[: self.take]
        self.through += [one.body for one in taken]
        self.submitted += taken
        self.batches.append(len(batch))
        hold = None if len(taken) == len(batch) else Blocked("the person is typing", 0.01)
        self.take = 64
        return Submitted(len(taken), hold)

    async def finish(self) -> bool:
        return False

    async def read(self, batch: list[Message]) -> ReadProof:
        return ReadProof(self.proof, "" if self.proof else self.unproven)

    def asked(self, message: Message) -> str:
        return self.unproven

    def landing_takes(self, message: Message) -> float:
        return 0.0

    def shown(self, message: Message) -> bool:
        return message.body in self.on_screen

    def landed(self, message: Message) -> bool:
        return message.id in self.landed_before

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        return self.thrown

    def left_unread(self, unread: int) -> list[Message]:
        return []


class FakeStopper(TurnStopper):
    """Stops nothing but what a test says: ``stopping`` is called for it."""

    can = False

    def __init__(self) -> None:
        self.stopping: Callable[[Message], Blocked | None] = lambda message: None

    def hold(self, message: Message, now: float) -> Blocked | None:
        return None

    async def stop(self, message: Message) -> Blocked | None:
        return self.stopping(message)


class FakeReports(BrokerReports):
    """Hands each report to ``take``."""

    def __init__(self, take: Callable[[Message, State, str, str], Awaitable[bool]]) -> None:
        self.take = take
        self.remarks: list[str] = []
        self.heard = ""  # what the receiver hears of others
        self.news: dict[str, str] = {}

    def remark(self, message: Message, text: str) -> None:
        self.remarks.append(text)

    async def delivery(
        self,
        message: Message,
        state: State,
        reason: str = "",
        proof: str = "",
        *,
        presence: bool = False,
    ) -> bool:
        if presence:
            self.news[message.id] = self.heard
        return await self.take(message, state, reason, proof)

    def with_news(self, message: Message) -> Message:
        news = self.news.pop(message.id, "")
        return replace(message, presence=news) if news else message


class Desk:
    """A delivery queue with a fake channel, a clock that stands still, and its reports.

    A report is made once ``before_report`` has ended.
    """

    def __init__(self) -> None:
        self.channel = FakeTypist()
        self.guards = Guards()
        self.now = 0.0
        self.reports: list[tuple[str, str, str]] = []
        self.told = asyncio.Event()
        self.withdrawn: set[str] = set()  # bodies of which the broker says so
        self.before_report: Callable[[Message, State], Awaitable[None]] | None = None
        self.stopper = FakeStopper()
        self.accounts = FakeReports(self.report)
        self.settling = False
        self.queue = DeliveryQueue(
            *(self.channel, self.accounts, self.guards, lambda: self.now),
            *(self.stopper,),
            settling=lambda now: self.settling,
        )

    async def report(self, message: Message, state: State, reason: str, proof: str) -> bool:
        if self.before_report is not None:
            await self.before_report(message, state)
        self.reports.append((message.body, state.value, reason or proof))
        self.told.set()
        return message.body not in self.withdrawn

    async def until(self, *expected: tuple[str, str, str]) -> None:
        """Run until every expected report has been made."""
        task = asyncio.ensure_future(self.queue.run())
        try:
            async with asyncio.timeout(10):
                while not set(expected) <= set(self.reports):
                    self.told.clear()
                    await self.told.wait()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def wait_for(predicate: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not predicate():
            await asyncio.sleep(0)


async def test_many_go_in_order() -> None:
    desk = Desk()
    for number in range(20):
        desk.queue.offer(message(number))
    await desk.until(("m19", "seen", "read"))
    assert desk.channel.through == [f"m{number}" for number in range(20)]


def test_the_next_batch_goes_over_while_the_broker_writes_down_the_last_one() -> None:
    async def scenario() -> Desk:
        desk = Desk()
        written_down = asyncio.Event()

        async def slow(message: Message, state: State) -> None:
            if state in (State.SUBMITTED, State.SEEN) and message.body == "m0":
                await written_down.wait()

        desk.before_report = slow
        for number in range(9):
            desk.queue.offer(message(number))
        task = asyncio.ensure_future(desk.queue.run())
        await wait_for(lambda: len(desk.channel.through) == 6)
        assert ("m3", "delivering", "") in desk.reports
        # Not the one after it, and nothing is seen before it is submitted.
        assert ("m6", "delivering", "") not in desk.reports
        assert not [body for body, state, _ in desk.reports if state == "seen"]
        written_down.set()
        await wait_for(lambda: ("m8", "seen", "read") in desk.reports)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return desk

    desk = asyncio.run(scenario())
    for number in range(9):
        states = [state for body, state, _ in desk.reports if body == f"m{number}"]
        assert states == ["delivering", "submitted", "seen"]


async def test_after_a_limit_one_goes_and_the_others_follow_once_it_has_an_answer() -> None:
    desk = Desk()
    guards = desk.guards
    guards.changed(StateChange(AgentState.LIMITED, "a usage limit", retry=0.0), 0.0)
    desk.channel.take = 1
    for number in range(3):
        desk.queue.offer(message(number))
    await desk.until(("m0", "seen", "read"))
    desk.now = 5.0
    await desk.until(("m1", "queued", "a usage limit"), ("m2", "queued", "a usage limit"))
    tried = list(desk.channel.through)
    guards.changed(StateChange(AgentState.IDLE), 6.0)
    await desk.until(("m2", "seen", "read"))
    assert tried == ["m0"]


async def test_what_was_not_taken_is_tried_again_and_nothing_twice() -> None:
    desk = Desk()
    desk.channel.take = 1
    for number in range(3):
        desk.queue.offer(message(number))
    await desk.until(("m2", "seen", "read"))
    assert desk.channel.through == ["m0", "m1", "m2"]


async def test_an_obstacle_that_lasts_is_told_and_delivery_follows_it() -> None:
    desk = Desk()
    desk.channel.closed = Blocked("a draft stands in the input line", 0.01)
    desk.queue.offer(message(1))
    task = asyncio.ensure_future(desk.queue.run())
    await asyncio.sleep(0)
    assert desk.reports == []
    desk.now = 5.0
    desk.queue.look_again()
    async with asyncio.timeout(10):
        await desk.told.wait()
    task.cancel()
    desk.channel.closed = None
    await desk.until(("m1", "seen", "read"))
    assert desk.reports[0] == ("m1", "queued", "a draft stands in the input line")
    assert desk.reports[-1] == ("m1", "seen", "read")


async def test_a_try_that_landed_is_not_repeated() -> None:
    desk = Desk()
    again = message(1, attempt=1)
    desk.channel.landed_before.add(again.id)
    desk.queue.offer(again)
    await desk.until(("m1", "seen", "read"))
    assert desk.channel.through == []
    assert ("m1", "delivering", "") not in desk.reports


async def test_without_a_proof_of_reading_the_marker_proves_it() -> None:
    desk = Desk()
    desk.channel.proof = None
    desk.queue.offer(message(1))
    await desk.until(("m1", "submitted", ""))
    marker = marker_of(message(1))
    assert desk.queue.proven("something else", "transcript") == []
    ((seen, by),) = desk.queue.proven(f"> Relay message {marker} from", "transcript")
    assert (seen.body, by) == ("m1", "transcript")
    assert desk.queue.proven(marker, "transcript") == []


@pytest.mark.parametrize("what", ["a dialog", "a turn"])
async def test_what_begins_while_the_broker_is_told_holds_the_message(what: str) -> None:
    desk = Desk()
    obstacle: list[Blocked] = []

    def in_the_way(one: Message) -> Blocked | None:
        return obstacle[0] if obstacle else None

    async def slow(one: Message, state: State) -> None:
        if state is State.DELIVERING and not desk.reports:
            obstacle.append(Blocked(f"{what} stands in the way", 0.01))
            desk.channel.closed = obstacle[0] if what == "a dialog" else None

    desk.before_report = slow
    if what == "a turn":
        desk.channel.holds = in_the_way
    desk.queue.offer(message(1))
    await desk.until(("m1", "delivering", ""))
    assert desk.channel.through == []
    obstacle.clear()
    desk.channel.closed = None
    await desk.until(("m1", "seen", "read"))
    assert desk.channel.through == ["m1"]


async def test_who_need_not_wait_overtakes_who_must() -> None:
    desk = Desk()
    busy = [Blocked("the agent is busy", 0.01)]

    desk.channel.holds = lambda one: busy[0] if busy and one.body != "m2" else None
    for number in range(4):
        desk.queue.offer(message(number))
    await desk.until(("m2", "seen", "read"))
    assert desk.channel.through == ["m2"]
    desk.now = 5.0
    await desk.until(("m3", "queued", "the agent is busy"))
    busy.clear()
    await desk.until(("m3", "seen", "read"))
    assert desk.channel.through == ["m2", "m0", "m1", "m3"]
    assert ("m2", "queued", "the agent is busy") not in desk.reports


async def test_a_door_that_fails_does_not_end_the_deliveries() -> None:
    desk = Desk()
    submit, failures = desk.channel.submit, [NotDelivered("the agent is gone")]

    async def failing(batch: list[Message]) -> Submitted:
        if failures:
            raise failures.pop()
        return await submit(batch)

    desk.channel.submit = failing  # type: ignore[method-assign]
    desk.queue.offer(message(1))
    desk.queue.look_again()
    await desk.until(("m1", "seen", "read"))
    assert desk.channel.through == ["m1"]


async def test_what_is_on_its_way_when_the_agent_ends_is_accounted_for() -> None:
    """The answer to the last write comes together with the news of the end."""
    desk = Desk()
    written = asyncio.Event()
    begun = asyncio.Event()
    submit = desk.channel.submit

    async def slow(batch: list[Message]) -> Submitted:
        begun.set()
        await written.wait()
        return await submit(batch)

    desk.channel.submit = slow  # type: ignore[method-assign]
    desk.channel.proof = None  # its terminal is gone
    desk.queue.offer(message(1))
    task = asyncio.ensure_future(desk.queue.run())
    await begun.wait()
    written.set()
    await desk.queue.close(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert ("m1", "seen", "read") in desk.reports


async def test_what_ctrl_c_threw_away_is_typed_again_or_has_failed() -> None:
    desk = Desk()
    desk.channel.proof = None
    desk.queue.offer(message(1))
    desk.queue.offer(message(2))
    await desk.until(("m2", "submitted", ""))
    desk.channel.thrown = [(message(2), True), (message(1), False)]
    await desk.queue.thrown_away(100)
    desk.channel.proof = "read"
    await desk.until(("m2", "seen", "read"))
    assert desk.channel.through == ["m1", "m2", "m2"]
    failed = [report for report in desk.reports if report[1] == "failed"]
    assert len(failed) == 1 and failed[0][0] == "m1" and "Ctrl-C" in failed[0][2]
    assert ("m1", "seen", "read") not in desk.reports


async def test_what_nothing_proves_stays_submitted_with_the_reason_until_the_screen_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "LOOK_AGAIN", 0.01)
    desk = Desk()
    desk.channel.proof, desk.channel.unproven = None, "the program does not show it"
    desk.queue.offer(message(1))
    await desk.until(("m1", "submitted", "the program does not show it"))
    assert ("m1", "seen", "screen") not in desk.reports
    desk.channel.on_screen.add("m1")
    await desk.until(("m1", "seen", "screen"))
    assert desk.channel.through == ["m1"]


async def test_what_was_withdrawn_meanwhile_does_not_go_over() -> None:
    desk = Desk()
    desk.withdrawn = {"m1"}
    for number in (1, 2):
        desk.queue.offer(message(number))
    await desk.until(("m2", "seen", "read"))
    assert desk.channel.through == ["m2"]
    assert [one for one in desk.reports if one[0] == "m1"] == [("m1", "delivering", "")]


# -- messages that collect, and that interrupt


def test_what_collects_goes_over_in_one_piece() -> None:
    async def scenario() -> Desk:
        desk = Desk()
        for number in range(5):
            desk.queue.offer(replace(message(number), mode=QueueMode.COLLECT))
        desk.channel.landed_before.add(message(3).id)  # but not of a first try
        desk.now = 1.0
        await desk.until(("m4", "seen", "read"))
        return desk

    desk = asyncio.run(scenario())
    assert desk.channel.batches == [5]
    assert [one for one in desk.reports if one[1] == "seen"] == [
        (f"m{number}", "seen", "read") for number in range(5)
    ]


async def test_an_interrupt_has_the_turn_stopped_and_goes_before_what_was_queued() -> None:
    desk = Desk()
    desk.stopper.can = True
    desk.channel.closed = Blocked("the agent is busy", 0.01)
    desk.guards.changed(StateChange(AgentState.BUSY), 0.0)
    desk.guards.output(0.0)

    def stopping(stop: Message) -> Blocked:
        desk.channel.closed = None
        desk.guards.changed(StateChange(AgentState.IDLE), desk.now)
        return Blocked("the running turn is being stopped", 0.01)

    desk.stopper.stopping = stopping
    desk.queue.offer(message(1))
    desk.now = 1.0
    desk.queue.offer(replace(message(2), mode=QueueMode.INTERRUPT))
    await desk.until(("m1", "seen", "read"))
    assert desk.channel.through == ["m2", "m1"]
    assert desk.reports[0] == ("m2", "queued", "the running turn is being stopped")


async def test_an_interrupt_that_was_withdrawn_stops_nothing() -> None:
    desk = Desk()
    desk.stopper.can = True
    desk.guards.changed(StateChange(AgentState.BUSY), 0.0)
    desk.guards.output(0.0)
    desk.withdrawn.add("m2")
    stop = replace(message(2), mode=QueueMode.INTERRUPT)
    desk.stopper.stopping = lambda stop: pytest.fail("it was withdrawn")
    desk.queue.offer(stop)
    desk.queue.offer(message(3))
    await desk.until(("m3", "seen", "read"))
    assert desk.channel.through == ["m3"]


@pytest.mark.parametrize("can", [False, True], ids=["no-way", "in-vain"])
async def test_where_nothing_stops_the_turn_it_goes_in_as_a_steer_and_the_receipt_says_so(
    can: bool,
) -> None:
    desk = Desk()
    desk.stopper.can = can
    desk.guards.changed(StateChange(AgentState.BUSY), 0.0)
    desk.guards.output(0.0)
    desk.queue.offer(replace(message(2), mode=QueueMode.INTERRUPT))
    await desk.until(("m2", "seen", "read"))
    assert desk.accounts.remarks == [UNSTOPPED if can else CANNOT]


async def test_an_interrupt_of_a_session_before_does_not_stop_its_own_turn() -> None:
    desk = Desk()
    desk.stopper.can = True
    desk.guards.changed(StateChange(AgentState.BUSY), 0.0)
    desk.guards.output(0.0)
    stop = replace(message(2, attempt=1), mode=QueueMode.INTERRUPT)
    desk.channel.landed_before.add(stop.id)
    desk.stopper.stopping = lambda stop: pytest.fail("it is its own turn")
    desk.queue.offer(stop)
    await desk.until(("m2", "seen", "read"))
    assert desk.channel.through == []


async def test_nothing_goes_over_while_the_words_of_the_turn_before_may_come() -> None:
    desk = Desk()
    desk.settling = True
    desk.queue.offer(message(1))
    task = asyncio.ensure_future(desk.queue.run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not desk.channel.through
    desk.settling = False
    task.cancel()
    desk.queue.look_again()
    await desk.until(("m1", "seen", "read"))


async def test_news_of_others_goes_with_the_message() -> None:
    desk = Desk()
    desk.accounts.heard = "Bob has left"
    desk.queue.offer(message(1))
    await desk.until(("m1", "seen", "read"))
    assert [one.presence for one in desk.channel.submitted] == ["Bob has left"]


async def test_what_keeps_a_message_that_is_being_handed_over_is_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "HELD_AFTER", 0.001)
    desk = Desk()

    async def submit(batch: list[Message]) -> Submitted:
        desk.channel.unproven = "a dialog waits for the person"
        while len(desk.reports) < 2:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)  # longer than it takes to tell it again
        desk.channel.unproven = ""
        return Submitted(1)

    monkeypatch.setattr(desk.channel, "submit", submit)
    desk.queue.offer(message(1))
    await desk.until(("m1", "seen", "read"))
    assert [report[1:] for report in desk.reports] == [
        ("delivering", ""),
        ("delivering", "a dialog waits for the person"),
        ("submitted", ""),
        ("seen", "read"),
    ]
