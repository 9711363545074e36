"""A session's hooks: requests from the broker, each answered once, and the log of what ran."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable, RelayError
from relay.hooks import hook_log
from relay.hooks.hook_types import HookOutput
from relay.session import session_hooks
from relay.session.background import Tasks
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue
from relay.session.session_hooks import RemoteRequests, SessionHookLog
from tests.hooks.engine_fakes import Engine, definition

INPUT = {"tool_name": "Bash", "tool_input": {"command": "ls"}}
REQUEST = {"correlation_id": "C1", "event_name": "before_tool", "input": INPUT}

Json = dict[str, Any]


class Bench:
    """A desk, an engine, and a broker that keeps what it is told."""

    def __init__(self) -> None:
        self.engine = Engine(definition())
        self.sent: list[tuple[str, Json]] = []
        self.events = EventQueue()
        self.errors: list[RelayError] = []
        self.room: asyncio.Event | None = None
        self.remote = RemoteRequests(self.engine.handler.requests, self, self.events)

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        assert op == "answer" and fields.pop("deadline") > 0
        if self.room is not None:
            await self.room.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.sent.append((fields.pop("id"), fields))
        return {"taken": True}

    def push(
        self, id_: str, request: object = REQUEST, timeout: float = 20.0, kind: str = "hooks"
    ) -> None:
        push = {"push": "ask", "id": id_, "kind": kind, "request": request, "timeout": timeout}
        self.remote.take(push)

    async def answered(self, count: int = 1) -> dict[str, Json]:
        while len(self.sent) < count:
            await asyncio.sleep(0)
        return dict(self.sent)

    async def begun(self, count: int = 1) -> None:
        while len(self.engine.runner.ran) < count:
            await asyncio.sleep(0)


@asynccontextmanager
async def play() -> AsyncIterator[Bench]:
    bench = Bench()
    async with asyncio.timeout(20):
        yield bench
        await bench.engine.handler.close()
        await bench.remote.close(5.0)
    assert bench.events.take() is None


async def test_a_kind_of_request_that_it_does_not_know_is_refused() -> None:
    async with play() as bench:
        bench.push("1", kind="approval")
        await bench.answered()
    [(_id, answer)] = bench.sent
    assert answer["error"]["code"] == "usage" and "approval" in answer["error"]["message"]


async def test_what_is_late_is_not_sent() -> None:
    async with play() as bench:
        runner = bench.engine.runner
        runner.gate = asyncio.Event()
        bench.push("1", timeout=0.01)
        await bench.begun()
        while len(bench.remote._tasks):
            await asyncio.sleep(0)
        runner.gate.set()
        bench.push("2")
        await bench.answered()
    assert [id_ for id_, _ in bench.sent] == ["2"]


async def test_what_no_line_can_carry_is_an_internal_error() -> None:
    async with play() as bench:
        bench.engine.runner.output = HookOutput(response={1, 2})
        bench.push("set")
        response = (await bench.answered())["set"]
        assert response["error"]["code"] == "internal_error"
        assert "set has no JSON form" in response["error"]["message"]
        bench.engine.runner.output = None
        bench.errors.append(RelayError("the request is too large", code="too_large"))
        bench.push("large")
        response = (await bench.answered(2))["large"]
        assert "too large" in response["error"]["message"]


async def test_a_broker_that_is_away_is_no_failure_of_the_session() -> None:
    async with play() as bench:
        bench.errors.append(BrokerUnavailable("away"))
        bench.push("1")
        while bench.errors:
            await asyncio.sleep(0)
        bench.push("2")
        await bench.answered()
    assert [id_ for id_, _ in bench.sent] == ["2"]


async def test_the_end_answers_what_runs_and_nothing_afterwards() -> None:
    async with play() as bench:
        bench.engine.runner.gate = asyncio.Event()
        bench.push("1")
        await bench.begun()
        await bench.engine.handler.close()
        bench.push("2")  # the engine has been disposed, the desk not yet
        await bench.remote.close(5.0)
        assert bench.engine.runner.cancelled == 1
        bench.push("3")
        await bench.remote.close(5.0)
        assert len(bench.remote._tasks) == 0
    assert sorted(id_ for id_, _ in bench.sent) == ["1", "2"]
    assert {answer["error"]["code"] for _, answer in bench.sent} == {"internal_error"}


async def test_what_cannot_be_sent_in_time_at_the_end_is_not_sent_later() -> None:
    async with play() as bench:
        bench.room = asyncio.Event()
        bench.push("1")
        await bench.begun()
        await bench.remote.close(0.01)
        bench.room.set()
        assert len(bench.remote._tasks) == 0
    assert bench.sent == []


def record(hook: str = "h", **more: Any) -> dict[str, Any]:
    return {
        "event": "BeforeTool",
        "hook": hook,
        "kind": "command",
        "source": "f",
        "duration": 0.1,
        "success": True,
        "exit_status": 0,
        "stdout": "",
        "stderr": "",
        "error": "",
        "correlation_id": "c",
        "decision": "",
        **more,
    }


class Desk:
    def __init__(self, **options: Any) -> None:
        self.stored: list[list[str]] = []
        self.events = EventQueue()
        self.tasks = Tasks(self.events)
        self.away = False
        self.room: asyncio.Event | None = None
        self.asked = asyncio.Event()
        self.log = SessionHookLog(self, self.events, self.tasks, **options)

    async def request(self, op: str, *_: Any, **fields: Any) -> Any:
        assert op == "hooks_ran"
        self.asked.set()
        if self.room is not None:
            await self.room.wait()
        if self.away:
            raise BrokerUnavailable("away", hint="")
        self.stored.append([one["hook"] for one in fields["records"]])
        return {}

    def notes(self) -> list[str]:
        found = []
        while (event := self.events.take()) is not None:
            assert isinstance(event, PersonNote)
            found.append(event.text)
        return found


@asynccontextmanager
async def in_loop(**options: Any) -> AsyncIterator[Desk]:
    desk = Desk(**options)
    async with asyncio.timeout(20):
        yield desk
        await desk.tasks.settle(20)


async def test_what_comes_together_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_hooks, "TOGETHER", 0.01)
    async with in_loop() as desk:
        for name in "abc":
            desk.log.log(hook_log.RESULT, record(name))
        desk.log.log(hook_log.BATCH_SUMMARY, summary(3, 1))
    assert desk.stored == [["a", "b", "c", "3 hooks: 2 succeeded, 1 failed"]]


def summary(total: int, failed: int = 0, correlation: str = "c") -> dict[str, Any]:
    return {
        **{"event": "BeforeTool", "total": total, "succeeded": total - failed, "failed": failed},
        **{"duration": 0.3, "correlation_id": correlation},
    }


async def test_a_summary_is_kept_of_several_hooks_that_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_hooks, "TOGETHER", 0.01)
    async with in_loop() as desk:
        desk.log.log(hook_log.RESULT, record("alone"))
        desk.log.log(hook_log.BATCH_SUMMARY, summary(1))
        desk.log.log(hook_log.RESULT, record("dull", event="Idle", correlation_id="d"))
        desk.log.log(hook_log.BATCH_SUMMARY, summary(2, correlation="d"))
    assert desk.stored == [["alone"]]


async def test_what_is_fired_all_the_time_is_kept_only_where_it_says_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_hooks, "TOGETHER", 0.01)
    async with in_loop() as desk:
        desk.log.log(hook_log.RESULT, record("dull", event="Output"))
        desk.log.log(hook_log.RESULT, record("failed", event="Output", success=False))
        desk.log.log(hook_log.RESULT, record("said", event="Idle", stdout="x"))
        desk.log.log(hook_log.RESULT, record("function", event="Idle", said=True))
    assert desk.stored == [["failed", "said", "function"]]


async def test_at_the_end_what_waits_is_stored_or_said_to_be_lost() -> None:
    async with in_loop() as desk:
        desk.log.log(hook_log.RESULT, record("a"))
        await desk.log.settle(5)
        desk.away = True
        desk.log.log(hook_log.RESULT, record("b"))
        await desk.log.settle(5)
        await desk.tasks.end(5)
    assert desk.stored == [["a"]]
    assert desk.notes() == ["1 runs of hooks were not recorded: the broker cannot be reached"]


@pytest.mark.parametrize("verbose", [False, True])
async def test_failures_are_in_the_log_and_all_of_it_where_asked(
    verbose: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async with in_loop(verbose=verbose) as desk:
        desk.log.log(hook_log.FAILURE, record("bad", success=False, error="\udcff"))
        desk.log.log(hook_log.BATCH_SUMMARY, {"total": 1})
    told = capsys.readouterr().err
    assert told.splitlines()[0].startswith("hook:failure ")
    assert ("hook:batch_summary" in told) is verbose


async def test_what_is_on_its_way_to_the_ledger_is_not_sent_a_second_time_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_hooks, "TOGETHER", 0.0)
    async with in_loop() as desk:
        desk.room = asyncio.Event()
        desk.log.log(hook_log.RESULT, record("a"))
        await desk.asked.wait()
        settling = asyncio.ensure_future(desk.log.settle(10.0))
        await asyncio.sleep(0)
        desk.room.set()
        await settling
    assert desk.stored == [["a"]]


async def test_records_are_made_in_order_when_the_agent_has_its_answer() -> None:
    async with in_loop() as desk:
        made: list[int] = []

        def records(number: int) -> Iterator[tuple[str, dict[str, Any]]]:
            made.append(number)
            yield hook_log.RESULT, record(str(number))

        for number in range(3):
            desk.log.soon(records(number))
        assert not made
        await asyncio.sleep(0)
        assert made == [0, 1, 2]
        desk.log.soon(records(3))
        await desk.log.settle(5)
        assert made == [0, 1, 2, 3]


async def test_more_than_may_wait_leaves_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_hooks, "TOGETHER", 0.01)
    monkeypatch.setattr(session_hooks, "WAITING_MAX", 2)
    async with in_loop() as desk:
        for name in "abcd":
            desk.log.log(hook_log.RESULT, record(name))
    assert desk.stored == [["c", "d"]]
    assert desk.notes() == ["2 runs of hooks are in no ledger: they came too fast"]
