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
import inspect
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from relay.hooks.hook_model import Callee
from relay.hooks.hung import Hung
from relay.hooks.jobs import Job, Lane, Over, Run
from relay.hooks.loops import HandlerLoop
from relay.hooks.outcomes import Call, End, Outcome, R, Read, one_line, trace
from relay.hooks.registry import TIMEOUT_DEFAULT, Registry
from relay.hooks.results import HandlerError, Result, normalise
from relay.hooks.threads import CallThreads, LoopJob
from relay.hooks.waits import Rest, Waits, side_by_side, stand_still, wake

#: Sync handlers at once, and async handlers at once. Most of them wait for something.
WORKERS = 128
ASYNC_MAX = 128
#: Calls that may wait for a free place; further ones fail at once.
WAITING_MAX = 1000
#: How long a cancelled call may take to end, and a loop to answer, in seconds.
GRACE = 1.0
#: A handler that takes longer is not quick. Seconds.
QUICK = 0.001
#: So many calls in QUICK are worth going on in one thread: to wake one for each takes longer.
_WORTH = 8
#: So many times QUICK is waited for a thread that has not begun.
_PATIENCE = 50


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
        self._hung = Hung(clock)
        self._slow: set[Callee] = set()  # those that were not quick the last time
        self._threads = CallThreads()
        self._waits = Waits()
        self._loop = HandlerLoop(self._report, self._waits, self._hung, grace)
        self._stood = 0.0  # seconds that the session's loop has stood still since it last turned
        self._closed = self._ended = False

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
        runs = [Run(call, self._limit(call)) for call in calls]
        todo = [run for run in runs if not self._refused(run)]
        try:
            rest = await self._begin(todo)
            if rest or self._stood > QUICK:  # many events in a row must not starve the loop
                self._stood = 0.0
                await (self._awaited(rest) if rest else asyncio.sleep(0))
        except BaseException:
            for run in todo:
                self._abandon(run)
            raise
        return [run.outcome for run in runs if run.outcome is not None]

    def switched_off(self) -> dict[str, str]:
        """Handlers that run no more: name -> why."""
        return {callee.name: reason for callee, reason in self._hung.off.items()}

    def hung(self) -> int:
        """How many abandoned calls have still not ended."""
        return self._hung.count()

    async def close(self, timeout: float = 2.0) -> None:
        """Take no more calls, wait ``timeout`` s for what runs, then cancel what is async."""
        self._closed = True
        end = self._clock() + timeout
        if self._running:
            await asyncio.wait(set(self._running), timeout=timeout)
        self._ended = True
        self._threads.close()
        stopped = self._loop.stop()
        if stopped is None:
            return
        waiter = asyncio.wrap_future(stopped)
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
        own = call.callee.timeout if call.timeout is None else call.timeout
        return self._timeout if own is None else own

    def _refused(self, run: Run[R]) -> bool:
        callee = run.call.callee
        if callee in self._hung.off:
            self._conclude(run, End.OFF, self._hung.off[callee])
        elif self._closed:
            self._conclude(run, End.REFUSED, "relay is closing")
        return run.outcome is not None

    async def _awaited(self, rest: list[Rest]) -> None:
        ended = asyncio.get_running_loop().create_future()
        self._running.add(ended)
        try:
            await side_by_side(rest)
        finally:
            self._running.discard(ended)
            wake(ended)

    async def _begin(self, runs: list[Run[R]]) -> list[Rest]:
        """Begin with those that may be quick, and give them a moment; what is left to be done."""
        plain, coroutines, alone = await self._sorted(runs)
        lane = self._start_lane(plain) if plain else None
        overs = [lane.over] if lane is not None else []
        if coroutines:
            overs.append(self._start_in_loop(coroutines))
        # Those that are not quick do not wait for those that may be.
        waited = not alone
        if waited:
            self._stood += stand_still(overs, QUICK)
        rest: list[Rest] = [partial(self._alone, run) for run in alone]
        if lane is not None and not lane.over.yet:
            rest.append(partial(self._follow, lane, plain, waited))
            plain = []
        if coroutines and not overs[-1].yet:
            rest.append(partial(self._follow_all, overs[-1], coroutines))
            coroutines = []
        rest += [partial(self._rest_in_thread, run) for run in plain if not self._read(run)]
        rest += [partial(self._rest_in_loop, run) for run in coroutines if not self._read(run)]
        return rest

    async def _sorted(self, runs: list[Run[R]]) -> tuple[list[Run[R]], list[Run[R]], list[Run[R]]]:
        """Those that one thread makes, those that go into the loop, and those that go alone."""
        plain: list[Run[R]] = []
        coroutines: list[Run[R]] = []
        alone: list[Run[R]] = []
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

    def _start_lane(self, runs: list[Run[R]]) -> Lane:
        lane = self._lane(runs)
        self._threads.start(lane)
        return lane

    def _lane(self, runs: list[Run[R]]) -> Lane:
        jobs = []
        for run in runs:
            callee = run.call.callee
            run.job = Job(run.call.begin, callee, f"relay-handler {callee.name}"[:60])
            jobs.append(run.job)
        lane = Lane(jobs, self._clock)
        for run in runs:
            run.lane = lane
        return lane

    def _start_in_loop(self, runs: list[Run[R]], begin: Callable[[], Any] | None = None) -> Over:
        try:
            loop = self._loop.current()
        except (OSError, RuntimeError) as error:  # no descriptor or thread can be had
            lane = self._lane(runs)
            lane.fail(error)
            return lane.over
        jobs = []
        for run in runs:
            job = LoopJob(loop, begin or run.call.begin, run.call.callee, self._clock)
            run.job, run.posted = job, self._clock()
            jobs.append(job)
        return loop.start(jobs)

    async def _follow(self, lane: Lane, runs: list[Run[R]], waited: bool) -> None:
        """Leave the calls to the one thread as long as it gets on, then each to its own."""
        before, patience = 0, _PATIENCE
        while len(runs) > 1 and not lane.over.yet and patience:
            if not waited:
                await self._waits.told(lane.over.tell, QUICK)
            waited, begun = False, lane.begun
            if begun and begun - before < _WORTH:
                break
            before, patience = begun, patience - (not begun)
        place, runs[0].place = runs[0].place, None
        lane.take_back()
        rest: list[Rest] = []
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
        await side_by_side(rest)

    async def _follow_all(self, over: Over, runs: list[Run[R]]) -> None:
        """Wait for all of the calls in the loop at once as long as they end one after the other."""
        before = 0
        while not over.yet:
            ended = sum(run.job is not None and run.job.ended is not None for run in runs)
            if len(runs) == 1 or (ended or before) and ended - before < _WORTH:
                break
            before = ended or 1
            await self._waits.told(over.tell, QUICK)
        await side_by_side(
            [partial(self._rest_in_loop, run) for run in runs if not self._read(run)]
        )

    async def _alone(self, run: Run[R]) -> None:
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

    async def _take_place(self, run: Run[R], is_async: bool) -> bool:
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
        if self._ended:
            self._conclude(run, End.REFUSED, "relay is closing")
        return run.outcome is None

    async def _rest_in_thread(self, run: Run[R]) -> None:
        """A thread makes the call, or has made it, and what it gave is to be awaited."""
        job = run.job
        assert job is not None
        if job.ended is None:
            began = self._clock() if job.began is None else job.began
            if not await self._waits.settled(job.future, run.limit - (self._clock() - began)):
                self._hung.add(run.call.callee, job.future)
                self._timed_out(run, self._clock() - began)
                return
        run.leave()
        if self._read(run) or job.ended is None:
            return
        # A plain function that returns a coroutine, such as a lambda.
        value, run.spent, run.job = job.ended.value, job.took or 0.0, None
        if await self._take_place(run, True):
            self._start_in_loop([run], lambda: value)
            await self._rest_in_loop(run)

    async def _rest_in_loop(self, run: Run[R]) -> None:
        if self._read(run):
            return
        job = run.job
        assert isinstance(job, LoopJob)
        left = run.limit - run.spent - (self._clock() - run.posted)
        if await self._waits.settled(job.future, left):
            self._read(run)
        else:
            await self._loop.end(run.call.callee, job)
            self._timed_out(run, run.spent + self._clock() - run.posted)

    def _abandon(self, run: Run[R]) -> None:
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
            began = self._clock() if job.began is None else job.began
            self._hung.add(run.call.callee, job.future, began + run.limit)

    def _read(self, run: Run[R]) -> bool:
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
        try:
            if value is not None and not isinstance(job, LoopJob) and inspect.isawaitable(value):
                return False
            result = run.call.read(value, callee.name)
        except HandlerError as problem:
            self._conclude(run, End.NONSENSE, f"{problem.message}; {problem.hint}", spent)
        except BaseException as problem:  # a value of the user's own making may do anything
            text = f"it returned what cannot be read: {one_line(problem)}"
            self._conclude(run, End.NONSENSE, text, spent)
        else:
            self._conclude(run, End.DONE, "", spent, result)
        return True

    def _timed_out(self, run: Run[R], spent: float) -> None:
        callee = run.call.callee
        self._slow.add(callee)
        note = self._hung.note(callee)
        self._conclude(run, End.TIMEOUT, f"it did not end within {run.limit:g} s{note}", spent)

    def _conclude(
        self,
        run: Run[R],
        end: End,
        error: str,
        spent: float = 0.0,
        result: R | None = None,
        trace: str = "",
    ) -> None:
        run.leave()
        run.outcome = Outcome(run.call.callee.name, end, result, error, spent, trace)
        self._report(run.outcome)
