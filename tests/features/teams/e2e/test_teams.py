"""A team in a repository: started, at work in worktrees, ended, and its work merged."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.wrapped import RELAY, Wrapped, python, relay
from tests.support import wait_until

#: Builds when it is asked to.
BUILDER = """
import pathlib, subprocess, sys
for line in sys.stdin:
    if "build it" in line:
        pathlib.Path("built.txt").write_text("whole")
        subprocess.run("git add . && git commit -qm 'Build it'", shell=True)
"""
WHO = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@example.org")
    for words in (("init", "-qb", "main"), ("commit", "-q", "--allow-empty", "-m", "Begin")):
        subprocess.run(["git", *WHO, *words], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    relay("down", "--keep", "--now", status=None)


def test_a_team_is_started_once_works_and_is_merged_at_its_end(repo: Path) -> None:
    command = shlex.join(python(BUILDER))
    alice = {"command": command, "role": "builder", "channels": ["build"], "worktree": True}
    agents = {"Alice": {**alice, "task": "Please build it."}}
    team = json.dumps({"agents": {**agents, "Bob": command}})  # which is YAML as well
    (repo / "relay.yaml").write_text(team)
    assert "relay trust" in relay("up", status=1)
    relay("send", "--offline", "Alice", "Please build it.")  # of an earlier try that was killed
    with Wrapped.directly([*RELAY, "up"]) as up:
        up.wait_for(r"Alice: .*start them\?")
        up.type("y\n")
        up.wait_for(r"Alice +starting\S*\s+Bob +starting")
        up.wait_for(r"Alice\S* +idle .* relay/Alice +\.relay/worktrees/Alice\s+Bob .* idle")
        assert up.wait() == 0
    worktree = repo / ".relay" / "worktrees" / "Alice"
    wait_until(lambda: "Build it" in _log(worktree), what="the agent's commit")
    for address in ("builder", "#build"):
        [sent] = json.loads(relay("send", "--json", address, "Thanks."))["deliveries"]
        assert sent["to"] == "Alice"
    again = json.loads(relay("up", "--json"))
    assert [row["state"] for row in again] == ["already running"] * 2
    sent = json.loads(relay("sent", "--json"))
    assert [one["body"] for one in sent].count("Please build it.") == 1
    with Wrapped.directly([*RELAY, "down"]) as down:
        down.wait_for(r"does not have \(1\):.*Build it.*\[K\]eep\?")
        down.type("m\n")
        assert down.wait() == 0
    assert (repo / "built.txt").read_text() == "whole"
    assert not worktree.exists()
    assert [row["state"] for row in json.loads(relay("agents", "--json"))] == ["gone", "gone"]


def _log(folder: Path) -> str:
    done = subprocess.run(["git", "-C", folder, "log", "--oneline"], capture_output=True, text=True)
    return done.stdout
