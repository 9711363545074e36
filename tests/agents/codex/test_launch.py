"""How Codex is started: our hooks and their trust on the command line, all else as it was."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from relay.agents.codex.launch import REPORTED, trusted_hash
from relay.agents.launch import Run, plan
from tests.agents.installs import install, run_of


def run(*, port: int | None = 4711, primer: bool = True) -> Run:
    return run_of("Alice", token="secret", port=port, primer=primer)


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


def test_hooks_are_put_in_and_trusted(codex: str) -> None:
    chosen = plan([codex, "resume", "--last"], {}, run())
    assert chosen.profile == "codex"
    context = {"file": "context.json", "event": "UserPromptSubmit"}
    unasked = ["web_search", "write_stdin"]
    assert chosen.data == {
        **{"heard": True, "hooks": True, "program": codex, "context": context},
        "unasked": unasked,
    }
    assert chosen.argv[:2] == [codex, "--no-daemon"]
    assert chosen.argv[-2:] == ["resume", "--last"]
    settings = config(chosen.argv)
    trust = settings.pop("hooks.state")
    assert set(settings) == {f"hooks.{event}" for event in (*REPORTED, "PostToolUse")}
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


def test_without_a_primer_the_model_is_told_nothing(codex: str) -> None:
    settings = config(plan([codex], {}, run(primer=False)).argv)
    assert len(settings["hooks.SessionStart"]) == 1


def test_without_a_port_only_what_the_model_is_told_is_put_in(codex: str) -> None:
    chosen = plan([codex], {}, run(port=None))
    told = {"hooks.SessionStart", "hooks.UserPromptSubmit"}
    assert set(config(chosen.argv)) == {*told, "hooks.state"}
    assert "port" in str(chosen.data["degraded"])


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


def test_a_remote_session_is_heard_by_its_screen(codex: str) -> None:
    chosen = plan([codex, "--remote", "unix://"], {}, run())
    assert chosen.argv == [codex, "--remote", "unix://"]
    assert chosen.data["heard"] is False


def snake(event: str) -> str:
    return "".join("_" + c.lower() if c.isupper() else c for c in event).lstrip("_")
