"""Who holds a lock, as the kernel has it: for a person who wants to know what is in the way.

Not for deciding whom to believe: what was forked from the holder of a flock holds it too.
"""

from __future__ import annotations

import os

from relay.core.files import lock_holder

#: What the command line of a broker says, however it was started.
_BROKER = "relay.broker"


class Holder:
    """A process that holds a lock. ``command`` is its command line, for people to read."""

    __slots__ = ("pid", "command", "is_stopped", "is_broker")

    def __init__(self, pid: int, command: str, state: str) -> None:
        self.pid = pid
        self.command = command
        self.is_stopped = state in ("T", "t")
        #: By its own account: any process can say so.
        self.is_broker = _BROKER in command or "relay broker run" in command

    @property
    def named(self) -> str:
        """It, for people to read."""
        if self.is_broker:
            return f"the broker (pid {self.pid})"
        return f"process {self.pid} ({self.command})"


def holders(path: str) -> list[Holder]:
    """The other processes that hold the lock of ``path``; what belongs to other users is not seen,
    and without /proc only who has signed it (see relay.core.files.sign_lock)."""
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
