"""The open connections: how many there may be, and which one is closed to make room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from relay.broker.connection import ClientConnection
from relay.broker.directory import Directory

#: Connections at a time. Beyond it, one that is no session of the person's is closed: ``has_room``.
CONNECTIONS_MAX = 2048
#: A connection that was made, or sent something, within so many seconds is not silent.
JUST_CAME = 1.0
#: How long a broker that stops waits for clients to read their last answers. Seconds.
GOODBYE = 2.0


class OpenConnections:
    """Holds at most ``limit`` connections."""

    def __init__(self, directory: Directory, limit: int, *, log: Callable[[str], None]) -> None:
        """Create it inside a running event loop."""
        self._directory = directory
        self._limit = limit
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._open: set[ClientConnection] = set()
        self._left = asyncio.Event()  # set when the last one has closed

    def __len__(self) -> int:
        return len(self._open)

    def add(self, client: ClientConnection) -> None:
        """Add a new connection."""
        self._open.add(client)

    def discard(self, client: ClientConnection) -> None:
        """Remove a closed connection."""
        self._open.discard(client)
        if not self._open:
            self._left.set()

    def has_room(self) -> bool:
        """Whether there is room for one more; a silent connection may be closed for it."""
        if len(self._open) < self._limit:
            return True
        # Sessions that the person started stay; those inside an agent could be any number. A client
        # that waits for no answer is closed before one that does.
        others = [one for one in self._open if not self._stays(one)]
        if not others:
            return False
        now = self._loop.time()
        oldest = min(others, key=lambda c: (c.waits or now - c.heard_at < JUST_CAME, c.heard_at))
        self._log("too many connections: the one that was silent longest is closed")
        oldest.abort()
        self._open.discard(oldest)
        return True

    def _stays(self, client: ClientConnection) -> bool:
        return self._directory.member_of(client) is not None and self._directory.is_outside(client)

    def stop_reading(self) -> None:
        """The broker stops: read no more requests; those that were read are answered."""
        for connection in self._open:
            connection.stop_reading()

    async def close(self) -> None:
        """Give what is being written a moment, then cut it off."""
        self._left.clear()
        for connection in list(self._open):
            connection.close()
        if self._open:
            try:
                await asyncio.wait_for(self._left.wait(), GOODBYE)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()
