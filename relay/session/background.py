"""The background work of a session: a failure is noted, never raised."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Coroutine

from relay.core.errors import RelayError
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue


class Tasks:
    """Background work of one session; failures are noted for the person."""

    def __init__(self, events: EventQueue) -> None:
        self._events = events
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Awaitable[object]) -> None:
        """Run ``work``."""

        async def guarded() -> None:
            try:
                await work
            except RelayError as error:
                self._events.post(PersonNote(error.message))
            except Exception as error:
                self._events.post(failure(error))

        task = asyncio.get_running_loop().create_task(guarded())

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if isinstance(work, Coroutine):
                work.close()  # it may have been cancelled before it began

        self._tasks.add(task)
        task.add_done_callback(over)

    def __len__(self) -> int:
        return len(self._tasks)

    async def settle(self, seconds: float) -> None:
        """Wait at most ``seconds`` until all of it has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def end(self, seconds: float) -> None:
        """Cancel what still runs, and wait at most ``seconds`` for its end."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)


def failure(error: Exception) -> PersonNote:
    """The note to the person on a fault of relay itself; the trace goes into the run's log."""
    traceback.print_exception(error)
    return PersonNote(f"something in relay failed: {type(error).__name__}: {error}")
