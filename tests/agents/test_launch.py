"""The plan for starting an agent: what is put in, what is left alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.agents.claude.launch import REPORTED
from relay.agents.known_agents import answers_once
from relay.agents.launch import (
    SKILL_SHELL,
    Launch,
    plan,
    wants_tcp,
)
from relay.agents.profile import ProfileError, parse_profile
from tests.agents.installs import TOKEN, install, run_of, start


@pytest.fixture
def claude(tmp_path: Path) -> str:
    return install(tmp_path, "claude")


def make(argv: list[str], port: int | None = 4321, primer: bool = False) -> Launch:
    return plan(argv, {}, run_of("Alice", token=TOKEN, port=port, primer=primer))


def settings(launch: Launch) -> dict[str, Any]:
    assert launch.argv[1] == "--settings"
    found = json.loads(launch.argv[2])
    assert isinstance(found, dict)
    return found


def test_other_programs_are_left_alone() -> None:
    launch = make(["vim", "--settings", "x"])
    assert (launch.argv, launch.env, launch.profile) == (["vim", "--settings", "x"], {}, "vim")
    assert make(["/bin/bash"]).profile == "shell"
    assert not wants_tcp(["vim"])


@pytest.mark.parametrize("flag", ["--bare", "--safe-mode", ""])
def test_where_no_hook_would_run_none_is_put_in(claude: str, flag: str) -> None:
    words = [claude, flag] if flag else [claude]
    launch = make(words, port=4321 if flag else None)
    assert launch.argv == words
    assert (flag or "no loopback port") in str(launch.data["degraded"])


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


def test_disabled_hooks_are_not_turned_on_again(claude: str) -> None:
    merged = settings(make([claude, "--settings", '{"disableAllHooks": true}']))
    assert merged["disableAllHooks"] is True
    assert "disableAllHooks" not in settings(make([claude]))


def test_the_primer_is_told_by_a_hook_and_survives_the_shell(claude: str) -> None:
    launch = plan([claude], {}, run_of("O'Neil", token="t", port=1, primer=True))
    told = settings(launch)["hooks"]["SessionStart"][0]["hooks"][1]["command"]
    done = subprocess.run(["sh", "-c", told], capture_output=True, text=True, check=True)
    output = json.loads(done.stdout)["hookSpecificOutput"]
    assert output["hookEventName"] == "SessionStart"
    assert "O'Neil" in output["additionalContext"]
    assert len(settings(make([claude]))["hooks"]["SessionStart"][0]["hooks"]) == 1


@pytest.mark.parametrize(
    ("profile", "words", "started", "headless"),
    [
        ("told_by: '--system {text}'", "-x", ["--system", "TOLD", "-x"], False),
        ("told_by: --read {file}", "", ["--read", "FILE"], False),
        ("told_by: -s {text}\nconverses_with: [chat]", "-m x chat -c", None, False),
        ("told_by: -s {text}\nconverses_with: [chat]", "-m x hello", ["-m", "x", "hello"], True),
        ("told_by: -s {text}\nanswers_once: [-p, '--print']", "--print=x", ["--print=x"], True),
        ("told_by: -s {text}", "-s mine", ["-s", "mine"], False),
        ("answers_once: [ls, -p]", "ls", ["ls"], True),
        ("answers_once: [ls, -p]", "show ls -- -p", ["show", "ls", "--", "-p"], False),
        ("enter: x", "-x", ["-x"], False),
    ],
)
def test_a_profile_says_how_a_program_is_told_and_when_it_is_no_conversation(
    tmp_path: Path, profile: str, words: str, started: list[str] | None, headless: bool
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    (folder / "chatty.yaml").write_text(profile)
    (folder / "chatty.yaml").chmod(0o600)
    parse_profile(profile, "chatty.yaml")  # the two readers agree
    run = run_of(
        "Al",
        token="t",
        port=None,
        folder=str(tmp_path / "run"),
        profiles=str(folder),
    )
    planned = plan(["chatty", *words.split()], {}, run)
    told = [word for word in planned.argv if "Your name here is Al" in word]
    file = str(tmp_path / "run" / "told" / "relay-primer.md")
    shown = ["TOLD" if word in told else word.replace(file, "FILE") for word in planned.argv[1:]]
    assert shown == (started or ["-m", "x", "chat", "-s", "TOLD", "-c"])
    assert answers_once("chatty", planned.data) == headless
    assert ("FILE" in shown) == Path(file).exists()


def test_a_program_that_looks_in_a_folder_for_what_it_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    (folder / "chatty.yaml").write_text("told_by: 'LOOK_IN={folder}/.instructions/AGENTS.md'")
    (folder / "chatty.yaml").chmod(0o600)
    run = run_of("Al", token="t", port=None, folder=str(tmp_path), profiles=str(folder))
    planned = plan(["chatty"], {}, run)
    assert planned.argv == ["chatty"] and list(planned.env) == ["LOOK_IN"]
    assert (
        "Your name here is Al"
        in Path(planned.env["LOOK_IN"], ".instructions", "AGENTS.md").read_text()
    )
    parse_profile("told_by: 'LOOK_IN={folder}/.instructions/AGENTS.md'", "chatty.yaml")
    with pytest.raises(ProfileError):
        parse_profile("told_by: 'LOOK_IN={folder}/../AGENTS.md'", "chatty.yaml")
    assert plan(["chatty"], {"LOOK_IN": "/theirs"}, run).env == {}


def test_a_profile_that_others_can_write_to_is_not_asked_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    (folder / "chatty.yaml").write_text("told_by: --system {text}")
    (folder / "chatty.yaml").chmod(0o666)
    run = run_of("Al", token="t", port=None, profiles=str(folder))
    assert plan(["chatty"], {}, run).argv == ["chatty"]


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


@pytest.mark.parametrize(
    ("agent", "settings", "words"),
    [
        ("codex", ".codex", ["-C", "below"]),
        ("opencode", "opencode.json", ["below"]),
        ("opencode", ".opencode", ["below"]),
    ],
    ids=["codex", "opencode", "opencode's tools"],
)
def test_where_a_project_can_change_relays_server_its_tools_have_no_name(
    agent: str,
    settings: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both merge a project's server of that name into ours: its environment, say, PYTHONPATH."""
    package = {"codex": "@openai/codex", "opencode": "opencode-ai"}[agent]
    program = tmp_path / "home" / "installed" / agent
    program.parent.mkdir(parents=True)
    program.write_text("")
    told = {"name": package, "version": "9.0.0"}
    (program.parent / "package.json").write_text(json.dumps(told))
    below = tmp_path / "home" / "project" / "below"
    below.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(below)

    def known(*more: str) -> object:
        run = run_of("Al", token=TOKEN, port=4321, primer=False, mcp=True)
        return plan([str(program), *more], {}, run).data["mcp"]

    (tmp_path / "home" / settings).mkdir()  # the person's own
    assert known() is True
    assert known(*words) is False  # it works in another folder
    (below.parent / settings).mkdir()
    assert known() is False
