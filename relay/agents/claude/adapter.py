"""What a session needs beside the usual when its agent is Claude Code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.agents.base import NativeStart
from relay.agents.claude.channel import ClaudeDoor
from relay.agents.claude.screen import composer_state
from relay.agents.claude.source import ClaudeSource
from relay.agents.claude.transcript import whereabouts
from relay.agents.follow_file import Follower

if TYPE_CHECKING:
    from relay.agents.base import SourceFeed

#: After the first Enter Claude Code must show itself somewhere (hooks or transcript) within this
#: many seconds, or the screen is believed instead.
SHOW_ITSELF = 15.0
#: Where the process keeps its things is looked up again after this many seconds.
LOOK_AGAIN = 0.5


def make(start: NativeStart) -> Claude:
    """See relay.agents.base."""
    return Claude(start)


class Claude:
    """The structured source of one Claude Code, its transcript and its message socket."""

    #: The socket is known a moment after the start; typing is for a Claude Code without one.
    patience = 20.0
    #: What its socket gets while a tool runs goes to the model with the tool's result.
    steered_by_door = True

    def __init__(self, start: NativeStart) -> None:
        env, checkpoint = start.env, start.checkpoint
        self._pid = start.pid
        self._config = env.get("CLAUDE_CONFIG_DIR") or os.path.join(
            env.get("HOME") or os.path.expanduser("~"), ".claude"
        )
        self.source = ClaudeSource(
            start.started_ms / 1000,
            hooks=bool(start.launch.get("hooks")),
            gated=bool(start.launch.get("gates")),
        )
        source = self.source
        self._follower = Follower(
            lambda: source.transcript_path, source.poll_interval, start.clock, self._search
        )
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"])
        self.door = ClaudeDoor(lambda: source.door_path)
        self._entered: float | None = None
        self._searched = 0.0

    @property
    def heard(self) -> ClaudeSource:
        """See Native."""
        return self.source

    def composer(self, rows: list[str]) -> str:
        """See Native."""
        return composer_state(rows)

    def state(self) -> dict[str, Any]:
        """The transcript's place for the checkpoint; the source has a state of its own."""
        return self._follower.state()

    def entered(self, now: float) -> None:
        """The person pressed Enter."""
        if self._entered is None:
            self._entered = now

    async def watch(
        self, ears: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """See Native."""
        await self._follower.watch(ears, wake, changed)

    async def read(self, ears: SourceFeed) -> bool:
        """See Native."""
        return await self._follower.read(ears)

    async def close(self) -> None:
        """See Native: nothing is held open."""

    def _search(self, ears: SourceFeed, now: float) -> None:
        if self.source.transcript_path and self.source.door_path:
            return
        if now - self._searched < LOOK_AGAIN:
            return
        self._searched = now
        self.source.found(whereabouts(self._config, self._pid))
        silent = self._entered is not None and now - self._entered > SHOW_ITSELF
        if silent and not self.source.transcript_path:
            ears.give_up(
                "neither hooks nor a transcript of Claude Code can be found:"
                " it is heard by its screen"
            )
