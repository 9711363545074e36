"""opencode's own interfaces: the events of its server, and what they do not tell again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, SourceFeed
from relay.agents.installed import parse_version
from relay.agents.opencode.channel import (
    OpencodeChannel,
    OpencodeClient,
    ServerError,
    client_from,
)
from relay.agents.opencode.launch import OLDEST
from relay.agents.opencode.server_records import moment, table, word
from relay.agents.opencode.source import SNAPSHOT, OpencodeSource
from relay.agents.profile import Profile
from relay.core.http import EventStreamParser, ResponseStream
from relay.core.message import AgentState

#: Seconds from opencode's start until its server answers (30 were seen on a busy machine), and
#: until it answers again after that.
SHOW_ITSELF = 120.0
COME_BACK = 20.0
#: Seconds between tries.
TRY_AGAIN = 0.1
#: Seconds between two requests for what is unknown, and of rest in a conversation before the
#: messages that lie in it are handed over again.
ASK_AGAIN = 2.0
AT_REST = 1.0
#: Seconds without an event after which the stream is taken as dead; a live one has one every 10.
SILENCE = 35.0
#: Seconds for the first event of a stream; opencode may still be getting ready.
FIRST_EVENT = 5.0

#: Sessions that are asked for, and the last messages of each that is of this run.
SESSIONS = 100
MESSAGES = 100
#: Sessions whose messages are asked for.
ACTIVE_MAX = 8


class Unfit(Exception):
    """The server of this opencode is of no use; the message says why."""


class OpencodeAdapter(AgentAdapter):
    """The structured source of one opencode, the stream of its server, and its channel."""

    source: OpencodeSource
    channel: OpencodeChannel | None
    #: What its server gets while a turn runs the model has at its next step.
    steers = True
    stops = True

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        launch, checkpoint = start.launch, start.checkpoint
        self._continues = bool(launch.get("continues"))
        self._client = client_from(launch)
        self.source = OpencodeSource(start.started_ms, str(launch.get("session") or ""))
        if checkpoint.get("structured"):
            self.source.restore(checkpoint["structured"])
        self.channel = None
        if self._client is not None:
            self.channel = OpencodeChannel(self._client, self.source, self._agent_shown)
            self.channel.restore(checkpoint.get("native") or {})
        self._rows: Callable[[], list[str]] = list
        self._freeing = False
        self._lost_at: float | None = start.clock()
        self._asked = 0.0
        self._patience = SHOW_ITSELF
        self._over = asyncio.Event()  # the stream has ended, with all that was in it

    @property
    def patience(self) -> float:
        """Wait for the channel until the server is given up: only without one is anything typed."""
        waits = self.channel is not None and self.source.trusted and not self.source.connected
        return math.inf if waits else 0.0

    def state(self) -> dict[str, Any]:
        return self.channel.state() if self.channel else {}

    async def watch(
        self, feed: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        client = self._client
        if client is None:
            feed.give_up("opencode runs without a server of its own: it is heard by its screen")
            changed()
            return
        self._rows = feed.visible
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._try(client, feed, changed, tasks)
                    await asyncio.sleep(TRY_AGAIN)
        except* Unfit as unfit:
            feed.give_up(f"{unfit.exceptions[0]}: opencode is heard by its screen")
            changed()

    async def _try(
        self,
        client: OpencodeClient,
        feed: SourceFeed,
        changed: Callable[[], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._over.clear()
        try:
            await self._listen(client, feed, changed, tasks)
        except Unfit:
            raise
        except ServerError as error:
            self._lost(feed, error)
            changed()
        except Exception as error:
            # An answer of a form that nobody promised: the next try may go better.
            feed.note(f"what opencode's server says: {type(error).__name__}: {error}")
            self._lost(feed, ServerError("it is not understood"))
            changed()
        finally:
            self._over.set()

    async def read(self, feed: SourceFeed) -> bool:
        """Wait a moment after the agent's end: its last events may still be on their way."""
        if self._client is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._over.wait()
            except TimeoutError:
                return False
        return True

    async def _listen(
        self,
        client: OpencodeClient,
        feed: SourceFeed,
        changed: Callable[[], None],
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Take the server's events until their stream breaks off."""
        health = await client.request("GET", "/global/health")
        version = str(health.get("version")) if isinstance(health, dict) else ""
        if (parse_version(version) or (0, 0, 0)) < OLDEST:
            raise Unfit(f"opencode {version or 'of an unknown version'} is not known to relay")
        events = EventStreamParser()
        async with client.stream("/event") as answer:
            early = events.feed(await _piece(answer, FIRST_EVENT))
            await self._catch_up(client, feed)
            self._hear(feed, early)
            self._lost_at, self._patience = None, COME_BACK
            changed()
            while True:
                self._hear(feed, events.feed(await _piece(answer, SILENCE)))
                if self.source.missing and self._clock() - self._asked > ASK_AGAIN:
                    await self._catch_up(client, feed)
                if self.source.stranded() and not self._freeing:
                    self._freeing = True
                    tasks.create_task(self._free())
                changed()

    async def stop_turn(self) -> None:
        if self._client is not None and self.source.conversation:
            await self._client.request("POST", f"/session/{self.source.conversation}/abort")

    def _agent_shown(self) -> str:
        return agent_shown(self._rows(), self.profile)

    async def _free(self) -> None:
        """Hand over once more what lies in a conversation that has come to rest."""
        try:
            await asyncio.sleep(AT_REST)
            channel = self.channel
            if channel is None or self.source.agent_state is AgentState.LIMITED:
                return  # the next message takes it along
            for session, message, head in self.source.stranded():
                if channel.lies(head):
                    await channel.again(session, message)
        except ServerError:
            return
        finally:
            self._freeing = False

    async def _catch_up(self, client: OpencodeClient, feed: SourceFeed) -> None:
        """Ask for what the stream does not tell: how things stand, and what was missed."""
        self._asked = self._clock()
        found = await snapshot(client, self.source, continues=self._continues)
        found["properties"]["at"] = time.time() * 1000
        feed.hook(found, self._clock())

    def _hear(self, feed: SourceFeed, events: list[dict[str, Any]]) -> None:
        now = self._clock()
        for event in events:
            try:
                feed.hook(event, now)
            except Exception as error:
                # Its form is not ours to promise: one odd event must not cost the others.
                feed.note(f"an event of opencode's: {type(error).__name__}: {error}")

    def _lost(self, feed: SourceFeed, error: ServerError) -> None:
        """Note that the server does not answer; give up when that lasts."""
        self.source.interrupted()
        if error.status == 401:
            raise Unfit("opencode's server refuses relay's password")
        now = self._clock()
        if self._lost_at is None:
            self._lost_at = now
        if now - self._lost_at > self._patience and self.source.agent_state is not AgentState.GONE:
            feed.give_up(f"{error.message}: opencode is heard by its screen")


async def _piece(answer: ResponseStream, deadline: float) -> bytes:
    """Read the next piece of the stream. Raises ServerError when none comes."""
    try:
        async with asyncio.timeout(deadline):
            piece = await answer.read()
    except TimeoutError:
        raise ServerError("its events have stopped") from None
    if not piece:
        raise ServerError("its events have ended")
    return piece


async def snapshot(
    client: OpencodeClient, source: OpencodeSource, *, continues: bool
) -> dict[str, Any]:
    """Ask the server how things stand, as an event for ``OpencodeSource``. Raises ServerError.

    ``continues``: without a session of its own yet, opencode goes on with the newest.
    """
    sessions = await client.request("GET", f"/session?limit={SESSIONS}")
    sessions = [table(one) for one in sessions] if isinstance(sessions, list) else []
    missing = source.missing
    for name in missing:
        if all(one.get("id") != name for one in sessions):
            with contextlib.suppress(ServerError):  # it may have been deleted since
                sessions.append(table(await client.request("GET", f"/session/{name}")))
    status = table(await client.request("GET", "/session/status"))
    asks: list[Any] = []
    for path in ("/permission", "/question"):
        found = await client.request("GET", path)
        asks += found if isinstance(found, list) else []
    tops = [one for one in sessions if not word(one.get("parentID"))]
    tops.sort(key=lambda one: moment(one.get("time"), "updated") or 0.0, reverse=True)
    active = [
        word(one.get("id"))
        for one in tops
        if word(one.get("id")) in (source.conversation, *missing, *status)
        or (moment(one.get("time"), "updated") or 0.0) >= source.saved.started
    ]
    messages: list[Any] = []
    for name in active[:ACTIVE_MAX]:
        found = await client.request("GET", f"/session/{name}/message?limit={MESSAGES}")
        messages += found if isinstance(found, list) else []
    messages.sort(key=lambda one: word(table(table(one).get("info")).get("id")))
    newest = word(tops[0].get("id")) if tops and continues else ""
    properties = {
        "sessions": sessions,
        "status": status,
        "asks": asks,
        "messages": messages,
        "session": newest,
    }
    return {"type": SNAPSHOT, "properties": properties}


def agent_shown(rows: list[str], profile: Profile) -> str:
    """The agent that the input line names (``Build``, ``Plan``), empty where none is seen."""
    place = profile.input.find(rows) if profile.input else None
    if profile.input is None or place is None:
        return ""
    agent, dot, _ = profile.input.text(rows[place[1] - 1]).partition(" · ")
    return agent.strip() if dot else ""
