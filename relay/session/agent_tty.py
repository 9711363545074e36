"""The agent's own side of its terminal, opened a second time: what the program sees and has read.

A file of its own: the only one of a session that does I/O on a terminal. Where the kernel tells of
reads (Linux), what was read is told from what was thrown away.

Source: termios(3), tty_ioctl(4), inotify(7). In canonical mode FIONREAD counts whole lines only,
which is what a line program can read.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import sys
import termios

_IN_ACCESS = 1
_EVENT_BYTES = 16
#: Where a process sleeps in Linux that waits for a terminal's input, or for any event.
_WAITING = frozenset(
    ("n_tty_read", "wait_woken", "do_epoll_wait", "ep_poll", "do_poll", "do_select")
    + ("poll_schedule_timeout", "do_sys_poll")
)


class InnerTerminal:
    """The slave of the agent's pseudo-terminal. Raises OSError when it cannot be opened."""

    def __init__(self, path: str, pid: int = 0) -> None:
        self._pid = pid
        self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._watch = _watch_reads(path)
        self._reads = 0

    def cooked(self) -> bool:
        """Whether the kernel edits lines (canonical mode)."""
        return bool(self._local_flags() & termios.ICANON)

    def secret(self) -> bool:
        """Whether lines are read without echo: a password prompt."""
        flags = self._local_flags()
        return bool(flags & termios.ICANON) and not flags & termios.ECHO

    def unread(self) -> int | None:
        """Bytes that the program has not read yet; None when the terminal is gone."""
        count = array.array("i", [0])
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, count)
        except OSError:
            return None
        return count[0]

    def reads(self) -> int | None:
        """How often the program has read something, or more seldom; None where nobody tells."""
        if self._watch < 0:
            return None
        with contextlib.suppress(OSError):
            while events := os.read(self._watch, 4096):
                self._reads += len(events) // _EVENT_BYTES
        return self._reads

    def waits(self) -> bool | None:
        """Whether the program waits for input of some kind; None where nobody tells."""
        try:
            with open(f"/proc/{self._pid}/wchan", encoding="ascii") as file:
                where = file.read()
        except (OSError, UnicodeDecodeError):
            return None
        return where in _WAITING

    def close(self) -> None:
        """Close our descriptions; calling it again does nothing."""
        for fd in (self._fd, self._watch):
            if fd >= 0:
                os.close(fd)
        self._fd = self._watch = -1

    def _local_flags(self) -> int:
        try:
            flags: int = termios.tcgetattr(self._fd)[3]
        except (OSError, termios.error):
            return 0
        return flags


def _watch_reads(path: str) -> int:
    """A descriptor that tells of each read, of which several may be told as one; -1: none."""
    if sys.platform != "linux":
        return -1
    import ctypes

    libc = ctypes.CDLL(None)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    # A program may read its terminal by either name; by the second one others read theirs, too.
    for name in (os.fsencode(path), b"/dev/tty"):
        if fd >= 0 and libc.inotify_add_watch(fd, name, _IN_ACCESS) < 0:
            os.close(fd)
            return -1
    return fd


class NoTerminal:
    """Stands in where the agent has no terminal: nothing can be typed, nothing is unread."""

    def cooked(self) -> bool:
        return False

    def secret(self) -> bool:
        return False

    def unread(self) -> int:
        return 0

    def reads(self) -> None:
        return None

    def waits(self) -> None:
        return None

    def close(self) -> None:
        pass


def open_agent_tty(path: str | None, pid: int = 0) -> InnerTerminal | NoTerminal:
    """The program's own terminal, where the pump could say which it is."""
    if path:
        with contextlib.suppress(OSError):
            return InnerTerminal(path, pid)
    return NoTerminal()
