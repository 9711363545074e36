"""Where a program in relay leaves things in better order than the bare one could."""

from __future__ import annotations

import fcntl
import os
import signal

import pytest

from tests.fidelity.stage import Stage
from tests.fidelity.wrappers import RELAY
from tests.pump.outer import alive

LIMIT = 20.0


def _state(stage: Stage) -> list[object]:
    return [stage.terminal.modes(), fcntl.fcntl(stage.terminal.slave, fcntl.F_GETFL)]


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_modes_that_a_program_leaves_behind_are_put_right(end: str, fidelity_home: str) -> None:
    with Stage(RELAY, fidelity_home, LIMIT) as stage:
        before = _state(stage)
        status = stage.run(stage.child(f"tty.setraw(0)\nos.set_blocking(0, False)\n{end}"))
        assert status in (3, 128 + signal.SIGKILL)
        assert _state(stage) == before


def test_a_killed_wrapper_leaves_a_hung_up_child_and_a_terminal_in_order(
    fidelity_home: str,
) -> None:
    source = (
        "import select\n"
        "def hung_up(*_):\n    tell('SIGHUP')\n    os._exit(0)\n"
        "signal.signal(signal.SIGHUP, hung_up)\n"
        "show('pid', os.getpid())\ntty.setraw(0)\nwrite(b'READY')\n"
        "while True: select.select([], [], [], 0.01)\n"
    )
    with Stage(RELAY, fidelity_home, LIMIT) as stage:
        before = _state(stage)
        stage.start(stage.child(source))
        stage.terminal.until(b"READY")
        pid = stage.shown("pid")
        assert stage.terminal.process is not None and _state(stage) != before
        os.kill(stage.terminal.process.pid, signal.SIGKILL)
        stage.told("SIGHUP")
        stage.until(lambda: _state(stage) == before, "the modes of before")
        stage.until(lambda: not alive(pid), "the end of the child")
