"""A flood, and something of relay's stopped or killed meanwhile: not a byte is lost."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.wrapped import RELAY, kill_broker, process_below, relay_json, wait_registered
from tests.pump.outer import Outer, alive
from tests.support import found, wait_until

#: Waits for a key, writes its file so many times, each with a number, and says how it ends.
FLOOD = (
    "import os, sys\n"
    "fill, times = open(sys.argv[1], 'rb').read(), int(sys.argv[2])\n"
    "os.write(1, b'READY')\n"
    "os.read(0, 1)\n"
    "for n in range(times):\n"
    "    block = b'%08d' % n + fill\n"
    "    while block: block = block[os.write(1, block):]\n"
    "os._exit(7)\n"
)
#: 42 MB: more than is kept in memory for a session, and than one file of the spool holds.
TIMES = 640
DEADLINE = 120.0


class Flood:
    """A wrapped agent that floods a raw terminal; what arrives is counted and hashed."""

    def __init__(self, outer: Outer, folder: Path, before: tuple[str, ...] = ()) -> None:
        line = b"2026-01-01 12:00:00 INFO worker-3 handled a request in 12 ms, status=200\r\n"
        self.fill = line * (65536 // len(line))
        self.size = TIMES * (len(self.fill) + 8)
        (folder / "fill").write_bytes(self.fill)
        self.outer = outer
        self.came = 0
        self.hash = hashlib.sha256()
        outer.raw()
        agent = [sys.executable, "-S", "-c", FLOOD, str(folder / "fill"), str(TIMES)]
        outer.start(*before, *RELAY, "wrap", "--name", "Flood", "--", *agent)
        outer.until(b"READY")
        outer.seen.clear()
        wait_registered("Flood")

    @property
    def pump(self) -> int:
        assert self.outer.process is not None
        return self.outer.process.pid

    def session(self) -> int | None:
        """The process id of the session that runs at this moment."""
        return process_below(self.pump, "session_main")

    def begin(self) -> None:
        self.outer.type(b"g")
        self.take(bytes(self.outer.seen))

    def take(self, data: bytes) -> None:
        part = data[: self.size - self.came]
        self.came += len(part)
        self.hash.update(part)
        self.outer.seen[:] = data[len(part) :]

    def until(self, done: Callable[[], object]) -> None:
        """Read the terminal until ``done``."""
        end = time.monotonic() + DEADLINE
        while not done():
            assert time.monotonic() < end, f"{self.came} of {self.size} bytes came"
            if select.select([self.outer.master], [], [], 0.05)[0]:
                try:
                    self.take(bytes(self.outer.seen) + os.read(self.outer.master, 1 << 20))
                except OSError:  # the terminal has no program any more
                    return

    def until_came(self, share: float) -> None:
        """Read the terminal until this share of the flood has come."""
        self.until(lambda: self.came >= share * self.size)

    def whole(self) -> bool:
        """Whether each byte came, once and in order."""
        wanted = hashlib.sha256()
        for n in range(TIMES):
            wanted.update(b"%08d" % n + self.fill)
        return self.hash.digest() == wanted.digest()

    def ends(self) -> str:
        """Reads to the end; what was said after the flood."""
        self.until_came(1)
        assert self.outer.wait() == 7
        assert self.whole()
        return self.outer.seen.decode()


@pytest.fixture
def flood(tmp_path: Path) -> Iterator[Flood]:
    with Outer(dict(os.environ)) as outer:
        yield Flood(outer, tmp_path)


@pytest.mark.smoke
def test_a_flood_arrives_whole_and_the_session_hears_it_out(flood: Flood) -> None:
    flood.begin()
    assert flood.ends() == ""
    wait_until(lambda: [a["state"] for a in relay_json("agents")] in ([], ["gone"]), 60)


def test_the_session_is_stopped_in_a_flood(flood: Flood) -> None:
    """The agent ends as soon as it would have without relay; what waits is heard later."""
    session = found(flood.session)
    flood.begin()
    flood.until_came(0.01)
    os.kill(session, signal.SIGSTOP)
    try:
        assert flood.ends() == ""
    finally:
        os.kill(session, signal.SIGCONT)
    wait_until(lambda: not alive(session), 60, "the end of the session")


def test_the_session_is_stopped_in_a_flood_and_the_disk_is_full(tmp_path: Path) -> None:
    """It is waited for while there is room, then for 5 s; then the agent goes on without it."""
    full = ("sh", "-c", 'ulimit -f 10000 && exec "$@"', "sh")  # no file may be larger: some MB
    with Outer(dict(os.environ)) as outer:
        flood = Flood(outer, tmp_path, full)
        session = found(flood.session)
        flood.begin()
        flood.until_came(0.01)
        os.kill(session, signal.SIGSTOP)
        assert "the session was given up: it made no progress for 5 s" in flood.ends()
        wait_until(lambda: not alive(session), 20, "the end of the stopped session")


def test_session_and_broker_are_killed_in_a_flood(flood: Flood) -> None:
    before = 0
    flood.begin()
    for share in (0.2, 0.4, 0.6):
        flood.until_came(share)
        session = 0
        while session in (0, before):
            flood.until(lambda: True)
            session = flood.session() or 0
        os.kill(session, signal.SIGKILL)
        kill_broker()
        before = session
    flood.until_came(0.8)
    wait_registered("Flood")
    assert flood.ends() == ""
