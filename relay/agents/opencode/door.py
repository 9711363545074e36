"""Handing a message to opencode by its server: no keys, no input line, no dialog.

A message goes into the session that the person is in; where there is none yet, one is made and the
terminal is led to it. The server takes it at once, also while a turn runs: the model has it at its
next step. That it has it shows in the events (``OpencodeSource``).
"""

from __future__ import annotations

import asyncio
from typing import Any

from relay.agents.opencode.http import Client, ServerError
from relay.agents.opencode.source import OpencodeSource
from relay.errors import RelayError
from relay.model import AgentState

#: Of a session's messages, the last so many are looked through for one that may have arrived.
LOOK_BACK = 30
#: Seconds for which it is looked for.
ARRIVAL = 3.0


class DoorClosed(RelayError):
    """The server did not take the message."""

    code = "door_closed"


class OpencodeDoor:
    """Prompts to one server."""

    def __init__(self, client: Client, source: OpencodeSource) -> None:
        self._client = client
        self._source = source

    @property
    def available(self) -> bool:
        """Whether a message can be handed over. Not while a dialog waits: should the person refuse,
        opencode comes to rest and lets what is queued lie."""
        return self._source.connected and self._source.agent_state is not AgentState.BLOCKED

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises DoorClosed when it was certainly not taken."""
        if self._source.heard(marker):
            return
        session = self._source.session
        try:
            if not session:
                session = await self._begin()
            await self.prompt(session, text)
        except ServerError as error:
            if error.sent and session and await self._arrived(session, marker):
                return
            raise DoorClosed(error.message) from error

    async def prompt(self, session: str, text: str) -> None:
        """Say ``text`` in a session, with the agent and model that the person uses there."""
        body = {**self._source.manner, "parts": [{"type": "text", "text": text}]}
        await self._client.request("POST", f"/session/{session}/prompt_async", body)

    async def _begin(self) -> str:
        """A new session, shown in the terminal."""
        made: Any = await self._client.request("POST", "/session", {})
        session = str(made["id"]) if isinstance(made, dict) and made.get("id") else ""
        if not session:
            raise ServerError("opencode's server: a new session without an id", sent=False)
        await self._client.request("POST", "/tui/select-session", {"sessionID": session})
        return session

    async def _arrived(self, session: str, marker: str) -> bool:
        """Whether a message whose answer was lost did get there."""
        end = asyncio.get_running_loop().time() + ARRIVAL
        while not self._source.heard(marker):
            if asyncio.get_running_loop().time() > end:
                return False
            try:
                path = f"/session/{session}/message?limit={LOOK_BACK}"
                if marker in str(await self._client.request("GET", path)):
                    return True
            except ServerError:
                pass
            await asyncio.sleep(0.2)
        return True
