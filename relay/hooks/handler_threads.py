"""Threads for handlers' code, which may never end: none of them keeps the interpreter from exiting.

Workers make plain calls; a LoopThread runs async ones in an asyncio loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

#: Calls of ``asyncio.to_thread`` that run at once, and plain calls that may wait for a thread.
TO_THREAD_MAX, WAITING_MAX = 8, 1000
#: Seconds that a loop which stops waits for the tasks which handlers left behind.
LEFTOVER_GRACE = 1.0
#: Seconds after which a thread that has nothing to do ends.
IDLE_MAX = 30.0


class Work(Protocol):
    """A call that a worker's thread makes."""

    def work(self) -> bool:
        """Make it. Returns False where it was given up meanwhile, and the thread is to end."""
        ...

    def fail(self, error: BaseException) -> None:
        """It cannot be made: there is no thread for it, or too many wait already."""
        ...


class AsyncWork(Protocol):
    """A call that is a task in a LoopThread."""

    #: Nobody waits for it any more; it is not begun then.
    over: bool
    #: Its code runs no more.
    finished: bool
    task: asyncio.Task[None] | None

    async def work_in_loop(self) -> None:
        """Make it. Never raises."""
        ...

    def fail(self, error: BaseException) -> None:
        """It ends so, where it has not ended otherwise."""
        ...


class Workers:
    """Daemon threads for calls that may never end: none keeps the interpreter from exiting."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: deque[Work] = deque()
        self._changed = threading.Condition()
        self._idle = self._alive = 0
        self._closed = False

    def add(self, calls: Sequence[Work]) -> None:
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

    def _next(self) -> Work | None:
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
        self._jobs: dict[asyncio.Task[Any], AsyncWork] = {}
        try:
            threading.Thread(target=self._run, name="relay-async-handlers", daemon=True).start()
        except RuntimeError:
            self.loop.close()
            raise

    def start(self, jobs: Sequence[AsyncWork]) -> None:
        """Make these calls in the loop. Raises RuntimeError when it is closed."""
        self.loop.call_soon_threadsafe(self._launch, jobs)

    def running(self) -> AsyncWork | None:
        """The call whose code runs at this moment, if one does."""
        task = asyncio.current_task(self.loop)
        return None if task is None else self._jobs.get(task)

    def cancel(self, job: AsyncWork, grace: float) -> Future[None]:
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

    def _launch(self, jobs: Sequence[AsyncWork]) -> None:
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
