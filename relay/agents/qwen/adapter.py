"""What a session needs beside the usual when its agent is Qwen Code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, Blocked, SourceFeed, poll
from relay.agents.follow_file import FileFollower
from relay.agents.injection_proof import TurnProof
from relay.agents.qwen.channel import QwenChannel
from relay.agents.qwen.chat import ChatRecord, home
from relay.agents.qwen.journal import Journal
from relay.agents.qwen.launch import EVENTS, INPUT
from relay.agents.qwen.screen import composer_state
from relay.agents.qwen.source import LOOK, POLL_BUSY, QwenSource
from relay.agents.qwen.words import spelled
from relay.core.message import AgentState

#: After the first Enter the event file must be there within this many seconds, or the screen is
#: believed instead.
SHOW_ITSELF = 20.0
#: How often the chat's record is looked at, in seconds: when it has to say how a message ended, in
#: a turn, and while nothing happens.
CHAT_URGENT, CHAT_BUSY, CHAT_IDLE = 0.1, 0.3, 2.0

#: Messages that were given with the answers to hooks are noted in this file of the run's folder.
GIVEN = "given.json"
#: Qwen Code cuts off a tool's output that is longer than 25,000 characters with what is added.
CONTEXT_ROOM = 8000


class QwenAdapter(AgentAdapter):
    """The structured source of one Qwen Code, its event file and its input file."""

    source: QwenSource
    channel: QwenChannel | None
    injection: TurnProof
    #: The input file is read from a moment after the start.
    patience = 30.0

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        launch, checkpoint = start.launch, start.checkpoint
        self._cwd, self._home = start.cwd, home(start.env)
        self._events = bool(launch.get("events"))
        self.source = QwenSource(start.started_ms / 1000, events=self._events)
        source = self.source
        self._journal = Journal(os.path.join(start.folder, EVENTS))
        self._chat = ChatRecord(start.env, lambda: source.session)
        self._follower = FileFollower(start.clock)
        self._chats = FileFollower(start.clock)
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"]["events"])
            self._journal.restore(checkpoint["native"]["events"]["path"])
            self._chats.restore(checkpoint["native"]["chat"])
        self.channel = None
        if self._events and launch.get("input"):
            path = os.path.join(start.folder, INPUT)
            self.channel = QwenChannel(
                path, lambda: source.telling, source.seen, start.clock, self.spell
            )
        #: What its hooks add shows nowhere; but that its model was asked again does.
        self.injection = TurnProof(
            os.path.join(start.folder, GIVEN),
            lambda: CONTEXT_ROOM if source.trusted else 0,
            lambda: source.asked,
            source.went_on,
            self._own,
        )
        self._feed: SourceFeed | None = None
        self._entered: float | None = None

    def composer(self, rows: list[str]) -> str:
        return composer_state(rows)

    def spell(self, text: str) -> str:
        """See TypingRules in relay.agents.base."""
        return spelled(text, self._cwd, self._home)

    def hold(self, now: float) -> Blocked | None:
        """Why nothing should be handed over now, though it could be.

        Qwen Code queues what comes while it is busy, but at Esc it moves its queue into the input
        line, where the person may delete it.
        """
        if self.source.agent_state is AgentState.BLOCKED:
            return Blocked("a dialog waits for the person", 1.0)
        if self.source.in_turn:
            return Blocked("the agent is busy", 1.0)
        on_its_way = self.channel is not None and self.channel.on_its_way(now)
        return Blocked("another message is on its way", 0.1) if on_its_way else None

    def accepted(self, marker: str) -> bool:
        handed_over = self.channel is not None and self.channel.handed_over(marker)
        return handed_over or self.seen(marker)

    def seen(self, marker: str) -> bool:
        return self.source.seen(marker) or self.injection.landed(marker)

    def state(self) -> dict[str, Any]:
        """The files' places for the checkpoint; the source has a state of its own."""
        events = self._follower.state()
        self._journal.kept(events["offset"])
        return {"events": events, "chat": self._chats.state()}

    def entered(self, now: float) -> None:
        """The person pressed Enter."""
        if self._entered is None:
            self._entered = now

    async def watch(
        self, feed: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        self._feed = feed
        if self._events:
            async with asyncio.TaskGroup() as group:
                group.create_task(super().watch(feed, wake, changed))
                group.create_task(
                    poll(
                        lambda: self._chats.read(self._chat.path(), feed),
                        self._chat_interval,
                        asyncio.Event(),
                        changed,
                    )
                )
                group.create_task(self._look(feed, changed))

    async def read(self, feed: SourceFeed) -> bool:
        if not self._events:
            return False
        found = await self._read(feed)
        return await self._chats.read(self._chat.path(), feed) or found

    async def _read(self, feed: SourceFeed) -> bool:
        return await self._follower.read(self._journal.path(), feed)

    async def _look(self, feed: SourceFeed, changed: Callable[[], None]) -> None:
        """Ask the screen what the event file does not tell."""
        while True:
            judges = self.source.in_doubt or self.source.in_turn
            if judges and await self.read(feed):  # what is written decides first
                changed()
            events = self.source.glance(feed.visible(), self._clock())
            if events:
                feed.reported(events)
                changed()
            await asyncio.sleep(POLL_BUSY if self.source.in_doubt else LOOK)

    async def _own(self, call: str) -> bool:
        if not self.source.called(call) and self._feed is not None:
            await self._read(self._feed)
        return self.source.called(call)

    def _chat_interval(self) -> float:
        if self.source.in_doubt:
            return CHAT_URGENT
        return CHAT_BUSY if self.source.in_turn else CHAT_IDLE

    def _search(self, feed: SourceFeed) -> None:
        now = self._clock()
        if self._journal.lost:
            feed.give_up("Qwen Code's event file is gone: it is heard by its screen")
        elif (
            not self.source.session
            and self._entered is not None
            and now - self._entered > SHOW_ITSELF
        ):
            feed.give_up("Qwen Code writes no events: it is heard by its screen")
