"""``relay wrap --record``: the tap by itself, and in a real terminal with a fake session."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.protocol import frames
from relay.pump import recorder_client
from relay.pump.recorder_client import RECORD, RecorderClient
from tests.pump.outer import Fake, Outer, alive
from tests.support import found, wait_until

PY = sys.executable


def records(data: bytes) -> list[tuple[int, float, bytes]]:
    all_of_them, at = [], 0
    while at < len(data):
        code, moment, length = RECORD.unpack_from(data, at)
        at += RECORD.size + length
        all_of_them.append((code, moment, data[at - length : at]))
    return all_of_them


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with theirs:
        yield ours, theirs


def received(theirs: socket.socket) -> list[tuple[int, float, bytes]]:
    data = b""
    while not data or RECORD.pack(recorder_client.END, 0, 0)[:1] != data[-RECORD.size :][:1]:
        data += theirs.recv(1 << 20)
    return records(data)


def begun(file: int, now: float) -> RecorderClient:
    client = RecorderClient()
    client.begin(file, "{}", now)
    return client


Ends = tuple[socket.socket, socket.socket]


def test_everything_arrives_in_order_and_time_never_goes_back(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_client, "PATIENCE", 0.0)
    ours, theirs = ends
    one = begun(-1, 10.0)
    one.output(b"early", 10.5)  # before there is a recorder
    one.attach(ours.detach())
    one.output(b"hello", 11.0)
    one.event(frames.SIZE, bytes((0, 90, 0, 30, 0, 0, 0, 0)), 10.9)
    one.event(frames.SIZE, bytes(8), 11.0)
    one.event(frames.ACTIVITY, bytes(4) + frames.TYPED, 12.0)
    one.event(frames.JOB, frames.STOPPED, 13.0)
    one.finish(14.0)  # the other side has not hung up
    assert received(theirs) == [
        (recorder_client.HEADER, 0.0, b"{}"),
        (recorder_client.OUTPUT, 0.5, b"early"),
        (recorder_client.OUTPUT, 1.0, b"hello"),
        (recorder_client.RESIZE, 1.0, b"90x30"),
        (recorder_client.KEYS, 2.0, b"t"),
        (recorder_client.MARKER, 3.0, b"the agent is stopped"),
        (recorder_client.END, 3.0, b""),
    ]
    assert one.failed == recorder_client.STUCK


def test_a_recorder_that_is_too_slow_loses_the_rest_and_says_so(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_client, "BUFFER_MAX", 1 << 20)
    ours, theirs = ends
    one = begun(-1, 0.0)
    one.attach(ours.detach())
    sent = 0
    while not one.failed:  # nobody reads, and nothing here blocks
        one.output(b"x" * 10_000, 1.0)
        one.flush(1.0)
        sent += 1
        assert sent < 10_000
    assert one.deadline() is not None
    one.output(b"never", 2.0)
    theirs.setblocking(False)
    data = b""
    while one.deadline() is not None:
        data += theirs.recv(1 << 20)
        one.flush(3.0)
    while not data.endswith(b"recorded"):
        data += theirs.recv(1 << 20)
    *kept, last = records(data)
    assert len(kept) == sent  # the header, and all but the one for which there was no room
    assert last[::2] == (recorder_client.MARKER, f"recording given up: {one.failed}".encode())


def test_a_recorder_that_fails_says_why(ends: Ends) -> None:
    ours, theirs = ends
    one = begun(-1, 0.0)
    one.attach(ours.detach())
    theirs.send(b"No space left on device")
    theirs.close()
    one.flush(0.0)
    one.output(b"more", 1.0)
    one.finish(2.0)
    assert one.failed == "No space left on device"


def test_a_recorder_killed_after_it_was_handed_everything_has_failed(tmp_path: Path) -> None:
    def killed(fd: int, file: int) -> None:
        with socket.socket(fileno=fd) as theirs:
            received(theirs)
            os.kill(os.getpid(), signal.SIGKILL)

    one = begun(os.open(tmp_path / "a.cast", os.O_WRONLY | os.O_CREAT), 0.0)
    one.start(killed)
    one.output(b"some", time.monotonic())
    one.finish(time.monotonic())
    assert one.failed == recorder_client.ENDED


def test_no_process_for_the_recorder_is_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    one = begun(-1, 0.0)
    one.start(lambda socket, file: None)
    one.output(b"more", 1.0)
    one.flush(1.0)
    one.finish(2.0)
    assert one.failed == "Resource temporarily unavailable"


# -- in a terminal


def events(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def text(path: Path, code: str = "o") -> str:
    return "".join(str(data) for _, kind, data in events(path) if kind == code)


def recorder(outer: Outer, path: Path) -> int:
    """The recorder's process id: it is the one of relay's that has the file open."""
    assert outer.process is not None
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid="], capture_output=True, text=True)
    for pid, parent, group in (map(int, line.split()) for line in listing.stdout.splitlines()):
        if parent == outer.process.pid and pid == group and _holds(pid, path):
            return pid
    return 0


def _holds(pid: int, path: Path) -> bool:
    folder = f"/proc/{pid}/fd"
    if not os.path.isdir(folder):
        pytest.skip("this system does not show whose a descriptor is (/proc)")
    targets = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
    return str(path) in targets and not any(t.startswith("/dev/pt") for t in targets)


READER = """
import os, sys, termios
modes = termios.tcgetattr(0)
print("name?", flush=True)
name = sys.stdin.readline()
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
print("password?", flush=True)
word = sys.stdin.readline()
print("bye", flush=True)
"""


def test_what_a_recording_holds(outer: Outer, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "a.cast"
    outer.wrap("--record", str(path), "--name", "Ann", "--", PY, "-c", READER)
    outer.until(b"name?")
    fake.send(frames.WRITE, (7).to_bytes(4, "big") + b"\xff" * 4 + b"\x1b[200~hi\x1b[201~")
    fake.wait(frames.WRITTEN)
    fake.send(frames.WRITE_AT, (8).to_bytes(4, "big") + b"\xff" * 12 + b"!")
    fake.wait(frames.WRITTEN)
    outer.resize(100, 30)
    os.kill(outer.process.pid, signal.SIGWINCH) if outer.process else None
    fake.wait(frames.SIZE)
    outer.type(b"me\r")
    outer.until(b"password?")
    outer.type(b"hunter2\r")
    assert outer.wait() == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header = json.loads(path.read_text().splitlines()[0])
    assert (header["version"], header["width"], header["height"]) == (2, 80, 24)
    assert header["title"] == "Ann" and header["relay"]["profile"]
    assert bytes(outer.seen).decode() == text(path)
    assert text(path, "w") == "\x1b[200~hi\x1b[201~!"
    assert "100x30" in text(path, "r")
    assert text(path, "k").endswith("entered")
    assert text(path, "i") == "" and "hunter2" not in path.read_text()


def test_keys_are_recorded_only_on_demand_and_never_a_password(
    outer: Outer, tmp_path: Path
) -> None:
    path = tmp_path / "a.cast"
    outer.wrap("--record", str(path), "--record-input", "--", PY, "-c", READER)
    outer.until(b"name?")
    outer.type(b"me\r")
    outer.until(b"password?")
    outer.type(b"hunter2\r")
    assert outer.wait() == 0
    assert text(path, "i") == "me\r"
    assert "hunter2" not in path.read_text()


def test_stopping_leaves_a_marker(outer: Outer, fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "a.cast"
    script = 'set -m; "$@"; echo STOPPED; fg; echo DONE'
    relay = [PY, str(Path(__file__).with_name("driver.py"))]
    outer.start("bash", "-c", script, "bash", *relay, "--record", str(path), "--", "cat")
    found(lambda: path.exists() or None)
    wait_until(lambda: outer.read(0.1) is not None and not outer.modes()[3] & termios.ICANON)
    outer.type(b"\x1a")
    outer.until(b"STOPPED")
    wait_until(lambda: not outer.modes()[3] & termios.ICANON)
    outer.type(b"\x04")
    outer.until(b"DONE")
    assert "the agent is stopped" in text(path, "m") and "the agent goes on" in text(path, "m")


def test_a_file_that_is_there_is_refused_and_replaced_on_demand(
    outer: Outer, tmp_path: Path
) -> None:
    path = tmp_path / "a.cast"
    path.write_text("mine")
    path.chmod(0o644)
    outer.wrap("--record", str(path), "--", "echo", "never")
    assert outer.wait() == 2
    assert b"--overwrite" in outer.seen and b"never" not in outer.seen
    assert path.read_text() == "mine"
    outer.wrap("--record", str(path), "--overwrite", "--", "echo", "said")
    assert outer.wait() == 0
    assert text(path) == "said\r\n" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_cannot_be_recorded_starts_nothing(outer: Outer, tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "a.cast", tmp_path):
        outer.wrap("--record", str(path), "--overwrite", "--", "echo", "never")
        assert outer.wait() == 1
    outer.wrap("--overwrite", "--", "echo", "never")
    assert outer.wait() == 2
    assert b"cannot write" in outer.seen and b"--record" in outer.seen
    assert b"never" not in outer.seen.replace(b"echo never", b"")


def test_without_a_terminal_there_is_nothing_to_record(fake: Fake, tmp_path: Path) -> None:
    path = tmp_path / "a.cast"
    done = subprocess.run(
        [PY, str(Path(__file__).with_name("driver.py")), "--record", str(path), "--", "echo", "x"],
        env={**os.environ, "FAKE": str(fake.folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to record" in done.stderr and not path.exists()


def test_the_agent_outlives_its_recorder(outer: Outer, tmp_path: Path) -> None:
    path = tmp_path / "a.cast"
    outer.wrap("--record", str(path), "--", "cat")
    outer.type(b"one\r")
    outer.until(b"one\r\none")
    wait_until(lambda: path.exists() and "one" in text(path))
    os.kill(found(lambda: recorder(outer, path) or None), signal.SIGKILL)
    outer.type(b"two\r")
    outer.until(b"two\r\ntwo")
    outer.type(b"\x04")
    assert outer.wait() == 0
    assert b"is not complete" in outer.seen
    assert "one" in text(path)


def test_a_killed_pump_leaves_a_recording_that_says_so(outer: Outer, tmp_path: Path) -> None:
    path = tmp_path / "a.cast"
    outer.wrap("--record", str(path), "--", "cat")
    outer.type(b"one\r")
    outer.until(b"one\r\none")
    pid = found(lambda: recorder(outer, path) or None)
    # What a pump has not handed over in the moment of its death is in no recording.
    wait_until(lambda: "one" in text(path), what="the recorder to have it")
    assert outer.process is not None
    outer.process.kill()
    outer.wait()
    wait_until(lambda: not alive(pid))
    assert "one" in text(path) and "recording ends here" in text(path, "m")


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes links of others")
def test_another_users_link_is_not_overwritten(outer: Outer, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("of mine")
    link = tmp_path / "it.cast"
    link.symlink_to(mine)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    outer.wrap("--record", str(link), "--overwrite", "--", "echo", "never")
    assert outer.wait() == 1
    assert mine.read_text() == "of mine" and b"another user's link" in outer.seen
