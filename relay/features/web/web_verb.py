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
    web = verb(
        verbs,
        "web",
        "relay web --open\n"
        "  relay web --port 8765 --allow-tunnel   (for ssh -L 8765:localhost:8765)",
    )
    web.add_argument("--open", action="store_true", help="open the page in your browser")
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
        output.note("Open this link in your browser. It works once; then the next one is printed.")
        output.note("Ctrl-C ends the page.")
    try:
        asyncio.run(_serve(home, listener, on_link, options))
    except KeyboardInterrupt:
        return 0
    return 0


async def _serve(home: Home, listener: socket.socket, on_link: Any, options: Any) -> None:
    import asyncio

    from relay.broker.async_client import AsyncClient
    from relay.features.web.web_data import WebData
    from relay.features.web.web_server import WebServer

    client = AsyncClient(home, on_push=lambda push: None)
    await client.open()
    opening: list[asyncio.Task[None]] = []

    def show(link: str) -> None:
        on_link(link)
        if options.open and not opening:  # the first link; the next ones are for other browsers
            opening.append(asyncio.ensure_future(_open(link)))

    try:
        data = WebData(home, client)
        server = WebServer(
            data,
            listener,
            on_link=show,
            on_warning=output.note,
            allow_tunnel=options.allow_tunnel,
        )
        await server.run()
    finally:
        for one in opening:
            one.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        await client.close()


#: Opens the link that it reads: in $BROWSER, or in the browser of the desktop.
_OPENER = "import sys, webbrowser; sys.exit(not webbrowser.open(sys.stdin.read()))"
#: Seconds for a browser to start. One that stays in the foreground takes as long as it is open.
_OPENING = 20.0


async def _open(link: str) -> None:
    """Open ``link`` in the person's browser, or say that there is none.

    By a process in the root folder, so that a relative name in $BROWSER or PATH finds nothing in
    the repository in which the person happens to be; without a terminal, which belongs to relay.
    """
    import asyncio
    import os
    import sys

    env = {name: value for name, value in os.environ.items() if name != "TERM"}  # no lynx, no w3m
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    opener = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _OPENER),
        stdin=pipe,
        stdout=none,
        stderr=none,
        cwd="/",
        env=env,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(_OPENING):
            await opener.communicate(link.encode())
    except TimeoutError:
        return  # it is open, in the foreground of the opener
    if opener.returncode:
        output.note("No browser could be opened here: open the link yourself.")
