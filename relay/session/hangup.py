"""The person's terminal has gone: the agent may still do what its last hooks tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from relay.session.last_delivery import LastDelivery


class HangUp:
    """An agent's farewell: said at most once, and over when the agent is done or the time is up.

    ``last_hooks`` runs those and gives the ids of what they had the agent told. ``over`` is called
    at the farewell's end, however it came; ``note`` is for the person. ``seconds`` is the time for
    all of it, ``clock`` in seconds too.
    """

    def __init__(
        self,
        goodbye: LastDelivery,
        last_hooks: Callable[[], Awaitable[Collection[str]]],
        *,
        over: Callable[[], None],
        note: Callable[[str], None],
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._goodbye = goodbye
        self._last_hooks = last_hooks
        self._over = over
        self._note = note
        self._clock = clock
        self._seconds = seconds
        self._ended: asyncio.Event | None = None  # None until there is a farewell

    async def say(self) -> None:
        """Run the last hooks, and wait until the agent has done what they told it."""
        if self._ended is not None:
            return
        self._ended = asyncio.Event()
        end = self._clock() + self._seconds
        try:
            async with asyncio.timeout(self._seconds):
                told = await self._last_hooks()
            if told and not await self._goodbye.finished(told, end - self._clock()):
                self._note("the agent was not done with what its last hooks told it")
        except TimeoutError:
            self._note("the session-end hooks took too long: the agent was told nothing")
        finally:
            self._over()
            self._ended.set()

    async def agent_gone(self) -> None:
        """The agent has ended, and so does its farewell, if there is one: wait for that."""
        if self._ended is not None:
            self._goodbye.gone()
            await self._ended.wait()
