"""Real agents that the kernel holds: they work as ever, and write nothing outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.features.confine import landlock
from tests.real_agents.conftest import Binary
from tests.real_agents.governed import GovernedAgent, governed
from tests.real_agents.model import ScriptedModel, Shell, Write
from tests.real_agents.recipe import Options
from tests.real_agents.wrapped import room
from tests.support import wait_until

pytestmark = [
    pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock"),
    pytest.mark.usefixtures("stop_broker"),
]
#: What Ann may do without a dialog of Claude Code's own.
ALLOWED = {"permissions": {"allow": ["Bash", "Write", "Edit", "Read"]}}
ALLOWED_COMMANDS = ("relay *", "python3 *", "make", "DEBUG=1 sh *", "git *", "echo *")
SETTINGS = {"claude": ALLOWED}


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_an_agent_works_in_its_folder_alone(
    agent: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with room(tmp_path, model) as agents:
        options = Options(asks=False, settings=SETTINGS.get(agent, {}))
        wrapped = agents.start("Ann", agent, binary_of(agent), options, options=["--confine"])
        ann = GovernedAgent(wrapped, model, tmp_path)
        home, project = wrapped.recipe.home, Path(wrapped.recipe.cwd)
        relay = f"{sys.executable} -P -m relay"
        paths = (outside / "y", home / ".bashrc", f"{os.environ['RELAY_HOME']}/z")
        line = "; ".join(f"echo x > {path} && echo WROTE" for path in paths)
        told = ann.does(
            Shell(f"echo x > in.txt; echo t > $TMPDIR/t; {line}; {relay} send Bob hi --offline")
        )
        assert "Permission denied" in told.text and "WROTE" not in told.text
        assert "Bob: " in told.text  # relay's own commands work
        assert (project / "in.txt").exists()
        ann.does(Write(str(project / "tool.txt"), "x\n"))
        ann.does(Write(str(outside / "tool.txt"), "x\n"))
        assert (project / "tool.txt").read_text() == "x\n"
        assert not list(outside.iterdir()) and not (home / ".bashrc").exists()
        wrapped.quit()


def test_a_claude_that_is_held_to_an_intent_has_selected_it(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    with governed(tmp_path, model) as project:
        options = Options(asks=False, settings=ALLOWED)
        ann = project.start("Ann", "claude", claude, options, wrap=["--intent", "INT-001"])
        new = project.root / "src" / "sub" / "new.py"
        new.parent.mkdir()
        refused = ann.does(Write(str(project.root / "docs.md"), "x"))
        assert refused.reason == "SCOPE_VIOLATION", refused.text
        made = project.root / "Makefile"
        made.write_text("all:\n\t@echo x >src/sub/new.py; echo y >README.md\n")
        told = ann.does(Shell("make"))  # a build: nobody reads what it does
        assert "Permission denied" in told.text
        assert new.exists() and project.file("README.md") != "y\n"
        ann.wrapped.quit()
        assert {row["intent_id"] for row in project.log()} == {"INT-001"}


def test_each_shell_call_of_a_governed_claude_is_held_to_its_intent(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    with governed(tmp_path, model) as project:
        root = project.root
        program = "open('src/{0}', 'w').write('x'); print('IN'); open('{0}', 'w')"
        (root / "x.py").write_text(program.format("by-python"))
        (root / "Makefile").write_text("all:\n\t@echo x >src/by-make; echo y >by-make\n")
        git(root, "init", "-q")
        git(root, "config", "user.email", "ann@example.org")
        git(root, "config", "user.name", "Ann")
        # What the person has allowed is the command as it is.
        allowed = {"permissions": {"allow": [f"Bash({one})" for one in ALLOWED_COMMANDS]}}
        ann = project.start("Ann", "claude", claude, Options(asks=True, settings=allowed))
        assert "<intent_context>" in ann.does(Shell("relay intent select INT-001")).text
        told = ann.does(Shell("python3 x.py"))
        assert "IN\n" in told.text and "Permission denied: 'by-python'" in told.text, told.text
        assert project.file("src/by-python") == "x"
        told = ann.does(Shell("make"))
        assert "Permission denied" in told.text and project.file("src/by-make") == "x\n"
        told = ann.does(Shell("DEBUG=1 sh -c 'echo $TMPDIR; echo x >$TMPDIR/t && echo WRITTEN'"))
        assert "WRITTEN" in told.text, told.text
        told = ann.does(Shell("git add src/by-make && git commit -qm 'By make' && echo DONE"))
        assert "DONE" in told.text, told.text
        assert "By make" in git(root, "log", "--format=%s")
        told = ann.does(Shell("python3 -c \"open('.git/config', 'a')\""))
        assert "Permission denied" in told.text
        assert not (root / "by-python").exists() and not (root / "by-make").exists()
        # What the kernel cannot tell apart is found afterwards.
        told = ann.does(Shell("python3 -c \"open('src/secret.py', 'w')\""))
        assert "does not allow: src/secret.py (made)" in told.text, told.text
        ann.wrapped.quit()
        assert not project.log("approval") and not project.log("refusal")
        changed = [file["path"] for row in project.log("mutation") for file in row["files"]]
        assert changed == ["src/by-python", "src/by-make"]
        [violation] = project.log("violation")
        assert [file["path"] for file in violation["files"]] == ["src/secret.py"]


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_an_aider_works_for_an_intent(aider: Path, tmp_path: Path, model: ScriptedModel) -> None:
    with governed(tmp_path, model) as project:
        wrap = ["--intent", "INT-001", "--write", "/dev/pts"]  # it runs commands in terminals
        ann = project.start("Ann", "aider", aider, Options(asks=False), wrap=wrap)
        ann.wrapped.ask("/run echo y > README.md || echo x > src/made")
        wait_until(lambda: project.file("src/made"))
        assert project.file("README.md") != "y\n"
        assert project.file(".aider.input.history")
        [record] = project.log()
        assert (record["intent_id"], record["metadata"]["event"]) == ("INT-001", "confined")
