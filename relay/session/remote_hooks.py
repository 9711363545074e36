"""Answers requests of other processes to this session, which come through the broker, each once.

They run its hooks, or another part or a feature of the session answers them. The broker keeps their
deadlines: when one is over, the asker has been told, and nothing is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from relay.core.errors import RelayError, UsageError, error_fields
from relay.core.plain import NotPlain, plain
from relay.hooks.engine import RequestChannel, RequestCode
from relay.hooks.events import event_name
from relay.hooks.hook_log import aggregated_record
from relay.session.background import Tasks
from relay.session.broker_reports import Broker
from relay.session.door import FeatureAnswer
from relay.session.session_events import EventQueue

#: Requests at a time. The broker sends fewer; another one is left to its deadline there.
SERVED_MAX = 256
#: How long a response may take to reach the broker. Seconds.
SENDING = 10.0

Json = dict[str, Any]


class RemoteRequests:
    """Takes the broker's ``ask`` pushes (see relay.protocol.broker)."""

    def __init__(
        self,
        hooks: RequestChannel,
        broker: Broker,
        queue: EventQueue,
        answers: Mapping[str, FeatureAnswer] | None = None,
    ) -> None:
        """``answers``: by kind, what answers such requests."""
        self._hooks = hooks
        self._answers = answers or {}
        self._broker = broker
        self._tasks = Tasks(queue)
        self._closed = False

    def take(self, push: Mapping[str, Any]) -> None:
        """Begin to answer one push."""
        if not self._closed and len(self._tasks) < SERVED_MAX:
            self._tasks.spawn(self._serve(push))

    async def close(self, seconds: float) -> None:
        """Take no more requests; finished answers have ``seconds`` to be sent."""
        self._closed = True
        await self._tasks.settle(seconds)
        await self._tasks.end(seconds)

    async def _serve(self, push: Mapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(float(push["timeout"])):
                answer: Json = {"response": await self._answer(push)}
        except TimeoutError:
            return
        except RelayError as error:
            answer = {"error": error_fields(error)}
        try:
            await self._send(push["id"], answer)
        except RelayError as error:
            if error.code != "too_large":
                return  # the broker has gone, and the asker knows it
            why = RelayError("the response is too large to be sent", code="internal_error")
            await self._send(push["id"], {"error": error_fields(why)})

    async def _send(self, id_: str, answer: Json) -> None:
        await self._broker.request("answer", deadline=SENDING, id=id_, **answer)

    async def _answer(self, push: Mapping[str, Any]) -> Json:
        kind, request = push["kind"], push["request"]
        if (answer := self._answers.get(str(kind))) is not None:
            if not isinstance(request, Mapping):
                raise UsageError("the request is no object")
            return await answer(request, push.get("by") == "person")
        if kind != "hooks":
            raise UsageError(f"this session answers no requests of the kind {kind!r}")
        response = await self._hooks.request(request)
        identifier = response["correlation_id"]
        try:
            if not response["success"]:
                raise _error(plain(response["error"]), identifier)
            assert isinstance(request, Mapping)
            named = event_name(str(request["event_name"])).value
            record = aggregated_record(response["output"], identifier)
            sendable: Json = plain({"event": named, "correlation_id": identifier, **record})
        except NotPlain as error:
            why = f"what the hooks said cannot be sent: {error}"
            raise RelayError(
                why, code=RequestCode.INTERNAL_ERROR, details={"correlation_id": identifier}
            ) from None
        return sendable


def _error(error: Json, identifier: str) -> RelayError:
    """The error for the asker: all but an internal error is the asker's own mistake."""
    kind = RelayError if error["code"] == RequestCode.INTERNAL_ERROR else UsageError
    details = {**error["details"], "correlation_id": identifier}
    hint = str(details.pop("hint", ""))
    return kind(error["message"], hint=hint, code=error["code"], details=details)
