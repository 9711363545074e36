"""The hook codec of Gemini CLI.

What is added before a tool runs reaches the model with its result: Gemini CLI takes it there only.
"""

from __future__ import annotations

import json
from typing import Any

from relay.agents import hook_codec
from relay.agents.hook_codec import (
    AgentHookCall,
    DeferredContext,
    HookCodec,
    rewritten,
    text_of,
    tool_fields,
)
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision


class GeminiHookCodec(HookCodec):
    """Reads Gemini CLI's hooks and words their answers."""

    def __init__(self) -> None:
        self._held = DeferredContext()

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        name = event.get("hook_event_name")
        if name == "BeforeTool":
            return AgentHookCall(HookEventName.BEFORE_TOOL, tool_fields(event), True, event)
        if name == "AfterTool":
            fields = {
                **tool_fields(event),
                "tool_response": event.get("tool_response"),
                "duration": None,
            }
            return AgentHookCall(HookEventName.AFTER_TOOL, fields, True, event)
        if name == "BeforeAgent":
            return hook_codec.prompted(text_of(event, "prompt"))
        if name == "AfterAgent":
            said, prompt = text_of(event, "prompt_response"), text_of(event, "prompt")
            # What the model said in each of the turn's steps, joined by blanks.
            return hook_codec.answered(said.strip(), prompt)
        if name == "Notification":
            kind = text_of(event, "notification_type")
            kind = hook_codec.PERMISSION if kind == "ToolPermission" else kind
            return hook_codec.noticed(kind, text_of(event, "message"))
        if name == "PreCompress" and event.get("trigger") == "manual":
            return hook_codec.compacting("manual")
        return None

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = self._before(call, result) if before else self._afterwards(call, result)
        if result.stop:
            said |= {"continue": False, "stopReason": result.stop_reason}
        if result.system_message:
            said["systemMessage"] = result.system_message
        if result.suppress_output:
            said["suppressOutput"] = True
        return said

    def _before(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        if result.blocked or result.stop:
            return refusal(result.reason if result.blocked else result.stop_reason)
        changed = rewritten(call, result)
        self._held.keep(call, result.context, changed)
        said: dict[str, Any] = {}
        if result.decision is Decision.ASK:
            # Its dialog shows the system message. Without a terminal it would wait for ever, but
            # only conversations are gated.
            said = {"decision": "ask", "reason": result.reason, "systemMessage": result.reason}
        if changed is not None:
            # Gemini CLI takes it in place of the model's, not beside it.
            said["hookSpecificOutput"] = {"hookEventName": "BeforeTool", "tool_input": changed}
        return said

    def _afterwards(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        context = "\n".join(filter(None, (self._held.take(call), result.context)))
        said: dict[str, Any] = {}
        if result.blocked:
            said = refusal("\n".join(filter(None, (result.reason, context))))
        elif result.response is not None:
            # The only way to keep a result from the model: an error in its place.
            shown = result.response
            text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
            said = refusal("\n".join(filter(None, (text, context))))
        elif context:
            own = {"hookEventName": "AfterTool", "additionalContext": context}
            said = {"hookSpecificOutput": own}
        return said


def refusal(reason: str) -> dict[str, Any]:
    """Word a refusal: the tool does not run, or the model does not see what it gave back."""
    return {"decision": "deny", "reason": reason}
