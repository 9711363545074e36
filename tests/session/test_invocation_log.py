"""The way of hook records to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from relay.core.errors import BrokerUnavailable
from relay.hooks import hook_log
from relay.session import invocation_log
from relay.session.background import Tasks
from relay.session.invocation_log import SessionHookLog
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue


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

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
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


def play(scenario: Callable[[Desk], Awaitable[None]], **options: Any) -> Desk:
    async def whole() -> Desk:
        desk = Desk(**options)
        async with asyncio.timeout(20):
            await scenario(desk)
            await desk.tasks.settle(20)
        return desk

    return asyncio.run(whole())


def test_what_comes_together_goes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation_log, "TOGETHER", 0.01)

    async def scenario(desk: Desk) -> None:
        for name in "abc":
            desk.log.log(hook_log.RESULT, record(name))
        desk.log.log(hook_log.BATCH_SUMMARY, summary(3, 1))

    assert play(scenario).stored == [["a", "b", "c", "3 hooks: 2 succeeded, 1 failed"]]


def summary(total: int, failed: int = 0, correlation: str = "c") -> dict[str, Any]:
    return {
        **{"event": "BeforeTool", "total": total, "succeeded": total - failed, "failed": failed},
        **{"duration": 0.3, "correlation_id": correlation},
    }


def test_a_summary_is_kept_of_several_hooks_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation_log, "TOGETHER", 0.01)

    async def scenario(desk: Desk) -> None:
        desk.log.log(hook_log.RESULT, record("alone"))
        desk.log.log(hook_log.BATCH_SUMMARY, summary(1))
        desk.log.log(hook_log.RESULT, record("dull", event="Idle", correlation_id="d"))
        desk.log.log(hook_log.BATCH_SUMMARY, summary(2, correlation="d"))

    assert play(scenario).stored == [["alone"]]


def test_what_is_fired_all_the_time_is_kept_only_where_it_says_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invocation_log, "TOGETHER", 0.01)

    async def scenario(desk: Desk) -> None:
        desk.log.log(hook_log.RESULT, record("dull", event="Output"))
        desk.log.log(hook_log.RESULT, record("failed", event="Output", success=False))
        desk.log.log(hook_log.RESULT, record("said", event="Idle", stdout="x"))
        desk.log.log(hook_log.RESULT, record("function", event="Idle", said=True))

    assert play(scenario).stored == [["failed", "said", "function"]]


def test_more_than_may_wait_leaves_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation_log, "TOGETHER", 0.01)
    monkeypatch.setattr(invocation_log, "WAITING_MAX", 2)

    async def scenario(desk: Desk) -> None:
        for name in "abcd":
            desk.log.log(hook_log.RESULT, record(name))

    desk = play(scenario)
    assert desk.stored == [["c", "d"]]
    assert desk.notes() == ["2 runs of hooks are in no ledger: they came too fast"]


def test_what_fills_a_request_goes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invocation_log, "TOGETHER", 3600.0)
    monkeypatch.setattr(invocation_log, "AT_ONCE", 2)

    async def scenario(desk: Desk) -> None:
        for name in "abcd":
            desk.log.log(hook_log.RESULT, record(name))

    assert play(scenario).stored == [["a", "b"], ["c", "d"]]


def test_at_the_end_what_waits_is_stored_or_said_to_be_lost() -> None:
    async def scenario(desk: Desk) -> None:
        desk.log.log(hook_log.RESULT, record("a"))
        await desk.log.settle(5)
        desk.away = True
        desk.log.log(hook_log.RESULT, record("b"))
        await desk.log.settle(5)
        await desk.tasks.end(5)

    desk = play(scenario)
    assert desk.stored == [["a"]]
    assert desk.notes() == ["1 runs of hooks are in no ledger: the broker is away"]


def test_failures_are_in_the_log_and_all_of_it_where_asked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def scenario(desk: Desk) -> None:
        desk.log.log(hook_log.FAILURE, record("bad", success=False, error="\udcff"))
        desk.log.log(hook_log.BATCH_SUMMARY, {"total": 1})

    play(scenario)
    assert capsys.readouterr().err.splitlines()[0].startswith("hook:failure ")
    play(scenario, verbose=True)
    assert "hook:batch_summary" in capsys.readouterr().err


def test_what_is_on_its_way_to_the_ledger_is_not_sent_a_second_time_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invocation_log, "TOGETHER", 0.0)

    async def scenario(desk: Desk) -> None:
        desk.room = asyncio.Event()
        desk.log.log(hook_log.RESULT, record("a"))
        await desk.asked.wait()
        settling = asyncio.ensure_future(desk.log.settle(10.0))
        await asyncio.sleep(0)
        desk.room.set()
        await settling

    assert play(scenario).stored == [["a"]]


def test_records_are_made_in_order_when_the_agent_has_its_answer() -> None:
    async def scenario(desk: Desk) -> None:
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
        for number in range(invocation_log.UNMADE_MAX):
            desk.log.soon(records(number))
        assert len(made) == 4 + invocation_log.UNMADE_MAX

    play(scenario)
