"""The adapter of aider: it follows the LLM history, and aider is typed into."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from relay.agents.aider.source import AiderSource, composer_state, multiline
from relay.agents.base import AgentAdapter, AgentStart, FileTail, SourceFeed
from relay.agents.profile import ComposerState

#: Bytes. Each request logs the whole conversation again: a file of ours that is larger is emptied.
EMPTIED_AT = 64 * 1024 * 1024
_BUSY = "the agent is busy"
_LINES = "aider reads single lines here (no fancy input): nothing is typed"


class AiderAdapter(AgentAdapter):
    """The LLM history of one aider, and its terminal."""

    source: AiderSource

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        launch, checkpoint = start.launch, start.checkpoint
        self._terminal = start.terminal
        self._feed: SourceFeed | None = None
        self._own = bool(launch.get("own"))
        self._tail = FileTail()
        self._reading = asyncio.Lock()
        self._place: dict[str, Any] = {}
        #: Why nothing is typed while the kernel edits lines.
        self.cooked = _LINES if launch.get("lines") else _BUSY
        self.source = AiderSource(
            hears=bool(launch.get("history")),
            mark=str(launch.get("mark") or ""),
            chats=str(launch.get("chats") or ""),
        )
        if checkpoint.get("structured"):
            self.source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._tail.restore(checkpoint["native"])
        elif launch.get("history"):
            inode, size = launch["from"]
            self._tail.restore({"path": launch["history"], "inode": inode, "offset": size})
        self._place = self._tail.state()

    def composer(self, rows: list[str]) -> ComposerState:
        return composer_state(rows) if self._reads() else "busy"

    def enter(self, rows: list[str]) -> bytes:
        """The key that submits: Alt-Enter in aider's multiline mode."""
        return b"\x1b\r" if multiline(rows) else b"\r"

    def state(self) -> dict[str, Any]:
        """The place in the LLM history up to which the source has it."""
        return self._place

    async def _read(self, feed: SourceFeed) -> bool:
        self._feed, found = feed, False
        async with self._reading:
            while lines := await asyncio.to_thread(self._tail.poll):
                found = True
                feed.reported(self.source.lines(lines, self.clock()))
                self._place = self._tail.state()
            before = self.source.agent_state
            events = self.source.terminal(not self._reads(), feed.visible(), self.clock())
            feed.reported(events)
            if not found:
                self._empty()
        return found or bool(events) or before is not self.source.agent_state

    def _reads(self) -> bool:
        """Whether aider reads keys itself, at its prompt or for a question of its own.

        A command that it runs has the terminal in raw mode too, but takes no pastes.
        """
        raw = self._terminal is not None and not self._terminal.cooked()
        return raw and self._feed is not None and self._feed.pastes

    def _empty(self) -> None:
        """Begin the file anew, at a prompt only: there aider writes nothing into it."""
        place = self._tail.state()
        if not self._own or place["offset"] < EMPTIED_AT or not self.source.resting:
            return
        with contextlib.suppress(OSError):
            if os.stat(place["path"]).st_size == place["offset"]:
                os.truncate(place["path"], 0)
