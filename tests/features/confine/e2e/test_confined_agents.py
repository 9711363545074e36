"""``relay wrap --confine`` and ``--intent``: agents that the kernel holds, by the real program."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.features.confine import landlock
from tests.e2e.test_handlers import project as trusted_project
from tests.e2e.wrapped import ECHO, RELAY, python, relay, relay_json, wait_registered, wrapped
from tests.support import wait_until

pytestmark = [
    pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock"),
    pytest.mark.usefixtures("stop_broker"),
]

#: Runs each line that it reads by a shell, and says what came of it.
SHELL = """
import json, subprocess, sys
print("READY", flush=True)
for line in sys.stdin:
    done = subprocess.run(["bash", "-c", json.loads(line)], capture_output=True, text=True)
    print("DONE", done.returncode, (done.stdout + done.stderr).strip()[-60:], flush=True)
"""
INTENTS = """\
active_intents:
  - {id: INT-001, name: One, status: PENDING, owned_scope: ["src/**"]}
  - {id: INT-002, name: Two, status: COMPLETE, owned_scope: [docs]}
"""


@pytest.fixture
def stop_broker(isolated_home: Path) -> Any:
    yield
    relay("broker", "stop", status=None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with two folders, in a repository."""
    root = tmp_path / "project"
    for name in ("src", "docs"):
        (root / name).mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True, timeout=30)
    return root


class Shell:
    """The small agent; each of its commands has a number, so that no answer is read twice."""

    def __init__(self, program: Any) -> None:
        self._program = program
        program.wait_for("READY")

    def does(self, line: str) -> bool:
        """Whether the command succeeded."""
        before = len(self._done())
        self._program.type(json.dumps(line) + "\n")
        wait_until(lambda: len(self._done()) > before, 60, line)
        return self._done()[before] == "0"

    def _done(self) -> list[str]:
        """The status of each command so far."""
        return re.findall(r"DONE (\S+)\s", self._program.output)


def test_a_confined_agent_writes_in_its_folder_and_talks_to_others(
    project: Path, tmp_path: Path, isolated_home: Path
) -> None:
    home = Path(os.environ["HOME"])
    (home / ".cache").mkdir()
    (home / ".bashrc").write_text("")
    with (
        wrapped(python(ECHO), name="Bob", cwd=tmp_path) as bob,
        wrapped(python(SHELL), name="Al", cwd=project / "src", options=["--confine"]) as program,
    ):
        wait_registered("Al", "Bob")
        agent = Shell(program)
        inside = ["a", "../docs/b", "../.git/x", "$TMPDIR/t", "~/.cache/c", "/dev/null", "/dev/tty"]
        for path in inside:
            assert agent.does(f"echo x > {path}"), path
        terminal = os.readlink(f"/proc/{_agent_pid('Bob')}/fd/0")
        outside = (tmp_path / "x", home / ".bashrc", home / ".new", isolated_home / "trust.json")
        for path in (*map(str, outside), terminal, "/tmp/relay-test-of-a-confined-agent"):
            assert not agent.does(f"echo x > {path}"), path
        assert not agent.does(f"kill -0 {_agent_pid('Bob')}")
        assert agent.does(f"{' '.join(RELAY)} send Bob hello")
        bob.wait_for("GOT .*hello")
        [row] = [row for row in relay_json("agents") if row["name"] == "Al"]
        assert row["state"] != "gone"


def _agent_pid(name: str) -> int:
    return int(next(row["pid"] for row in relay_json("agents") if row["name"] == name))


def test_an_agent_that_is_spawned_is_held_too(project: Path, tmp_path: Path) -> None:
    line = f"echo x > {tmp_path}/x; echo x > {tmp_path}/given/y; echo x > made"
    (tmp_path / "given").mkdir()
    options = ["--confine", "--write", str(tmp_path / "given"), "--cwd", str(project), "--no-wait"]
    relay("spawn", "Al", *options, "--", "sh", "-c", line)
    wait_until((project / "made").exists)
    assert (tmp_path / "given" / "y").exists() and not (tmp_path / "x").exists()


def test_a_worktree_commits_but_changes_nothing_that_others_git_runs(
    project: Path, tmp_path: Path
) -> None:
    git = "git -c user.name=a -c user.email=a@b"
    subprocess.run(
        f"echo x > a && git add . && {git} commit -qm a && git worktree add -q ../tree",
        **{"shell": True, "cwd": project, "check": True, "timeout": 60},  # type: ignore[call-overload]
    )
    tree = tmp_path / "tree"
    with wrapped(python(SHELL), name="Al", cwd=tree, options=["--confine"]) as program:
        agent = Shell(program)
        assert agent.does(f"echo y > a && {git} commit -qam b && git status")
        assert not agent.does(f"echo x > {project}/.git/hooks/pre-commit")
        assert not agent.does("git config core.fsmonitor evil")
        assert not agent.does(f"echo x > {project}/a")


def test_what_its_git_would_run_elsewhere_is_told_at_its_end(project: Path) -> None:
    line = ["sh", "-c", "echo x > .git/hooks/post-checkout"]
    with wrapped(line, name="Al", cwd=project, options=["--confine"]) as program:
        assert program.wait() == 0
        program.wait_for(r"post-checkout changed, which your git obeys: look before you use it")


@pytest.mark.parametrize("where", ["home", "state"])
def test_it_is_not_started_where_its_folder_holds_what_must_stay_closed(
    where: str, isolated_home: Path
) -> None:
    isolated_home.mkdir(exist_ok=True)
    folder = Path(os.environ["HOME"]) if where == "home" else isolated_home
    with wrapped(["true"], name="Al", cwd=folder, options=["--confine"]) as program:
        assert program.wait() == 2
        program.wait_for("cannot be what a confined agent writes")


def test_the_setting_confines_agents_by_name(tmp_path: Path) -> None:
    text = 'config = {"confine": {"agents": ["Al*"], "writable": ["~/more"]}}\n'
    project = trusted_project(tmp_path, text)
    (Path(os.environ["HOME"]) / "more").mkdir()
    line = ["sh", "-c", f"echo x > ~/more/a; echo x > {tmp_path}/$RELAY_AGENT"]
    for name in ("Alice", "Bob"):
        with wrapped(line, name=name, cwd=project) as program:
            program.wait()
    assert not (tmp_path / "Alice").exists() and (tmp_path / "Bob").exists()
    # Somebody changes the file, so that it is trusted no more: it confines as before.
    (project / "relay.config.py").write_text("")
    with wrapped(line, name="Alice", cwd=project) as program:
        program.wait()
    assert not (tmp_path / "Alice").exists()


def governed(project: Path) -> list[dict[str, Any]]:
    trace = project / ".orchestration" / "agent_trace.jsonl"
    return [json.loads(line) for line in trace.read_text().splitlines()] if trace.exists() else []


def test_a_program_without_hooks_works_for_an_intent(project: Path) -> None:
    folder = project / ".orchestration"
    folder.mkdir()
    (folder / "active_intents.yaml").write_text(INTENTS)
    with wrapped(python(SHELL), name="Al", cwd=project) as program:
        assert program.wait() == 1
        program.wait_for("relay wrap --intent INTENT -- ")
    options = ["--intent", "INT-001", "--write", "docs"]
    with wrapped(python(SHELL), name="Al", cwd=project, options=options) as program:
        wait_registered("Al")
        agent = Shell(program)
        assert agent.does("echo x > src/a") and agent.does("echo x > docs/a")
        for path in ("a", ".git/x", ".orchestration/active_intents.yaml"):
            assert not agent.does(f"echo x > {path}"), path
        wait_until(lambda: [row["metadata"]["event"] for row in governed(project)] == ["confined"])
        [record] = governed(project)
        assert (record["agent"], record["intent_id"]) == ("Al", "INT-001")
        assert relay_json("status")["agents"][0]["notes"] == ["confined to INT-001"]
        assert not relay_json("agents")[0]["ungoverned"]
    assert "IN_PROGRESS" in (folder / "active_intents.yaml").read_text()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--intent", "INT-002"], 1, "INT-002 is COMPLETE"),
        (["--intent", "INT-3"], 3, "valid ids: INT-001, INT-002"),
        (
            ["--intent", "INT-001", "--ungoverned"],
            2,
            "--intent and --ungoverned cannot be combined",
        ),
        (["--write", "src"], 2, "--write needs --confine or --intent"),
        (["--confine", "--write", "none"], 2, "none is not there yet"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(
    project: Path, options: list[str], status: int, said: str
) -> None:
    (project / ".orchestration").mkdir()
    (project / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
    with wrapped(["true"], name="Al", cwd=project, options=options) as program:
        assert program.wait() == status
        program.wait_for(said)


def test_an_intent_outside_of_a_governed_project_is_refused(project: Path) -> None:
    with wrapped(["true"], name="Al", cwd=project, options=["--intent", "INT-1"]) as program:
        assert program.wait() == 2
        program.wait_for("is not in a governed project")
