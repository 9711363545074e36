"""Worktrees of agents: whatever somebody has left in one, nothing of it is lost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from relay.features.teams.worktrees import GitError, WorktreeContent, Worktrees

BRANCH = "relay/Alice"


def git(folder: Path | str, *words: str) -> str:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path | str, name: str, text: str) -> None:
    Path(folder, name).write_text(text)
    git(folder, "add", name)
    git(folder, "commit", "-qm", f"Write {name}")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ann")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@example.org")
    folder = tmp_path / "shop"
    git(tmp_path, "init", "-qb", "main", str(folder))
    commit(folder, "a.txt", "one\n")
    return folder


def alices(repo: Path) -> tuple[Worktrees, Path]:
    trees = Worktrees(str(repo))
    return trees, Path(trees.make("Alice", BRANCH))


def looked(trees: Worktrees) -> WorktreeContent:
    found = trees.content("Alice", BRANCH)
    assert found is not None
    return found


def test_one_is_made_merged_and_removed(repo: Path) -> None:
    trees, path = alices(repo)
    assert path == repo / ".relay" / "worktrees" / "Alice"
    assert git(repo, "status", "--porcelain") == ""  # it is no file of the repository's
    assert trees.make("Alice", BRANCH) == str(path)
    assert looked(trees).is_bare
    commit(path, "b.txt", "two\n")
    content = looked(trees)
    assert (content.ahead, content.commits[0].split(" ", 1)[1]) == (1, "Write b.txt")
    trees.merge(content)
    assert (repo / "b.txt").read_text() == "two\n"
    assert trees.remove_merged("Alice", BRANCH, own_branch=True) == ""
    assert not path.exists()
    assert git(repo, "branch", "--list", BRANCH) == ""


def _untracked(path: Path) -> None:
    (path / "new.txt").write_text("x")


def _changed(path: Path) -> None:
    (path / "a.txt").write_text("changed\n")


def _staged_alone(path: Path) -> None:
    _changed(path)
    git(path, "add", "a.txt")
    (path / "a.txt").write_text("one\n")


def _hidden(path: Path) -> None:
    git(path, "update-index", "--assume-unchanged", "a.txt")
    _changed(path)


def _detached(path: Path) -> None:
    git(path, "checkout", "-q", "--detach")
    commit(path, "c.txt", "on no branch\n")


def _another_branch(path: Path) -> None:
    git(path, "checkout", "-qb", "mine")
    commit(path, "c.txt", "mine\n")


def _in_a_merge(path: Path) -> None:
    git(path, "branch", "other")
    commit(path, "a.txt", "ours\n")
    git(path, "checkout", "-q", "other")
    commit(path, "a.txt", "theirs\n")
    git(path, "checkout", "-q", BRANCH)
    subprocess.run(["git", "-C", path, "merge", "-q", "other"], capture_output=True)


def _nested(path: Path) -> None:
    git(path, "init", "-q", "inner")
    commit(path / "inner", "d.txt", "of a repository of its own\n")


def _of_no_name(path: Path) -> None:
    Path(os.fsdecode(os.fsencode(path) + b"/x\xff \n.txt")).write_text("x")


@pytest.mark.parametrize(
    "leave",
    [
        *(_untracked, _changed, _staged_alone, _hidden, _detached, _another_branch, _in_a_merge),
        *(_nested, _of_no_name),
    ],
    ids=lambda leave: leave.__name__.strip("_"),
)
def test_what_is_not_all_committed_is_not_merged_and_moved_whole(
    repo: Path, leave: Callable[[Path], None]
) -> None:
    trees, path = alices(repo)
    leave(path)
    content = looked(trees)
    assert content.problem
    with pytest.raises(GitError, match="cannot be merged"):
        trees.merge(content)
    assert trees.remove_merged("Alice", BRANCH, own_branch=True)
    before = state(path)
    moved = Path(trees.discard(content, BRANCH))
    assert not path.exists()
    assert moved.parent == repo / ".relay" / "discarded"
    assert state(moved) == before
    assert git(repo, "status", "--porcelain") == ""
    assert Path(trees.make("Alice", BRANCH)) == path  # the place is free again


def state(path: Path) -> tuple[object, ...]:
    files = {
        one.relative_to(path): one.read_bytes()
        for one in path.rglob("*")
        if one.is_file() and one.relative_to(path).parts[0] != ".git"
    }
    return files, git(path, "rev-parse", "HEAD"), git(path, "ls-files", "-s", "-v")


def test_ignored_files_keep_the_folder_of_what_is_merged(repo: Path) -> None:
    commit(repo, ".gitignore", ".env\n")
    trees, path = alices(repo)
    commit(path, "b.txt", "two\n")
    (path / ".env").write_text("KEY=1")
    trees.merge(looked(trees))
    assert ".env" in trees.remove_merged("Alice", BRANCH, own_branch=True)
    assert (path / ".env").exists()
    assert git(repo, "branch", "--list", BRANCH)


def test_what_conflicts_is_named_and_changes_nothing(repo: Path) -> None:
    trees, path = alices(repo)
    commit(path, "a.txt", "Alice's\n")
    commit(repo, "a.txt", "Ann's\n")
    before = state(repo), state(path)
    with pytest.raises(GitError, match=r"conflicts in a\.txt"):
        trees.merge(looked(trees))
    assert (state(repo), state(path)) == before
    assert git(repo, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("commit.gpgsign", "true"), ("user.useConfigOnly", "true"), ("merge.ff", "only")],
    ids=["no signature", "no name", "no merge commits"],
)
def test_a_merge_that_cannot_be_committed_is_taken_back(
    repo: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    trees, path = alices(repo)
    commit(path, "b.txt", "Alice's\n")
    commit(repo, "c.txt", "Ann's\n")
    before = state(repo)
    git(repo, "config", "gpg.program", "/bin/false")
    git(repo, "config", name, value)
    for variable in ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL"):
        monkeypatch.delenv(f"GIT_{variable}")
    with pytest.raises(GitError, match="is not merged into main"):
        trees.merge(looked(trees))
    assert state(repo) == before
    assert git(repo, "status", "--porcelain") == ""


def test_an_untracked_file_of_the_person_is_not_merged_over(repo: Path) -> None:
    trees, path = alices(repo)
    commit(path, "b.txt", "Alice's\n")
    (repo / "b.txt").write_text("Ann's")
    with pytest.raises(GitError, match="untracked"):
        trees.merge(looked(trees))
    assert (repo / "b.txt").read_text() == "Ann's"


def test_nothing_is_merged_into_what_the_person_works_on(repo: Path) -> None:
    trees, path = alices(repo)
    commit(path, "b.txt", "two\n")
    (repo / "a.txt").write_text("a draft\n")
    assert "changes that are not committed" in looked(trees).problem
    git(repo, "checkout", "-q", "a.txt")
    git(repo, "checkout", "-q", "--detach")
    assert "is on no branch" in looked(trees).problem


def test_what_has_changed_since_it_was_shown_is_not_merged(repo: Path) -> None:
    trees, path = alices(repo)
    commit(path, "b.txt", "two\n")
    shown = looked(trees)
    commit(path, "c.txt", "three\n")
    with pytest.raises(GitError, match="not as it was shown"):
        trees.merge(shown)


def test_a_branch_that_is_there_is_used_and_stays(repo: Path) -> None:
    git(repo, "branch", "feature/x")
    trees = Worktrees(str(repo))
    path = trees.make("Bob", "feature/x")
    commit(path, "b.txt", "two\n")
    content = trees.content("Bob", "feature/x")
    assert content is not None
    trees.merge(content)
    assert trees.remove_merged("Bob", "feature/x", own_branch=False) == ""
    assert git(repo, "branch", "--list", "feature/x")


def test_no_hook_of_the_repository_runs(repo: Path, tmp_path: Path) -> None:
    hooks = repo / ".git" / "hooks"
    for name in ("post-checkout", "pre-merge-commit", "post-merge", "commit-msg", "pre-commit"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\nexit 1\n")
        (hooks / name).chmod(0o755)
    trees = Worktrees(str(repo))
    path = Path(trees.make("Alice", BRANCH))
    for folder, name in ((path, "b.txt"), (repo, "c.txt")):
        (folder / name).write_text("x")
        git(folder, "add", name)
        git(folder, "commit", "-q", "--no-verify", "-m", name)
    for ran in tmp_path.glob("ran-*"):
        ran.unlink()  # those of the test's own commits
    trees.merge(looked(trees))
    assert trees.remove_merged("Alice", BRANCH, own_branch=True) == ""
    assert [*tmp_path.glob("ran-*")] == []


def test_where_none_can_be_made_it_says_why_and_leaves_all_as_it_is(
    repo: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with pytest.raises(GitError, match="not in a checked-out git repository"):
        Worktrees(str(plain))
    git(plain, "init", "-q")
    with pytest.raises(GitError, match="no commit yet"):
        Worktrees(str(plain))
    trees = Worktrees(str(repo))
    with pytest.raises(GitError, match="main is checked out in"):
        trees.make("Alice", "main")
    taken = repo / ".relay" / "worktrees" / "Alice"
    taken.mkdir(parents=True)
    (taken / "notes").write_text("mine")
    with pytest.raises(GitError, match="not a worktree of this repository"):
        trees.make("Alice", BRANCH)
    assert (taken / "notes").read_text() == "mine"
    assert git(repo, "branch", "--list", BRANCH) == ""


def test_a_link_in_the_repository_leads_no_worktree_elsewhere(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (repo / ".relay").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GitError, match="not a folder of this repository"):
        Worktrees(str(repo)).make("Alice", BRANCH)
    assert [*(tmp_path / "elsewhere").iterdir()] == []


def test_a_worktree_with_submodules_stays_where_it_is(repo: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    git(tmp_path, "init", "-qb", "main", str(library))
    commit(library, "l.txt", "x\n")
    allowed = ("-c", "protocol.file.allow=always")
    git(repo, *allowed, "submodule", "--quiet", "add", str(library), "lib")
    git(repo, "commit", "-qm", "Add lib")
    trees, path = alices(repo)
    git(path, *allowed, "submodule", "--quiet", "update", "--init")
    commit(path / "lib", "l.txt", "a commit that is nowhere else\n")
    with pytest.raises(GitError, match="submodules"):
        trees.discard(looked(trees), BRANCH)
    git(path / "lib", "checkout", "-q", "main")
    assert "submodules" in trees.remove_merged("Alice", BRANCH, own_branch=True)
    assert (path / "lib" / "l.txt").exists()


def test_variables_of_git_lead_it_to_no_other_repository(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", str(other))
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert Worktrees(str(repo)).top == str(repo)


def test_a_worktree_of_the_persons_own_holds_none_of_the_agents(repo: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    git(repo, "worktree", "add", "-q", "-b", "mine", str(mine))
    commit(mine, "m.txt", "x\n")
    trees = Worktrees(str(mine))
    path = Path(trees.make("Alice", BRANCH))
    assert path == repo / ".relay" / "worktrees" / "Alice"  # it stays when that one is removed
    assert (path / "m.txt").exists()
