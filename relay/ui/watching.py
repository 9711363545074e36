"""Follows what happens at the broker: the only reader of its op ``watch``.

Rows come as the op gives them (relay.protocol.broker). When the broker goes away, both readers go
on with the next one, which tells a ``gap`` where rows may be missing.
"""

from __future__ import annotations

import time
from collections import deque

from relay.broker.client import BrokerClient, connect
from relay.core.errors import BrokerUnavailable
from relay.core.paths import Home
from relay.protocol.broker import Json
from relay.protocol.broker_ops import WATCH, Watch, Watched

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterable, Iterator

    from relay.broker.async_client import AsyncClient
    from relay.core.errors import RelayError

#: Rows that wait for an async reader; of more the oldest go, and a gap says how many.
WAITING_MAX = 10_000
#: Between tries to reach the broker. Seconds.
_PAUSE = 0.2


class _Place:
    """What is asked for, and how far it was read."""

    def __init__(self, kinds: Iterable[str] = (), agents: Iterable[str] = ()) -> None:
        self._fields: Watch = {"kinds": list(kinds) or None, "agents": list(agents) or None}
        self._epoch, self.seq = "", 0  # of the last row that was read

    def fields(self) -> Watch:
        if not self._epoch:
            return self._fields
        return self._fields | {"epoch": self._epoch, "after": self.seq}

    def begins(self, answer: Watched) -> None:
        """A broker has answered; rows may have come already."""
        if self._epoch != answer["epoch"]:
            self._epoch, self.seq = answer["epoch"], answer["seq"]

    def took(self, push: Json) -> list[Json]:
        """The rows that have come."""
        rows: list[Json] = push["rows"]
        self._epoch, self.seq = push["epoch"], rows[-1]["seq"]
        return rows


class Watching:
    """Follows without an event loop, over a connection of its own.

    Once it is made, nothing is missed: what is asked then (``agents``, say) is never newer than the
    rows that follow. ``kinds`` and ``agents`` as the op has them; empty for all. Raises RelayError.
    """

    def __init__(
        self, home: Home, *, kinds: Iterable[str] = (), agents: Iterable[str] = ()
    ) -> None:
        self._home = home
        self._place = _Place(kinds, agents)
        self._client: BrokerClient | None = None
        self._begin()

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Follow no more."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def next_rows(self, timeout: float) -> list[Json]:
        """The rows that came; none after ``timeout`` seconds. Raises RelayError when the broker
        refuses, never because it went away."""
        end = time.monotonic() + timeout
        while True:
            try:
                if self._client is None:
                    self._begin()
                assert self._client is not None
                push = self._client.next_push(max(0.0, end - time.monotonic()))
            except BrokerUnavailable:
                self.close()
                if time.monotonic() >= end:
                    return []
                time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))
                continue
            if push is None:
                return []
            if push["push"] == "watch":
                return self._place.took(push)

    def rows(self, timeout: float | None = None) -> Iterator[Json]:
        """One row after the other, for ``timeout`` seconds in all; None: for ever."""
        end = None if timeout is None else time.monotonic() + timeout
        while end is None or time.monotonic() < end:
            yield from self.next_rows(60.0 if end is None else end - time.monotonic())

    def _begin(self) -> None:
        client = connect(self._home)
        try:
            self._place.begins(client.request(WATCH, **self._place.fields()))
        except BaseException:
            client.close()
            raise
        self._client = client


class AsyncWatching:
    """Follows in an event loop. ``client`` may be used for other requests, too.

    ``async with AsyncWatching(home) as watching: async for rows in watching.batches(): …``
    """

    client: AsyncClient

    def __init__(self, home: Home) -> None:
        import asyncio

        from relay.broker.async_client import AsyncClient

        self._place = _Place()
        self._rows: deque[Json] = deque()
        self._lost = 0
        self._came = asyncio.Event()
        self._begun = asyncio.Event()
        self._refused: RelayError | None = None
        self._following: asyncio.Task[None] | None = None
        self.client = AsyncClient(home, on_push=self._pushed, on_connected=self._connected)

    async def __aenter__(self) -> AsyncWatching:
        """Raises RelayError when the broker cannot be reached, or refuses."""
        await self.client.open()
        await self._begun.wait()
        if self._refused is not None:
            await self.client.close()
            raise self._refused
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._following is not None:
            self._following.cancel()
        await self.client.close()

    async def batches(self) -> AsyncIterator[list[Json]]:
        """What has come, some rows at a time. Raises RelayError when the broker refuses to go on.

        One row is not the broker's: {what: connection, up}, when the connection goes or comes.
        """
        while True:
            if self._rows:
                rows, lost = list(self._rows), self._lost
                self._rows.clear()
                self._lost = 0
                if lost:
                    head = {"seq": self._place.seq, "at_ms": int(time.time() * 1000)}
                    rows.insert(0, {**head, "what": "gap", "lost": lost})
                yield rows
            if self._refused is not None:
                raise self._refused
            if not self._rows:
                self._came.clear()
                await self._came.wait()

    def _connected(self, connected: bool) -> None:
        import asyncio

        if self._following is not None:
            self._following.cancel()
        if self._begun.is_set():
            self._take([{"what": "connection", "up": connected}])
        if connected:
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        from relay.core.errors import RelayError

        try:
            self._place.begins(await self.client.request(WATCH, **self._place.fields()))
        except BrokerUnavailable:
            return  # the connection comes back, and this with it
        except RelayError as error:
            self._refused = error
            self._came.set()
        self._begun.set()

    def _pushed(self, push: Json) -> None:
        if push.get("push") == "watch":
            self._take(self._place.took(push))

    def _take(self, rows: list[Json]) -> None:
        self._rows.extend(rows)
        while len(self._rows) > WAITING_MAX:
            self._rows.popleft()
            self._lost += 1
        self._came.set()
