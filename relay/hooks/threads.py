"""Threads for code that may never end: none of them keeps the interpreter from exiting."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

from relay.hooks.jobs import Ended, Job, Lane, Over

#: How long a loop that stops waits for the tasks which a handler left behind, in seconds.
LEFTOVER_GRACE = 1.0
#: How many jobs may wait for a thread of one DaemonExecutor.
WAITING_MAX = 1000
#: Seconds after which a thread of CallThreads that has nothing to do ends.
IDLE_MAX = 30.0


class Postbox:
    """Calls that other threads want made in a loop. Many that come together wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[Callable[[], object]] = deque()
        self._woken = False

    def post(self, call: Callable[[], object]) -> None:
        """Have ``call``, which does not raise, made soon, after what was posted before.

        Raises RuntimeError when the loop is closed.
        """
        # Without a lock: who is waited for would be whoever wakes the loop, which takes longest.
        # Put down before looking, and taken up after saying so: at worst it is woken once more.
        self._calls.append(call)
        if self._woken:
            return
        self._woken = True
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            self._woken = False
            self._calls.clear()
            raise

    def _deliver(self) -> None:
        self._woken = False
        for _ in range(len(self._calls)):
            self._calls.popleft()()


class CallThreads:
    """Daemon threads for calls that may never end, each for one call at a time.

    A call never waits for a thread: where none is free, there is one more. A thread that nothing
    was given to for IDLE_MAX seconds ends, and so does every free one on ``close``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[_CallThread] = []
        self._closed = False

    def run(self, call: Callable[[], object], name: str) -> Future[Ended]:
        """Run ``call`` in a thread that has this name meanwhile."""
        job = Job(call, name=name)
        future = job.future
        self.start(Lane([job], time.monotonic))
        return future

    def start(self, lane: Lane) -> None:
        """Have a thread make the calls of ``lane``."""
        with self._lock:
            thread = self._free.pop() if self._free else None
        if thread is None:
            thread = _CallThread(self)
            thread.given.put(lane)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more of them
                lane.fail(error)
        else:
            thread.given.put(lane)

    def close(self) -> None:
        """Let free threads end now, and busy ones after their call. Never waits."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for thread in free:
            thread.given.put(None)

    def freed(self, thread: _CallThread) -> bool:
        """``thread`` has nothing to do; whether it may stay."""
        with self._lock:
            if not self._closed:
                self._free.append(thread)
            return not self._closed

    def leaves(self, thread: _CallThread) -> bool:
        """Whether ``thread`` may end; False when it is given something just now."""
        with self._lock:
            if thread not in self._free:
                return False
            self._free.remove(thread)
            return True


class _CallThread(threading.Thread):
    """One of CallThreads."""

    def __init__(self, owner: CallThreads) -> None:
        super().__init__(name="relay-handler", daemon=True)
        self.given: SimpleQueue[Lane | None] = SimpleQueue()
        self._owner = owner

    def run(self) -> None:
        while True:
            try:
                lane = self.given.get(timeout=IDLE_MAX)
            except Empty:
                if self._owner.leaves(self):
                    return
                continue
            if lane is None:
                return
            lane.work()
            # Free before anybody knows of the end: the next call is often made at once.
            stays = self._owner.freed(self)
            lane.end()
            # An idle thread must not keep the last call and its result alive.
            del lane
            if not stays:
                return


class DaemonExecutor(ThreadPoolExecutor):
    """What ``asyncio.to_thread`` in a handler runs on.

    The standard executor's threads are joined at exit, so one that hangs would hang the process.
    At most ``max_workers`` threads; beyond them ``WAITING_MAX`` jobs wait in line, and then
    submitting raises RuntimeError.
    """

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self._limit = max_workers
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._started = 0
        self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("relay is closing")
            if len(self._jobs) >= WAITING_MAX:
                raise RuntimeError("too many blocking calls wait for a thread")
            self._jobs.append((future, lambda: fn(*args, **kwargs)))
            if self._idle >= len(self._jobs):
                self._changed.notify()
            elif self._started < self._limit:
                self._started += 1
                threading.Thread(target=self._work, name="relay-executor", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    if self._closed:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                future, call = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            # An idle thread must not keep the last result alive.
            del future, call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads end; a busy one ends after its job. Never waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class LoopThread:
    """An asyncio loop in a daemon thread, for the async handlers of one session."""

    def __init__(
        self,
        name: str,
        log_exception: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonExecutor(8))
        self.loop.set_task_factory(_labelled_task)  # type: ignore[arg-type]
        self.loop.set_exception_handler(log_exception or (lambda _loop, _context: None))
        self._box = Postbox(self.loop)
        self._finished: Future[None] = Future()
        self._stopping = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self.thread.start()
        except RuntimeError:  # the system has no more of them
            self.loop.close()
            raise

    def start(self, jobs: Sequence[LoopJob]) -> Over:
        """Run what each job's ``begin`` returns in the loop; ``begin`` itself is called there too.

        What it returns is over when all of them have ended.
        """
        together = _Together(jobs)
        try:
            self._box.post(together.launch)
        except RuntimeError as error:  # the loop has closed
            for job in jobs:
                job.finish(Ended(error=error))
            together.over.end()
        return together.over

    def current_label(self) -> object | None:
        """The label of the job whose code runs in the loop at this moment, if one does."""
        return label_of(asyncio.current_task(self.loop))

    async def responds(self, within: float) -> bool:
        """Whether the loop still turns: answers within that many seconds."""
        answer: Future[None] = Future()
        answer.set_running_or_notify_cancel()
        try:
            self.loop.call_soon_threadsafe(answer.set_result, None)
        except RuntimeError:
            return False
        waiter = asyncio.wrap_future(answer)
        done, _ = await asyncio.wait({waiter}, timeout=within)
        waiter.cancel()
        return bool(done)

    def stop(self) -> Future[None]:
        """Cancel what runs and end the thread, when the loop next turns."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._request_stop)
        return self._finished

    def _request_stop(self) -> None:
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
        self._finished.set_result(None)

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=LEFTOVER_GRACE)
        await self.loop.shutdown_asyncgens()


class _LabelledTask(asyncio.Task[Any]):
    """A task that knows for whom it runs; the tasks that it starts inherit that."""

    label: object = None


def _labelled_task(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
) -> _LabelledTask:
    task = _LabelledTask(coro, loop=loop, **options)
    task.label = label_of(asyncio.current_task(loop))
    return task


def label_of(task: object) -> object | None:
    """For whom ``task`` runs: the label given to LoopThread.start()."""
    return getattr(task, "label", None)


class LoopJob(Job):
    """One call in a LoopThread."""

    __slots__ = ("_cancelled", "_clock", "_task", "loop")

    def __init__(
        self,
        loop: LoopThread,
        begin: Callable[[], Any],
        label: object,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(begin, label)
        self.loop = loop
        self._clock = clock
        self._task: _LabelledTask | None = None
        self._cancelled = False

    def launch(self, then: Callable[[], object]) -> None:
        """Start the task; called in the loop's thread. ``then`` is called there at its end."""
        if self._cancelled:
            self.finish(Ended(error=asyncio.CancelledError()))
            then()
            return
        self._task = _LabelledTask(self._run(then), loop=self.loop.loop)
        self._task.label = self.label

    def cancel(self) -> None:
        """Ask the call to end; from any thread."""
        self._cancelled = True
        if self.ended is not None:
            return
        with contextlib.suppress(RuntimeError):
            self.loop.loop.call_soon_threadsafe(lambda: self._task and self._task.cancel())

    async def _run(self, then: Callable[[], object]) -> None:
        self.began = began = self._clock()
        try:
            how = Ended(await self.begin())
        except BaseException as error:
            how = Ended(error=error)
        self.took = self._clock() - began
        self.finish(how)
        then()


class _Together:
    """Calls that begin together in a loop."""

    def __init__(self, jobs: Sequence[LoopJob]) -> None:
        self._jobs = jobs
        self._left = len(jobs)
        self.over = Over()

    def launch(self) -> None:
        for job in self._jobs:
            job.launch(self._ended)

    def _ended(self) -> None:
        self._left -= 1
        if not self._left:
            self.over.end()
