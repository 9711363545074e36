"""Runs handlers so that none of them can hurt: not by raising, hanging or returning nonsense.

Sync handlers run in daemon threads, at most ``workers`` at once; async ones in a loop of their
own, in a daemon thread. Every call has a time limit. A thread that does not come back is
abandoned and counted; its place is free again, and a handler that has lost too many threads is
switched off.

Most handlers are short. Those of one event begin together: the sync ones in one thread, one after
the other, the async ones side by side; and the session's own loop stands still for them, for QUICK
at the most, because to wake it takes longer. What has not begun by then gets a thread of its own,
what has not ended is awaited, and a handler that was not quick the last time is so from the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic

from relay.hooks.jobs import Job, Lane, Over
from relay.hooks.model import Callee
from relay.hooks.outcomes import Call, End, Outcome, R, Read, one_line, trace
from relay.hooks.registry import TIMEOUT_DEFAULT, Registry
from relay.hooks.results import HandlerError, Result, normalise
from relay.hooks.threads import CallThreads, LoopJob, LoopThread, Postbox, label_of

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
#: A handler that takes longer is not quick. Seconds.
QUICK = 0.001
#: So many calls in QUICK are worth going on in one thread: to wake one for each takes longer.
_WORTH = 8
#: So many times QUICK is waited for a thread that has not begun.
_PATIENCE = 50

_Rest = Callable[[], Awaitable[None]]


class _Run(Generic[R]):
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
        self._slow: set[Callee] = set()  # those that were not quick the last time
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
        """One handler, whose answer ``read`` makes sense of; see Call. Never raises."""
        (outcome,) = await self.call_all([Call(callee, lambda: arguments, read, timeout)])
        return outcome

    async def call_all(self, calls: Iterable[Call[R]]) -> list[Outcome[R]]:
        """Several handlers, side by side where they take their time. Never raises.

        The outcomes are in the order of ``calls``.
        """
        runs = [_Run(call, self._limit(call)) for call in calls]
        todo = [run for run in runs if not self._refused(run)]
        try:
            rest = await self._begin(todo)
            if rest:
                await self._awaited(rest)
        except BaseException:
            for run in todo:
                self._abandon(run)
            raise
        return [run.outcome for run in runs if run.outcome is not None]

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

    def _limit(self, call: Call[R]) -> float:
        limits = (call.timeout, call.callee.timeout, self._timeout)
        return next(limit for limit in limits if limit is not None)

    def _refused(self, run: _Run[R]) -> bool:
        callee = run.call.callee
        if callee in self._off:
            self._conclude(run, End.OFF, self._off[callee])
        elif self._closed:
            self._conclude(run, End.REFUSED, "relay is closing")
        return run.outcome is not None

    async def _awaited(self, rest: list[_Rest]) -> None:
        ended = asyncio.get_running_loop().create_future()
        self._running.add(ended)
        try:
            await _all(rest)
        finally:
            self._running.discard(ended)
            _wake(ended)

    async def _begin(self, runs: list[_Run[R]]) -> list[_Rest]:
        """Begin with those that may be quick, and give them a moment; what is left to be done."""
        plain, coroutines, alone = await self._sorted(runs)
        lane = self._start_lane(plain) if plain else None
        overs = [lane.over] if lane is not None else []
        if coroutines:
            overs.append(self._start_in_loop(coroutines))
        # Those that are not quick do not wait for those that may be.
        waited = not alone and _stand_still(overs)
        rest: list[_Rest] = [partial(self._alone, run) for run in alone]
        if lane is not None and not lane.over.yet:
            rest.append(partial(self._follow, lane, plain, waited))
            plain = []
        if coroutines and not overs[-1].yet:
            rest.append(partial(self._follow_all, overs[-1], coroutines))
            coroutines = []
        rest += [partial(self._rest_in_thread, run) for run in plain if not self._read(run)]
        rest += [partial(self._rest_in_loop, run) for run in coroutines if not self._read(run)]
        return rest

    async def _sorted(
        self, runs: list[_Run[R]]
    ) -> tuple[list[_Run[R]], list[_Run[R]], list[_Run[R]]]:
        """Those that one thread makes, those that go into the loop, and those that go alone."""
        plain: list[_Run[R]] = []
        coroutines: list[_Run[R]] = []
        alone: list[_Run[R]] = []
        for run in runs:
            callee = run.call.callee
            place = self._places[callee.is_async]
            own = callee.is_async or not plain  # a thread for them all is one place
            if callee in self._slow or (own and place.locked()):
                alone.append(run)
                continue
            if own:
                await place.acquire()  # at once
                run.place = place
            (coroutines if callee.is_async else plain).append(run)
        return plain, coroutines, alone

    def _start_lane(self, runs: list[_Run[R]]) -> Lane:
        jobs = []
        for run in runs:
            callee = run.call.callee
            run.job = Job(run.call.begin, callee, f"relay-handler {callee.name}"[:60])
            jobs.append(run.job)
        lane = Lane(jobs, self._clock)
        for run in runs:
            run.lane = lane
        self._threads.start(lane)
        return lane

    def _start_in_loop(self, runs: list[_Run[R]]) -> Over:
        loop = self._current_loop()
        jobs = []
        for run in runs:
            job = LoopJob(loop, run.call.begin, run.call.callee, self._clock)
            run.job, run.posted = job, self._clock()
            jobs.append(job)
        return loop.start(jobs)

    async def _follow(self, lane: Lane, runs: list[_Run[R]], waited: bool) -> None:
        """Leave the calls to the one thread as long as it gets on, then each to its own."""
        before, patience = 0, _PATIENCE
        while len(runs) > 1 and not lane.over.yet and patience:
            if not waited:
                await self._told(lane.over.tell, QUICK)
            waited, begun = False, lane.begun
            if begun and begun - before < _WORTH:
                break
            before, patience = begun, patience - (not begun)
        place, runs[0].place = runs[0].place, None
        lane.take_back()
        rest: list[_Rest] = []
        for run in runs:
            if run.job is not None and run.job.withdrawn:
                rest.append(partial(self._alone, run))
            elif not self._read(run):
                # At most one has begun and not ended: the place is its own now.
                if run.job is not None and run.job.ended is None:
                    run.place, place = place, None
                rest.append(partial(self._rest_in_thread, run))
        if place is not None:
            place.release()
        await _all(rest)

    async def _follow_all(self, over: Over, runs: list[_Run[R]]) -> None:
        """Wait for all of the calls in the loop at once as long as they end one after the other."""
        before = 0
        while not over.yet:
            ended = sum(run.job is not None and run.job.ended is not None for run in runs)
            if len(runs) == 1 or (ended or before) and ended - before < _WORTH:
                break
            before = ended or 1
            await self._told(over.tell, QUICK)
        await _all([partial(self._rest_in_loop, run) for run in runs if not self._read(run)])

    async def _alone(self, run: _Run[R]) -> None:
        """Call it where nothing else waits for it."""
        callee = run.call.callee
        if not await self._take_place(run, callee.is_async):
            return
        if callee.is_async:
            self._start_in_loop([run])
            await self._rest_in_loop(run)
        else:
            self._start_lane([run])
            await self._rest_in_thread(run)

    async def _take_place(self, run: _Run[R], is_async: bool) -> bool:
        if self._waiting >= WAITING_MAX:
            self._conclude(run, End.REFUSED, "too many handler calls are waiting")
            return False
        self._waiting += 1
        try:
            place = self._places[is_async]
            await place.acquire()
            run.place = place
        finally:
            self._waiting -= 1
        return True

    async def _rest_in_thread(self, run: _Run[R]) -> None:
        """A thread makes the call, or has made it, and what it gave is to be awaited."""
        job = run.job
        assert job is not None
        if job.ended is None:
            began = self._clock() if job.began is None else job.began
            if not await self._settled(job.future, run.limit - (self._clock() - began)):
                self._count_hung(run.call.callee, job.future)
                self._timed_out(run, self._clock() - began)
                return
        run.leave()
        if self._read(run) or job.ended is None:
            return
        # A plain function that returns a coroutine, such as a lambda.
        value, run.spent, run.job = job.ended.value, job.took or 0.0, None
        if await self._take_place(run, True):
            loop = self._current_loop()
            run.job, run.posted = LoopJob(loop, lambda: value, run.call.callee), self._clock()
            loop.start([run.job])
            await self._rest_in_loop(run)

    async def _rest_in_loop(self, run: _Run[R]) -> None:
        job, callee = run.job, run.call.callee
        assert isinstance(job, LoopJob)
        left = run.limit - run.spent - (self._clock() - run.posted)
        if job.ended is None and not await self._settled(job.future, left):
            job.cancel()
            await self._end_in_loop(callee, job.loop, job)
            self._timed_out(run, run.spent + self._clock() - run.posted)
        else:
            self._read(run)

    def _abandon(self, run: _Run[R]) -> None:
        """Nobody waits for this call any more."""
        if run.lane is not None:
            run.lane.take_back()
        run.leave()
        job = run.job
        if job is None or job.ended is not None or job.withdrawn or run.outcome is not None:
            return
        if isinstance(job, LoopJob):
            job.cancel()
        else:
            self._count_hung(run.call.callee, job.future)  # until it ends

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

    async def _settled(self, future: Future[Any], limit: float) -> bool:
        """Whether ``future`` ends within ``limit`` seconds."""
        await self._told(lambda tell: future.add_done_callback(lambda _future: tell()), limit)
        return future.done()

    async def _told(self, ask: Callable[[Callable[[], object]], object], limit: float) -> None:
        """Wait until what was given to ``ask`` is called, by any thread, at most so long."""
        loop = asyncio.get_running_loop()
        if self._box is None or self._box.loop is not loop:
            self._box = Postbox(loop)
        box, waiter = self._box, loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the session has gone
                box.post(lambda: _wake(waiter))

        ask(tell)
        timer = loop.call_later(limit, _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    def _read(self, run: _Run[R]) -> bool:
        """What the call came to; False while it has not ended, or gave what is to be awaited."""
        job, callee = run.job, run.call.callee
        if job is None or job.ended is None:
            return False
        error, value, took = job.ended.error, job.ended.value, job.took or 0.0
        if took > QUICK:
            self._slow.add(callee)
        elif self._slow:
            self._slow.discard(callee)
        spent = run.spent + took
        if error is not None:
            self._conclude(run, End.RAISED, one_line(error), spent, trace=trace(error))
            return True
        if value is not None and not isinstance(job, LoopJob) and inspect.isawaitable(value):
            return False
        try:
            self._conclude(run, End.DONE, "", spent, run.call.read(value, callee.name))
        except HandlerError as problem:
            self._conclude(run, End.NONSENSE, f"{problem.message}; {problem.hint}", spent)
        except Exception as problem:  # in a value of the user's own making
            text = f"it returned what cannot be read: {one_line(problem)}"
            self._conclude(run, End.NONSENSE, text, spent)
        return True

    def _timed_out(self, run: _Run[R], spent: float) -> None:
        callee = run.call.callee
        self._slow.add(callee)
        note = f"; {self._off[callee]}" if callee in self._off else ""
        self._conclude(run, End.TIMEOUT, f"it did not end within {run.limit:g} s{note}", spent)

    def _conclude(
        self,
        run: _Run[R],
        end: End,
        error: str,
        spent: float = 0.0,
        result: R | None = None,
        trace: str = "",
    ) -> None:
        run.leave()
        run.outcome = Outcome(run.call.callee.name, end, result, error, spent, trace)
        self._report(run.outcome)

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
            text, where = one_line(error), trace(error)
        else:
            text, where = str(context.get("message", "")), ""
        self._report(Outcome(name, End.RAISED, None, f"in a task it left: {text}", 0.0, where))


async def _all(rest: list[_Rest]) -> None:
    if len(rest) == 1:
        await rest[0]()
    elif rest:
        async with asyncio.TaskGroup() as group:
            for one in rest:
                group.create_task(_awaited(one))


async def _awaited(rest: _Rest) -> None:
    await rest()


def _stand_still(overs: list[Over]) -> bool:
    """Wait a moment until all of it is over; True."""
    end = time.monotonic() + QUICK
    for over in overs:
        over.wait(max(0.0, end - time.monotonic()))
    return True


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
