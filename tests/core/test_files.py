"""Where relay's files are; private folders, files that are replaced as a whole, locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relay.core import files
from relay.core.paths import SOCKET_PATH_MAX, Home, repository_of


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_folder_is_for_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    files.make_private_folder(str(folder))
    files.make_private_folder(str(folder))
    assert mode(folder) == 0o700


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "quick"])
def test_a_file_is_replaced_as_a_whole_and_private(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "kept.json"
    files.write_atomically(str(path), "first", durable=durable)
    with path.open() as reader:
        files.write_atomically(str(path), b"second", durable=durable)
        assert reader.read() == "first"
    assert path.read_text() == "second" and mode(path) == 0o600
    assert os.listdir(tmp_path) == ["kept.json"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        files.write_atomically(str(tmp_path / "taken"), "text")
    assert os.listdir(tmp_path) == ["taken"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("theirs")
    link.symlink_to(target)
    files.write_atomically(str(link), "ours")
    assert target.read_text() == "theirs" and not link.is_symlink()


def test_a_lock_has_one_holder_until_it_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not files.is_locked(path)
    first = files.take_lock(path)
    assert first is not None and files.is_locked(path)
    assert files.take_lock(path) is None
    threading.Timer(0.05, os.close, [first]).start()
    second = files.take_lock(path, wait=10.0)
    assert second is not None
    os.close(second)
    assert not files.is_locked(path)


def test_the_kernel_names_who_has_signed_a_lock_and_nobody_inherits_it(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert files.lock_holder(path) == 0
    sign = (
        "import os, sys, time\n"
        "from relay.core.files import sign_lock, take_lock\n"
        "fd = take_lock(sys.argv[1])\n"
        "assert sign_lock(fd)\n"
        "child = os.fork()\n"
        "if child: print(child, flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", sign, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        assert files.lock_holder(path) == holder.pid
        with open(path, "r+b") as other:
            assert not files.sign_lock(other.fileno())
        holder.kill()
        holder.wait()
        # The child still holds what it inherited, and is not taken for its holder.
        assert files.is_locked(path) and files.lock_holder(path) == 0
        os.kill(child, signal.SIGKILL)


def test_a_file_that_is_closed_to_others_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing any descriptor of a database would end the locks that SQLite holds on it."""
    path = tmp_path / "ledger.db"
    path.touch(0o600)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
        assert not files.own_file(str(path))
    path.chmod(0o622)
    assert files.own_file(str(path)) and mode(path) == 0o600


def test_the_home_comes_from_the_environment() -> None:
    assert Home.from_env({"RELAY_HOME": "/a/b"}).root == "/a/b"
    assert Home.from_env({"XDG_STATE_HOME": "/state", "HOME": "/h"}).root == "/state/relay"
    assert Home.from_env({"HOME": "/h"}).root == "/h/.local/state/relay"
    assert Home.from_env({"XDG_STATE_HOME": "not/absolute", "HOME": "/h"}).root.startswith("/h/")


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
