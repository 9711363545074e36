"""Runs handlers so that none of them can hurt: not by raising, hanging or returning nonsense.

Sync handlers run in daemon threads, at most ``workers`` at once; async ones in a loop of their
own, in a daemon thread. Every call has a time limit. A thread that does not come back is
abandoned and counted; its place is free again, and a handler that has lost too many threads is
switched off. The session's own loop only ever awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from relay.hooks.model import Callee
from relay.hooks.registry import TIMEOUT_DEFAULT, Registry
from relay.hooks.results import HandlerError, Result, normalise
from relay.hooks.threads import CallThreads, Ended, LoopJob, LoopThread, Postbox, label_of

#: Sync handlers at once, and async handlers at once. Most of them wait for something.
WORKERS = 128
ASYNC_MAX = 128
#: Calls that may wait for a free place; further ones fail at once.
WAITING_MAX = 1000
#: Lost threads: of one handler, and of all, before a handler that hangs is switched off.
HUNG_PER_HANDLER = 3
HUNG_MAX = 16
#: How long a cancelled call may take to end, and a loop to answer, in seconds.
GRACE = 1.0
_TEXT_MAX = 4000


R = TypeVar("R")
#: What a handler returned, and its name for people, to what that means. Raises HandlerError.
Read = Callable[[object, str], R]


class End(StrEnum):
    """How a call ended."""

    DONE = "done"
    RAISED = "raised"
    TIMEOUT = "timeout"
    NONSENSE = "nonsense"
    OFF = "off"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """One call of one handler. ``duration`` in seconds; ``error`` is one line for people.

    ``result`` is what the handler said, read; None unless ``ok``. ``trace`` is where in the user's
    code it was raised.
    """

    handler: str
    end: End
    result: R | None
    error: str
    duration: float
    trace: str = ""

    @property
    def ok(self) -> bool:
        return self.end is End.DONE


class FunctionRunner:
    """The handlers of one registry, run for one session. Belongs to the loop that awaits it.

    ``report`` is called in that loop with every Outcome, as soon as it is known.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        timeout: float = TIMEOUT_DEFAULT,
        workers: int = WORKERS,
        report: Callable[[Outcome[Any]], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
        grace: float = GRACE,
    ) -> None:
        self._registry = registry
        self._timeout = timeout
        self._report = report or (lambda _outcome: None)
        self._clock = clock
        self._grace = grace
        self._places = {False: asyncio.Semaphore(workers), True: asyncio.Semaphore(ASYNC_MAX)}
        self._waiting = 0
        self._running: set[asyncio.Future[Any]] = set()
        self._hung: list[tuple[Callee, Future[Any]]] = []
        self._off: dict[Callee, str] = {}
        self._threads = CallThreads()
        self._box: Postbox | None = None  # by which they tell this loop of their ends
        self._loop_thread: LoopThread | None = None
        self._closed = False

    @property
    def timeout(self) -> float:
        """Seconds that a handler has which has no limit of its own."""
        return self._timeout

    async def run_pattern(
        self, namespace: str, target: str, message: str, ctx: object
    ) -> list[Outcome[Result]]:
        """Every handler of one match, one after the other, until one says stop."""
        handlers = self._registry.select(namespace, target)
        return await self._chain([h.callee for h in handlers], (target, message, ctx))

    async def call(
        self,
        callee: Callee,
        arguments: Sequence[object],
        read: Read[R],
        timeout: float | None = None,
    ) -> Outcome[R]:
        """One handler, whose answer ``read`` makes sense of; never raises.

        ``timeout`` in seconds; None means the handler's own, else the configured one.
        """
        outcome = await self._call(callee, arguments, read, timeout)
        self._report(outcome)
        return outcome

    def switched_off(self) -> dict[str, str]:
        """Handlers that run no more: name -> why."""
        return {callee.name: reason for callee, reason in self._off.items()}

    def hung(self) -> int:
        """How many abandoned calls have still not ended."""
        self._hung = [(callee, future) for callee, future in self._hung if not future.done()]
        return len(self._hung)

    async def close(self, timeout: float = 2.0) -> None:
        """Take no more calls, wait ``timeout`` s for what runs, then cancel what is async."""
        self._closed = True
        end = self._clock() + timeout
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout)
        self._threads.close()
        if self._loop_thread is None:
            return
        # A retired loop is not waited for: it has been asked to end, and something blocks it.
        waiter = asyncio.wrap_future(self._loop_thread.stop())
        await asyncio.wait({waiter}, timeout=max(self._grace, end - self._clock()))
        waiter.cancel()

    async def _chain(
        self, callees: Sequence[Callee], arguments: Sequence[object]
    ) -> list[Outcome[Result]]:
        outcomes = []
        for callee in callees:
            outcome = await self.call(callee, arguments, normalise)
            outcomes.append(outcome)
            if outcome.result is not None and outcome.result.stop:
                break
        return outcomes

    async def _call(
        self, callee: Callee, arguments: Sequence[object], read: Read[R], timeout: float | None
    ) -> Outcome[R]:
        if callee in self._off:
            return Outcome(callee.name, End.OFF, None, self._off[callee], 0.0)
        if self._closed or self._waiting >= WAITING_MAX:
            why = "relay is closing" if self._closed else "too many handler calls are waiting"
            return Outcome(callee.name, End.REFUSED, None, why, 0.0)
        self._waiting += 1
        try:
            place = self._places[callee.is_async]
            await place.acquire()
        finally:
            self._waiting -= 1
        began = self._clock()
        try:
            limits = (timeout, callee.timeout, self._timeout)
            limit = next(limit for limit in limits if limit is not None)
            return await self._run(callee, arguments, read, began, limit)
        finally:
            place.release()

    async def _run(
        self,
        callee: Callee,
        arguments: Sequence[object],
        read: Read[R],
        began: float,
        limit: float,
    ) -> Outcome[R]:
        def outcome(end: End, error: str, result: R | None = None, trace: str = "") -> Outcome[R]:
            return Outcome(callee.name, end, result, error, self._clock() - began, trace)

        def call() -> Any:
            return callee.binding.call(callee.function, arguments)

        try:
            if callee.is_async:
                value = await self._in_loop(callee, call, limit)
            else:
                value = await self._in_thread(callee, call, limit)
                if inspect.isawaitable(value):
                    # A plain function that returns a coroutine, such as a lambda.
                    rest = max(0.0, limit - (self._clock() - began))
                    value = await self._in_loop(callee, lambda: value, rest)
            return outcome(End.DONE, "", read(value, callee.name))
        except _HandlerTimeout:
            text = f"it did not end within {limit:g} s" + self._note(callee)
            return outcome(End.TIMEOUT, text)
        except _Raised as raised:
            return outcome(End.RAISED, _one_line(raised.error), trace=_trace(raised.error))
        except HandlerError as error:
            return outcome(End.NONSENSE, f"{error.message}; {error.hint}")

    async def _in_thread(self, callee: Callee, call: Callable[[], Any], limit: float) -> Any:
        future = self._threads.run(call, f"relay-handler {callee.name}"[:60])
        try:
            if await self._settled(future, limit):
                return _value(future)
        except asyncio.CancelledError:
            self._count_hung(callee, future)  # until it ends: nobody waits for it any more
            raise
        self._count_hung(callee, future)
        raise _HandlerTimeout

    async def _in_loop(self, callee: Callee, begin: Callable[[], Any], limit: float) -> Any:
        loop = self._current_loop()
        job = loop.start(begin, callee)
        try:
            if await self._settled(job.future, limit):
                return _value(job.future)
        finally:
            job.cancel()
        await self._end_in_loop(callee, loop, job)
        raise _HandlerTimeout

    async def _end_in_loop(self, callee: Callee, loop: LoopThread, job: LoopJob) -> None:
        """The call was cancelled: see that it ends, else that it cannot hold up the others."""
        if await self._settled(job.future, self._grace):
            return
        if await loop.responds(self._grace):
            self._count_hung(callee, job.future)  # it refuses to be cancelled
            return
        # Something in this loop blocks it. Whoever it is, the next call gets a new loop.
        label = loop.current_label()
        culprit = label if isinstance(label, Callee) else callee
        if loop is self._loop_thread:
            self._loop_thread = None
            self._count_hung(culprit, loop.stop())

    async def _settled(self, future: Future[Ended], limit: float) -> bool:
        """Whether ``future`` ends within ``limit`` seconds."""
        loop = asyncio.get_running_loop()
        if self._box is None or self._box.loop is not loop:
            self._box = Postbox(loop)
        box, waiter = self._box, loop.create_future()

        def ended(_future: Future[Ended]) -> None:
            with contextlib.suppress(RuntimeError):  # the session has gone
                box.post(lambda: _wake(waiter))

        future.add_done_callback(ended)
        timer = loop.call_later(limit, _wake, waiter)
        self._running.add(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._running.discard(waiter)
        return future.done()

    def _count_hung(self, callee: Callee, future: Future[Any]) -> None:
        total = self.hung() + 1
        self._hung.append((callee, future))
        own = sum(1 for owner, _future in self._hung if owner is callee)
        if own >= HUNG_PER_HANDLER or total >= HUNG_MAX:
            self._off[callee] = f"switched off: {own} of its calls hang"

    def _current_loop(self) -> LoopThread:
        if self._loop_thread is None:
            session = asyncio.get_running_loop()

            def stray(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
                with contextlib.suppress(RuntimeError):  # the session has gone
                    session.call_soon_threadsafe(self._report_stray, context)

            self._loop_thread = LoopThread("relay-async-handlers", stray)
        return self._loop_thread

    def _report_stray(self, context: dict[str, Any]) -> None:
        """A task that a handler left behind has failed."""
        label = label_of(context.get("task") or context.get("future"))
        name = label.name if isinstance(label, Callee) else "a handler"
        error = context.get("exception")
        if isinstance(error, BaseException):
            text, trace = _one_line(error), _trace(error)
        else:
            text, trace = str(context.get("message", "")), ""
        self._report(Outcome(name, End.RAISED, None, f"in a task it left: {text}", 0.0, trace))

    def _note(self, callee: Callee) -> str:
        return f"; {self._off[callee]}" if callee in self._off else ""


class _HandlerTimeout(Exception):
    """The time is up and the call has not ended."""


class _Raised(Exception):
    """The handler raised ``error``."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _value(future: Future[Ended]) -> Any:
    ended = future.result()
    if ended.error is not None:
        raise _Raised(ended.error)
    return ended.value


def _one_line(error: BaseException) -> str:
    try:
        text = traceback.format_exception_only(error)[-1].strip()
    except Exception:  # its __str__ raises
        text = type(error).__name__
    where = _frames(error)
    place = f" (line {where[-1].lineno} in {where[-1].name})" if where else ""
    return " ".join(text.split())[:_TEXT_MAX] + place


def _trace(error: BaseException) -> str:
    """The part of the traceback that is the user's."""
    return "".join(traceback.format_list(_frames(error)))[-_TEXT_MAX:]


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    own = __file__.rpartition("/")[0]
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(own)
    ]
