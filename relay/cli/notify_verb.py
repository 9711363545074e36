"""The verb ``notify``: tells you in this terminal, by its bell and its desktop, what comes."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from relay.broker.client import check_person
from relay.cli import output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.manifest import read_manifest
from relay.config.notify_settings import DEFAULTS
from relay.config.trust import found_at, user_config
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.cli.output import Json
    from relay.ui.notifier import Notifier


def add(verbs: Parser) -> None:
    """Declare the verb."""
    parser = verb(
        verbs,
        "notify",
        "relay notify                (leave it running in a tab)\n"
        "  relay notify --test         (is anything seen and heard?)",
        "Tell you of mail, of what waits for your answer, of agents that have ended or are limited:"
        " a line here, this terminal's bell, and a notice on the desktop, where the terminal can."
        " The setting notify does the same without a terminal, see docs/notifications.md.",
    )
    parser.add_argument("--test", action="store_true", help="show one notice, and end")
    parser.set_defaults(run=notify_verb)


def notify_verb(options: Options) -> int:
    """``relay notify``: tells until Ctrl-C."""
    from relay.ui.notices import Notice, terminal_form
    from relay.ui.notifier import Notifier, TerminalWay, Told, hold_terminal

    home = Home.from_env()
    check_person(home, "be told what waits for the person")
    home.create()
    settings = _settings(home)
    seen = sys.stdout.isatty()
    form = terminal_form(os.environ) if seen and settings["desktop"] else None
    # One terminal is enough for the desktop; another one still rings.
    lock = hold_terminal(home) if form is not None else None
    way = TerminalWay(_write, seen and settings["bell"], form if lock is not None else None)
    try:
        if options.test:
            notice = Notice("test", "mail", "", "relay", "notices will look like this")
            asyncio.run(way.send(notice))
            return 0
        output.note("You are told here what comes. Ctrl-C ends it.")
        asyncio.run(
            _tell(Notifier(home, settings, [way], Told(int(time.time() * 1000)), output.note))
        )
    except KeyboardInterrupt:
        return 0
    finally:
        if lock is not None:
            os.close(lock)
    return 0


async def _tell(notifier: Notifier) -> None:
    try:
        await notifier.run()
    except BaseExceptionGroup as errors:  # of its tasks
        raise errors.exceptions[0] from None


def _settings(home: Home) -> Json:
    """The setting ``notify`` of the person's own configuration, where it is trusted."""
    own = found_at(home, user_config())
    manifest = read_manifest(home, own.entry.sha256) if own is not None and own.entry else None
    given = manifest.settings["notify"] if manifest is not None else None
    return dict(DEFAULTS) if given is None else given


def _write(text: str) -> None:
    with output.writing():
        sys.stdout.write(text)
        sys.stdout.flush()
