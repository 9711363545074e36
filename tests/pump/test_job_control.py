"""How long an agent stays after its person's terminal has gone."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from relay.protocol import frames
from relay.pump.job_control import LONGEST, GraceTimer
from tests.pump.outer import Fake, Outer, alive
from tests.support import wait_until


def test_nobody_asked_so_nothing_waits() -> None:
    farewell = GraceTimer()
    assert not farewell.begin(1.0) and not farewell.holds(1.0) and not farewell.over(99.0)
    assert farewell.deadline() is None


def test_it_holds_for_as_long_as_was_granted_and_is_over_once() -> None:
    farewell = GraceTimer()
    farewell.grant(5)
    assert farewell.begin(10.0) and not farewell.begin(10.5)
    assert farewell.holds(14.9) and not farewell.over(14.9) and farewell.deadline() == 15.0
    assert not farewell.holds(15.0)
    assert farewell.over(15.0) and not farewell.over(16.0) and farewell.deadline() is None


def test_the_session_can_end_it_and_cannot_ask_for_ever() -> None:
    farewell = GraceTimer()
    farewell.grant(65535)
    assert farewell.begin(0.0) and farewell.deadline() == LONGEST
    farewell.grant(0)
    assert not farewell.holds(1.0) and farewell.over(1.0)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "SIGHUP"])
def test_the_agent_goes_on_until_the_session_says_so(
    outer: Outer, fake: Fake, closed: bool
) -> None:
    outer.wrap("sh", "-c", "echo READY; trap 'echo HUNG UP; exit 7' HUP; while :; do read x; done")
    outer.until(b"READY")
    fake.wait(frames.HELLO)
    fake.send(frames.FAREWELL, (60).to_bytes(2, "big"))
    # Frames are obeyed in their order: once this is answered, the one before it has been.
    fake.send(frames.WRITE, (1).to_bytes(4, "big") + b"\xff" * 4 + b"one\n")
    fake.wait(frames.WRITTEN)
    assert outer.process is not None
    pid = outer.process.pid
    if closed:
        outer.hang_up()
    else:
        os.kill(pid, signal.SIGHUP)
    fake.wait(frames.GOING)
    fake.send(frames.WRITE, (2).to_bytes(4, "big") + b"\xff" * 4 + b"two\n")
    fake.wait(frames.WRITTEN, 2)
    assert not fake.frames(frames.EXIT)
    fake.send(frames.FAREWELL, bytes(2))
    fake.wait(frames.EXIT)
    wait_until(lambda: b"HUNG UP" in fake.stream(), 10, "the hang-up")
    outer.process.wait(20)
    assert not alive(pid)


#: A stopped job, a daemon of the same session and one of its own, left by an agent that ends; and a
#: job that its terminal stops (SIGTTOU) only once the monitor has looked for stopped ones.
LEAVES = """import os, signal, sys
def wait_for(name):
    def hung_up(*_):
        open(name + ".hup", "w").close()
        os._exit(0)
    signal.signal(signal.SIGHUP, hung_up)
    open(name, "w").close()
    if name == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "late":
        while os.readlink(f"/proc/{os.getppid()}/cwd") != "/":
            signal.sigtimedwait([], 0.05)
        os.kill(os.getpid(), signal.SIGTTOU)
    while os.path.exists("wait"):
        signal.sigtimedwait([], 0.05)
    open(name + ".over", "w").close()
    os._exit(0)
os.chdir(sys.argv[1])
open("wait", "w").close()
for name in ("stopped", "late", "group", "session"):
    child = os.fork()
    if not child:
        os.setsid() if name == "session" else os.setpgid(0, 0)
        wait_for(name)
    if name == "stopped":
        os.waitpid(child, os.WUNTRACED)
    while not os.path.exists(name):
        pass
"""


def test_what_an_agent_leaves_is_as_if_nobody_stood_above_it(
    outer: Outer, fake: Fake, tmp_path: Path
) -> None:
    outer.wrap(sys.executable, "-S", "-c", LEAVES, str(tmp_path))
    assert outer.wait() == 0  # it waits for none of them
    # Nobody could continue it any more, so it is hung up; the others are not.
    for name in ("stopped", "late"):
        wait_until((tmp_path / f"{name}.hup").exists)
    (tmp_path / "wait").unlink()
    for name in ("group", "session"):
        wait_until((tmp_path / f"{name}.over").exists)
        assert not (tmp_path / f"{name}.hup").exists()
