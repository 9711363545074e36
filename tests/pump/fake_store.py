"""A store for what is kept, in memory: as small and as broken as a test wants it."""

from __future__ import annotations

import errno

from relay.pump.output_buffer import Spool


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
