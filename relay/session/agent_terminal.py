"""The agent's terminal, for whatever types there.

``InnerTerminal`` is the agent's own side, opened a second time: its mode, and the input left to
read.

Where the kernel reports reads (Linux), input that was read is distinguished from input that was
thrown away.

Source: termios(3), tty_ioctl(4), inotify(7). In canonical mode FIONREAD counts whole lines only,
which is what a line program can read.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import os
import sys
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from relay.agents.interpreters import in_front
from relay.core.message import Message
from relay.core.source_events import Screen, Terminal
from relay.session.agent_questions import OpenQuestions
from relay.session.typing_policy import Guards

_IN_ACCESS = 1
_EVENT_BYTES = 16
#: Where a Linux thread sleeps that reads a terminal (or a socket), that waits for an epoll set
#: (whose members can be looked up), and that waits for descriptors which only it knows.
_READS = ("n_tty_read", "wait_woken")
_WAITS = ("do_epoll_wait", "ep_poll")
_MAY_WAIT = ("poll_schedule_timeout", "do_poll", "do_select", "do_sys_poll")


class WriteLink(Protocol):
    """The part of the pump link that typing needs."""

    async def write(
        self, data: bytes, *, write_id: int, sequence: int, offset: int | None = None
    ) -> bool | None: ...


@dataclass(frozen=True, slots=True)
class AgentTerminal:
    """The terminal of one agent, for whatever presses keys there."""

    link: WriteLink
    terminal: Terminal
    screen: Screen
    guards: Guards
    questions: OpenQuestions
    clock: Callable[[], float]


def write_id(message: Message, step: str) -> int:
    """The same number for the same bytes of the same message, also after a restart."""
    digest = hashlib.sha256(f"{message.id}/{message.to}/{step}".encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFFFFFF


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
        """How often the program has read, at least; None where the kernel does not report it."""
        if self._watch < 0:
            return None
        with contextlib.suppress(OSError):
            while events := os.read(self._watch, 4096):
                self._reads += len(events) // _EVENT_BYTES
        return self._reads

    def waits(self) -> bool | None:
        """Whether the program in front waits for input; None where that is unknown."""
        processes = in_front(self._pid) if sys.platform == "linux" else None
        if processes is None:
            return None
        found: set[bool | None] = set()
        for pid in processes:
            with contextlib.suppress(OSError, ValueError):
                found.update(self._awaits(pid, task) for task in os.listdir(f"/proc/{pid}/task"))
        return True if True in found else None if None in found or not found else False

    def _awaits(self, pid: int, task: str) -> bool | None:
        """The same of one thread of one process: proc(5)."""
        folder = f"/proc/{pid}/task/{task}"
        where = _text(f"{folder}/wchan").partition(".")[0]
        if where in _READS:
            call = _text(f"{folder}/syscall").split()  # the call's number and its arguments
            return self._is_terminal(pid, str(int(call[1], 16))) if len(call) > 1 else True
        if where in _WAITS:
            sets = [fd for fd in os.listdir(f"/proc/{pid}/fd") if _is_event_set(pid, fd)]
            watched = [fd for one in sets for fd in _watched(pid, one)]
            return any(self._is_terminal(pid, fd) for fd in watched)
        hidden = where == "0" and _text(f"{folder}/stat").rpartition(")")[2].split()[0] == "S"
        return None if where in _MAY_WAIT or hidden else False

    def _is_terminal(self, pid: int, fd: str) -> bool:
        try:
            device = os.stat(f"/proc/{pid}/fd/{fd}").st_rdev
        except OSError:
            return False
        return device in (os.fstat(self._fd).st_rdev, os.makedev(5, 0))  # the other is /dev/tty

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


def _text(path: str) -> str:
    """The content of a file in /proc; "" where we may not read it."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _is_event_set(pid: int, fd: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}") == "anon_inode:[eventpoll]"
    return False


def _watched(pid: int, fd: str) -> list[str]:
    """The descriptors in an epoll set."""
    lines = _text(f"/proc/{pid}/fdinfo/{fd}").splitlines()
    return [line.split()[1] for line in lines if line.startswith("tfd:")]


def _watch_reads(path: str) -> int:
    """A descriptor that reports reads (several may be reported as one); -1: none."""
    if sys.platform != "linux":
        return -1
    import ctypes

    libc = ctypes.CDLL(None)
    fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    # A program may read its terminal by either name; the second is shared with other terminals.
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
