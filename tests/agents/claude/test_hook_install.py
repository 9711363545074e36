"""How relay's hooks are put into Claude Code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.agents.claude.launch import hooks, hooks_off
from relay.agents.known_agents import ungated
from relay.agents.launch import GATE_TIMEOUT, Launch, Run, plan
from relay.hooks.events import TOOL_CALL
from tests.agents.installs import install, run_of


def run(*events: str) -> Run:
    return run_of("Alice", token="secret", port=4711, primer=False, hooks=events)


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
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return install(tmp_path, "claude")


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


def test_a_hook_that_is_shown_finds_its_command_in_the_environment(claude: str) -> None:
    launch = plan([claude], {}, run("PreCompress"))
    report = hooks(run())["Stop"][0]["hooks"][0]["command"]
    assert launch.env == {"RELAY_REPORT": report}


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
