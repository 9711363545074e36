"""What hooks have the agent told at its end: when it has heard that, and done what it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from relay.core.message import AgentState, State

#: An agent that tells its state is done once it is at rest and has written nothing for so long;
#: one that tells nothing, after a longer silence. Seconds.
QUIET = 1.0
QUIET_UNKNOWN = 4.0


class LastDelivery:
    """Fed by the session; ``finished`` is awaited once. Times are of ``clock``, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._settled: set[str] = set()
        self._state = AgentState.IDLE
        self._tells = False
        self._last = clock()
        self._changed = asyncio.Event()
        self._gone = False

    def delivery(self, identifier: str, state: State) -> None:
        """A message got so far."""
        if state in (State.SEEN, State.FAILED):
            self._settled.add(identifier)
            self._touch()

    def state(self, state: AgentState, *, tells: bool) -> None:
        """The agent is so now. ``tells``: it says that itself, nobody guesses it."""
        self._state, self._tells = state, tells
        self._touch()

    def output(self, now: float) -> None:
        """The agent wrote something."""
        self._last = now

    def gone(self) -> None:
        """The agent has ended: nothing more will come of it."""
        self._gone = True
        self._changed.set()

    async def finished(self, identifiers: Collection[str], seconds: float) -> bool:
        """Wait until the agent has seen these messages and is at rest again; at most ``seconds``.

        False when that time was not enough.
        """
        end = self._clock() + seconds
        while True:
            if self._gone:
                return False
            now = self._clock()
            rest = self._rests_at() if self._settled.issuperset(identifiers) else None
            if rest is not None and now >= rest:
                return True
            if now >= end:
                return False
            self._changed.clear()
            until = min(end, rest) if rest is not None else end
            try:
                async with asyncio.timeout(max(0.01, until - now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _rests_at(self) -> float | None:
        """When it will count as done, if nothing more happens; None while it is busy."""
        if self._tells:
            return None if self._state is AgentState.BUSY else self._last + QUIET
        return self._last + QUIET_UNKNOWN

    def _touch(self) -> None:
        self._last = self._clock()
        self._changed.set()
