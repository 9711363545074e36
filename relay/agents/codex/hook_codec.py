"""The hook codec of Codex. Pure.

Codex has no way to ask the person from a hook: it would run the tool. So what a hook wants asked is
refused, and the model is told why.
"""

from __future__ import annotations

from json import dumps
from typing import Any

from relay.agents import hook_codec
from relay.agents.hook_codec import AgentHookCall, HookCodec, rewritten, text_of
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: What is said to the model before the reason, when a person would have to be asked.
ASKS = "a person has to agree to this, and Codex cannot be made to ask them here"


class CodexHookCodec(HookCodec):
    """Reads Claude Code's words and one more event, and words answers as Codex reads them."""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        if event.get("hook_event_name") != "PermissionRequest":
            return super().read(event)
        if event.get("agent_id"):
            return None  # a subagent's
        tool = text_of(event, "tool_name") or "a tool"
        return hook_codec.noticed(hook_codec.PERMISSION, f"Codex asks to use {tool}")

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = _before(call, result) if before else _afterwards(result)
        if result.system_message:
            said["systemMessage"] = result.system_message
        return said


def _before(call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
    own: dict[str, Any] = {}
    changed = rewritten(call, result)
    if refusal := _refusal(result):
        own = {"permissionDecision": "deny", "permissionDecisionReason": refusal}
    elif changed is not None:
        # Codex takes a rewrite only together with its consent.
        own = {"permissionDecision": "allow", "updatedInput": changed}
    if result.context:
        own["additionalContext"] = result.context
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}} if own else {}


def _refusal(result: Aggregated) -> str:
    """Why the tool must not run; "" when it may."""
    if result.blocked:
        return result.reason
    if result.stop:  # Codex would not heed "continue"
        return result.stop_reason
    if result.decision is Decision.ASK:
        return f"{ASKS}: {result.reason}" if result.reason else ASKS
    return ""


def _afterwards(result: Aggregated) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if result.blocked:
        said = {"decision": "block", "reason": result.reason}
    elif result.response is not None:
        # What a block gives for its reason takes the place of the output.
        given = result.response
        said = {"decision": "block", "reason": given if isinstance(given, str) else dumps(given)}
    if result.stop:
        said |= {"continue": False, "stopReason": result.stop_reason}
    if result.context:
        own = {"hookEventName": "PostToolUse", "additionalContext": result.context}
        said["hookSpecificOutput"] = own
    return said
