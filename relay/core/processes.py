"""What the kernel says of processes: who is behind a socket, below which wrapped run, where.

``side_of`` decides who speaks, for every client and every server of relay's: the person, an agent,
or nobody knows. Unknown is never the person, and nobody to talk to.

A run is *marked*: its monitor, of which the agent and all that it starts are descendants, has a
name that starts with ``MARK``. No other process can change or remove that name, so whoever finds
it among the ancestors of a process knows that it belongs to an agent, whatever its environment
says. Only Linux has that; elsewhere ``is_marked`` is False and registered monitors are looked for.

Imports nothing heavy: the monitor marks itself before it starts the agent, and every command of
``relay`` looks at the broker.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Collection, Iterator, Sequence

#: The name of a run's monitor begins so; what follows says of which RELAY_HOME it is.
MARK = "relay:"
#: What the kernel calls a run's session, whose programs act for the agent though they are the
#: person's. A name that is taken on only takes away.
SESSION = "relay-session"
#: Whether runs are marked here.
MARKS = sys.platform == "linux"
#: How long the ancestors of a process may take to read: there can be thousands (10 µs each), and it
#: begins again when one of them has ended. Of the processor, so that a busy machine says no less.
#: Seconds.
_ANCESTRY_MAX = 0.1
#: How long ``ps`` may take, where there is no /proc. Seconds.
_PS_TIMEOUT = 5.0
# From Linux' sys/prctl.h and asm-generic/socket.h, and from macOS' sys/un.h.
_PR_SET_CHILD_SUBREAPER = 36
_SO_PEERPIDFD = 77
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2


class Process:
    """One process as the kernel has it: ``start`` tells it from an earlier one of the same pid.

    ``session`` is the pid of its session's leader, 0 where that is not known; ``name`` what the
    kernel calls it; ``terminal`` the name of its controlling terminal, "" for none. One that
    ``is_marked`` is the monitor of a wrapped run.
    """

    __slots__ = ("pid", "parent", "session", "start", "name", "terminal", "key", "is_marked")

    def __init__(
        self, pid: int, parent: int, session: int, start: str, name: str, terminal: str
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        self.start = start
        self.name = name
        self.terminal = terminal
        #: What no other process has, before or after.
        self.key = (pid, start)
        self.is_marked = MARKS and name.startswith(MARK)

    @property
    def place(self) -> str:
        """Where what it does is done from, for people to read."""
        return f"{self.terminal or 'a process without a terminal'} (pid {self.pid})"


def own_place() -> str:
    """Where this process is run from, for people to read; "" where the kernel does not say."""
    me = read_process(os.getpid())
    return me.place if me is not None else ""


def mark(home: str) -> str:
    """The name of a monitor whose run belongs to the RELAY_HOME ``home``; at most 15 bytes."""
    try:
        status = os.stat(home)
    except OSError:
        return MARK
    return f"{MARK}{(status.st_ino ^ status.st_dev << 20) & 0xFFFFFFFFF:09x}"


def become_monitor(name: str) -> None:
    """Mark this process, and have every orphan below it become its child: it must reap them.

    Where the kernel can do neither, nothing happens.
    """
    if name_process(name):
        adopt_orphans()


def name_process(name: str) -> bool:
    """Have the kernel call this process ``name`` (at most 15 bytes), where it can."""
    if not MARKS:
        return False
    try:
        fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, name.encode())
        finally:
            os.close(fd)
    except OSError:
        return False  # no /proc
    return True


def adopt_orphans() -> None:
    """Have every orphan below this process become its child, where the kernel can do that."""
    if MARKS:
        try:
            _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        except (OSError, ImportError, AttributeError):
            return  # a Python without ctypes


def _prctl(option: int, value: int) -> None:
    """Call prctl(2). By the C module: ``ctypes`` takes four times as long to import (4 ms)."""
    import _ctypes

    class Int(_ctypes._SimpleCData):  # type: ignore[type-arg,misc,unused-ignore]
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = 1  # FUNCFLAG_CDECL
        _restype_ = Int

    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type,unused-ignore]
    Function(_ctypes.dlsym(library, "prctl"))(option, value, 0, 0, 0)


# -- who is it


def read_process(pid: int) -> Process | None:
    """The process ``pid``; None when there is none, or it may not be looked at."""
    if sys.platform != "linux":
        return _from_ps(pid)
    name, fields = _stat(pid)
    if not fields:
        return None
    terminal = _terminal(int(fields[4]))
    return Process(pid, int(fields[1]), int(fields[3]), fields[19], name, terminal)


def _stat(pid: int) -> tuple[str, list[str]]:
    """(the name, the fields from the state on) of /proc/PID/stat; no fields where there is none."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(fd, 4096)
        finally:
            os.close(fd)
    except OSError:
        return "", []
    # The name stands in brackets, and may hold brackets and spaces itself.
    head, _, rest = data.decode("utf-8", "replace").rpartition(")")
    fields = rest.split()
    return head.partition("(")[2], fields if len(fields) >= 20 else []


def stopped_groups() -> set[int]:
    """The process groups of this session, except our own, of which a child of ours is stopped."""
    found = set()
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        fields = _stat(int(name))[1] if name.isdigit() else []
        # The state, the parent, the group and the session.
        if fields and fields[0] == "T" and int(fields[1]) == os.getpid():
            group, session = int(fields[2]), int(fields[3])
            if session == os.getsid(0) and group != os.getpgrp():
                found.add(group)
    return found


def descendants(pid: int) -> list[int]:
    """The processes below ``pid`` that run or stand, in no order; those of a group elsewhere too.

    Where there is no /proc: what ``ps`` says.
    """
    parents: dict[int, int] = {}
    if sys.platform == "linux":
        for name in os.listdir("/proc"):
            fields = _stat(int(name))[1] if name.isdigit() else []
            if fields and fields[0] != "Z":
                parents[int(name)] = int(fields[1])
    else:
        import subprocess

        argv = ["/bin/ps", "-axo", "pid=,ppid=,stat="]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env={"LC_ALL": "C"}) as listing:
            told, _ = listing.communicate(timeout=_PS_TIMEOUT)
        for one, parent, stat, *_ in map(str.split, told.decode().splitlines()):
            if not stat.startswith("Z") and int(one) != listing.pid:
                parents[int(one)] = int(parent)
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return [one for one in found if one != pid]


class ProcessUsage:
    """What one process has used: ``cpu`` and ``age`` in seconds."""

    __slots__ = ("name", "cpu", "age")

    def __init__(self, name: str, cpu: float, age: float) -> None:
        self.name = name
        self.cpu = cpu
        self.age = age


def usage_of(pid: int) -> list[ProcessUsage]:
    """What the process ``pid`` and all below it have used; empty when it cannot be known."""
    if sys.platform != "linux":
        return _usage_from_ps([pid, *descendants(pid)])
    import time

    ticks, found = os.sysconf("SC_CLK_TCK"), []
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    for one in (pid, *descendants(pid)):
        name, fields = _stat(one)
        if fields:
            used, began = (int(fields[11]) + int(fields[12])) / ticks, int(fields[19]) / ticks
            found.append(ProcessUsage(name, used, max(0.0, now - began)))
    return found


def _usage_from_ps(pids: list[int]) -> list[ProcessUsage]:
    import subprocess

    listed = ",".join(map(str, pids))
    try:
        done = subprocess.run(
            ["/bin/ps", "-o", "time=,etime=,comm=", "-p", listed],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={"LC_ALL": "C"},
            timeout=_PS_TIMEOUT,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(None, 2) for line in done.stdout.decode("utf-8", "replace").splitlines())
    return [
        ProcessUsage(os.path.basename(row[2]), _seconds(row[0]), _seconds(row[1]))
        for row in rows
        if len(row) == 3
    ]


def _seconds(text: str) -> float:
    """``[[DD-]HH:]MM:SS[.ss]``, as ps writes times."""
    days, _, rest = text.rpartition("-")
    seconds = 0.0
    for part in rest.split(":"):
        seconds = seconds * 60 + float(part)
    return seconds + 86400 * int(days or 0)


def _terminal(number: int) -> str:
    """The name of the terminal with the device ``number`` of /proc/PID/stat."""
    if number == 0:
        return ""
    major = number >> 8 & 0xFFF
    minor = number & 0xFF | number >> 12 & 0xFFF00
    if 136 <= major <= 143:
        return f"pts/{(major - 136) * 256 + minor}"
    return f"tty{minor}" if major == 4 and minor < 64 else f"{major}:{minor}"


def ancestry(pid: int) -> tuple[Process, ...]:
    """The process ``pid`` and all its ancestors, the nearest first; empty where one of them cannot
    be looked at, or the last one is not reached in time: then nobody can tell whose it is."""
    import time

    end = time.thread_time() + _ANCESTRY_MAX
    found: list[Process] = []
    while time.thread_time() < end:
        one = read_process(found[-1].parent if found else pid)
        if one is None or (found and not _older(one, found[-1])):
            if not found:
                return ()
            last = found[-1]
            again = read_process(last.pid)
            if again is not None and again.key == last.key and again.parent == last.parent:
                return ()  # what is above is hidden from us: it may be a monitor
            found.clear()  # its parent ended while we looked: it has another one by now
            continue
        found.append(one)
        if one.parent <= 0:
            return tuple(found)
    return ()


def _older(parent: Process, child: Process) -> bool:
    """Else it has only got the number of one that has ended."""
    if not (parent.start.isdigit() and child.start.isdigit()):
        return True
    return int(parent.start) <= int(child.start)


#: Whose a process is: below no run (the person's own, or what they let run); an agent's; or nobody
#: can tell, for it has gone, or not all of its ancestors can be seen. No enum: its import is dear.
PERSON, AGENT, UNKNOWN = "the person's", "an agent's", "unknown"


def side_of(line: Sequence[Process], around: Collection[Process] = ()) -> str:
    """Whose the first of ``line`` is, a process with its ancestors as ``ancestry`` has them.

    The monitors ``around`` whoever asks say nothing: what stands below the same one is as near.
    Where runs are not marked only the broker knows of some: see relay.broker.identity.
    """
    if not line:
        return UNKNOWN
    known = {process.key for process in around}
    if any(process.is_marked and process.key not in known for process in line):
        return AGENT
    return PERSON


def is_own_agents(line: Sequence[Process]) -> bool:
    """Whether the session that asks may tell the first of ``line`` what is its agent's: it is below
    the monitor that the same pump has started, or below none."""
    nearest = next((process for process in line if process.is_marked), None)
    return bool(line) and (nearest is None or nearest.parent == os.getppid())


def marks_above(pid: int) -> Iterator[Process]:
    """The monitors of wrapped runs among ``pid`` and its ancestors, the nearest first."""
    return (process for process in ancestry(pid) if process.is_marked)


def own_side() -> str:
    """Whose this process is.

    The kernel says so; where it cannot, and for what an agent has handed to a process outside,
    the variable that ``relay wrap`` gives its agent does.
    """
    return AGENT if os.environ.get("RELAY_RUN") else side_of(ancestry(os.getpid()))


def wrapped() -> bool:
    """Whether this process belongs to an agent, or may."""
    return own_side() is not PERSON


# -- who is behind a socket


def peer(connection: _socket.socket) -> tuple[Process, ...]:
    """The process at the other end of a unix socket with its ancestors, as ``ancestry`` has it.

    Empty when it has gone, runs where this system's numbers mean nothing (another container), or
    cannot be told. A socket that was handed on is still that of the process that connected it.
    """
    handle = -1
    try:
        handle = _peer_handle(connection)
        pid = peer_pid(connection)
        found = ancestry(pid) if pid > 0 else ()
        if handle >= 0 and found:
            _check_alive(handle)  # so it was it that was looked at, and no later one of its number
        return found
    except ProcessLookupError:
        return ()
    finally:
        if handle >= 0:
            os.close(handle)


def _check_alive(handle: int) -> None:
    from relay.core.signals import signal

    try:
        signal.pidfd_send_signal(handle, 0)
    except PermissionError:
        return  # it is there, and this process may send no signal to it (it is confined)


def peer_pid(connection: _socket.socket) -> int:
    """The number that the process at the other end of a unix socket has, or had; 0 where it runs
    where this system's numbers mean nothing, or cannot be told."""
    import _socket

    try:
        if sys.platform == "darwin":
            raw = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4)
        elif sys.platform == "linux":
            raw = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        else:
            return 0
    except OSError:
        return 0
    return max(0, int.from_bytes(raw[:4], sys.byteorder, signed=True))


def _peer_handle(connection: _socket.socket) -> int:
    """A descriptor of the process at the other end; -1 where the system has none. Raises
    ProcessLookupError where it has gone."""
    import _socket

    if sys.platform != "linux":
        return -1
    try:
        return connection.getsockopt(_socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        import errno

        if error.errno == errno.ENOPROTOOPT:
            return -1  # a kernel before 6.5 does not know it
        raise ProcessLookupError(error.errno, "the process has gone") from error


def _from_ps(pid: int) -> Process | None:
    """What ``ps`` says, where there is no /proc."""
    import subprocess

    try:
        done = subprocess.run(
            ["/bin/ps", "-o", "ppid=,tty=,lstart=", "-p", str(pid)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={"LC_ALL": "C"},
            timeout=_PS_TIMEOUT,
        )
        parent, terminal, *start = done.stdout.decode("ascii", "replace").split()
        session = os.getsid(pid)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    terminal = "" if terminal.startswith("?") else terminal
    return Process(pid, int(parent), session, " ".join(start), "", terminal)
