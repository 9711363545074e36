"""opencode's tool calls: how relay's plugin is put in, and how it is read and answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from relay.agents.hook_codec import AgentHookCall
from relay.agents.known_agents import ungated, untold
from relay.agents.launch import Launch, Run, plan
from relay.agents.opencode.hook_codec import OpencodeHookCodec
from relay.agents.opencode.launch import OLDEST
from relay.hooks.events import TOOL_CALL, HookEventName
from relay.hooks.hook_types import Aggregated, Decision
from tests.agents.opencode.test_launch import installed

VERSION = ".".join(map(str, OLDEST))
CODEC = OpencodeHookCodec()
INPUT = {"command": "ls", "timeout": 1}
BASE = {"session_id": "ses", "tool_name": "bash", "tool_input": INPUT, "tool_use_id": "call_1"}
BEFORE = {**BASE, "hook_event_name": "tool.execute.before"}
AFTER = {**BASE, "hook_event_name": "tool.execute.after", "tool_response": "a\n", "duration": 1}


def answered(event: dict[str, Any], result: Aggregated) -> dict[str, Any]:
    call = CODEC.read(event)
    assert call is not None and call.waits
    return CODEC.answer(call, result)


def test_tool_calls_are_read() -> None:
    fields: dict[str, Any] = {"tool_name": "bash", "tool_input": INPUT, "tool_use_id": "call_1"}
    assert CODEC.read(BEFORE) == AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, BEFORE)
    fields = {**fields, "tool_response": "a\n", "duration": 1.0}
    assert CODEC.read(AFTER) == AgentHookCall(HookEventName.AFTER_TOOL, fields, True, AFTER)
    assert CODEC.read({"hook_event_name": "session.created"}) is None
    assert CODEC.read({}) is None


@pytest.mark.parametrize(
    ("event", "name", "fields"),
    [
        (
            {"hook_event_name": "chat.message", "prompt": "do it"},
            HookEventName.BEFORE_AGENT,
            {"prompt": "do it"},
        ),
        (
            {"hook_event_name": "session.idle", "prompt": "do it", "prompt_response": "done"},
            HookEventName.AFTER_AGENT,
            {"prompt": "do it", "prompt_response": "done"},
        ),
        (
            {"hook_event_name": "permission.asked", "about": "bash"},
            HookEventName.NOTIFICATION,
            {"notification_type": "permission_prompt", "message": "opencode asks to use bash"},
        ),
        (
            {"hook_event_name": "question.asked", "about": "Which one?"},
            HookEventName.NOTIFICATION,
            {"notification_type": "question", "message": "Which one?"},
        ),
        (
            {"hook_event_name": "session.compacting", "trigger": "manual"},
            HookEventName.PRE_COMPRESS,
            {"trigger": "manual"},
        ),
    ],
)
def test_turns_and_notices_are_read(
    event: dict[str, Any], name: HookEventName, fields: dict[str, Any]
) -> None:
    assert CODEC.read(event) == AgentHookCall(name, fields)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Aggregated(), {}),
        (Aggregated(decision=Decision.ALLOW, reason="fine"), {}),
        (Aggregated(decision=Decision.DENY, reason="no", input={"a": 1}), {"deny": "no"}),
        (Aggregated(stop=True, stop_reason="enough"), {"deny": "enough", "stop": True}),
        (Aggregated(input={"command": "ls -l"}), {"input": {"command": "ls -l"}}),
        (Aggregated(context="mind"), {"context": "mind"}),
    ],
)
def test_what_is_said_before_a_tool(result: Aggregated, said: dict[str, Any]) -> None:
    assert answered(BEFORE, result) == said


def test_the_person_cannot_be_asked_so_it_is_a_refusal() -> None:
    said = answered(BEFORE, Aggregated(decision=Decision.ASK, reason="sure?"))
    assert said["deny"].startswith("sure? ")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (Aggregated(), {}),
        (Aggregated(context="mind"), {"context": "mind"}),
        (Aggregated(decision=Decision.DENY, reason="no", context="c"), {"context": "no\nc"}),
        (Aggregated(response="x"), {"output": "x"}),
        (Aggregated(response={"a": [1]}), {"output": '{"a": [1]}'}),
        (Aggregated(stop=True, stop_reason="enough"), {"stop": True}),
    ],
)
def test_what_is_said_after_a_tool(result: Aggregated, said: dict[str, Any]) -> None:
    assert answered(AFTER, result) == said


# -- how it is put in ------------------------------------------------------------------------------


def start(
    argv: list[str],
    env: dict[str, str] | None = None,
    *,
    hooks: tuple[str, ...] = ("BeforeTool", "AfterTool"),
    port: int | None = 4321,
) -> Launch:
    run = Run(name="A", run_id="R", token="t", port=port, primer=False, hooks=hooks)
    return plan(argv, env or {}, run)


def plugins(launch: Launch) -> list[str]:
    found: list[str] = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])["plugin"]
    return found


def missed(launch: Launch) -> str:
    """Why nothing is put in."""
    assert "OPENCODE_CONFIG_CONTENT" not in launch.env and "RELAY_GATES" not in launch.env
    [note] = ungated("opencode", launch.data, lambda event: event in TOOL_CALL)
    return note


def test_the_plugin_is_named_behind_the_person_s(tmp_path: Path) -> None:
    opencode = installed(tmp_path, VERSION)
    launch = start([opencode])
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    assert launch.env["RELAY_GATES"] == "BeforeTool,AfterTool"
    [address] = plugins(launch)
    assert Path(unquote(urlsplit(address).path)).read_text().startswith("// Asks relay")
    theirs = {"OPENCODE_CONFIG_CONTENT": '{"plugin": ["theirs"], "theme": "x"}'}
    both = start([opencode], theirs)
    assert plugins(both) == ["theirs", address]
    assert json.loads(both.env["OPENCODE_CONFIG_CONTENT"])["theme"] == "x"


def test_nothing_is_put_in_that_nobody_asked_for(tmp_path: Path) -> None:
    opencode = installed(tmp_path, VERSION)
    launch = start([opencode], hooks=("Output",))
    assert not {"OPENCODE_CONFIG_CONTENT", "RELAY_GATES"} & launch.env.keys()
    assert "gates" not in launch.data and "ungated" not in launch.data
    assert start([opencode], hooks=("AfterTool",)).env["RELAY_GATES"] == "AfterTool"
    launch = start([opencode], hooks=("BeforeTool", "AfterAgent"))
    assert (launch.data["gates"], launch.data["tells"]) == (["BeforeTool"], ["AfterAgent"])
    assert launch.env["RELAY_GATES"] == "BeforeTool,AfterAgent"
    assert launch.env["RELAY_TELLS"] == ""  # not that of an opencode around this run


@pytest.mark.parametrize(
    ("arguments", "env", "why"),
    [
        (["--pure"], {}, "--pure"),
        ([], {"OPENCODE_PURE": "1"}, "OPENCODE_PURE"),
        (["--mini"], {}, "--mini"),
        (["attach", "http://127.0.0.1:1"], {}, "attached"),
        ([], {"OPENCODE_CONFIG_CONTENT": "{broken"}, "could not be extended"),
        ([], {"OPENCODE_CONFIG_CONTENT": '{"plugin": 1}'}, "could not be extended"),
    ],
)
def test_it_is_said_where_there_is_no_plugin(
    tmp_path: Path, arguments: list[str], env: dict[str, str], why: str
) -> None:
    opencode = installed(tmp_path, VERSION)
    assert why in missed(start([opencode, *arguments], env))
    launch = start([opencode, *arguments], env, hooks=("AfterAgent",))
    [note] = untold("opencode", launch.data, lambda event: event is HookEventName.AFTER_AGENT)
    assert why in note and note.endswith(": on_after_agent")


def test_it_is_said_of_a_version_that_is_not_known_and_without_a_port(tmp_path: Path) -> None:
    assert "port" in missed(start([installed(tmp_path / "new", VERSION)], port=None))
    assert "not known" in missed(start([installed(tmp_path / "old", "1.0.0")]))
