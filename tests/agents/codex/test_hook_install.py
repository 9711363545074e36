"""How relay's hooks are put into Codex."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from relay.agents.codex.launch import (
    PATIENCE,
    READER,
    TIMEOUT,
    UNASKED,
    hooks_off,
    ours,
    trusted_hash,
)
from relay.agents.hook_install import ANSWER_TIMEOUT
from relay.agents.known_agents import ungated
from relay.agents.launch import GATE_TIMEOUT, Launch, Run, plan
from relay.hooks.events import TOOL_CALL
from relay.session.tool_hooks import DEADLINE
from tests.agents.installs import install, run_of


def run(*events: str, port: int | None = 4711) -> Run:
    return run_of("Alice", token="secret", port=port, primer=False, hooks=events)


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
    return install(tmp_path, "codex")


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
