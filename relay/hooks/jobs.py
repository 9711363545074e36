"""Calls of handlers on their way: made in one thread, asked about in another.

A handler that has something to do for a few microseconds is made slow by what is around it: a
thread to wake, a loop to wake again. So one thread makes the calls of several such handlers, one
after the other (a Lane), and whoever wants to know waits where it stands, for a moment (Over).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Generic

from relay.hooks.outcomes import Call, Outcome, R


@dataclass(slots=True)
class Ended:
    """How a call ended: its value, or what it raised. Exceptions are carried as values, because
    a future refuses some of them (StopIteration) and complains about those nobody asked for."""

    value: Any = None
    error: BaseException | None = None


def ended(call: Callable[[], object]) -> Ended:
    """How ``call``, made now, ends. Never raises."""
    try:
        # What a handler sets there is gone with it, as in a thread of its own.
        return Ended(Context().run(call))
    except BaseException as error:  # sys.exit() in a handler is a failure like any other
        return Ended(error=error)


class Job:
    """One call of a handler. ``label`` is for whom it is made, ``name`` that of its thread.

    ``began`` is the time at which it began and ``took`` how long it took, both None before.
    ``withdrawn``: it never will be.
    """

    __slots__ = ("_future", "begin", "began", "ended", "label", "name", "took", "withdrawn")

    def __init__(self, begin: Callable[[], Any], label: object = None, name: str = "") -> None:
        self.begin = begin
        self.label = label
        self.name = name
        self.began: float | None = None
        self.took: float | None = None
        self.ended: Ended | None = None
        self.withdrawn = False
        self._future: Future[Ended] | None = None

    def finish(self, ended: Ended) -> None:
        """It has ended; told by the thread that made the call."""
        self.ended = ended
        # Whoever asks for a future sets it before looking whether the call has ended: one of the
        # two sees what the other did, and where both do, the second changes nothing.
        if self._future is not None:
            _settle(self._future, ended)

    @property
    def future(self) -> Future[Ended]:
        """What is done once the call has ended. One thread may ask for it."""
        future = self._future
        if future is None:
            future = Future()
            # Running from the start: nobody can cancel what a thread has already been given.
            future.set_running_or_notify_cancel()
            self._future = future
            if self.ended is not None:
                _settle(future, self.ended)
        return future


def _settle(future: Future[Ended], ended: Ended) -> None:
    with contextlib.suppress(InvalidStateError):
        future.set_result(ended)


class Over:
    """Whether something in another thread is over, for one who waits for it."""

    __slots__ = ("_call", "_lock", "yet")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._call: Callable[[], object] | None = None
        self.yet = False

    def end(self) -> None:
        """It is over; told once, from any thread."""
        self.yet = True
        self._lock.release()
        if self._call is not None:
            self._call()

    def wait(self, seconds: float) -> bool:
        """Whether it is over within that time. Stops the thread that asks."""
        if self.yet:
            return True
        if not self._lock.acquire(timeout=seconds):
            return False
        self._lock.release()
        return True

    def tell(self, call: Callable[[], object]) -> None:
        """Make ``call`` when it is over; twice, perhaps, if that is just now."""
        self._call = call
        if self.yet:
            call()


class Lane:
    """Calls that one thread makes one after the other, until they are taken back."""

    def __init__(self, jobs: Iterable[Job], clock: Callable[[], float]) -> None:
        self._left = deque(jobs)
        self._clock = clock
        self.begun = 0
        self.over = Over()
        self._last: tuple[Job, Ended] | None = None

    def work(self) -> None:
        """Make the calls, in the thread that is to make them. What the last one came to is told
        by ``end``: whoever knows of it often makes the next call at once."""
        thread, left, clock = threading.current_thread(), self._left, self._clock
        while left:
            try:
                job = left.popleft()
            except IndexError:  # it was taken back just now
                return
            thread.name = job.name
            job.began = began = clock()
            self.begun += 1
            how = ended(job.begin)
            job.took = clock() - began
            if left:
                job.finish(how)
            else:
                self._last = (job, how)

    def end(self) -> None:
        """The thread is free again."""
        if self._last is not None:
            job, how = self._last
            job.finish(how)
        self.over.end()

    def fail(self, error: Exception) -> None:
        """There is no thread for it: each call has ended with ``error``."""
        while self._left:
            self._left.popleft().finish(Ended(error=error))
        self.over.end()

    def take_back(self) -> None:
        """Make no further calls: those that have not begun are ``withdrawn``."""
        with contextlib.suppress(IndexError):
            while True:
                self._left.popleft().withdrawn = True


class Run(Generic[R]):
    """A call on its way. ``job`` is what was begun; ``place`` is held until ``leave``.

    ``spent`` is how long it took before the present job, and ``posted`` when that was given away.
    """

    __slots__ = ("call", "job", "lane", "limit", "outcome", "place", "posted", "spent")

    def __init__(self, call: Call[R], limit: float) -> None:
        self.call = call
        self.limit = limit
        self.job: Job | None = None
        self.lane: Lane | None = None
        self.place: asyncio.Semaphore | None = None
        self.posted = self.spent = 0.0
        self.outcome: Outcome[R] | None = None

    def leave(self) -> None:
        """Others may have its place."""
        if self.place is not None:
            place, self.place = self.place, None
            place.release()
