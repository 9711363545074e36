"""Serves the hooks of an agent over HTTP, on sockets that the pump has bound.

One request: ``POST`` with a JSON object as its body and the run's token in ``Authorization:
Bearer …``; the answer is what the handler returns, as JSON. Headers ``X-Relay-…`` reach the handler
under ``event["relay"]``, by their names without that (``{"messaging-socket": "/a/b"}``).

Connections, the size of a body and the time of a request are bounded. A handler may take long if
the client waits for a gate. Such connections are counted separately, so that they keep no report
out; if the client goes away, its request is cancelled. Connections that have not shown the token
are counted separately, too (Newcomers).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from relay.core.http import HttpRequest, Newcomers, Refused, ServerConnection

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

#: Bytes of one body; a longer one is refused with 413.
BODY_MAX = 8 * 1024 * 1024
#: Connections at a time; the next one is turned away with 503. One that has waited for its handler
#: for ``WAITING_AFTER`` seconds is counted among those that wait.
CONNECTIONS_MAX = 64
WAITING_MAX = 256
WAITING_AFTER = 0.1
#: Connections that have not shown the token. More than one turn of the loop accepts, so that a
#: client has time to show it.
UNPROVEN_MAX = 256
#: Seconds for one request, from its first byte to its last, and for the answer to be taken.
REQUEST_DEADLINE = 10.0
#: Seconds that the handler may take.
HANDLER_DEADLINE = 600.0
#: Seconds that a kept connection may stay silent.
IDLE_DEADLINE = 120.0
_PREFIX = b"x-relay-"


class Reply(dict[str, Any]):
    """An answer whose handler must know whether it went out.

    ``sent`` is called once, with whether all of it has gone out. After ``sent(False)`` the client
    cannot have got the whole of it, and never will.
    """

    def __init__(self, answer: Mapping[str, Any], sent: Callable[[bool], None]) -> None:
        super().__init__(answer)
        self.sent = sent


class HookServer:
    """Serves ``handler`` to the clients that know ``token``."""

    def __init__(self, handler: Handler, token: str) -> None:
        self._handler = handler
        self._token = token
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._unproven = Newcomers(UNPROVEN_MAX)
        self.waiting = 0  # clients whose handler runs now

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
        connection = ServerConnection(reader, writer)
        self._unproven.add(connection, writer.get_extra_info("sockname"))
        try:
            with contextlib.suppress(OSError, TimeoutError):
                while await connection.wait_for_request(IDLE_DEADLINE):
                    await self._serve_request(connection)
                    if not await connection.start_next():
                        break
        finally:
            self._tasks.discard(task)
            self._unproven.remove(connection)
            await connection.close()

    async def _serve_request(self, connection: ServerConnection) -> None:
        answer: dict[str, Any] = {}
        sent = False
        try:
            try:
                async with asyncio.timeout(REQUEST_DEADLINE):
                    admit = partial(self._admit, connection)
                    event = self._event(await connection.request(BODY_MAX, admit))
                status, answer = 200, await self._handle(event, connection)
                body = json.dumps(answer)
            except Refused as refused:
                status, body = refused.status, json.dumps({"error": refused.reason})
            async with asyncio.timeout(REQUEST_DEADLINE):
                await connection.answer(status, body.encode())
            sent = True
        finally:
            if not sent:
                connection.abort()  # the rest of the answer must not follow
            _settle(answer, sent=sent)

    def _admit(self, connection: ServerConnection, begun: HttpRequest) -> None:
        """Raises Refused for a client without the token, and for one too many."""
        given = begun.headers.get(b"authorization", b"")
        if not hmac.compare_digest(given, b"Bearer " + self._token.encode()):
            raise Refused(403, "wrong token")
        if connection in self._unproven:
            if len(self._tasks) - len(self._unproven) - self.waiting >= CONNECTIONS_MAX:
                raise Refused(503, "too many connections")
            self._unproven.remove(connection)

    def _event(self, request: HttpRequest) -> dict[str, Any]:
        if request.method != b"POST":
            raise Refused(405, "only POST is served")
        try:
            event = json.loads(request.body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "the body is not JSON") from error
        if not isinstance(event, dict):
            raise Refused(400, "the body is not a JSON object")
        event["relay"] = {
            name[len(_PREFIX) :].decode(): value.decode("utf-8", "replace")
            for name, value in request.headers.items()
            if name.startswith(_PREFIX)
        }
        return event

    async def _handle(self, event: dict[str, Any], connection: ServerConnection) -> dict[str, Any]:
        """The handler's answer. Raises Refused when it fails, or its time is up."""
        work = asyncio.ensure_future(self._handler(event))
        try:
            await asyncio.wait({work}, timeout=WAITING_AFTER)
            if not work.done():
                await self._wait_for(work, connection)
        except BaseException:
            await _end(work)
            if not work.cancelled() and work.exception() is None:
                _settle(work.result(), sent=False)
            raise
        try:
            return await work
        except Exception as error:
            raise Refused(500, "the handler failed") from error

    async def _wait_for(
        self, work: asyncio.Future[dict[str, Any]], connection: ServerConnection
    ) -> None:
        """Wait until the handler is done. Raises Refused when its time is up."""
        if self.waiting >= WAITING_MAX:
            raise Refused(503, "too many wait")
        self.waiting += 1
        gone = asyncio.ensure_future(connection.wait_for_hangup())
        either: set[asyncio.Future[Any]] = {work, gone}
        try:
            await asyncio.wait(
                either, timeout=HANDLER_DEADLINE, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self.waiting -= 1
            await _end(gone)
        if not work.done():
            raise Refused(503, "it took too long")


def _settle(answer: dict[str, Any], *, sent: bool) -> None:
    if isinstance(answer, Reply):
        answer.sent(sent)


async def _end(work: asyncio.Future[Any]) -> None:
    """Cancel ``work`` unless it has ended, and wait for its end."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work})
