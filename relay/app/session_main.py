"""The process behind one wrapped agent: ``python -m relay.app.session_main``, started by the pump.

Everything of relay's that may be slow, may fail or belongs to the user runs here, so that none of
it can touch the agent. What it is started with stands in two variables of the environment that
the pump sets; it is not a command for people.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from relay.app.session_parts import Parts
from relay.config.load import LoadedConfig, load_for_session, with_hook_files
from relay.config.settings import Settings
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.hooks.events import HookEventName
from relay.hooks.registry import BUILTIN, Registry
from relay.protocol import frames
from relay.session.builtin import register
from relay.session.pump_link import PumpLink
from relay.session.session import Session

#: How long the pump may take to say hello.
HELLO_DEADLINE = 30.0
#: A pump that hangs up is about to end; how long that may take. Seconds.
PARENT_PATIENCE = 0.5
#: What is wrong with hook files is noted in so many lines; ``relay config check`` says all.
HOOK_PROBLEMS_MAX = 5


@dataclass(slots=True)
class Start:
    """What the pump hands over: descriptors and facts."""

    pump: int
    unix: int | None
    tcp: int | None
    tty: int | None
    args: dict[str, Any]
    config: LoadedConfig | None = None  # given by a program that uses Relay, else looked for


@dataclass(slots=True)
class Inbox:
    """Frames that come before the session is ready for them."""

    waiting: list[tuple[int, bytes]] = field(default_factory=list)
    hello: asyncio.Event = field(default_factory=asyncio.Event)
    lost: bool = False
    session: Session | None = None

    def frame(self, kind: int, payload: bytes) -> None:
        if self.session is not None:
            self.session.frame(kind, payload)
            return
        self.waiting.append((kind, payload))
        if kind == frames.CHECKPOINT:
            self.hello.set()

    def hung_up(self) -> None:
        self.lost = True
        self.hello.set()
        if self.session is not None:
            self.session.lost()


def main() -> int:
    """Run one session; the exit status is for the pump's log only."""
    fds = json.loads(os.environ.pop("RELAY_SESSION_FDS"))
    args = json.loads(os.environ.pop("RELAY_SESSION_ARGS"))
    start = Start(fds["pump"], fds.get("unix"), fds.get("tcp"), fds.get("tty"), args)
    status = run(start)
    drop_empty_log(Home(args["home"]), args["run_id"])
    return status


def run(start: Start) -> int:
    """Run a session in this process until its agent has ended."""
    # The person's Ctrl-C is for the agent; a broken socket is an error like any other.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # What a handler prints is for the log; there is no terminal here that it could go to.
    sys.stdout = sys.stderr
    try:
        asyncio.run(serve(start))
    except RelayError as error:
        print(f"relay session: {error.line}", file=sys.stderr)
        return 1
    return 0


def drop_empty_log(home: Home, run_id: str) -> None:
    """Remove this run's log when nothing was written to it: most runs have nothing to say."""
    path = os.path.join(home.logs, f"{run_id}.log")
    with contextlib.suppress(OSError):
        if os.stat(path).st_size == 0:
            os.unlink(path)


async def serve(start: Start) -> None:
    """Everything from the pump's hello to the last word of the agent."""
    loop = asyncio.get_running_loop()
    pump = os.getppid()
    inbox = Inbox()
    link = PumpLink(inbox.frame, inbox.hung_up)
    await loop.create_connection(lambda: link, sock=socket.socket(fileno=start.pump))
    async with asyncio.timeout(HELLO_DEADLINE):
        await inbox.hello.wait()
    if not inbox.waiting or inbox.waiting[0][0] != frames.HELLO:
        return  # the pump is gone already
    hello = json.loads(inbox.waiting.pop(0)[1])
    checkpoint = _checkpoint(inbox)
    home = Home(start.args["home"])
    config, problem = await _configuration(start, home)
    parts = Parts(start, hello, checkpoint, config, link, home)
    if problem:
        parts.facts.notes.append(problem)
    parts.facts.notes.extend(config.hook_problems[:HOOK_PROBLEMS_MAX])
    session = await parts.build()
    over = True
    try:
        inbox.session = session
        for kind, payload in inbox.waiting:
            session.frame(kind, payload)
        inbox.waiting.clear()
        if inbox.lost:
            session.lost()
        await session.exited.wait()
        if not session.orderly and not await _gone(pump):
            over = False  # the pump is alive and has hung up on this session only
            return
        # First: the person should not have to wait for handlers and the broker.
        parts.restore_terminal()
        await parts.last_words()
        await session.end()
    finally:
        await parts.close(over=over)


async def _gone(parent: int) -> bool:
    """Whether our parent has died; its sockets close a moment before it is gone."""
    end = time.monotonic() + PARENT_PATIENCE
    while os.getppid() == parent:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


def _checkpoint(inbox: Inbox) -> dict[str, Any]:
    """The state of an earlier session of this run; empty on the first start."""
    if inbox.waiting and inbox.waiting[0][0] == frames.CHECKPOINT:
        payload = inbox.waiting.pop(0)[1]
        if payload:
            checkpoint: dict[str, Any] = json.loads(payload)
            return checkpoint
    return {}


async def _configuration(start: Start, home: Home) -> tuple[LoadedConfig, str]:
    """The user's handlers with relay's own, and what is wrong with the configuration if anything.

    A configuration that cannot be used costs its handlers and, because it may have chosen where
    they are, the memories, never the agent or the messages. Where
    the agent was started with gates for it, they stay shut: what it guards nobody knows now.
    """
    problem = ""
    config = start.config
    if config is None:
        try:
            config = await asyncio.to_thread(
                load_for_session, home, start.args["cwd"], start.args.get("config")
            )
        except RelayError as error:
            problem = error.line
            config = LoadedConfig(None, Registry(), Settings(), None, unusable=error)
    else:
        config = await asyncio.to_thread(with_hook_files, config, start.args["cwd"], home)
    if config.untrusted:
        problem = f"{config.untrusted} is not trusted and was not run (relay trust)"
    gates = (start.args.get("launch") or {}).get("gates", ())
    if HookEventName.BEFORE_TOOL.value in gates:
        if start.config is None and config.path is None and not problem:
            problem = "the configuration with which this agent was started is gone"
        if problem:
            _stay_shut(config.registry, problem)
    register(config.registry, config.settings.memory)
    return config, problem


def _stay_shut(registry: Registry, problem: str) -> None:
    """Refuse every tool: the hooks that may guard it could not be loaded."""
    reason = (
        f"no tool runs, because the hooks that may guard it could not be loaded: {problem}. A"
        " person has to mend that, and to start this agent again"
    )

    def refuse() -> dict[str, str]:
        return {"deny": reason}

    registry.add_hook(HookEventName.BEFORE_TOOL, refuse, name="relay", source=BUILTIN)


if __name__ == "__main__":
    sys.exit(main())
