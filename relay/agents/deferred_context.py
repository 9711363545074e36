"""Context for the model that an agent takes only with a tool's result, held until then."""

from __future__ import annotations

import json
from typing import Any

from relay.agents.hook_codec import AgentHookCall
from relay.core.bounded import BoundedDict

#: Calls whose context is held; the oldest is forgotten first (a call that was broken off).
HELD_MAX = 256


class DeferredContext:
    """What hooks added before a tool ran, by the call."""

    def __init__(self) -> None:
        self._contexts: BoundedDict[str, str] = BoundedDict(HELD_MAX)

    def keep(
        self, call: AgentHookCall, context: str, rewritten: dict[str, Any] | None = None
    ) -> None:
        """Hold ``context`` until the call is over; ``rewritten`` is its input where it changed."""
        if context:
            self._contexts[_key(call, rewritten)] = context

    def take(self, call: AgentHookCall) -> str:
        """What was held for the call that is over now."""
        return self._contexts.pop(_key(call), "")


def _key(call: AgentHookCall, rewritten: dict[str, Any] | None = None) -> str:
    """The call's id; where there is none, two calls of one tool with one input are the same."""
    given = call.fields.get("tool_use_id")
    if given:
        return str(given)
    made = call.fields.get("tool_input") if rewritten is None else rewritten
    return json.dumps([call.fields.get("tool_name"), made], sort_keys=True)
