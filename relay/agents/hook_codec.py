"""What an agent's own hook tells the engine, and in which words it is answered. Pure.

:class:`HookCodec` is what each agent's ``hook_codec`` module offers. The functions below read hook
events as Claude Code words them, and Codex and Qwen Code after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated

#: What a notice is called that is about a permission, whatever the agent calls it.
PERMISSION = "permission_prompt"
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


class HookCodec(Protocol):
    """Between one kind of agent's hooks and the engine. Pure; a module can be one."""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        """What the agent's event is to the engine; None for what it has no event for.

        ``event`` is untrusted: what is not as it should be is left out, never raised over.
        """
        ...

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        """What to answer to ``call``, which the agent waits for, in the agent's own words.

        ``{}`` lets it go on as if there were no hook. ``result.input`` holds only the keys of the
        tool's input that are rewritten (``rewritten`` makes it whole).
        """
        ...


def read(event: dict[str, Any]) -> AgentHookCall | None:
    """Read a hook event in Claude Code's words, see :class:`HookCodec`."""
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


def prompted(prompt: str) -> AgentHookCall:
    """A prompt goes to the model."""
    return AgentHookCall(HookEventName.BEFORE_AGENT, {"prompt": prompt})


def answered(response: str, prompt: str | None = None) -> AgentHookCall:
    """A turn has ended with ``response``; ``prompt`` where the agent tells it, too."""
    said = {"prompt_response": "" if response == _SILENCE else response}
    if prompt is not None:
        said["prompt"] = prompt
    return AgentHookCall(HookEventName.AFTER_AGENT, said)


def noticed(kind: str, message: str) -> AgentHookCall:
    """The agent wants its person's attention."""
    told = {"notification_type": kind, "message": message}
    return AgentHookCall(HookEventName.NOTIFICATION, told)


def compacting(trigger: object) -> AgentHookCall:
    """The conversation is about to be compacted."""
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
    """The whole input of the tool with the rewritten keys in it; None when nothing is rewritten."""
    if not result.input:
        return None
    before = call.fields.get("tool_input")
    return {**(before if isinstance(before, dict) else {}), **result.input}


def text_of(event: Mapping[str, Any], key: str) -> str:
    """A text of an agent's event; "" where it is something else."""
    value = event.get(key)
    return value if isinstance(value, str) else ""


def tool_fields(event: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a tool's events, from an event in the words of Claude Code's, as most use."""
    given = event.get("tool_input")
    fields: dict[str, Any] = {
        "tool_name": text_of(event, "tool_name"),
        "tool_input": given if isinstance(given, dict) else {},
        "tool_use_id": text_of(event, "tool_use_id"),
    }
    return fields
