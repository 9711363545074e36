"""Keeps what the agent wrote and the session has not acknowledged, in memory and on disk.

Offsets count the agent's bytes from its start. What is kept lies between ``base`` and ``end``; what
lies before ``framed`` was handed out to the session that there is now. A little is kept in memory;
what is more goes, oldest first, into a store on disk (``Spool``), which is made when it is needed
and closed when it has drained.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Make a spool that begins at this offset. Raises OSError.
    MakeStore = Callable[[int], "Spool"]

#: Smaller pieces are put together, where nothing happened between them.
_SMALL = 2048
#: Pieces handed out at once: writev(2) takes 1024 buffers.
_PIECES_MAX = 512
#: Parts of what memory may hold: with so much a store is made, and with so much it gets the next.
_SPILL = 4
_BATCH = 128
#: Bytes on disk, about: less where the disk has little room, of which this share is taken.
SPOOL_MAX = 1024 * 1024 * 1024
_SHARE = 4
#: Bytes of one file, about: closing a larger one would hold the person's keys up.
FILE_MAX = 32 * 1024 * 1024
#: A disk on which one write takes this many seconds gets no more: the agent waits behind it.
_SLOW = 0.25


class OutputBuffer:
    """A stream in pieces: adding, handing out and dropping copy nothing that is large.

    ``memory_max``: with this many bytes in memory it is ``full``, and more should not be added.
    """

    def __init__(self, memory_max: int, make_store: MakeStore | None = None) -> None:
        self.base = 0
        self.framed = 0
        self.end = 0
        self._memory_max = memory_max
        self._make_store = make_store
        self._store: Spool | None = None
        self._stored = 0  # the end of what is in the store; what follows is in memory
        self._handed: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._joint = 0
        self._spill_at = memory_max // _SPILL  # bytes in memory

    def __len__(self) -> int:
        return self.end - self.base

    @property
    def in_memory(self) -> int:
        """Bytes that are not in the store."""
        return self.end - self._stored

    @property
    def full(self) -> bool:
        """Whether nothing more should be added."""
        return self.end - self._stored >= self._memory_max

    def add(self, data: bytes) -> None:
        """The agent wrote ``data``."""
        waiting = self._waiting
        if waiting and self._joint != self.end and len(waiting[-1]) + len(data) <= _SMALL:
            waiting[-1] += data
        else:
            waiting.append(data)
        self.end += len(data)
        if self.end - self._stored >= self._spill_at and self._make_store is not None:
            self._spill()

    def mark(self) -> int:
        """The end now; ``hand_out`` can stop there."""
        self._joint = self.end
        return self.end

    def hand_out(self, most: int, until: int | None) -> list[bytes]:
        """The next pieces, about ``most`` bytes together; none goes beyond the mark ``until``.

        Raises OSError when the store cannot be read.
        """
        if self._store is not None and self.framed < self._stored:
            end = self._stored if until is None else min(until, self._stored)
            if self.framed >= end:
                return []
            data = self._store.read(self.framed, min(most, end - self.framed))
            self.framed += len(data)
            return [data]
        waiting = self._waiting
        pieces: list[bytes] = []
        size = 0
        while waiting and size < most and len(pieces) < _PIECES_MAX and self.framed != until:
            piece = waiting.popleft()
            pieces.append(piece)
            size += len(piece)
            self.framed += len(piece)
        self._handed.extend(pieces)
        return pieces

    def take_back(self) -> None:
        """Another session gets it all, from ``base`` on."""
        self._waiting.extendleft(reversed(self._handed))
        self._handed.clear()
        self.framed = self.base

    def drop(self, offset: int) -> None:
        """What stands before ``offset``, which was handed out, is dealt with."""
        if offset <= self.base:
            return
        self.base = offset
        if self._store is not None:
            if offset < self._stored:
                self._store.drop(offset)
            else:
                self._close()
        if offset > self._stored:
            _cut(self._handed, offset - self._stored)
            self._stored = offset
        if self._store is not None and self.full:
            self._spill()  # there may be room now

    def clear(self) -> None:
        """Drop all: no session will read it."""
        self._close()
        self.base = self.framed = self._stored = self.end
        self._handed.clear()
        self._waiting.clear()

    def descriptors(self) -> list[int]:
        """What a fork that goes on handing out must keep open."""
        return [] if self._store is None else self._store.descriptors()

    def close(self) -> None:
        """Another process hands out the rest, or nobody."""
        self._close()

    def _spill(self) -> None:
        """Let the store take what is in memory. What it does not take stays."""
        taken = 0
        try:
            if self._store is None and self._make_store is not None:
                self._store = self._make_store(self._stored)
        except OSError:
            pass  # as if it took nothing
        if self._store is not None:
            taken = self._store.append([*self._handed, *self._waiting])
        self._stored += taken
        _cut(self._waiting, _cut(self._handed, taken))
        batch = self._memory_max // _BATCH
        # A store that takes nothing, as on a full disk, is asked again after some more.
        self._spill_at = batch if not self.in_memory else self.in_memory + 4 * batch

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        self._spill_at = self._memory_max // _SPILL


def _cut(pieces: deque[bytes], count: int) -> int:
    """Remove ``count`` bytes in front, or all; how many are left to be removed elsewhere."""
    while pieces and len(pieces[0]) <= count:
        count -= len(pieces.popleft())
    if pieces and count:
        pieces[0] = pieces[0][count:]
        count = 0
    return count


class _File:
    """The bytes of the stream from ``begin`` up to ``end``."""

    __slots__ = ("fd", "begin", "end")

    def __init__(self, fd: int, begin: int) -> None:
        self.fd = fd
        self.begin = self.end = begin


class Spool:
    """Output on disk, from ``offset`` of the stream on, in files without a name in ``folder``.

    Nobody else sees them, a crash leaves none behind, and what is dealt with gives its room back
    bit by bit. They are written once and read once or twice soon after, so most of it never reaches
    the disk itself. Raises OSError when the folder is not there.
    """

    def __init__(self, folder: str, offset: int) -> None:
        disk = os.statvfs(folder)
        self._folder = folder
        self._most = min(SPOOL_MAX, disk.f_bavail * disk.f_frsize // _SHARE)
        self._files: list[_File] = []
        self._end = offset
        self._slow = False

    def append(self, pieces: list[bytes]) -> int:
        """Take pieces; returns how many bytes of them were taken: fewer when there is no room."""
        taken = at = 0
        try:
            while at < len(pieces) and not self._slow and self._has_room():
                some = pieces[at : at + _PIECES_MAX]
                at += len(some)
                written = self._write(some)
                taken += written
                if written < sum(map(len, some)):
                    break
        except OSError:
            return taken  # what was not written stays where it is
        return taken

    def read(self, offset: int, most: int) -> bytes:
        """At least one byte from ``offset`` on. Raises OSError."""
        for file in self._files:
            if file.begin <= offset < file.end:
                data = os.pread(file.fd, min(most, file.end - offset), offset - file.begin)
                if data:
                    return data
        raise OSError(errno.EIO, "what was written is not there")

    def drop(self, offset: int) -> None:
        """What stands before ``offset`` is not needed any more."""
        files = self._files
        while files and files[0].end <= offset:
            os.close(files.pop(0).fd)

    def descriptors(self) -> list[int]:
        """The descriptors of the files."""
        return [file.fd for file in self._files]

    def close(self) -> None:
        """Give everything back."""
        self.drop(self._end)

    def _has_room(self) -> bool:
        used = self._end - self._files[0].begin if self._files else 0
        return used < self._most

    def _write(self, pieces: list[bytes]) -> int:
        files = self._files
        if not files or files[-1].end - files[-1].begin >= FILE_MAX:
            files.append(_File(self._create(), self._end))
        began = time.monotonic()
        written = os.writev(files[-1].fd, pieces)
        self._slow = time.monotonic() - began >= _SLOW
        self._end += written
        files[-1].end = self._end
        return written

    def _create(self) -> int:
        path = os.path.join(self._folder, f"spool-{os.getpid()}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return fd
