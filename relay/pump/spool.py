"""Where output waits on disk for the session, when a flood is more than memory should hold.

Files without a name, each a part of the stream: nobody else sees them, a crash leaves none behind,
and what is dealt with gives its room back bit by bit. They are written once and read once or twice
soon after, so most of it never reaches the disk itself.
"""

from __future__ import annotations

import errno
import os
import time

#: Bytes on disk, about: less where the disk has little room, of which this share is taken.
SPOOL_MAX = 1024 * 1024 * 1024
_SHARE = 4
#: A file takes so many bytes, about: closing a larger one would hold the person's keys up.
FILE_MAX = 32 * 1024 * 1024
#: Buffers in one writev(2), which takes 1024.
_PIECES_MAX = 512
#: A disk on which one write takes so many seconds is written to no more: the agent waits behind it.
_SLOW = 0.25


class _File:
    """The bytes of the stream from ``begin`` up to ``end``."""

    __slots__ = ("fd", "begin", "end")

    def __init__(self, fd: int, begin: int) -> None:
        self.fd = fd
        self.begin = self.end = begin


class Spool:
    """See ``kept.Store``. The stream begins at ``offset``; files are made in ``folder``.

    Raises OSError when the folder is not there.
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
