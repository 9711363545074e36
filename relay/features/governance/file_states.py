"""What a file is now: its hash, and its content where that is small. Waits for the disk.

A file of its own because a call's plan and its gate look at files with the same bounds.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from relay.features.governance.mutation import ABSENT, LINES_MAX, content_hash

#: Bytes of a file that is hashed whole; of a larger one size, time and ends are.
HASHED_MAX = 64 * 1024 * 1024
_END = 1024 * 1024
#: Bytes that are read for one call; what is left then counts as not known.
CALL_MAX = 512 * 1024 * 1024
#: Files below one folder that are looked at.
TREE_MAX = 1000


@dataclass(frozen=True, slots=True)
class FileState:
    """One path as it is now."""

    #: ABSENT where nothing is there; "" too where ``odd`` says what is, and no hash can be made.
    hash: str
    #: None where there is no file, or it is larger than what lines are told of.
    data: bytes | None = None
    is_folder: bool = False
    #: Why it has no hash ("it is no regular file").
    odd: str = ""
    #: Bytes that were read for the hash.
    size: int = 0

    @property
    def is_absent(self) -> bool:
        """Whether nothing is there."""
        return self.hash == ABSENT and not self.is_folder and not self.odd


def read_states(paths: Iterable[str]) -> dict[str, FileState]:
    """Look at all files of one call. Never raises OSError."""
    states: dict[str, FileState] = {}
    room = CALL_MAX
    for path in paths:
        if room > 0:
            states[path] = state = read_state(path)
            room -= state.size
        else:
            states[path] = FileState(ABSENT, odd="it is too much to read for one call")
    return states


def read_state(path: str) -> FileState:
    """Look at ``path`` itself: a link is told by where it leads. Never raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return FileState(ABSENT)
    except OSError as error:
        try:
            return FileState(content_hash(b"link:" + os.fsencode(os.readlink(path))))
        except OSError:
            return FileState(ABSENT, odd=f"it cannot be read: {error.strerror}")
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            return FileState(ABSENT, is_folder=True)
        if not stat.S_ISREG(status.st_mode):
            return FileState(ABSENT, odd="it is no regular file")
        if status.st_size > HASHED_MAX:
            return FileState(_hash_of_ends(fd, status), size=2 * _END)
        with open(fd, "rb", closefd=False) as file:
            if status.st_size > LINES_MAX:
                digest = hashlib.file_digest(file, "sha256")
                return FileState(f"sha256:{digest.hexdigest()}", size=status.st_size)
            data = file.read(LINES_MAX + 1)
        kept = data if len(data) <= LINES_MAX else None
        return FileState(content_hash(data), kept, size=len(data))
    except OSError as error:
        return FileState(ABSENT, odd=f"it cannot be read: {error.strerror}")
    finally:
        os.close(fd)


def _hash_of_ends(fd: int, status: os.stat_result) -> str:
    told = f"{status.st_size} {status.st_mtime_ns} ".encode()
    ends = os.pread(fd, _END, 0) + os.pread(fd, _END, status.st_size - _END)
    return f"ends:{hashlib.sha256(told + ends).hexdigest()}"


def tree(folder: str) -> list[str] | None:
    """Whatever lies below ``folder``, relative to it; None for more than can be looked at.

    Links are not followed, folders come before what is in them. Raises OSError.
    """
    found: list[str] = []
    left = [""]
    while left:
        below = left.pop()
        with os.scandir(os.path.join(folder, below)) as entries:
            for entry in entries:
                path = os.path.join(below, entry.name)
                found.append(path)
                if len(found) > TREE_MAX:
                    return None
                if entry.is_dir(follow_symlinks=False):
                    left.append(path)
    return found
