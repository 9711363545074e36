"""The message channel of opencode, its server: no keys, no input line, no dialog.

A message goes into the session that the person is in; where there is none yet, one is made and the
terminal is led to it. The server takes it at once, also while a turn runs: the model has it at its
next step. That it has it shows in the events (``OpencodeSource``).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from relay.agents.base import ChannelClosed
from relay.agents.opencode.server_records import table, word
from relay.agents.opencode.source import HEAD, OpencodeSource
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.http import RequestFailed, ResponseStream, request, stream
from relay.core.message import AgentState

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
            raise ServerError("an answer that is no JSON") from error

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
