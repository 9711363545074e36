"""A hook server over real sockets, and clients for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

from relay.session.hook_server import HookServer, ServerLimits

TOKEN = "a-token"


class Bench:
    """A running server, what its handler got, and clients for it."""

    def __init__(self, server: HookServer, listener: socket.socket) -> None:
        self.server = server
        self.listener = listener
        self.events: list[dict[str, Any]] = []
        self.errors: list[BaseException] = []
        self.answer: dict[str, Any] | Exception = {}

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        address = self.listener.getsockname()
        if isinstance(address, str):
            return await asyncio.open_unix_connection(address)
        return await asyncio.open_connection(*address[:2])

    async def exchange(self, data: bytes) -> tuple[int, dict[str, Any]]:
        reader, writer = await self.connect()
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            answer = await read_answer(reader)
        writer.close()
        return answer


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, Any]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().split("content-length: ")[1].split("\r\n")[0])
    return int(head.split(" ")[1]), json.loads(await reader.readexactly(length))


def post(body: bytes, *headers: str, token: str = TOKEN, method: str = "POST") -> bytes:
    lines = [f"{method} /hook HTTP/1.1", "Host: x", f"Authorization: Bearer {token}", *headers]
    if not any(h.startswith("Transfer-Encoding") for h in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.asynccontextmanager
async def serving(listener: socket.socket | None = None, **limits: Any) -> AsyncIterator[Bench]:
    if listener is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    async def handler(event: dict[str, Any]) -> dict[str, Any]:
        made.events.append(event)
        if isinstance(made.answer, Exception):
            raise made.answer
        return made.answer

    errors: list[BaseException] = []
    server = HookServer(handler, TOKEN, on_error=errors.append, limits=ServerLimits(**limits))
    made = Bench(server, listener)
    made.errors = errors
    await server.serve(listener)
    try:
        yield made
    finally:
        await server.close()
