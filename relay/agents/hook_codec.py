"""Codecs between an agent's own hooks and relay's hook engine. Pure.

Each agent with hooks has a :class:`HookCodec` beside its adapter. What is common to
several of them stands here: events as Claude Code words them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.core.bounded import BoundedDict
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated

#: What a notice is called that is about a permission, whatever the agent calls it.
PERMISSION = "permission_prompt"
#: Calls whose context is held; the oldest is forgotten first (a call that was broken off).
HELD_MAX = 256
#: What Qwen Code and Gemini CLI tell of a turn in which the model said nothing.
_SILENCE = "[no response text]"


@dataclass(frozen=True, slots=True)
class AgentHookCall:
    """One call of an agent's own hook, in the engine's words."""

    event: HookEventName
    #: Those of the event's input (``tool_name``, ``tool_input``, …), see relay.hooks.events.
    fields: dict[str, Any]
    #: The agent waits for the answer; else what is answered has no effect.
    waits: bool = False
    #: What the agent sent.
    native: Mapping[str, Any] = field(default_factory=dict)


class HookCodec:
    """Reads what one kind of agent's hooks send for the engine, and words its answer for them."""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        """Read an agent's event for the engine; None for what it has no event for.

        ``event`` is untrusted: what is not as it should be is left out, never raised over. This
        reads Claude Code's words, which Codex and Qwen Code use, too.
        """
        name = event.get("hook_event_name")
        if name == "PreToolUse":
            return AgentHookCall(HookEventName.BEFORE_TOOL, tool_fields(event), True, event)
        if name in ("PostToolUse", "PostToolUseFailure"):
            return AgentHookCall(HookEventName.AFTER_TOOL, _after(event), True, event)
        if event.get("agent_id"):
            return None  # a subagent's: its tool calls count, its turns are no turns of the agent's
        if name == "UserPromptSubmit":
            return prompted(text_of(event, "prompt"))
        if name == "Stop":
            return answered(text_of(event, "last_assistant_message"))
        if name == "Notification":
            return noticed(text_of(event, "notification_type"), text_of(event, "message"))
        if name == "PreCompact":
            return compacting(event.get("trigger"))
        return None

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        """Word the answer to ``call``, which the agent waits for.

        ``{}`` lets it go on as if there were no hook. ``result.input`` holds only the keys of the
        tool's input that are rewritten (:func:`rewritten` makes it whole).
        """
        raise NotImplementedError


def prompted(prompt: str) -> AgentHookCall:
    """Make the call for a prompt that goes to the model."""
    return AgentHookCall(HookEventName.BEFORE_AGENT, {"prompt": prompt})


def answered(response: str, prompt: str | None = None) -> AgentHookCall:
    """Make the call for a turn that ended; ``prompt`` where the agent tells it, too."""
    said = {"prompt_response": "" if response == _SILENCE else response}
    if prompt is not None:
        said["prompt"] = prompt
    return AgentHookCall(HookEventName.AFTER_AGENT, said)


def noticed(kind: str, message: str) -> AgentHookCall:
    """Make the call for a notice to the person."""
    told = {"notification_type": kind, "message": message}
    return AgentHookCall(HookEventName.NOTIFICATION, told)


def compacting(trigger: object) -> AgentHookCall:
    """Make the call for a conversation that is about to be compacted."""
    given = "manual" if trigger == "manual" else "auto"
    return AgentHookCall(HookEventName.PRE_COMPRESS, {"trigger": given})


def _after(event: dict[str, Any]) -> dict[str, Any]:
    response = event.get("tool_response")
    if response is None and "error" in event:
        response = {"error": event["error"]}
    took = event.get("duration_ms")
    seconds = took / 1000 if isinstance(took, int | float) else None
    return {**tool_fields(event), "tool_response": response, "duration": seconds}


def rewritten(call: AgentHookCall, result: Aggregated) -> dict[str, Any] | None:
    """Return the tool's whole input with the rewritten keys in it; None when none is rewritten."""
    if not result.input:
        return None
    before = call.fields.get("tool_input")
    return {**(before if isinstance(before, dict) else {}), **result.input}


def text_of(event: Mapping[str, Any], key: str) -> str:
    """Return a text of an agent's event; "" where it is something else."""
    value = event.get(key)
    return value if isinstance(value, str) else ""


def tool_fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's input for a tool's event, from one in Claude Code's words."""
    given = event.get("tool_input")
    fields: dict[str, Any] = {
        "tool_name": text_of(event, "tool_name"),
        "tool_input": given if isinstance(given, dict) else {},
        "tool_use_id": text_of(event, "tool_use_id"),
    }
    return fields


class DeferredContext:
    """Holds what hooks added before a tool ran, for an agent that takes it only with the result."""

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
