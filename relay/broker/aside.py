"""A thread with an event loop of its own, for what would hold up the broker's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

#: How long a thread that is told to end may take. Seconds.
CLOSE_DEADLINE = 5.0


class Aside:
    """Started by its first task. Used from one loop, whose tasks wait for those in the thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._theirs: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns or raises; cancelled when this is."""
        if self._theirs is None:
            self._theirs = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._theirs))

    async def call(self, function: Callable[[], T]) -> T:
        """The same for a function that waits for the disk."""

        async def called() -> T:
            return function()

        return await self.run(called())

    async def close(self) -> None:
        """End the thread, at most CLOSE_DEADLINE seconds: a name's look-up cannot be broken off."""
        if self._theirs is None or self._thread is None:
            return
        with contextlib.suppress(RuntimeError):
            self._theirs.call_soon_threadsafe(self._theirs.stop)
        await asyncio.to_thread(self._thread.join, CLOSE_DEADLINE)

    def _work(self) -> None:
        loop = self._theirs
        assert loop is not None
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            loop.close()
