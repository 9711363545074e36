"""opencode for a session: its adapter, its server as message channel, its hook codec.

The adapter follows the events of the server, and asks for what the server does not repeat.

A message goes into the session that the person is in; where there is none yet, one is made and the
terminal is led to it. The server takes it at once, also while a turn runs: the model has it at its
next step. That it has it shows in the events (``OpencodeSource``). The hook codec reads and answers
relay's plugin in opencode (gate.js).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from relay.agents import hook_codec
from relay.agents.base import AgentAdapter, AgentStart, ChannelClosed, SourceFeed
from relay.agents.hook_codec import AgentHookCall, HookCodec, text_of, tool_fields
from relay.agents.installed import parse_version
from relay.agents.opencode.launch import OLDEST
from relay.agents.opencode.source import HEAD, SNAPSHOT, OpencodeSource, moment, word
from relay.agents.profile import Profile
from relay.agents.structured_source import table
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.http import EventStreamParser, RequestFailed, ResponseStream, request, stream
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

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

    async def watch(self, feed: SourceFeed) -> None:
        client = self._client
        if client is None:
            feed.give_up(
                "opencode runs without a server of its own: relay reads its screen instead"
            )
            return
        self._rows = feed.visible
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._try(client, feed, tasks)
                    await asyncio.sleep(TRY_AGAIN)
        except* Unfit as unfit:
            feed.give_up(f"{unfit.exceptions[0]}: relay reads its screen instead")

    async def _try(
        self, client: OpencodeClient, feed: SourceFeed, tasks: asyncio.TaskGroup
    ) -> None:
        self._over.clear()
        try:
            await self._listen(client, feed, tasks)
        except Unfit:
            raise
        except ServerError as error:
            self._lost(feed, error)
            feed.read()
        except Exception as error:
            # An answer of a form that nobody promised: the next try may go better.
            feed.note(f"what opencode's server says: {type(error).__name__}: {error}")
            self._lost(feed, ServerError("it is not understood"))
            feed.read()
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
        self, client: OpencodeClient, feed: SourceFeed, tasks: asyncio.TaskGroup
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
            feed.read()
            while True:
                self._hear(feed, events.feed(await _piece(answer, SILENCE)))
                if self.source.missing and self.clock() - self._asked > ASK_AGAIN:
                    await self._catch_up(client, feed)
                if self.source.stranded() and not self._freeing:
                    self._freeing = True
                    tasks.create_task(self._free())
                feed.read()

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
        self._asked = self.clock()
        found = await snapshot(client, self.source, continues=self._continues)
        found["properties"]["at"] = time.time() * 1000
        feed.reported(self.source.hook(found, self.clock()))

    def _hear(self, feed: SourceFeed, events: list[dict[str, Any]]) -> None:
        now = self.clock()
        for event in events:
            try:
                feed.reported(self.source.hook(event, now))
            except Exception as error:
                # Its form is not ours to promise: one odd event must not cost the others.
                feed.note(f"an event of opencode's: {type(error).__name__}: {error}")

    def _lost(self, feed: SourceFeed, error: ServerError) -> None:
        """Note that the server does not answer; give up when that lasts."""
        self.source.interrupted()
        if error.status == 401:
            raise Unfit("opencode's server refuses relay's password")
        now = self.clock()
        if self._lost_at is None:
            self._lost_at = now
        if now - self._lost_at > self._patience and self.source.agent_state is not AgentState.GONE:
            feed.give_up(f"{error.message}: relay reads its screen instead")


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


#: The last messages of a session among which one that may have arrived is searched.
LOOK_BACK = 30
#: Messages that are remembered, and times that each is handed over once more.
TRIED_MAX, AGAIN_MAX = 64, 3
#: Tries to hand over what was taken back, and seconds between them.
INSIST, INSIST_PAUSE = 5, 1.0
#: Seconds for which a message that may have arrived is looked for.
ARRIVAL = 3.0
#: Seconds that the server may take to take a message; on a busy machine it was seen to take 5.
PROMPT_DEADLINE = 60.0
#: Seconds for the answer to any other request, and bytes of it.
ANSWER_DEADLINE = 10.0
ANSWER_MAX = 64 * 1024 * 1024


class ServerError(RelayError):
    """opencode's server did not do what it was asked."""

    code = "opencode_server"

    def __init__(self, message: str, *, sent: bool = True, status: int = 0) -> None:
        super().__init__(f"opencode's server: {message}")
        self.sent = sent  # it may have understood the request
        self.status = status  # of its answer, 0 without one


class OpencodeClient:
    """Requests to one opencode's server on this machine."""

    def __init__(
        self, host: str, port: int, username: str = "opencode", password: str = ""
    ) -> None:
        """Without a password the server is asked without authentication."""
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._headers: list[tuple[str, str]] = []
        if password:
            pair = base64.b64encode(f"{username}:{password}".encode()).decode()
            self._headers = [("authorization", f"Basic {pair}")]

    async def request(
        self, method: str, path: str, body: Any = None, *, deadline: float = ANSWER_DEADLINE
    ) -> Any:
        """The answer's JSON (None where there is no body). Raises ServerError."""
        try:
            answer = await request(
                method,
                self.address + path,
                [*self._headers, ("accept", "application/json")],
                None if body is None else json.dumps(body).encode(),
                timeout=deadline,
                body_max=ANSWER_MAX,
            )
        except RequestFailed as failed:
            raise ServerError(failed.message, sent=failed.sent) from failed
        if not 200 <= answer.status < 300:
            said = answer.body[:200].decode("utf-8", "replace")
            raise ServerError(f"{answer.status} {said}", sent=False, status=answer.status)
        try:
            return json.loads(answer.body) if answer.body.strip() else None
        except ValueError as error:
            raise ServerError("an answer that is not JSON") from error

    @asynccontextmanager
    async def stream(self, path: str) -> AsyncIterator[ResponseStream]:
        """An answer that goes on. Raises ServerError. How long to wait for a piece of it is the
        caller's to say."""
        headers = [*self._headers, ("accept", "text/event-stream")]
        try:
            async with stream(
                "GET", self.address + path, headers, timeout=ANSWER_DEADLINE
            ) as answer:
                if answer.status != 200:
                    raise ServerError(str(answer.status), sent=False, status=answer.status)
                yield answer
        except RequestFailed as failed:
            raise ServerError(failed.message) from failed


def client_from(data: dict[str, Any]) -> OpencodeClient | None:
    """A client of the server that the launch plan has noted; None where there is none."""
    port = data.get("port")
    if not isinstance(port, int) or not port:
        return None
    return OpencodeClient(
        str(data.get("host") or "127.0.0.1"),
        port,
        str(data.get("username") or "opencode"),
        str(data.get("password") or ""),
    )


class OpencodeChannel:
    """Hands messages to one opencode as prompts."""

    def __init__(
        self, client: OpencodeClient, source: OpencodeSource, shown: Callable[[], str]
    ) -> None:
        """``shown()``: the agent that the input line names, "" where it is not seen. It answers
        what comes in, so that a message has no more rights than the person's own prompts."""
        self._client = client
        self._source = source
        self._shown = shown
        self._agents: dict[str, str] = {}  # names as they are shown -> names
        self._uncertain: dict[str, str] = {}  # markers -> sessions they may have got to
        #: Markers of what went over -> how often it was handed over once more.
        self._tries: BoundedDict[str, int] = BoundedDict(TRIED_MAX)

    @property
    def available(self) -> bool:
        """Whether a message can be handed over. Not while a dialog waits: should the person refuse,
        opencode comes to rest and lets what is queued lie."""
        return self._source.connected and self._source.agent_state is not AgentState.BLOCKED

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises ChannelClosed when it was certainly not taken."""
        if self._source.accepted(marker):
            return
        session = self._source.conversation
        if marker in self._uncertain:
            # The last try may have been taken after it was given up.
            if await self._arrived(self._uncertain[marker], marker):
                return
            del self._uncertain[marker]
        try:
            if not session:
                session = await self._begin()
            self._tries[marker] = 0
            await self._say(session, await self._body(text))
        except ServerError as error:
            if error.sent and session:
                self._uncertain[marker] = session
                if await self._arrived(session, marker):
                    return
            raise ChannelClosed(error.message) from error

    def lies(self, head: str) -> bool:
        """Whether what begins like this went over here and may be handed over once more."""
        marker = next((marker for marker in self._tries if marker in head), None)
        return marker is not None and self._tries[marker] < AGAIN_MAX

    async def again(self, session: str, message: str) -> None:
        """Take back a message that lies in a session at rest, and hand it over once more.

        Raises ServerError. opencode takes nothing back from a session in which a turn runs.
        """
        path = f"/session/{session}/message/{message}"
        parts = table(await self._client.request("GET", path)).get("parts") or []
        text = next((word(part.get("text")) for part in map(table, parts)), "")
        status = table(await self._client.request("GET", "/session/status"))
        if not text or session in status:
            return
        body = await self._body(text)  # what can fail, fails before it is taken back
        markers = [marker for marker in self._tries if marker in text[:HEAD]]
        for marker in markers:
            self._tries[marker] += 1
        await self._client.request("DELETE", path)
        await self._insist(session, body, markers)

    async def _insist(self, session: str, body: dict[str, Any], markers: list[str]) -> None:
        """Hand over what was taken back: opencode has it no longer. Raises ServerError."""
        for tries_left in reversed(range(INSIST)):
            try:
                await self._say(session, body)
                return
            except ServerError as error:
                if not tries_left:
                    raise
                try:
                    if error.sent and markers and await self._arrived(session, markers[0]):
                        return
                except ChannelClosed as unknown:
                    raise error from unknown  # said again it might be there twice
            await asyncio.sleep(INSIST_PAUSE)

    async def _body(self, text: str) -> dict[str, Any]:
        """A prompt with the agent and model that the person uses."""
        body = {**self._source.saved.manner, "parts": [{"type": "text", "text": text}]}
        agent = await self._agent()
        if agent:
            body["agent"] = agent
        return body

    async def _say(self, session: str, body: dict[str, Any]) -> None:
        path = f"/session/{session}/prompt_async"
        await self._client.request("POST", path, body, deadline=PROMPT_DEADLINE)

    async def _agent(self) -> str:
        """The name of the agent that the input line shows; empty where it cannot be told."""
        shown = self._shown().casefold()
        if shown and shown not in self._agents:
            found = await self._client.request("GET", "/agent")
            for agent in map(table, found if isinstance(found, list) else []):
                if agent.get("mode") != "subagent":
                    self._agents[word(agent.get("name")).casefold()] = word(agent.get("name"))
        return self._agents.get(shown, "")

    def state(self) -> dict[str, int]:
        """Return what a next session's channel needs: JSON-able."""
        return dict(self._tries)

    def restore(self, state: dict[str, int]) -> None:
        """Go on where :meth:`state` was taken."""
        self._tries.update(state)

    async def _begin(self) -> str:
        """A new session, shown in the terminal."""
        made: Any = await self._client.request("POST", "/session", {})
        session = str(made["id"]) if isinstance(made, dict) and made.get("id") else ""
        if not session:
            raise ServerError("a new session without an id", sent=False)
        await self._client.request("POST", "/tui/select-session", {"sessionID": session})
        return session

    async def _arrived(self, session: str, marker: str) -> bool:
        """Whether a message whose answer was lost did get there.

        Raises ChannelClosed while the server does not tell: then it must not be sent again.
        """
        path = f"/session/{session}/message?limit={LOOK_BACK}"
        end = asyncio.get_running_loop().time() + ARRIVAL
        while True:
            try:
                found = marker in str(await self._client.request("GET", path))
            except ServerError as error:
                raise ChannelClosed(error.message) from error
            if found or self._source.accepted(marker):
                return True
            if asyncio.get_running_loop().time() > end:
                return False
            await asyncio.sleep(0.2)


#: What a notice is called with which the model asks the person something.
QUESTION = "question"

_NO_DIALOG = "(a hook wants the person to be asked, which no plugin of opencode can do)"


class OpencodeHookCodec(HookCodec):
    """relay's plugin in opencode (gate.js)."""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        name = text_of(event, "hook_event_name")
        if name == "tool.execute.before":
            return AgentHookCall(HookEventName.BEFORE_TOOL, tool_fields(event), True, event)
        if name == "tool.execute.after":
            took = event.get("duration")
            fields = {
                **tool_fields(event),
                "tool_response": event.get("tool_response"),
                "duration": float(took) if isinstance(took, int | float) else None,
            }
            return AgentHookCall(HookEventName.AFTER_TOOL, fields, True, event)
        return _told(name, event)

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = _before(result) if before else _afterwards(result)
        if result.stop:
            said["stop"] = True
        return said


def _told(name: str, event: dict[str, Any]) -> AgentHookCall | None:
    if name == "chat.message":
        return hook_codec.prompted(text_of(event, "prompt"))
    if name == "session.idle":
        said, prompt = text_of(event, "prompt_response"), text_of(event, "prompt")
        return hook_codec.answered(said, prompt)
    if name == "permission.asked":
        words = f"opencode asks to use {text_of(event, 'about') or 'a tool'}"
        return hook_codec.noticed(hook_codec.PERMISSION, words)
    if name == "question.asked":
        return hook_codec.noticed(QUESTION, text_of(event, "about"))
    if name == "session.compacting":
        return hook_codec.compacting(event.get("trigger"))
    return None


def _before(result: Aggregated) -> dict[str, Any]:
    if result.blocked or result.stop:
        return {"deny": result.reason if result.blocked else result.stop_reason}
    if result.decision is Decision.ASK:
        return {"deny": f"{result.reason} {_NO_DIALOG}".strip()}
    said: dict[str, Any] = {}
    if result.input:
        said["input"] = result.input
    if result.context:
        said["context"] = result.context
    return said


def _afterwards(result: Aggregated) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if result.response is not None:
        shown = result.response
        said["output"] = shown if isinstance(shown, str) else json.dumps(shown)
    context = "\n".join(filter(None, (result.reason if result.blocked else "", result.context)))
    if context:
        said["context"] = context
    return said
