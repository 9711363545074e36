from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from relay.hooks import run_functions
from relay.hooks import run_functions as module
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Call, CallEnd, CallOutcome, HookOutput
from relay.hooks.outputs import read_pattern_value
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a handler hangs on; opened at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


SHORT = 0.05


class Hanging:
    """A handler that hangs until ``gate`` is open."""

    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.started = gate, threading.Event()

    def __call__(self) -> None:
        self.started.set()
        self.gate.wait()

    async def begun(self) -> bool:
        return await asyncio.to_thread(self.started.wait, 20)


def deploys(handler: Callable[..., object], **options: Any) -> Registry:
    """A registry with this handler for ``@deploy``."""
    registry = Registry()
    registry.add_pattern("deploy", "*", handler, **options)
    return registry


@asynccontextmanager
async def _runner(registry: Registry, **options: Any) -> AsyncIterator[FunctionRunner]:
    runner = FunctionRunner(registry, grace=SHORT, **options)
    try:
        yield runner
    finally:
        await runner.close()


def _pattern(registry: Registry, **options: Any) -> list[CallOutcome[HookOutput]]:
    async def whole() -> list[CallOutcome[HookOutput]]:
        async with _runner(registry, **options) as runner:
            return await runner.run_pattern("deploy", "x", "the message", "the ctx")

    return asyncio.run(whole())


def test_sync_and_async_handlers_run_in_order_and_off_the_sessions_thread() -> None:
    registry = Registry()
    ran: list[tuple[str, bool]] = []

    def note(name: str) -> None:
        ran.append((name, threading.current_thread() is threading.main_thread()))

    def sync(target: str, message: str, ctx: object) -> str:
        note("sync")
        return f"{target} {message} {ctx}"

    async def asynchronous(target: str) -> dict[str, object]:
        note("async")
        return {"inject": target}

    async def wrapped() -> str:
        note("wrapped")
        return "wrapped"

    registry.add_pattern("deploy", "*", sync)
    registry.add_pattern("deploy", "*", asynchronous)
    registry.add_pattern("deploy", "*", lambda: wrapped())
    outcomes = _pattern(registry)
    assert ran == [("sync", False), ("async", False), ("wrapped", False)]
    assert [outcome.end for outcome in outcomes] == [CallEnd.DONE] * 3
    assert [outcome.result for outcome in outcomes] == [
        HookOutput(inject=("x the message the ctx",)),
        HookOutput(inject=("x",)),
        HookOutput(inject=("wrapped",)),
    ]


def test_stop_ends_the_chain_and_a_failure_does_not() -> None:
    registry = Registry()
    registry.add_pattern("deploy", "x", lambda: 1 // 0)
    registry.add_pattern("deploy", "x*", lambda: {"stop": True})
    registry.add_pattern("deploy", "*", lambda: "never")
    assert [outcome.end for outcome in _pattern(registry)] == [CallEnd.RAISED, CallEnd.DONE]


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("the reason"),
        SystemExit(1),
        KeyboardInterrupt(),
        StopIteration(),
        StopAsyncIteration(),
        asyncio.CancelledError(),
        TimeoutError("own"),
        _Unprintable(),
        GeneratorExit(),
    ],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_that_raises_anything_is_an_outcome(error: BaseException, kind: str) -> None:
    registry = Registry()

    def sync() -> None:
        raise error

    async def asynchronous() -> None:
        raise error

    registry.add_pattern("deploy", "*", sync if kind == "sync" else asynchronous)
    registry.add_pattern("deploy", "*", lambda: "still here")
    first, second = _pattern(registry)
    assert (first.end, first.result) == (CallEnd.RAISED, None)
    assert not first.ok
    assert type(error).__name__ in first.error or isinstance(error, StopIteration)
    assert second.result == HookOutput(inject=("still here",))


async def test_a_sync_handler_that_hangs_is_left_and_switched_off_in_the_end(
    gate: threading.Event,
) -> None:
    registry = Registry()
    registry.add_pattern("deploy", "*", lambda: gate.wait() and None, timeout=SHORT)
    registry.add_pattern("deploy", "*", lambda: "still here")
    async with _runner(registry) as runner:
        for _ in range(module.HUNG_PER_HANDLER):
            hung, fine = await runner.run_pattern("deploy", "x", "", None)
            assert (hung.end, fine.end) == (CallEnd.TIMEOUT, CallEnd.DONE)
        assert "switched off" in hung.error
        off, fine = await runner.run_pattern("deploy", "x", "", None)
        assert (off.end, fine.end) == (CallEnd.OFF, CallEnd.DONE)
        assert off.error == "switched off: 3 of its calls hang"


async def test_an_async_handler_that_hangs_is_cancelled() -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    registry = deploys(hang, timeout=SHORT)
    async with _runner(registry) as runner:
        (outcome,) = await runner.run_pattern("deploy", "x", "", None)
        assert outcome.end is CallEnd.TIMEOUT
        assert cancelled.wait(20)


async def test_an_async_handler_that_blocks_its_loop_hurts_only_itself(
    gate: threading.Event,
) -> None:
    registry = Registry()

    async def block() -> None:
        gate.wait()

    async def fine() -> str:
        await asyncio.sleep(0)
        return "fine"

    registry.add_pattern("deploy", "*", block, timeout=SHORT)
    registry.add_pattern("deploy", "*", fine)
    async with _runner(registry) as runner:
        for _ in range(module.HUNG_PER_HANDLER):
            blocked, other = await runner.run_pattern("deploy", "x", "", None)
            assert (blocked.end, other.result) == (CallEnd.TIMEOUT, HookOutput(inject=("fine",)))
        blocked, other = await runner.run_pattern("deploy", "x", "", None)
        assert (blocked.end, other.result) == (CallEnd.OFF, HookOutput(inject=("fine",)))


async def test_the_blame_for_a_blocked_loop_goes_to_the_one_that_blocks(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HUNG_PER_HANDLER", 1)
    registry = Registry()
    blocking = threading.Event()

    async def block() -> None:
        blocking.set()
        gate.wait()

    async def waits() -> None:
        await asyncio.Event().wait()

    registry.add_pattern("block", "*", block, timeout=20)
    registry.add_pattern("waits", "*", waits, timeout=SHORT)
    async with _runner(registry) as runner:
        first = asyncio.ensure_future(runner.run_pattern("block", "x", "", None))
        assert await asyncio.to_thread(blocking.wait, 20)
        (outcome,) = await runner.run_pattern("waits", "x", "", None)
        assert outcome.end is CallEnd.TIMEOUT
        (outcome,) = await runner.run_pattern("block", "x", "", None)
        assert outcome.end is CallEnd.OFF
        gate.set()
        await first


async def test_closing_refuses_new_calls_and_does_not_wait_for_what_hangs(
    gate: threading.Event,
) -> None:
    hang = Hanging(gate)
    registry = deploys(hang)
    runner = FunctionRunner(registry, grace=SHORT)
    call = asyncio.ensure_future(runner.run_pattern("deploy", "x", "", None))
    assert await hang.begun()
    await runner.close(timeout=0)
    (outcome,) = await runner.run_pattern("deploy", "x", "", None)
    assert (outcome.end, outcome.error) == (CallEnd.REFUSED, "relay is closing")
    gate.set()
    assert (await call)[0].ok


def test_an_async_handler_can_run_programs() -> None:

    async def run() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('out')", stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        return output.decode().strip()

    registry = deploys(run)
    assert _pattern(registry)[0].result == HookOutput(inject=("out",))


def _hooks(registry: Registry, *functions: Callable[..., object], **options: Any) -> None:
    for function in functions:
        registry.add_hook("before_tool", function, **options)


def _together(registry: Registry, **options: Any) -> list[CallOutcome[HookOutput]]:
    """All hooks of one event, side by side."""

    async def whole() -> list[CallOutcome[HookOutput]]:
        async with _runner(registry, **options) as runner:
            return await runner.call_all(_calls(registry))

    return asyncio.run(whole())


def _calls(registry: Registry) -> list[Call[HookOutput]]:
    hooks = registry.hooks(HookEventName.BEFORE_TOOL)
    callees = [hook.callee for hook in hooks if hook.callee is not None]
    return [Call(callee, lambda: [None] * 6, read_pattern_value) for callee in callees]


@pytest.mark.parametrize("kind", ["sync", "async", "both"])
async def test_functions_that_wait_for_each_other_run_side_by_side(kind: str) -> None:
    registry = Registry()
    all_here = threading.Barrier(12)
    here: list[int] = []

    def sync() -> str:
        all_here.wait(20)
        return "done"

    async def asynchronous() -> str:
        here.append(1)
        while len(here) < 12:
            await asyncio.sleep(0)
        return "done"

    async def in_a_thread() -> str:
        return await asyncio.to_thread(sync)

    one = {"sync": sync, "async": asynchronous, "both": sync}[kind]
    other = {"sync": sync, "async": asynchronous, "both": in_a_thread}[kind]
    _hooks(registry, *(one if number % 3 else other for number in range(12)))
    async with _runner(registry) as runner:
        outcomes = await runner.call_all(_calls(registry))
        assert [outcome.error for outcome in outcomes] == [""] * 12


def test_one_that_hangs_holds_up_none_of_the_others(gate: threading.Event) -> None:
    registry = Registry()
    _hooks(registry, lambda: "before")
    _hooks(registry, lambda: gate.wait() and None, timeout=SHORT)
    _hooks(registry, lambda: "after", lambda: 1 // 0, lambda: asyncio.sleep(0, "awaited"))
    ends = [(one.end, one.result) for one in _together(registry)]
    assert ends == [
        (CallEnd.DONE, HookOutput(inject=("before",))),
        (CallEnd.TIMEOUT, None),
        (CallEnd.DONE, HookOutput(inject=("after",))),
        (CallEnd.RAISED, None),
        (CallEnd.DONE, HookOutput(inject=("awaited",))),
    ]


async def test_what_has_not_begun_when_nobody_waits_any_more_never_does(
    gate: threading.Event,
) -> None:
    registry = Registry()
    ran: list[int] = []
    hang = Hanging(gate)
    _hooks(registry, hang, *(lambda: ran.append(1) for _ in range(3)))
    async with _runner(registry, workers=1) as runner:
        call = asyncio.ensure_future(runner.call_all(_calls(registry)))
        assert await hang.begun()
        call.cancel()
        await asyncio.wait({call})
        gate.set()
        assert (await runner.call_all(_calls(registry)[1:]))[0].ok
        assert len(ran) == 3


class _Elsewhere:
    """Stands for another object, as proxies of web frameworks do, and there is none now."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("there is no request")


class _Leaving(dict[str, Any]):
    """A table that ends whoever looks into it."""

    def items(self) -> Any:
        raise SystemExit(1)


@pytest.mark.parametrize(
    "make", [_Elsewhere, lambda: _Leaving(inject="x")], ids=["proxy", "leaving"]
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_value_that_cannot_be_looked_at_is_nobody_elses_problem(
    make: Callable[[], object], kind: str
) -> None:
    async def later() -> object:
        return make()

    handler: Callable[[], object] = later if kind == "async" else make
    registry = Registry()
    _hooks(registry, handler, lambda: "good")
    bad, good = _together(registry)
    assert bad.end is CallEnd.NONSENSE
    assert good.result == HookOutput(inject=("good",))


async def test_without_threads_to_be_had_each_call_fails_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Registry()

    async def asynchronous() -> str:
        return "from the loop"

    _hooks(registry, lambda: "x", lambda: "y", asynchronous)

    def no_thread(_thread: threading.Thread) -> None:
        raise RuntimeError("no more threads")

    async with _runner(registry) as runner:
        await runner.call_all(_calls(registry)[-1:])  # its loop has a thread
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        outcomes = await runner.call_all(_calls(registry))
        assert [one.end for one in outcomes] == [CallEnd.RAISED, CallEnd.RAISED, CallEnd.DONE]
        assert "no more threads" in outcomes[0].error


async def test_without_a_loop_to_be_had_functions_of_the_event_still_speak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = Registry()

    async def asynchronous() -> str:
        return "never"

    _hooks(registry, lambda: "no", asynchronous)

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError("too many open files")

    async with _runner(registry) as runner:
        monkeypatch.setattr(asyncio, "new_event_loop", no_loop)
        said, other = await runner.call_all(_calls(registry))
        assert said.result == HookOutput(inject=("no",))
        assert (other.end, "too many open files" in other.error) == (CallEnd.RAISED, True)


async def test_nothing_begins_once_closing_has_waited_long_enough(gate: threading.Event) -> None:
    registry = Registry()
    ran: list[str] = []
    hang = Hanging(gate)

    async def asynchronous() -> None:
        ran.append("async")

    _hooks(registry, hang, lambda: ran.append("sync"), lambda: asynchronous())
    async with _runner(registry, workers=1) as runner:
        together = asyncio.ensure_future(runner.call_all(_calls(registry)))
        assert await hang.begun()
        await runner.close(SHORT)
        gate.set()
        ends = [outcome.end for outcome in await together]
        assert ends == [CallEnd.DONE, CallEnd.REFUSED, CallEnd.REFUSED]
    assert ran == []


async def test_events_that_are_given_up_switch_no_hook_off_but_are_bounded(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HUNG_MAX", 8)
    registry = Registry()
    running = threading.Semaphore(0)

    def waiting() -> str:
        running.release()
        gate.wait()
        return "done"

    _hooks(registry, *[waiting] * 4)
    async with _runner(registry) as runner:
        for _ in range(2):  # a person interrupts the agent, say, while the hooks do their work
            together = asyncio.ensure_future(runner.call_all(_calls(registry)))
            for _ in range(4):
                assert await asyncio.to_thread(running.acquire, timeout=20)
            together.cancel()
            await asyncio.wait({together})
        refused = await runner.call_all(_calls(registry))
        assert {one.end for one in refused} == {CallEnd.REFUSED}
        assert refused[0].error == "8 calls of handlers that were given up have not ended"
        gate.set()
        while not all(one.ok for one in await runner.call_all(_calls(registry))):
            await asyncio.sleep(0)


def test_what_a_handler_sets_for_itself_is_gone_with_the_call() -> None:
    registry = Registry()
    variable: ContextVar[int] = ContextVar("variable", default=0)
    _hooks(registry, lambda: variable.set(5) and None, lambda: str(variable.get()))
    assert _together(registry)[1].result == HookOutput(inject=("0",))


def test_sys_exit_in_a_task_left_behind_does_not_end_the_loop() -> None:
    registry = Registry()
    keep: list[asyncio.Task[None]] = []

    async def leave() -> None:
        async def stray() -> None:
            sys.exit(3)

        keep.append(asyncio.ensure_future(stray()))

    async def speak() -> str:
        return "still here"

    registry.add_pattern("deploy", "*", leave)
    registry.add_pattern("deploy", "*", speak)
    assert _pattern(registry)[1].result == HookOutput(inject=("still here",))


def test_what_fails_in_a_task_left_behind_is_no_traceback_on_the_screen(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = threading.Event()

    async def leave() -> None:
        def fail() -> None:
            failed.set()
            raise ValueError("stray")

        asyncio.get_running_loop().call_soon(fail)

    registry = deploys(leave)
    assert _pattern(registry)[0].ok
    assert failed.wait(5)
    assert not caplog.records


@pytest.mark.parametrize(
    "handler",
    [
        "lambda: threading.Event().wait()",
        "lambda: asyncio.to_thread(threading.Event().wait)",
        "blocks",
    ],
    ids=["thread", "to_thread", "loop"],
)
def test_what_hangs_does_not_keep_the_interpreter_from_exiting(handler: str) -> None:
    code = (
        "import asyncio, threading\n"
        "from relay.hooks.registry import Registry\n"
        "from relay.hooks.run_functions import FunctionRunner\n"
        "async def blocks(): threading.Event().wait()\n"
        "registry = Registry()\n"
        f"registry.add_pattern('deploy', '*', {handler}, timeout=0.05)\n"
        "async def main():\n"
        "    runner = FunctionRunner(registry, grace=0.05)\n"
        "    print((await runner.run_pattern('deploy', 'x', '', None))[0].end)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.returncode) == ("timeout\n", 0)


def test_functions_beyond_those_that_can_wait_fail_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_functions, "WAITING_MAX", 2)
    registry = Registry()
    _hooks(registry, *[lambda: "ran"] * 4)
    assert [outcome.ok for outcome in _together(registry)] == [True, True, False, False]
