"""``relay web``: the agents, their screens and messages, and what waits for you, in a browser."""

from __future__ import annotations

from relay.broker.client import check_person
from relay.cli import output
from relay.cli.parser import Parser, count
from relay.cli.verbs import verb
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any


def add(verbs: Parser) -> None:
    """Declare the verb."""
    web = verb(
        verbs, "web", "relay web\n  relay web --port 8765   (for ssh -L 8765:localhost:8765)"
    )
    web.add_argument("--port", type=count, metavar="N", help="the port (default: a free one)")
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
        asyncio.run(_serve(home, listener, on_link))
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(home: Home, listener: socket.socket, on_link: Any) -> None:
    from relay.broker.async_client import AsyncClient
    from relay.ui.web_data import WebData
    from relay.ui.web_server import WebServer

    client = AsyncClient(home, on_push=lambda push: None)
    await client.open()
    try:
        data = WebData(home, client)
        await WebServer(data, listener, on_link=on_link, on_warning=output.note).run()
    finally:
        await client.close()


def loopback_listener(port: int) -> socket.socket:
    """A socket on 127.0.0.1 that listens. Raises RelayError."""
    import socket

    if port > 65535:
        raise UsageError(f"{port} is no port", hint="--port takes 1 to 65535")
    try:
        return socket.create_server(("127.0.0.1", port), backlog=64)
    except OSError as error:
        raise RelayError(
            f"port {port} of 127.0.0.1 cannot be used: {error.strerror}",
            hint="leave out --port: any free one does",
        ) from error
