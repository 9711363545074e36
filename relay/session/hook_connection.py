"""One client of the hook server: a request at a time is read from it, and its answer is sent.

What a plain request is, relay.session.plainpost tells; every other one goes through h11.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import cached_property
from typing import Any

import h11

from relay.session import plainpost
from relay.session.reply import Reply

_READ = 65536
#: Of a request that was refused, at most so many bytes are read to no purpose, for so many seconds.
_SWALLOWED_MAX = 16 * 1024 * 1024
_SWALLOW_DEADLINE = 2.0


class Refused(Exception):
    """The request is not served; ``status`` says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Connection:
    """One client: h11's state machine between two streams, for all but what is plain."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: bytes | None = None  # read, but not yet given to h11
        self._owed: Callable[[bool], None] | None = None  # whoever waits for the answer to go out
        writer.transport.set_write_buffer_limits(0)  # what was drained has all gone out

    @cached_property
    def _http(self) -> h11.Connection:
        """Between two requests it is as if it were new. Many clients never need it."""
        return h11.Connection(h11.SERVER)

    async def wait_for_data(self, seconds: float) -> bool:
        """Until the client says something; False when it has gone or stays silent."""
        if self._waiting or self._left_over():
            return True
        try:
            async with asyncio.timeout(seconds):
                self._waiting = await self._reader.read(_READ)
        except TimeoutError:
            return False
        return bool(self._waiting)

    def _left_over(self) -> bool:
        return "_http" in self.__dict__ and bool(self._http.trailing_data[0])

    def plain_request(self, body_max: int) -> tuple[plainpost.Headers, bytes] | None:
        """The request that is there, if all of it is and it is a plain one."""
        if not self._waiting or self._left_over():
            return None
        plain = plainpost.read(self._waiting, body_max)
        if plain is not None:
            self._waiting = None
        return plain

    def send(self, data: bytes) -> bool:
        """Send ``data``; whether the client has taken it at once, else ``sent`` waits for that."""
        self._writer.write(data)
        return not self._writer.transport.get_write_buffer_size()

    async def sent(self) -> None:
        await self._writer.drain()

    def owe(self, answer: dict[str, Any]) -> None:
        """What became of ``answer`` will be told to whoever gave it, if they want to know."""
        if isinstance(answer, Reply):
            self._owed = answer.sent

    def settle(self, *, sent: bool, instead: bool = False) -> None:
        """The answer that was owed has gone out, or never will.

        ``instead``: something else is answered, and none of it has been written.
        """
        owed, self._owed = self._owed, None
        if owed is None:
            return
        sent = sent and not self._writer.transport.is_closing()
        if not sent and not instead:
            self._writer.transport.abort()  # the rest of it must not follow
        owed(sent)

    async def request(self) -> h11.Request | None:
        event = await self._next_event()
        return event if isinstance(event, h11.Request) else None

    async def body(self, limit: int) -> bytes:
        """The whole body. Raises Refused when it is longer than ``limit``."""
        parts = bytearray()
        if self._http.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            self._writer.write(self._http.send(go_on) or b"")
        while True:
            event = await self._next_event()
            if isinstance(event, h11.Data):
                parts += event.data
                if len(parts) > limit:
                    raise Refused(413, f"the body is longer than {limit} bytes")
            elif isinstance(event, h11.EndOfMessage):
                return bytes(parts)
            else:
                raise Refused(400, "the request ended early")

    async def gone(self) -> None:
        """Until the client hangs up; what it says meanwhile is the next request's beginning."""
        while len(self._waiting or b"") < _READ:
            try:
                data = await self._reader.read(_READ)
            except OSError:
                return
            if not data:
                return
            self._waiting = (self._waiting or b"") + data
        await asyncio.get_running_loop().create_future()

    async def answer(self, status: int, body: bytes) -> None:
        if self._http.our_state not in (h11.SEND_RESPONSE, h11.IDLE):
            return
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        if self._http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        response = h11.Response(status_code=status, headers=headers)
        # In one piece: each would be a system call, and wake the client.
        parts = map(self._http.send, (response, h11.Data(data=body), h11.EndOfMessage()))
        self._writer.write(b"".join(part for part in parts if part))
        await self._writer.drain()

    async def swallow(self) -> None:
        """Read on for a moment: a client that still sends would lose our answer to a reset."""
        if self._http.their_state is h11.DONE:
            return
        self._writer.write_eof()
        left = _SWALLOWED_MAX
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SWALLOW_DEADLINE):
                while left > 0 and (data := await self._reader.read(_READ)):
                    left -= len(data)

    def next_request(self) -> bool:
        """Get ready for another request on this connection; False when it is used up."""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def _next_event(self) -> Any:
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = self._waiting
                self._waiting = None
                if data is None:
                    data = await self._reader.read(_READ)
                self._http.receive_data(data)
            else:
                return event
