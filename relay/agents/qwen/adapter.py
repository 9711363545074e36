"""Qwen Code's own interfaces: its event files, its record of the chat, its way to spell."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, Blocked, SourceFeed, poll
from relay.agents.follow_file import FileFollower
from relay.agents.injection_proof import TurnProof
from relay.agents.installed import read_text
from relay.agents.qwen.channel import QwenChannel
from relay.agents.qwen.launch import EVENTS, INPUT, home
from relay.agents.qwen.source import LOOK, POLL_BUSY, QwenSource
from relay.core.message import AgentState

#: Seconds after the first Enter within which the event file must be there; else the screen is read.
SHOW_ITSELF = 20.0
#: Seconds between two looks at the record of the chat: when it has to say how a message ended, in
#: a turn, and at rest.
CHAT_URGENT, CHAT_BUSY, CHAT_IDLE = 0.1, 0.3, 2.0
#: Messages that were given with the answers to hooks are noted in this file of the run's folder.
GIVEN = "given.json"
#: Characters of a message that is given with a tool's output: Qwen Code cuts off both together
#: behind 25,000.
CONTEXT_ROOM = 8000
#: Looks for the record of the chat of which one is real, while it is not there: recording can be
#: turned off.
SELDOM = 10
#: Bytes: a part of an event file smaller than this is not worth forgetting.
PART = 4 * 1024 * 1024

_SESSION_ID = re.compile(r"[0-9A-Za-z-]{8,64}")
_NUMBERED = re.compile(r"\.(\d+)$")
_KEEP_SIZE, _PUNCH_HOLE, _BLOCK = 1, 2, 4096
_BEHIND_SPACE = re.compile(r"(?<=\s)@")
#: What Qwen Code leaves exactly as it is, as long as nothing has that name.
_HARMLESS = re.compile(r"(?<= )@([\w-]+)(?=[,;!?()\[\]{}\s]|$)")
#: Between two of them white space would be lost.
_CLOSE = re.compile(r"@[\w-]+(?! @)\s+@")
#: An envelope's last words, in which a space more does no harm.
_ANSWER = re.compile(r'a line "@relay:[^"\n]*"')


class QwenAdapter(AgentAdapter):
    """Reads one Qwen Code's event files, record of the chat and screen."""

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
        self.source = QwenSource(
            start.started_ms / 1000, events=self._events, profile=start.profile
        )
        source = self.source
        self._files = EventFiles(os.path.join(start.folder, EVENTS))
        self._chat = ChatRecord(start.env, lambda: source.conversation)
        self._follower = FileFollower(start.clock)
        self._chats = FileFollower(start.clock)
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"]["events"])
            self._files.restore(checkpoint["native"]["events"]["path"])
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
            lambda: source.answers,
            source.went_on,
            self._own,
        )
        self._feed: SourceFeed | None = None
        self._entered: float | None = None

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
        self._files.kept(events["path"], events["offset"])
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
        return await self._follower.read(self._files.path(), feed)

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
        if self._files.lost:
            feed.give_up("Qwen Code's event file is gone: it is heard by its screen")
        elif (
            not self.source.conversation
            and self._entered is not None
            and now - self._entered > SHOW_ITSELF
        ):
            feed.give_up("Qwen Code writes no events: it is heard by its screen")


class EventFiles:
    """The event files of one run that follow each other at ``base``.

    Qwen Code writes its events from the beginning of the file, also when it starts itself again
    (after it was told to trust a folder, for one). So a file that it has opened is given a number,
    and the next process finds none and makes another. What has been read is no longer kept on the
    disk, where the system can forget a part of a file.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._number = 0
        self._forgotten = 0
        self._read = 0  # up to here a session that follows this one has no need of it

    def path(self) -> str | None:
        """Tell, before each read, which file is next: another only after this one was read."""
        if os.path.exists(self._name(self._number + 1)):
            self._number += 1
            self._forgotten = self._read = 0
        with contextlib.suppress(OSError):
            os.rename(self._base, self._name(self._last() + 1))
        if not self._number and os.path.exists(self._name(1)):
            self._number = 1
        return self._name(self._number) if self._number else None

    @property
    def lost(self) -> bool:
        """Whether the file that was being read is gone."""
        return bool(self._number) and not os.path.exists(self._name(self._number))

    def restore(self, path: str | None) -> None:
        """Go on with the file that an earlier session read last."""
        found = _NUMBERED.search(path or "")
        self._number = int(found[1]) if found else 0

    def kept(self, path: str | None, offset: int) -> None:
        """A checkpoint says that ``path`` was read up to ``offset``; the one before it is safe."""
        if path != self._name(self._number):
            return  # it is still read, and the next one is known already
        done, self._read = self._read, offset
        if done - self._forgotten >= PART and self._number:
            self._forgotten = done
            forget(self._name(self._number), done)

    def _last(self) -> int:
        number = self._number
        while os.path.exists(self._name(number + 1)):
            number += 1
        return number

    def _name(self, number: int) -> str:
        return f"{self._base}.{number}"


def forget(path: str, end: int) -> None:
    """Give the first ``end`` bytes of a file back to the disk, where the system can do that."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            length = ctypes.c_int64(end // _BLOCK * _BLOCK)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), length)
        finally:
            os.close(fd)


class ChatRecord:
    """The file in which Qwen Code records the chat of the session that ``session()`` names.

    It is read for what the event file leaves out: messages that reached the model within a turn,
    and what each answer of the API held.
    """

    def __init__(self, env: dict[str, str], session: Callable[[], str]) -> None:
        folder = os.path.expanduser(env.get("QWEN_RUNTIME_DIR") or home(env))
        self._projects = os.path.join(folder, "projects")
        self._session = session
        self._found: tuple[str, str] = "", ""
        self._asked = 0

    def path(self) -> str | None:
        """The record's file, or None."""
        session = self._session()
        if not _SESSION_ID.fullmatch(session):
            return None
        if self._found[0] != session:
            self._asked += 1
            if self._asked % SELDOM == 1:
                self._found = session, self._search(session)
        if self._found[1]:
            return self._found[1]
        self._found = "", ""
        return None

    def _search(self, session: str) -> str:
        try:
            projects = os.listdir(self._projects)
        except OSError:
            return ""
        for project in projects:
            path = os.path.join(self._projects, project, "chats", f"{session}.jsonl")
            if os.path.exists(path):
                return path
        return ""


def spelled(text: str, cwd: str, home: str) -> str:
    """Write ``text`` so that Qwen Code, at work in ``cwd``, finds nothing to add in it.

    Once an ``@`` stands behind white space anywhere in a message, Qwen Code takes every ``@word``
    in it for the name of a file, a server or a session: it adds what it finds under that name, and
    spaces of its own. A backslash before the ``@`` is its way to say that nothing is meant.
    ``home`` is where it keeps the person's settings.
    """
    if not _BEHIND_SPACE.search(text):
        return text
    body = _ANSWER.sub("", text)
    names = {found[1] for found in _HARMLESS.finditer(body)}
    harmless = len(_HARMLESS.findall(body)) == body.count("@") and not _CLOSE.search(body)
    if harmless and not _known(names, cwd) and not _server_relay(cwd, home):
        return text
    return _BEHIND_SPACE.sub(r"\\@", text)


def _known(names: set[str], cwd: str) -> bool:
    return any(os.path.lexists(os.path.join(cwd, name)) for name in names)


def _server_relay(cwd: str, home: str) -> bool:
    """Whether a server may have the name that an envelope's last words begin with."""
    places = (cwd, ".mcp.json"), (cwd, ".qwen", "settings.json"), (home, "settings.json")
    return any('"relay"' in read_text(os.path.join(*place)) for place in places)
