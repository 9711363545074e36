"""Hook events as Claude Code words them, and Codex and Qwen Code after it, for the engine. Pure."""

from __future__ import annotations

from typing import Any

from relay.hooks.events import HookEventName
from relay.session.tool_hooks import AgentHookCall, text_of, tool_fields

#: What a notice is called that is about a permission, whatever the agent calls it.
PERMISSION = "permission_prompt"
#: What Qwen Code and Gemini CLI tell of a turn in which the model said nothing.
_SILENCE = "[no response text]"


def read(event: dict[str, Any]) -> AgentHookCall | None:
    """See relay.session.tool_hooks.HookCodec."""
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
