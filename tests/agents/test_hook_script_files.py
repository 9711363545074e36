"""The script that tells: whose turns it tells of."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from relay.agents.hook_scripts import telling, write_teller
from relay.agents.launch import Run

Tell = Callable[[list[str]], bool]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@pytest.fixture
def script(listener: socket.socket, tmp_path: Path) -> str:
    port = listener.getsockname()[1]
    return write_teller(
        Run(name="Bob", run_id="R", token="t", port=port, folder=str(tmp_path / "it's"))
    )


@pytest.fixture
def tell(listener: socket.socket) -> Tell:
    def told(line: list[str]) -> bool:
        """Whether the session is told when this runs."""
        subprocess.run(line, input=b"{}", timeout=30, check=True)
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    return told


def test_an_agent_that_the_agent_starts_is_not_told_of(script: str, tell: Tell) -> None:
    agent, inner = os.getpid(), os.getppid()
    assert tell(["sh", "-c", telling(script)])
    assert not tell(["sh", script, str(inner)])
    assert tell(["sh", script, str(agent)])
    hook = ["sh", "-c", telling(script)]
    inner_hook = f"import subprocess; subprocess.run({hook!r}, check=True)"
    assert not tell([sys.executable, "-c", inner_hook])
    assert tell(hook)


def test_an_agent_that_starts_anew_is_told_of(script: str, tell: Tell) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert tell(["sh", script, str(gone.pid)])
    assert tell(["sh", "-c", telling(script)])
    assert not tell(["sh", script, str(os.getppid())])
