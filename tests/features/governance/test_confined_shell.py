"""The shell of an agent: what is a call of its model's is held, and all else runs as ever."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from relay.features.governance.confined_shell import ConfinedShell, shell_of

SHOPT = "shopt -u promptvars nullglob extglob nocaseglob dotglob; "
SNAPSHOT = ["-c", "-l", "SNAPSHOT_FILE=x; echo RAN"]
PLAIN = ["-c", "echo RAN"]


def run(shell: ConfinedShell, argv: list[str], **env: str) -> str:
    done = subprocess.run(
        [shell.path, *argv], env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "argv", "env", "held"),
    [
        ("claude", ["-c", "-l", "eval 'echo RAN' && pwd -P >| /no/claude-1-cwd"], {}, True),
        ("claude", SNAPSHOT, {}, False),
        ("gemini", ["-c", SHOPT + "echo RAN"], {"GEMINI_CLI": "1"}, True),
        ("gemini", PLAIN, {"GEMINI_CLI": "1"}, False),  # an MCP server
        ("qwen", PLAIN, {"QWEN_CODE": "1"}, True),
        ("qwen", PLAIN, {}, False),  # a hook
        ("opencode", PLAIN, {"OPENCODE": "1"}, True),
        ("opencode", ["-l", "-c", "echo RAN"], {"OPENCODE": "1"}, False),
    ],
)
def test_what_the_model_calls_is_held(
    kind: str, argv: list[str], env: dict[str, str], held: bool, tmp_path: Path
) -> None:
    shell = ConfinedShell(str(tmp_path), kind, "/bin/bash", ["/bin/echo", "HELD"], ["/scratch"])
    shell.make({})
    assert not shell.is_used
    shell.hold(["/project/src"])
    told = run(shell, argv, **env)
    if held:
        assert told.startswith("HELD /project/src /scratch -- /bin/bash /bin/bash -c"), told
    else:
        assert told == "RAN\n"
    assert shell.is_used is (held and kind != "claude" or argv is SNAPSHOT)
    shell.free()
    assert "HELD" not in run(shell, argv, **env)


def test_the_file_in_which_a_call_reports_is_the_agents_own(tmp_path: Path) -> None:
    shell = ConfinedShell(str(tmp_path), "gemini", "/bin/bash", ["/bin/echo"], ["/scratch"])
    shell.make({})
    folder, foreign = tmp_path / "gemini-shell-x", tmp_path / "foreign"
    folder.mkdir()
    report = folder / "bgpids.tmp"
    call = f"{SHOPT}_bgpids_file={report}\ntrue"
    assert f" {report} -- " in run(shell, ["-c", call])
    report.unlink()
    report.symlink_to(foreign)
    for said in (call, f"{SHOPT}true; _bgpids_file={folder}/bgpids.tmp"):
        assert f"{report} -- " not in run(shell, ["-c", said])
    assert not foreign.exists()


def test_the_environment_leads_to_the_script_and_not_its_children(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "SHELL": "/bin/zsh-like"}
    for kind, variable in (
        ("qwen", "PATH"),
        ("opencode", "SHELL"),
        ("claude", "CLAUDE_CODE_SHELL"),
    ):
        made = ConfinedShell(str(tmp_path / kind), kind, "/bin/bash", [], ["/scratch"])
        (tmp_path / kind).mkdir()
        [(name, value)] = made.make(env).items()
        assert name == variable and value.startswith(f"{tmp_path}/{kind}/shell")
        made.free()
        line = ["-c", "echo $PATH $SHELL $CLAUDE_CODE_SHELL"]
        told = run(made, line, **{**env, name: value, "QWEN_CODE": "1"})
        assert str(tmp_path) not in told and "/usr/bin" in told


@pytest.mark.parametrize(
    ("kind", "env", "real"),
    [
        ("qwen", {"SHELL": "/usr/bin/fish"}, "bash"),
        ("gemini", {"TMPDIR": "/a b"}, ""),
        ("opencode", {"SHELL": "/usr/bin/fish"}, ""),
        ("opencode", {}, "bash"),
        ("claude", {"CLAUDE_CODE_SHELL_PREFIX": "/x"}, ""),
        ("claude", {"SHELL": "/usr/bin/fish"}, "bash"),
    ],
)
def test_a_shell_that_cannot_be_held_without_harm_stays_alone(
    kind: str, env: dict[str, str], real: str, tmp_path: Path
) -> None:
    (tmp_path / "bash").symlink_to("/bin/bash")
    found = shell_of({"PATH": str(tmp_path), **env}, kind)
    assert found == (str(tmp_path / real) if real else "")
