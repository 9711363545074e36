"""One broker serves all behaviours, as it would serve all agents of a person."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fidelity.stage import environment


@pytest.fixture(scope="session")
def fidelity_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A RELAY_HOME whose broker runs already, so that no stage has started it."""
    home = str(tmp_path_factory.mktemp("fidelity") / "state")
    _relay(home, "agents", "--json")
    yield home
    _relay(home, "broker", "stop")


def _relay(home: str, *argv: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "relay", *argv],
        env=environment(home),
        cwd=os.path.dirname(home),  # as the stages do: not from this checkout
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done
