"""What a session needs beside the usual when its agent is Codex."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.agents.base import NativeStart
from relay.agents.codex.channel import QueueDoor
from relay.agents.codex.rollout import Whereabouts, is_conversation, whereabouts
from relay.agents.codex.screen import composer_state
from relay.agents.codex.source import CodexSource
from relay.agents.follow_file import Follower
from relay.agents.injection_proof import TranscriptProof
from relay.core.message import AgentState

if TYPE_CHECKING:
    from relay.agents.base import SourceFeed

#: A turn has run for so many seconds without a session file: the screen is believed instead.
SHOW_ITSELF = 15.0
#: What the process holds open is looked up again after this many seconds, when its session file is
#: not known yet, and when it is (``/new`` and ``/resume`` go on in another one).
LOOK_AGAIN, LOOK_LATER = 0.5, 2.0
#: Of what a hook adds Codex gives its model so many bytes for certain; the rest goes to a file.
CONTEXT_ROOM = 8000
#: Conversations of one process that are followed; those that are open no more are dropped first.
FOLLOWED_MAX = 16


def make(start: NativeStart) -> Codex:
    """See relay.agents.base."""
    return Codex(start)


class Codex:
    """The structured source of one Codex, its session files and its queue."""

    patience = 0.0
    #: Its queue is looked into every ten seconds only, and rests after a turn that was broken off.
    typed_first = True
    #: Before it draws, its terminal reads lines, and nobody reads those.
    cooked = "the agent is starting"

    def __init__(self, start: NativeStart) -> None:
        self._pid = start.pid
        self._clock = start.clock
        self.source = CodexSource(
            start.started_ms / 1000,
            hooks=bool(start.launch.get("hooks")),
            gated=bool(start.launch.get("gates")),
        )
        self._followers: dict[str, Follower] = {}
        self._where = Whereabouts()
        self._searched: float | None = None
        self._heard = bool(start.launch.get("heard"))
        self.door = QueueDoor(
            str(start.launch.get("program") or ""),
            start.cwd,
            start.env,
            lambda: self.source.thread,
            lambda: self.source.interrupted,
            lambda: self._where.queue,
        )
        self.heard = Delivered(self.source, self.door)
        #: What its hooks add stands in its session file.
        self.records = TranscriptProof(
            lambda: CONTEXT_ROOM if self.source.path else 0, self.source.seen
        )
        if start.checkpoint.get("structured"):
            self.source.restore(start.checkpoint["structured"])
        for path, state in (start.checkpoint.get("native") or {}).items():
            self._follow(path).restore(state)
        if not self._heard:
            self.source.failed("")  # the launch plan has said why

    def composer(self, rows: list[str]) -> str:
        """See Native. What is pasted into a turn breaks off the answer that is being written."""
        found = composer_state(rows)
        if found != "dialog" and self.source.agent_state is AgentState.BUSY:
            return "busy"
        if found == "unknown":
            # Another view stands in the place of the input line, or nothing is drawn yet.
            return "busy" if self.source.agent_state is AgentState.STARTING else "dialog"
        return found

    def state(self) -> dict[str, Any]:
        """The files' places for the checkpoint; the source has a state of its own."""
        return {path: follower.state() for path, follower in self._followers.items()}

    def entered(self, now: float) -> None:
        """See Native: Enter may answer a dialog, so a turn is waited for instead."""

    async def watch(
        self, ears: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """See Native."""
        while True:
            self._search(ears)
            if await self._read(ears):
                changed()
                continue
            wake.clear()
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the wake-up.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.source.poll_interval()):
                    await wake.wait()

    async def read(self, ears: SourceFeed) -> bool:
        """See Native."""
        self._look()
        return await self._read(ears)

    async def close(self) -> None:
        """See Native: nothing is held open."""

    async def _read(self, ears: SourceFeed) -> bool:
        heard = False
        for follower in list(self._followers.values()):
            heard |= await follower.read(ears)
        return heard

    def _search(self, ears: SourceFeed) -> None:
        """Look for session files now and then, and give up when there is none to be found."""
        now = self._clock()
        again = LOOK_LATER if self._followers else LOOK_AGAIN
        if not self._heard:
            return
        if not self.source.named and self._searched is not None and now - self._searched < again:
            return
        self._searched = now
        self._look()
        since = self.source.runs_since
        if not self._followers and since is not None and now - since > SHOW_ITSELF:
            ears.give_up(
                "neither hooks nor a session file of this Codex can be found:"
                " it is heard by its screen"
            )

    def _look(self) -> None:
        """Follow what the process holds open, and what a hook has named."""
        if not self._heard:
            return
        found = whereabouts(self._pid)
        # What is closed at the agent's end was open before.
        self._where = Whereabouts(found.rollouts, found.queue or self._where.queue)
        for path in found.rollouts:
            self.source.found(path)
            self._follow(path)
        named, self.source.named = self.source.named, None
        if named and is_conversation(named):
            self.source.in_front(named)
            self._follow(named)
        while len(self._followers) > FOLLOWED_MAX:
            front = self.source.path
            closed = [path for path in self._followers if path not in (*found.rollouts, front)]
            self._followers.pop(closed[0] if closed else next(iter(self._followers)))

    def _follow(self, path: str) -> Follower:
        follower = self._followers.get(path)
        if follower is None:
            source = self.source
            follower = Follower(lambda: path, source.poll_interval, self._clock)
            self._followers[path] = follower
        return follower


class Delivered:
    """What delivery asks: the source, and the queue for what waits there."""

    def __init__(self, source: CodexSource, door: QueueDoor) -> None:
        self._source = source
        self._door = door

    def heard(self, marker: str) -> bool:
        """See Source in relay.agents.base."""
        return self._source.heard(marker) or self._door.waits(marker)

    def seen(self, marker: str) -> bool:
        """See Source in relay.agents.base."""
        return self._source.seen(marker)
