"""A server's side of an HTTP/1.1 connection, on h11 and asyncio's streams: for agents' hooks, for
webhooks, and for the web page.

``h11`` is imported when it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from relay.core.descriptors import loopback_owners
from relay.core.http import PIECE, next_event

if TYPE_CHECKING:
    import h11

Header = tuple[str, str]
JSON: tuple[Header, ...] = (("Content-Type", "application/json"),)

#: Of a request that was refused: bytes that are still read, and seconds for that; and to close.
_DRAINED_MAX, _DRAIN_DEADLINE, _CLOSE_DEADLINE = 16 * 1024 * 1024, 2.0, 1.0


@dataclass(eq=False)
class Refused(Exception):
    """A request that the server does not serve: the status of the answer, and its reason."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request that a server got, with its whole body."""

    method: bytes
    headers: dict[bytes, bytes]  # by names in lower case; of two with one name the last
    target: bytes  # its path and query
    body: bytes = b""


class ServerConnection:
    """One client of a server: its requests are read one after another, and answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        import h11

        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER)
        writer.transport.set_write_buffer_limits(0)  # what was drained has all gone out

    async def wait_for_request(self, timeout: float) -> bool:
        """Wait for a request to begin; False when the client leaves or is silent for ``timeout``
        seconds."""
        left, closed = self._http.trailing_data
        if left or closed:
            return bool(left)
        try:
            async with asyncio.timeout(timeout):
                data = await self._reader.read(PIECE)
        except TimeoutError:
            return False
        self._http.receive_data(data)
        return bool(data)

    @property
    def port(self) -> int:
        """The client's port; 0 where it has none."""
        return self.client[1]

    @property
    def client(self) -> tuple[str, int]:
        """The client's address and port; 0 where it has none."""
        peer = self._writer.get_extra_info("peername")
        return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("", 0)

    async def request(self, body_max: int, admit: Callable[[Request], None]) -> Request:
        """The request that has begun, whole. Raises Refused, also for what is no HTTP; ``admit``
        may for what it begins with, before the body is read."""
        import h11

        try:
            head = await next_event(self._http, self._reader)
            if not isinstance(head, h11.Request):
                raise Refused(400, "not an HTTP request")
            headers = {bytes(name): bytes(value) for name, value in head.headers}
            begun = Request(bytes(head.method), headers, bytes(head.target))
            admit(begun)
            if self._http.they_are_waiting_for_100_continue:
                proceed = h11.InformationalResponse(status_code=100, headers=[])
                self._writer.write(self._http.send(proceed) or b"")
            body = bytearray()
            while isinstance(event := await next_event(self._http, self._reader), h11.Data):
                body += event.data
                if len(body) > body_max:
                    raise Refused(413, f"the body is longer than {body_max} bytes")
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, "not an HTTP request") from None
        return replace(begun, body=bytes(body))

    async def wait_for_hangup(self) -> None:
        """Wait until the client hangs up; what it sends meanwhile begins its next request."""
        while len(self._http.trailing_data[0]) < PIECE:
            try:
                data = await self._reader.read(PIECE)
            except OSError:
                return
            self._http.receive_data(data)
            if not data:
                return
        await asyncio.get_running_loop().create_future()

    async def answer(self, status: int, body: bytes, headers: Iterable[Header] = JSON) -> None:
        """Send an answer, JSON unless ``headers`` say otherwise, and wait until it has gone out.
        Raises OSError when it never will."""
        import h11

        length = ("Content-Length", str(len(body)))
        # In one piece: each would be a system call, and wake the client.
        parts = (self._head(status, (*headers, length)), h11.Data(data=body), h11.EndOfMessage())
        await self._write(b"".join(self._http.send(part) or b"" for part in parts))

    async def begin_answer(self, headers: Iterable[Header]) -> None:
        """Begin an answer whose body follows piece by piece. Raises OSError."""
        await self._write(self._http.send(self._head(200, headers)) or b"")

    async def continue_answer(self, piece: bytes) -> None:
        """Send more of the body, and wait until it has gone out. Raises OSError."""
        import h11

        await self._write(self._http.send(h11.Data(data=piece)) or b"")

    def _head(self, status: int, headers: Iterable[Header]) -> h11.Response:
        import h11

        more = () if self._http.their_state is h11.DONE else (("Connection", "close"),)
        return h11.Response(status_code=status, headers=[*headers, *more])

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        if self._writer.is_closing():
            raise ConnectionResetError("the client has left")

    async def start_next(self) -> bool:
        """Get ready for another request; False when the connection is used up."""
        import h11

        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        if self._http.their_state is not h11.DONE:
            # Read on for a moment: a client that still sends would lose our answer to a reset.
            self._writer.write_eof()
            left = _DRAINED_MAX
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_DEADLINE):
                    while left > 0 and (data := await self._reader.read(PIECE)):
                        left -= len(data)
        return False

    def abort(self) -> None:
        """Drop the connection with what has not gone out yet."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_CLOSE_DEADLINE):
                await self._writer.wait_closed()


class Newcomer(Protocol):
    """A connection that has not shown the token."""

    @property
    def port(self) -> int:
        """The client's port; 0 where it has none."""

    def abort(self) -> None:
        """Drop the connection."""


class Newcomers:
    """Connections to a loopback port that have not shown the token, the oldest first.

    The port is open to other users, who could take all places. Of too many the other users' are
    dropped (on Linux, which says whose a connection is), else the oldest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._port = 0  # ours
        self._connections: dict[Newcomer, None] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Newcomer]:
        return iter(self._connections)

    def __contains__(self, connection: Newcomer) -> bool:
        return connection in self._connections

    def add(self, connection: Newcomer, here: object) -> None:
        """One more has come to ``here``, the address of our socket; makes room for it."""
        self._port = int(here[1]) if isinstance(here, tuple) else 0
        if len(self._connections) >= self._most:
            owners = loopback_owners(self._port)
            me = os.getuid()
            strangers = [one for one in self._connections if owners.get(one.port, me) != me]
            for one in strangers or [next(iter(self._connections))]:
                del self._connections[one]
                one.abort()
        self._connections[connection] = None

    def remove(self, connection: Newcomer) -> None:
        """It has shown the token, or is gone."""
        self._connections.pop(connection, None)
