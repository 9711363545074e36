"""Texts in ``.orchestration`` that relay shares with people: read with bounds, replaced as a whole.

A file of its own because the intents, their map and the lessons are all kept so. The folder may
come from somebody else's repository: no link is followed, and nothing but a file is read.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relay.core import files
from relay.core.errors import StorageError
from relay.features.governance.governed_paths import FOLDER

#: How long a change waits for another one. Seconds.
_LOCK_WAIT, _LOCK_POLL = 5.0, 0.01
_SAID = {
    errno.ELOOP: "it is a link",
    errno.ENOENT: f"the folder {FOLDER} is not there",
    errno.ENOTDIR: f"{FOLDER} is no folder",
}


def read_text(root: str, name: str, limit: int) -> str | None:
    """What is in a file of the folder; None where there is none. Raises StorageError."""
    path = os.path.join(root, FOLDER, name)
    with _errors(path):
        folder = _open_folder(root)
        try:
            return _read(folder, name, limit)[0]
        finally:
            os.close(folder)


def edit_text(
    root: str, name: str, change: Callable[[str], str], limit: int, *, durable: bool = True
) -> bool:
    """Replace a file of the folder by what ``change`` makes of its text, "" where there is none.

    Returns whether it is another text now. Raises StorageError, also where it would become longer
    than ``limit`` bytes or somebody saves it at that moment, and what ``change`` raises.
    """
    path = os.path.join(root, FOLDER, name)
    with _errors(path):
        folder = _open_folder(root)
        try:
            _wait_for_lock(folder)
            text, mode = _read(folder, name, limit)
            changed = change(text or "")
            if changed == text:
                return False
            if len(changed.encode("utf-8", "surrogateescape")) > limit:
                raise StorageError(
                    f"{path} is full: it may have {limit} bytes",
                    hint="shorten it, or move it away and relay begins another",
                )
            if _read(folder, name, limit)[0] != text:
                raise StorageError(
                    f"{path} has been saved by somebody else just now, so it is not changed",
                    hint="try again",
                )
            files.write_atomically(path, changed, mode=mode, durable=durable)
            return True
        finally:
            os.close(folder)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        said = _SAID.get(error.errno or 0) or error.strerror or str(error)
        raise StorageError(
            f"{path} cannot be used: {said}", hint="see what lies there", details={"why": said}
        ) from error


def _open_folder(root: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(os.path.join(root, FOLDER), flags)


def _read(folder: int, name: str, limit: int) -> tuple[str | None, int]:
    """The text and the mode of a file; None where there is none."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None, 0o644
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise OSError(0, f"it has more than {limit} bytes; move it away")
        return data.decode("utf-8", "surrogateescape"), stat.S_IMODE(status.st_mode)
    finally:
        os.close(fd)


def _wait_for_lock(folder: int) -> None:
    # The folder itself is locked, so that nothing of relay's lies in the project for it.
    end = time.monotonic() + _LOCK_WAIT
    while not files.lock_open_file(folder):
        if time.monotonic() >= end:
            raise OSError(0, "somebody else changes it for long")
        time.sleep(_LOCK_POLL)
