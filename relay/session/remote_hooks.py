"""Where other processes' requests to this session's hooks come in, and one response each goes out.

They come from the broker and are published on the session's own message bus, where the hook engine
answers them (see relay.hooks.mediator). The broker watches over their time: when it is up, the
asker has been told, and nothing is sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from relay.core.errors import RelayError, Timeout
from relay.core.plain import NotPlain, plain
from relay.hooks.bus import MessageBus, correlation_id
from relay.hooks.events import event_name
from relay.hooks.hook_log import aggregated_record
from relay.hooks.mediator import REQUESTS, RESPONSES, Code
from relay.session.background import Tasks

#: Requests in hand at once. The broker sends fewer; a further one is left to its time limit there.
SERVED_MAX = 256
#: How long a response may take to reach the broker. Seconds.
SENDING = 10.0

Json = dict[str, Any]


class HookDesk:
    """``request`` asks the broker; ``note`` is told what should not happen."""

    def __init__(
        self,
        bus: MessageBus,
        request: Callable[..., Awaitable[Json]],
        note: Callable[[str], None],
    ) -> None:
        self._bus = bus
        self._request = request
        self._tasks = Tasks(note)
        self._closed = False

    def take(self, push: Mapping[str, Any]) -> None:
        """A push ``hook`` of the broker's: see relay.protocol.broker."""
        if not self._closed and len(self._tasks) < SERVED_MAX:
            self._tasks.spawn(self._serve(push))

    async def close(self, seconds: float) -> None:
        """Take no more, and give what is ready so long to be sent; then nothing is answered."""
        self._closed = True
        await self._tasks.settle(seconds)
        await self._tasks.end(seconds)

    async def _serve(self, push: Mapping[str, Any]) -> None:
        try:
            response = await self._response(push["request"], float(push["timeout"]))
        except Timeout:
            return
        try:
            await self._send(push["id"], response)
        except RelayError as error:
            if error.code != "too_large":
                return  # the broker went away, and the asker knows that
            why = "what the hooks said is too large to be sent"
            await self._send(push["id"], _failed(response["correlation_id"], why))

    async def _send(self, id_: str, response: Json) -> None:
        await self._request("hook_answer", deadline=SENDING, id=id_, response=response)

    async def _response(self, request: object, seconds: float) -> Json:
        # The same correlation id may come twice at once, so each has a channel of its own.
        replies = f"{RESPONSES}:{uuid.uuid4()}"
        message = {**request} if isinstance(request, Mapping) else {}
        given = correlation_id(request) or str(uuid.uuid4())
        message |= {"correlation_id": given, "replies": replies}
        try:
            answer = await self._bus.request(REQUESTS, message, seconds, replies=replies)
        except Timeout:
            raise
        except RelayError as error:  # the engine has been disposed, or the bus is full
            return _failed(given, error.message)
        try:
            return _sendable(answer, message)
        except NotPlain as error:
            return _failed(given, f"what the hooks said cannot be sent: {error}")


def _sendable(answer: Json, request: Json) -> Json:
    if answer["success"]:
        event = event_name(str(request.get("event_name", request.get("eventName"))))
        named = {"event": event.value, "correlation_id": answer["correlation_id"]}
        record = aggregated_record(answer["output"], answer["correlation_id"])
        answer = {**answer, "output": {**named, **record}}
    sendable: Json = plain(answer)
    return sendable


def _failed(identifier: str, why: str) -> Json:
    error = {"code": Code.INTERNAL_ERROR.value, "message": why, "details": {}}
    return {"correlation_id": identifier, "success": False, "error": error}
