"""Asking the hooks of an agent that runs: the asker's side of the op ``hook``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from relay.core.errors import RelayError, UsageError
from relay.protocol.broker import HOOK_TIMEOUT_MAX

#: Added to the session's time for the way there and back. Seconds.
_WAY = 10.0
#: What is wrong with the request itself; see relay.hooks.mediator.Code.
_ASKERS_FAULT = frozenset(
    {"invalid_request", "unsupported_event", "validation_failure", "translation_failure"}
)


class Asker(Protocol):
    """The part of the broker's client that is used here."""

    def request(self, op: str, *, deadline: float = ..., **fields: object) -> dict[str, Any]: ...


def fire(
    client: Asker,
    agent: str,
    event: str,
    given: Mapping[str, Any],
    timeout: float,
    **auth: object,
) -> dict[str, Any]:
    """Run the hooks of ``event`` in the session of ``agent``, at most ``timeout`` seconds.

    Returns {event, correlation_id, …}, the rest as relay.hooks.hook_log.aggregated_record. Raises
    UsageError for an event or an input that it does not take, NotFound, errors.Timeout, and
    RelayError where the session or its engine failed.
    """
    if not 0 < timeout <= HOOK_TIMEOUT_MAX:
        raise UsageError(f"the timeout must be up to {HOOK_TIMEOUT_MAX:g} seconds, not {timeout!r}")
    request = {"event_name": event, "input": _checked(given)}
    answer = client.request(
        "hook", deadline=timeout + _WAY, agent=agent, request=request, timeout=timeout, **auth
    )
    response: dict[str, Any] = answer["response"]
    if response["success"]:
        output: dict[str, Any] = response["output"]
        return output
    raise _error(response)


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(given)
    try:
        json.dumps(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the input has no JSON form: {error}") from None
    return fields


def _error(response: Mapping[str, Any]) -> RelayError:
    error = response["error"]
    details = {**error.get("details", {}), "correlation_id": response["correlation_id"]}
    kind = UsageError if error["code"] in _ASKERS_FAULT else RelayError
    hint = details.pop("hint", "")
    return kind(error["message"], hint=str(hint), code=error["code"], details=details)
