"""A message interface of the agent's own, as a door: words go in without being typed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from relay.agents.base import Blocked
from relay.core.errors import RelayError
from relay.core.message import Message
from relay.directive.envelope import envelope, marker_of
from relay.session.delivery_channel import Submitted

#: What an agent has taken through its channel stands in its transcript after this many seconds.
CHANNEL_LANDING = 3.0


class NativeChannel:
    """A message interface of the agent's own: works while it is busy, beside drafts and dialogs."""

    def __init__(
        self,
        submit: Callable[[str, str], Awaitable[None]],
        available: Callable[[], bool],
        namespaces: Callable[[], frozenset[str]],
        heard: Callable[[str], bool],
        seen: Callable[[str], bool],
        hold: Callable[[float], Blocked | None] = lambda now: None,
    ) -> None:
        """``hold(now)``: why nothing should go through now, though it could."""
        self._submit = submit
        self._available = available
        self._namespaces = namespaces
        self._heard = heard
        self._seen = seen
        self._hold = hold

    @property
    def available(self) -> bool:
        return self._available()

    def hold(self, now: float) -> Blocked | None:
        if not self._available():
            return Blocked("the agent's message channel is closed", 0.5)
        return self._hold(now)

    def batch(self, waiting: Sequence[Message]) -> list[Message]:
        return list(waiting[:1])

    async def submit(self, batch: list[Message]) -> Submitted:
        wrapped = envelope(batch[0], style="paste", namespaces=self._namespaces())
        if self._heard(wrapped.marker):
            return Submitted(1)  # a try that seemed to fail has got through
        try:
            await self._submit(wrapped.text, wrapped.marker)
        except (OSError, RelayError) as error:
            return Submitted(0, Blocked(f"the agent's message channel failed: {error}", 1.0))
        return Submitted(1)

    async def read(self, batch: list[Message]) -> str | None:
        # Usually proven later, by the agent's own hooks and transcript; after a restart it may
        # have been proven to the session before this one.
        return "transcript" if self._seen(marker_of(batch[0].id)) else None

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
        return self._heard(marker_of(message.id))
