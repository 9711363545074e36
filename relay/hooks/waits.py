"""How a loop waits for what happens in other threads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from relay.hooks.jobs import Over
from relay.hooks.threads import Postbox

#: Something that is still to be done.
Rest = Callable[[], Awaitable[None]]


class Waits:
    """Waits in the loop that runs; many that come together wake it once."""

    def __init__(self) -> None:
        self._box: Postbox | None = None

    async def settled(self, future: Future[Any], limit: float) -> bool:
        """Whether ``future`` ends within ``limit`` seconds."""
        await self.told(lambda tell: future.add_done_callback(lambda _future: tell()), limit)
        return future.done()

    async def told(self, ask: Callable[[Callable[[], object]], object], limit: float) -> None:
        """Wait until what was given to ``ask`` is called, by any thread, at most so long."""
        loop = asyncio.get_running_loop()
        if self._box is None or self._box.loop is not loop:
            self._box = Postbox(loop)
        box, waiter = self._box, loop.create_future()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the session has gone
                box.post(lambda: wake(waiter))

        ask(tell)
        timer = loop.call_later(limit, wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()


def wake(waiter: asyncio.Future[None]) -> None:
    """Let whoever awaits ``waiter`` go on."""
    if not waiter.done():
        waiter.set_result(None)


def stand_still(overs: Iterable[Over], seconds: float) -> float:
    """Stop this very thread until all of it is over, at most so long: to be woken in a loop takes
    longer than most of what is waited for. Returns the seconds that it stood."""
    began = time.monotonic()
    for over in overs:
        over.wait(max(0.0, began + seconds - time.monotonic()))
    return time.monotonic() - began


async def side_by_side(rest: Sequence[Rest]) -> None:
    """Do all of it."""
    if len(rest) == 1:
        await rest[0]()
    elif rest:
        async with asyncio.TaskGroup() as group:
            for one in rest:
                group.create_task(_done(one))


async def _done(one: Rest) -> None:
    await one()
