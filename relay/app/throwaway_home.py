"""A RELAY_HOME for a moment: made, used, and gone with every process that ran in it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from relay.broker.client import connect
from relay.core.errors import BrokerUnavailable
from relay.core.files import is_locked
from relay.core.paths import Home
from relay.protocol.service import STOP

#: How long the end of its processes is waited for, in seconds.
CLEARING = 15.0
#: The signals by which a person ends what runs in it before its end.
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def throwaway_home(prefix: str) -> Iterator[Home]:
    """A home of its own; with the block go its broker and its folder."""
    with tempfile.TemporaryDirectory(prefix=prefix) as root:
        home = Home(root)
        try:
            yield home
        finally:
            with undisturbed():
                clear(home)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a second Ctrl-C not leave processes behind; what it interrupts has a deadline."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def clear(home: Home) -> None:
    """End the home's own broker, once no session is left that would start another.

    An agent that is ended while it starts may leave its socket without a session: a third of the
    time is for that.
    """
    began = time.monotonic()
    while time.monotonic() < began + CLEARING / 3 and sessions_left(home):
        time.sleep(0.02)
    while time.monotonic() < began + CLEARING:
        try:
            with connect(home, start=False) as client:
                client.request(STOP)
        except BrokerUnavailable:
            if not is_locked(home.broker_lock):
                return
        time.sleep(0.02)


def sessions_left(home: Home) -> bool:
    """Whether a session still has its socket: it removes it when it ends."""
    sockets = {os.path.basename(home.broker_socket)}
    return os.path.isdir(home.run) and not sockets.issuperset(os.listdir(home.run))
