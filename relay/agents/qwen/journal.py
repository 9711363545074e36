"""Which of the event files of one run is being read.

Qwen Code writes its events from the beginning of the file, also when it starts itself again (after
it was told to trust a folder, for one). So a file that it has opened is given a number, and the
next process finds none and makes another. What has been read is no longer kept on the disk, where
the system can forget a part of a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys

_NUMBERED = re.compile(r"\.(\d+)$")
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
#: A part of a file smaller than this is not worth forgetting.
PART = 4 * 1024 * 1024
_BLOCK = 4096


class Journal:
    """The event files that follow each other at ``base``; ``path`` is called before each read."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._number = 0
        self._forgotten = 0
        self._read = 0  # up to here a session that follows this one has no need of it

    def path(self) -> str | None:
        """The file to read now: the next one only after the one before it has been read."""
        if os.path.exists(self._name(self._number + 1)):
            self._number += 1
            self._forgotten = self._read = 0
        with contextlib.suppress(OSError):
            os.rename(self._base, self._name(self._last() + 1))
        if not self._number and os.path.exists(self._name(1)):
            self._number = 1
        return self._name(self._number) if self._number else None

    @property
    def lost(self) -> bool:
        """Whether the file that was being read is gone."""
        return bool(self._number) and not os.path.exists(self._name(self._number))

    def restore(self, path: str | None) -> None:
        """Go on with the file that an earlier session read last."""
        found = _NUMBERED.search(path or "")
        self._number = int(found[1]) if found else 0

    def kept(self, offset: int) -> None:
        """A checkpoint says that the file was read up to ``offset``; the one before it is safe."""
        done, self._read = self._read, offset
        if done - self._forgotten >= PART and self._number:
            self._forgotten = done
            forget(self._name(self._number), done)

    def _last(self) -> int:
        number = self._number
        while os.path.exists(self._name(number + 1)):
            number += 1
        return number

    def _name(self, number: int) -> str:
        return f"{self._base}.{number}"


def forget(path: str, end: int) -> None:
    """Give the first ``end`` bytes of a file back to the disk, where the system can do that."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            length = ctypes.c_int64(end // _BLOCK * _BLOCK)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), length)
        finally:
            os.close(fd)
