"""What relay's plugin in opencode (gate.js) tells and is told, in the engine's words. Pure."""

from __future__ import annotations

import json
from typing import Any

from relay.agents import hook_codec
from relay.agents.hook_codec import AgentHookCall, HookCodec, text_of, tool_fields
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: What a notice is called with which the model asks the person something.
QUESTION = "question"

_NO_DIALOG = "(a hook wants the person to be asked, which no plugin of opencode can do)"


class OpencodeHookCodec(HookCodec):
    """relay's plugin in opencode (gate.js)."""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        name = text_of(event, "hook_event_name")
        if name == "tool.execute.before":
            return AgentHookCall(HookEventName.BEFORE_TOOL, tool_fields(event), True, event)
        if name == "tool.execute.after":
            took = event.get("duration")
            fields = {
                **tool_fields(event),
                "tool_response": event.get("tool_response"),
                "duration": float(took) if isinstance(took, int | float) else None,
            }
            return AgentHookCall(HookEventName.AFTER_TOOL, fields, True, event)
        return _told(name, event)

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = _before(result) if before else _afterwards(result)
        if result.stop:
            said["stop"] = True
        return said


def _told(name: str, event: dict[str, Any]) -> AgentHookCall | None:
    if name == "chat.message":
        return hook_codec.prompted(text_of(event, "prompt"))
    if name == "session.idle":
        said, prompt = text_of(event, "prompt_response"), text_of(event, "prompt")
        return hook_codec.answered(said, prompt)
    if name == "permission.asked":
        words = f"opencode asks to use {text_of(event, 'about') or 'a tool'}"
        return hook_codec.noticed(hook_codec.PERMISSION, words)
    if name == "question.asked":
        return hook_codec.noticed(QUESTION, text_of(event, "about"))
    if name == "session.compacting":
        return hook_codec.compacting(event.get("trigger"))
    return None


def _before(result: Aggregated) -> dict[str, Any]:
    if result.blocked or result.stop:
        return {"deny": result.reason if result.blocked else result.stop_reason}
    if result.decision is Decision.ASK:
        return {"deny": f"{result.reason} {_NO_DIALOG}".strip()}
    said: dict[str, Any] = {}
    if result.input:
        said["input"] = result.input
    if result.context:
        said["context"] = result.context
    return said


def _afterwards(result: Aggregated) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if result.response is not None:
        shown = result.response
        said["output"] = shown if isinstance(shown, str) else json.dumps(shown)
    context = "\n".join(filter(None, (result.reason if result.blocked else "", result.context)))
    if context:
        said["context"] = context
    return said
