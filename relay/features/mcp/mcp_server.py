"""The MCP server: ``relay mcp`` on stdio or on a loopback port, by the official SDK.

The SDK takes more than a second to import: only the server that runs imports it. Over stdio the
client is whoever started it. Over HTTP a request needs the token, and must not come from inside an
agent (relay.core.loopback_guard): what is asked there is the person's.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from relay import __version__
from relay.broker.async_client import AsyncClient
from relay.core.errors import RelayError
from relay.core.http import Newcomers, Refused
from relay.core.loopback_guard import ClientKind, check_origin, client_of
from relay.core.paths import Home
from relay.core.visible import visible_lines
from relay.features.mcp.mcp_tools import INSTRUCTIONS, TOOLS, Json, ToolCaller

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

#: Calls that run at a time; further ones wait.
CALLS_MAX = 32
#: Of a server for HTTP: connections that have shown the token; that have not, and their seconds for
#: it; and seconds for those that are left at its end.
CONNECTIONS_MAX, UNPROVEN_MAX, REQUEST_DEADLINE, END_SECONDS = 64, 64, 10.0, 2

Context = ServerRequestContext[Any, Any]


class McpServer:
    """The tools of relay for the clients of one server."""

    def __init__(self, tools: ToolCaller) -> None:
        self._tools = tools
        self._room = anyio.CapacityLimiter(CALLS_MAX)
        self.server: Server[Any] = Server(
            "relay",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    async def _list(
        self, _: Context, __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listing())

    async def _call(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            async with self._room:
                text = await self._tools.call(
                    params.name, params.arguments or {}, ctx.session.report_progress
                )
            failed = False
        except RelayError as error:
            text, failed = visible_lines(error.line), True
        return types.CallToolResult(content=[types.TextContent(text=text)], is_error=failed)


def listing() -> list[types.Tool]:
    return [
        types.Tool(
            name=one.name,
            description=one.description,
            input_schema=one.schema,
            annotations=types.ToolAnnotations(read_only_hint=True) if one.reads else None,
        )
        for one in TOOLS.values()
    ]


async def serve_stdio(home: Home, auth: Json, memory: Json, cwd: str) -> None:
    """Serve the client at stdin and stdout until it leaves. Raises RelayError without a broker."""
    async with _server(home, auth, memory, cwd) as served, stdio_server() as (incoming, outgoing):
        await served.run(incoming, outgoing, served.create_initialization_options())


async def serve_http(home: Home, door: Door, memory: Json, cwd: str) -> None:
    """Serve the person's clients until a signal ends it. Raises RelayError."""
    import uvicorn

    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    async with _server(home, {}, memory, cwd) as served:
        # Without sessions: a client that comes back after a restart of the server goes on.
        door.app = served.streamable_http_app(stateless_http=True)
        config = uvicorn.Config(
            door,
            log_level="critical",
            http=_counted(door.newcomers),
            ws="none",
            proxy_headers=False,  # who asks is who is connected
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX + UNPROVEN_MAX,
            timeout_graceful_shutdown=END_SECONDS,
        )
        await uvicorn.Server(config).serve(sockets=[door.listener])


def _counted(newcomers: Newcomers) -> type[H11Protocol]:
    """uvicorn's connections, which are ``newcomers`` until they have shown the token: they have so
    long for that, and take nobody's place."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Counted(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            newcomers.add(self, transport.get_extra_info("sockname"))
            self._end = self.loop.call_later(REQUEST_DEADLINE, self._late)

        def connection_lost(self, exc: Exception | None) -> None:
            self._end.cancel()
            newcomers.remove(self)
            super().connection_lost(exc)

        @property
        def port(self) -> int:
            return self.client[1] if self.client else 0

        def abort(self) -> None:
            self.transport.abort()

        def _late(self) -> None:
            if self in newcomers:
                self.abort()

    return Counted


@asynccontextmanager
async def _server(home: Home, auth: Json, memory: Json, cwd: str) -> AsyncIterator[Server[Any]]:
    client = AsyncClient(home, on_push=lambda _: None)
    await client.open()
    try:
        yield McpServer(ToolCaller(client, auth, memory, cwd)).server
    finally:
        await client.close()


class Door:
    """Lets requests through to ``app`` that show the token, and come from one of ``admitted``."""

    def __init__(
        self, listener: socket.socket, token: str, admitted: Collection[ClientKind]
    ) -> None:
        self.app: ASGIApp | None = None
        self.listener = listener
        #: The connections that have not been let through.
        self.newcomers = Newcomers(UNPROVEN_MAX)
        self._admitted = admitted
        self._port: int = listener.getsockname()[1]
        self._shown = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self.app is not None
        if scope["type"] == "http":
            try:
                await self._check(scope)
            except Refused as refused:
                answer = PlainTextResponse(f"{refused.reason}\n", refused.status)
                return await answer(scope, receive, send)
        return await self.app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        check_origin(headers)
        if not hmac.compare_digest(headers.get(b"authorization", b""), self._shown):
            raise Refused(401, "the token is missing, or another one: relay mcp --http prints it")
        address, port = scope["client"]
        kind = await asyncio.to_thread(client_of, self._port, address, port)
        if kind not in self._admitted:
            raise Refused(403, f"the client is {kind.value}; {_WHY_NOT[kind]}")
        for one in list(self.newcomers):
            if one.port == port:
                self.newcomers.remove(one)


_WHY_NOT = {
    ClientKind.AGENT: "an agent starts relay mcp for itself, by stdio",
    ClientKind.STRANGER: "this server is for the user who has started it",
    ClientKind.UNKNOWN: "through a tunnel (ssh -L), or from a container, this needs the server's"
    " option --allow-tunnel",
}
