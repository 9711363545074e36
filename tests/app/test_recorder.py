"""The recorder: records in, an asciicast out, whole lines whatever happens."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.app import recorder
from relay.app.recorder import QUEUE_MAX, Writer, main
from relay.core.asciicast import CastEvent, read
from relay.directive.redact import redact
from relay.pump import recorder_client

SECRET = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
HIDDEN = "ghp_" + "*" * 36
HEADER = b'{"version": 2, "command": ["sh", "-c", "a b"], "title": "T", "width": 80, "height": 24}'


def written(*records: tuple[int, float, bytes], end: bool = True) -> list[CastEvent]:
    """What a file holds after these records."""
    writer = Writer()
    text = writer.record(recorder_client.HEADER, 0.0, HEADER)
    text += "".join(writer.record(*record) for record in records)
    if end:
        text += writer.end()
    return list(read(text.splitlines(keepends=True))[1])


def test_the_header() -> None:
    fields = json.loads(HEADER)
    fields["command"] = ["curl", "-H", f"Authorization: token {SECRET}"]
    line = Writer().record(recorder_client.HEADER, 0.0, json.dumps(fields).encode())
    assert json.loads(line)["command"] == f"curl -H 'Authorization: token {'*' * 40}'"


def test_events_keep_their_times_and_kinds() -> None:
    events = written(
        (recorder_client.OUTPUT, 0.5, b"hello\r\n"),
        (recorder_client.RESIZE, 0.6, b"90x30"),
        (recorder_client.KEYS, 0.7, b"t"),
        (recorder_client.KEYS, 0.8, b"f"),
        (recorder_client.WORDS, 0.9, b"\x1b[200~from Bob\x1b[201~"),
        (recorder_client.MARKER, 1.0, b"the agent is stopped"),
        (recorder_client.INPUT, 1.5, b"ls\r"),
    )
    assert events == [
        CastEvent(0.5, "o", "hello\r\n"),
        CastEvent(0.6, "r", "90x30"),
        CastEvent(0.7, "k", "typed"),
        CastEvent(0.8, "k", "cleared"),
        CastEvent(0.9, "w", "\x1b[200~from Bob\x1b[201~"),
        CastEvent(1.0, "m", "the agent is stopped"),
        CastEvent(1.5, "i", "ls\r"),
    ]


def test_characters_that_are_cut_are_joined_and_what_is_none_is_replaced() -> None:
    events = written(
        (recorder_client.OUTPUT, 1, b"\xe2\x82"), (recorder_client.OUTPUT, 2, b"\xac\xff.")
    )
    assert events == [CastEvent(2.0, "o", "€\ufffd.")]
    assert written((recorder_client.OUTPUT, 1, b"x\xe2\x82"))[-1].data == "\ufffd"


def test_a_token_echoed_key_by_key_is_masked_where_it_stood() -> None:
    keys = [(recorder_client.OUTPUT, float(at), char.encode()) for at, char in enumerate(SECRET)]
    events = written(
        (recorder_client.OUTPUT, 0.0, b"$ "), *keys, (recorder_client.OUTPUT, 99.0, b"\r\n")
    )
    assert "".join(event.data for event in events) == f"$ {HIDDEN}\r\n"
    assert [event.at for event in events[1:-1]] == [at for _, at, _ in keys]


def test_what_comes_meanwhile_waits_for_its_turn() -> None:
    writer = Writer()
    assert writer.record(recorder_client.OUTPUT, 1.0, b"sk-") == ""
    assert writer.record(recorder_client.RESIZE, 2.0, b"90x30") == ""
    lines = writer.record(recorder_client.OUTPUT, 3.0, b" no\r\n").splitlines()
    assert [json.loads(line)[1:] for line in lines] == [
        ["o", "sk-"],
        ["r", "90x30"],
        ["o", " no\r\n"],
    ]


def test_not_more_than_so_much_waits() -> None:
    writer = Writer()
    writer.record(recorder_client.OUTPUT, 1.0, b"sk-")
    lines = "".join(writer.record(recorder_client.KEYS, 2.0, b"t") for _ in range(QUEUE_MAX))
    assert len(lines.splitlines()) == QUEUE_MAX + 1


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([SECRET, "hello ", "\r\n", "é", "🎉", "sk-", "\x1b[1m"]), max_size=12),
    st.integers(1, 50),
)
def test_however_the_output_comes_the_same_text_is_recorded(parts: list[str], size: int) -> None:
    data = "".join(parts).encode()
    pieces = [
        (recorder_client.OUTPUT, 0.0, data[at : at + size]) for at in range(0, len(data), size)
    ]
    assert "".join(event.data for event in written(*pieces)) == redact(data.decode())


@settings(deadline=None)
@given(st.data())
def test_a_file_that_ends_anywhere_can_be_played(data: st.DataObject) -> None:
    writer = Writer()
    header = writer.record(recorder_client.HEADER, 0.0, HEADER)
    text = "".join(
        writer.record(recorder_client.OUTPUT, n, f"line {n}\r\n".encode()) for n in range(20)
    )
    cut = data.draw(st.integers(0, len(text)))
    events = list(read((header + text[:cut]).splitlines(keepends=True))[1])
    assert [event.data for event in events] == [f"line {n}\r\n" for n in range(len(events))]
    assert len(events) >= text[:cut].count("\n")


# -- the process


def record(file: Path | str, data: bytes) -> str:
    """Run the recorder on these bytes; what it says to the pump."""
    ours, theirs = socket.socketpair()
    flags = os.O_WRONLY if os.path.exists(file) else os.O_WRONLY | os.O_CREAT
    fd = os.open(file, flags, 0o600)
    with ours, theirs:
        ours.sendall(data)
        ours.shutdown(socket.SHUT_WR)
        main(theirs.fileno(), fd)
        theirs.close()
        os.close(fd)
        return ours.recv(4096).decode()


def packed(code: int, at: float, data: bytes) -> bytes:
    return recorder_client.RECORD.pack(code, at, len(data)) + data


def lines(path: Path) -> list[list[object]]:
    return [json.loads(line) for line in path.read_text().splitlines()[1:]]


def test_a_whole_recording(tmp_path: Path) -> None:
    data = (
        packed(recorder_client.HEADER, 0, HEADER)
        + packed(recorder_client.OUTPUT, 1, b"hi")
        + packed(recorder_client.END, 1, b"")
    )
    assert record(tmp_path / "cast", data) == ""
    assert lines(tmp_path / "cast") == [[1.0, "o", "hi"]]


def test_the_pump_was_killed(tmp_path: Path) -> None:
    data = (
        packed(recorder_client.HEADER, 0, HEADER)
        + packed(recorder_client.OUTPUT, 1, b"hi")
        + b"half a rec"
    )
    assert record(tmp_path / "cast", data) == ""
    assert lines(tmp_path / "cast")[0] == [1.0, "o", "hi"]
    assert "recording ends here" in str(lines(tmp_path / "cast")[1][2])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_file_that_takes_nothing() -> None:
    data = (
        packed(recorder_client.HEADER, 0, HEADER)
        + packed(recorder_client.OUTPUT, 1, b"hi")
        + packed(recorder_client.END, 1, b"")
    )
    assert record("/dev/full", data) == os.strerror(errno.ENOSPC)


def test_a_disk_that_becomes_full_leaves_whole_lines_and_a_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cast"
    write, room = os.write, 400

    def full(fd: int, data: bytes | memoryview) -> int:
        file = os.fstat(fd)
        if not stat.S_ISREG(file.st_mode) or file.st_size + len(data) <= room:
            return write(fd, data)
        if file.st_size >= room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(fd, data[: room - file.st_size])

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(recorder, "_CHUNK", 64)
    output = b"".join(packed(recorder_client.OUTPUT, n, b"x" * 60 + b"\r\n") for n in range(9))
    said = record(path, packed(recorder_client.HEADER, 0, HEADER) + output)
    assert said == os.strerror(errno.ENOSPC)
    *whole, last = lines(path)
    assert whole and all(str(event[2]).startswith("xxx") for event in whole)
    assert last[1:] == ["m", f"recording given up: {os.strerror(errno.ENOSPC)}"]
