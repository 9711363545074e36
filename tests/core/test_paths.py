"""Where the state lives, and which project a folder belongs to."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from relay.core.errors import RelayError
from relay.core.paths import SOCKET_PATH_MAX, Home, repository_of


def test_the_home_comes_from_the_environment() -> None:
    assert Home.from_env({"RELAY_HOME": "/a/b"}).root == "/a/b"
    assert Home.from_env({"XDG_STATE_HOME": "/state", "HOME": "/h"}).root == "/state/relay"
    assert Home.from_env({"HOME": "/h"}).root == "/h/.local/state/relay"
    assert Home.from_env({"XDG_STATE_HOME": "not/absolute", "HOME": "/h"}).root.startswith("/h/")


def test_nothing_is_made_before_it_is_asked_for(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "relay"))
    assert not (tmp_path / "relay").exists()
    home.create()
    home.create()
    assert os.stat(home.run).st_mode & 0o777 == 0o700
    assert os.stat(home.root).st_mode & 0o777 == 0o700


def test_a_socket_directory_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "relay"))
    home.create()
    os.chmod(home.run, 0o755)
    home.create()
    assert os.stat(home.run).st_mode & 0o777 == 0o700


def test_a_path_that_is_too_long_for_a_socket_has_a_short_one_beside_it(tmp_path: Path) -> None:
    deep = str(tmp_path / ("x" * 120))
    home = Home(deep)
    assert len(home.broker_socket) <= SOCKET_PATH_MAX
    assert len(home.session_socket("0" * 26)) <= SOCKET_PATH_MAX
    assert home.run == Home(deep).run != Home(deep + "y").run


def test_a_file_in_the_way_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RelayError, match="cannot create the state directory") as caught:
        Home(str(tmp_path / "file" / "relay")).create()
    assert "RELAY_HOME" in caught.value.hint


def git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, timeout=60
    )


def repository(folder: Path) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def test_a_repository_is_one_project_from_every_folder_of_it(tmp_path: Path) -> None:
    root = repository(tmp_path / "shop")
    inner = root / "src" / "deep"
    inner.mkdir(parents=True)
    assert repository_of(str(inner)) == repository_of(str(root)) == str(root.resolve())


def test_a_link_to_a_repository_is_that_repository(tmp_path: Path) -> None:
    root = repository(tmp_path / "shop")
    (tmp_path / "link").symlink_to(root)
    assert repository_of(str(tmp_path / "link")) == str(root.resolve())


def test_worktrees_share_the_project_of_the_main_one(tmp_path: Path) -> None:
    root = repository(tmp_path / "shop")
    git(root, "worktree", "add", "-q", str(tmp_path / "fix"))
    (tmp_path / "fix" / "src").mkdir()
    assert repository_of(str(tmp_path / "fix" / "src")) == str(root.resolve())


def test_a_folder_cannot_say_that_it_belongs_to_another_project(tmp_path: Path) -> None:
    root = repository(tmp_path / "shop")
    git(root, "worktree", "add", "-q", str(tmp_path / "fix"))
    known = root / ".git" / "worktrees" / "fix"
    stranger = tmp_path / "unpacked"
    (stranger / "fake").mkdir(parents=True)
    (stranger / "fake" / "commondir").write_text(f"{root}/.git\n")
    (stranger / "fake" / "gitdir").write_text(f"{stranger}/.git\n")
    for gitdir in ("fake", str(known)):
        (stranger / ".git").write_text(f"gitdir: {gitdir}\n")
        assert repository_of(str(stranger)) == str(stranger.resolve())
    assert repository_of(str(tmp_path / "fix")) == str(root.resolve())


def test_a_worktree_that_is_named_by_relative_paths_is_one_too(tmp_path: Path) -> None:
    root = repository(tmp_path / "shop")
    git(root, "worktree", "add", "-q", str(tmp_path / "fix"))
    (tmp_path / "fix" / ".git").write_text("gitdir: ../shop/.git/worktrees/fix\n")
    (root / ".git" / "worktrees" / "fix" / "gitdir").write_text("../../../../fix/.git\n")
    assert repository_of(str(tmp_path / "fix")) == str(root.resolve())


def test_a_submodule_is_a_project_of_its_own(tmp_path: Path) -> None:
    library = repository(tmp_path / "library")
    root = repository(tmp_path / "shop")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "lib")
    assert repository_of(str(root / "lib")) == str((root / "lib").resolve())


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: piped\n")
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped" / "commondir")
    found: list[str] = []
    asking = threading.Thread(
        target=lambda: found.append(repository_of(str(tmp_path))), daemon=True
    )
    asking.start()
    asking.join(20)
    assert found == [str(tmp_path.resolve())]


def test_a_git_file_that_leads_nowhere_still_marks_the_root(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    (tmp_path / "src").mkdir()
    assert repository_of(str(tmp_path / "src")) == str(tmp_path.resolve())


def test_without_a_repository_the_folder_itself_is_the_project(tmp_path: Path) -> None:
    assert repository_of(str(tmp_path)) == str(tmp_path.resolve())
    assert repository_of(str(tmp_path / "gone")) == str(tmp_path.resolve() / "gone")
