"""How a process that the broker has started takes its socket, and ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress

from relay.core.processes import descendants

#: Seconds that processes have to end when they are told to.
ENDING = 3.0


def take_input() -> socket.socket:
    """The socket that is standard input; from then on that is empty, for all that runs here."""
    channel = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    os.close(empty)
    # A child that lives on must not look like this process to the broker.
    os.register_at_fork(after_in_child=lambda: os.close(channel.detach()))
    return channel


def give_up() -> None:
    """End at once, with all that was started here; what was printed is in the log."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_descendants() -> None:
    """Kill all that descends from this process, also what has left its group, and reap it."""
    kill_below(os.getpid(), ENDING)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def kill_below(pid: int, seconds: float) -> None:
    """Kill all that descends from ``pid``, within so many seconds. As long as that lives nothing
    that has left its group is another's."""
    until = time.monotonic() + seconds
    while (found := descendants(pid)) and time.monotonic() < until:
        for one in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.01)
