"""Work of the broker that waits between its steps, as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from relay.broker.kernel import Kernel


class BrokerTasks:
    """The coroutines of one part of the broker. What one raises is logged, and ends no other."""

    def __init__(self, kernel: Kernel) -> None:
        self._log = kernel.log
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None] | None:
        """Begin ``work``; after ``close`` nothing begins."""
        if self._closed:
            work.close()
            return None
        task = self._loop.create_task(self._guarded(work))

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # it may have been cancelled before it began

        self._tasks.add(task)  # a loop would not keep it
        task.add_done_callback(over)
        return task

    async def close(self) -> None:
        """Cancel all of it, and wait for its end."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def _guarded(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Exception:
            self._log.fault()
