"""Bases of what each agent brings to its session: adapter, message channel, reader of a file.

The session talks to an :class:`AgentAdapter`. Its source (relay.agents.structured_source) makes
events of what the agent writes and shows; its :class:`MessageChannel`, where it has one, takes
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from relay.agents.context_door import InjectionProof
from relay.agents.profile import ComposerState, Profile
from relay.agents.structured_source import StructuredSource
from relay.core.errors import RelayError
from relay.core.source_events import SourceEvent, Terminal


class ChannelClosed(RelayError):
    """The agent's message channel certainly did not take the message."""

    code = "channel_closed"


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why nothing may be handed to the agent now."""

    reason: str
    #: Look again after this many seconds at the latest; None when only an event (a key, output, a
    #: state change) can end the wait.
    again: float | None = None


@dataclass(frozen=True, slots=True)
class TypingRules:
    """Rules for typing into one kind of program; by default for one that is not known."""

    #: Why nothing is typed while the kernel edits lines; empty where lines are typed then.
    cooked: str = ""
    #: The key that submits a paste, by the screen's rows.
    enter: Callable[[list[str]], bytes] = lambda rows: b"\r"
    #: Writes a body so that the program leaves its words alone.
    spell: Callable[[str], str] = lambda body: body
    #: ``line``: each message is one typed line; ``paste``: a paste. Else as the terminal shows.
    takes: str = ""
    #: The person has said so: neither a prompt nor an echo need prove it.
    vouched: bool = False
    #: The key behind which a typed line's backslash is text, where that is a key of its own.
    literal: bytes = b""
    #: It was given relay's primer at its start, which says once what each message need not.
    primed: bool = False
    #: Its input line surely shows a paste.
    shows_paste: bool = False
    #: In its lists a digit chooses at once.
    digits: bool = False
    #: Why nothing is ever typed.
    refusal: str = ""


class SourceFeed(Protocol):
    """The session's sources, as an adapter sees them: here it hands over what it has read."""

    def reported(self, events: list[SourceEvent]) -> None:
        """Hand over what the source has made of records."""

    def read(self) -> None:
        """Say that all that there is now was handed over."""

    def give_up(self, reason: str) -> None:
        """Say that nothing can be read of the agent: the screen stands in."""

    def note(self, reason: str) -> None:
        """Leave a remark for ``relay status``."""

    def visible(self) -> list[str]:
        """The screen's rows."""

    @property
    def pastes(self) -> bool:
        """Whether the program takes pastes now."""


class MessageChannel(Protocol):
    """A message interface of the agent's own: words go in without being typed."""

    @property
    def available(self) -> bool:
        """Whether it can be used now."""

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over, which holds ``marker``.

        Raises RelayError (ChannelClosed) when it was certainly not taken.
        """


@dataclass(frozen=True, slots=True)
class AgentStart:
    """The facts that an adapter is built from."""

    #: When the agent was started, in milliseconds since the epoch.
    started_ms: int
    #: The agent's process.
    pid: int
    cwd: str
    #: The run's own folder.
    folder: str
    #: ``data`` of the launch plan.
    launch: dict[str, Any]
    env: dict[str, str]
    #: What the session before this one left, empty at first: ``structured`` is the source's state,
    #: ``native`` the adapter's.
    checkpoint: dict[str, Any]
    #: A monotonic clock, in seconds.
    clock: Callable[[], float]
    #: The agent's own side of its terminal.
    terminal: Terminal | None = None
    #: How the agent's screen is read.
    profile: Profile = field(default_factory=Profile)


class AgentAdapter:
    """One agent's own interfaces, as far as it has them, with the I/O that they need."""

    source: StructuredSource
    #: The agent's own message interface; None for an agent that is typed into.
    channel: MessageChannel | None = None
    #: The model reads around what ``channel`` brings that it is not from its user, so the
    #: person's own words are typed.
    frames_peers = False
    #: Typing comes first, ``channel`` is for when the input line is not free.
    typed_first = False
    #: What ``channel`` gets while a turn runs goes into that turn.
    steers = False
    #: Its own interface can stop the turn that runs (``stop_turn``).
    stops = False
    #: How it is known what became of a message that went with the answer to a hook; None where
    #: nothing can be given so.
    injection: InjectionProof | None = None
    #: See TypingRules.
    cooked = ""
    shows_paste = False

    def __init__(self, start: AgentStart) -> None:
        self.clock = start.clock
        self.profile = start.profile
        #: Is set when the agent may have written something.
        self.wake = asyncio.Event()

    @property
    def patience(self) -> float:
        """Seconds from its start during which ``channel`` is waited for instead of typing."""
        return 0.0

    def composer(self, rows: list[str]) -> ComposerState:
        """Tell by the screen's rows how the input line is."""
        return self.profile.composer(rows)

    def enter(self, rows: list[str]) -> bytes:
        """The key that submits, see TypingRules."""
        return b"\r"

    def spell(self, body: str) -> str:
        """Write a message so that the agent leaves its words alone, see TypingRules."""
        return body

    def typing_rules(self) -> TypingRules:
        """Return the rules for typing into this agent."""
        return TypingRules(
            cooked=self.cooked, enter=self.enter, spell=self.spell, shows_paste=self.shows_paste
        )

    def hold(self, now: float) -> Blocked | None:
        """Why nothing should go through ``channel`` now, though it could."""
        return None

    async def stop_turn(self) -> None:
        """Have the turn stopped that runs. Raises RelayError where that failed."""

    def accepted(self, marker: str) -> bool:
        """Whether a text that holds ``marker`` was taken, be it that it still waits."""
        return self.source.accepted(marker)

    def seen(self, marker: str) -> bool:
        """Whether a text that holds ``marker`` has demonstrably reached the model."""
        return self.source.seen(marker)

    def state(self) -> dict[str, Any]:
        """Return what a next session needs beside the source's own state: JSON-able."""
        return {}

    def entered(self, now: float) -> None:
        """The person pressed Enter."""

    async def watch(self, feed: SourceFeed) -> None:
        """Follow what the agent writes (files, streams) until cancelled."""

        async def step() -> bool:
            self._search(feed)
            return await self._read(feed)

        await poll(step, self.source.poll_interval, self.wake, feed)

    async def read(self, feed: SourceFeed) -> bool:
        """Read what there is now beyond the last look, also after the agent's end."""
        return await self._read(feed)

    async def close(self) -> None:
        """Hang up."""

    def _search(self, feed: SourceFeed) -> None:
        """Find out, before each look, where the agent writes; give up where it does not."""

    async def _read(self, feed: SourceFeed) -> bool:
        """Read what is new; whether there was anything."""
        return False


async def poll(
    step: Callable[[], Awaitable[bool]],
    interval: Callable[[], float],
    wake: asyncio.Event,
    feed: SourceFeed,
) -> None:
    """Repeat ``step`` until cancelled: at once after one that found something, else when woken."""
    while True:
        if await step():
            feed.read()
            continue
        wake.clear()
        # Not wait_for: before Python 3.12 it loses a cancellation that comes with the wake-up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(interval()):
                await wake.wait()


#: Bytes that one poll reads at most, and that one line may have; a longer line is passed over.
READ_MAX = 4 * 1024 * 1024
LINE_MAX = 16 * 1024 * 1024
#: Of a file that is there already, only the end can be of this run.
LOOK_BACK = 1024 * 1024


class FileTail:
    """Reads a file of lines as it grows, also when it is replaced or truncated."""

    def __init__(self) -> None:
        self.path: str | None = None
        self._inode = 0
        self._offset = 0
        self._skipping = False  # inside a line that is too long

    def follow(self, path: str) -> None:
        """Read this file from now on; where it exists already, only from near its end."""
        if path == self.path:
            return
        self.path, self._offset, self._skipping = path, 0, False
        try:
            facts = os.stat(path)
        except OSError:
            self._inode = 0
            return
        self._inode = facts.st_ino
        if facts.st_size > LOOK_BACK:
            self._offset, self._skipping = facts.st_size - LOOK_BACK, True

    def poll(self) -> list[str]:
        """Return the lines that were completed since the last call, at most READ_MAX bytes."""
        if self.path is None:
            return []
        try:
            with open(self.path, "rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:
                    self._inode, self._offset, self._skipping = facts.st_ino, 0, False
                if facts.st_size == self._offset:
                    return []
                file.seek(self._offset)
                data = file.read(READ_MAX)
                if b"\n" not in data and len(data) == READ_MAX:
                    data += file.read(LINE_MAX - READ_MAX)
        except OSError:
            return []
        return self._lines(data)

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        return {"path": self.path, "inode": self._inode, "offset": self._offset}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.path, self._inode = state["path"], state["inode"]
        self._offset, self._skipping = state["offset"], False

    def _lines(self, data: bytes) -> list[str]:
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) >= LINE_MAX:
                self._offset += len(data)
                self._skipping = True
            return []
        self._offset += end
        lines = data[: end - 1].split(b"\n")
        if self._skipping:
            self._skipping = False
            del lines[0]
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]


class FileFollower:
    """Hands each line of one growing file to the source once, also over a restart."""

    def __init__(self, source: StructuredSource, clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._tail = FileTail()
        # Where the tail was when all that it had read was handed over: while a thread reads on,
        # what is read but not yet handed over must not count.
        self._place = self._tail.state()
        self._reading = asyncio.Lock()

    async def read(self, path: str | None, feed: SourceFeed) -> bool:
        """Hand over what the file ``path`` holds beyond the last look; whether there was any."""
        found = False
        async with self._reading:
            if path:
                self._tail.follow(path)
                self._place = self._tail.state()
            while lines := await asyncio.to_thread(self._tail.poll):
                found = True
                for line in lines:
                    try:
                        feed.reported(self._source.transcript(line, self._clock()))
                    except Exception as error:
                        # Its form is not ours to promise: one odd line must not cost the others.
                        feed.note(f"a line of the transcript: {type(error).__name__}: {error}")
                self._place = self._tail.state()
        return found

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        return dict(self._place)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._tail.restore(state)
        self._place = self._tail.state()
