"""Codex's hook events and answers, translated."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from relay.agents.codex.hook_codec import ASKS, CodexHookCodec
from relay.agents.codex.launch import (
    PATIENCE,
    READER,
    TIMEOUT,
    UNASKED,
    hooks_off,
    ours,
    trusted_hash,
)
from relay.agents.hook_codec import AgentHookCall
from relay.agents.hook_scripts import ANSWER_TIMEOUT
from relay.agents.known_agents import ungated
from relay.agents.launch import GATE_TIMEOUT, Launch, Run, plan
from relay.hooks.events import TOOL_CALL, HookEventName
from relay.hooks.hook_types import Aggregated, Decision
from relay.session.tool_hooks import DEADLINE

CODEC = CodexHookCodec()
INPUT = {"command": "ls", "more": 1}
BASE = {"session_id": "S", "tool_name": "Bash", "tool_input": INPUT, "tool_use_id": "call_1"}
BEFORE = {**BASE, "hook_event_name": "PreToolUse"}
AFTER = {**BASE, "hook_event_name": "PostToolUse", "tool_response": "a\n"}


def answered(event: dict[str, Any], result: Aggregated) -> dict[str, Any]:
    call = CODEC.read(event)
    assert call is not None and call.waits
    return CODEC.answer(call, result)


def decided(result: Aggregated) -> dict[str, Any]:
    """What is decided of a tool that is to run."""
    said = answered(BEFORE, result)["hookSpecificOutput"]
    assert isinstance(said, dict) and said.pop("hookEventName") == "PreToolUse"
    return said


def test_a_dialog_is_a_notice() -> None:
    asks = {"hook_event_name": "PermissionRequest", "tool_name": "Bash"}
    told = {"notification_type": "permission_prompt", "message": "Codex asks to use Bash"}
    assert CODEC.read(asks) == AgentHookCall(HookEventName.NOTIFICATION, told)
    assert CODEC.read({**asks, "agent_id": "sub"}) is None
    assert CODEC.read({"hook_event_name": "Interrupt"}) is None


def test_no_answer_and_consent_leave_the_persons_own_rules_alone() -> None:
    assert answered(BEFORE, Aggregated()) == {}
    assert answered(BEFORE, Aggregated(decision=Decision.ALLOW, reason="fine")) == {}
    assert answered(AFTER, Aggregated()) == {}


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Aggregated(decision=Decision.DENY, reason="no cats"), "no cats"),
        (Aggregated(stop=True, stop_reason="enough"), "enough"),
        (Aggregated(decision=Decision.ASK, reason="sure?"), f"{ASKS}: sure?"),
        (Aggregated(decision=Decision.ASK), ASKS),
    ],
)
def test_a_refusal_has_its_reason_and_rewrites_nothing(result: Aggregated, reason: str) -> None:
    result.input = {"command": "rm"}
    said = decided(result)
    assert said == {"permissionDecision": "deny", "permissionDecisionReason": reason}


def test_a_rewrite_is_whole_and_comes_with_consent() -> None:
    assert decided(Aggregated(input={"command": "ls -l"})) == {
        "permissionDecision": "allow",
        "updatedInput": {**INPUT, "command": "ls -l"},
    }


def test_context_and_words_for_the_person() -> None:
    said = answered(BEFORE, Aggregated(context="mind the cat", system_message="a cat"))
    assert said == {
        "systemMessage": "a cat",
        "hookSpecificOutput": {"hookEventName": "PreToolUse", "additionalContext": "mind the cat"},
    }


def test_afterwards_a_reason_takes_the_outputs_place() -> None:
    block = {"decision": "block", "reason": "undo it"}
    assert answered(AFTER, Aggregated(decision=Decision.DENY, reason="undo it")) == block
    assert answered(AFTER, Aggregated(response="b")) == {"decision": "block", "reason": "b"}
    said = answered(AFTER, Aggregated(response={"b": 1}, context="c", stop=True, stop_reason="s"))
    assert said == {
        "decision": "block",
        "reason": '{"b": 1}',
        "continue": False,
        "stopReason": "s",
        "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "c"},
    }


# -- how it is put in --------------------------------------------------------------------------


def run(*events: str, port: int | None = 4711) -> Run:
    return Run(name="Alice", run_id="R", token="secret", port=port, primer=False, hooks=events)


def test_only_what_is_wanted_is_put_in() -> None:
    tools = {"PreToolUse", "PostToolUse"}
    # Messages may come with the answer after a tool, which is never waited for long.
    assert tools & set(ours(run())) == {"PostToolUse"}
    [steered] = ours(run())["PostToolUse"][0]["hooks"]
    assert steered["timeout"] == TIMEOUT and "exit 2" not in steered["command"]
    assert tools & set(ours(run("AfterTool", "Idle"))) == {"PostToolUse"}
    assert tools & set(ours(run("BeforeTool"))) == tools
    assert "PreCompact" in ours(run("PreCompress")) and "PreCompact" not in ours(run())


def test_the_gate_waits_long_and_refuses_before_codex_loses_patience() -> None:
    chosen = ours(run("BeforeTool", "AfterTool"))
    [before], [after] = chosen["PreToolUse"][0]["hooks"], chosen["PostToolUse"][0]["hooks"]
    assert before["timeout"] == after["timeout"] == GATE_TIMEOUT
    assert DEADLINE < PATIENCE < GATE_TIMEOUT - ANSWER_TIMEOUT
    assert UNASKED in before["command"] and UNASKED not in after["command"]
    assert not before.get("async") and "secret" not in str(chosen)


@pytest.fixture
def codex(tmp_path: Path) -> str:
    program = tmp_path / "bin" / "codex"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    (tmp_path / "package.json").write_text('{"name": "@openai/codex", "version": "0.169.0"}')
    return str(program)


def notes(launch: Launch) -> list[str]:
    return ungated(launch.profile, launch.data, lambda event: event in TOOL_CALL)


def test_the_gates_are_trusted_by_their_hash_and_no_others(codex: str) -> None:
    launch = plan([codex], {}, run("BeforeTool", "AfterTool"))
    flags = dict(word.split("=", 1) for word in launch.argv if word.startswith("hooks."))
    [group] = tomllib.loads(f"value = {flags['hooks.PreToolUse']}")["value"]
    trust = tomllib.loads(f"value = {flags['hooks.state']}")["value"]
    key = "/<session-flags>/config.toml:pre_tool_use:0:0"
    assert trust[key] == {"trusted_hash": trusted_hash("PreToolUse", group["hooks"][0])}
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"] and notes(launch) == []


def test_who_cannot_be_gated_is_said(codex: str) -> None:
    events = ("BeforeTool", "AfterTool")
    for launch, why in (
        (plan([codex, "--remote", "host"], {}, run(*events)), "--remote"),
        (plan([codex, "-c", "hooks=1"], {}, run(*events)), "cannot be extended"),
        (plan([codex], {}, run(*events, port=None)), "no loopback port"),
    ):
        [note] = notes(launch)
        assert why in note and "nothing is blocked" in note
    [note] = notes(plan([codex, "exec", "x"], {}, run(*events)))
    assert "no conversation" in note
    assert "ungated" not in plan([codex, "--remote", "host"], {}, run()).data


def test_which_settings_turn_hooks_off(tmp_path: Path, codex: str) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    env = {"CODEX_HOME": str(home)}

    def off(*words: str) -> str:
        return hooks_off(READER.read(list(words)), env, str(project))

    def write(folder: Path, text: str) -> str:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "config.toml"
        path.write_text(text)
        return str(path)

    assert off() == ""
    assert off("--disable", "hooks") == "--disable"
    assert off("--disable", "other", "-c", "features.other=false") == ""
    assert off("-c", "features.hooks = false") == "-c features.hooks = false"
    assert off("--disable", "hooks", "-cfeatures.hooks=true") == ""
    user = write(home, "[features]\nhooks = false\n")
    assert off() == user
    assert off("--disable=hooks", "--enable=hooks") == ""
    write(home, "[features]\nhooks = true\n[profiles.work.features]\nhooks = false\n")
    assert off() == user
    write(home, "features = 1\nprofiles = 2\n")
    assert off() == ""
    write(home, "[damaged")
    assert off() == ""
    own = write(project / ".codex", "features.hooks = false")
    assert off() == own
    assert hooks_off(READER.read([]), {"HOME": str(project)}, str(tmp_path)) == own
    launch = plan([codex, "--disable", "hooks"], env, run("BeforeTool"))
    [note] = notes(launch)
    assert "--disable turns off all hooks" in note
