"""The outer terminal of a test: a real PTY, what runs in it, and the fake session's log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay.protocol import frames
from tests.support import wait_until

DRIVER = str(Path(__file__).with_name("driver.py"))
ROOT = str(Path(__file__).parents[2])
DEADLINE = 30.0


class Fake:
    """The folder through which a test and the fake session talk."""

    def __init__(self, folder: Path, mode: str = "ack") -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.set_mode(mode)

    def set_mode(self, mode: str) -> None:
        (self.folder / "mode").write_text(mode)

    def log(self) -> list[dict[str, Any]]:
        try:
            text = (self.folder / "log").read_text()
        except FileNotFoundError:
            return []
        return [entry for line in text.split("\n")[:-1] if (entry := _entry(line))]

    def frames(self, kind: int) -> list[bytes]:
        return [bytes.fromhex(e["hex"]) for e in self.log() if e["kind"] == chr(kind)]

    def wait(self, kind: int, count: int = 1) -> list[bytes]:
        wait_until(lambda: len(self.frames(kind)) >= count, DEADLINE, f"{count} of {chr(kind)}")
        return self.frames(kind)

    def pids(self) -> list[int]:
        return [e["pid"] for e in self.log() if e["kind"] == "start"]

    def send(self, kind: int, payload: bytes) -> None:
        """Have the session send a frame to the pump."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            wait_until((self.folder / "ctl").exists, DEADLINE, "the session")
            sock.sendto(frames.pack(kind, payload), str(self.folder / "ctl"))

    def stream(self) -> bytes:
        """The agent's output, put together from all sessions; overlaps must agree."""
        whole = bytearray()
        for entry in self.log():
            if entry["kind"] == chr(frames.OUTPUT):
                at, data = entry["at"], bytes.fromhex(entry["hex"])
                assert at <= len(whole), f"a gap before {at}"
                overlap = whole[at : at + len(data)]
                assert data[: len(overlap)] == overlap, f"different bytes at {at}"
                whole += data[len(overlap) :]
        return bytes(whole)


class Outer:
    """A terminal with one program in it."""

    def __init__(self, env: dict[str, str], cols: int = 80, rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.env = env
        self.seen = bytearray()
        self.process: subprocess.Popen[bytes] | None = None
        self.resize(cols, rows)

    def __enter__(self) -> Outer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)

    def raw(self) -> None:
        """Turn the processing of the outer terminal off, so that bytes can be compared."""
        tty.setraw(self.slave)

    def resize(self, cols: int, rows: int, xpixel: int = 0, ypixel: int = 0) -> None:
        size = struct.pack("HHHH", rows, cols, xpixel, ypixel)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, size)

    def take(self) -> None:
        """In a new process: take the terminal, as a terminal's first program does."""
        # Tests that run in the background, or under nohup, have some of these ignored.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def start(self, *argv: str, stdin: int | None = None, stdout: int | None = None) -> None:
        """Run ``argv`` as the leader of the terminal's session."""
        slave = self.slave
        self.process = subprocess.Popen(
            argv,
            stdin=slave if stdin is None else stdin,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            env=self.env,
            start_new_session=True,
            preexec_fn=self.take,
            pass_fds=(slave,),
        )

    def wrap(self, *argv: str, **given: int | None) -> None:
        """Run the driver: ``relay wrap ARGV`` with the fake session."""
        self.start(sys.executable, DRIVER, *argv, **given)

    def read(self, timeout: float = 0.0) -> bytes:
        """Read what there is, waiting at most ``timeout`` for the first byte."""
        got = b""
        while select.select([self.master], [], [], 0 if got else timeout)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:
                break
            if not data:
                break
            got += data
        self.seen += got
        return got

    def until(self, check: bytes | Callable[[bytearray], bool], timeout: float = DEADLINE) -> bytes:
        """Read until ``check`` (bytes seen, or a predicate on everything seen) holds."""
        end = time.monotonic() + timeout
        while not (check in self.seen if isinstance(check, bytes) else check(self.seen)):
            left = end - time.monotonic()
            assert left > 0, f"waited for {check!r}, saw {bytes(self.seen[-2000:])!r}"
            self.read(min(left, 1.0))
        return bytes(self.seen)

    def type(self, data: bytes) -> None:
        """Press keys, reading output meanwhile so that nobody blocks."""
        os.set_blocking(self.master, False)
        at = 0
        end = time.monotonic() + DEADLINE
        while at < len(data):
            assert time.monotonic() < end, f"only {at} of {len(data)} bytes were taken"
            readable, writable, _ = select.select([self.master], [self.master], [], 1.0)
            if readable:
                self.read()
            if writable:
                with contextlib.suppress(BlockingIOError):
                    at += os.write(self.master, data[at : at + 4096])

    def wait(self, timeout: float = DEADLINE) -> int:
        """The exit status (negative for a signal), reading output until then."""
        assert self.process is not None
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < end, f"still runs; saw {bytes(self.seen[-2000:])!r}"
            self.read(0.05)
        self.read()
        return self.process.returncode

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def is_raw(self) -> bool:
        return not self.modes()[3] & termios.ICANON

    def hang_up(self) -> None:
        """Close the terminal."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1


def _entry(line: str) -> dict[str, Any] | None:
    """None for an empty line, and for one whose writer was killed in the middle of it."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not os.path.isdir("/proc/self")


def stop_sessions(fake: Fake) -> None:
    """End fake sessions that a test left running."""
    for pid in fake.pids():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            continue
