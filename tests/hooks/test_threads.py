from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from relay.hooks import threads
from relay.hooks.threads import CallThreads, DaemonExecutor, LoopJob, LoopThread, Postbox

DEADLINE = 20.0


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    thread = LoopThread("test-loop")
    yield thread
    thread.stop().result(DEADLINE)


def _start(thread: LoopThread, begin: Callable[[], Any], label: object = None) -> LoopJob:
    job = LoopJob(thread, begin, label)
    thread.start([job])
    return job


def test_a_call_ends_with_its_value_or_with_whatever_it_raised() -> None:
    calls = CallThreads()
    assert calls.run(lambda: 3, "t").result(DEADLINE).value == 3
    for error in (ValueError("x"), StopIteration(), SystemExit(1), KeyboardInterrupt()):

        def fail(error: BaseException = error) -> None:
            raise error

        assert calls.run(fail, "t").result(DEADLINE).error is error


def test_a_thread_is_reused_and_a_call_never_waits_for_one() -> None:
    calls = CallThreads()
    gate, started = threading.Event(), threading.Event()

    def hang() -> int:
        started.set()
        gate.wait(DEADLINE)
        return threading.get_ident()

    first = calls.run(threading.get_ident, "first").result(DEADLINE).value
    assert calls.run(threading.get_ident, "second").result(DEADLINE).value == first
    hanging = calls.run(hang, "hangs")
    assert started.wait(DEADLINE)
    other = calls.run(threading.get_ident, "other").result(DEADLINE).value
    assert other != first
    gate.set()
    assert hanging.result(DEADLINE).value == first
    assert calls.run(lambda: threading.current_thread().name, "n").result(DEADLINE).value == "n"
    calls.close()


def test_what_a_call_sets_for_itself_is_gone_with_it() -> None:
    calls = CallThreads()
    variable: ContextVar[int] = ContextVar("variable", default=0)
    calls.run(lambda: variable.set(5), "sets").result(DEADLINE)
    assert calls.run(variable.get, "gets").result(DEADLINE).value == 0
    calls.close()


def test_free_threads_end_on_closing_and_busy_ones_after_their_call() -> None:
    calls = CallThreads()
    gate, started = threading.Event(), threading.Event()

    def hang() -> threading.Thread:
        started.set()
        gate.wait(DEADLINE)
        return threading.current_thread()

    busy = calls.run(hang, "busy")
    assert started.wait(DEADLINE)
    free = calls.run(threading.current_thread, "free").result(DEADLINE).value
    calls.close()
    free.join(DEADLINE)
    assert not free.is_alive()
    gate.set()
    thread = busy.result(DEADLINE).value
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_thread_that_nothing_is_given_to_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "IDLE_MAX", 0.01)
    calls = CallThreads()
    thread = calls.run(threading.current_thread, "t").result(DEADLINE).value
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert calls.run(lambda: 3, "t").result(DEADLINE).value == 3
    calls.close()


def test_the_executor_reuses_idle_threads_and_is_bounded() -> None:
    executor = DaemonExecutor(2)
    gate = threading.Event()
    names: set[str] = set()

    def work() -> None:
        names.add(str(threading.get_ident()))
        gate.wait(DEADLINE)

    jobs = [executor.submit(work) for _ in range(6)]
    gate.set()
    for job in jobs:
        job.result(DEADLINE)
    assert len(names) <= 2
    assert executor.submit(lambda: 5).result(DEADLINE) == 5
    executor.shutdown()
    with pytest.raises(RuntimeError, match="closing"):
        executor.submit(lambda: 5)


def test_the_executors_jobs_raise_in_their_future() -> None:
    executor = DaemonExecutor(1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(lambda: 1 // 0).result(DEADLINE)
    executor.shutdown()


def test_a_full_executor_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "WAITING_MAX", 1)
    executor = DaemonExecutor(1)
    gate, started = threading.Event(), threading.Event()

    def hang() -> None:
        started.set()
        gate.wait(DEADLINE)

    first = executor.submit(hang)
    assert started.wait(DEADLINE)
    second = executor.submit(lambda: 2)
    with pytest.raises(RuntimeError, match="too many"):
        executor.submit(lambda: 3)
    assert second.cancel()
    gate.set()
    first.result(DEADLINE)
    executor.shutdown()


def test_what_many_threads_post_is_all_done_in_order(loop_thread: LoopThread) -> None:
    box = Postbox(loop_thread.loop)
    got: list[tuple[int, int]] = []
    calls = CallThreads()

    def numbered(number: int) -> None:
        for count in range(500):
            box.post(partial(got.append, (number, count)))

    for future in [calls.run(partial(numbered, number), "t") for number in range(8)]:
        assert future.result(DEADLINE).error is None
    last: Future[None] = Future()
    box.post(lambda: last.set_result(None))
    last.result(DEADLINE)
    for number in range(8):
        assert [count for one, count in got if one == number] == list(range(500))
    calls.close()


def test_nothing_is_posted_to_a_loop_that_is_closed() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    box = Postbox(loop)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            box.post(lambda: None)


def test_a_loop_runs_what_begins_there(loop_thread: LoopThread) -> None:
    async def where() -> tuple[int, int]:
        return threading.get_ident(), await asyncio.to_thread(lambda: 7)

    ended = _start(loop_thread, where, "label").future.result(DEADLINE)
    assert ended.value == (loop_thread.thread.ident, 7)


def test_it_knows_for_whom_the_code_runs_that_blocks_it(loop_thread: LoopThread) -> None:
    blocked, gate = threading.Event(), threading.Event()

    async def child() -> None:
        blocked.set()
        gate.wait(DEADLINE)

    async def parent() -> None:
        # A task that the handler starts still runs for the handler.
        await asyncio.gather(child())

    job = _start(loop_thread, parent, "the label")
    assert blocked.wait(DEADLINE)
    assert loop_thread.current_label() == "the label"
    assert asyncio.run(loop_thread.responds(0)) is False
    gate.set()
    assert job.future.result(DEADLINE).error is None
    assert asyncio.run(loop_thread.responds(DEADLINE)) is True


def test_sys_exit_in_a_task_left_behind_does_not_end_the_loop(loop_thread: LoopThread) -> None:
    keep: list[asyncio.Task[None]] = []

    async def leave() -> None:
        async def stray() -> None:
            sys.exit(3)

        keep.append(asyncio.ensure_future(stray()))

    assert _start(loop_thread, leave).future.result(DEADLINE).error is None
    assert _start(loop_thread, lambda: asyncio.sleep(0, 4)).future.result(DEADLINE).value == 4


def test_stopping_cancels_what_still_runs_and_later_calls_end_at_once() -> None:
    thread = LoopThread("test-loop")
    started = threading.Event()

    async def forever() -> None:
        started.set()
        await asyncio.Event().wait()

    job = _start(thread, forever)
    assert started.wait(DEADLINE)
    thread.stop().result(DEADLINE)
    assert isinstance(job.future.result(DEADLINE).error, asyncio.CancelledError)
    assert _start(thread, forever).future.result(DEADLINE).error is not None
    assert asyncio.run(thread.responds(DEADLINE)) is False
    thread.thread.join(DEADLINE)
    assert not thread.thread.is_alive()


def test_a_stray_failure_is_reported_with_its_label() -> None:
    seen: Future[Any] = Future()
    thread = LoopThread("t", lambda _loop, context: seen.set_result(context))
    keep: list[asyncio.Task[None]] = []

    async def leave() -> None:
        async def stray() -> None:
            raise ValueError("stray")

        keep.append(asyncio.ensure_future(stray()))

    _start(thread, leave, "label").future.result(DEADLINE)
    thread.loop.call_soon_threadsafe(keep.clear)
    context = seen.result(DEADLINE)
    assert str(context["exception"]) == "stray"
    assert threads.label_of(context["future"]) == "label"
    thread.stop().result(DEADLINE)


@pytest.mark.parametrize(
    "hang",
    [
        "CallThreads().run(threading.Event().wait, 't')",
        "start(lambda: asyncio.to_thread(threading.Event().wait))",
        "start(lambda: threading.Event().wait())",
    ],
)
def test_what_hangs_does_not_keep_the_interpreter_from_exiting(hang: str) -> None:
    code = (
        "import asyncio, threading\n"
        "from relay.hooks.threads import CallThreads, LoopJob, LoopThread\n"
        "def start(begin):\n"
        "    loop = LoopThread('t')\n"
        "    loop.start([LoopJob(loop, begin, None)])\n"
        f"{hang}\nprint('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE
    )
    assert (done.stdout, done.returncode) == ("end\n", 0)
