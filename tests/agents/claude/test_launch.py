"""How Claude Code is started: the settings and hooks that are put in, what stays the person's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.agents.claude.launch import REPORTED, hooks, hooks_off
from relay.agents.launch import GATE_TIMEOUT, SKILL_SHELL, Launch, Run, plan, wants_tcp
from tests.agents.installs import TOKEN, install, run_of, start


def run(*events: str) -> Run:
    return run_of("Alice", token="secret", port=4711, primer=False, hooks=events)


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


def make(argv: list[str], port: int | None = 4321, primer: bool = False) -> Launch:
    return plan(argv, {}, run_of("Alice", token=TOKEN, port=port, primer=primer))


def settings(launch: Launch) -> dict[str, Any]:
    assert launch.argv[1] == "--settings"
    found = json.loads(launch.argv[2])
    assert isinstance(found, dict)
    return found


def test_hooks_are_put_in_front_of_the_users_arguments(claude: str) -> None:
    launch = make([claude, "--model", "x", "--", "--settings", "is a prompt"])
    assert launch.argv[3:] == ["--model", "x", "--", "--settings", "is a prompt"]
    assert wants_tcp(launch.argv)
    hooks = settings(launch)["hooks"]
    assert set(hooks) == {"MessageDisplay", *REPORTED}
    assert set(launch.data) == {"hooks", "context"}
    assert launch.profile == "claude"


@pytest.mark.parametrize(
    "rest",
    [["-p", "hi"], ["--print", "hi"], ["-cp"], ["--model", "x", "-p", "--", "-v"]],
    ids=["short", "long", "joined", "later"],
)
def test_one_that_answers_once_is_told_nothing_and_its_gates_stay(
    claude: str, rest: list[str]
) -> None:
    run = run_of("Alice", token=TOKEN, port=4321, hooks=("BeforeTool",))
    launch = plan([claude, *rest], {}, run)
    assert launch.data == {"headless": True, "hooks": True, "gates": ["BeforeTool"]}
    hooks = settings(launch)["hooks"]
    assert set(hooks) == {"MessageDisplay", "PreToolUse", *REPORTED}
    assert "context" not in json.dumps(hooks["UserPromptSubmit"])
    assert "Alice" not in launch.argv[2]


def test_where_commands_of_skills_are_to_be_left_out_its_settings_say_so(claude: str) -> None:
    run = run_of("Alice", token=TOKEN, port=4321, without=(SKILL_SHELL,))
    off = {"disableSkillShellExecution": True}
    told = settings(plan([claude, "--settings", '{"model": "x"}'], {}, run))
    assert told.items() >= {**off, "model": "x"}.items()
    assert not settings(make([claude])).keys() & off.keys()


def test_what_claude_waits_for_has_a_short_deadline(claude: str) -> None:
    for event, groups in settings(make([claude]))["hooks"].items():
        hook, *told = groups[0]["hooks"]
        for give in told:  # it waits for nobody
            assert event == "UserPromptSubmit" and give["command"].startswith("mv ")
        if event == "MessageDisplay":
            assert (hook["type"], hook["timeout"]) == ("http", 0.5)
        else:
            assert (hook["type"], hook["async"]) == ("command", True)


@pytest.mark.parametrize("form", ["json", "joined", "file", "relative file"])
def test_the_users_settings_are_merged(
    claude: str, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"model": "opus", "hooks": {"Stop": [{"hooks": [{"type": "command"}]}], "X": [1]}}
    text = json.dumps(mine)
    file = tmp_path / "mine.json"
    file.write_text(text)
    monkeypatch.chdir(tmp_path)
    given = {
        "json": ["--settings", text],
        "joined": [f"--settings={text}"],
        "file": ["--settings", str(file)],
        "relative file": ["--settings=mine.json"],
    }[form]
    launch = make([claude, "--settings", '{"model": "not this"}', *given, "go"])
    merged = settings(launch)
    assert launch.argv[3:] == ["go"]
    assert merged["model"] == "opus"
    assert merged["hooks"]["X"] == [1]
    assert merged["hooks"]["Stop"][0] == {"hooks": [{"type": "command"}]}
    assert len(merged["hooks"]["Stop"]) == 2
    assert file.read_text() == text


@pytest.mark.parametrize(
    "given",
    [
        ["--settings", "/no/such/file"],
        ["--settings", "{not json"],
        ["--settings", '{"hooks": "x"}'],
        ["--settings", '{"hooks": {"Stop": "x"}}'],
        ["--settings"],
        ["--settings", json.dumps({"x": "y" * 200_000})],
    ],
)
def test_settings_that_cannot_be_extended_stay(claude: str, given: list[str]) -> None:
    words = [claude, *given]
    launch = start(Path("/nowhere"), words, hooks=("BeforeTool",), mcp=True)
    assert (launch.argv, launch.profile) == (words, "claude")
    assert "--settings" in str(launch.data["degraded"])
    # Nothing may count on a gate, or on tools of relay's, that is not there.
    assert launch.data["hooks"] is False and not {"gates", "mcp"} & launch.data.keys()
    assert "--settings" in str(launch.data["ungated"])


def test_the_primer_is_told_by_a_hook_and_survives_the_shell(claude: str) -> None:
    launch = plan([claude], {}, run_of("O'Neil", token="t", port=1, primer=True))
    told = settings(launch)["hooks"]["SessionStart"][0]["hooks"][1]["command"]
    done = subprocess.run(["sh", "-c", told], capture_output=True, text=True, check=True)
    output = json.loads(done.stdout)["hookSpecificOutput"]
    assert output["hookEventName"] == "SessionStart"
    assert "O'Neil" in output["additionalContext"]
    assert len(settings(make([claude]))["hooks"]["SessionStart"][0]["hooks"]) == 1


def test_relays_server_stands_beside_what_is_the_persons(claude: str) -> None:
    def started(*words: str) -> Launch:
        run = run_of("Alice", token=TOKEN, port=4321, primer=False, mcp=True)
        return plan([claude, *words], {}, run)

    theirs = {"permissions": {"allow": ["Read"], "deny": ["mcp__relay__send"]}}
    words = ["--settings", json.dumps(theirs), "--mcp-config", "mine.json", "hello"]
    launch = started(*words)
    assert settings(launch)["permissions"] == {
        "allow": ["Read", "mcp__relay"],
        "deny": ["mcp__relay__send"],
    }
    # In one word, for the option would take their prompt for a file, too.
    [server] = [one for one in launch.argv if one.startswith("--mcp-config=")]
    assert list(json.loads(server.partition("=")[2])["mcpServers"]) == ["relay"]
    assert launch.argv[-3:] == ["--mcp-config", "mine.json", "hello"]
    assert launch.data["mcp"] is True and TOKEN not in str(launch.argv)
    # Where nobody converses, an agent costs what it would without relay.
    for headless in (started("-p", "hello"), started("mcp", "list"), make([claude])):
        assert "mcp" not in headless.data and "mcpServers" not in str(headless.argv)
