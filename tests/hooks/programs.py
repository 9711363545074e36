"""Programs that behave in a certain way when they are run as hooks, and what is left of them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Leaves a process behind that has left the group and holds the output; its id goes to stdout.
ESCAPES = [
    sys.executable,
    "-S",
    "-c",
    "import os, sys, time\n"
    "ready, tell = os.pipe()\n"
    "child = os.fork()\n"
    "if child == 0:\n"
    "    os.setsid()\n"
    "    os.write(tell, b'.')\n"
    "    time.sleep(600)\n"
    "    os._exit(0)\n"
    "os.read(ready, 1)\n"
    "print(child, flush=True)\n"
    "os._exit(0)\n",
]


def script(path: Path, text: str, mode: int = 0o755) -> str:
    """A shell script at ``path``; its name."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return str(path)


def alive(pid: int) -> bool:
    """Whether there is a process of this id that is no zombie."""
    return any(int(found) == pid for found, _group in _running())


def all_gone(processes: list[subprocess.Popen[bytes]]) -> bool:
    """Whether nobody is left of the groups that these led."""
    return all(group_is_gone(process.pid) for process in processes)


def group_is_gone(group: int) -> bool:
    """Whether nobody is left of a process group, but for zombies that others have to reap."""
    return not any(int(found) == group for _pid, found in _running())


def _running() -> list[list[str]]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "stat=,pid=,pgid="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in listing.stdout.splitlines()]
    return [row[1:] for row in rows if row[0][0] != "Z"]


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def is_reaped(process: subprocess.Popen[bytes]) -> bool:
    """Whether it is neither alive nor a zombie of ours, and Popen knows."""
    if process.returncode is None:
        return False
    try:
        os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


@contextlib.contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Every program that a hook starts; afterwards all are reaped, and no descriptor is left."""
    started: list[subprocess.Popen[bytes]] = []

    class Spy(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            if options.get("start_new_session"):  # not those that a test runs
                started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Spy)
    before = set(os.listdir("/dev/fd"))
    yield started
    assert [process.args for process in started if not is_reaped(process)] == []
    assert set(os.listdir("/dev/fd")) == before
