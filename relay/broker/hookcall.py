"""Runs hooks in the session of a running agent: the client side of the op ``ask``."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from relay.broker.client import BrokerClient
from relay.core.errors import RelayError, UsageError
from relay.protocol.agent_ops import ASK
from relay.protocol.broker import ASK_TIMEOUT_MAX
from relay.protocol.op import Auth

#: Added to the session's time for both ways. Seconds.
_WAY = 10.0


def fire(
    client: BrokerClient,
    agent: str,
    event: str,
    given: Mapping[str, Any],
    timeout: float,
    auth: Auth | None = None,
) -> dict[str, Any]:
    """Run the hooks of ``event`` in the session of ``agent``, at most ``timeout`` seconds.

    Returns {event, correlation_id, …}, the rest as relay.hooks.hook_log.aggregated_record. Raises
    UsageError for an event or an input that it does not take, NotFound, errors.Timeout, and
    RelayError where the session or its engine failed.
    """
    if not 0 < timeout <= ASK_TIMEOUT_MAX:
        raise UsageError(f"the timeout must be up to {ASK_TIMEOUT_MAX:g} seconds, not {timeout!r}")
    fields = dict(given)
    try:
        json.dumps(fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"the input has no JSON form: {error}") from None
    identifier = str(uuid.uuid4())
    request = {"correlation_id": identifier, "event_name": event, "input": fields}
    try:
        answer = client.request(
            ASK,
            deadline=timeout + _WAY,
            agent=agent,
            kind="hooks",
            request=request,
            timeout=timeout,
            auth=auth,
        )
    except RelayError as error:
        error.details.setdefault("correlation_id", identifier)
        raise
    response: dict[str, Any] = answer["response"]
    return response
