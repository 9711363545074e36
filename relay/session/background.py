"""What a session does in the background: a failure is noted, never raised."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Coroutine

from relay.core.errors import RelayError


class Tasks:
    """Background work of one session. ``note(text)`` is for the person."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Awaitable[None]) -> None:
        """Run ``work``."""

        async def guarded() -> None:
            try:
                await work
            except RelayError as error:
                self._note(error.message)
            except Exception as error:
                traceback.print_exc()  # into the log of this run
                self._note(f"something in relay failed: {type(error).__name__}: {error}")

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
        """Wait at most so long until all of it has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def end(self, seconds: float) -> None:
        """Cancel what still runs, and wait at most so long for its end."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
