"""``relay web``: the agents, their screens and messages, and what waits for you, in a browser."""

from __future__ import annotations

from relay.broker.client import check_person
from relay.cli import output
from relay.cli.parser import Parser, port
from relay.cli.verbs import verb
from relay.core.loopback_guard import TUNNEL_HELP, loopback_listener
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any


def add(verbs: Parser) -> None:
    """Declare the verb."""
    web = verb(
        verbs,
        "web",
        "relay web\n  relay web --port 8765 --allow-tunnel   (for ssh -L 8765:localhost:8765)",
    )
    web.add_argument("--port", type=port, metavar="N", help="the port (default: a free one)")
    web.add_argument("--allow-tunnel", action="store_true", help=TUNNEL_HELP)
    web.add_argument("--json", action="store_true", help="print each link as a line of JSON")
    web.set_defaults(run=web_verb)


def web_verb(options: Any) -> int:
    """``relay web``: serves until Ctrl-C."""
    import asyncio

    home = Home.from_env()
    check_person(home, "open the web page")
    listener = loopback_listener(options.port or 0)

    def on_link(link: str) -> None:
        if options.json:
            output.as_json_line({"link": link})
        else:
            output.data(link)
            output.flush()

    if not options.json:
        output.note("Open this link in your browser. It is good once; the next one follows then.")
        output.note("Ctrl-C ends the page.")
    try:
        asyncio.run(_serve(home, listener, on_link, options.allow_tunnel))
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(home: Home, listener: socket.socket, on_link: Any, allow_tunnel: bool) -> None:
    from relay.broker.async_client import AsyncClient
    from relay.features.web.web_data import WebData
    from relay.features.web.web_server import WebServer

    client = AsyncClient(home, on_push=lambda push: None)
    await client.open()
    try:
        data = WebData(home, client)
        server = WebServer(
            data, listener, on_link=on_link, on_warning=output.note, allow_tunnel=allow_tunnel
        )
        await server.run()
    finally:
        await client.close()
