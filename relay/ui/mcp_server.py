"""The MCP server: ``relay mcp`` on stdio or on a loopback port, by the official SDK.

A file of its own because the SDK takes more than a second to import: only the server that runs
imports it. Over stdio the client is whoever started it. Over HTTP a request needs the token, and
must not come from inside an agent (relay.core.loopback_guard): what is asked there is the person's.
"""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server

from relay import __version__
from relay.broker.async_client import AsyncClient
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.visible import visible_lines
from relay.ui.mcp_tools import INSTRUCTIONS, TOOLS, Json, ToolCaller

#: Calls that run at a time; further ones wait.
CALLS_MAX = 32

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
    """The tools as a client lists them."""
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
    client = AsyncClient(home, on_push=lambda _: None)
    await client.open()
    try:
        served = McpServer(ToolCaller(client, auth, memory, cwd)).server
        async with stdio_server() as (incoming, outgoing):
            await served.run(incoming, outgoing, served.create_initialization_options())
    finally:
        await client.close()
