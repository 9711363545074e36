"""A small HTTP/1.1 server for the hooks of an agent, on sockets that somebody else has bound.

One request: ``POST`` with a JSON object as its body and the run's token in ``Authorization:
Bearer …``; the answer is what the handler returns, as JSON. Headers ``X-Relay-…`` reach the handler
under ``event["relay"]`` (``X-Relay-Door: /a/b`` as ``{"door": "/a/b"}``).

Bounded everywhere: connections, the size of a body, the time that a request may take. A handler may
take long, where the client waits for a gate: such connections are counted apart, so that they keep
nobody's report out, and a client that goes away ends what was asked for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import h11

from relay.session import plainpost
from relay.session.hook_connection import Connection, Refused

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

#: Bytes of one body; a longer one is refused with 413.
BODY_MAX = 8 * 1024 * 1024
#: Connections at a time; the next one is turned away with 503. One that has waited for its handler
#: for ``WAITING_AFTER`` seconds is counted among those that wait.
CONNECTIONS_MAX = 64
WAITING_MAX = 256
WAITING_AFTER = 0.1
#: Seconds for one request, from its first byte to its last, and for the answer to be taken.
REQUEST_DEADLINE = 10.0
#: Seconds that the handler may take.
HANDLER_DEADLINE = 600.0
#: Seconds that a kept connection may stay silent.
IDLE_DEADLINE = 120.0
_PREFIX = b"x-relay-"


class HookServer:
    """Serves ``handler`` to whoever knows ``token``."""

    def __init__(
        self,
        handler: Handler,
        token: str,
        *,
        on_error: Callable[[BaseException], None] | None = None,
        body_max: int = BODY_MAX,
        connections_max: int = CONNECTIONS_MAX,
        request_deadline: float = REQUEST_DEADLINE,
        handler_deadline: float = HANDLER_DEADLINE,
        waiting_max: int = WAITING_MAX,
        idle_deadline: float = IDLE_DEADLINE,
    ) -> None:
        """``on_error`` is told what the handler raises; the client only gets a 500."""
        self._handler = handler
        self._token = token
        self._on_error = on_error
        self._body_max = body_max
        self._connections_max = connections_max
        self._request_deadline = request_deadline
        self._handler_deadline = handler_deadline
        self._waiting_max = waiting_max
        self.waiting = 0  # clients that wait for their handler now
        self._idle_deadline = idle_deadline
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Accept on ``listener`` (bound and listening; TCP or unix) until ``close``."""
        # Not start_unix_server: it would remove the socket's file, which belongs to the pump.
        server = await asyncio.start_server(self._connected, sock=listener)
        self._servers.append(server)

    async def close(self) -> None:
        """Stop accepting and drop what is connected."""
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        connection = Connection(reader, writer)
        try:
            with contextlib.suppress(OSError, TimeoutError, h11.RemoteProtocolError):
                await self._serve_connection(connection)
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(1.0):
                    await writer.wait_closed()

    async def _serve_connection(self, connection: Connection) -> None:
        crowded = len(self._tasks) - self.waiting > self._connections_max
        while await connection.wait_for_data(self._idle_deadline):
            if not await self._serve_request(connection, crowded):
                return

    async def _serve_request(self, connection: Connection, crowded: bool) -> bool:
        """Answer one request; whether the connection can take another."""
        try:
            return await self._answer_request(connection, crowded)
        finally:
            connection.settle(sent=False)

    async def _answer_request(self, connection: Connection, crowded: bool) -> bool:
        plain = None if crowded else connection.plain_request(self._body_max)
        if plain is not None:
            return await self._serve_plain(connection, *plain)
        try:
            async with asyncio.timeout(self._request_deadline):
                if crowded:
                    raise Refused(503, "too many connections")
                request = await connection.request()
                if request is None:
                    return False
                body = await connection.body(self._body_max)
                headers = {bytes(name): bytes(value) for name, value in request.headers}
                event = self._parse(request.method, headers, body)
            status, answer = await self._handle(event, connection)
        except Refused as refused:
            status, answer = refused.status, {"error": refused.reason}
        except h11.RemoteProtocolError as error:
            status, answer = error.error_status_hint, {"error": "not an HTTP request"}
        async with asyncio.timeout(self._request_deadline):
            await connection.answer(status, json.dumps(answer).encode())
            connection.settle(sent=True)
            if connection.next_request():
                return True
            await connection.swallow()
        return False

    async def _serve_plain(
        self, connection: Connection, headers: plainpost.Headers, body: bytes
    ) -> bool:
        try:
            status, answer = await self._handle(self._parse(b"POST", headers, body), connection)
        except Refused as refused:
            status, answer = refused.status, {"error": refused.reason}
        if not connection.send(plainpost.answer(status, json.dumps(answer).encode())):
            async with asyncio.timeout(self._request_deadline):
                await connection.sent()
        connection.settle(sent=True)
        return True

    def _parse(self, method: bytes, headers: plainpost.Headers, body: bytes) -> dict[str, Any]:
        given = headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            raise Refused(403, "wrong token")
        if method != b"POST":
            raise Refused(405, "only POST is served")
        try:
            event = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "the body is no JSON") from error
        if not isinstance(event, dict):
            raise Refused(400, "the body is no JSON object")
        event["relay"] = {
            name[len(_PREFIX) :].decode(): value.decode("utf-8", "replace")
            for name, value in headers.items()
            if name.startswith(_PREFIX)
        }
        return event

    async def _handle(
        self, event: dict[str, Any], connection: Connection
    ) -> tuple[int, dict[str, Any]]:
        # In this very task: most handlers end at once, and then nothing else has run in between.
        waiting = _Waiting(self, connection)
        try:
            async with waiting.limit:
                try:
                    waiting.begin()
                    answer = await self._handler(event)
                    connection.owe(answer)
                    return 200, answer
                finally:
                    await waiting.end()
        except Exception as error:
            connection.settle(sent=False, instead=True)
            if waiting.refused is not None:
                raise waiting.refused from None
            if self._on_error is not None:
                self._on_error(error)
            return 500, {"error": "the handler failed"}

    def crowded_out(self) -> bool:
        """Whether no more clients may wait for their handler."""
        return self.waiting >= self._waiting_max

    def patience(self) -> float:
        """Seconds that a client may wait for its handler."""
        return self._handler_deadline


class _Waiting:
    """A client whose handler runs. After a moment it is counted, and it is noticed if it leaves.

    ``limit`` is what ends the handler; ``refused`` says why it did.
    """

    def __init__(self, server: HookServer, connection: Connection) -> None:
        self._server = server
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._gone: asyncio.Task[None] | None = None
        self.limit = asyncio.timeout(None)
        self.refused: Refused | None = None

    def begin(self) -> None:
        self._timer = self._loop.call_later(WAITING_AFTER, self._watch)

    async def end(self) -> None:
        """The handler has ended, however it did."""
        if self._timer is not None:
            self._timer.cancel()
        if self._gone is not None:
            self._server.waiting -= 1
            self._gone.remove_done_callback(self._left)
            await _cancelled(self._gone)

    def _watch(self) -> None:
        if self._server.crowded_out():
            self._give_up("too many wait")
            return
        self._server.waiting += 1
        self._gone = self._loop.create_task(self._connection.gone())
        self._gone.add_done_callback(self._left)
        self._timer = self._loop.call_later(
            self._server.patience(), self._give_up, "it took too long"
        )

    def _left(self, _task: asyncio.Task[None]) -> None:
        self._give_up("it took too long")

    def _give_up(self, why: str) -> None:
        if self.refused is None:
            self.refused = Refused(503, why)
            self.limit.reschedule(self._loop.time())


async def _cancelled(work: asyncio.Future[Any]) -> None:
    """End ``work`` if it has not ended."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
