"""What a session needs beside the usual when its agent is Qwen Code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.agents.base import Blocked, NativeStart
from relay.agents.follow_file import Follower
from relay.agents.injection_proof import TurnProof
from relay.agents.qwen.channel import QwenDoor
from relay.agents.qwen.chat import ChatRecord, home
from relay.agents.qwen.journal import Journal
from relay.agents.qwen.launch import EVENTS, INPUT
from relay.agents.qwen.screen import composer_state
from relay.agents.qwen.source import LOOK, POLL_BUSY, QwenSource
from relay.agents.qwen.words import spelled
from relay.core.message import AgentState

if TYPE_CHECKING:
    from relay.agents.base import SourceFeed

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


def make(start: NativeStart) -> Qwen:
    """See relay.agents.base."""
    return Qwen(start)


class Qwen:
    """The structured source of one Qwen Code, its event file and its input file."""

    #: The input file is read from a moment after the start.
    patience = 30.0

    def __init__(self, start: NativeStart) -> None:
        launch, checkpoint = start.launch, start.checkpoint
        self._cwd, self._home = start.cwd, home(start.env)
        self._events = bool(launch.get("events"))
        self.source = QwenSource(start.started_ms / 1000, events=self._events)
        source = self.source
        self._journal = Journal(os.path.join(start.folder, EVENTS))
        self._chat = ChatRecord(start.env, lambda: source.session)
        self._follower = Follower(
            self._journal.path, source.poll_interval, start.clock, self._search
        )
        self._chats = Follower(self._chat.path, self._chat_interval, start.clock)
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"]["events"])
            self._journal.restore(checkpoint["native"]["events"]["path"])
            self._chats.restore(checkpoint["native"]["chat"])
        self.door: QwenDoor | None = None
        if self._events and launch.get("input"):
            path = os.path.join(start.folder, INPUT)
            self.door = QwenDoor(path, lambda: source.telling, source.seen, start.clock, self.spell)
        #: What its hooks add shows nowhere; but that its model was asked again does.
        self.records = TurnProof(
            os.path.join(start.folder, GIVEN),
            lambda: CONTEXT_ROOM if source.trusted else 0,
            lambda: source.asked,
            source.went_on,
            self._own,
        )
        self._ears: SourceFeed | None = None
        self._clock = start.clock
        self._entered: float | None = None

    @property
    def heard(self) -> Delivered:
        """See Native."""
        return Delivered(self.source, self.door, self.records)

    def composer(self, rows: list[str]) -> str:
        """See Native."""
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
        on_its_way = self.door is not None and self.door.on_its_way(now)
        return Blocked("another message is on its way", 0.1) if on_its_way else None

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
        self, ears: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """See Native."""
        self._ears = ears
        if self._events:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follower.watch(ears, wake, changed))
                group.create_task(self._chats.watch(ears, asyncio.Event(), changed))
                group.create_task(self._look(ears, changed))

    async def read(self, ears: SourceFeed) -> bool:
        """See Native."""
        if not self._events:
            return False
        heard = await self._follower.read(ears)
        return await self._chats.read(ears) or heard

    async def close(self) -> None:
        """See Native: nothing is held open."""

    async def _look(self, ears: SourceFeed, changed: Callable[[], None]) -> None:
        """Ask the screen what the event file does not tell."""
        while True:
            judges = self.source.in_doubt or self.source.in_turn
            if judges and await self.read(ears):  # what is written decides first
                changed()
            events = self.source.glance(ears.visible(), self._clock())
            if events:
                ears.reported(events)
                changed()
            await asyncio.sleep(POLL_BUSY if self.source.in_doubt else LOOK)

    async def _own(self, call: str) -> bool:
        if not self.source.called(call) and self._ears is not None:
            await self._follower.read(self._ears)
        return self.source.called(call)

    def _chat_interval(self) -> float:
        if self.source.in_doubt:
            return CHAT_URGENT
        return CHAT_BUSY if self.source.in_turn else CHAT_IDLE

    def _search(self, ears: SourceFeed, now: float) -> None:
        if self._journal.lost:
            ears.give_up("Qwen Code's event file is gone: it is heard by its screen")
        elif (
            not self.source.session
            and self._entered is not None
            and now - self._entered > SHOW_ITSELF
        ):
            ears.give_up("Qwen Code writes no events: it is heard by its screen")


class Delivered:
    """What is known of a message: what stands in the input file has been taken."""

    def __init__(self, source: QwenSource, door: QwenDoor | None, given: TurnProof) -> None:
        self._given = given
        self._source = source
        self._door = door

    def heard(self, marker: str) -> bool:
        """See relay.agents.base.Source."""
        handed_over = self._door is not None and self._door.handed_over(marker)
        return handed_over or self.seen(marker)

    def seen(self, marker: str) -> bool:
        """See relay.agents.base.Source."""
        return self._source.seen(marker) or self._given.landed(marker)
