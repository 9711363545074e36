"""Hooks by request over a message bus: each request gets exactly one response.

A request is ``{correlation_id | correlationId, event_name | eventName, input}`` on the channel
``REQUESTS``. Its response on ``RESPONSES`` is ``{correlation_id, success: True, output}`` with the
Aggregated, or ``{correlation_id, success: False, error: {code, message, details}}``. ``success``
says that the hooks were run, not that all of them succeeded: that is in the output. A request
with ``replies``, a channel, is answered there instead.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from relay.hooks.bus import MessageBus, correlation_id
from relay.hooks.events import HookEventName, RegistrationError, event_name
from relay.hooks.hook_log import error_details, error_text
from relay.hooks.hook_types import Aggregated, Failure

REQUESTS = "HOOK_EXECUTION_REQUEST"
RESPONSES = "HOOK_EXECUTION_RESPONSE"
#: Requests whose hooks run at once; a further one is refused at once.
PENDING_MAX = 256

Payload = dict[str, Any]


class Code(StrEnum):
    """Why a request got no output."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_EVENT = "unsupported_event"
    VALIDATION_FAILURE = "validation_failure"
    TRANSLATION_FAILURE = "translation_failure"
    INTERNAL_ERROR = "internal_error"


class Refused(Exception):
    """A request that no hooks are run for."""

    def __init__(self, code: Code, message: str, details: Payload | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}


class Engine(Protocol):
    """What runs the hooks that were asked for."""

    def payload_for(
        self, event: HookEventName, given: Mapping[str, Any], correlation_id: str
    ) -> Payload:
        """The whole, valid input for ``event``. Raises Refused."""
        ...

    async def execute_hooks_core(self, event: HookEventName, payload: Payload) -> Aggregated: ...


@dataclass(eq=False, slots=True)
class _Pending:
    correlation_id: str
    replies: str
    answered: bool = False


class Mediator:
    """Answers the requests on ``bus`` until it is disposed. Belongs to one event loop."""

    def __init__(self, bus: MessageBus, engine: Engine) -> None:
        self._bus = bus
        self._engine = engine
        self._pending: dict[asyncio.Task[None], _Pending] = {}
        self._disposed = False
        self._subscription = bus.subscribe(REQUESTS, self._receive)

    def dispose(self) -> None:
        """Take no more requests; those that are running are cancelled and told so now.

        Nothing is published afterwards. A second time does nothing.
        """
        if self._disposed:
            return
        self._disposed = True
        self._subscription.unsubscribe()
        for task, pending in list(self._pending.items()):
            self._answer(pending, _failed(Code.INTERNAL_ERROR, "the hook engine has been disposed"))
            task.cancel()

    async def ended(self, timeout: float) -> bool:
        """Whether everything that was begun has ended, within ``timeout`` seconds."""
        tasks = set(self._pending) - {asyncio.current_task()}
        if not tasks:
            return True
        _done, rest = await asyncio.wait(tasks, timeout=timeout)
        return not rest

    def _receive(self, message: object) -> None:
        pending = _Pending(correlation_id(message) or str(uuid.uuid4()), _replies(message))
        try:
            event, given = _read(message)
            payload = self._engine.payload_for(event, given, pending.correlation_id)
            # Who hears a response may ask again at once, before its task has quite ended.
            if sum(not one.answered for one in self._pending.values()) >= PENDING_MAX:
                raise Refused(Code.INTERNAL_ERROR, f"{PENDING_MAX} requests are running already")
            self._start(pending, event, payload)
        except Refused as refused:
            self._answer(pending, _failed(refused.code, refused.message, refused.details))
        except Exception as error:
            self._answer(pending, _crashed(error))

    def _start(self, pending: _Pending, event: HookEventName, payload: Payload) -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._serve(pending, event, payload))
        self._pending[task] = pending
        task.add_done_callback(self._ended)

    async def _serve(self, pending: _Pending, event: HookEventName, payload: Payload) -> None:
        try:
            output = await self._engine.execute_hooks_core(event, payload)
            broken = engine_failure(output)
        except Exception as error:
            self._answer(pending, _crashed(error))
            return
        if broken is None:
            self._answer(pending, {"success": True, "output": output})
        else:
            self._answer(pending, _broken(broken, output))

    def _ended(self, task: asyncio.Task[None]) -> None:
        pending = self._pending.pop(task)
        # Only what was cancelled by somebody else, perhaps before it began, has no answer yet.
        self._answer(pending, _failed(Code.INTERNAL_ERROR, "the request was cancelled"))
        if not task.cancelled():
            task.exception()

    def _answer(self, pending: _Pending, response: Payload) -> None:
        if not pending.answered:
            pending.answered = True
            response = {"correlation_id": pending.correlation_id, **response}
            self._bus.publish(pending.replies, response)


def engine_failure(output: Aggregated) -> Failure | None:
    """What went wrong in the engine itself, and not in one of its hooks."""
    return next((failure for failure in output.errors if failure.stage != "hook"), None)


def _replies(message: object) -> str:
    """The channel on which ``message`` wants its response."""
    channel = message.get("replies") if isinstance(message, Mapping) else None
    return channel if isinstance(channel, str) and channel else RESPONSES


def _read(message: object) -> tuple[HookEventName, Mapping[str, Any]]:
    """The event and the input that ``message`` names. Raises Refused."""
    if not isinstance(message, Mapping):
        raise Refused(Code.INVALID_REQUEST, f"the request is a {type(message).__name__}, no object")
    named = message.get("event_name", message.get("eventName"))
    if not isinstance(named, str) or not named:
        raise Refused(Code.INVALID_REQUEST, "the request has no event_name")
    given = message.get("input")
    if not isinstance(given, Mapping):
        raise Refused(Code.INVALID_REQUEST, "the request has no input, or one that is no object")
    try:
        return event_name(named), given
    except RegistrationError as error:
        raise Refused(Code.UNSUPPORTED_EVENT, error.message, {"hint": error.hint}) from None


def _failed(code: Code, message: str, details: Payload | None = None) -> Payload:
    return {
        "success": False,
        "error": {"code": code.value, "message": message, "details": details or {}},
    }


def _crashed(error: Exception) -> Payload:
    return _failed(Code.INTERNAL_ERROR, error_text(error), {"trace": error_details(error)})


def _broken(failure: Failure, output: Aggregated) -> Payload:
    """The engine failed. What that means for what was about to happen goes with it."""
    return _failed(
        Code.INTERNAL_ERROR,
        failure.message,
        {
            "stage": failure.stage,
            "event": failure.event,
            "trace": failure.details,
            "decision": output.decision.value if output.decision is not None else "",
            "reason": output.reason,
        },
    )
