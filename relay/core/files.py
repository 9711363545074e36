"""Files that relay owns: private folders, files replaced as a whole, locks between processes and
who holds them.

Little is imported at the top: ``relay wrap`` reads this before it starts the agent.
"""

from __future__ import annotations

import errno
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: A larger file is not a program that can be trusted. In bytes.
PROGRAM_MAX = 16 * 1024 * 1024
#: Seconds between two looks at a lock that is held: no system call waits for one with a deadline.
_LOCK_POLL = 0.02
#: Of a mode: the group or everybody may write.
_OTHERS_WRITE = 0o022
#: Why something is not ours, as an error's ``strerror``.
NOT_OURS = ("belongs to another user", "is a link", "is another user's link")
#: What the command line of a broker says, however it was started.
_BROKER = "relay.broker"


def make_private_folder(path: str) -> None:
    """Make ``path`` and its parents, mode 0700, where they are missing. Raises OSError."""
    os.makedirs(path, mode=0o700, exist_ok=True)


def own_folder(path: str, *, linked: bool = False, mend: bool = True) -> bool:
    """Make a folder that nobody else has made, and close it to others (mode 0700); unless it is to
    be mended (``mend``), only look at one that is there.

    Returns whether others could write to it until now. Raises PermissionError where it belongs to
    somebody else, is a link (unless it may be ``linked``), or, open to others, holds what is not
    ours; OSError where it cannot be made.
    """
    if mend:
        make_private_folder(path)
    follow = 0 if linked else os.O_NOFOLLOW
    check_own_link(path)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow)
    except OSError as error:
        if not linked and os.path.islink(path):
            raise _not_ours(path, NOT_OURS[1]) from error
        raise
    try:
        status = os.fstat(fd)
        check_owner(path, status)
        opened = bool(status.st_mode & _OTHERS_WRITE)
        if opened:
            for name in os.listdir(fd):
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                check_owner(os.path.join(path, name), found)
        if mend and status.st_mode & 0o077:
            os.fchmod(fd, 0o700)
        return opened
    finally:
        os.close(fd)


def own_file(path: str, *, mend: bool = True) -> bool:
    """Close a file to others, where it is there (mode 0600), if it is to be mended.

    Returns whether others could write to it until now. Raises PermissionError where it belongs to
    somebody else or is a link, OSError where it cannot be opened.
    """
    try:
        found = os.lstat(path)
        closed = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077
        if closed and found.st_uid == os.getuid():
            # Not opened: closing it again would end the locks that SQLite holds in this process.
            return False
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        if os.path.islink(path):
            raise _not_ours(path, NOT_OURS[1]) from error
        raise
    try:
        status = os.fstat(fd)
        check_owner(path, status)
        if mend and status.st_mode & 0o077:
            os.fchmod(fd, status.st_mode & 0o700)
        return bool(status.st_mode & _OTHERS_WRITE)
    finally:
        os.close(fd)


def open_private(path: str, flags: int) -> int:
    """Open a file of ours (an ``opener``), mode 0600 where it is made: no link is followed."""
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def check_own_link(path: str) -> None:
    """Raises PermissionError for a link that somebody else has put there."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in (os.getuid(), 0):
        raise _not_ours(path, NOT_OURS[2])


def check_owner(path: str, status: os.stat_result) -> None:
    """Raises PermissionError for what belongs to somebody else."""
    if status.st_uid != os.getuid():
        raise _not_ours(path, NOT_OURS[0])


def _not_ours(path: str, why: str) -> PermissionError:
    import errno

    return PermissionError(errno.EPERM, why, path)


def read_file(path: str, limit: int) -> bytes:
    """The first ``limit`` + 1 bytes. Raises OSError: IsADirectoryError for what is not a file."""
    # Not blocking: a FIFO that lies there must not stop anybody.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is not a file")
        with open(fd, "rb", closefd=False) as file:
            return file.read(limit + 1)
    finally:
        os.close(fd)


def file_hash(path: str) -> str:
    """The SHA-256 of a program. Raises OSError, also for what is not a file or too large."""
    import hashlib  # verbs import this module at their start

    data = read_file(path, PROGRAM_MAX)
    if len(data) > PROGRAM_MAX:
        raise OSError(errno.EFBIG, f"it is larger than {PROGRAM_MAX} bytes", path)
    return hashlib.sha256(data).hexdigest()


def changed_files(hashes: Mapping[str, str]) -> list[str]:
    changed = []
    for path, sha256 in hashes.items():
        try:
            same = file_hash(path) == sha256
        except OSError:
            same = False
        if not same:
            changed.append(path)
    return changed


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

    fd = open_private(path, os.O_RDWR | os.O_CREAT)
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


def sign_lock(fd: int) -> bool:
    """Have the kernel name this process as the holder of a locked file; whether it does now.

    flock(2) says that a lock is held, and not by whom: what was forked from its holder holds it
    too. A record lock belongs to one process, passes to nobody, and names it. It ends when this
    process closes *any* descriptor of the file, so nobody opens the file again who has signed it.
    """
    import fcntl

    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # which of the two depends on the system
        return False
    return True


def lock_holder(path: str) -> int:
    """The pid of the other process that has signed the lock of ``path``; 0 where there is none, or
    its number means nothing here (another container). Not for who has signed it: see there."""
    import fcntl
    from _struct import pack, unpack  # the C module itself: ``struct`` costs every verb 0.3 ms

    # struct flock: on macOS the range and the pid stand first.
    form, place = ("qqihh", 2) if sys.platform == "darwin" else ("hhqqi", 4)
    asked = [0] * 5
    asked[3 if form == "qqihh" else 0] = fcntl.F_WRLCK
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        told = unpack(form, fcntl.fcntl(fd, fcntl.F_GETLK, pack(form, *asked)))
    except OSError:
        return 0
    finally:
        os.close(fd)
    is_held = told[3 if form == "qqihh" else 0] != fcntl.F_UNLCK
    return max(0, told[place]) if is_held else 0


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


class Holder:
    """A process that holds a lock. ``command`` is its command line, for people to read."""

    __slots__ = ("pid", "command", "is_stopped", "is_broker")

    def __init__(self, pid: int, command: str, state: str) -> None:
        self.pid = pid
        self.command = command
        self.is_stopped = state == "T"  # one under a debugger ("t") runs on
        #: By its own account: any process can say so.
        self.is_broker = _BROKER in command or "relay broker run" in command

    @property
    def named(self) -> str:
        """It, for people to read."""
        if self.is_broker:
            return f"the broker (pid {self.pid})"
        return f"process {self.pid} ({self.command})"


def holders(path: str) -> list[Holder]:
    """The other processes that hold the lock of ``path``, for a person who wants to know what is in
    the way. Processes of other users are not seen; without /proc only who has signed the lock.

    Not for deciding whom to believe: what was forked from the holder of a flock holds it too.
    """
    pids = {lock_holder(path)} - {0}
    try:
        status = os.stat(path)
        names = os.listdir("/proc")
    except OSError:
        return [_holder(pid) for pid in sorted(pids)]
    same = (status.st_dev, status.st_ino)
    pids.update(int(name) for name in names if name.isdigit() and _has_flock(name, same))
    return [_holder(pid) for pid in sorted(pids - {os.getpid()})]


def _has_flock(pid: str, same: tuple[int, int]) -> bool:
    """Whether a descriptor of ``pid`` is of that file, and has its flock."""
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                status = os.stat(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue  # closed meanwhile
            if (status.st_dev, status.st_ino) == same:
                with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                    if "FLOCK" in file.read():
                        return True
    except OSError:
        pass  # another user's, or it has ended
    return False


def _holder(pid: int) -> Holder:
    command, state = "", ""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = file.read(4096).replace(b"\0", b" ").decode("utf-8", "replace").strip()
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        pass  # no /proc, or it has just ended
    return Holder(pid, command[:200], state)
