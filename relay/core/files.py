"""Files that relay owns: private folders, files replaced as a whole, locks between processes.

Only ``os`` is imported at the top: ``relay wrap`` reads this before it starts the agent.
"""

from __future__ import annotations

import os

#: Seconds between two looks at a lock that is held: no system call waits for one with a deadline.
_LOCK_POLL = 0.02


def make_private_folder(path: str) -> None:
    """Make ``path`` and its parents, mode 0700, where they are missing. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)


def write_atomically(
    path: str, data: bytes | str, *, mode: int = 0o600, durable: bool = True
) -> None:
    """Replace ``path`` as a whole: a reader sees the old content or the new. Raises OSError.

    Text is written as UTF-8, with the bytes that ``os.fsdecode`` could not read. ``durable``: the
    content and its name are on the disk when this returns. A link is replaced, not followed.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    temporary = f"{path}.{os.getpid()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        unlink_if_there(temporary)
        raise
    if durable:
        sync_folder(os.path.dirname(path) or ".")


def sync_folder(path: str) -> None:
    """Put the names in a folder on the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def unlink_if_there(path: str) -> None:
    """Remove a file; nothing happens when there is none. Raises OSError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def take_lock(path: str, wait: float = 0.0) -> int | None:
    """Lock the file ``path`` for this process, making it if need be. Raises OSError.

    Returns the descriptor, whose closing lets others in (the end of the process does too), or None
    when another process still holds the lock after ``wait`` seconds.
    """
    import time

    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    end = time.monotonic() + wait
    try:
        while not lock_open_file(fd):
            if time.monotonic() >= end:
                os.close(fd)
                return None
            time.sleep(_LOCK_POLL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def lock_open_file(fd: int, *, shared: bool = False) -> bool:
    """Lock an open file if nobody holds it; whether it is ours now. Raises OSError."""
    import fcntl

    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: str) -> bool:
    """Whether a process holds the lock of ``path``; False for a file that cannot be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not lock_open_file(fd, shared=True)
    except OSError:
        return False
    finally:
        os.close(fd)
