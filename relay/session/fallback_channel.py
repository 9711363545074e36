"""Two ways into one agent: typing where the input line is free, its own channel beside a draft."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from relay.agents.base import Blocked
from relay.core.message import Message
from relay.directive.envelope import marker_of
from relay.session.delivery_channel import DeliveryChannel, Submitted
from relay.session.typing_policy import DRAFT

#: Seconds that the agent may take to show, in its own records, what was typed into it.
PROOF_PATIENCE = 10.0
_LOOK = 0.05


class FallbackChannel:
    """For an agent whose own channel is slower than typing, or rests at times.

    ``proven(marker)`` says whether the agent's own records show a message, None where there are no
    such records now.
    """

    def __init__(
        self,
        typed: DeliveryChannel,
        channel: DeliveryChannel,
        available: Callable[[], bool],
        proven: Callable[[str], bool | None],
    ) -> None:
        self._typed = typed
        self._channel = channel
        self._available = available
        self._proven = proven
        self._way = typed

    def hold(self, now: float) -> Blocked | None:
        self._way = self._typed
        held = self._typed.hold(now)
        if held is not None and held.reason == DRAFT and self._available():
            self._way = self._channel
            return self._channel.hold(now)
        return held

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        return self._way.batch(waiting)

    async def submit(self, batch: list[Message]) -> Submitted:
        return await self._way.submit(batch)

    async def read(self, batch: list[Message]) -> str | None:
        """The next message must not be typed before this one has begun its turn."""
        marker = marker_of(batch[-1].id)
        if self._way is self._channel or self._proven(marker) is None:
            return await self._way.read(batch)
        reading = asyncio.ensure_future(self._typed.read(batch))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROOF_PATIENCE):
                    while self._proven(marker) is False:
                        await asyncio.sleep(_LOOK)
            if self._proven(marker):
                return "transcript"
            return await reading
        finally:
            reading.cancel()

    @property
    def landing_takes(self) -> float:
        return max(self._typed.landing_takes, self._channel.landing_takes)

    @property
    def proves_reading(self) -> bool:
        return self._typed.proves_reading

    def left_unread(self, unread: int) -> list[Message]:
        return self._typed.left_unread(unread)

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        return self._typed.throw_away(unread)

    def landed(self, message: Message) -> bool:
        return self._typed.landed(message) or self._channel.landed(message)
