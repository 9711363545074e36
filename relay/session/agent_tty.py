"""The agent's own side of its terminal, opened a second time: what the program sees and has read.

A file of its own: the only one of a session that does I/O on a terminal.

Source: termios(3), tty_ioctl(4). In canonical mode FIONREAD counts whole lines only, which is what
a line program can read.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import termios


class InnerTerminal:
    """The slave of the agent's pseudo-terminal. Raises OSError when it cannot be opened."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)

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

    def close(self) -> None:
        """Close our description; calling it again does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _local_flags(self) -> int:
        try:
            flags: int = termios.tcgetattr(self._fd)[3]
        except (OSError, termios.error):
            return 0
        return flags


class NoTerminal:
    """Stands in where the agent has no terminal: nothing can be typed, nothing is unread."""

    def cooked(self) -> bool:
        return False

    def secret(self) -> bool:
        return False

    def unread(self) -> int:
        return 0

    def close(self) -> None:
        pass


def open_agent_tty(path: str | None) -> InnerTerminal | NoTerminal:
    """The program's own terminal, where the pump could say which it is."""
    if path:
        with contextlib.suppress(OSError):
            return InnerTerminal(path)
    return NoTerminal()
