"""Runs hooks by request: each request gets exactly one response.

A request is ``{correlation_id, event_name, input}``; one without an id gets a new UUID. Its
response is ``{correlation_id, success: True, output}`` with the Aggregated, or
``{correlation_id, success: False, error: {code, message, details}}``.

``success`` says that the hooks were run, not that all of them succeeded: that is in the output.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol

from relay.hooks.events import HookEventName, RegistrationError, event_name
from relay.hooks.hook_log import error_details, error_text
from relay.hooks.hook_types import Aggregated

#: Requests whose hooks run at once; a further one is refused at once.
PENDING_MAX = 256

Payload = dict[str, Any]


class RequestCode(StrEnum):
    """Why a request got no output."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED_EVENT = "unsupported_event"
    VALIDATION_FAILURE = "validation_failure"
    TRANSLATION_FAILURE = "translation_failure"
    INTERNAL_ERROR = "internal_error"


class RefusedRequest(Exception):
    """A request that no hooks are run for."""

    def __init__(self, code: RequestCode, message: str, details: Payload | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}


class RequestEngine(Protocol):
    """What runs the hooks that were asked for."""

    def payload_for(
        self, event: HookEventName, given: Mapping[str, Any], correlation_id: str
    ) -> Payload:
        """The whole, valid input for ``event``. Raises RefusedRequest."""
        ...

    async def execute_hooks_core(self, event: HookEventName, payload: Payload) -> Aggregated: ...


class RequestChannel:
    """Answers requests until it is disposed. Belongs to one event loop."""

    def __init__(self, engine: RequestEngine) -> None:
        self._engine = engine
        #: The hooks that run.
        self._running: set[asyncio.Task[Aggregated]] = set()
        self._disposed = False

    async def request(self, message: object) -> Payload:
        """Run the hooks that ``message`` asks for, and return the response. Never raises.

        An asker that gives up waiting leaves the hooks running: what they say is dropped.
        """
        identifier = correlation_id(message) or str(uuid.uuid4())
        try:
            response = await self._run(message, identifier)
        except RefusedRequest as refused:
            response = _failed(refused.code, refused.message, refused.details)
        except Exception as error:
            trace = {"trace": error_details(error)}
            response = _failed(RequestCode.INTERNAL_ERROR, error_text(error), trace)
        return {"correlation_id": identifier, **response}

    def dispose(self) -> None:
        """Take no more requests; the hooks that run are cancelled, and their askers are told."""
        self._disposed = True
        for task in self._running:
            task.cancel()

    async def ended(self, timeout: float) -> bool:
        """Whether everything that was begun has ended, within ``timeout`` seconds."""
        if not self._running:
            return True
        _done, rest = await asyncio.wait(self._running, timeout=timeout)
        return not rest

    async def _run(self, message: object, identifier: str) -> Payload:
        if self._disposed:
            raise _disposal()
        event, given = _read(message)
        payload = self._engine.payload_for(event, given, identifier)
        if len(self._running) >= PENDING_MAX:
            raise RefusedRequest(
                RequestCode.INTERNAL_ERROR, f"{PENDING_MAX} requests are running already"
            )
        task = asyncio.get_running_loop().create_task(
            self._engine.execute_hooks_core(event, payload)
        )
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        await asyncio.wait({task})
        if task.cancelled():
            raise _disposal()
        return _response(task.result())


def correlation_id(message: object) -> str:
    """The id that ``message`` names; "" where it has none."""
    value = message.get("correlation_id") if isinstance(message, Mapping) else None
    return value if isinstance(value, str) else ""


def _read(message: object) -> tuple[HookEventName, Mapping[str, Any]]:
    """The event and the input that ``message`` names. Raises RefusedRequest."""
    invalid = RequestCode.INVALID_REQUEST
    if not isinstance(message, Mapping):
        raise RefusedRequest(invalid, f"the request is a {type(message).__name__}, no object")
    named = message.get("event_name")
    if not isinstance(named, str) or not named:
        raise RefusedRequest(invalid, "the request has no event_name")
    given = message.get("input")
    if not isinstance(given, Mapping):
        raise RefusedRequest(invalid, "the request has no input, or one that is no object")
    try:
        return event_name(named), given
    except RegistrationError as error:
        raise RefusedRequest(
            RequestCode.UNSUPPORTED_EVENT, error.message, {"hint": error.hint}
        ) from None


def _disposal() -> RefusedRequest:
    return RefusedRequest(RequestCode.INTERNAL_ERROR, "the hook engine has been disposed")


def _failed(code: RequestCode, message: str, details: Payload) -> Payload:
    return {
        "success": False,
        "error": {"code": code.value, "message": message, "details": details},
    }


def _response(output: Aggregated) -> Payload:
    failure = next((failure for failure in output.errors if failure.stage != "hook"), None)
    if failure is None:
        return {"success": True, "output": output}
    # The engine failed. What that means for what was about to happen goes with it.
    return _failed(
        RequestCode.INTERNAL_ERROR,
        failure.message,
        {
            "stage": failure.stage,
            "event": failure.event,
            "trace": failure.details,
            "decision": output.decision.value if output.decision is not None else "",
            "reason": output.reason,
        },
    )
