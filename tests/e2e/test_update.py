"""relay is updated while agents run: the newer broker stays, and older sessions are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path
from typing import Any

import relay as package
from tests.e2e.wrapped import ECHO, Wrapped, kill_broker, python, relay, relay_json, wait_registered
from tests.support import wait_until

#: A moment long before any file of this checkout was written.
BEFORE = 1_000_000_000


def older_relay(folder: Path) -> str:
    """Another installation of relay, made before this one; the path of its interpreter."""
    root = folder / "older"
    shutil.copytree(
        Path(package.__file__).parent, root / "relay", ignore=shutil.ignore_patterns("__pycache__")
    )
    touch(root, BEFORE)
    venv.create(folder / "venv", symlinks=True)
    [site] = (folder / "venv").glob("lib/python*/site-packages")
    # Without this relay, which is installed there by a file of paths.
    (site / "older.pth").write_text(f"{root}\n{sysconfig.get_path('purelib')}\n")
    return str(folder / "venv" / "bin" / "python")


def touch(root: Path, when: float) -> None:
    for path in root.rglob("*.py"):
        os.utime(path, (when, when))


def status(name: str) -> Any:
    return next(row for row in relay_json("status")["agents"] if row["name"] == name)


def test_after_an_update_the_newer_broker_stays_and_older_sessions_are_named(
    tmp_path: Path,
) -> None:
    older = older_relay(tmp_path)
    new = relay("--version").split()[1]
    program = [older, "-P", "-m", "relay"]
    old = subprocess.check_output([*program, "--version"], text=True).split()[1]
    assert old < new and old.startswith("0.1.0+20010909")
    subprocess.run([*program, "agents"], check=True)  # its broker
    with Wrapped.directly([*program, "wrap", "--name", "Bob", "--", *python(ECHO)]) as bob:
        wait_registered("Bob")
        assert relay_json("broker", "status")["version"] == old
        assert f"! it is older than this relay, {new}" in relay("broker", "status")
        relay("broker", "stop")
        for _ in range(2):
            assert relay_json("broker", "status")["version"] == new
            wait_until(lambda: status("Bob")["notes"], what="Bob to be named")
            kill_broker()
            wait_until(lambda: relay_json("broker", "status")["running"], what="the next broker")
        wait_until(lambda: status("Bob")["notes"], what="Bob to be named")
        [note] = status("Bob")["notes"]
        assert note == f"its session is of an older relay, {old}: relay reload Bob"
        touch(tmp_path / "older", os.stat(package.__file__).st_mtime + 10**6)  # an update in place
        relay("reload", "Bob")
        wait_until(lambda: status("Bob")["source"] and not status("Bob")["notes"], what="no note")
        relay("send", "Bob", "still here", "--wait=30")
        bob.wait_for("GOT Relay message .*still here")
