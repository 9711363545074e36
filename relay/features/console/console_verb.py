"""The verb console: see what goes on between agents, and take part in it."""

from __future__ import annotations

import os
import sys

from relay.broker.client import check_person
from relay.cli.parser import Parser
from relay.cli.verbs import every, verb
from relay.core.errors import UsageError
from relay.core.paths import Home
from relay.protocol.message_ops import INBOX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def add(verbs: Parser) -> None:
    parser = verb(verbs, "console", "relay   (on a terminal, the same)")
    parser.gone("--plain", "relay watch prints what happens; relay send and relay answer write")
    parser.set_defaults(run=console_verb)


def console_verb(options: Any) -> int:
    """``relay console``. Raises RelayError for an agent, and without a terminal to draw on."""
    home = Home.from_env()
    check_person(home, "open the console")
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not on_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError(
            "the console needs a terminal that it can draw on",
            hint="relay watch prints what happens, line by line; relay send and relay answer write",
        )
    import asyncio

    asyncio.run(_open(home))
    return 0


async def _open(home: Home) -> None:
    import socket

    from relay.features.console.console import FullScreen
    from relay.features.console.console_state import ConsoleState
    from relay.ui.watching import AsyncWatching

    words = {name: said for name, said in every().items() if name != "console"}
    command = [sys.executable, "-P", "-m", "relay"]
    async with AsyncWatching(home) as watching:
        me = (await watching.client.request(INBOX, limit=1))["name"]
        state = ConsoleState(me, socket.gethostname().partition(".")[0])
        await FullScreen(watching, state, words, command).run()
