"""Qwen Code's hooks: how they are put in for one run, and how they are read and answered."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from relay.agents.hook_codec import AgentHookCall, HookCodec
from relay.agents.known_agents import make_hook_codec, ungated, untold
from relay.agents.launch import GATE_TIMEOUT, Launch, Run, plan
from relay.hooks.events import TOOL_CALL, HookEventName
from relay.hooks.hook_types import Aggregated, Decision

INPUT = {"command": "ls", "is_background": False}
BASE = {
    "session_id": "S",
    "tool_name": "run_shell_command",
    "tool_input": INPUT,
    "tool_use_id": "toolu_1",
    "tool_call_id": "call_1",
}
BEFORE = {**BASE, "hook_event_name": "PreToolUse"}
AFTER = {**BASE, "hook_event_name": "PostToolUse", "tool_response": {"llmContent": "a"}}


@pytest.fixture
def gate() -> HookCodec:
    made = make_hook_codec("qwen")
    assert made is not None
    return made


def answered(gate: HookCodec, event: dict[str, Any], result: Aggregated) -> dict[str, Any]:
    call = gate.read(event)
    assert call is not None and call.waits
    return gate.answer(call, result)


def test_tool_calls_are_read_with_the_model_s_own_id(gate: HookCodec) -> None:
    fields: dict[str, Any] = {
        "tool_name": "run_shell_command",
        "tool_input": INPUT,
        "tool_use_id": "call_1",
    }
    assert gate.read(BEFORE) == AgentHookCall(HookEventName.BEFORE_TOOL, fields, True, BEFORE)
    call = gate.read({**AFTER, "duration_ms": 250})
    assert call is not None and call.event is HookEventName.AFTER_TOOL
    assert call.fields == {**fields, "tool_response": {"llmContent": "a"}, "duration": 0.25}


def test_the_results_of_tools_are_no_prompts(gate: HookCodec) -> None:
    """Qwen Code 0.24.4 tells of each of them, in the same turn, as of a prompt without words."""
    assert gate.read({"hook_event_name": "UserPromptSubmit", "prompt": ""}) is None
    call = gate.read({"hook_event_name": "UserPromptSubmit", "prompt": "do it"})
    assert call == AgentHookCall(HookEventName.BEFORE_AGENT, {"prompt": "do it"})


def test_what_nothing_is_said_of_goes_on(gate: HookCodec) -> None:
    assert answered(gate, BEFORE, Aggregated()) == {}
    assert answered(gate, BEFORE, Aggregated(decision=Decision.ALLOW, reason="fine")) == {}
    assert answered(gate, AFTER, Aggregated()) == {}


@pytest.mark.parametrize(
    "result",
    [
        Aggregated(decision=Decision.DENY, reason="no"),
        Aggregated(stop=True, stop_reason="no"),
        Aggregated(decision=Decision.DENY, reason="no", stop=True, stop_reason="later"),
    ],
)
def test_a_refusal_is_said_in_every_way_that_counts(gate: HookCodec, result: Aggregated) -> None:
    said = answered(gate, BEFORE, result)
    assert (said["decision"], said["reason"]) == ("block", "no")
    assert (said["continue"], said["stopReason"]) == (False, "no")
    assert said["hookSpecificOutput"] == {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "no",
    }


def test_the_person_is_asked(gate: HookCodec) -> None:
    said = answered(gate, BEFORE, Aggregated(decision=Decision.ASK, reason="sure?"))
    assert said["hookSpecificOutput"]["permissionDecision"] == "ask"
    assert "continue" not in said and "decision" not in said


def test_the_model_is_told_with_which_input_to_call_again(gate: HookCodec) -> None:
    result = Aggregated(input={"command": "ls -l"}, context="mind the cat")
    said = answered(gate, BEFORE, result)
    changed = {**INPUT, "command": "ls -l"}
    assert said["decision"] == "block"
    assert said["reason"].endswith(f"{json.dumps(changed)}\nmind the cat")
    # It does, and the hook changes its input once more: what was offered is good enough.
    again = {**BEFORE, "tool_input": changed, "tool_call_id": "call_2"}
    assert answered(gate, again, Aggregated(input={"command": "ls -l -l"})) == {}
    # The first call is not let through for it, nor one that a hook refuses.
    assert answered(gate, BEFORE, result)["decision"] == "block"
    refused = Aggregated(decision=Decision.DENY, reason="no")
    assert answered(gate, again, refused)["decision"] == "block"


def test_a_change_that_changes_nothing_is_none(gate: HookCodec) -> None:
    assert answered(gate, BEFORE, Aggregated(input={"command": "ls"})) == {}


def test_context_reaches_the_model_with_the_result(gate: HookCodec) -> None:
    assert answered(gate, BEFORE, Aggregated(context="before")) == {}
    other = {**AFTER, "tool_call_id": "call_9"}
    assert answered(gate, other, Aggregated()) == {}
    said = answered(gate, AFTER, Aggregated(context="after"))
    assert said["hookSpecificOutput"] == {
        "hookEventName": "PostToolUse",
        "additionalContext": "before\nafter",
    }
    assert answered(gate, AFTER, Aggregated()) == {}


def test_what_is_said_after_a_tool(gate: HookCodec) -> None:
    said = answered(gate, AFTER, Aggregated(decision=Decision.DENY, reason="wrong"))
    assert said["hookSpecificOutput"]["additionalContext"] == "wrong"
    assert answered(gate, AFTER, Aggregated(response={"a": "é"})) == {
        "continue": False,
        "stopReason": '{"a": "é"}',
    }
    said = answered(gate, AFTER, Aggregated(stop=True, stop_reason="enough", response="x"))
    assert said == {"continue": False, "stopReason": "enough"}
    # Nothing is told beside an error that stands in for the result.
    both = Aggregated(response="x", context="mind the cat")
    assert answered(gate, AFTER, both)["stopReason"] == "x\nmind the cat"
    told = Aggregated(system_message="hello", suppress_output=True)
    assert answered(gate, AFTER, told) == {"systemMessage": "hello", "suppressOutput": True}


def test_the_error_of_a_tool_cannot_be_replaced_but_added_to(gate: HookCodec) -> None:
    failed = {**BASE, "hook_event_name": "PostToolUseFailure", "error": "no"}
    said = answered(gate, failed, Aggregated(response="x", context="mind the cat"))
    assert said == {
        "hookSpecificOutput": {
            "hookEventName": "PostToolUseFailure",
            "additionalContext": "x\nmind the cat",
        }
    }


# -- how they are put in ---------------------------------------------------------------------------


@pytest.fixture
def qwen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program that looks like Qwen Code of a version that is known, in a folder of its own."""
    package = tmp_path / "node_modules" / "@qwen-code" / "qwen-code"
    package.mkdir(parents=True)
    described = {"name": "@qwen-code/qwen-code", "version": "0.24.4"}
    (package / "package.json").write_text(json.dumps(described))
    program = package / "cli.js"
    program.write_text("#!/usr/bin/env node\n")
    program.chmod(0o755)
    (tmp_path / "qwen").symlink_to(program)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return str(tmp_path / "qwen")


def start(
    argv: list[str],
    base: Path,
    env: dict[str, str] | None = None,
    hooks: tuple[str, ...] = ("BeforeTool", "AfterTool"),
    port: int | None = 4321,
) -> Launch:
    run = Run(
        name="A",
        run_id="R",
        token="t",
        port=port,
        folder=str(base / "run"),
        primer=False,
        hooks=hooks,
    )
    # The machine's own settings, were there any, are out of the test's way.
    own = {"HOME": str(base / "home"), "PATH": os.environ["PATH"]}
    system = {"QWEN_CODE_SYSTEM_SETTINGS_PATH": str(base / "system" / "settings.json")}
    return plan(argv, {**own, **system, **(env or {})}, run)


def put_in(launch: Launch) -> dict[str, Any]:
    file = Path(launch.env["QWEN_CODE_SYSTEM_DEFAULTS_PATH"])
    assert file.stat().st_mode & 0o777 == 0o600
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def missed(launch: Launch) -> str:
    """Why nothing is put in."""
    assert not launch.env
    [note] = ungated("qwen", launch.data, lambda event: event in TOOL_CALL)
    return note


def test_hooks_go_into_the_lowest_settings(qwen: str, tmp_path: Path) -> None:
    launch = start([qwen], tmp_path)
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    assert ungated("qwen", launch.data, lambda event: True) == []
    hooks = put_in(launch)["hooks"]
    assert set(hooks) == {"PreToolUse", "PostToolUse", "PostToolUseFailure", "UserPromptSubmit"}
    [[hook]] = [group["hooks"] for group in hooks["PreToolUse"]]
    # In seconds: 1000 and more would be milliseconds.
    assert (hook["type"], hook["timeout"]) == ("command", 600)
    assert '"permissionDecision": "deny"' in hook["command"]
    assert not (tmp_path / "home").exists()


def test_what_the_machine_has_there_stays(qwen: str, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    theirs = {"ui": {"theme": "x"}, "hooks": {"PreToolUse": [{"hooks": []}], "Stop": []}}
    text = "// a comment\n" + json.dumps(theirs)
    (tmp_path / "system" / "system-defaults.json").write_text(text)
    found = put_in(start([qwen], tmp_path))
    assert found["ui"] == {"theme": "x"} and "$version" not in found
    assert found["hooks"]["PreToolUse"][0] == {"hooks": []}
    assert len(found["hooks"]["PreToolUse"]) == 2 and found["hooks"]["Stop"] == []
    (tmp_path / "mine.json").write_text('{"ui": {"theme": "y"}}')
    named = {"QWEN_CODE_SYSTEM_DEFAULTS_PATH": str(tmp_path / "mine.json")}
    assert put_in(start([qwen], tmp_path, named))["ui"] == {"theme": "y"}


def test_nothing_is_asked_that_nobody_asked_for(qwen: str, tmp_path: Path) -> None:
    launch = start([qwen], tmp_path, hooks=("SessionStart", "Output"))
    assert "gates" not in launch.data and "ungated" not in launch.data
    after = {"PostToolUse", "PostToolUseFailure"}
    # Messages may come with the answer after a tool, which is never waited for long.
    hooks = put_in(launch)["hooks"]
    [give] = hooks.pop("UserPromptSubmit")
    assert str(tmp_path / "run" / "context.json") in give["hooks"][0]["command"]
    assert set(hooks) == after
    assert {group["hooks"][0]["timeout"] for groups in hooks.values() for group in groups} == {3}
    assert "relay 2 2" in (tmp_path / "run" / "ask.sh").read_text()
    hooks = put_in(start([qwen], tmp_path, hooks=("AfterTool",)))["hooks"]
    assert set(hooks) == {*after, "UserPromptSubmit"}
    assert hooks["PostToolUse"][0]["hooks"][0]["timeout"] == GATE_TIMEOUT


def test_it_tells_of_turns_and_notices_without_waiting(qwen: str, tmp_path: Path) -> None:
    launch = start([qwen], tmp_path, hooks=("AfterAgent", "PreCompress", "Output"))
    assert launch.data["tells"] == ["AfterAgent", "PreCompress"] and "gates" not in launch.data
    has = launch.data["tells"].__contains__
    assert untold("qwen", launch.data, has) == []
    hooks = put_in(launch)["hooks"]
    assert {"Stop", "PreCompact"} < set(hooks)
    for event in ("Stop", "PreCompact"):
        [[hook]] = [group["hooks"] for group in hooks[event]]
        assert hook["async"] is True and str(tmp_path / "run" / "tell.sh") in hook["command"]
    assert (tmp_path / "run" / "tell.sh").stat().st_mode & 0o777 == 0o600
    [note] = untold("qwen", start([qwen, "--bare"], tmp_path, hooks=("AfterAgent",)).data, has)
    assert "--bare" in note and note.endswith(": on_after_agent, on_pre_compress")


@pytest.mark.parametrize(
    ("arguments", "env", "why"),
    [
        (["--bare"], {}, "--bare"),
        (["--safe-mode"], {}, "--safe-mode"),
        ([], {"QWEN_CODE_SAFE_MODE": "1"}, "QWEN_CODE_SAFE_MODE"),
        ([], {"PATH": "/nowhere"}, "bash"),
    ],
)
def test_it_is_said_where_there_are_no_hooks(
    qwen: str, tmp_path: Path, arguments: list[str], env: dict[str, str], why: str
) -> None:
    assert why in missed(start([qwen, *arguments], tmp_path, env))


def test_hooks_that_the_person_has_turned_off_stay_off(qwen: str, tmp_path: Path) -> None:
    own = tmp_path / "home" / ".qwen" / "settings.json"
    own.parent.mkdir(parents=True)
    own.write_text('{"disableAllHooks": true}')
    assert str(own) in missed(start([qwen], tmp_path))
    project = Path(".qwen/settings.json")
    project.parent.mkdir()
    project.write_text('{"disableAllHooks": false}')  # a later layer decides
    assert "gates" in start([qwen], tmp_path).data


def test_it_is_said_where_they_cannot_be_put_in(qwen: str, tmp_path: Path) -> None:
    assert "port" in missed(start([qwen], tmp_path, port=None))
    (tmp_path / "system").mkdir()
    defaults = tmp_path / "system" / "system-defaults.json"
    defaults.write_text("{broken")
    assert str(defaults) in missed(start([qwen], tmp_path))
    defaults.write_text('{"hooks": []}')
    assert "gates" in start([qwen], tmp_path).data  # empty, whatever its form
    defaults.write_text('{"hooks": "none"}')
    assert "no hooks could be put in" in missed(start([qwen], tmp_path))
