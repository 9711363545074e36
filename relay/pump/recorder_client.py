"""The pump's side of ``relay wrap --record``: a bounded copy of what passes, for the recorder.

The recorder is a process of its own, so that the agent never waits for a disk, and it starts after
the agent. Nothing here blocks before the agent has ended. A pump that records nothing does not
import this: the copy is made in the link to the session, through which everything passes anyway.

Records on the socket are one code byte, a float64 (seconds since the start), a uint32 length and
that many bytes.
"""

from __future__ import annotations

import _socket
import errno
import os
import select
import stat
import termios
import time
from struct import Struct

from relay.core import descriptors, files, signals
from relay.core.errors import RelayError, UsageError
from relay.core.json_text import dumps
from relay.protocol import frames
from relay.pump import tty
from relay.pump.outer_terminal import OuterTerminal
from relay.pump.session_link import Frame, SessionLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from relay.pump.output_buffer import MakeStore

    Run = Callable[[int, int], None]

RECORD = Struct(">BdI")
OUTPUT, INPUT, RESIZE, MARKER, KEYS, WORDS = b"oirmkw"
#: The first record: the header of the file, as JSON. The last one: nothing will follow.
HEADER, END = b"he"
#: What waits for a recorder that is slower than the agent. Beyond it the recording ends.
BUFFER_MAX = 64 * 1024 * 1024
#: How far the recorder stands behind the agent when both want the processor.
_NICE = 5
#: How soon a recorder that took nothing more is offered the rest again, in seconds.
_RETRY = 0.05
#: Why a recording failed whose recorder cannot say it.
ENDED = "what records it ended"
STUCK = "what records it did not take the rest in time"
#: Seconds that the person waits after the agent's end for a recorder that takes nothing.
PATIENCE = 5.0


class Recording:
    """One recording, from its file to what the person is told of it at the end.

    ``keys``: what the person types is recorded too. ``header`` is the file's first line but for the
    size; ``command`` in it is a list. ``run(socket, file)`` is the recorder, called in its process.
    """

    def __init__(
        self, path: str, overwrite: bool, keys: bool, header: dict[str, object], run: Run
    ) -> None:
        self._path = path
        self._overwrite = overwrite
        self._keys = keys
        self._header = header
        self._run = run
        self._file = -1
        self._client = RecorderClient()

    def console(self, stdin: int, stdout: int) -> OuterTerminal:
        """Create the file, for us alone to read, and return the terminal that is recorded.

        Raises RelayError.
        """
        self._file = self._create()
        return RecordedTerminal(stdin, stdout, self._client)

    def _create(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        flags |= 0 if self._overwrite else os.O_EXCL
        try:
            files.check_own_link(self._path)
            file = os.open(self._path, flags, 0o600)
            if stat.S_ISREG(os.fstat(file).st_mode):
                files.check_owner(self._path, os.fstat(file))
                os.fchmod(file, 0o600)
                os.ftruncate(file, 0)
            os.set_blocking(file, True)
        except FileExistsError:
            raise UsageError(
                f"{self._path} is already there",
                hint="choose another name, or replace it with: --overwrite",
            ) from None
        except OSError as error:
            hint = "check the folder and its permissions; nothing was started"
            if error.errno == errno.ENXIO:
                hint = "nobody reads this pipe; nothing was started"
            raise RelayError(f"cannot write {self._path}: {error.strerror}", hint=hint) from None
        return file

    def link(
        self,
        start: Callable[[], tuple[int, int]],
        hello: Callable[[int, bytes, int], bytes],
        size: bytes,
        give_up: Callable[[], None] | None = None,
        make_store: MakeStore | None = None,
    ) -> SessionLink:
        """Return the link to the session, through which all that is recorded passes."""
        cols, rows = _cols_and_rows(size)
        header = {**self._header, "width": cols or 80, "height": rows or 24}
        self._client.begin(self._file, dumps(header), time.monotonic())
        return RecordedLink(self._client, start, hello, size, give_up, make_store)

    def start(self, master: int) -> None:
        """Start the recorder, now that the agent runs in the terminal ``master``."""
        self._client.start(self._run, master if self._keys else -1)

    def finish(self) -> list[str]:
        """Complete the file after the agent's end; return what the person should know of it."""
        self._client.finish(time.monotonic())
        failed = self._client.failed
        return [f"the recording {self._path} is not complete: {failed}"] if failed else []


class RecorderClient:
    """Hands what passes to the recorder. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self.failed = ""  # why the recording ended early
        self._file = -1
        self._fd = -1
        self._pid = 0
        self._master = -1  # the agent's terminal, where the person's keys are recorded
        self._begun = 0.0
        self._last = 0.0
        self._waiting = bytearray()
        self._over = False
        self._again_at: float | None = None

    def begin(self, file: int, header: str, now: float) -> None:
        """Let the recording in ``file`` begin at this moment with ``header``."""
        self._file, self._begun = file, now
        self._add(HEADER, header.encode(), now)

    def start(self, run: Run, master: int = -1) -> None:
        """Fork the recorder: ``run(socket, file)``. Where that fails, so has the recording."""
        self._master = master
        pair: list[int] = []
        try:
            sockets = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
            pair = [one.detach() for one in sockets]
            pid = os.fork()
        except OSError as error:
            descriptors.close([*pair, self._file])
            self._over = True
            self._waiting = bytearray()
            self.failed = error.strerror or str(error)
            return
        ours, theirs = pair
        if pid == 0:
            try:
                os.setsid()
                os.nice(_NICE)
                descriptors.release_stdio((0, 1, 2))
                descriptors.close_all_but((theirs, self._file))
                signals.forget()
                run(theirs, self._file)
                os._exit(0)
            finally:
                os._exit(1)
        descriptors.close([theirs, self._file])
        self.attach(ours, pid)

    def attach(self, socket: int, pid: int = 0) -> None:
        """Hand over to the recorder at the other end of ``socket``; ``pid`` is our child, or 0."""
        os.set_blocking(socket, False)
        self._fd, self._pid = socket, pid

    def detach(self) -> None:
        """Record nothing more: this process is a copy of the pump."""
        self._over = True
        self._fd = -1
        self._again_at = None

    # -- what passes

    def output(self, data: bytes, now: float) -> None:
        """Record what the agent wrote."""
        self._add(OUTPUT, data, now)

    def input(self, data: bytes, now: float) -> None:
        """Record what the person typed, unless their terminal shows nothing of it."""
        if self._master >= 0 and not _hides_keys(self._master):
            self._add(INPUT, data, now)

    def event(self, kind: int, payload: bytes, now: float) -> None:
        """Record a frame for the session: that keys were pressed, a size, a stop."""
        if kind == frames.ACTIVITY:
            self._add(KEYS, payload[4:5], now)
        elif kind == frames.SIZE:
            cols, rows = _cols_and_rows(payload)
            if cols and rows:
                self._add(RESIZE, b"%dx%d" % (cols, rows), now)
        elif kind == frames.JOB:
            stopped = payload == frames.STOPPED
            self._add(MARKER, b"the agent is stopped" if stopped else b"the agent goes on", now)

    def words(self, data: bytes, now: float) -> None:
        """Record what relay typed."""
        self._add(WORDS, data, now)

    def _add(self, code: int, data: bytes, now: float) -> None:
        if self._over:
            return
        # Some callers look at the clock themselves, some before the last read: time goes on.
        self._last = at = max(self._last, now - self._begun)
        if len(self._waiting) + len(data) > BUFFER_MAX:
            self._over = True
            self.failed = "the agent wrote faster than it could be recorded"
            code, data = MARKER, f"recording given up: {self.failed}".encode()
        self._waiting += RECORD.pack(code, at, len(data)) + data

    # -- to the recorder

    def deadline(self) -> float | None:
        """When ``flush`` has something to do; None for never."""
        return self._again_at

    def flush(self, now: float) -> None:
        """Hand over what the socket takes; never blocks."""
        self._again_at = None
        while self._waiting and self._fd >= 0:
            try:
                with memoryview(self._waiting) as view:
                    written = os.write(self._fd, view[: 256 * 1024])
            except BlockingIOError:
                self._again_at = now + _RETRY
                return
            except OSError:
                self._hung_up()
                return
            del self._waiting[:written]

    def finish(self, now: float) -> None:
        """Let the recorder complete the file: the agent has ended.

        Waits for as long as the recorder takes something, and then PATIENCE seconds more.
        """
        self._over = True
        self._waiting += RECORD.pack(END, self._last, 0)
        self.flush(now)
        poll = select.poll()
        moved = time.monotonic()
        while self._fd >= 0 and (left := moved + PATIENCE - time.monotonic()) > 0:
            poll.register(self._fd, select.POLLIN | (select.POLLOUT if self._waiting else 0))
            ready = poll.poll(left * 1000)
            if ready and ready[0][1] & ~select.POLLOUT:
                self._hung_up()
            elif ready:
                moved = time.monotonic()
                self.flush(moved)
        if self._fd >= 0:
            self.failed = self.failed or STUCK
            descriptors.close([self._fd])
            self._fd = -1
        # It has hung up: nothing but its exit is left. Killed, it may have had everything from us
        # and written only a part of it.
        elif self._pid and os.waitpid(self._pid, 0)[1]:
            self.failed = self.failed or ENDED

    def _hung_up(self) -> None:
        """The recorder has ended, and says why where it should not have."""
        try:
            reason = os.read(self._fd, 4096).decode("utf-8", "replace")
        except OSError:
            reason = ""
        if reason or self._waiting:
            self.failed = self.failed or reason or ENDED
        self._over = True
        self._waiting = bytearray()
        self._again_at = None
        descriptors.close([self._fd])
        self._fd = -1


class RecordedLink(SessionLink):
    """The link to the session, with all that the session gets copied to the recorder."""

    def __init__(self, client: RecorderClient, *args: Any) -> None:
        super().__init__(*args)
        self._client = client

    def output(self, data: bytes, now: float) -> None:
        """See SessionLink."""
        super().output(data, now)
        self._client.output(data, now)
        self._client.flush(now)

    def event(self, kind: int, payload: bytes) -> None:
        """See SessionLink."""
        super().event(kind, payload)
        now = time.monotonic()
        self._client.event(kind, payload, now)
        self._client.flush(now)

    def receive(self, now: float) -> list[Frame]:
        """See SessionLink."""
        found = super().receive(now)
        for kind, payload in found:
            if kind in (frames.WRITE, frames.WRITE_AT):
                self._client.words(payload[8 if kind == frames.WRITE else 16 :], now)
        return found

    def tick(self, now: float) -> None:
        """See SessionLink."""
        super().tick(now)
        self._client.flush(now)

    def deadline(self) -> float | None:
        """See SessionLink."""
        due, again = super().deadline(), self._client.deadline()
        return again if due is None else due if again is None else min(due, again)

    def orphan(self) -> list[int]:
        """See SessionLink."""
        self._client.detach()
        return super().orphan()


class RecordedTerminal(OuterTerminal):
    """The outer terminal, with the person's keys copied to the recorder."""

    unnoted_max = 1

    def __init__(self, stdin: int, stdout: int, client: RecorderClient) -> None:
        super().__init__(stdin, stdout)
        self._client = client

    def read(self) -> bytes:
        """See OuterTerminal."""
        data = super().read()
        if data:
            self._client.input(data, time.monotonic())
        return data


def _hides_keys(master: int) -> bool:
    """Whether the terminal reads a line without showing it, as for a password."""
    modes = tty.get_modes(master)
    if modes is None or not isinstance(modes[3], int):
        return True
    return bool(modes[3] & termios.ICANON) and not modes[3] & termios.ECHO


def _cols_and_rows(size: bytes) -> tuple[int, int]:
    return int.from_bytes(size[:2], "big"), int.from_bytes(size[2:4], "big")
