"""What the broker is told: until it has it, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, RelayError, StorageError, UsageError
from relay.core.message import State
from relay.session import broker_reports
from relay.session.background import Tasks
from relay.session.broker_reports import BrokerReports
from relay.session.run_info import RunInfo
from relay.session.session_commands import NoteOver, PersonNote, ReportAgent, ReportEvent
from relay.session.session_events import DeliveryReported, EventQueue, KindsWanted
from tests.session.playbook import MESSAGE, find


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_reports, "RETRY_SECONDS", 0.0)


class FakeBroker:
    """Remembers what it is asked; ``errors`` are raised first."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.errors: list[RelayError] = []
        self.answer: dict[str, Any] = {"wants": []}

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        self.asked.append((op, fields))
        return self.answer


class Bench:
    def __init__(self, restarts: int = 0) -> None:
        self.broker, self.events = FakeBroker(), EventQueue()
        self.tasks = Tasks(self.events)
        run = RunInfo("run", "Ben", "me", 0, "/", {}, restarts=restarts)
        self.reports = BrokerReports(self.broker, self.events, self.tasks, run)

    def posted(self) -> list[object]:
        found: list[object] = []
        while (event := self.events.take()) is not None:
            found.append(event)
        return found


@asynccontextmanager
async def play(restarts: int = 0) -> AsyncIterator[Bench]:
    bench = Bench(restarts)
    async with asyncio.timeout(20):
        yield bench
        await bench.tasks.settle(10.0)


async def test_what_came_of_a_message_is_reported_once_the_broker_can_take_it() -> None:
    async with play() as bench:
        bench.broker.errors = [BrokerUnavailable("away"), StorageError("the disk is full")]
        await bench.reports.delivery(MESSAGE, State.SEEN, "", "read")
        fields = {"id": MESSAGE.id, "state": "seen", "proof": "read"}
        assert bench.broker.asked == [("state", fields)]
        assert bench.posted() == [
            DeliveryReported(MESSAGE.id, State.SEEN),
            PersonNote("what came of a message waits: away"),
            PersonNote("what came of a message waits: the disk is full"),
            NoteOver("what came of a message waits: away"),
            NoteOver("what came of a message waits: the disk is full"),
        ]


async def test_what_the_broker_refuses_for_good_is_noted() -> None:
    async with play() as bench:
        bench.broker.errors = [BrokerUnavailable("away"), UsageError("no such step")]
        await bench.reports.delivery(MESSAGE, State.HELD, "why", "")
        posted = bench.posted()
        assert PersonNote("a delivery could not be recorded: no such step") in posted
        assert NoteOver("what came of a message waits: away") in posted


@pytest.mark.parametrize("restarts", [0, 1])
async def test_a_repeated_claim_is_our_own_unless_there_was_a_session_before(restarts: int) -> None:
    async with play(restarts) as bench:
        bench.broker.errors = [BrokerUnavailable("away")]
        bench.broker.answer = {"duplicate": True}
        assert await bench.reports.claim_match(find("deploy", "x")) is (restarts == 0)
        assert PersonNote("a handler waits: away") in bench.posted()
        assert await bench.reports.claim_start() is (restarts == 0)


async def test_the_start_of_a_run_has_one_id_in_all_its_sessions() -> None:
    async with play() as first, play(restarts=1) as second:
        await first.reports.claim_start()
        await second.reports.claim_start()
    assert first.broker.asked == second.broker.asked != []


async def test_of_an_agents_states_the_newest_is_reported_late() -> None:
    async with play() as bench:
        bench.broker.errors = [BrokerUnavailable("away")]
        for state in ("idle", "busy"):
            bench.reports.agent(ReportAgent(state, "", "screen", ()))
        await bench.reports.settle(10.0)
        assert [fields["state"] for _, fields in bench.broker.asked] == ["busy"]


async def test_that_the_person_spoke_is_told_until_it_is_known() -> None:
    async with play() as bench:
        bench.broker.errors = [BrokerUnavailable("away")]
        bench.reports.person()
    assert bench.broker.asked == [("person", {})]


async def test_events_are_told_in_their_order_each_until_the_broker_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same id with each try; what is refused for good is left; of too many the oldest go."""
    monkeypatch.setattr(broker_reports, "EVENTS_MAX", 3)
    monkeypatch.setattr(broker_reports, "LEFT_OUT_SECONDS", 0.0)
    async with play() as bench:
        bench.broker.errors = [BrokerUnavailable("away"), UsageError("too large")]
        for number in range(5):
            bench.reports.event(ReportEvent("output", str(number)))
        await bench.reports.settle(10.0)
        assert [fields["body"] for _, fields in bench.broker.asked] == ["3", "4"]
        await asyncio.sleep(0)
        told = [one for one in bench.posted() if isinstance(one, PersonNote | NoteOver)]
        assert told == [note(broker_reports.LEFT_OUT) for note in (PersonNote, NoteOver)]


async def test_the_session_learns_which_events_are_wanted() -> None:
    async with play() as bench:
        for wants in (["output"], ["output"], []):
            bench.broker.answer = {"wants": wants}
            bench.reports.agent(ReportAgent("busy", "", "screen", ()))
            await bench.reports.settle(10.0)
        assert bench.posted() == [KindsWanted(frozenset({"output"})), KindsWanted(frozenset())]
