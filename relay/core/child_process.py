"""How a process of relay's is started, takes its socket, and ends."""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from relay.core.processes import descendants

#: Seconds that processes have to end when they are told to.
ENDING = 3.0
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def python(module: str) -> tuple[str, ...]:
    """The command that runs ``main`` of ``module``. -P: nothing in its folder may take a module's
    place."""
    run = f"import sys; sys.path.append(sys.argv.pop(1)); from {module} import main; main()"
    return (sys.executable, "-P", "-u", "-c", run, _ROOT)


def limit(what: int, soft: int) -> None:
    """Limit a resource of this process (``resource.RLIMIT_…``) to ``soft``, where that may be."""
    hard = resource.getrlimit(what)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(what, (soft if hard < 0 else min(soft, hard), hard))


@contextmanager
def unlimited(*whats: int) -> Iterator[None]:
    """Lift such limits for what is started meanwhile."""
    before = {what: resource.getrlimit(what) for what in whats}
    for what, (_, hard) in before.items():
        resource.setrlimit(what, (hard, hard))
    try:
        yield
    finally:
        for what, limits in before.items():
            resource.setrlimit(what, limits)


def take_input() -> socket.socket:
    """The socket that is standard input; from then on that is empty, for all that runs here, and
    what is printed is written by whole lines, each of which is one of the log."""
    channel = socket.socket(fileno=os.dup(0))
    empty = os.open(os.devnull, os.O_RDWR)
    os.dup2(empty, 0)
    os.close(empty)
    if isinstance(sys.stdout, io.TextIOWrapper):  # -u writes each argument of print() by itself
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
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
