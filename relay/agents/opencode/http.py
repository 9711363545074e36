"""A small HTTP/1.1 client for opencode's server: one request, or one stream of events.

Only what that server needs: a plain connection to this machine, Content-Length or chunked bodies,
basic authentication. Every wait has a deadline, and what is read has a limit.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from relay.agents.opencode.server import Server
from relay.core.errors import RelayError

#: Seconds to connect, and to wait for an answer to a request.
CONNECT_DEADLINE = 2.0
ANSWER_DEADLINE = 10.0
#: Bytes of headers, and of one answer's body; a longer one is an error.
HEAD_MAX = 64 * 1024
BODY_MAX = 64 * 1024 * 1024
#: Bytes that are read at a time.
PIECE = 64 * 1024


class ServerError(RelayError):
    """The server did not do what it was asked. ``sent``: it may have understood the request."""

    code = "opencode_server"

    def __init__(self, message: str, *, sent: bool = True, status: int = 0) -> None:
        super().__init__(message)
        self.sent = sent
        self.status = status


class Client:
    """Requests to one server, each on a connection of its own."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def request(
        self, method: str, path: str, body: Any = None, *, deadline: float = ANSWER_DEADLINE
    ) -> Any:
        """The answer's JSON (None where there is no body). Raises ServerError."""
        sent = False
        try:
            async with asyncio.timeout(deadline):
                reader, writer = await self._connect()
                try:
                    writer.write(self._head(method, path, body))
                    sent = True
                    await writer.drain()
                    status, pieces = await _answer(reader)
                    data = await _whole(pieces)
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            what = str(error) or "no answer in time"
            raise ServerError(f"opencode's server: {what}", sent=sent) from error
        if not 200 <= status < 300:
            said = data[:200].decode("utf-8", "replace")
            raise ServerError(f"opencode's server: {status} {said}", sent=False, status=status)
        try:
            return json.loads(data) if data.strip() else None
        except ValueError as error:
            raise ServerError("opencode's server: an answer that is no JSON") from error

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of an answer that goes on, in pieces as they come. Raises ServerError.

        How long to wait for a piece is the caller's to say.
        """
        writer = None
        try:
            async with asyncio.timeout(ANSWER_DEADLINE):
                reader, writer = await self._connect()
                writer.write(self._head("GET", path, None, accept="text/event-stream"))
                await writer.drain()
                status, pieces = await _answer(reader)
            if status != 200:
                raise ServerError(f"opencode's server: {status}", sent=False, status=status)
            yield pieces
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError) as error:
            what = str(error) or "no answer in time"
            raise ServerError(f"opencode's server: {what}") from error
        finally:
            if writer is not None:
                writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(CONNECT_DEADLINE):
            host, port = self._server.host, self._server.port
            return await asyncio.open_connection(host, port, limit=HEAD_MAX)

    def _head(self, method: str, path: str, body: Any, accept: str = "application/json") -> bytes:
        server = self._server
        content = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {server.host}:{server.port}",
            f"Accept: {accept}",
            "Connection: close",
        ]
        if server.password:
            pair = f"{server.username}:{server.password}".encode()
            lines.append(f"Authorization: Basic {base64.b64encode(pair).decode()}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return "\r\n".join([*lines, "", ""]).encode() + content


async def _answer(reader: asyncio.StreamReader) -> tuple[int, AsyncIterator[bytes]]:
    """The status, and the body as it comes. Raises ValueError for what is no HTTP."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError("its headers are too long") from error
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
        raise ValueError("it does not speak HTTP")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    status = int(words[1])
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return status, _chunked(reader)
    length = headers.get("content-length")
    if length is None:
        return status, _nothing() if status == 204 else _rest(reader)
    return status, _sized(reader, int(length))


async def _whole(pieces: AsyncIterator[bytes]) -> bytes:
    data = bytearray()
    async for piece in pieces:
        data += piece
        if len(data) > BODY_MAX:
            raise ValueError("an answer that is too long")
    return bytes(data)


async def _chunked(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await reader.readuntil(b"\r\n")
        except asyncio.LimitOverrunError as error:
            raise ValueError("a chunk without a size") from error
        left = int(line.split(b";")[0], 16)
        if left < 0:
            raise ValueError("a chunk without a size")
        if not left:
            return
        while left:
            piece = await reader.read(min(left, PIECE))
            if not piece:
                raise ValueError("it hung up")
            left -= len(piece)
            yield piece
        await reader.readexactly(2)


async def _sized(reader: asyncio.StreamReader, left: int) -> AsyncIterator[bytes]:
    while left > 0:
        piece = await reader.read(min(left, PIECE))
        if not piece:
            raise ValueError("it hung up")
        left -= len(piece)
        yield piece


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while piece := await reader.read(PIECE):
        yield piece


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""
