"""Fires events: plans, runs and aggregates their hooks, and never raises.

registry -> planner -> runner -> aggregator. Whatever goes wrong between them comes back as a
failure envelope, never as an exception: an Aggregated that has not succeeded and says at which
stage. Where a hook guards what is about to happen, the envelope denies it.

Other processes fire events by request, and each request gets exactly one response. A request is
``{correlation_id, event_name, input}``; one without an id gets a new UUID. Its response is
``{correlation_id, success: True, output}`` with the Aggregated, or ``{correlation_id, success:
False, error: {code, message, details}}``. ``success`` says that the hooks were run, not that all
of them succeeded: that is in the output.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

from relay.core.errors import RelayError, UsageError
from relay.hooks import dialects, hook_log
from relay.hooks.events import (
    DENIABLE,
    EVENTS,
    HookEventName,
    RegistrationError,
    event_name,
    problem,
    wrong_word,
)
from relay.hooks.hook_log import error_details, error_text
from relay.hooks.hook_types import (
    Aggregated,
    Decision,
    Failure,
    HookDefinition,
    HookRun,
    OnFailure,
    Plan,
)
from relay.hooks.planner import Planner
from relay.hooks.runner import HookRunner

#: What a request does not decide: whose event it is.
_OURS = ("session_id", "agent_name", "correlation_id")
Payload = dict[str, Any]


class Disposed(RelayError):
    """An event was fired after its session's hook engine had been disposed."""

    code = "disposed"


@dataclass
class Config:
    """What the engine knows of its session."""

    session_id: str
    agent_name: str
    working_dir: str
    #: The ``ctx`` of Python functions.
    context: object

    def transcript_path(self) -> str:
        """The agent's own transcript; "" where there is none."""
        return ""


#: By the ends of the names of their methods, such as ``before_tool``.
_BY_METHOD = {event.registration.removeprefix("on_"): event for event in HookEventName}
Aggregate = Callable[[HookEventName, Sequence[HookRun], Plan], Aggregated]


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


class HookEventHandler:
    """The hooks of one session. Belongs to one event loop.

    ``now`` gives seconds since the epoch. An event's ``correlation_id`` is one given by the
    caller, else a new UUID; it stands in the hooks' input, in failures and in the log's records.
    """

    def __init__(
        self,
        config: Config,
        planner: Planner,
        runner: HookRunner,
        aggregate: Aggregate,
        *,
        log: hook_log.HookLog | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._planner = planner
        self._runner = runner
        self._aggregate = aggregate
        self._log = log
        self._now = now
        self._disposed = False
        #: Runs hooks by request, until ``dispose()``.
        self.requests = RequestChannel(self)

    def has(self, event: HookEventName) -> bool:
        """Whether anything is registered for ``event``: a dictionary look-up."""
        return bool(self._planner.registry.hooks(event))

    def guarded(self, event: HookEventName, fields: Mapping[str, Any]) -> bool:
        """Whether a hook that matches an event with these fields blocks it by its own failure.

        Never raises: where the matching ones cannot be told, any hook of the event counts.
        """
        try:
            return _blocking(event, self._planner.plan(event, fields).hooks)
        except Exception:
            return self._any_guard(event)

    def dispose(self) -> None:
        """Fire no more events and take no more requests; a second time does nothing.

        The hooks of requests are cancelled, and the requests answered with ``internal_error``.
        Events that were fired directly end as they would have.
        """
        self._disposed = True
        self.requests.dispose()

    async def close(self, timeout: float = 10.0) -> bool:
        """``dispose()``, and wait for what was cancelled. Returns whether all of it has ended."""
        self.dispose()
        return await self.requests.ended(timeout)

    async def fire(
        self, event: HookEventName, fields: Mapping[str, Any], *, correlation_id: str = ""
    ) -> Aggregated:
        """Run the hooks of ``event``, whose input has ``fields`` beside what every input has.

        Never raises; after ``dispose()`` it returns a failure envelope.
        """
        stage = "input"
        try:
            if not self._disposed and not self.has(event):
                return Aggregated()
            correlation_id = correlation_id or str(uuid.uuid4())
            wrong = wrong_word(event, fields)
            if wrong:
                raise UsageError(wrong)
            payload = {**self._base(event, correlation_id), **fields}
            if EVENTS[event].of_model:
                stage = "translation"
                payload = dialects.to_hook(payload)
        except Exception as error:
            return self._failed(event, stage, error, correlation_id or str(uuid.uuid4()))
        return await self.execute_hooks_core(event, payload)

    async def execute_hooks_core(self, event: HookEventName, payload: Payload) -> Aggregated:
        """Plan, run and aggregate for a whole input. Never raises, except to be cancelled."""
        stage, plan, correlation_id = "input", None, ""
        results: list[HookRun] = []
        try:
            if "correlation_id" not in payload:
                payload = {"correlation_id": str(uuid.uuid4()), **payload}
            correlation_id = str(payload["correlation_id"])
            stage = "disposed"
            self._check_disposed()
            stage = "planning"
            plan = self._planner.plan(event, payload)
            if not plan.hooks:
                return Aggregated()
            stage = "execution"
            results = await self._runner.run(plan, payload, self._config.context)
            hook_log.write(self._log, event, results, correlation_id)
            stage = "aggregation"
            whole = self._aggregate(event, results, plan)
            if whole.errors:
                whole.errors = [replace(one, correlation_id=correlation_id) for one in whole.errors]
            return whole
        except asyncio.CancelledError:
            why = Failure(stage, "it was cancelled", "", event.value, correlation_id)
            hook_log.write_engine_failure(self._log, why)
            raise
        except Exception as error:
            correlation_id = correlation_id or str(uuid.uuid4())
            return self._failed(event, stage, error, correlation_id, plan, results)

    def payload_for(
        self, event: HookEventName, given: Mapping[str, Any], correlation_id: str
    ) -> Payload:
        """The whole input for a request. Raises RefusedRequest where it is not valid."""
        base = self._base(event, correlation_id)
        payload = {**base, **given}
        wrong = problem(event, payload)
        if wrong:
            raise RefusedRequest(RequestCode.VALIDATION_FAILURE, wrong, {"event": event.value})
        payload |= {key: base[key] for key in _OURS}
        if not EVENTS[event].of_model:
            return payload
        try:
            return dialects.to_hook(payload)
        except dialects.TranslationError as error:
            raise RefusedRequest(
                RequestCode.TRANSLATION_FAILURE, hook_log.error_text(error), {"event": event.value}
            ) from None

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Aggregated]]:
        """``fire_before_tool(tool_name, tool_input, …)`` and so on: a method for each event.

        Its arguments are the event's fields in the order of EVENTS, by place or by name, and
        ``correlation_id``. It raises TypeError for others and Disposed after ``dispose()``.
        """
        verb, _, event = name.partition("_")
        if verb != "fire" or event not in _BY_METHOD:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return partial(self._fire, _BY_METHOD[event])

    async def _fire(
        self, event: HookEventName, *values: object, correlation_id: str = "", **named: object
    ) -> Aggregated:
        self._check_disposed()
        spec = EVENTS[event]
        names = dict.fromkeys((*spec.required, *spec.optional))
        fields = {**spec.defaults, **dict(zip(names, values, strict=False)), **named}
        if len(values) > len(names) or fields.keys() != names.keys():
            raise TypeError(f"the input of {event.registration} is: {', '.join(names)}")
        return await self.fire(event, fields, correlation_id=correlation_id)

    def _check_disposed(self) -> None:
        if self._disposed:
            raise Disposed("the hook engine of this session has been disposed")

    def _base(self, event: HookEventName, correlation_id: str) -> Payload:
        """What every input has."""
        at = datetime.fromtimestamp(self._now(), UTC)
        return {
            "session_id": self._config.session_id,
            "cwd": self._config.working_dir,
            "hook_event_name": event.value,
            "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "transcript_path": self._config.transcript_path(),
            "correlation_id": correlation_id,
            "agent_name": self._config.agent_name,
        }

    def _any_guard(self, event: HookEventName) -> bool:
        try:
            return _blocking(event, self._planner.registry.hooks(event))
        except Exception:
            return event is HookEventName.BEFORE_TOOL

    def _failed(
        self,
        event: HookEventName,
        stage: str,
        error: Exception,
        correlation_id: str,
        plan: Plan | None = None,
        results: Sequence[HookRun] = (),
    ) -> Aggregated:
        """The failure envelope. It denies where a hook that guards may not have had its say."""
        failure = Failure(
            stage=stage,
            message=hook_log.error_text(error),
            details=hook_log.error_details(error),
            event=str(event),
            correlation_id=correlation_id,
        )
        hook_log.write_engine_failure(self._log, failure)
        envelope = Aggregated(success=False, results=list(results), errors=[failure])
        guarded = self._any_guard(event) if plan is None else _blocking(event, plan.hooks)
        if guarded or any(output.decision is Decision.DENY for output in envelope.outputs):
            envelope.decision = Decision.DENY
            envelope.reason = f"relay could not run its hooks ({stage}): {failure.message}"
        return envelope


def _blocking(event: HookEventName, hooks: Sequence[HookDefinition]) -> bool:
    return event in DENIABLE and any(
        hook.trusted and hook.on_failure is OnFailure.BLOCK for hook in hooks
    )


class RequestChannel:
    """Answers requests until it is disposed. Belongs to one event loop."""

    def __init__(self, engine: HookEventHandler) -> None:
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
        raise RefusedRequest(invalid, "the request has no input, or one that is not an object")
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
