"""The delivery channels of an agent with a message interface, and the choice among them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from relay.agents.base import AgentAdapter, Blocked, MessageChannel
from relay.core.errors import RelayError
from relay.core.message import Message, QueueMode
from relay.directive.envelope import envelopes, marker_of
from relay.session.delivery_channel import DeliveryChannel, Submitted
from relay.session.typing_channel import TypingChannel
from relay.session.typing_policy import DRAFT, TYPING, Guards, waits

#: After so many seconds an agent's transcript shows a message that it took through its channel.
CHANNEL_LANDING = 3.0
#: Seconds that the agent's own records may take to show typed text.
PROOF_PATIENCE = 10.0
_LOOK = 0.05


class NativeChannel:
    """The agent's own message interface: works while it is busy, beside drafts and dialogs."""

    def __init__(self, adapter: AgentAdapter, channel: MessageChannel) -> None:
        self._adapter = adapter
        self._channel = channel

    @property
    def available(self) -> bool:
        return self._channel.available

    def hold(self, now: float) -> Blocked | None:
        if not self._channel.available:
            return Blocked("the agent's message channel is closed", 0.5)
        return self._adapter.hold(now)

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        return list(waiting[:1])

    @property
    def combines(self) -> bool:
        return True

    async def submit(self, batch: list[Message]) -> Submitted:
        wrapped = envelopes(batch)
        if self._adapter.accepted(wrapped.marker):
            return Submitted(len(batch))  # an attempt that seemed to fail has arrived
        try:
            await self._channel.submit(wrapped.text, wrapped.marker)
        except (OSError, RelayError) as error:
            return Submitted(0, Blocked(f"the agent's message channel failed: {error}", 1.0))
        return Submitted(len(batch))

    async def finish(self) -> bool:
        return False

    async def read(self, batch: list[Message]) -> str | None:
        # Usually proven later, by the agent's own hooks and transcript; after a restart it may
        # have been proven to the session before this one.
        return "transcript" if self._adapter.seen(marker_of(batch[-1])) else None

    def shown(self, message: Message) -> bool:
        return False  # the agent's records tell it

    @property
    def unproven(self) -> str:
        return ""

    @property
    def landing_takes(self) -> float:
        return CHANNEL_LANDING

    @property
    def proves_reading(self) -> bool:
        return False

    def left_unread(self, unread: int) -> list[Message]:
        return []

    def throw_away(self, unread: int) -> list[tuple[Message, bool]]:
        return []

    def landed(self, message: Message) -> bool:
        return self._adapter.accepted(marker_of(message))


class AgentRecords:
    """Looks into an agent's own records for messages that have reached its model."""

    def __init__(self, adapter: AgentAdapter | None) -> None:
        self._adapter = adapter

    def seen(self, marker: str) -> bool | None:
        """Whether they prove that ``marker`` reached the model; None: there are no records now."""
        adapter = self._adapter
        return adapter.seen(marker) if adapter and adapter.source.trusted else None


class FallbackChannel:
    """Typing where the input line is free, the agent's own channel beside a draft.

    For an agent whose own channel is slower than typing, or rests at times.
    """

    def __init__(
        self, typed: DeliveryChannel, channel: NativeChannel, records: AgentRecords
    ) -> None:
        self._typed = typed
        self._channel = channel
        self._records = records
        self._way = typed

    def hold(self, now: float) -> Blocked | None:
        self._way = self._typed
        held = self._typed.hold(now)
        if held is not None and held.reason is DRAFT and self._channel.available:
            self._way = self._channel
            return self._channel.hold(now)
        return held

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        return self._way.batch(waiting)

    @property
    def combines(self) -> bool:
        return self._way.combines

    async def submit(self, batch: list[Message]) -> Submitted:
        return await self._way.submit(batch)

    async def finish(self) -> bool:
        return await self._typed.finish()

    async def read(self, batch: list[Message]) -> str | None:
        """The next message must not be typed before this one has begun its turn."""
        marker = marker_of(batch[-1])
        if self._way is self._channel or self._records.seen(marker) is None:
            return await self._way.read(batch)
        reading = asyncio.ensure_future(self._typed.read(batch))
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROOF_PATIENCE):
                    while self._records.seen(marker) is False:
                        await asyncio.sleep(_LOOK)
            if self._records.seen(marker):
                return "transcript"
            return await reading
        finally:
            reading.cancel()

    def shown(self, message: Message) -> bool:
        return self._typed.shown(message)

    @property
    def unproven(self) -> str:
        return self._way.unproven

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


class ChannelSelector:
    """Chooses the channel of each message: typing, or the agent's own channel if it has one."""

    def __init__(
        self,
        typing: TypingChannel,
        adapter: AgentAdapter | None,
        records: AgentRecords,
        guards: Guards,
        clock: Callable[[], float],
    ) -> None:
        self._typing = typing
        self._adapter = adapter
        self._guards = guards
        self._clock = clock
        self._built = clock()
        self._frames_peers = adapter is not None and adapter.frames_peers
        self._native: NativeChannel | None = None
        self._fallback: FallbackChannel | None = None
        if adapter is not None and adapter.channel is not None:
            self._native = NativeChannel(adapter, adapter.channel)
            if adapter.typed_first:
                self._fallback = FallbackChannel(typing, self._native, records)

    def way(self, message: Message) -> DeliveryChannel:
        """The channel of this message: the person's own words are typed, if the agent's own channel
        would show them as somebody else's."""
        return self._typing if message.proven and self._frames_peers else self.current()

    def ways(self) -> set[DeliveryChannel]:
        """All that are used now."""
        return {self.current(), self._typing} if self._frames_peers else {self.current()}

    def hold(self, message: Message, now: float) -> Blocked | None:
        """Why this message cannot go through its channel now."""
        way = self.way(message)
        if way is self._typing and way is not self.current():
            return self._typing.hold(now, steer=message.mode is QueueMode.STEER)
        return way.hold(now)

    def current(self) -> DeliveryChannel:
        """The channel that is used now by all others."""
        if self._fallback is not None:
            return self._fallback
        if self._native is None or self._adapter is None:
            return self._typing
        young = self._clock() - self._built < self._adapter.patience
        return self._native if self._native.available or young else self._typing

    def at_prompt(self, now: float) -> bool:
        """Whether the agent could take a message now, apart from what the person is doing."""
        held = self.current().hold(now)
        return held is None or held.reason in (DRAFT, TYPING)

    def offered(self, message: Message) -> None:
        """A message waits from now on."""
        self._typing.offered(message)

    def waits(self, message: Message, now: float, underway: float | None) -> Blocked | None:
        """Why a message waits though the agent would take it into its running turn: only those that
        are meant for it go there."""
        if self._adapter is None or not self._adapter.steers:
            return None
        if self._native is None or self.current() is not self._native:
            return None
        return waits(message, self._guards, now, underway)
