"""``relay init --team``, and what ``relay up`` and ``relay down`` refuse."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from relay.app.spawning import Spawned
from relay.config import names
from relay.config.spawned_agents import Spawn
from relay.core.paths import Home
from relay.features.teams import team_verbs
from relay.features.teams.team import parse_team
from tests.cli.fixtures import Run


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_init_writes_a_team_that_can_be_used_and_replaces_none(relay: Run, project: Path) -> None:
    assert relay("init", "--team").returncode == 0
    assert [one.name for one in parse_team((project / "relay.yaml").read_text()).agents] == [
        *("Alice", "Bob")
    ]
    assert "relay init --team --force" in relay("init", "--team").stderr
    assert relay("config", "check", "relay.yaml").returncode == 0


def test_a_team_starts_nothing_before_this_very_file_is_trusted(relay: Run, project: Path) -> None:
    (project / "relay.yaml").write_text("agents: {Alice: ./agent.sh --all}")
    (project / "agent.sh").write_text("#!/bin/sh\ntouch started\n")
    (project / "agent.sh").chmod(0o755)
    assert "is not trusted" in relay("up").stderr
    shown = relay("trust", "relay.yaml")
    assert "Alice: ./agent.sh --all" in shown.stdout
    assert f"{project}/agent.sh" in shown.stdout
    (project / "agent.sh").write_text("#!/bin/sh\nrm -rf ~\n")  # as a pull may do
    assert "agent.sh has changed" in relay("up").stderr
    (project / "relay.yaml").write_text("agents: {Alice: rm -rf ~}")
    refused = relay("up", "--json")
    assert json.loads(refused.stdout)["error"]["code"] == "untrusted"
    assert "has changed since you trusted it, so it does not run. Read it" in refused.stdout
    assert not (project / "started").exists()


def test_a_task_is_shown_with_no_backslash_that_is_taken_for_its_own(
    relay: Run, project: Path
) -> None:
    (project / "relay.yaml").write_text("agents: {Alice: {command: sh, task: 'tell @relay:Ben'}}")
    shown = relay("trust", "relay.yaml")
    assert "tell @relay\\:Ben" in shown.stdout
    assert "relay added the backslash in @relay\\: " in shown.stderr


def git(*words: str) -> None:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    subprocess.run(["git", *who, *words], check=True, capture_output=True)


def test_a_program_of_another_branch_takes_no_trusted_ones_place(relay: Run, project: Path) -> None:
    script = project / "run.sh"
    agent = "{command: sh ./run.sh --all, worktree: theirs, cwd: .}"
    (project / "relay.yaml").write_text(f"agents: {{Bob: {agent}}}")
    git("init", "-qb", "theirs")
    for name, branch in (("theirs", "mine"), ("mine", "other")):
        script.write_text(f"echo {name} >> {project}/ran\ncat\n")
        git("add", "run.sh")
        git("commit", "-qm", name)
        git("checkout", "-qb", branch)
    assert str(script) in relay("trust", "relay.yaml").stdout
    try:
        assert relay("up").returncode == 0
    finally:
        relay("down", "--keep", "--now")
    assert (project / "ran").read_text() == "mine\n"


def test_nothing_that_git_is_told_runs_where_nobody_has_trusted_the_file(
    relay: Run, project: Path
) -> None:
    (project / "relay.yaml").write_text("agents: {Bob: {command: sh, worktree: true}}")
    (project / ".gitattributes").write_text("relay.yaml filter=e\n")
    for words in ("init -q", "add .", "commit -qm Begin"):
        git(*words.split())
    worktree = project / ".relay" / "worktrees" / "Bob"
    git("worktree", "add", "-q", "-b", "relay/Bob", str(worktree))
    git("config", "filter.e.clean", f"touch {project}/ran; cat")
    (worktree / "relay.yaml").write_text("agents: {Bob: {command: ls, worktree: true}}")  # as long
    told = relay("down", "--keep")
    assert not (project / "ran").exists()
    assert "were skipped" in told.stderr and "relay trust" in told.stderr
    relay("trust", "relay.yaml")
    assert "relay.yaml" in relay("down", "--keep").stdout
    assert (project / "ran").exists()  # the filters of a trusted project run as ever


def test_all_mistakes_are_told_each_with_its_line(relay: Run, project: Path) -> None:
    (project / "relay.yaml").write_text("agents:\n  relay: sh\n  Bob:\n    comand: sh\n")
    for words in (("up",), ("down",), ("trust", "relay.yaml")):
        refused = relay(*words)
        assert refused.returncode == 2
        assert "line 2" in refused.stderr or "relay.yaml:2:" in refused.stderr
        assert "line 4" in refused.stderr or "relay.yaml:4:" in refused.stderr


@pytest.mark.parametrize(
    ("team", "said"),
    [
        ("agents: {Alice: {command: sh, worktree: true}}", "not in a checked-out git repository"),
        ("agents: {Alice: no-such-program-here}", "no-such-program-here"),
        ("agents: {Alice: sh}", "has no agent 'Eve'"),
    ],
    ids=["no repository", "no program", "no such name"],
)
def test_what_cannot_be_started_is_told_before_anything_is(
    relay: Run, project: Path, team: str, said: str
) -> None:
    (project / "relay.yaml").write_text(team)
    assert relay("trust", "relay.yaml").returncode == 0
    refused = relay("up", *(["Eve"] if "Eve" in said else []))
    assert refused.returncode != 0
    assert said in refused.stderr
    assert json.loads(relay("agents", "--json").stdout) == []


def test_an_agent_of_the_same_name_in_another_folder_is_left_alone(
    relay: Run, project: Path, broker_home: Home
) -> None:
    (project / "relay.yaml").write_text("agents: {Cara: sh}")
    assert relay("trust", "relay.yaml").returncode == 0
    stranger = names.claim(broker_home, "Cara", "claude")
    try:
        refused = relay("up", "--json")
        left = relay("down")
    finally:
        stranger.release()
    assert refused.returncode == 1
    assert json.loads(refused.stdout)[0]["reason"] == (
        f"another Cara runs in {project}; rename yours in relay.yaml, or end it: relay release Cara"
    )
    assert (left.returncode, left.stderr) == (0, "no agent of this team is running\n")


@pytest.mark.parametrize("afresh", ["", "No conversation found"])
def test_who_cannot_go_on_in_its_conversation_gets_its_task_again(
    monkeypatch: pytest.MonkeyPatch, afresh: str
) -> None:
    given: list[str] = []
    monkeypatch.setattr(team_verbs, "_give_task", lambda home, agent: given.append(agent.task))
    monkeypatch.setattr(
        team_verbs, "bring_back", lambda home, one: (Spawned(one.name, 1, "idle", ""), afresh)
    )
    [agent] = parse_team("agents: {Bob: {command: claude, task: test it}}").agents
    row = team_verbs._start(
        Home.from_env(), agent, Spawn("Bob", ["claude"], "/w", conversation="c1")
    )
    assert (given, row["reason"]) == (
        (["test it"], "started fresh (No conversation found)")
        if afresh
        else ([], "in its last conversation")
    )
