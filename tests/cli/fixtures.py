"""The command line run in this process, in a state directory whose broker ends with the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.broker import main as broker
from relay.core.log import Log
from relay.core.paths import Home
from tests.broker.support import stop_broker
from tests.cli.verbs import run_here

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broker_home(isolated_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A Home whose broker, if any was started, is stopped at the end.

    It is a copy of this process, which has imported everything: a new one takes half a second.
    """
    started: list[int] = []

    def launch(home: Home) -> None:
        pid = os.fork()
        if pid:
            started.append(pid)
            return
        try:
            os.closerange(3, 256)  # a pipe that we held would never end for its reader
            broker.run(home, Log(home.broker_log))
        finally:
            os._exit(0)

    monkeypatch.setattr("relay.broker.start.launch", launch)
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)
    for pid in started:
        os.waitpid(pid, 0)


@pytest.fixture
def relay(broker_home: Home, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command line in this process; ``env`` adds to the environment, ``merged`` has what is
    said on stderr in stdout."""

    def run(
        *words: str, stdin: str = "", env: dict[str, str] | None = None, merged: bool = False
    ) -> subprocess.CompletedProcess[str]:
        with monkeypatch.context() as patched:
            for name, value in (env or {}).items():
                patched.setenv(name, value)
            return run_here(list(words), stdin, merged=merged)

    return run


@pytest.fixture
def spawned(broker_home: Home) -> Run:
    """Run one command line in a process of its own."""

    def run(
        *words: str, stdin: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "relay", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **(env or {})},
        )

    return run
