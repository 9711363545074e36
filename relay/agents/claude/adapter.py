"""The adapter of Claude Code: its transcript, its message socket and where both are."""

from __future__ import annotations

import os
import re
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, SourceFeed
from relay.agents.claude.channel import ClaudeChannel
from relay.agents.claude.source import ClaudeSource
from relay.agents.claude.transcript import whereabouts
from relay.agents.follow_file import FileFollower

#: After the first Enter Claude Code must show itself somewhere (hooks or transcript) within this
#: many seconds, or the screen is believed instead.
SHOW_ITSELF = 15.0
#: Where the process keeps its things is looked up again after this many seconds.
LOOK_AGAIN = 0.5
#: Where Claude Code sees one.
_MENTION = re.compile(r"(?<![^\s。、？！])@")


class ClaudeAdapter(AgentAdapter):
    """One Claude Code."""

    source: ClaudeSource
    #: The socket is known a moment after the start; typing is for a Claude Code without one.
    patience = 20.0
    #: "Another Claude session sent a message … not typed by your user".
    frames_peers = True
    #: What its socket gets while a tool runs goes to the model with the tool's result.
    steers = True

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        env, checkpoint = start.env, start.checkpoint
        self._pid = start.pid
        self._config = env.get("CLAUDE_CONFIG_DIR") or os.path.join(
            env.get("HOME") or os.path.expanduser("~"), ".claude"
        )
        source = self.source = ClaudeSource(
            start.started_ms / 1000,
            hooks=bool(start.launch.get("hooks")),
            gated=bool(start.launch.get("gates")),
            profile=start.profile,
        )
        self._follower = FileFollower(start.clock)
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"])
        self.channel = ClaudeChannel(lambda: source.socket_path)
        self._entered: float | None = None
        self._searched = 0.0

    def state(self) -> dict[str, Any]:
        return self._follower.state()

    def spell(self, body: str) -> str:
        """Write ``body`` so that no ``@word`` in it names a file, whose content Claude Code would
        add to what is typed."""
        return _MENTION.sub(r"\\@", body)

    def entered(self, now: float) -> None:
        if self._entered is None:
            self._entered = now

    async def _read(self, feed: SourceFeed) -> bool:
        return await self._follower.read(self.source.transcript_path, feed)

    def _search(self, feed: SourceFeed) -> None:
        source, now = self.source, self._clock()
        if source.transcript_path and source.socket_path:
            return
        if now - self._searched < LOOK_AGAIN:
            return
        self._searched = now
        source.found(whereabouts(self._config, self._pid))
        silent = self._entered is not None and now - self._entered > SHOW_ITSELF
        if silent and not source.transcript_path:
            feed.give_up(
                "neither hooks nor a transcript of Claude Code can be found:"
                " it is heard by its screen"
            )
