"""Qwen Code's hooks in the engine's words, and the engine's answer in Qwen Code's.

Qwen Code takes no other input for a tool from a hook: a call whose input is to be changed is
refused, and the model is told with which input to call again. What is added before a tool runs
reaches the model with its result. docs/agents/qwen.md has the whole of it.
"""

from __future__ import annotations

import json
from typing import Any

from relay.agents.hook_codec import AgentHookCall, DeferredContext, HookCodec, rewritten, text_of
from relay.core.bounded import RecentSet
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: Inputs that the model was told to use; the oldest are forgotten first.
OFFERED_MAX = 256


class QwenHookCodec(HookCodec):
    """Qwen Code's hooks; context that is added before a tool goes with its result."""

    def __init__(self) -> None:
        self._held = DeferredContext()
        self._offered: RecentSet[str] = RecentSet(OFFERED_MAX)

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        call = super().read(event)
        if call is not None and call.event is HookEventName.BEFORE_AGENT:
            # It tells of each result of a tool as of a prompt without words.
            return call if call.fields["prompt"].strip() else None
        if call is not None and (given := text_of(event, "tool_call_id")):
            call.fields["tool_use_id"] = given  # the id that the model's own call has
        return call

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = self._before(call, result) if before else self._afterwards(call, result)
        if result.system_message:
            said["systemMessage"] = result.system_message
        if result.suppress_output:
            said["suppressOutput"] = True
        return said

    def _before(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        # "allow" is never said: it would skip the person's own permission rules.
        if result.blocked or result.stop:
            return refusal(result.reason if result.blocked else result.stop_reason)
        if result.decision is Decision.ASK:
            return _decided("ask", result.reason)
        changed = rewritten(call, result)
        if changed is not None and changed != call.fields.get("tool_input"):
            told = self._instead(call, changed, result.context)
            if told:
                return refusal(told)
        self._held.keep(call, result.context)
        return {}

    def _instead(self, call: AgentHookCall, changed: dict[str, Any], context: str) -> str:
        """What the model is told to do; "" where it does what it was told."""
        tool = call.fields.get("tool_name")
        if _key(tool, call.fields.get("tool_input")) in self._offered:
            return ""
        self._offered.add(_key(tool, changed))
        words = (
            f"This call was not run: a hook changes its input. Call {tool} again with exactly this"
            f" input: {json.dumps(changed, ensure_ascii=False)}"
        )
        return f"{words}\n{context}" if context else words

    def _afterwards(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        name = text_of(call.native, "hook_event_name") or "PostToolUse"
        shown = result.response
        text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        instead = result.stop_reason if result.stop else text if shown is not None else ""
        reason = result.reason if result.blocked else ""
        told = [self._held.take(call), reason, result.context]
        if (result.stop or shown is not None) and name == "PostToolUse":
            # The only way to keep a result from the model is an error in its place, and nothing is
            # told beside that.
            whole = "\n".join(filter(None, (instead, *told)))
            return {"continue": False, "stopReason": whole}
        context = "\n".join(filter(None, (*told[:2], instead, *told[2:])))
        if not context:
            return {}
        return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": context}}


def refusal(reason: str) -> dict[str, Any]:
    """The tool does not run, whatever other hooks say: of ``permissionDecision`` the last one
    counts in Qwen Code, but nothing outweighs a stop."""
    said = _decided("deny", reason)
    return {"decision": "block", "reason": reason, "continue": False, "stopReason": reason, **said}


def _decided(decision: str, reason: str) -> dict[str, Any]:
    own = {"permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}}


def _key(tool: object, given: object) -> str:
    return json.dumps([tool, given], sort_keys=True)
