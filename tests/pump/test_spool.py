"""Output that waits on disk: nobody sees it there, nothing stays, and a full disk loses nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from relay.pump import output_buffer
from relay.pump.output_buffer import Spool

BEGIN = 7000


def data(size: int, at: int = 0) -> bytes:
    return bytes((at + n) % 251 for n in range(size))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spool]:
    """A spool of at most some 10 kB in files of 2 kB."""
    monkeypatch.setattr(output_buffer, "SPOOL_MAX", 10_000)
    monkeypatch.setattr(output_buffer, "FILE_MAX", 2000)
    made = Spool(str(tmp_path), BEGIN)
    yield made
    made.close()


def read(spooled: Spool, begin: int, end: int, most: int) -> bytes:
    got = b""
    while begin + len(got) < end:
        more = spooled.read(begin + len(got), min(most, end - begin - len(got)))
        assert 0 < len(more) <= most
        got += more
    return got


def test_it_reads_as_it_was_written_and_leaves_no_name(small: Spool, tmp_path: Path) -> None:
    assert small.descriptors() == []
    whole = data(6000)
    for at in range(0, 6000, 600):
        piece = whole[at : at + 600]
        assert small.append([piece[:1], piece[1:400], piece[400:]]) == 600
    assert os.listdir(tmp_path) == []
    assert len(small.descriptors()) == 3
    assert all(os.fstat(fd).st_nlink == 0 for fd in small.descriptors())
    assert all(os.fstat(fd).st_mode & 0o077 == 0 for fd in small.descriptors())
    assert not any(os.get_inheritable(fd) for fd in small.descriptors())
    for most in (1000, 777, 1 << 20):
        assert read(small, BEGIN, BEGIN + 6000, most) == whole
    assert read(small, BEGIN + 1234, BEGIN + 4321, 100) == whole[1234:4321]


def test_more_pieces_than_one_write_takes(small: Spool) -> None:
    pieces = [data(3, at) for at in range(3000)]
    assert small.append(pieces) == 9000
    assert read(small, BEGIN, BEGIN + 9000, 5000) == b"".join(pieces)


def test_it_takes_no_more_than_it_may_and_gives_back_what_is_dropped(small: Spool) -> None:
    taken = 0
    while got := small.append([data(600, taken)]):
        taken += got
    assert 10_000 <= taken < 10_600
    assert small.append([data(600, taken)]) == 0
    first = small.descriptors()[0]
    small.drop(BEGIN + 2399)
    assert small.descriptors()[0] == first
    small.drop(BEGIN + 2400)
    with pytest.raises(OSError):
        os.fstat(first)
    assert small.append([data(600, taken)]) == 600
    assert small.read(BEGIN + 2400, 10) == data(10, 2400)
    fds = small.descriptors()
    small.close()
    for fd in fds:
        with pytest.raises(OSError):
            os.fstat(fd)


def test_a_quarter_of_a_small_disk_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        f_bavail, f_frsize = 8, 512

    monkeypatch.setattr(os, "statvfs", lambda _: Disk)
    made = Spool(str(tmp_path), 0)
    assert made.append([data(1024)]) == 1024
    assert made.append([data(1)]) == 0
    made.close()


def test_a_disk_that_runs_full_takes_what_it_can(
    small: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writev = os.writev
    left = 900

    def limited(fd: int, pieces: Sequence[bytes]) -> int:
        nonlocal left
        some = b"".join(pieces)[:left]
        if not some:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= len(some)
        return writev(fd, [some])

    monkeypatch.setattr(os, "writev", limited)
    whole = data(1200)
    assert small.append([whole[:500], whole[500:]]) == 900
    assert small.append([whole[900:]]) == 0
    left = 300
    assert small.append([whole[900:]]) == 300
    assert read(small, BEGIN, BEGIN + 1200, 500) == whole


def test_a_slow_disk_is_not_waited_for_again(small: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((10.0, 10.01, 20.0, 20.3))
    monkeypatch.setattr("relay.pump.output_buffer.time.monotonic", lambda: next(moments))
    assert small.append([data(100)]) == 100
    assert small.append([data(100, 100)]) == 100
    assert small.append([data(100, 200)]) == 0
    assert read(small, BEGIN, BEGIN + 200, 150) == data(200)


def test_what_was_cut_off_is_an_error_and_not_silence(small: Spool) -> None:
    small.append([data(100)])
    os.ftruncate(small.descriptors()[0], 50)
    assert small.read(BEGIN, 100) == data(50)
    with pytest.raises(OSError):
        small.read(BEGIN + 50, 50)


def test_there_is_none_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Spool(str(tmp_path / "gone"), 0)
