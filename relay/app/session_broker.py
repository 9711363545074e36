"""The session's way to the broker: nothing is asked before the agent is registered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from relay.broker.async_client import AsyncClient
from relay.core.errors import BrokerUnavailable, NameTaken, RelayError
from relay.core.paths import Home

#: Between tries to register, at most. Seconds.
PAUSE_MAX = 2.0


class RegisteredBroker:
    """An AsyncClient that speaks as one agent from its first request on.

    ``note(text)`` is told what keeps it from the broker; requests wait meanwhile. ``on_return()``
    is called whenever the agent is registered again after its connection was lost.
    """

    def __init__(
        self,
        home: Home,
        on_push: Callable[[dict[str, Any]], None],
        note: Callable[[str], None],
        on_return: Callable[[], None],
    ) -> None:
        self._note = note
        self._on_return = on_return
        self._client = AsyncClient(
            home, on_push=on_push, on_connected=self._connected, on_problem=self._problem
        )
        self._registered = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, **registration: Any) -> None:
        """Connect and register in the background, for as long as it takes."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._register(registration))

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """Ask the broker as this agent. Raises relay.core.errors."""
        # The event wakes its waiters in the order in which they came, so that what was said first
        # is also sent first.
        if not self._registered.is_set():
            try:
                async with asyncio.timeout(30.0):
                    await self._registered.wait()
            except TimeoutError:
                raise BrokerUnavailable("the agent is not registered yet") from None
        return await self._client.request(op, **fields)

    async def close(self) -> None:
        """Hang up; the broker then knows that the agent is gone."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.close()

    async def _register(self, registration: dict[str, Any]) -> None:
        pause = 0.05
        opened = False
        while True:
            try:
                if not opened:
                    await self._client.open()
                    opened = True
                await self._client.register(**registration)
                self._registered.set()
                return
            except NameTaken as error:
                # The pump holds the lock on this name, so an earlier run is about to leave.
                if pause >= PAUSE_MAX:
                    self._problem(error)
            except RelayError as error:
                self._problem(error)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, PAUSE_MAX)

    def _connected(self, connected: bool) -> None:
        if connected and self._registered.is_set():
            self._on_return()

    def _problem(self, error: RelayError) -> None:
        self._note(error.line)
