"""Following a file that an agent writes as it goes, for its structured source."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.agents.tail import FileTail

if TYPE_CHECKING:
    from relay.agents.base import SourceFeed


class Follower:
    """Hands the lines of one growing file to the ears, each once, also over a restart.

    ``path`` tells which file, once that is known; ``interval`` in how many seconds to look again
    when nothing wakes us; ``search`` is called before each look, to find out more.
    """

    def __init__(
        self,
        path: Callable[[], str | None],
        interval: Callable[[], float],
        clock: Callable[[], float],
        search: Callable[[SourceFeed, float], None] = lambda ears, now: None,
    ) -> None:
        self._path = path
        self._interval = interval
        self._clock = clock
        self._search = search
        self._tail = FileTail()
        # Where the tail was when all that it had read was heard: while a thread reads on, what is
        # read but not yet heard must not count as heard.
        self._place = self._tail.state()
        self._reading = asyncio.Lock()

    async def watch(
        self, ears: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """Follow the file until cancelled; see relay.agents.base."""
        while True:
            self._search(ears, self._clock())
            if await self.read(ears):
                changed()
                continue
            wake.clear()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval()):
                    await wake.wait()

    async def read(self, ears: SourceFeed) -> bool:
        """Hear what the file holds beyond the last look; whether there was anything."""
        heard = False
        async with self._reading:
            path = self._path()
            if path:
                self._tail.follow(path)
                self._place = self._tail.state()
            while lines := await asyncio.to_thread(self._tail.poll):
                heard = True
                for line in lines:
                    try:
                        ears.transcript(line, self._clock())
                    except Exception as error:
                        # Its form is not ours to promise: one odd line must not cost the others.
                        ears.note(f"a line of the transcript: {type(error).__name__}: {error}")
                self._place = self._tail.state()
        return heard

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return dict(self._place)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._tail.restore(state)
        self._place = self._tail.state()
