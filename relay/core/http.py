"""HTTP/1.1 on h11 and asyncio's streams: relay's one client, and a server's side of a connection.

The client serves hooks, models, embedders and opencode's server; an answer may be a stream of
events. It follows neither redirects nor proxies and knows no compression: the address that is given
is what is asked, so a request to this machine stays on it. A synchronous caller uses
``asyncio.run(request(…))``. The server's side is for agents' hooks, for webhooks, and for the web
page. Everything has a deadline and a limit. ``h11`` is imported when it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import SplitResult, quote, urlsplit

from relay.core.descriptors import loopback_owners
from relay.core.errors import RelayError

if TYPE_CHECKING:
    import h11

#: Bytes of an answer's body; a longer one is an error.
BODY_MAX = 1024 * 1024
#: Bytes of one server-sent event; a longer one is passed over.
EVENT_MAX = 16 * 1024 * 1024
#: Bytes that are read at a time. h11 itself takes at most 16 KiB of headers.
PIECE = 64 * 1024
#: Of a request that was refused: bytes that are still read, and seconds for that; and to close.
_DRAINED_MAX, _DRAIN_DEADLINE, _CLOSE_DEADLINE = 16 * 1024 * 1024, 2.0, 1.0
_PORTS = {"http": 80, "https": 443}
Header = tuple[str, str]
JSON: tuple[Header, ...] = (("Content-Type", "application/json"),)


class RequestFailed(RelayError):
    """There is no whole answer; the message says why in one line, with the server as "it"."""

    code = "http_request"

    def __init__(self, message: str, *, sent: bool = False, timed_out: bool = False) -> None:
        super().__init__(message)
        self.sent = sent  # the server may have understood the request
        self.timed_out = timed_out


@dataclass(frozen=True, slots=True)
class Response:
    """An answer with its whole body."""

    status: int
    body: bytes = b""


async def request(
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    *,
    timeout: float,
    body_max: int = BODY_MAX,
) -> Response:
    """Ask ``url`` on a connection of its own; a ``body`` is JSON unless a header says otherwise.

    ``timeout`` in seconds is for all of it but the look-up of a host's name. Raises RequestFailed.
    """
    deadline = asyncio.get_running_loop().time() + timeout
    async with stream(method, url, headers, body, timeout=timeout) as answer:
        data = bytearray()
        try:
            async with asyncio.timeout_at(deadline):
                while len(data) <= body_max and (piece := await answer.read()):
                    data += piece
        except TimeoutError:
            raise _late(timeout, sent=True) from None
        if len(data) > body_max:
            raise RequestFailed(f"it answered with more than {body_max} bytes", sent=True)
        return Response(answer.status, bytes(data))


@asynccontextmanager
async def stream(
    method: str,
    url: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes | None = None,
    *,
    timeout: float,
) -> AsyncIterator[ResponseStream]:
    """Ask ``url`` for an answer that is read as it comes; it ends with the ``async with``.

    ``timeout`` in seconds is until the answer begins. Raises RequestFailed.
    """
    import h11

    target = _target(url)
    http = h11.Connection(h11.CLIENT)
    writer: asyncio.StreamWriter | None = None
    try:
        try:
            own = _headers(target, headers, body)
            head = h11.Request(method=method, target=_path(target), headers=own)
            parts = (head, h11.Data(data=body or b""), h11.EndOfMessage())
            asked = b"".join(http.send(part) or b"" for part in parts)
        except (h11.LocalProtocolError, UnicodeError) as error:
            why = "they are not ASCII" if isinstance(error, UnicodeError) else str(error)
            raise RequestFailed(f"its address or headers cannot be sent: {why}") from None
        try:
            async with asyncio.timeout(timeout) as limit:
                tls = await asyncio.to_thread(_tls) if target.scheme == "https" else None
                port = target.port or _PORTS[target.scheme]
                reader, writer = await asyncio.open_connection(target.hostname, port, ssl=tls)
                # Not drained: a server that answers without reading would never be heard.
                writer.write(asked)
                status = await _status(http, reader)
        except TimeoutError as error:
            if limit.expired():
                raise _late(timeout, sent=writer is not None) from None
            raise _broken(target, error, sent=writer is not None) from error  # the kernel's own
        except (OSError, UnicodeError, h11.RemoteProtocolError) as error:
            raise _broken(target, error, sent=writer is not None) from error
        yield ResponseStream(status, target, http, reader)
    finally:
        if writer is not None:
            writer.transport.abort()


class ResponseStream:
    """An answer whose body is read in pieces."""

    def __init__(
        self, status: int, target: SplitResult, http: h11.Connection, reader: asyncio.StreamReader
    ) -> None:
        self.status = status
        self._target = target
        self._http = http
        self._reader = reader

    async def read(self) -> bytes:
        """The next piece of the body, b"" at its end. Raises RequestFailed."""
        import h11

        try:
            event = await next_event(self._http, self._reader)
        except (OSError, h11.RemoteProtocolError) as error:
            raise _broken(self._target, error, sent=True) from error
        return bytes(event.data) if isinstance(event, h11.Data) else b""


class EventStreamParser:
    """Server-sent events: takes pieces of a stream, cut anywhere, and gives JSON objects. Pure."""

    def __init__(self) -> None:
        self._line = bytearray()  # the line that has begun
        self._data: list[bytes] = []
        self._size = 0  # bytes of the event that has begun
        self.dropped = 0  # events that were too long, or no JSON object

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that ``piece`` completes."""
        events = []
        for number, part in enumerate(piece.split(b"\n")):
            if number and (event := self._end_line()) is not None:
                events.append(event)
            self._line += part
            if len(self._line) > EVENT_MAX:
                self._line.clear()
                self._size = EVENT_MAX + 1
        return events

    def _end_line(self) -> dict[str, Any] | None:
        line = bytes(self._line.rstrip(b"\r"))
        self._line.clear()
        if line:
            if line.startswith(b"data:"):
                self._size += len(line)
                if self._size <= EVENT_MAX:
                    self._data.append(line[5:].removeprefix(b" "))
            return None
        if not self._size:
            return None
        data, size = b"\n".join(self._data), self._size
        self._data.clear()
        self._size = 0
        if size <= EVENT_MAX:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(data)
                if isinstance(event, dict):
                    return event
        self.dropped += 1
        return None


async def next_event(http: h11.Connection, reader: asyncio.StreamReader) -> Any:
    """The next of h11's events, from as many bytes of ``reader`` as it takes."""
    import h11

    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(PIECE))
    return event


async def _status(http: h11.Connection, reader: asyncio.StreamReader) -> int:
    """The status of the answer that has begun."""
    import h11

    while True:
        event = http.next_event()
        if isinstance(event, h11.Response):
            return event.status_code
        if event is h11.NEED_DATA:
            data = await reader.read(PIECE)
            if not data:
                raise RequestFailed("it closed the connection without an answer", sent=True)
            http.receive_data(data)
        elif not isinstance(event, h11.InformationalResponse):
            raise RequestFailed(f"it answered with {type(event).__name__}", sent=True)


def _target(url: str) -> SplitResult:
    try:
        target = urlsplit(url)
        port = target.port
    except ValueError as error:
        raise RequestFailed(f"its address is not valid: {error}") from None
    if target.scheme not in _PORTS or not target.hostname or port == 0:
        raise RequestFailed("its address must be http://HOST[:PORT]/… or https://…")
    if "@" in target.netloc:
        why = "its address has a password in it; give an Authorization header instead"
        raise RequestFailed(why)
    return target


def _path(target: SplitResult) -> str:
    query = f"?{target.query}" if target.query else ""
    return quote(f"{target.path or '/'}{query}", safe="/?%&=+,;:@!$'()*~")


def _headers(
    target: SplitResult, own: Iterable[tuple[str, str]], body: bytes | None
) -> list[tuple[str, str]]:
    headers = {"host": target.netloc} | {name.lower(): value for name, value in own}
    if body is not None:
        headers.setdefault("content-type", "application/json")
        headers["content-length"] = str(len(body))
    return list((headers | {"connection": "close"}).items())


@functools.cache
def _tls() -> ssl.SSLContext:
    """What checks a certificate as a browser does."""
    return ssl.create_default_context()


def _late(timeout: float, *, sent: bool) -> RequestFailed:
    return RequestFailed(f"it did not answer within {timeout:g} s", sent=sent, timed_out=True)


def _broken(target: SplitResult, error: Exception, *, sent: bool) -> RequestFailed:
    if isinstance(error, OSError):
        # asyncio has put words of its own in the place of the system's.
        known = isinstance(error, ConnectionError | TimeoutError) and error.errno
        what = os.strerror(known) if known else error.strerror or error
        why = f"{target.netloc} cannot be reached: {what}"
    elif isinstance(error, UnicodeError):
        why = "its address is not ASCII"
    else:
        why = f"{target.netloc} answered with something else than HTTP: {error}"
    return RequestFailed(why, sent=sent)


@dataclass(eq=False)
class Refused(Exception):
    """A request that the server does not serve: the status of the answer, and its reason."""

    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class HttpRequest:
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

    async def request(self, body_max: int, admit: Callable[[HttpRequest], None]) -> HttpRequest:
        """The request that has begun, whole. Raises Refused, also for what is no HTTP; ``admit``
        may for what it begins with, before the body is read."""
        import h11

        try:
            head = await next_event(self._http, self._reader)
            if not isinstance(head, h11.Request):
                raise Refused(400, "not an HTTP request")
            headers = {bytes(name): bytes(value) for name, value in head.headers}
            begun = HttpRequest(bytes(head.method), headers, bytes(head.target))
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
