"""What a session needs beside the usual when its agent is Claude Code."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.agents.claude_door import ClaudeDoor
from relay.agents.claude_source import ClaudeSource
from relay.agents.claude_transcript import TranscriptTail, whereabouts

if TYPE_CHECKING:
    from relay.session.ears import Ears

#: After the first Enter Claude Code must show itself somewhere (hooks or transcript) within this
#: many seconds, or the screen is believed instead.
SHOW_ITSELF = 15.0
#: Where the process keeps its things is looked up again after this many seconds.
LOOK_AGAIN = 0.5


class Claude:
    """The structured source of one Claude Code, its transcript and its message socket."""

    def __init__(
        self,
        *,
        started_ms: int,
        pid: int,
        launch: dict[str, Any],
        env: dict[str, str],
        checkpoint: dict[str, Any],
        clock: Callable[[], float],
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._config = env.get("CLAUDE_CONFIG_DIR") or os.path.join(
            env.get("HOME") or os.path.expanduser("~"), ".claude"
        )
        self.source = ClaudeSource(started_ms / 1000, hooks=bool(launch.get("hooks")))
        self._tail = TranscriptTail()
        if checkpoint.get("structured"):
            self.source.restore(checkpoint["structured"])
        if checkpoint.get("transcript"):
            self._tail.restore(checkpoint["transcript"])
        self.door = ClaudeDoor(lambda: self.source.door_path)
        self._entered: float | None = None
        self._searched = 0.0
        self._reading = asyncio.Lock()

    def state(self) -> dict[str, Any]:
        """The transcript's place for the checkpoint; the source has a state of its own."""
        return self._tail.state()

    def entered(self, now: float) -> None:
        """The person pressed Enter."""
        if self._entered is None:
            self._entered = now

    async def watch(self, ears: Ears, wake: asyncio.Event, changed: Callable[[], None]) -> None:
        """Follow the transcript until cancelled; ``wake`` is set when something may be there."""
        while True:
            now = self._clock()
            self._search(ears, now)
            if await self.read(ears):
                changed()
                continue
            wake.clear()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.source.poll_interval()):
                    await wake.wait()

    async def read(self, ears: Ears) -> bool:
        """Hear what the transcript holds beyond the last look; whether there was anything."""
        heard = False
        async with self._reading:
            if self.source.transcript_path:
                self._tail.follow(self.source.transcript_path)
            while lines := await asyncio.to_thread(self._tail.poll):
                heard = True
                for line in lines:
                    try:
                        ears.transcript(line, self._clock())
                    except Exception as error:
                        # Its form is not ours to promise: one odd line must not cost the others.
                        ears.note(f"a line of the transcript: {type(error).__name__}: {error}")
        return heard

    def _search(self, ears: Ears, now: float) -> None:
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
