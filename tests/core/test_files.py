"""Private folders, files that are replaced as a whole, locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relay.core import files


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
