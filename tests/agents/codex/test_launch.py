"""How Codex is started: relay's hooks and their trust on the command line, all else as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from relay.agents.codex.launch import (
    PATIENCE,
    READER,
    REPORTED,
    UNASKED,
    hooks_off,
    ours,
    trusted_hash,
)
from relay.agents.hook_install import ANSWER_TIMEOUT
from relay.agents.launch import GATE_TIMEOUT, Run, plan
from relay.session.tool_hooks import DEADLINE
from tests.agents.installs import install, run_of


def run(*events: str, port: int | None = 4711, primer: bool = True) -> Run:
    return run_of("Alice", token="secret", port=port, primer=primer, hooks=events)


@pytest.fixture
def codex(tmp_path: Path) -> str:
    return install(tmp_path, "codex")


def config(argv: list[str]) -> dict[str, Any]:
    """What all ``-c`` flags come to."""
    given = [argv[at + 1] for at, word in enumerate(argv) if word == "-c"]
    parsed: dict[str, Any] = {}
    for flag in given:
        key, _, value = flag.partition("=")
        parsed[key] = tomllib.loads(f"value = {value}")["value"]
    return parsed


def test_hooks_are_put_in_and_trusted_by_their_hash_and_no_others(codex: str) -> None:
    chosen = plan([codex, "resume", "--last"], {}, run("BeforeTool"))
    assert chosen.profile == "codex"
    context = {"file": "context.json", "event": "UserPromptSubmit"}
    unasked = ["web_search", "write_stdin"]
    assert chosen.data == {
        **{"heard": True, "hooks": True, "primed": True, "program": codex},
        **{"context": context, "unasked": unasked, "gates": ["BeforeTool"]},
    }
    assert chosen.argv[:2] == [codex, "--no-daemon"]
    assert chosen.argv[-2:] == ["resume", "--last"]
    settings = config(chosen.argv)
    trust = settings.pop("hooks.state")
    assert set(settings) == {f"hooks.{event}" for event in (*REPORTED, "PreToolUse", "PostToolUse")}
    for key, groups in settings.items():
        event = key.removeprefix("hooks.")
        for number, group in enumerate(groups):
            place = f"/<session-flags>/config.toml:{snake(event)}:{number}:0"
            assert trust.pop(place) == {"trusted_hash": trusted_hash(event, group["hooks"][0])}
    assert trust == {}
    assert "secret" not in " ".join(chosen.argv)
    assert "Your name here is Alice" in settings["hooks.SessionStart"][1]["hooks"][0]["command"]


def test_the_hash_is_the_one_that_codex_computes() -> None:
    # As ``hooks/list`` of Codex 0.169.0 told it.
    hook = {"type": "command", "command": "true", "timeout": 10}
    known = "sha256:8ba29ded04038c52832548d01a197dd3c24aac6e21d816f388f046ab09768060"
    assert trusted_hash("Stop", hook) == known


def test_hooks_of_the_user_s_on_the_command_line_stay(codex: str) -> None:
    theirs = '[{matcher="*",hooks=[{type="command",command="say \\"é\\""}]}]'
    words = ["-c", f"hooks.Stop={theirs}", "-chooks.PreToolUse=[]", "-c", "model=x"]
    state = '--config=hooks.state={"mine"={trusted_hash="sha256:1"}}'
    chosen = plan([codex, *words, state, "--no-daemon", "-C", "dir", "hello"], {}, run())
    assert chosen.argv.count("--no-daemon") == 1
    assert chosen.argv[-6:] == ["-c", "model=x", "--no-daemon", "-C", "dir", "hello"]
    settings = config(chosen.argv[:-6])
    [own, ours] = settings["hooks.Stop"]
    assert own == {"matcher": "*", "hooks": [{"type": "command", "command": 'say "é"'}]}
    assert ours["hooks"][0]["async"] is True
    assert settings["hooks.PreToolUse"] == []
    assert settings["hooks.state"]["mine"] == {"trusted_hash": "sha256:1"}
    assert "/<session-flags>/config.toml:stop:1:0" in settings["hooks.state"]


@pytest.mark.parametrize("flag", ["hooks={Stop=[]}", "hooks.Stop=[", 'hooks.state."a".x=1'])
def test_hooks_that_cannot_be_extended_are_left_alone(codex: str, flag: str) -> None:
    chosen = plan([codex, "-c", flag], {}, run())
    assert chosen.argv == [codex, "--no-daemon", "-c", flag]
    assert chosen.data["heard"] is True and chosen.data["hooks"] is False
    assert "cannot be extended" in str(chosen.data["degraded"])


def snake(event: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in event).lstrip("_")


def test_the_gate_waits_long_and_refuses_before_codex_loses_patience() -> None:
    chosen = ours(run("BeforeTool", "AfterTool"))
    [before], [after] = chosen["PreToolUse"][0]["hooks"], chosen["PostToolUse"][0]["hooks"]
    assert before["timeout"] == after["timeout"] == GATE_TIMEOUT
    assert DEADLINE < PATIENCE < GATE_TIMEOUT - ANSWER_TIMEOUT
    assert UNASKED in before["command"] and UNASKED not in after["command"]
    assert not before.get("async") and "secret" not in str(chosen)


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
