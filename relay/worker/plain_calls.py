"""Calls the plain route functions of one event: cheap when they are quick, side by side when not.

Of a thousand functions one fires: what a single call costs is what an event waits for. One thread
goes through the functions; when it stops to get on for 1 ms, more threads take what is left. A
function that does not end in time is given up with its thread; after ``HUNG_MAX`` such calls that
have not ended it is called no more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from relay.core.dispatch import Event
from relay.hooks.handler_threads import Workers
from relay.hooks.hook_types import RouteFunction
from relay.hooks.output_keys import HandlerError
from relay.hooks.run_functions import HUNG_PER_HANDLER, QUICK, WORKERS, one_line

#: Functions that are called within 1 ms where they are quick.
MANY = 32
#: What a function returned, as it travels; raises HandlerError.
Read = Callable[[object], object]
#: Microseconds, what it said (None: nothing), and what went wrong.
Said = tuple[int, object, str | None]


class PlainCalls:
    """The threads, and which functions hang. Belongs to the worker's loop."""

    def __init__(self, read: Read, timeout: float) -> None:
        """``timeout``: seconds of a function that has no limit of its own."""
        self._read = read
        self._timeout = timeout
        self._workers = Workers(WORKERS)
        self._hung: dict[str, list[_Part]] = {}

    async def call(self, event: Event, routes: Sequence[RouteFunction]) -> list[Said]:
        """What each said, in the order of ``routes``. Never raises."""
        sweep = _Sweep(event, routes, self._read)
        for index, one in enumerate(routes) if self._hung else ():
            if self._hangs(one.name):
                hung = f"switched off: {HUNG_PER_HANDLER} of its calls hang"
                sweep.found[index] = (0, None, hung)
                sweep.left.remove(index)
        self._workers.add(sweep.parts(1))
        waiting, patience = len(routes), QUICK
        while not sweep.over:
            await asyncio.wait({sweep.done}, timeout=patience)
            left = len(sweep.left)
            if waiting - left >= MANY:
                waiting = left
                continue  # it gets on: more threads would only hold it up
            if left and (parts := sweep.parts(min(left + len(sweep.under_way), WORKERS))):
                self._workers.add(parts)
                self._workers.spread()
            waiting = left
            patience = self._give_up_late(sweep)
        return [one for one in sweep.found if one is not None]

    def _give_up_late(self, sweep: _Sweep) -> float:
        """Give up the calls whose time is up. Returns seconds until the next may be."""
        now = time.monotonic()
        next_due = now + self._timeout
        for index, (began, part) in list(sweep.under_way.items()):
            limit = sweep.routes[index].callee.timeout or self._timeout
            if now - began < limit:
                next_due = min(next_due, began + limit)
            elif sweep.found[index] is None:
                took = int((now - began) * 1e6)
                sweep.found[index] = (took, None, f"it did not end within {limit:g} s")
                sweep.under_way.pop(index, None)
                part.given_up = True
                self._hung.setdefault(sweep.routes[index].name, []).append(part)
                self._workers.replace_one()
                sweep.look()
        return max(QUICK, next_due - now) if not sweep.left else 0.01

    def _hangs(self, name: str) -> bool:
        """Whether too many calls of this function were given up and still run."""
        parts = [one for one in self._hung.get(name, ()) if not one.ended]
        if parts:
            self._hung[name] = parts
        else:
            self._hung.pop(name, None)
        return len(parts) >= HUNG_PER_HANDLER


class _Sweep:
    """The functions of one event, with what they said so far."""

    def __init__(self, event: Event, routes: Sequence[RouteFunction], read: Read) -> None:
        self.routes = routes
        self.left = deque(range(len(routes)))
        self.found: list[Said | None] = [None] * len(routes)
        #: By index: since when, and by which thread's part.
        self.under_way: dict[int, tuple[float, _Part]] = {}
        self._parts: list[_Part] = []
        self._arguments = (event,)
        self._read = read
        self._loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self._loop.create_future()

    @property
    def over(self) -> bool:
        """Whether each has said something, or is given up."""
        return self.done.done()

    def parts(self, wanted: int) -> list[_Part]:
        """Further parts, so that ``wanted`` are there that have not ended."""
        self._parts = [one for one in self._parts if not one.ended and not one.given_up]
        fresh = [_Part(self) for _ in range(wanted - len(self._parts))]
        self._parts += fresh
        return fresh

    def work(self, part: _Part) -> None:
        """Call what is left, one after the other, in this thread."""
        clock, arguments, read = time.monotonic, self._arguments, self._read
        left, under_way, found = self.left, self.under_way, self.found
        while not part.given_up:
            try:
                index = left.popleft()
            except IndexError:
                break
            callee = self.routes[index].callee
            began = clock()
            under_way[index] = (began, part)
            result: object = None
            error: str | None = None
            try:
                value = callee.binding.call(callee.function, arguments)
                if value is not None and value is not False:
                    result = read(value)
            except HandlerError as problem:
                error = f"{problem.message}; {problem.hint}"
            except BaseException as problem:  # sys.exit() is a failure like any other
                error = one_line(problem)
            if found[index] is None:  # else it was given up meanwhile
                found[index] = (int((clock() - began) * 1e6), result, error)
                under_way.pop(index, None)
        with suppress(RuntimeError):  # the loop has gone
            self._loop.call_soon_threadsafe(self.look)

    def look(self) -> None:
        """A thread has come to the end: are all?"""
        if not self.done.done() and None not in self.found:
            self.done.set_result(None)


class _Part:
    """One thread's part in a sweep; relay.hooks.handler_threads runs it."""

    def __init__(self, sweep: _Sweep) -> None:
        self._sweep = sweep
        self.given_up = self.ended = False

    def work(self) -> bool:
        self._sweep.work(self)
        self.ended = True
        return not self.given_up

    def fail(self, error: BaseException) -> None:
        """There is no thread for it: another one may do it."""
        self.ended = True
