"""The verb console: see what goes on between agents, and take part in it."""

from __future__ import annotations

import os
import sys

from relay.broker.client import check_person
from relay.cli.parser import Parser
from relay.cli.verbs import VERBS, verb
from relay.core.errors import UsageError
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def add(verbs: Parser) -> None:
    """Declare the verb."""
    parser = verb(
        verbs,
        "console",
        "relay                   (on a terminal, the same)\n"
        "  relay console --plain   (lines only, for screen readers)",
    )
    parser.add_argument(
        "--plain", action="store_true", help="lines in, lines out: nothing is drawn"
    )
    parser.set_defaults(run=console_verb)


def console_verb(options: Any) -> int:
    """``relay console``. Raises RelayError for an agent, and without a terminal."""
    home = Home.from_env()
    check_person(home, "open the console")
    plain = options.plain or os.environ.get("TERM", "dumb") == "dumb"
    if not plain and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "the console needs a terminal",
            hint="relay console --plain reads and prints lines; relay status is for scripts",
        )
    import asyncio

    asyncio.run(_open(home, plain))
    return 0


async def _open(home: Home, plain: bool) -> None:
    import socket

    from relay.ui.console_state import ConsoleState
    from relay.ui.watching import AsyncWatching

    words = {name: said for name, (_, said) in VERBS.items() if name != "console"}
    command = [sys.executable, "-P", "-m", "relay"]
    async with AsyncWatching(home) as watching:
        me = (await watching.client.request("inbox", limit=1))["name"]
        state = ConsoleState(me, socket.gethostname().partition(".")[0])
        if plain:
            from relay.ui.console_plain import PlainConsole

            await PlainConsole(watching, state, words, command).run()
        else:
            from relay.ui.console import FullScreen

            await FullScreen(watching, state, words, command).run()
