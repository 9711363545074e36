"""Hook events in the words that several agents share, read."""

from __future__ import annotations

from typing import Any

import pytest

from relay.agents import hook_codec
from relay.agents.hook_codec import AgentHookCall, HookCodec
from relay.agents.known_agents import make_hook_codec, untold
from relay.hooks.events import HookEventName, problem

INPUT = {"command": "ls", "description": "List"}
OUTPUT = {"stdout": "a", "stderr": "", "interrupted": False}
BASE = {"session_id": "S", "tool_name": "Bash", "tool_input": INPUT, "tool_use_id": "toolu_1"}
BEFORE = {**BASE, "hook_event_name": "PreToolUse"}
AFTER = {**BASE, "hook_event_name": "PostToolUse", "tool_response": OUTPUT, "duration_ms": 1500}
FIELDS: dict[str, Any] = {"tool_name": "Bash", "tool_input": INPUT, "tool_use_id": "toolu_1"}


@pytest.fixture(params=["claude", "codex", "qwen"])
def gate(request: pytest.FixtureRequest) -> HookCodec:
    made = make_hook_codec(request.param)
    assert made is not None
    return made


def test_a_tool_call_is_read(gate: HookCodec) -> None:
    assert gate.read(BEFORE) == AgentHookCall(HookEventName.BEFORE_TOOL, FIELDS, True, BEFORE)
    fields = {**FIELDS, "tool_response": OUTPUT, "duration": 1.5}
    assert gate.read(AFTER) == AgentHookCall(HookEventName.AFTER_TOOL, fields, True, AFTER)
    failed = {**BASE, "hook_event_name": "PostToolUseFailure", "error": "it broke"}
    fields = {**FIELDS, "tool_response": {"error": "it broke"}, "duration": None}
    assert gate.read(failed) == AgentHookCall(HookEventName.AFTER_TOOL, fields, True, failed)


@pytest.mark.parametrize(
    ("event", "name", "fields"),
    [
        (
            {"hook_event_name": "UserPromptSubmit", "prompt": "do it"},
            HookEventName.BEFORE_AGENT,
            {"prompt": "do it"},
        ),
        (
            {"hook_event_name": "Stop", "last_assistant_message": "Done."},
            HookEventName.AFTER_AGENT,
            {"prompt_response": "Done."},
        ),
        (
            {"hook_event_name": "Stop", "last_assistant_message": None},
            HookEventName.AFTER_AGENT,
            {"prompt_response": ""},
        ),
        (
            {"hook_event_name": "Stop", "last_assistant_message": "[no response text]"},
            HookEventName.AFTER_AGENT,
            {"prompt_response": ""},
        ),
        (
            {
                "hook_event_name": "Notification",
                "notification_type": "idle_prompt",
                "message": "it waits",
            },
            HookEventName.NOTIFICATION,
            {"notification_type": "idle_prompt", "message": "it waits"},
        ),
        (
            {"hook_event_name": "PreCompact", "trigger": "manual"},
            HookEventName.PRE_COMPRESS,
            {"trigger": "manual"},
        ),
        (
            {"hook_event_name": "PreCompact", "trigger": "other"},
            HookEventName.PRE_COMPRESS,
            {"trigger": "auto"},
        ),
    ],
)
def test_what_nobody_waits_for_is_read(
    gate: HookCodec, event: dict[str, Any], name: HookEventName, fields: dict[str, Any]
) -> None:
    assert gate.read(event) == AgentHookCall(name, fields)
    # A subagent's turns are none of the agent's.
    assert gate.read({**event, "agent_id": "sub"}) is None


def test_a_subagents_tools_count(gate: HookCodec) -> None:
    assert gate.read({**BEFORE, "agent_id": "sub"}) is not None


def test_what_is_told_is_what_hooks_are_promised() -> None:
    base = {"session_id": "s", "cwd": "/", "timestamp": "2026-01-01T00:00:00Z"}
    base |= {"transcript_path": "", "correlation_id": "c", "agent_name": "A"}
    for call in (
        hook_codec.prompted("do it"),
        hook_codec.answered("done", "do it"),
        hook_codec.noticed(hook_codec.PERMISSION, "it asks"),
        hook_codec.compacting(None),
    ):
        payload = {**base, "hook_event_name": call.event.value, **call.fields}
        assert problem(call.event, payload) == "" and not call.waits


def test_hooks_that_never_run_are_named_with_the_reason() -> None:
    def has(event: HookEventName) -> bool:
        return event in ("BeforeAgent", "PreCompress", "BeforeTool")

    names = ": on_before_agent, on_pre_compress"
    assert untold("claude", {"hooks": True}, has) == []
    assert untold("qwen", {"tells": ["BeforeAgent", "PreCompress"]}, has) == []
    [note] = untold("qwen", {"tells": ["BeforeAgent"]}, has)
    assert note.endswith("started: on_pre_compress")
    [note] = untold("claude", {"hooks": True, "untold": "they are off"}, has)
    assert note == f"these hooks never run here, because they are off{names}"
    [note] = untold("aider", {}, has)
    assert note.endswith(f"aider has no hooks of its own for them{names}")
