"""The outer terminal, the person's: keys in, output out, modes, size, fore- and background.

The descriptors are private and do not block, unless the terminal cannot be opened again: then only
poll knows whether a write would block. A terminal that went away is marked ``gone`` and no error.
"""

from __future__ import annotations

import os
import select
import termios

from relay.core import descriptors
from relay.protocol import frames
from relay.pump import tty

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.pump.session_link import SessionLink

#: Output that waits for a terminal that does not read; beyond it the agent is not read.
PENDING_MAX = 128 * 1024
#: Chunks that may take the fast path before they are noted.
UNNOTED_MAX = 64
_READ = 4096  # a terminal yields no more at a time


class OuterTerminal:
    """``keys`` is read, ``screen`` written; they are one descriptor but for two terminals."""

    unnoted_max = UNNOTED_MAX

    def __init__(self, stdin: int, stdout: int) -> None:
        self.keys, self._private = tty.open_private(stdin)
        self.screen = self.keys
        if os.fstat(stdin).st_rdev != os.fstat(stdout).st_rdev:
            self.screen, private = tty.open_private(stdout)
            self._private = self._private and private
        self.modes = tty.Outer(self.keys)
        self.pending = bytearray()
        self.gone = False
        self.background = not tty.in_foreground(self.keys)
        self.size = tty.read_size(self.screen)

    def in_foreground(self) -> bool:
        """Look whether the terminal is ours now, and remember it."""
        self.background = not tty.in_foreground(self.keys)
        return not self.background

    def measure(self) -> bool:
        """Read the terminal's size; return whether it has changed."""
        before, self.size = self.size, tty.read_size(self.screen)
        return before.packed() != self.size.packed()

    def read(self) -> bytes:
        """Keys; empty when there are none. A hung-up terminal is ``gone`` afterwards."""
        try:
            data = os.read(self.keys, _READ)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self.gone = True
        return data

    def write(self, data: bytes) -> None:
        """Show ``data`` after what waits already; never blocks."""
        if self.gone:
            return
        if self.pending or not self._private:
            self.pending += data
            return
        try:
            written = os.write(self.screen, data)
        except BlockingIOError:
            written = 0
        except OSError:
            self._lost()
            return
        if written < len(data):
            self.pending += data[written:]

    def flush(self) -> bool:
        """Write what waits, after poll said that some will be taken; whether any was."""
        progress = False
        while self.pending:
            chunk = self.pending[: 65536 if self._private else tty.BLOCKING_CHUNK]
            try:
                written = os.write(self.screen, chunk)
            except BlockingIOError:
                break
            except OSError:
                self._lost()
                break
            del self.pending[:written]
            progress = True
            if not self._private:
                break  # only poll knows whether the next write would block
        return progress

    def drain(self) -> None:
        """Write what waits, as much as the terminal takes now."""
        poll = select.poll()
        poll.register(self.screen, select.POLLOUT)
        while self.pending and poll.poll(0) and self.flush():
            continue

    def interest(self, reading: bool) -> dict[int, int]:
        """What to poll for."""
        wanted: dict[int, int] = {}
        if self.gone:
            return wanted
        # Also where nothing is read: poll says when the terminal has gone.
        wanted[self.keys] = select.POLLIN if reading and not self.background else 0
        if self.pending:
            wanted[self.screen] = wanted.get(self.screen, 0) | select.POLLOUT
        return wanted

    def name(self) -> str | None:
        """The path of the terminal, None where it has none."""
        try:
            return os.ttyname(self.screen)
        except OSError:
            return None

    def close(self) -> None:
        """Close the descriptors; the modes are restored before."""
        descriptors.close([self.screen])
        if self.keys != self.screen:
            descriptors.close([self.keys])

    def _lost(self) -> None:
        self.gone = True
        self.pending.clear()


class RecordedTerminal(OuterTerminal):
    """The outer terminal, whose keys go to the session too, for a recording."""

    unnoted_max = 1  # what was written before a key is noted before it

    def record(self, link: SessionLink, master: int) -> None:
        """From now on send keys by ``link``; ``master`` is the agent's terminal."""
        self._link, self._master = link, master

    def read(self) -> bytes:
        """See OuterTerminal."""
        data = super().read()
        if data and not _hides_keys(self._master):
            self._link.event(frames.KEYS, data)
        return data


def _hides_keys(master: int) -> bool:
    """Whether the terminal reads a line without showing it, as for a password."""
    modes = tty.get_modes(master)
    if modes is None or not isinstance(modes[3], int):
        return True
    return bool(modes[3] & termios.ICANON) and not modes[3] & termios.ECHO
