"""What a session needs beside the usual when its agent is aider."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.agents.aider.screen import composer_state, multiline
from relay.agents.aider.source import AiderSource
from relay.agents.base import NativeStart
from relay.agents.tail import FileTail

if TYPE_CHECKING:
    from relay.agents.base import SourceFeed

#: Bytes. Each request logs the whole conversation again: a file of ours that is larger is emptied.
EMPTIED_AT = 64 * 1024 * 1024
_BUSY = "the agent is busy"
_LINES = "aider reads single lines here (no fancy input): nothing is typed"


def make(start: NativeStart) -> Aider:
    """See relay.agents.base."""
    return Aider(start)


class Aider:
    """The LLM history of one aider, and its terminal."""

    door = None
    patience = 0.0

    def __init__(self, start: NativeStart) -> None:
        launch, checkpoint = start.launch, start.checkpoint
        self._clock = start.clock
        self._terminal = start.terminal
        self._ears: SourceFeed | None = None
        self._own = bool(launch.get("own"))
        self._tail = FileTail()
        self._reading = asyncio.Lock()
        self._place: dict[str, Any] = {}
        #: Why nothing is typed while the kernel edits lines.
        self.cooked = _LINES if launch.get("lines") else _BUSY
        self.source = AiderSource(
            hears=bool(launch.get("history")), mark=str(launch.get("mark") or "")
        )
        if checkpoint.get("structured"):
            self.source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._tail.restore(checkpoint["native"])
        elif launch.get("history"):
            inode, size = launch["from"]
            self._tail.restore({"path": launch["history"], "inode": inode, "offset": size})
        self._place = self._tail.state()

    @property
    def heard(self) -> AiderSource:
        """See Native."""
        return self.source

    def composer(self, rows: list[str]) -> str:
        """See Native."""
        return composer_state(rows) if self._reads() else "busy"

    def enter(self, rows: list[str]) -> bytes:
        """The key that submits: Alt-Enter in aider's multiline mode."""
        return b"\x1b\r" if multiline(rows) else b"\r"

    def state(self) -> dict[str, Any]:
        """The place in the LLM history up to which the source has it."""
        return self._place

    def entered(self, now: float) -> None:
        """See Native: the terminal's mode tells as much."""

    async def watch(
        self, ears: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """See Native."""
        while True:
            if await self.read(ears):
                changed()
            self._empty()
            wake.clear()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.source.poll_interval()):
                    await wake.wait()

    async def read(self, ears: SourceFeed) -> bool:
        """See Native."""
        self._ears, heard = ears, False
        async with self._reading:
            while lines := await asyncio.to_thread(self._tail.poll):
                heard = True
                ears.reported(self.source.lines(lines, self._clock()))
                self._place = self._tail.state()
            before = self.source.agent_state
            events = self.source.terminal(not self._reads(), ears.visible(), self._clock())
            ears.reported(events)
        return heard or bool(events) or before is not self.source.agent_state

    async def close(self) -> None:
        """See Native: nothing is held open."""

    def _reads(self) -> bool:
        """Whether aider reads keys itself, at its prompt or for a question of its own.

        A command that it runs has the terminal in raw mode too, but takes no pastes.
        """
        raw = self._terminal is not None and not self._terminal.cooked()
        return raw and self._ears is not None and self._ears.pastes

    def _empty(self) -> None:
        """Begin the file anew, at a prompt only: there aider writes nothing into it."""
        place = self._tail.state()
        if not self._own or place["offset"] < EMPTIED_AT or not self.source.resting:
            return
        with contextlib.suppress(OSError):
            if os.stat(place["path"]).st_size == place["offset"]:
                os.truncate(place["path"], 0)
