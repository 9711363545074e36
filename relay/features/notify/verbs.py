"""The verb ``notify``: tells you in this terminal, by its bell and its desktop, what comes."""

from __future__ import annotations

import os
import sys
import time

from relay.broker.client import check_person
from relay.cli import output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.manifest import read_manifest
from relay.config.trust import found_at, user_config
from relay.core import signals
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.features.notify.broker import (
    GATHER,
    QUIET_LOOK,
    ROWS,
    Notice,
    PendingNotices,
    hold_terminal,
    minute_now,
    terminal_form,
)
from relay.features.notify.settings import DEFAULTS, NOTIFY
from relay.protocol.broker import Json
from relay.ui.watching import Watching


def add(verbs: Parser) -> None:
    parser = verb(
        verbs,
        "notify",
        "relay notify                (leave it running in a tab)\n"
        "  relay notify --test         (is anything seen and heard?)",
        "Tell you about mail, what waits for your answer, and agents that ended or are limited:"
        " a line here, this terminal's bell, and a notice on the desktop, where the terminal can."
        " The setting notify does the same without a terminal, see docs/notifications.md.",
    )
    parser.add_argument("--test", action="store_true", help="show one notice, and end")
    parser.set_defaults(run=notify_verb)


def notify_verb(options: Options) -> int:
    """``relay notify``: shows notices until Ctrl-C."""
    home = Home.from_env()
    check_person(home, "be told what waits for the person")
    home.create()
    settings = _settings(home)
    on_terminal = sys.stdout.isatty()
    form = terminal_form(os.environ) if on_terminal and settings["desktop"] else None
    # One terminal is enough for the desktop; it holds the lock until it ends. Others still ring.
    if form is not None and hold_terminal(home) is None:
        form = None
    bell = "\a" if on_terminal and settings["bell"] else ""

    def show(notice: Notice) -> None:
        signs = bell + (form(notice) if form is not None else "")
        with output.writing():
            sys.stdout.write(f"{signs}{time.strftime('%H:%M:%S')}  {notice.line}\n")
            sys.stdout.flush()

    if options.test:
        show(Notice("test", "mail", "", "relay", "notices will look like this"))
        return 0
    # Python would hear of a Ctrl-C that comes just before it waits only after it has waited.
    signals.plain_interrupt()
    pending = PendingNotices(owner_name(), int(time.time() * 1000))
    with Watching(home, kinds=ROWS) as watching:
        output.note("Notices appear here. Ctrl-C ends it.")
        while True:
            rows = watching.next_rows(QUIET_LOOK)
            rows += watching.next_rows(GATHER) if rows else []
            for row in rows:
                if row["what"] in ROWS:
                    pending.take(row)
            for notice in pending.due(settings, minute_now()):
                show(notice)


def _settings(home: Home) -> Json:
    """The setting ``notify`` of the person's own configuration, where it is trusted."""
    own = found_at(home, user_config())
    manifest = read_manifest(home, own.entry.sha256) if own is not None and own.entry else None
    given = manifest.features.get(NOTIFY.key) if manifest is not None else None
    return dict(DEFAULTS) if given is None else given
