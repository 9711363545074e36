"""One real Claude Code, started by relay's plan, with its hooks and transcript heard in-process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from relay.agents.base import FileTail
from relay.agents.claude.adapter import ClaudeChannel
from relay.agents.claude.source import ClaudeSource
from relay.agents.claude.transcript import whereabouts
from relay.agents.launch import Launch, plan
from relay.core.message import AgentState
from relay.core.source_events import End, Line, Proof, SourceEvent
from relay.session.hook_server import HookServer
from tests.agents.installs import run_of
from tests.real_agents.recipes import Recipe
from tests.real_agents.terminal import Terminal
from tests.support import wait_until

T = TypeVar("T")
TOKEN = "the-token-of-this-run"


class ClaudeRun:
    """Starts Claude Code in a terminal; close it, or use it in a ``with``."""

    def __init__(
        self, recipe: Recipe, *, cols: int = 80, rows: int = 24, port: int | None = None
    ) -> None:
        self.recipe = recipe
        self.events: list[SourceEvent] = []
        self.hooks: list[dict[str, Any]] = []
        self.errors: list[BaseException] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = port or self._listener.getsockname()[1]
        run = run_of("Alice", token=TOKEN, port=self.port)
        self.launch: Launch = plan(recipe.argv, recipe.env, run)
        self.source = ClaudeSource(time.time(), hooks=bool(self.launch.data["hooks"]))
        self.door = ClaudeChannel(self.source)
        self._tail = FileTail()
        self._server = HookServer(self._hook, TOKEN)
        self.call(self._server.serve(self._listener))
        env = {**recipe.env, **self.launch.env, "RELAY_TOKEN": TOKEN, "RELAY_PORT": str(self.port)}
        self.terminal = Terminal(
            argv=self.launch.argv, env=env, cwd=recipe.cwd, cols=cols, rows=rows
        )
        self._poller = asyncio.run_coroutine_threadsafe(self._poll(), self._loop)

    # -- what tests do ------------------------------------------------------------------------

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine beside the hook server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def ask(self, text: str) -> None:
        """Type a prompt and submit it."""
        self.terminal.type(text)
        self.terminal.wait_for(text)
        self.terminal.type("\r")

    def send(self, text: str) -> None:
        """Hand a message over by the door."""
        wait_until(lambda: self.door.available, what="Claude Code's messaging socket")
        self.call(self.door.submit(text, ""))

    def lines(self) -> list[str]:
        """Everything heard so far, line by line."""
        return [event.text for event in list(self.events) if isinstance(event, Line)]

    def streams(self) -> dict[str, list[str]]:
        """The lines of each message."""
        found: dict[str, list[str]] = {}
        for event in list(self.events):
            if isinstance(event, Line):
                found.setdefault(event.stream, []).append(event.text)
        return found

    def ended(self, *, aborted: bool = False) -> int:
        """How many messages have ended (or were broken off)."""
        return sum(isinstance(e, End) and e.aborted is aborted for e in list(self.events))

    def proven(self, text: str) -> bool:
        return any(isinstance(e, Proof) and text in e.text for e in list(self.events))

    def wait_state(self, state: AgentState) -> None:
        wait_until(lambda: self.source.agent_state is state, what=f"state {state}")

    def ready(self) -> None:
        """Until the prompt is there and the session has begun."""
        self.terminal.wait_for("? for shortcuts")

    def quit(self) -> None:
        self.terminal.type("\x03\x03")
        self.terminal.wait_end()

    # -- the small session --------------------------------------------------------------------

    async def _hook(self, event: dict[str, Any]) -> dict[str, Any]:
        self.hooks.append(event)
        try:
            self.events += self.source.hook(event, self._loop.time())
        except Exception as error:
            self.errors.append(error)
            raise
        return {}

    async def _poll(self) -> None:
        config = str(self.recipe.home / ".claude")
        while True:
            if self.source.transcript_path is None or self.source.socket_path is None:
                self.source.found(whereabouts(config, self.terminal.pid))
            path = self.source.transcript_path
            if path:
                self._tail.follow(path)
            for line in self._tail.poll():
                self.events += self.source.transcript(line, self._loop.time())
            self.events += self.source.tick(self._loop.time())
            await asyncio.sleep(min(self.source.poll_interval(), 0.05))

    def close(self) -> None:
        self.terminal.close()
        self._poller.cancel()
        self.call(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        self._listener.close()
        assert self.errors == []

    def __enter__(self) -> ClaudeRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def files_of(folder: Path) -> dict[str, bytes]:
    """What stands in the settings files under ``folder``."""
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("settings*.json"))}
