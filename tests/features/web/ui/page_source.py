"""A source of the web page's rows that a test writes itself, and the page served from it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from relay.core.errors import NotFound
from relay.features.web.web_data import WebData
from relay.features.web.web_server import WebServer

Json = dict[str, Any]


class FakeSource(WebData):
    """Tells ``everything``, then what ``tell`` is given; keeps what was asked."""

    def __init__(self, everything: Json) -> None:
        self.everything = everything
        self.asked: list[tuple[str, Json]] = []
        self.answers: dict[str, Json] = {}
        self._followers: list[asyncio.Queue[list[Json]]] = []
        self.loop: asyncio.AbstractEventLoop | None = None

    async def ask(self, name: str, fields: Json) -> Json:
        self.asked.append((name, fields))
        if name not in self.answers:
            raise NotFound(f"nothing is known of {name}")
        return self.answers[name]

    async def follow(self, together: float, alive_after: float) -> AsyncGenerator[Json, None]:
        queue: asyncio.Queue[list[Json]] = asyncio.Queue()
        self._followers.append(queue)
        yield {"all": {**self.everything, "now_ms": int(time.time() * 1000)}}
        while True:
            rows: list[Json] = []
            with suppress(TimeoutError):
                async with asyncio.timeout(alive_after):
                    rows = await queue.get()
            yield {"rows": rows}

    def tell(self, *rows: Json) -> None:
        """From any thread: these rows happen."""
        assert self.loop is not None
        for queue in self._followers:
            self.loop.call_soon_threadsafe(queue.put_nowait, list(rows))


class Served:
    """A running page: its links, the newest last, and what the person was warned of."""

    def __init__(self, source: FakeSource) -> None:
        self.source = source
        self.links: list[str] = []
        self.warnings: list[str] = []

    @property
    def link(self) -> str:
        return self.links[-1]

    @property
    def origin(self) -> str:
        return self.link.split("/#")[0]

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])


@contextmanager
def served(source: FakeSource) -> Iterator[Served]:
    """Serve ``source`` in a thread."""
    page = Served(source)
    ready = threading.Event()
    ends: list[asyncio.Task[None]] = []

    async def run() -> None:
        source.loop = asyncio.get_running_loop()

        def on_link(link: str) -> None:
            page.links.append(link)
            ready.set()

        server = WebServer(
            source,
            socket.create_server(("127.0.0.1", 0)),
            on_link=on_link,
            on_warning=page.warnings.append,
        )
        ends.append(asyncio.ensure_future(server.run()))
        with suppress(asyncio.CancelledError):
            await ends[0]

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield page
    finally:
        assert source.loop is not None
        source.loop.call_soon_threadsafe(ends[0].cancel)
        thread.join(10)
