"""The trace of a project: ``agent_trace.jsonl``, to which everything that was done is appended.

Each line is written and synced under a lock before anybody is told that it is there. Where the last
acknowledged line ends stands outside of the project (GovernanceStore): a cut end is noticed too.
The file may come from somebody else's repository: it is read with bounds, and no link is followed.
"""

from __future__ import annotations

import errno
import os
import random
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from relay.core import files
from relay.core.errors import StorageError
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import TRACE_FILE
from relay.features.governance.trace_records import (
    BROKEN,
    FIRST,
    LINE_MAX,
    Json,
    TraceEntry,
    TraceFault,
    TraceHead,
    TraceKind,
    Verified,
    chained,
    fault_of,
    hash_of,
    read_line,
)

if TYPE_CHECKING:
    from relay.features.governance.governance_store import GovernanceStore

#: Seconds that an append waits for others.
_LOCK_WAIT = 10.0
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
_READ_SIZE = 256 * 1024
#: Faults that are told; a file that is none of relay's would have one in each line.
FAULTS_MAX = 20
_REVISION = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class TraceFailed(StorageError):
    """The trace cannot be written or read, so nothing may be done that belongs into it."""


class Trace:
    """The trace of one project. May be used by any number of threads and processes at once."""

    def __init__(
        self, root: str, heads: GovernanceStore, now_ms: Callable[[], int] = _now_ms
    ) -> None:
        self.root = root
        self._now_ms = now_ms
        self.path = os.path.join(root, FOLDER, TRACE_FILE)
        self._heads = heads

    def append(self, entry: TraceEntry) -> str:
        """Write a record; it is on the disk when this returns its id. Raises StorageError."""
        at_ms = self._now_ms()
        row = entry.fields(str(uuid.uuid4()), at_ms, revision(self.root))
        with self._errors(), self._locked(_APPEND) as fd:
            size = os.fstat(fd).st_size
            end, previous, problem = self._tail(fd, size)
            lines = b""
            if problem:
                note = _broken(problem).fields(str(uuid.uuid4()), at_ms, "")
                lines, previous = chained(note, previous)
            line, digest = chained(row, previous)
            if end > size:  # a line of somebody else's that does not end
                lines = b"\n" + lines
            elif end < size:
                os.ftruncate(fd, end)
            lines += line
            start = min(end, size)
            try:
                written = os.write(fd, lines)
                if written < len(lines):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(fd)
            except OSError:
                with suppress(OSError):  # what is left is torn, and cut by the next append
                    os.ftruncate(fd, start)
                raise
            self._heads.set_head(self.root, TraceHead(start + len(lines), digest))
        return str(row["id"])

    def check(self) -> None:
        """Raises StorageError where nothing could be appended. Makes the file where it is missing,
        so that what a tool is allowed to do can be written down."""
        with self._errors():
            os.close(self._open(_APPEND))

    def records(self) -> Iterator[tuple[int, Json]]:
        """Every record with the number of its line, the oldest first; what is none is left out.
        Raises StorageError."""
        with self._errors(), suppress(FileNotFoundError):
            for number, line, whole in self._lines(None):
                row = read_line(line) if whole else None
                if row is not None:
                    yield number, row

    def verify(self) -> Verified:
        """Look at every line, and at what is known of the last one. Raises StorageError."""
        faults: list[TraceFault] = []
        count, at, previous, head_seen = 0, 0, FIRST, False
        with self._errors():
            try:
                with self._locked(os.O_RDONLY) as fd:
                    size, head = os.fstat(fd).st_size, self._heads.head(self.root)
            except FileNotFoundError:
                size, head = 0, self._heads.head(self.root)
            for number, line, whole in self._lines(size) if size else ():
                if not whole and at + len(line) == size and (head is None or head.size <= at):
                    break  # torn by a kill: nobody was told that it is there
                at += len(line) + 1
                fault = fault_of(line, previous) if whole else "is not complete"
                if fault:
                    faults.append(TraceFault(number, fault))
                else:
                    count += 1
                previous = hash_of(line)
                head_seen |= head == TraceHead(at, previous)
                if len(faults) > FAULTS_MAX:
                    return Verified(count, tuple(faults[:FAULTS_MAX]), more=True)
        if head is not None and not head_seen:
            faults.append(TraceFault(0, _lost(head.size, size)))
        return Verified(count, tuple(faults), foreign=head is None and count > 0)

    # -- the file

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TraceFailed(
                f"the trace {self.path} cannot be used: {error.strerror or error}",
                hint="look at what is there; no agent writes in this project until it can be used",
            ) from error

    def _open(self, flags: int) -> int:
        """Open the file, if it is one of ours; no link is followed. Raises OSError."""
        none = os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(os.path.dirname(self.path), os.O_RDONLY | os.O_DIRECTORY | none)
        try:
            made = False
            try:
                fd = os.open(
                    TRACE_FILE, (flags & ~os.O_CREAT) | os.O_NONBLOCK | none, dir_fd=folder
                )
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
                fd, made = os.open(TRACE_FILE, flags | none, 0o644, dir_fd=folder), True
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise OSError(errno.EINVAL, "it is not a file")
                files.check_owner(self.path, status)
                if made:
                    os.fsync(folder)
            except BaseException:
                os.close(fd)
                raise
            return fd
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self, flags: int) -> Iterator[int]:
        """The file, opened and locked; the lock ends with the process too. Raises OSError."""
        end = time.monotonic() + _LOCK_WAIT
        while True:
            fd = self._open(flags)
            try:
                pause = 0.0005
                while not files.lock_open_file(fd):
                    if time.monotonic() > end:
                        raise OSError(errno.ETIMEDOUT, "another process holds it for long")
                    time.sleep(pause * random.random())
                    pause = min(2 * pause, 0.01)
                if self._is_still(fd):
                    yield fd
                    return
            finally:
                os.close(fd)
            if time.monotonic() > end:
                raise OSError(errno.ETIMEDOUT, "it is replaced again and again")

    def _is_still(self, fd: int) -> bool:
        """Whether what is locked is what lies there: somebody may have put another in its place."""
        try:
            return os.path.samestat(os.fstat(fd), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _tail(self, fd: int, size: int) -> tuple[int, str, str]:
        """Where to go on (beyond ``size``: a line end is missing there), the hash to chain to, and
        what is wrong with what was acknowledged."""
        head = self._heads.head(self.root)
        problem = ""
        last = _line_before(fd, size)
        end = size
        if last is not None and not last.endswith(b"\n"):
            whole = size - len(last)
            if len(last) < LINE_MAX and (head is None or head.size <= whole):
                end, last = whole, _line_before(fd, whole)  # torn: nobody was told that it is there
            else:
                end = size + 1
        if head is not None:
            known = (
                last
                if head.size == end
                else _line_before(fd, head.size)
                if head.size < end
                else None
            )
            if known is None or not known.endswith(b"\n") or hash_of(known) != head.hash:
                problem = _lost(head.size, size)
        return end, FIRST if last is None else hash_of(last), problem

    def _lines(self, size: int | None) -> Iterator[tuple[int, bytes, bool]]:
        """Each line, without its end, with its number and whether it is complete; up to ``size``.
        Of one that is too long for a record the rest is passed over."""
        fd = self._open(os.O_RDONLY)
        with open(fd, "rb", buffering=_READ_SIZE) as file:
            left, number = os.fstat(fd).st_size if size is None else size, 0
            while left > 0 and (line := file.readline(min(LINE_MAX, left))):
                number += 1
                left -= len(line)
                whole = line.endswith(b"\n")
                yield number, line.removesuffix(b"\n"), whole
                while not whole and left > 0 and (more := file.readline(min(LINE_MAX, left))):
                    left -= len(more)
                    whole = more.endswith(b"\n")


def _line_before(fd: int, end: int) -> bytes | None:
    """The line that ends at ``end``, cut at its beginning where it is too long; None at 0 and where
    the file is shorter."""
    if end <= 0:
        return None
    step = 4096
    while True:
        start = max(0, end - step)
        data = os.pread(fd, end - start, start)
        if len(data) < end - start:
            return None
        at = data.rfind(b"\n", 0, len(data) - 1)
        if at >= 0:
            return data[at + 1 :]
        if start == 0 or step >= LINE_MAX:
            return data
        step = min(4 * step, LINE_MAX)


def _lost(known: int, size: int) -> str:
    if size < known:
        return f"its end was cut off: it was {known} bytes long, and {size} are there"
    return f"what was acknowledged up to byte {known} is not what stands there"


def _broken(problem: str) -> TraceEntry:
    """What is written where the trace is not as it was, so that it stays known."""
    return TraceEntry(TraceKind.GOVERNANCE, metadata={"event": BROKEN, "text": problem})


def revision(root: str) -> str:
    """The commit that is checked out in the project; "" where nobody can tell. Starts no program
    and believes nothing but a hash: the repository may be anybody's."""
    git = os.path.join(root, ".git")
    common = git
    if link := re.fullmatch(r"gitdir: (.+)", _short(git)):
        git = os.path.join(root, link[1])
        common = os.path.join(git, _short(os.path.join(git, "commondir")) or ".")
    head = _short(os.path.join(git, "HEAD"))
    if ref := re.fullmatch(r"ref: (refs/[^\0]+)", head):
        head = _short(os.path.join(git, ref[1])) or _short(os.path.join(common, ref[1]))
        if not head:
            packed = _short(os.path.join(common, "packed-refs"), 1024 * 1024, whole=True)
            found = re.search(rf"^([0-9a-f]+) {re.escape(ref[1])}$", packed, re.MULTILINE)
            head = found[1] if found else ""
    return head if _REVISION.fullmatch(head) else ""


def _short(path: str, limit: int = 8192, *, whole: bool = False) -> str:
    """The first line of a small file, or the whole of it; "" for what is none."""
    try:
        text = files.read_file(path, limit)[:limit].decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    return text if whole else text.split("\n", 1)[0].strip()
