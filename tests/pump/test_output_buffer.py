"""The stream that is kept for the session: pieces, marks, what is dealt with, and the store."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.pump import output_buffer
from relay.pump.output_buffer import OutputBuffer, Spool


class FakeStore(Spool):
    """A spool. It takes ``room`` bytes at a time, and cuts what is more."""

    FD = 1 << 20

    def __init__(self, offset: int, room: int = 1 << 30) -> None:
        self.begin = offset
        self.room = room
        self.broken = False
        self.closed = False
        self.data = bytearray()

    def append(self, pieces: list[bytes]) -> int:
        assert not self.closed and pieces
        taken = b"".join(pieces)[: max(0, self.room - len(self.data))]
        self.data += taken
        return len(taken)

    def read(self, offset: int, most: int) -> bytes:
        assert not self.closed and offset >= self.begin and most > 0
        if self.broken:
            raise OSError(errno.EIO, "the disk is broken")
        data = bytes(self.data[offset - self.begin :][:most])
        assert data
        return data

    def drop(self, offset: int) -> None:
        assert not self.closed and offset < self.begin + len(self.data)
        if offset > self.begin:
            del self.data[: offset - self.begin]
            self.begin = offset

    def descriptors(self) -> list[int]:
        assert not self.closed
        return [self.FD]

    def close(self) -> None:
        assert not self.closed
        self.closed = True


LARGE = 1 << 30


def test_one_hand_out_fits_a_write() -> None:
    kept = OutputBuffer(LARGE)
    for _ in range(3000):
        kept.add(b"x")
        kept.mark()
    handed = kept.hand_out(1 << 20, None)
    assert 0 < len(handed) < 1024
    while more := kept.hand_out(1 << 20, None):
        handed += more
    assert len(handed) == 3000


def test_a_store_is_made_when_a_quarter_of_the_memory_is_full_and_closed_once_drained() -> None:
    made: list[FakeStore] = []

    def make(offset: int) -> FakeStore:
        made.append(FakeStore(offset))
        return made[-1]

    kept = OutputBuffer(4096, make)
    kept.add(bytes(1023))
    assert not made and kept.in_memory == 1023
    kept.add(b"x")
    assert len(made) == 1 and kept.in_memory == 0 and len(made[0].data) == 1024
    assert kept.descriptors() == [FakeStore.FD]
    assert b"".join(kept.hand_out(LARGE, None)) == bytes(1023) + b"x"
    kept.drop(1023)
    assert not made[0].closed
    kept.drop(1024)
    assert made[0].closed and kept.descriptors() == [] and len(kept) == 0
    kept.add(bytes(1023))
    assert len(made) == 1


def test_without_a_store_memory_takes_it_all() -> None:
    def make(offset: int) -> FakeStore:
        raise OSError(errno.ENOSPC, "no room")

    for kept in (OutputBuffer(4096), OutputBuffer(4096, make)):
        added = 0
        while not kept.full:
            kept.add(bytes(100))
            added += 100
        assert added == kept.in_memory == 4100
        assert len(b"".join(kept.hand_out(LARGE, None))) == added
        kept.drop(added)
        assert not kept.full


def test_a_store_that_cannot_be_read_says_so() -> None:
    store = FakeStore(0)
    kept = OutputBuffer(4096, lambda _: store)
    kept.add(bytes(2000))
    store.broken = True
    with pytest.raises(OSError):
        kept.hand_out(100, None)


STEPS = ["add", "add", "mark", "hand out", "drop", "take back", "room", "clear"]


@given(
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 40)), max_size=80),
    st.sampled_from([LARGE, 20_000, 4096]),
    st.integers(0, 20_000),
)
def test_everything_is_handed_out_in_order_until_it_is_dropped(
    steps: list[tuple[str, int]], memory_max: int, room: int
) -> None:
    stores: list[FakeStore] = []

    def make(offset: int) -> FakeStore:
        assert all(store.closed for store in stores), "two stores at a time"
        stores.append(FakeStore(offset, room))
        return stores[-1]

    kept, written, handed = OutputBuffer(memory_max, make), bytearray(), bytearray()
    mark = 0
    for what, number in steps:
        if what == "add" and number and not kept.full:
            data = bytes([number]) * number * 100
            written += data
            kept.add(data)
        elif what == "mark":
            mark = kept.mark()
            assert mark == len(written)
        elif what == "hand out":
            until = mark if mark > len(handed) else None
            handed += b"".join(kept.hand_out(1 + number * 50, until))
            assert until is None or len(handed) <= until
        elif what == "drop":
            kept.drop(kept.base + (kept.framed - kept.base) * number // 40)
        elif what == "take back":
            kept.take_back()
            del handed[kept.base :]
        elif what == "room" and stores:
            stores[-1].room = number * 500
        elif what == "clear" and number > 36:
            kept.clear()
            handed = bytearray(written)
            assert len(kept) == 0 and all(store.closed for store in stores)
        assert kept.framed == len(handed) and handed == written[: len(handed)]
        assert kept.base <= kept.framed <= kept.end == len(written)
        assert len(kept) == kept.end - kept.base
        assert kept.in_memory < memory_max + 4000
    while pieces := kept.hand_out(5000, None):
        handed += b"".join(pieces)
    assert handed == written
    kept.drop(len(written))
    assert all(store.closed for store in stores) and kept.in_memory == 0


# -- the spool ---------------------------------------------------------------------------------

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
