"""The outer terminal: private descriptions, raw mode, sizes. Source: termios(3), tty_ioctl(4)."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

Attributes = list[int | list[bytes | int]]

_SIZE = struct.Struct("HHHH")
#: How much a blocking terminal takes in one write once poll says that it is writable.
BLOCKING_CHUNK = 256


class Size:
    """Columns and rows, and the same in pixels (0 where the terminal does not say)."""

    __slots__ = ("cols", "rows", "xpixel", "ypixel")

    def __init__(self, cols: int = 0, rows: int = 0, xpixel: int = 0, ypixel: int = 0) -> None:
        self.cols = cols
        self.rows = rows
        self.xpixel = xpixel
        self.ypixel = ypixel

    def packed(self) -> bytes:
        """4 x uint16, big-endian: the payload of a SIZE frame."""
        return struct.pack(">HHHH", self.cols, self.rows, self.xpixel, self.ypixel)


def read_size(fd: int) -> Size:
    """The window size of a terminal; all zero when it has none."""
    try:
        raw = fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * _SIZE.size)
    except OSError:
        return Size()
    rows, cols, xpixel, ypixel = _SIZE.unpack(raw)
    return Size(cols, rows, xpixel, ypixel)


def write_size(fd: int, size: Size) -> None:
    """Set the window size; a terminal that is gone is no error."""
    try:
        raw = _SIZE.pack(size.rows, size.cols, size.xpixel, size.ypixel)
        fcntl.ioctl(fd, termios.TIOCSWINSZ, raw)
    except OSError:
        pass


def leave_session(fd: int) -> None:
    """Give up the terminal for our whole session, which we lead, as our end would."""
    try:
        fcntl.ioctl(fd, termios.TIOCNOTTY)
    except OSError:
        return  # it is gone


def unread(path: str) -> int | None:
    """Bytes of input that nobody has read from the terminal ``path``; None when it is gone."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    except OSError:
        return None
    finally:
        os.close(fd)


def open_private(fd: int) -> tuple[int, bool]:
    """(a descriptor for the terminal behind ``fd``, whether it is non-blocking).

    O_NONBLOCK belongs to the open file description: set on fd 0 it would change the user's shell.
    So the terminal is opened again; where that is refused (it belongs to another user, or to
    another file system) the blocking one is duplicated.
    """
    flags = os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
    wanted = os.fstat(fd)
    for path in (f"/proc/self/fd/{fd}", _name(fd)):
        if not path:
            continue
        try:
            private = os.open(path, flags)
        except OSError:
            continue
        if os.fstat(private).st_rdev == wanted.st_rdev:
            return private, True
        os.close(private)
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3), False


def _name(fd: int) -> str:
    try:
        return os.ttyname(fd)
    except OSError:
        return ""


def raw(attributes: Attributes) -> Attributes:
    """The same modes with every processing off, as cfmakeraw(3) does."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, cc = attributes
    assert isinstance(iflag, int) and isinstance(oflag, int)
    assert isinstance(cflag, int) and isinstance(lflag, int) and isinstance(cc, list)
    t = termios
    iflag &= ~(t.IGNBRK | t.BRKINT | t.PARMRK | t.ISTRIP | t.INLCR | t.IGNCR | t.ICRNL | t.IXON)
    oflag &= ~t.OPOST
    lflag &= ~(t.ECHO | t.ECHONL | t.ICANON | t.ISIG | t.IEXTEN)
    cflag = cflag & ~(t.CSIZE | t.PARENB) | t.CS8
    chars = list(cc)
    chars[t.VMIN] = 1
    chars[t.VTIME] = 0
    return [iflag, oflag, cflag, lflag, ispeed, ospeed, chars]


def get_modes(fd: int) -> Attributes | None:
    """The terminal's modes, or None when it has gone."""
    try:
        return termios.tcgetattr(fd)
    except (termios.error, OSError):
        return None


def set_modes(fd: int, attributes: Attributes) -> bool:
    """Set modes at once, keeping typed-ahead keys. False when the terminal has gone."""
    try:
        termios.tcsetattr(fd, termios.TCSANOW, attributes)
    except (termios.error, OSError):
        return False
    return True


def in_foreground(fd: int) -> bool:
    """Whether we may read ``fd`` and change its modes: always, when it does not control us."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return True


class Outer:
    """The outer terminal's modes: raw while the agent has it, as they were otherwise."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.original = get_modes(fd)
        self.raw: Attributes | None = None
        self.active = False

    def enter(self, tell: Callable[[Attributes, Attributes], None]) -> None:
        """Make it raw, remembering what it was unless it is ours already.

        ``tell`` is called with the original modes and ours, to restore them should we be killed.
        """
        now = get_modes(self.fd)
        if now is None:
            return
        if now != self.raw:
            self.original = now
        assert self.original is not None
        wanted = raw(now)
        tell(self.original, wanted)  # before: we may be killed right after
        if set_modes(self.fd, wanted):
            self.active = True
            self.raw = get_modes(self.fd)
            if self.raw is not None and self.raw != wanted:
                tell(self.original, self.raw)

    def leave(self) -> None:
        """Restore it, if it is raw."""
        if self.active and self.original is not None:
            self.active = False
            set_modes(self.fd, self.original)


def leave_for(fd: int, original: Attributes, ours: Attributes) -> None:
    """Restore for a pump that died, unless somebody has taken the terminal over meanwhile."""
    if get_modes(fd) == ours:
        set_modes(fd, original)
