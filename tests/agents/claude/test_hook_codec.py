"""Claude Code's hook events and answers, translated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay.agents.claude.hook_codec import ClaudeHookCodec
from relay.agents.claude.launch import hooks, hooks_off
from relay.agents.known_agents import ungated, untold
from relay.agents.launch import GATE_TIMEOUT, Launch, Run, plan
from relay.hooks.events import TOOL_CALL
from relay.hooks.hook_types import Aggregated, Decision

CODEC = ClaudeHookCodec()
INPUT = {"command": "ls", "description": "List"}
OUTPUT = {"stdout": "a", "stderr": "", "interrupted": False}
BASE = {"session_id": "S", "tool_name": "Bash", "tool_input": INPUT, "tool_use_id": "toolu_1"}
BEFORE = {**BASE, "hook_event_name": "PreToolUse"}
AFTER = {**BASE, "hook_event_name": "PostToolUse", "tool_response": OUTPUT, "duration_ms": 1500}


def answered(event: dict[str, Any], result: Aggregated) -> dict[str, Any]:
    call = CODEC.read(event)
    assert call is not None and call.waits
    return CODEC.answer(call, result)


def decided(result: Aggregated) -> dict[str, Any]:
    """What is decided of a tool that is to run."""
    said = answered(BEFORE, result)["hookSpecificOutput"]
    assert isinstance(said, dict) and said.pop("hookEventName") == "PreToolUse"
    return said


def test_no_answer_and_consent_leave_the_persons_own_rules_alone() -> None:
    assert answered(BEFORE, Aggregated()) == {}
    assert answered(BEFORE, Aggregated(decision=Decision.ALLOW, reason="fine")) == {}
    assert answered(AFTER, Aggregated()) == {}


def test_a_refusal_has_its_reason_and_rewrites_nothing() -> None:
    result = Aggregated(decision=Decision.DENY, reason="no cats", input={"command": "rm"})
    reason = {"permissionDecision": "deny", "permissionDecisionReason": "no cats"}
    assert decided(result) == reason
    # Claude Code would run the tool before it stops.
    stop = answered(BEFORE, Aggregated(stop=True, stop_reason="enough"))
    assert (stop["continue"], stop["stopReason"]) == (False, "enough")
    assert stop["hookSpecificOutput"]["permissionDecision"] == "deny"


def test_the_person_is_asked_about_what_would_run() -> None:
    result = Aggregated(decision=Decision.ASK, reason="sure?", input={"command": "rm x"})
    assert decided(result) == {
        "permissionDecision": "ask",
        "permissionDecisionReason": "sure?",
        "updatedInput": {**INPUT, "command": "rm x"},
    }


def test_context_and_words_for_the_person() -> None:
    result = Aggregated(context="mind the cat", system_message="a cat", suppress_output=True)
    said = answered(BEFORE, result)
    assert (said["systemMessage"], said["suppressOutput"]) == ("a cat", True)
    assert said["hookSpecificOutput"]["additionalContext"] == "mind the cat"


def test_afterwards_a_reason_and_context_and_another_output() -> None:
    result = Aggregated(decision=Decision.DENY, reason="undo it", context="mind the cat")
    assert answered(AFTER, result) == {
        "decision": "block",
        "reason": "undo it",
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "mind the cat"},
    }
    said = answered(AFTER, Aggregated(response="b"))["hookSpecificOutput"]
    assert said["updatedToolOutput"] == {**OUTPUT, "stdout": "b"}
    said = answered(AFTER, Aggregated(response={"whole": 1}))["hookSpecificOutput"]
    assert said["updatedToolOutput"] == {"whole": 1}
    failed = {**AFTER, "hook_event_name": "PostToolUseFailure"}
    assert answered(failed, Aggregated(response="b")) == {}
    said = answered(failed, Aggregated(context="c"))["hookSpecificOutput"]
    assert said == {"hookEventName": "PostToolUseFailure", "additionalContext": "c"}


# -- how it is put in --------------------------------------------------------------------------


def run(*events: str) -> Run:
    return Run(name="Alice", run_id="R", token="secret", port=4711, primer=False, hooks=events)


def test_only_what_is_wanted_is_put_in() -> None:
    tools = {"PreToolUse", "PostToolUse", "PostToolUseFailure"}
    assert not tools & set(hooks(run()))
    assert tools & set(hooks(run("AfterTool"))) == {"PostToolUse", "PostToolUseFailure"}
    assert tools & set(hooks(run("BeforeTool", "Idle"))) == {"PreToolUse"}
    assert "PreCompact" not in hooks(run())
    [group] = hooks(run("PreCompress"))["PreCompact"]
    assert group["hooks"][0]["command"] == 'eval "$RELAY_REPORT"'  # it is shown


def test_the_gate_waits_long_and_stays_shut_without_a_session() -> None:
    chosen = hooks(run("BeforeTool", "AfterTool"))
    [[before], [after]] = [chosen[name][0]["hooks"] for name in ("PreToolUse", "PostToolUse")]
    assert before["timeout"] == after["timeout"] == GATE_TIMEOUT
    assert before["onFailure"] == "block" and "onFailure" not in after
    assert before["headers"]["Authorization"] == "Bearer $RELAY_TOKEN"
    assert "secret" not in json.dumps(chosen)


@pytest.fixture
def claude(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    program = tmp_path / "claude" / "versions" / "2.1.330"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(program)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return str(tmp_path / "bin" / "claude")


def planned(claude: str, home: Path, *arguments: str, hooked: bool = True) -> Launch:
    events = ("BeforeTool", "AfterTool") if hooked else ()
    return plan([claude, *arguments], {"HOME": str(home)}, run(*events))


def notes(launch: Launch) -> list[str]:
    return ungated(launch.profile, launch.data, lambda event: event in TOOL_CALL)


def test_the_persons_own_hooks_come_first(claude: str, tmp_path: Path) -> None:
    own = {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "true"}]}]}}
    launch = planned(claude, tmp_path, "--settings", json.dumps(own))
    first, second = json.loads(launch.argv[2])["hooks"]["PreToolUse"]
    assert first["hooks"][0]["command"] == "true" and second["hooks"][0]["type"] == "http"
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    assert notes(launch) == []


def test_nothing_is_said_of_tools_where_no_hook_is_for_them(claude: str, tmp_path: Path) -> None:
    launch = planned(claude, tmp_path, hooked=False)
    assert set(launch.data) == {"hooks", "context"} and launch.env == {}


def test_a_hook_that_is_shown_finds_its_command_in_the_environment(claude: str) -> None:
    launch = plan([claude], {}, run("PreCompress"))
    report = hooks(run())["Stop"][0]["hooks"][0]["command"]
    assert launch.env == {"RELAY_REPORT": report}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--bare"], "--bare turns hooks off"),
        (["--settings", '{"disableAllHooks": true}'], "--settings turns off all hooks"),
        (["--settings", "missing.json"], "cannot be extended"),
    ],
)
def test_who_cannot_be_gated_is_said(
    claude: str, tmp_path: Path, arguments: list[str], why: str
) -> None:
    launch = planned(claude, tmp_path, *arguments)
    assert "gates" not in launch.data
    [note] = notes(launch)
    assert why in note and "nothing is blocked" in note
    launch = plan([claude, *arguments], {}, run("AfterAgent"))
    [note] = untold("claude", launch.data, lambda event: event == "AfterAgent")
    assert why in note and note.endswith(": on_after_agent")
    [note] = notes(planned(claude, tmp_path, "mcp", "list"))
    assert "no conversation" in note


def test_which_settings_turn_hooks_off(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    env = {"HOME": str(home)}

    def write(folder: Path, name: str, text: str) -> str:
        path = folder / ".claude" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    assert hooks_off({}, env, str(project)) == ""
    user = write(home, "settings.json", '{"disableAllHooks": true}')
    assert hooks_off({}, env, str(project)) == user
    assert hooks_off({"disableAllHooks": False}, env, str(project)) == ""
    write(project, "settings.json", '{"disableAllHooks": false}')
    assert hooks_off({}, env, str(project)) == ""
    local = write(project, "settings.local.json", '{"disableAllHooks": true}')
    assert hooks_off({}, env, str(project)) == local
    write(project, "settings.local.json", "{damaged")
    assert hooks_off({}, env, str(project)) == ""
    assert hooks_off({"disableAllHooks": True}, env, str(project)) == "--settings"
    elsewhere = {**env, "CLAUDE_CONFIG_DIR": str(tmp_path / "nowhere")}
    (project / ".claude" / "settings.json").unlink()
    assert hooks_off({}, elsewhere, str(project)) == ""
