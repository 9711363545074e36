"""The hook codec of Claude Code. Pure."""

from __future__ import annotations

from typing import Any

from relay.agents.hook_codec import AgentHookCall, HookCodec, rewritten, text_of
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision


class ClaudeHookCodec(HookCodec):
    """Words answers as Claude Code reads them."""

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = _before(call, result) if before else _afterwards(call, result)
        if result.stop:
            # Claude Code runs the tool all the same: a stop before it is a refusal, too.
            said |= {"continue": False, "stopReason": result.stop_reason}
        if result.system_message:
            said["systemMessage"] = result.system_message
        if result.suppress_output:
            said["suppressOutput"] = True
        return said


def _before(call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
    # "allow" is never said: it would skip the person's own permission rules.
    own: dict[str, Any] = {}
    changed = rewritten(call, result)
    if result.blocked or result.stop:
        changed = None
        reason = result.reason if result.blocked else result.stop_reason
        own = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    elif result.decision is Decision.ASK:
        own = {"permissionDecision": "ask", "permissionDecisionReason": result.reason}
    if changed is not None:
        own["updatedInput"] = changed
    if result.context:
        own["additionalContext"] = result.context
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}} if own else {}


def _afterwards(call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
    said: dict[str, Any] = {}
    own: dict[str, Any] = {}
    if result.blocked:
        said = {"decision": "block", "reason": result.reason}
    if result.context:
        own["additionalContext"] = result.context
    name = text_of(call.native, "hook_event_name") or "PostToolUse"
    if result.response is not None and name == "PostToolUse":
        own["updatedToolOutput"] = _in_place_of(call.native.get("tool_response"), result.response)
    if own:
        said["hookSpecificOutput"] = {"hookEventName": name, **own}
    return said


def _in_place_of(before: object, given: object) -> object:
    """What is given, in the form of the output that it replaces: another form is not taken."""
    if isinstance(given, str) and isinstance(before, dict) and "stdout" in before:
        return {**before, "stdout": given, "stderr": ""}
    return given
