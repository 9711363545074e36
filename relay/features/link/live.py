"""Live requests: the person looks at an agent of another machine, or answers what it asks there.

They are never stored, and expire: an interrupt that came an hour late would do harm. The machine
that is asked decides, by what ``link allow`` has granted; then it asks its own broker, as a verb of
its person would.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from relay.broker.async_client import AsyncClient
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.parts import BrokerParts
from relay.core.agent_names import valid_name
from relay.core.errors import RelayError, Timeout, UsageError, error_fields
from relay.features.link.link_files import PAYLOAD
from relay.features.link.link_records import LiveAnswer, LiveRequest
from relay.features.link.machines import Machines
from relay.features.link.wire import LiveArrival, Wire
from relay.protocol.agent_ops import ASK
from relay.protocol.broker import Json, error_from
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS
from relay.protocol.op import by_name

#: What of the session of an agent each right lets another machine ask for.
_KINDS = {"screen": "peek", "transcript": "transcript", "interrupt": "interrupt"}
#: The fields of each op that are passed on. No others: they would name another op, or speaker.
_FIELDS = {
    ASK: ("agent", "kind", "request", "timeout"),
    ITEMS: (),
    ITEM_ANSWER: ("id", "choice", "note"),
}
#: Live requests of other machines at a time, in all; and seconds that one may take, at most.
_AT_ONCE, _LONGEST = 16, 60.0


class Live:
    """Asks other machines, and answers what they ask."""

    def __init__(
        self, parts: BrokerParts, wire: Wire, machines: Machines, tasks: BrokerTasks
    ) -> None:
        self._home, self._log = parts.kernel.home, parts.kernel.log
        self._directory = parts.kernel.directory
        self._wire = wire
        self._machines = machines
        self._tasks = tasks
        self._room = asyncio.Semaphore(_AT_ONCE)

    # -- asking

    async def ask(self, machine: str, op: str, fields: Json, seconds: float) -> Json:
        """The answer of that machine's broker. Raises its refusal, and RelayError where it is away
        or does not answer in time."""
        seconds = min(seconds, _LONGEST)
        until = self._wire.clock_of(machine)
        if until is None:
            raise RelayError(f"{machine} is away, so nothing can be asked there", code="away")
        person = self._directory.owner
        request = msgspec.json.encode(LiveRequest(op, fields, until + seconds, person))
        data = await self._wire.ask(machine, request, seconds)
        answer = msgspec.json.decode(data, type=LiveAnswer)
        if answer.error is not None:
            error = error_from(answer.error)
            error.message = f"{machine}: {error.message}"
            raise error
        return answer.answer

    # -- answering

    async def run(self) -> None:
        """Answer what other machines ask, for ever."""
        while True:
            arrival = await self._wire.asked.get()
            await self._room.acquire()
            if self._tasks.start(self._answer(arrival)) is None:
                return

    async def _answer(self, arrival: LiveArrival) -> None:
        try:
            try:
                answer = LiveAnswer(await self._carried_out(arrival.machine, arrival.data))
            except RelayError as error:
                answer = LiveAnswer(error=error_fields(error))
            except msgspec.DecodeError as error:
                answer = LiveAnswer(error=error_fields(UsageError(f"not understood: {error}")))
            data = msgspec.json.encode(answer)
            if len(data) > PAYLOAD:
                large = RelayError("the answer is too large for the link", code="too_large")
                data = msgspec.json.encode(LiveAnswer(error=error_fields(large)))
            await arrival.respond(data)
        finally:
            self._room.release()

    async def _carried_out(self, machine: str, data: bytes) -> Json:
        request = msgspec.json.decode(data, type=LiveRequest)
        left = min(request.until - time.time(), _LONGEST)
        if left <= 0:
            raise Timeout("the request came too late, and nothing was done")
        right = _right(request)
        if right not in self._machines.rights(machine):
            raise self._machines.refusal(machine, right)
        self._log.write(f"{machine} asks: {request.op} {request.fields.get('agent') or ''}".strip())
        fields = {key: request.fields[key] for key in _FIELDS[request.op] if key in request.fields}
        if request.op == ITEM_ANSWER:  # the server has proven the machine, which names its person
            person = request.person if valid_name(request.person) else "person"
            fields["by"] = f"{person}@{machine}"
        client = AsyncClient(self._home, on_push=_ignore, start=False)
        try:
            await client.open(left)
            answer = await client.request(by_name(request.op), deadline=left, **fields)
        finally:
            await client.close()
        return {key: value for key, value in answer.items() if key not in ("n", "ok")}


def _right(request: LiveRequest) -> str:
    """What allows a request. Raises UsageError for one that nothing allows."""
    if request.op in (ITEMS, ITEM_ANSWER):
        return "answer"
    right = _KINDS.get(str(request.fields.get("kind"))) if request.op == ASK else None
    if right is None:
        raise UsageError(f"{request.op[:40]!r} cannot be asked over a link")
    return right


def _ignore(push: Json) -> None:
    """A broker pushes nothing to a client that is not registered."""
