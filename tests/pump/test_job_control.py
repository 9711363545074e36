"""How long an agent stays after its person's terminal has gone."""

from __future__ import annotations

import os
import signal

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
