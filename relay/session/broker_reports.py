"""What a session tells the broker: how far deliveries are, what was begun, how the agent is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from relay.core.errors import RelayError
from relay.core.ids import derived_ulid
from relay.core.message import Message, State
from relay.directive.grammar import Match
from relay.session.detector import Detection
from relay.session.retrying import until_answered

Request = Callable[..., Awaitable[dict[str, Any]]]
#: (state, reason, source, notes) of an agent, as ``relay status`` shows them.
View = tuple[str, str, str, tuple[str, ...]]


class Reports:
    """Asks the broker for as long as it takes. ``note(text)`` is for the person.

    ``restarts`` is how many sessions of this run there were before; ``run_id`` and ``started_ms``
    name the run.
    """

    def __init__(
        self,
        request: Request,
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
        *,
        run_id: str,
        started_ms: int,
        restarts: int,
    ) -> None:
        self._request = request
        self._note = note
        self._spawn = spawn
        self._run_id = run_id
        self._started_ms = started_ms
        self._restarts = restarts
        self.on_delivery: Callable[[str, State], None] = lambda identifier, state: None
        self._told: View | None = None
        self._known = asyncio.Event()  # the broker has the newest view
        self._known.set()
        # Something has reached the agent since the person spoke to it; an earlier session of the
        # run may have brought it.
        self._reached = restarts > 0

    def person(self) -> None:
        """The person has spoken to the agent: what it says now does not follow from a message."""
        if self._reached:
            self._reached = False

            async def tell() -> None:
                await self._request("person")

            self._spawn(until_answered(tell, lambda error: None))

    async def delivery(self, message: Message, state: State, reason: str, proof: str) -> None:
        """How far a delivery got."""
        fields: dict[str, Any] = {"id": message.id, "state": state.value}
        self.on_delivery(message.id, state)
        self._reached |= state in (State.SUBMITTED, State.SEEN)
        if reason:
            fields["reason"] = reason
        if proof:
            fields["proof"] = proof
        try:
            # However long it takes: nothing is typed that the broker does not know of, and what
            # came of it must not be lost while the broker is away or its disk is full.
            await until_answered(lambda: self._request("state", **fields), self._waits)
        except RelayError as error:
            self._note(f"a delivery could not be recorded: {error.message}")

    async def claim_match(self, heard: Detection) -> bool:
        """Whether no earlier session of this run has begun to act on this find."""
        match = heard.found
        assert isinstance(match, Match)
        return await self._claim(
            id=heard.id,
            kind="match",
            body=match.body,
            meta={"namespace": match.namespace, "target": match.target},
            thread=match.attributes.get("thread"),
        )

    async def claim_start(self) -> bool:
        """Whether the session-start hooks of this run have not been fired yet."""
        identifier = derived_ulid(self._started_ms, self._run_id, "session_start")
        return await until_answered(
            lambda: self._claim(id=identifier, kind="session_start"), self._waits
        )

    def agent(self, view: View) -> None:
        """What the agent does and how it is heard; told when it has changed, the newest only."""
        if view == self._told:
            return
        self._told = view
        self._known.clear()
        state, reason, source, notes = view
        fields = {"state": state, "reason": reason, "source": source, "notes": list(notes)}

        async def tell() -> None:
            if self._told is view:  # otherwise something newer is told already
                await self._request("agent_state", **fields)
                if self._told is view:
                    self._known.set()

        self._spawn(until_answered(tell, lambda error: None))

    async def settle(self, seconds: float) -> None:
        """Wait until the broker knows how the agent is, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._known.wait()

    def forgotten(self) -> None:
        """The broker has come back, perhaps another one: it knows nothing of the agent."""
        self._told = None

    async def _claim(self, **fields: Any) -> bool:
        answer = await self._request("event", **fields)
        # In the first session of a run a duplicate is our own request, repeated because its answer
        # was lost.
        return not answer.get("duplicate") or not self._restarts

    def _waits(self, error: RelayError) -> None:
        self._note(f"what came of a message waits: {error.message}")
