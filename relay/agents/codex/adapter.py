"""The adapter of Codex: the session files that its process holds open, and its message queue."""

from __future__ import annotations

from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, SourceFeed
from relay.agents.codex.channel import CodexChannel
from relay.agents.codex.rollout import is_conversation, open_files
from relay.agents.codex.source import CodexSource
from relay.agents.follow_file import FileFollower
from relay.agents.injection_proof import TranscriptProof
from relay.agents.input_line import ComposerState
from relay.core.message import AgentState

#: Seconds of a turn without a session file after which the screen is believed instead.
SHOW_ITSELF = 15.0
#: What the process holds open is looked up again after this many seconds, when its session file is
#: not known yet, and when it is (``/new`` and ``/resume`` go on in another one).
LOOK_AGAIN, LOOK_LATER = 0.5, 2.0
#: Bytes of what a hook adds that Codex gives its model for certain; the rest goes to a file.
CONTEXT_ROOM = 8000
#: Conversations of one process that are followed; those that are open no more are dropped first.
FOLLOWED_MAX = 16


class CodexAdapter(AgentAdapter):
    """One Codex."""

    source: CodexSource
    channel: CodexChannel
    #: Its queue is looked into every ten seconds only, and rests after a turn that was broken off.
    typed_first = True
    #: Before it draws, its terminal reads lines, and nobody reads those.
    cooked = "the agent is starting"

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        self._pid = start.pid
        source = self.source = CodexSource(
            start.started_ms / 1000,
            hooks=bool(start.launch.get("hooks")),
            gated=bool(start.launch.get("gates")),
            profile=start.profile,
        )
        self._followers: dict[str, FileFollower] = {}
        self._searched: float | None = None
        self._readable = bool(start.launch.get("heard"))
        self.channel = CodexChannel(
            str(start.launch.get("program") or ""),
            start.cwd,
            start.env,
            source,
        )
        #: What its hooks add stands in its session file.
        self.injection = TranscriptProof(
            lambda: CONTEXT_ROOM if source.saved.path else 0, source.seen
        )
        if start.checkpoint.get("structured"):
            source.restore(start.checkpoint["structured"])
        for path, state in (start.checkpoint.get("native") or {}).items():
            self._follow(path).restore(state)
        if not self._readable:
            source.failed("")  # the launch plan has said why

    def composer(self, rows: list[str]) -> ComposerState:
        """Tell how the input line is; what is pasted into a turn breaks its answer off."""
        found = self.profile.composer(rows)
        if found != "dialog" and self.source.agent_state is AgentState.BUSY:
            return "busy"
        if found == "unknown" and self.profile.input is not None:
            # Another view stands in the place of the input line, or nothing is drawn yet.
            return "busy" if self.source.agent_state is AgentState.STARTING else "dialog"
        return found

    def accepted(self, marker: str) -> bool:
        return self.source.seen(marker) or self.channel.waits(marker)

    def state(self) -> dict[str, Any]:
        return {path: follower.state() for path, follower in self._followers.items()}

    async def read(self, feed: SourceFeed) -> bool:
        self._look()
        return await self._read(feed)

    async def _read(self, feed: SourceFeed) -> bool:
        found = False
        for path, follower in list(self._followers.items()):
            found |= await follower.read(path, feed)
        return found

    def _search(self, feed: SourceFeed) -> None:
        """Look for session files now and then, and give up when there is none to be found."""
        now = self._clock()
        again = LOOK_LATER if self._followers else LOOK_AGAIN
        if not self._readable:
            return
        if not self.source.named and self._searched is not None and now - self._searched < again:
            return
        self._searched = now
        self._look()
        since = self.source.runs_since
        if not self._followers and since is not None and now - since > SHOW_ITSELF:
            feed.give_up(
                "neither hooks nor a session file of this Codex can be found:"
                " it is heard by its screen"
            )

    def _look(self) -> None:
        """Follow what the process holds open, and what a hook has named."""
        if not self._readable:
            return
        found = open_files(self._pid)
        self.channel.found(found.queue)
        for path in found.rollouts:
            self.source.found(path)
            self._follow(path)
        named, self.source.named = self.source.named, None
        if named and is_conversation(named):
            self.source.in_front(named)
            self._follow(named)
        while len(self._followers) > FOLLOWED_MAX:
            front = self.source.saved.path
            closed = [path for path in self._followers if path not in (*found.rollouts, front)]
            self._followers.pop(closed[0] if closed else next(iter(self._followers)))

    def _follow(self, path: str) -> FileFollower:
        return self._followers.setdefault(path, FileFollower(self._clock))
