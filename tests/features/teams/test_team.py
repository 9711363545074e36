"""The file of a team: what it says, and every mistake in it with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config.trust import ConfigFile
from relay.core.errors import NotFound
from relay.features.teams.team import (
    Team,
    TeamAgent,
    TeamError,
    examine_team,
    find_team,
    parse_team,
    team_of,
)

WHOLE = """\
agents:
  Alice:
    command: claude --model "opus 4"
    role: builder
    task: |
      Build the API.
      Ask Bob to look at it.
    channels: [build, "#docs"]
    worktree: true
  Bob:
    command: [./review.sh, --all]
    role: [reviewer, tester]
    worktree: feature/review
    cwd: src/api
  Carol: bash
"""


def test_reads_a_whole_file() -> None:
    task = "Build the API.\nAsk Bob to look at it."
    assert parse_team(WHOLE).agents == (
        TeamAgent(
            *("Alice", ("claude", "--model", "opus 4"), ("builder",), task, ("build", "docs")),
            *(True, "relay/Alice", True),
        ),
        TeamAgent(
            *("Bob", ("./review.sh", "--all"), ("reviewer", "tester"), "", ()),
            *(True, "feature/review", False, "src/api"),
        ),
        TeamAgent("Carol", ("bash",)),
    )


def test_all_that_an_agent_is_started_with_is_shown(tmp_path: Path) -> None:
    shown = examine_team(ConfigFile(str(tmp_path / "relay.yaml"), WHOLE.encode()))[0]
    assert shown == [
        "Alice: claude --model 'opus 4'",
        "Alice works on the branch relay/Alice, as builder, in the channels #build #docs",
        "Alice's task, in your name: Build the API. ⏎ Ask Bob to look at it.",
        "Bob: ./review.sh --all",
        "Bob works in src/api, on the branch feature/review, as reviewer tester",
        "Carol: bash",
    ]
    hostile = r'agents: {Eve: {command: sh, task: "a\n\nBob: sh", cwd: "x, as tester"}}'
    shown = examine_team(ConfigFile(str(tmp_path / "relay.yaml"), hostile.encode()))[0]
    assert shown[1] == "Eve works in 'x, as tester'"
    assert shown[2:] == ["Eve's task, in your name: a ⏎  ⏎ Bob: sh"]


def test_every_mistake_is_told_with_its_line() -> None:
    text = """\
agents:
  relay: bash
  Alice:
    comand: claude
  alice: bash
  Bob:
    command: 'claude "x'
    channels:
      - #build
      - two words
    worktree: ../up
    cwd: ../elsewhere
  Cem:
    command: []
    worktree: a
  Dan: {command: x, worktree: a}
more: 1
"""
    with pytest.raises(TeamError) as caught:
        parse_team(text)
    told = [str(one) for one in caught.value.mistakes]
    assert [line.partition(":")[0] for line in told] == [
        *("line 2", "line 4", "line 4", "line 5", "line 7", "line 9", "line 10", "line 11"),
        *("line 12", "line 14", "line 16", "line 17"),
    ]
    assert "did you mean 'command'?" in told[1]
    assert "leave the # out" in told[5]
    assert "is that of Cem already" in told[10]
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"- a\n",
        b"agents:\n",
        b"agents: [\n",
        b"agents: &a {}\n",
        b"agents:\n  A\xff: b\n",
    ],
    ids=["empty", "list", "nobody", "no YAML", "alias", "no UTF-8"],
)
def test_what_is_no_team_says_why(data: bytes) -> None:
    with pytest.raises(TeamError, match=r"^relay\.yaml(:\d+)?: "):
        team_of(ConfigFile("relay.yaml", data))


def test_a_name_that_it_does_not_have_says_which_it_has() -> None:
    with pytest.raises(NotFound) as caught:
        Team((TeamAgent("Alice", ("a",)),)).chosen(["Alise"])
    assert "did you mean 'Alice'?" in caught.value.hint


def test_the_nearest_file_of_the_project_counts_and_none_beyond_it(tmp_path: Path) -> None:
    (tmp_path / "relay.yaml").write_text(WHOLE)
    below = tmp_path / "repo" / "src"
    below.mkdir(parents=True)
    (tmp_path / "repo" / ".git").mkdir()
    with pytest.raises(NotFound):
        find_team(str(below))
    (tmp_path / "repo" / "relay.yaml").write_text(WHOLE)
    worktree = tmp_path / "repo" / ".relay" / "worktrees" / "Alice"
    worktree.mkdir(parents=True)
    (worktree / "relay.yaml").write_text("agents: {Eve: sh}")  # as the agent left it
    assert find_team(str(worktree)).path == find_team(str(below)).path
    assert find_team(str(below)).path == str(tmp_path / "repo" / "relay.yaml")
