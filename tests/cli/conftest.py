"""The command line as a process, in a state directory whose broker ends with the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.core.paths import Home
from tests.broker.support import stop_broker

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def broker_home(isolated_home: Path) -> Iterator[Home]:
    """A Home whose broker, if any was started, is stopped at the end."""
    home = Home(str(isolated_home))
    yield home
    stop_broker(home)


@pytest.fixture
def relay(broker_home: Home) -> Run:
    """Run one command line; ``env`` adds to the environment."""

    def run(
        *words: str, stdin: str | None = None, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "relay", *words],
            input=stdin if stdin is not None else "",
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **(env or {})},
        )

    return run
