"""The stage of the demo: wraps both agents in terminals of their own and shows what happens."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ptyprocess import PtyProcess

from relay.app.throwaway_home import throwaway_home, undisturbed
from relay.broker.client import connect
from relay.cli import table
from relay.core.errors import Timeout
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENTS
from relay.protocol.message_ops import HISTORY, WAIT, HistoryRow

#: How long each part of the demo may take, in seconds.
DEADLINE = 60.0
#: What stands before a line: the name of who shows it.
_MARGIN = len("  Ann │ ")
PATH_STEP = """\
Put relay on your PATH, in each terminal:

    export PATH={folder}:"$PATH"
"""
NEXT_STEPS = """\
Start two agents, each in a terminal of its own:

    relay wrap --name Alice -- claude
    relay wrap --name Bob -- codex         (or gemini, opencode, any program)

Tell Alice "ask Bob to say hello". `relay` in a third terminal shows them both,
and `relay doctor` what works on this machine.\
"""


@dataclass
class Actor:
    """One wrapped agent: its name, its terminal and the line that is still being written."""

    name: str
    terminal: Any
    partial: bytes = b""
    open: bool = True


def perform(out: Callable[[str], None]) -> int:
    """Run the demo in a state directory of its own; returns the exit status."""
    with throwaway_home("relay-demo-") as home:
        out("Two agents, each wrapped by relay in a terminal of its own:\n")
        actors = [start(home, "Ben", ["answerer"])]
        try:
            wait_until_there(home, "Ben")
            actors.append(start(home, "Ann", ["asker", "Ben"]))
            watch(actors, out)
            statuses = [finish(actor) for actor in actors]
            receipts = history(home)
        finally:
            with undisturbed():
                for actor in actors:
                    actor.terminal.close(force=True)
    return conclude(receipts, statuses, out)


def start(home: Home, name: str, role: list[str]) -> Actor:
    """``relay wrap --name NAME -- python -m relay.demo.agents ROLE`` in a new terminal."""
    command = [sys.executable, "-m", "relay", "wrap", "--name", name, "--"]
    command += [sys.executable, "-m", "relay.demo.agents", *role]
    env = {**os.environ, "RELAY_HOME": home.root}
    # Not in the person's folder, which may be governed.
    return Actor(name, PtyProcess.spawn(command, cwd=home.root, env=env, dimensions=(24, 100)))


def wait_until_there(home: Home, name: str) -> None:
    """Until the broker knows ``name`` (a message would also wait for it, and Ann be told so)."""
    deadline = time.monotonic() + DEADLINE
    client = connect(home)
    try:
        while name not in [agent["name"] for agent in client.request(AGENTS)["agents"]]:
            if time.monotonic() > deadline:
                raise Timeout(f"{name} did not start", hint="run `relay doctor`")
            client.next_push(0.02)  # nothing is pushed to us: this only waits
    finally:
        client.close()


def watch(actors: list[Actor], out: Callable[[str], None]) -> None:
    """Show each line of each terminal as it is completed, until both programs have ended."""
    deadline = time.monotonic() + DEADLINE
    while live := [actor for actor in actors if actor.open]:
        if time.monotonic() > deadline:
            raise Timeout(
                "the demo did not finish",
                hint="run `relay doctor`; the agents' screens are above",
            )
        readable, _, _ = select.select([actor.terminal.fd for actor in live], [], [], 1.0)
        for actor in live:
            if actor.terminal.fd in readable:
                receive(actor, out)


def receive(actor: Actor, out: Callable[[str], None]) -> None:
    """Read what the terminal shows and print the lines that are whole."""
    try:
        data = os.read(actor.terminal.fd, 65536)
    except OSError:  # Linux reports the end of a pseudo-terminal as EIO
        data = b""
    actor.open = bool(data)
    *lines, actor.partial = (actor.partial + data).split(b"\n")
    for line in lines:
        text = shortened(line.decode("utf-8", "replace").rstrip("\r"))
        if text.strip():
            for row in folded(text, table.columns()):
                out(f"  {actor.name} │ {row}")


def shortened(text: str) -> str:
    """Without what relay says behind each message to a program that it could not brief."""
    said, closing, _ = text.partition(" (End of ")
    return f"{said} (…)" if closing else said


def folded(text: str, columns: int | None) -> list[str]:
    """``text`` in rows that fit beside the names; whole when stdout is not a terminal."""
    return [text] if columns is None else textwrap.wrap(text, max(20, columns - _MARGIN))


def finish(actor: Actor) -> int:
    """The program's exit status."""
    status = actor.terminal.wait()
    return int(status if status is not None else 1)


def history(home: Home) -> list[HistoryRow]:
    """What the ledger says of every message, once all are final."""
    client = connect(home)
    try:
        messages = client.request(HISTORY, limit=50)["rows"]
        for message in messages:
            client.request(WAIT, id=message["id"], timeout=10.0)
        result: list[HistoryRow] = client.request(HISTORY, limit=50)["rows"]
    finally:
        client.close()
    return result


def conclude(receipts: list[HistoryRow], statuses: list[int], out: Callable[[str], None]) -> int:
    """The receipts, the verdict and what to try next."""
    out("\nWhat became of each message:\n")
    for message in receipts:
        who = f"{message['from']} → {message['to']}"
        out(f"  {who:<12} {message['state']:<10} {message['body']}")
    seen = [message for message in receipts if message["state"] == "seen"]
    if statuses != [0, 0] or len(seen) != len(receipts) or len(receipts) < 3:
        out("\nThe demo did not end as it should; `relay doctor` may say why.")
        return 1
    out(f"\nAll {len(seen)} messages were seen.\n")
    folder = os.path.dirname(sys.executable)
    program, found = os.path.join(folder, "relay"), shutil.which("relay")
    # A link to it, as pipx and uv make them, is as good.
    if os.path.exists(program) and not (found and os.path.samefile(found, program)):
        out(PATH_STEP.format(folder=shlex.quote(folder)))
    out(NEXT_STEPS)
    return 0
