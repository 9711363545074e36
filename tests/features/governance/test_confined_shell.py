"""The shell of an agent: its model's calls are held to the places that its intent means."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from relay.core.errors import RelayError
from relay.features.governance.confined_scope import places, scope_of
from relay.features.governance.confined_shell import ConfinedShell, shell_of
from relay.features.governance.intents import Intent, IntentsError, Status

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


# -- What a confined program may write for an intent: globs become folders and files.

NOTHING_NEW = "nothing new can be made in"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with a nested repository, links, and a file that a scope may keep out."""
    for name in (".orchestration", ".git", "docs", "src/a/.git", "src/a/x", "src/b", "web"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("README.md", "src/keys.py", "src/b/m.py", "src/b/keys.py", "web/.mcp.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "web" / "index.html").write_text("")
    (tmp_path / "out").symlink_to("/etc")
    (tmp_path / "near").symlink_to("docs")
    (tmp_path / "src" / "b" / "link").symlink_to("../../docs")
    return tmp_path


@pytest.mark.parametrize(
    ("globs", "allowed", "noted"),
    [
        (["docs/**"], ["docs"], ""),
        (["docs"], ["docs"], ""),
        (["README.md"], ["README.md"], ""),
        (["src/b/*.py"], ["src/b"], "all of src/b can be written"),
        (["src/**/*.py"], ["src/a/x", "src/b", "src/keys.py"], NOTHING_NEW),
        (["src/**", "!src/keys.py"], ["src/a/x", "src/b"], f"{NOTHING_NEW} src itself"),
        (["src/b/**", "!**/keys.py"], ["src/b/m.py"], f"{NOTHING_NEW} src/b itself"),
        (["src/b/**", "!src/b/none.py"], ["src/b"], ""),
        (["web"], ["web/index.html"], f"{NOTHING_NEW} web itself"),
        (["*/b/**"], ["src/b"], ""),
        (["*.md"], ["README.md"], "at the top of the project no new files"),
        (["near/**"], ["docs"], ""),
        (["docs", "out/**"], ["docs"], "leads out of the project"),
        (["docs", "docs/new/**"], ["docs"], "docs/new is not there yet"),
        (["docs", "README.md/**"], ["docs"], "README.md is a file"),
        (["docs", ".git/**"], ["docs"], ".git is written by no agent"),
        (
            ["**"],
            ["README.md", "docs", "src/a/x", "src/b", "src/keys.py", "web/index.html"],
            "the scope means the whole project",
        ),
    ],
)
def test_a_glob_is_what_it_can_mean(
    root: Path, globs: list[str], allowed: list[str], noted: str
) -> None:
    found, notes = places(str(root), Intent("I", "n", Status.IN_PROGRESS, tuple(globs)))
    assert sorted(os.path.relpath(place, root) for place in found) == allowed
    assert any(noted in note for note in notes) if noted else notes == []


@pytest.mark.parametrize(
    "globs", [["none/**"], ["README.md/**"], ["out/etc"], [".git"], ["*/none"], ["!src"]]
)
def test_a_scope_of_nothing_that_is_there_is_a_sentence(root: Path, globs: list[str]) -> None:
    with pytest.raises(RelayError, match="nothing of what intent I allows can be written: ."):
        places(str(root), Intent("I", "n", Status.IN_PROGRESS, tuple(globs)))


def test_only_an_intent_in_progress_opens_anything(root: Path) -> None:
    path = root / ".orchestration" / "active_intents.yaml"
    entry = "{id: INT-1, name: n, status: PENDING, owned_scope: [docs]}"
    path.write_text(f"active_intents: [{entry}]\n")
    with pytest.raises(RelayError, match="is PENDING, so nobody writes for it"):
        scope_of("INT-1", str(root / "src"))
    path.write_text(f"active_intents: [{entry.replace('PENDING', 'IN_PROGRESS')}]\n")
    assert scope_of("INT-1", str(root / "src")) == ([str(root / "docs")], [])
    with pytest.raises(RelayError, match="valid ids: INT-1"):
        scope_of("INT-2", str(root))
    path.write_text("x")
    with pytest.raises(IntentsError):
        scope_of("INT-1", str(root))
