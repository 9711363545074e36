"""What functions that run together cannot do to each other, nor to the session's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from relay.hooks import run_functions as module
from relay.hooks import threads, waits
from relay.hooks.events import HookEventName
from relay.hooks.outcomes import Call, End, Outcome
from relay.hooks.registry import Registry
from relay.hooks.results import Result, normalise
from relay.hooks.run_functions import FunctionRunner

SHORT = 0.05


def _run(
    handlers: list[Callable[[], Any]],
    scenario: Callable[[FunctionRunner, list[Call[Result]]], Awaitable[Any]],
    **options: Any,
) -> Any:
    registry = Registry()
    for handler in handlers:
        registry.add_hook("before_tool", handler)
    hooks = registry.hooks(HookEventName.BEFORE_TOOL)
    callees = [hook.callee for hook in hooks if hook.callee is not None]
    calls = [Call(callee, lambda: [None] * 6, normalise) for callee in callees]

    async def whole() -> Any:
        runner = FunctionRunner(registry, grace=SHORT, **options)
        try:
            return await scenario(runner, calls)
        finally:
            await runner.close()

    return asyncio.run(whole())


async def _together(runner: FunctionRunner, calls: list[Call[Result]]) -> list[Outcome[Result]]:
    return await runner.call_all(calls)


class _Elsewhere:
    """Stands for another object, as proxies of web frameworks do, and there is none now."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("there is no request")


class _Leaving(dict[str, Any]):
    """A table that ends whoever looks into it."""

    def items(self) -> Any:
        raise SystemExit(1)


@pytest.mark.parametrize("make", [_Elsewhere, lambda: _Leaving(inject="x")])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_value_that_cannot_be_looked_at_is_nobody_elses_problem(
    make: Callable[[], object], kind: str
) -> None:
    async def later() -> object:
        return make()

    handler: Callable[[], object] = later if kind == "async" else make
    bad, good = _run([handler, lambda: "good"], _together)
    assert bad.end is End.NONSENSE
    assert good.result == Result(("good",))


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_events_in_a_row_let_the_loop_turn(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    # Nothing is told by how long this machine takes: whatever was waited for, it was too long.
    monkeypatch.setattr(module, "QUICK", 20.0)
    monkeypatch.setattr(module, "stand_still", _stood_for_long(waits.stand_still))

    async def asynchronous() -> None:
        return None

    async def scenario(runner: FunctionRunner, calls: list[Call[Result]]) -> int:
        loop, turns = asyncio.get_running_loop(), 0

        def turned() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turned)

        loop.call_soon(turned)
        for _ in range(10):
            assert (await runner.call_all(calls))[0].ok
        return turns

    assert _run([asynchronous if kind == "async" else lambda: None], scenario) >= 10


def _stood_for_long(stand_still: Callable[..., float]) -> Callable[..., float]:
    def stood(*arguments: Any) -> float:
        return stand_still(*arguments) + module.QUICK

    return stood


def test_without_threads_to_be_had_each_call_fails_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asynchronous() -> str:
        return "from the loop"

    async def scenario(
        runner: FunctionRunner, calls: list[Call[Result]]
    ) -> list[list[Outcome[Result]]]:
        await runner.call_all(calls[-1:])  # its loop has a thread
        monkeypatch.setattr(threads._CallThread, "start", _no_thread)
        together = await runner.call_all(calls)
        runner._slow.update(call.callee for call in calls)
        return [together, await runner.call_all(calls)]

    for outcomes in _run([lambda: "x", lambda: "y", asynchronous], scenario):
        assert [one.end for one in outcomes] == [End.RAISED, End.RAISED, End.DONE]
        assert "no more threads" in outcomes[0].error


def test_without_a_loop_to_be_had_functions_of_the_event_still_speak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def asynchronous() -> str:
        return "never"

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    async def scenario(
        runner: FunctionRunner, calls: list[Call[Result]]
    ) -> list[list[Outcome[Result]]]:
        monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
        together = await runner.call_all(calls)
        runner._slow.update(call.callee for call in calls)
        return [together, await runner.call_all(calls)]

    for said, other in _run([lambda: "no", asynchronous], scenario):
        assert said.result == Result(("no",))
        assert other.end is End.RAISED
        assert "too many open files" in other.error


def _no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("no more threads")


def test_nothing_begins_once_closing_has_waited_long_enough(gate: threading.Event) -> None:
    started = threading.Event()
    ran: list[str] = []

    def hang() -> None:
        started.set()
        gate.wait()

    async def asynchronous() -> None:
        ran.append("async")

    async def scenario(runner: FunctionRunner, calls: list[Call[Result]]) -> None:
        together = asyncio.ensure_future(runner.call_all(calls))
        assert await asyncio.to_thread(started.wait, 20)
        await runner.close(SHORT)
        gate.set()
        ends = [outcome.end for outcome in await together]
        assert ends == [End.DONE, End.REFUSED, End.REFUSED]

    def other() -> None:
        ran.append("sync")

    _run([hang, other, lambda: asynchronous()], scenario, workers=1)
    assert ran == []


def test_an_event_that_is_given_up_switches_no_hook_off(gate: threading.Event) -> None:
    running = threading.Semaphore(0)

    def waiting() -> str:
        running.release()
        gate.wait()
        return "done"

    async def scenario(runner: FunctionRunner, calls: list[Call[Result]]) -> None:
        for _ in range(3):  # a person interrupts the agent, say, while the hooks do their work
            together = asyncio.ensure_future(runner.call_all(calls))
            for _ in calls:
                assert await asyncio.to_thread(running.acquire, timeout=20)
            together.cancel()
            await asyncio.wait({together})
        assert runner.hung() == 3 * len(calls)
        gate.set()
        assert all(outcome.ok for outcome in await runner.call_all(calls))
        assert not runner.switched_off()

    _run([waiting] * 20, scenario)
