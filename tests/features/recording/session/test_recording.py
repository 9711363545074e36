"""The recorder of a session: frames in, an asciicast out, whole lines whatever happens."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.core.asciicast import KEYS, OUTPUT, RESIZE, CastEvent, read
from relay.core.errors import RelayError, UsageError
from relay.directive.redact import redact
from relay.features.recording import recording
from relay.features.recording.recording import QUEUE_MAX, Recorder, Recording, Writer
from relay.protocol import frames
from tests.support import wait_until

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
HIDDEN = "ghp_" + "*" * 36
HEADER = '{"version": 2, "command": "sh", "title": "T", "width": 80, "height": 24}\n'


def written(*records: tuple[str, float, bytes]) -> list[CastEvent]:
    """What a file holds after these records."""
    writer = Writer()
    text = HEADER + "".join(writer.record(*record) for record in records)
    text += writer.record("end", records[-1][1] if records else 0.0, b"")
    return list(read(text.splitlines(keepends=True))[1])


def test_characters_that_are_cut_are_joined_and_what_is_none_is_replaced() -> None:
    events = written((OUTPUT, 1, b"\xe2\x82"), (OUTPUT, 2, b"\xac\xff."))
    assert events == [CastEvent(2.0, "o", "€\ufffd.")]
    assert written((OUTPUT, 1, b"x\xe2\x82"))[-1].data == "\ufffd"


def test_a_token_echoed_key_by_key_is_masked_where_it_stood() -> None:
    keys = [(OUTPUT, float(at), char.encode()) for at, char in enumerate(SECRET)]
    events = written((OUTPUT, 0.0, b"$ "), *keys, (OUTPUT, 99.0, b"\r\n"))
    assert "".join(event.data for event in events) == f"$ {HIDDEN}\r\n"
    assert [event.at for event in events[1:-1]] == [at for _, at, _ in keys]


def test_what_comes_meanwhile_waits_for_its_turn() -> None:
    writer = Writer()
    assert writer.record(OUTPUT, 1.0, b"sk-") == ""
    assert writer.record(RESIZE, 2.0, b"90x30") == ""
    lines = writer.record(OUTPUT, 3.0, b" no\r\n").splitlines()
    assert [json.loads(line)[1:] for line in lines] == [
        ["o", "sk-"],
        ["r", "90x30"],
        ["o", " no\r\n"],
    ]


def test_not_more_than_so_much_waits() -> None:
    writer = Writer()
    writer.record(OUTPUT, 1.0, b"sk-")
    lines = "".join(writer.record(KEYS, 2.0, b"typed") for _ in range(QUEUE_MAX))
    assert len(lines.splitlines()) == QUEUE_MAX + 1


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([SECRET, "hello ", "\r\n", "é", "🎉", "sk-", "\x1b[1m"]), max_size=12),
    st.integers(1, 50),
)
def test_however_the_output_comes_the_same_text_is_recorded(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    pieces = [(OUTPUT, 0.0, data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(event.data for event in written(*pieces)) == redact(data.decode())


@settings(deadline=None)
@given(st.data())
def test_a_file_that_ends_anywhere_can_be_played(data: st.DataObject) -> None:
    writer = Writer()
    text = "".join(writer.record(OUTPUT, n, f"line {n}\r\n".encode()) for n in range(20))
    cut = data.draw(st.integers(0, len(text)))
    events = list(read((HEADER + text[:cut]).splitlines(keepends=True))[1])
    assert [event.data for event in events] == [f"line {n}\r\n" for n in range(len(events))]
    assert len(events) >= text[:cut].count("\n")


# -- the session's side and the other


HELLO = {
    "restarts": 0,
    "cols": 80,
    "rows": 24,
    "started_ms": 5000,
    "name": "Ann",
    "command": ["curl", "-H", f"Authorization: token {SECRET}"],
}


class Run:
    """A recording, and the recorder of the session that has its descriptors."""

    def __init__(self, path: Path, *, restarts: int = 0) -> None:
        self.recording = Recording(str(path), overwrite=not path.is_file())
        fds = self.recording.fds
        self.recorder = Recorder(fds["record"], fds["recorded"], "command")
        self.recorder.received(frames.HELLO, json.dumps({**HELLO, "restarts": restarts}).encode())

    def output(self, data: bytes) -> None:
        self.recorder.received(frames.OUTPUT, data)

    def missing(self, *, exited: bool = True) -> str:
        if exited:
            self.recorder.received(frames.EXIT, b"{}")
        self.recorder.lost()
        self.recorder.close()
        return self.recording.finish().partition("is not complete: ")[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.cast"


@pytest.fixture
def run(path: Path) -> Iterator[Run]:
    before = set(os.listdir("/dev/fd"))
    yield Run(path)
    assert set(os.listdir("/dev/fd")) == before


def lines(path: Path) -> list[list[Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_whole_recording(run: Run, path: Path) -> None:
    recorder = run.recorder
    run.output(b"hi")
    recorder.received(frames.REST, (2500).to_bytes(4, "big"))
    recorder.received(frames.SIZE, bytes((0, 90, 0, 30, 0, 0, 0, 0)))
    recorder.received(frames.SIZE, bytes(8))
    recorder.received(frames.ACTIVITY, bytes(4) + frames.TYPED)
    recorder.received(frames.ACTIVITY, bytes(4) + frames.FLUSHED + bytes(4))
    recorder.received(frames.KEYS, b"ls\r")
    recorder.received(frames.JOB, frames.STOPPED)
    recorder.received(frames.JOB, frames.CONTINUED)
    recorder.sent(frames.ACK, bytes(8))
    recorder.sent(frames.WRITE, bytes(8) + b"\x1b[200~from Bob\x1b[201~")
    recorder.sent(frames.WRITE_AT, bytes(16) + b"!")
    assert run.missing() == ""
    assert [line[1:] for line in lines(path)] == [
        ["o", "hi"],
        ["r", "90x30"],
        ["k", "typed"],
        ["k", "cleared"],
        ["i", "ls\r"],
        ["m", "the agent is stopped"],
        ["m", "the agent goes on"],
        ["w", "\x1b[200~from Bob\x1b[201~"],
        ["w", "!"],
    ]
    times = [line[0] for line in lines(path)]
    assert times == sorted(times) and times[0] < 2.5 <= times[1]
    header = json.loads(path.read_text().splitlines()[0])
    assert (header["version"], header["width"], header["height"]) == (2, 80, 24)
    assert (header["timestamp"], header["title"], header["relay"]["profile"]) == (
        *(5, "Ann", "command"),
    )
    assert header["command"] == f"curl -H 'Authorization: token {'*' * 40}'"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_session_that_does_not_come_to_an_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "PATIENCE", 0.1)
    given = Recording(str(path), overwrite=False)
    assert given.finish().endswith(recording.STUCK)
    for fd in given.fds.values():
        os.close(fd)


def test_the_person_can_end_the_wait(path: Path) -> None:
    def interrupt() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)

    given = Recording(str(path), overwrite=False)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    person = threading.Thread(target=interrupt)
    try:
        person.start()
        assert given.finish().endswith(recording.STUCK)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
        person.join(30)
    for fd in given.fds.values():
        os.close(fd)


def test_a_disk_that_is_too_slow_loses_the_rest_and_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    write = recording._File.write

    def slow(self: Any, text: str) -> None:
        goes_on.wait(30)
        write(self, text)

    monkeypatch.setattr(recording, "WAITING_MAX", 10_000)
    monkeypatch.setattr(recording._File, "write", slow)
    run = Run(path)
    for _ in range(100):  # nothing here blocks
        run.output(b"x" * 998 + b"\r\n")
    goes_on.set()
    assert run.missing() == recording.TOO_MUCH
    *whole, last = lines(path)
    assert 0 < len(whole) < 12 and all(len(line[2]) == 1000 for line in whole)
    assert last[1:] == ["m", f"recording given up: {recording.TOO_MUCH}"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_file_that_takes_nothing() -> None:
    run = Run(Path("/dev/full"))
    run.output(b"hi")
    assert run.missing() == os.strerror(errno.ENOSPC)


def test_a_disk_that_becomes_full_leaves_whole_lines_and_a_marker(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, 400

    def full(fd: int, data: bytes | memoryview) -> int:
        file = os.fstat(fd)
        if not stat.S_ISREG(file.st_mode) or file.st_size + len(data) <= room:
            return write(fd, data)
        if file.st_size >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[: room - file.st_size])

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(recording, "_CHUNK", 64)
    run = Run(path)
    for _ in range(9):
        run.output(b"x" * 60 + b"\r\n")
    assert run.missing() == os.strerror(errno.ENOSPC)
    *whole, last = lines(path)
    assert all(event[2].startswith("xxx") for event in whole)
    assert last[1:] == ["m", f"recording given up: {os.strerror(errno.ENOSPC)}"]


def test_a_file_that_is_there_is_refused_and_replaced_on_demand(path: Path) -> None:
    path.write_text("mine")
    path.chmod(0o644)
    with pytest.raises(UsageError) as refused:
        Recording(str(path), overwrite=False)
    assert "--overwrite" in refused.value.hint and path.read_text() == "mine"
    Recording(str(path), overwrite=True).close()
    assert path.read_text() == "" and stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_cannot_be_recorded(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in ((".", "directory"), ("no/a", "No such"), ("pipe", "nobody reads")):
        with pytest.raises(RelayError) as refused:
            Recording(str(tmp_path / name), overwrite=True)
        assert reason in f"{refused.value.message} {refused.value.hint}"


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes links of others")
def test_another_users_link_is_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("of mine")
    link = tmp_path / "it.cast"
    link.symlink_to(mine)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(RelayError, match="another user's link"):
        Recording(str(link), overwrite=True)
    assert mine.read_text() == "of mine"
