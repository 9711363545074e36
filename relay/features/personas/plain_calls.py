"""Calls the plain route functions of one event: cheap when they are quick, side by side when not.

Of a thousand functions one fires: what a single call costs is what an event waits for. One thread
goes through the functions; when it stops to get on for 1 ms, more threads take what is left. A
function that does not end in time is given up with its thread; one with 3 calls that hang is
called no more, and with 256 of them in all none is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from relay.core.dispatch import Event
from relay.hooks.hook_types import RouteFunction
from relay.hooks.outputs import HandlerError
from relay.hooks.run_functions import HUNG_MAX, HUNG_PER_HANDLER, WORKERS, one_line

#: Seconds after which functions that have not begun get further threads.
QUICK = 0.001
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
        self._threads: set[threading.Thread] = set()
        self._hung: list[tuple[str, threading.Thread]] = []

    async def call(self, event: Event, routes: Sequence[RouteFunction]) -> list[Said]:
        """What each said, in the order of ``routes``. Never raises."""
        sweep = _Sweep(event, routes, self._read)
        self._hung = [one for one in self._hung if one[1].is_alive()]
        hang = Counter(name for name, _ in self._hung)
        for index, one in enumerate(routes) if hang else ():
            if hang[one.name] >= HUNG_PER_HANDLER or len(self._hung) >= HUNG_MAX:
                sweep.left.remove(index)
                which = f"{hang[one.name]} of its" if hang[one.name] else f"{HUNG_MAX} other"
                sweep.found[index] = (0, None, f"switched off: {which} calls hang")
        self._start(sweep, 1)
        while None in sweep.found:
            waiting = len(sweep.left)
            sweep.changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(sweep.changed.wait(), self._patience(sweep))
            self._give_up_late(sweep)
            if waiting - len(sweep.left) < MANY:  # else more threads would only hold it up
                self._start(sweep, len(sweep.left))
        return [one for one in sweep.found if one is not None]

    def _start(self, sweep: _Sweep, wanted: int) -> None:
        self._threads = {one for one in self._threads if one.is_alive()}
        try:
            for _ in range(min(wanted, WORKERS - len(self._threads))):
                thread = threading.Thread(target=sweep.run, name="relay-routes", daemon=True)
                thread.start()
                self._threads.add(thread)
        except RuntimeError:  # the system has no more of them now
            return

    def _limit(self, sweep: _Sweep, index: int) -> float:
        return sweep.routes[index].callee.timeout or self._timeout

    def _patience(self, sweep: _Sweep) -> float:
        """Seconds until something is to be looked at, at the latest."""
        if sweep.left:
            return QUICK if len(self._threads) < WORKERS else 0.01
        due = [one[0] + self._limit(sweep, index) for index, one in sweep.begun.copy().items()]
        return max(QUICK, min(due, default=0.0) - time.monotonic())

    def _give_up_late(self, sweep: _Sweep) -> None:
        now = time.monotonic()
        for index, (began, thread) in sweep.begun.copy().items():
            if now - began >= (limit := self._limit(sweep, index)) and sweep.found[index] is None:
                took = int((now - began) * 1e6)
                sweep.found[index] = (took, None, f"it did not end within {limit:g} s")
                sweep.begun.pop(index, None)
                self._threads.discard(thread)
                self._hung.append((sweep.routes[index].name, thread))


class _Sweep:
    """The functions of one event, with what they said so far."""

    def __init__(self, event: Event, routes: Sequence[RouteFunction], read: Read) -> None:
        self.routes = routes
        self.arguments = (event,)
        self.read = read
        self.left = deque(range(len(routes)))
        self.found: list[Said | None] = [None] * len(routes)
        #: By index: since when, and in which thread.
        self.begun: dict[int, tuple[float, threading.Thread]] = {}
        self.loop = asyncio.get_running_loop()
        self.changed = asyncio.Event()

    def run(self) -> None:
        """Call what is left, one after the other, until a call is given up. In a thread."""
        clock, thread = time.monotonic, threading.current_thread()
        left, begun, found, arguments = self.left, self.begun, self.found, self.arguments
        while left:
            try:
                index = left.popleft()
            except IndexError:
                break
            callee = self.routes[index].callee
            began = clock()
            begun[index] = (began, thread)
            result: object = None
            error: str | None = None
            try:
                value = callee.binding.call(callee.function, arguments)
                if value is not None and value is not False:
                    result = self.read(value)
            except HandlerError as problem:
                error = f"{problem.message}; {problem.hint}"
            except BaseException as problem:  # sys.exit() is a failure like any other
                error = one_line(problem)
            if found[index] is not None:  # it was given up meanwhile
                return
            found[index] = (int((clock() - began) * 1e6), result, error)
            begun.pop(index, None)
        with suppress(RuntimeError):  # the loop has gone
            self.loop.call_soon_threadsafe(self.changed.set)
