"""Calls Python handlers: each with a time limit, off the session's event loop, and never raising.

Plain functions run in daemon threads, up to 128 at once (Workers). Async functions are tasks of one
event loop in a daemon thread of its own (LoopThread). None of these threads keeps the interpreter
from exiting. A call over its time limit is abandoned: an async one is cancelled, the thread of a
plain one is left to itself and replaced. A handler with 3 abandoned calls that still hang is
switched off for the session; with 256 such calls in all, every further one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context as Variables
from typing import Any, TypeVar

from relay.hooks.hook_types import Call, Callee, CallEnd, CallOutcome, HookOutput
from relay.hooks.outputs import HandlerError, read_pattern_value
from relay.hooks.registry import TIMEOUT_DEFAULT, Registry

#: Plain functions that run at once.
WORKERS = 128
#: Calls of ``asyncio.to_thread`` that run at once, and plain calls that may wait for a thread.
TO_THREAD_MAX, WAITING_MAX = 8, 1000
#: Seconds that a cancelled call may take to end, and the handlers' event loop to answer.
GRACE = 1.0
#: Calls of one handler that hang before it is switched off, and of all before none is made.
HUNG_PER_HANDLER, HUNG_MAX = 3, 256
#: Seconds that a loop which stops waits for the tasks which handlers left behind.
LEFTOVER_GRACE = 1.0
#: Seconds after which a thread that has nothing to do ends.
IDLE_MAX = 30.0
_TEXT_MAX = 4000
R = TypeVar("R")


class FunctionRunner:
    """The handlers of one registry, run for one session. Belongs to the loop that awaits it."""

    def __init__(
        self,
        registry: Registry,
        *,
        timeout: float = TIMEOUT_DEFAULT,
        workers: int = WORKERS,
        grace: float = GRACE,
    ) -> None:
        """``timeout``: seconds of a handler that has no limit of its own. ``grace``: see GRACE."""
        self.timeout = timeout
        self._registry = registry
        self._grace = grace
        self._workers = Workers(workers)
        self._loop: LoopThread | None = None
        self._loop_lock = threading.Lock()
        self._batches: set[_Batch] = set()
        #: Calls that were given up, with the time from which each of them counts as hanging.
        self._given_up: list[tuple[Callee, _Job | LoopThread, float]] = []
        #: Handlers that run no more, and why.
        self._off: dict[Callee, str] = {}
        self._closed = self._ended = False

    async def run_pattern(
        self, namespace: str, target: str, message: str, ctx: object
    ) -> list[CallOutcome[HookOutput]]:
        """Call every handler of one match, one after the other, until one says stop."""
        outcomes: list[CallOutcome[HookOutput]] = []
        for handler in self._registry.select(namespace, target):
            call = Call(handler.callee, lambda: (target, message, ctx), read_pattern_value)
            outcomes += await self.call_all([call])
            result = outcomes[-1].result
            if result is not None and result.last:
                break
        return outcomes

    async def call_all(self, calls: Sequence[Call[R]]) -> list[CallOutcome[R]]:
        """Call several handlers, side by side where they take their time. Never raises.

        The outcomes are in the order of ``calls``.
        """
        refused = [self._refusal(call.callee) for call in calls]
        batch = _Batch(self, [call for call, why in zip(calls, refused, strict=True) if not why])
        self._batches.add(batch)
        try:
            await self._run(batch)
        except BaseException:
            self._abandon(batch)
            raise
        finally:
            self._batches.discard(batch)
        jobs = iter(batch.jobs)
        return [
            why or self._outcome(call, next(jobs)) for call, why in zip(calls, refused, strict=True)
        ]

    def hanging(self) -> set[Callee]:
        """The handlers whose calls were given up and have not ended."""
        self._given_up = [one for one in self._given_up if not one[1].finished]
        return {callee for callee, _what, _due in self._given_up}

    async def close(self, timeout: float = 2.0) -> None:
        """Take no more calls, wait ``timeout`` seconds for what runs, then cancel what is async."""
        self._closed = True
        if self._batches:
            await asyncio.wait({batch.done for batch in self._batches}, timeout=timeout)
        self._ended = True
        self._workers.close()
        for batch in self._batches:
            for job in batch.jobs:
                if job.began is None:
                    job.settle(CallEnd.REFUSED, RuntimeError("relay is closing"))
        if self._loop is not None:
            self._loop.stop()
            waiter = asyncio.wrap_future(self._loop.ended)
            await asyncio.wait({waiter}, timeout=self._grace)
            waiter.cancel()

    # -- one event's calls

    async def _run(self, batch: _Batch) -> None:
        plain = [job for job in batch.jobs if not job.call.callee.is_async]
        coroutines = [job for job in batch.jobs if job.call.callee.is_async]
        if coroutines:
            self.start_in_loop(coroutines)
        if plain:
            self._workers.add(plain)
        while batch.left:
            now = time.monotonic()
            late = [job for job in batch.jobs if not job.over and job.due(now) <= now]
            if late:
                await asyncio.gather(*map(self._time_out, late))
            dues = [job.due(now) for job in batch.jobs if not job.over]
            await asyncio.wait({batch.done}, timeout=max(0.0, min(dues, default=now) - now))

    def start_in_loop(self, jobs: list[_Job]) -> None:
        """Make the calls, or await what they gave, in the handlers' loop. From any thread."""
        try:
            with self._loop_lock:
                if self._ended:
                    raise RuntimeError("relay is closing")
                if self._loop is None:
                    self._loop = LoopThread()
                for job in jobs:
                    job.loop, job.began = self._loop, job.began or time.monotonic()
                self._loop.start(jobs)
        except (OSError, RuntimeError) as error:  # no descriptor or thread is left, or it closes
            for job in jobs:
                job.fail(error)

    async def _time_out(self, job: _Job) -> None:
        """Give up a call whose time is up, and see that it cannot hold up the others."""
        if not job.settle(CallEnd.TIMEOUT):
            return
        loop, callee = job.loop, job.call.callee
        if job.in_worker:
            self._workers.replace_one()
            self._hangs(callee, job)
        elif loop is not None:
            if await self._cancelled(loop, job):
                if not job.finished:
                    self._hangs(callee, job)  # it refuses to be cancelled
            elif loop is self._loop:
                # Something in this loop blocks it: the next call gets a new one.
                self._loop = None
                loop.stop()
                culprit = loop.running()
                self._hangs(culprit.call.callee if culprit else callee, loop)

    async def _cancelled(self, loop: LoopThread, job: _Job) -> bool:
        """Cancel an async call. Returns whether its loop answers."""
        try:
            waiter = asyncio.wrap_future(loop.cancel(job, self._grace))
        except RuntimeError:  # it has ended, and everything in it
            return True
        await asyncio.wait({waiter}, timeout=2 * self._grace)
        return waiter.done()

    def _abandon(self, batch: _Batch) -> None:
        """Nobody waits for these calls any more."""
        for job in batch.jobs:
            if not job.settle(CallEnd.REFUSED):
                continue
            if job.in_worker:
                self._workers.replace_one()
                self._hangs(job.call.callee, job, job.due(time.monotonic()))
            elif job.loop is not None:
                with contextlib.suppress(RuntimeError):  # it has ended, and everything in it
                    job.loop.cancel(job, self._grace)

    def _hangs(self, callee: Callee, what: _Job | LoopThread, due: float = 0.0) -> None:
        self._given_up = [one for one in self._given_up if not one[1].finished]
        self._given_up.append((callee, what, due))
        now = time.monotonic()
        own = sum(one is callee and due <= now for one, _what, due in self._given_up)
        if own >= HUNG_PER_HANDLER:
            self._off[callee] = f"switched off: {own} of its calls hang"

    def _refusal(self, callee: Callee) -> CallOutcome[Any] | None:
        end, why = CallEnd.REFUSED, ""
        if callee in self._off:
            end, why = CallEnd.OFF, self._off[callee]
        elif self._closed:
            why = "relay is closing"
        elif sum(batch.left for batch in self._batches) >= WAITING_MAX:
            why = "too many handler calls are waiting"
        elif len(self._given_up) >= HUNG_MAX:
            self._given_up = [one for one in self._given_up if not one[1].finished]
            if len(self._given_up) >= HUNG_MAX:
                why = f"{HUNG_MAX} calls of handlers that were given up have not ended"
        return CallOutcome(callee.name, end, error=why) if why else None

    def _outcome(self, call: Call[R], job: _Job) -> CallOutcome[R]:
        callee, end, error = call.callee, job.end, job.error
        outcome: CallOutcome[R] = CallOutcome(callee.name, end, duration=job.took)
        if end is CallEnd.TIMEOUT:
            off = f"; {self._off[callee]}" if callee in self._off else ""
            outcome.error = f"it did not end within {job.limit:g} s{off}"
        elif end is CallEnd.REFUSED:
            outcome.error = str(error)
        elif error is not None:
            outcome.error, outcome.trace = (
                one_line(error),
                "".join(traceback.format_list(_frames(error)))[-_TEXT_MAX:],
            )
        else:
            try:
                outcome.result = call.read(job.value, callee.name)
            except HandlerError as problem:
                said = problem.message.removeprefix(f"{callee.name} ")  # who, all show beside it
                outcome.end, outcome.error = CallEnd.NONSENSE, f"{said}; {problem.hint}"
            except BaseException as problem:  # a value of the user's own making may do anything
                outcome.end = CallEnd.NONSENSE
                outcome.error = f"it returned what cannot be read: {one_line(problem)}"
        return outcome


class _Batch:
    """The calls of one event, which are awaited together."""

    def __init__(self, runner: FunctionRunner, calls: Iterable[Call[Any]]) -> None:
        self.runner = runner
        self.jobs = [_Job(call, self) for call in calls]
        self.left = len(self.jobs)
        self.lock = threading.Lock()
        self._session = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._session.create_future()

    def wake(self) -> None:
        """All calls are over. From any thread."""
        with contextlib.suppress(RuntimeError):  # the session has gone
            self._session.call_soon_threadsafe(self._set_done)

    def _set_done(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class _Job:
    """One call under way."""

    def __init__(self, call: Call[Any], batch: _Batch) -> None:
        own = call.callee.timeout if call.timeout is None else call.timeout
        self.call = call
        self.limit = batch.runner.timeout if own is None else own
        self.batch = batch
        #: When its time limit began, and how long it took, in seconds of the monotonic clock.
        self.began: float | None = None
        self.took = 0.0
        self.end = CallEnd.REFUSED
        self.value: Any = None
        self.error: BaseException | None = None
        #: Set once: by the thread in which it ended, or by the session that gave it up.
        self.over = False
        #: Its code runs no more, also where it was given up before.
        self.finished = False
        #: Whether a worker's thread is in it; what is true when it is given up stays true.
        self.in_worker = False
        #: Where it runs, if it is async.
        self.loop: LoopThread | None = None
        self.task: asyncio.Task[None] | None = None

    def due(self, now: float) -> float:
        """When its time is up, at the earliest."""
        return (now if self.began is None else self.began) + self.limit

    def settle(self, end: CallEnd, error: BaseException | None = None, value: Any = None) -> bool:
        """It ends so. Returns False where it has ended, or was given up, before."""
        with self.batch.lock:
            if self.over:
                return False
            self.over, self.end, self.error, self.value = True, end, error, value
            self.took = 0.0 if self.began is None else time.monotonic() - self.began
            self.batch.left -= 1
            last = not self.batch.left
        if last:
            self.batch.wake()
        return True

    def work(self) -> bool:
        """Call a plain function, in this thread. Returns False where it was given up meanwhile."""
        with self.batch.lock:
            if self.over:
                return True
            self.began, self.in_worker = time.monotonic(), True
        threading.current_thread().name = f"relay-handler {self.call.callee.name}"[:60]
        try:
            # What a handler sets there is gone with it, as in a thread of its own.
            value = Variables().run(self.call.begin)
        except BaseException as error:  # sys.exit() in a handler is a failure like any other
            self.finished = True
            return self.settle(CallEnd.RAISED, error)
        if not _is_awaitable(value):
            self.finished = True
            return self.settle(CallEnd.DONE, value=value)
        with self.batch.lock:  # a lambda around an async function
            if self.over:
                return False
            self.value, self.in_worker = value, False
        self.batch.runner.start_in_loop([self])
        return True

    def fail(self, error: BaseException) -> None:
        """It cannot be made, unless it has ended."""
        self.settle(CallEnd.RAISED, error)

    async def work_in_loop(self) -> None:
        """Call an async function, or await what a plain one gave."""
        try:
            value = await (self.call.begin() if self.value is None else self.value)
        except BaseException as error:
            self.settle(CallEnd.RAISED, error)
        else:
            self.settle(CallEnd.DONE, value=value)


def _is_awaitable(value: object) -> bool:
    try:
        return value is not None and inspect.isawaitable(value)
    except BaseException:  # a value of the user's own making may do anything
        return False


def one_line(error: BaseException) -> str:
    """What was raised and where, for people."""
    try:
        text = traceback.format_exception_only(error)[-1].strip()
    except Exception:  # its __str__ raises
        text = type(error).__name__
    where = _frames(error)
    place = f" (line {where[-1].lineno} in {where[-1].name})" if where else ""
    return " ".join(text.split())[:_TEXT_MAX] + place


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The user's part of the traceback."""
    own = __file__.rpartition("/")[0]
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(own)]


class Workers:
    """Daemon threads for calls that may never end: none keeps the interpreter from exiting."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: deque[_Job | _Blocking] = deque()
        self._changed = threading.Condition()
        self._idle = self._alive = 0
        self._closed = False

    def add(self, calls: Sequence[_Job | _Blocking]) -> None:
        """Make them, each in a thread that is free. Those beyond WAITING_MAX fail at once."""
        with self._changed:
            room = WAITING_MAX - len(self._queue)
            self._queue.extend(calls[:room])
            self._wake()
        for call in calls[room:]:
            call.fail(RuntimeError("too many calls wait for a thread"))

    def replace_one(self) -> None:
        """A thread is in a call that was given up: it ends with it, another may begin now."""
        with self._changed:
            self._alive -= 1
            self._wake()

    def close(self) -> None:
        """Let threads end once they are free; calls that have not begun never do."""
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _wake(self) -> None:
        wanted = len(self._queue)  # one that was woken and has not looked yet counts as idle
        self._changed.notify(wanted)
        for _ in range(min(wanted - self._idle, self._most - self._alive)):
            try:
                threading.Thread(target=self._run, name="relay-handler", daemon=True).start()
            except RuntimeError as error:  # the system has no more of them
                while self._queue and not self._alive:
                    self._queue.popleft().fail(error)
                return
            self._alive += 1

    def _run(self) -> None:
        while (call := self._next()) is not None:
            if not call.work():
                return
            del call  # an idle thread must not keep the last call and its result alive

    def _next(self) -> _Job | _Blocking | None:
        with self._changed:
            while not self._queue:
                self._idle += 1
                told = not self._closed and self._changed.wait(IDLE_MAX)
                self._idle -= 1
                if not told and not self._queue:
                    self._alive -= 1
                    return None
            return self._queue.popleft()


class _Blocking:
    """A call of ``asyncio.to_thread`` in a handler."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._call = call

    def work(self) -> bool:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(self._call())
            except BaseException as error:
                self.future.set_exception(error)
        return True

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class _DaemonExecutor(ThreadPoolExecutor):
    """What ``asyncio.to_thread`` in a handler runs on: the standard one's threads are joined at
    exit, so that one which hangs would hang the process."""

    def __init__(self) -> None:
        super().__init__(TO_THREAD_MAX)
        self._workers = Workers(TO_THREAD_MAX)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call = _Blocking(lambda: fn(*args, **kwargs))
        self._workers.add([call])
        return call.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._workers.close()


class LoopThread:
    """The event loop of a session's async handlers, in a daemon thread."""

    def __init__(self) -> None:
        """Raises OSError or RuntimeError where none can be had."""
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_DaemonExecutor())
        # What fails in a task that a handler left behind concerns nobody: not on a person's screen.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self.finished = False
        self.ended: Future[None] = Future()
        self.ended.set_running_or_notify_cancel()  # who waits no more does not cancel it
        self._stopping = False
        self._jobs: dict[asyncio.Task[Any], _Job] = {}
        try:
            threading.Thread(target=self._run, name="relay-async-handlers", daemon=True).start()
        except RuntimeError:
            self.loop.close()
            raise

    def start(self, jobs: Sequence[_Job]) -> None:
        """Make these calls in the loop. Raises RuntimeError when it is closed."""
        self.loop.call_soon_threadsafe(self._launch, jobs)

    def running(self) -> _Job | None:
        """The call whose code runs at this moment, if one does."""
        task = asyncio.current_task(self.loop)
        return None if task is None else self._jobs.get(task)

    def cancel(self, job: _Job, grace: float) -> Future[None]:
        """Cancel the call. Done when it has ended, or after ``grace`` seconds; never while
        something blocks the loop. From any thread; raises RuntimeError when the loop is closed."""
        done: Future[None] = Future()

        def cancel() -> None:
            if job.task is None:
                done.set_result(None)
                return
            job.task.cancel()
            waiting = self.loop.create_task(asyncio.wait({job.task}, timeout=grace))
            waiting.add_done_callback(lambda _: done.set_result(None))

        done.set_running_or_notify_cancel()
        self.loop.call_soon_threadsafe(cancel)
        return done

    def stop(self) -> None:
        """Cancel what runs and end the thread, when the loop next turns."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._stop)

    def _launch(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            if not job.over:
                job.task = self.loop.create_task(job.work_in_loop())
                self._jobs[job.task] = job
                job.task.add_done_callback(self._end)
            else:
                job.finished = True

    def _end(self, task: asyncio.Task[None]) -> None:
        job = self._jobs.pop(task)
        job.finished = True
        job.fail(asyncio.CancelledError())  # where it was cancelled before it began

    def _stop(self) -> None:
        self._stopping = True
        self.loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            # sys.exit() in a task that a handler left behind would end the loop for all.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
        with contextlib.suppress(BaseException):
            self.loop.run_until_complete(self._end_tasks())
        self.loop.close()
        self.finished = True
        self.ended.set_result(None)

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=LEFTOVER_GRACE)
        await self.loop.shutdown_asyncgens()
