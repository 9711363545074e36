"""Which write a confined program was refused, read in what it said; and its end passed on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from relay.core.paths import is_within
from relay.core.signals import signal

#: Bytes at the end of what was said that are read.
_END_BYTES = 64 * 1024
#: How programs, and the C library in English, say it.
_REFUSAL = re.compile(
    r"permission denied|operation not permitted|invalid cross-device link|\bEACCES\b|\bEPERM\b",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"'([^']+)'|\"([^\"]+)\"|‘([^’]+)’|`([^`']+)[`']")
#: What shells say before the path.
_VERB = re.compile(r"^(?:cannot|can't|could not) \w+ ")
_WATCHED = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
)
_PR_SET_PDEATHSIG = 1


def write_in(text: str, writable: list[str], cwd: str) -> str:
    """The last path that ``text`` calls refused, and that this user could write but for the
    confinement; "" where there is none."""
    for line in reversed(text.splitlines()):
        if not _REFUSAL.search(line):
            continue
        for path in _paths(line):
            place = os.path.realpath(os.path.join(cwd, path))
            if any(is_within(place, allowed) for allowed in writable):
                continue
            there = os.path.lexists(place)
            if os.access(place if there else os.path.dirname(place), os.W_OK):
                return path
    return ""


def replaces(path: str, writable: list[str], cwd: str) -> bool:
    """Whether ``path``, which was refused, would have been a new file beside one that may be
    written: so ``sed -i`` and ``patch`` replace a file."""
    place = os.path.realpath(os.path.join(cwd, path))
    beside = (one for one in writable if os.path.dirname(one) == os.path.dirname(place))
    return not os.path.lexists(place) and any(map(os.path.isfile, beside))


def _paths(line: str) -> Iterator[str]:
    """What may be the path in a line, the likeliest first: what is quoted, else what stands before
    the words of the refusal."""
    for match in _QUOTED.finditer(line):
        yield next(filter(None, match.groups()))
    refusal = _REFUSAL.search(line)
    before = line[: refusal.start()].rstrip(" :([,") if refusal else ""
    if path := _VERB.sub("", before.rpartition(": ")[2]):
        yield path
        yield path.rpartition(" ")[2]


def said_since(begin: int) -> str:
    """The end of what is in the file behind stderr from ``begin`` on."""
    try:
        fd = os.open("/proc/self/fd/2", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        end = os.fstat(fd).st_size
        begin = max(min(begin, end), end - _END_BYTES)
        return os.pread(fd, _END_BYTES, begin).decode(errors="replace")
    finally:
        os.close(fd)


def forked() -> tuple[int, object]:
    """Start a child, which is to become the program: (0, None) in it. If this process is killed, so
    is the child. What is returned here is for ``waited``."""
    from relay.features.confine.landlock import call

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    child = os.fork()
    if child:
        return child, mask
    call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return 0, None


def waited(child: int, mask: object) -> int:
    """The status of the child, -n for signal n, once it has ended.

    Signals that somebody sends this process are passed on; those of a terminal's keys the child
    has got itself.
    """
    while True:
        event = signal.sigwaitinfo(_WATCHED)
        if event.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                return os.waitstatus_to_exitcode(status)
        elif event.si_code <= 0:
            os.kill(child, event.si_signo)


def ended_like(status: int) -> int:
    """End by the signal that ended the child; else the status is this process's."""
    if status < 0:
        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        return 128 - status
    return status
