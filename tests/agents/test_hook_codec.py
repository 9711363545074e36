"""What each agent's hooks send, and what they are answered: one table, the same tests for all."""

from __future__ import annotations

from typing import Any

import pytest

from relay.agents import hook_codec
from relay.agents.codex.adapter import ASKS
from relay.agents.hook_codec import PERMISSION, AgentHookCall, HookCodec
from relay.agents.known_agents import HOOK_CODECS, make_hook_codec, ungated, untold
from relay.agents.launch import TOOL_EVENTS, TURN_EVENTS, wants_tcp
from relay.hooks.events import HookEventName, problem
from relay.hooks.hook_types import Aggregated, Decision

AGENTS = sorted(HOOK_CODECS)
INPUT = {"command": "ls", "more": 1}
CHANGED = {**INPUT, "command": "ls -l"}
OUTPUT = {"stdout": "a", "stderr": "", "interrupted": False}
#: The names of the events before and after a tool, and what only this agent's have.
EVENTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude": ("PreToolUse", "PostToolUse", {"tool_use_id": "1"}),
    "codex": ("PreToolUse", "PostToolUse", {"tool_use_id": "1"}),
    # The model's own id counts.
    "qwen": ("PreToolUse", "PostToolUse", {"tool_use_id": "toolu", "tool_call_id": "1"}),
    "gemini": ("BeforeTool", "AfterTool", {}),
    "opencode": ("tool.execute.before", "tool.execute.after", {"tool_use_id": "1"}),
}
DENY = {"decision": Decision.DENY, "reason": "no"}
ASK = {"decision": Decision.ASK, "reason": "sure?"}
STOP = {"stop": True, "stop_reason": "enough"}
REWRITE = {"input": {"command": "ls -l"}}
WORDS = {"system_message": "a cat", "suppress_output": True}
BLOCK_QWEN = {"decision": "block", "reason": "no", "continue": False, "stopReason": "no"}


def own(event: str, **fields: Any) -> dict[str, Any]:
    """What only the agent's own engine reads, beside the words that all have."""
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


def denied(reason: str) -> dict[str, Any]:
    return own("PreToolUse", permissionDecision="deny", permissionDecisionReason=reason)


def asked(**more: Any) -> dict[str, Any]:
    return own("PreToolUse", permissionDecision="ask", permissionDecisionReason="sure?", **more)


def agreed(**more: Any) -> dict[str, Any]:
    why = "agreed to, by relay"
    return own("PreToolUse", permissionDecision="allow", permissionDecisionReason=why, **more)


#: What the hooks came to before a tool, and the answer.
BEFORE: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "claude": [
        ({**DENY, **REWRITE}, denied("no")),
        # Claude Code would run the tool before it stops.
        (STOP, {**denied("enough"), "continue": False, "stopReason": "enough"}),
        ({**ASK, **REWRITE}, asked(updatedInput=CHANGED)),
        # What a person has said yes to by relay needs no dialog of Claude Code's own.
        ({"agreed": True, **REWRITE}, agreed(updatedInput=CHANGED)),
        ({"agreed": True, **ASK}, asked()),
        ({"agreed": True, **DENY}, denied("no")),
        (
            {"context": "mind", **WORDS},
            {
                **own("PreToolUse", additionalContext="mind"),
                "systemMessage": "a cat",
                "suppressOutput": True,
            },
        ),
    ],
    "codex": [
        ({**DENY, **REWRITE}, denied("no")),
        ({**STOP, **REWRITE}, denied("enough")),
        ({**ASK, **REWRITE}, denied(f"{ASKS}: sure?")),
        ({"decision": Decision.ASK}, denied(ASKS)),
        (REWRITE, own("PreToolUse", permissionDecision="allow", updatedInput=CHANGED)),
        (
            {"context": "mind", **WORDS},
            {**own("PreToolUse", additionalContext="mind"), "systemMessage": "a cat"},
        ),
    ],
    "gemini": [
        (DENY, {"decision": "deny", "reason": "no"}),
        (STOP, {"decision": "deny", "reason": "enough", "continue": False, "stopReason": "enough"}),
        (ASK, {"decision": "ask", "reason": "sure?", "systemMessage": "sure?"}),
        (REWRITE, own("BeforeTool", tool_input=CHANGED)),
    ],
    "qwen": [
        (DENY, {**denied("no"), **BLOCK_QWEN}),
        ({"stop": True, "stop_reason": "no"}, {**denied("no"), **BLOCK_QWEN}),
        ({**DENY, **STOP}, {**denied("no"), **BLOCK_QWEN}),
        (ASK, asked()),
        ({"input": {"command": "ls"}}, {}),  # it changes nothing
        ({"context": "mind"}, {}),  # it reaches the model with the result
    ],
    "opencode": [
        ({**DENY, **REWRITE}, {"deny": "no"}),
        (STOP, {"deny": "enough", "stop": True}),
        (REWRITE, {"input": {"command": "ls -l"}}),
        ({"context": "mind"}, {"context": "mind"}),
    ],
}
#: The same after a tool.
AFTER: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "claude": [
        (
            {**DENY, "context": "mind"},
            {"decision": "block", "reason": "no", **own("PostToolUse", additionalContext="mind")},
        ),
        ({"response": "b"}, own("PostToolUse", updatedToolOutput={**OUTPUT, "stdout": "b"})),
        ({"response": {"all": 1}}, own("PostToolUse", updatedToolOutput={"all": 1})),
    ],
    "codex": [
        (DENY, {"decision": "block", "reason": "no"}),
        ({"response": "b"}, {"decision": "block", "reason": "b"}),
        (
            {"response": {"b": 1}, "context": "mind", **STOP},
            {
                "decision": "block",
                "reason": '{"b": 1}',
                "continue": False,
                "stopReason": "enough",
                **own("PostToolUse", additionalContext="mind"),
            },
        ),
    ],
    "gemini": [
        ({**DENY, "context": "why"}, {"decision": "deny", "reason": "no\nwhy"}),
        ({"response": ["é"]}, {"decision": "deny", "reason": '["é"]'}),
        (WORDS, {"systemMessage": "a cat", "suppressOutput": True}),
    ],
    "qwen": [
        (DENY, own("PostToolUse", additionalContext="no")),
        ({"response": {"a": "é"}}, {"continue": False, "stopReason": '{"a": "é"}'}),
        ({**STOP, "response": "x"}, {"continue": False, "stopReason": "enough"}),
        # Nothing is told beside an error that stands in for the result.
        ({"response": "x", "context": "mind"}, {"continue": False, "stopReason": "x\nmind"}),
        (WORDS, {"systemMessage": "a cat", "suppressOutput": True}),
    ],
    "opencode": [
        ({"context": "mind"}, {"context": "mind"}),
        ({**DENY, "context": "c"}, {"context": "no\nc"}),
        ({"response": "x"}, {"output": "x"}),
        ({"response": {"a": [1]}}, {"output": '{"a": [1]}'}),
        (STOP, {"stop": True}),
    ],
}
#: The same after a tool that failed, where that is an event of its own.
FAILED: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "claude": [
        ({"response": "b"}, {}),
        ({"context": "c"}, own("PostToolUseFailure", additionalContext="c")),
    ],
    "qwen": [
        (
            {"response": "x", "context": "mind"},
            own("PostToolUseFailure", additionalContext="x\nmind"),
        )
    ],
}
NOTICE, TURN = HookEventName.NOTIFICATION, HookEventName.AFTER_AGENT
#: Other events, each with what it is to the engine; None for nothing.
READ: dict[str, list[tuple[dict[str, Any], tuple[HookEventName, dict[str, Any]] | None]]] = {
    "claude": [({"hook_event_name": "MessageDisplay"}, None)],
    "codex": [
        (
            {"hook_event_name": "PermissionRequest", "tool_name": "Bash"},
            (NOTICE, {"notification_type": PERMISSION, "message": "Codex asks to use Bash"}),
        ),
        ({"hook_event_name": "PermissionRequest", "tool_name": "B", "agent_id": "sub"}, None),
        ({"hook_event_name": "Interrupt"}, None),
    ],
    # Qwen Code tells of the result of each tool as of a prompt without words.
    "qwen": [({"hook_event_name": "UserPromptSubmit", "prompt": ""}, None)],
    "gemini": [
        (
            {"hook_event_name": "BeforeAgent", "prompt": "do it"},
            (HookEventName.BEFORE_AGENT, {"prompt": "do it"}),
        ),
        (
            {"hook_event_name": "AfterAgent", "prompt": "do it", "prompt_response": " \ndone "},
            (TURN, {"prompt": "do it", "prompt_response": "done"}),
        ),
        (
            {
                "hook_event_name": "Notification",
                "notification_type": "ToolPermission",
                "message": "Run it?",
            },
            (NOTICE, {"notification_type": PERMISSION, "message": "Run it?"}),
        ),
        (
            {"hook_event_name": "PreCompress", "trigger": "manual"},
            (HookEventName.PRE_COMPRESS, {"trigger": "manual"}),
        ),
        # Told before each request to the model, whether it is compacted or not.
        ({"hook_event_name": "PreCompress", "trigger": "auto"}, None),
        ({"hook_event_name": "BeforeModel"}, None),
    ],
    "opencode": [
        (
            {"hook_event_name": "chat.message", "prompt": "do it"},
            (HookEventName.BEFORE_AGENT, {"prompt": "do it"}),
        ),
        (
            {"hook_event_name": "session.idle", "prompt": "do it", "prompt_response": "done"},
            (TURN, {"prompt": "do it", "prompt_response": "done"}),
        ),
        (
            {"hook_event_name": "permission.asked", "about": "bash"},
            (NOTICE, {"notification_type": PERMISSION, "message": "opencode asks to use bash"}),
        ),
        (
            {"hook_event_name": "question.asked", "about": "Which?"},
            (NOTICE, {"notification_type": "question", "message": "Which?"}),
        ),
        (
            {"hook_event_name": "session.compacting", "trigger": "manual"},
            (HookEventName.PRE_COMPRESS, {"trigger": "manual"}),
        ),
        ({"hook_event_name": "session.created"}, None),
    ],
}


def codec_of(agent: str) -> HookCodec:
    made = make_hook_codec(agent)
    assert made is not None
    return made


def event_of(agent: str, after: bool = False, **more: Any) -> dict[str, Any]:
    before_name, after_name, facts = EVENTS[agent]
    event: dict[str, Any] = {"session_id": "S", "tool_name": "bash", "tool_input": INPUT, **facts}
    if after:
        return {**event, "hook_event_name": after_name, "tool_response": OUTPUT, **more}
    return {**event, "hook_event_name": before_name, **more}


def answered(codec: HookCodec, event: dict[str, Any], **result: Any) -> dict[str, Any]:
    call = codec.read(event)
    assert call is not None and call.waits
    return codec.answer(call, Aggregated(**result))


def cases(table: dict[str, list[Any]]) -> pytest.MarkDecorator:
    rows = [(agent, *row) for agent in table for row in table[agent]]
    return pytest.mark.parametrize(("agent", "result", "answer"), rows)


@pytest.mark.parametrize("agent", AGENTS)
def test_a_tool_call_is_read(agent: str) -> None:
    codec, id_ = codec_of(agent), "1" if EVENTS[agent][2] else ""
    fields: dict[str, Any] = {"tool_name": "bash", "tool_input": INPUT, "tool_use_id": id_}
    event = event_of(agent)
    assert codec.read(event) == AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, event)
    took = {"duration": 1} if agent == "opencode" else {"duration_ms": 1000}
    call = codec.read(event_of(agent, after=True, **took))
    seconds = None if agent == "gemini" else 1.0
    assert call is not None and call.event is HookEventName.AFTER_TOOL
    assert call.fields == {**fields, "tool_response": OUTPUT, "duration": seconds}


@cases(READ)
def test_other_events_are_read(
    agent: str, result: dict[str, Any], answer: tuple[HookEventName, dict[str, Any]] | None
) -> None:
    assert codec_of(agent).read(result) == (answer and AgentHookCall(*answer))


@pytest.mark.parametrize("name", [None, 7, {}, ["PreToolUse"], "SessionStart"])
@pytest.mark.parametrize("agent", AGENTS)
def test_what_the_engine_has_no_event_for_is_nothing_to_it(agent: str, name: object) -> None:
    assert codec_of(agent).read({"hook_event_name": name}) is None
    assert codec_of(agent).read({}) is None


@pytest.mark.parametrize("agent", AGENTS)
def test_what_nothing_is_said_of_goes_on_by_the_persons_own_rules(agent: str) -> None:
    codec = codec_of(agent)
    assert answered(codec, event_of(agent)) == {}
    assert answered(codec, event_of(agent), decision=Decision.ALLOW, reason="fine") == {}
    assert answered(codec, event_of(agent, after=True)) == {}


@cases(BEFORE)
def test_what_is_answered_before_a_tool(
    agent: str, result: dict[str, Any], answer: dict[str, Any]
) -> None:
    assert answered(codec_of(agent), event_of(agent), **result) == answer


@cases(AFTER)
def test_what_is_answered_after_a_tool(
    agent: str, result: dict[str, Any], answer: dict[str, Any]
) -> None:
    assert answered(codec_of(agent), event_of(agent, after=True), **result) == answer


@cases(FAILED)
def test_what_is_answered_after_a_tool_that_failed(
    agent: str, result: dict[str, Any], answer: dict[str, Any]
) -> None:
    event = {**event_of(agent), "hook_event_name": "PostToolUseFailure", "error": "no"}
    assert answered(codec_of(agent), event, **result) == answer


def test_opencode_cannot_ask_so_it_refuses() -> None:
    assert answered(codec_of("opencode"), event_of("opencode"), **ASK)["deny"].startswith("sure? ")


@pytest.mark.parametrize("agent", ["gemini", "qwen"])
def test_context_reaches_the_model_with_the_result_of_that_call(agent: str) -> None:
    codec, rewrite = codec_of(agent), REWRITE if agent == "gemini" else {}
    assert "additionalContext" not in str(
        answered(codec, event_of(agent), context="before", **rewrite)
    )
    # Gemini CLI's has no id: what tells it is its tool and its input, as it was changed.
    other = {"tool_call_id": "9"} if agent == "qwen" else {}
    assert answered(codec, event_of(agent, after=True, **other)) == {}
    same = {"tool_input": CHANGED} if agent == "gemini" else {}
    event = event_of(agent, after=True, **same)
    said = answered(codec, event, context="after")
    assert said["hookSpecificOutput"]["additionalContext"] == "before\nafter"
    assert answered(codec, event) == {}


def test_qwens_model_is_told_with_which_input_to_call_again() -> None:
    codec, event = codec_of("qwen"), event_of("qwen")
    result: dict[str, Any] = {**REWRITE, "context": "mind"}
    said = answered(codec, event, **result)
    assert said["decision"] == "block"
    assert said["reason"].endswith('{"command": "ls -l", "more": 1}\nmind')
    # It does, and the hook changes its input once more: what was offered is good enough.
    again = {**event, "tool_input": CHANGED, "tool_call_id": "2"}
    assert answered(codec, again, input={"command": "ls -l -l"}) == {}
    # The first call is not let through for it, nor one that a hook refuses.
    assert answered(codec, event, **result)["decision"] == "block"
    assert answered(codec, again, **DENY)["decision"] == "block"


@pytest.mark.parametrize("agent", ["gemini", "opencode"])
def test_a_port_is_bound_for_what_the_configuration_has_hooks_for(agent: str) -> None:
    for event in (*TOOL_EVENTS, *TURN_EVENTS):
        assert wants_tcp([agent], (event,))
    assert not wants_tcp([agent], ("Output", "SessionStart"))


@pytest.fixture(params=["claude", "codex", "qwen"])
def gate(request: pytest.FixtureRequest) -> HookCodec:
    made = make_hook_codec(request.param)
    assert made is not None
    return made


def test_a_tool_call_that_failed_is_read(gate: HookCodec) -> None:
    event = event_of("claude", hook_event_name="PostToolUseFailure", error="it broke")
    call = gate.read(event)
    assert call is not None and call.event is HookEventName.AFTER_TOOL and call.waits
    assert call.fields["tool_response"] == {"error": "it broke"}


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
    assert gate.read(event_of("claude", agent_id="sub")) is not None


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
    has = list(map(HookEventName, ("BeforeAgent", "PreCompress", "BeforeTool")))
    names = ": on_before_agent, on_pre_compress"
    assert untold("claude", {"hooks": True}, has) == []
    assert untold("qwen", {"tells": ["BeforeAgent", "PreCompress"]}, has) == []
    [note] = untold("qwen", {"tells": ["BeforeAgent"]}, has)
    assert note.endswith("started: on_pre_compress")
    [note] = untold("claude", {"hooks": True, "untold": "they are off"}, has)
    assert note == f"these hooks never run here, because they are off{names}"
    assert ungated("aider", {}, ()) == []
    [note] = untold("aider", {}, has)
    assert note.endswith(f"aider has no hooks of its own for them{names}")
