"""The session's way to the broker: nothing is asked before the agent is registered."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, cast

from relay.broker.async_client import AsyncClient
from relay.core.errors import BrokerUnavailable, NameTaken, RelayError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker import message_from
from relay.protocol.message_ops import DeliverPush
from relay.protocol.op import Op
from relay.session.session_commands import NoteOver, PersonNote, SessionAsked
from relay.session.session_events import (
    BrokerReturned,
    EventQueue,
    MessageArrived,
    ReceiptArrived,
)

if TYPE_CHECKING:
    from relay.protocol.op import Answer, Fields

#: Between tries to register, at most. Seconds.
PAUSE_MAX = 2.0
#: How long the end of a run waits until the broker knows of it. Seconds.
GOODBYE = 1.0


class RegisteredBroker:
    """An AsyncClient that speaks as one agent from its first request on.

    What the broker pushes it posts as events, and that it is there again; the person is told what
    keeps it from the broker, and requests wait meanwhile.
    """

    def __init__(self, home: Home, queue: EventQueue) -> None:
        self._queue = queue
        self._client = AsyncClient(
            home, on_push=self._pushed, on_connected=self._connected, on_problem=self._problem
        )
        self._registered = asyncio.Event()
        self._problems: set[str] = set()  # that the person was told, and that are not over
        self._task: asyncio.Task[None] | None = None

    def start(self, **registration: Any) -> None:
        """Connect and register in the background, for as long as it takes."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._register(registration))

    async def request(
        self, op: Op[Fields, Any, Answer], *args: Fields.args, **fields: Fields.kwargs
    ) -> Answer:
        """Ask the broker as this agent. Raises relay.core.errors."""
        # The event wakes its waiters in the order in which they came, so that what was said first
        # is also sent first.
        if not self._registered.is_set():
            try:
                async with asyncio.timeout(30.0):
                    await self._registered.wait()
            except TimeoutError:
                raise BrokerUnavailable("the agent is not registered yet") from None
        return await self._client.request(op, *args, **fields)

    async def close(self, *, over: bool) -> None:
        """Hang up. When the run is ``over`` the broker is told; else the agent may come back."""
        if over and self._registered.is_set():
            with contextlib.suppress(RelayError, TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await self._client.request(AGENT_STATE, state="gone")
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
                self._well()
                return
            except NameTaken as error:
                # The pump holds the lock on this name, so an earlier run is about to leave.
                if pause >= PAUSE_MAX:
                    self._problem(error)
            except RelayError as error:
                self._problem(error)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, PAUSE_MAX)

    def _pushed(self, fields: dict[str, Any]) -> None:
        match fields["push"]:
            case "deliver":
                self._queue.post(MessageArrived(message_from(cast(DeliverPush, fields))))
            case "receipt":
                self._queue.post(ReceiptArrived(fields))
            case "ask":
                self._queue.post(SessionAsked(fields))

    def _connected(self, connected: bool) -> None:
        if connected and self._registered.is_set():
            self._well()
            self._queue.post(BrokerReturned())

    def _problem(self, error: RelayError) -> None:
        self._problems.add(error.line)
        self._queue.post(PersonNote(error.line))

    def _well(self) -> None:
        """What kept it from the broker is over."""
        while self._problems:
            self._queue.post(NoteOver(self._problems.pop()))
