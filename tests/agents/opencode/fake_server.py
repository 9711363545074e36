"""A server that answers as a test tells it to, byte for byte, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from relay.agents.opencode.adapter import OpencodeClient


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeServer:
    """``answer(asked)`` gives the bytes of the whole answer; after them it hangs up, unless
    ``stays``."""

    answer: Callable[[Asked], bytes]
    stays: bool = False
    asked: list[Asked] = field(default_factory=list)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = Asked(method, path, headers, json.loads(body) if body else None)
            self.asked.append(asked)
            writer.write(self.answer(asked))
            await writer.drain()
            if self.stays:
                await reader.read()
        finally:
            writer.close()


def ok(value: Any) -> bytes:
    """An answer with JSON."""
    content = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def client_of(
    server: FakeServer, password: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[OpencodeClient]:
    """A client of this server."""
    listening = await asyncio.start_server(server, host, 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield OpencodeClient(host, port, "opencode", password)
