"""The pump's side of ``relay wrap --record``: a bounded copy of what passes, for the recorder.

The recorder is a process of its own, so that the agent never waits for a disk, and it starts after
the agent. Nothing here blocks before the agent has ended. A pump that records nothing does not
import this: the tap sits in the link to the session, through which everything passes anyway.

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

from relay.core import descriptors, signals
from relay.core.errors import RelayError, UsageError
from relay.core.json_text import dumps
from relay.protocol import frames
from relay.pump import tty
from relay.pump.outer_terminal import OuterTerminal
from relay.pump.session_link import Frame, SessionLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

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
#: After the agent's end the person waits so long for the rest, at most; and who stays behind for it
#: waits so long for a recorder that takes nothing. Seconds.
PATIENCE = 5.0
LONG_PATIENCE = 60.0


class Recording:
    """One recording, from its file to what the person is told of it at the end.

    ``keys``: what the person types is recorded too. ``header`` is the file's first line but for the
    size; ``command`` in it is a list.
    """

    def __init__(self, path: str, overwrite: bool, keys: bool, header: dict[str, object]) -> None:
        self.path = path
        self._overwrite = overwrite
        self._keys = keys
        self._header = header
        self._console: TappedConsole | None = None
        self._file = -1
        self._tap: RecorderClient

    def console(self, stdin: int, stdout: int) -> OuterTerminal:
        """The outer terminal."""
        self._console = TappedConsole(stdin, stdout)
        return self._console

    def create(self) -> None:
        """Create the file, for us alone to read, before anything starts. Raises RelayError."""
        if self._console is None:
            raise UsageError(
                "there is nothing to record: the agent's output goes to no terminal",
                hint="run it in a terminal, or without --record",
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        flags |= os.O_TRUNC if self._overwrite else os.O_EXCL
        try:
            self._file = os.open(self.path, flags, 0o600)
            if stat.S_ISREG(os.fstat(self._file).st_mode):
                os.fchmod(self._file, 0o600)
            os.set_blocking(self._file, True)
        except FileExistsError:
            raise UsageError(
                f"{self.path} is already there",
                hint="choose another name, or replace it with: --overwrite",
            ) from None
        except OSError as error:
            hint = "check the folder and its permissions; nothing was started"
            if error.errno == errno.ENXIO:
                hint = "nobody reads this pipe; nothing was started"
            raise RelayError(f"cannot write {self.path}: {error.strerror}", hint=hint) from None

    def link(
        self,
        start: Callable[[], tuple[int, int]],
        hello: Callable[[int, bytes, int], bytes],
        size: bytes,
        give_up: Callable[[], None] | None = None,
        make_store: MakeStore | None = None,
    ) -> SessionLink:
        """The link to the session, through which all that is recorded passes."""
        cols, rows = (int.from_bytes(size[at : at + 2], "big") for at in (0, 2))
        header = {**self._header, "width": cols or 80, "height": rows or 24}
        self._tap = RecorderClient(self._file, dumps(header), time.monotonic())
        link = TappedLink(start, hello, size, give_up, make_store)
        link.tap = self._tap
        return link

    def begin(self, master: int) -> None:
        """Start the recorder, now that the agent runs in the terminal ``master``."""
        self._tap.start(_record)
        if self._console is not None and self._keys:
            self._console.master = master
            self._console.tap = self._tap

    def finish(self) -> list[str]:
        """The agent has ended: complete the file. What the person should know of it."""
        done = self._tap.finish(time.monotonic())
        said = []
        if self._tap.failed:
            said.append(f"the recording {self.path} is not complete: {self._tap.failed}")
        if not done:
            said.append(f"the recording {self.path} is still being written")
        return said


def _record(socket: int, file: int) -> None:
    from relay.pump.recorder import main  # imported there only: the recorder has the time

    main(socket, file)


class RecorderClient:
    """What passes, on its way to the recorder. ``failed``: why the recording ended early, or "".

    Times are of the monotonic clock.
    """

    def __init__(self, file: int, header: str, now: float) -> None:
        self.failed = ""
        self._fd = -1
        self._pid = 0
        self._file = file
        self._begun = now
        self._last = 0.0
        self._waiting = bytearray()
        self._over = False
        self._again_at: float | None = None
        self._add(HEADER, header.encode(), now)

    def start(self, run: Run) -> None:
        """Fork the recorder: ``run(socket, file)``. Where that fails, so has the recording."""
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

    # -- what passes

    def output(self, data: bytes, now: float) -> None:
        """The agent wrote this."""
        self._add(OUTPUT, data, now)

    def input(self, data: bytes, now: float) -> None:
        """The person typed this."""
        self._add(INPUT, data, now)

    def activity(self, kind: bytes, now: float) -> None:
        """The person pressed keys: the payload of the session's ACTIVITY."""
        self._add(KEYS, kind, now)

    def words(self, data: bytes, now: float) -> None:
        """relay typed this."""
        self._add(WORDS, data, now)

    def resize(self, cols: int, rows: int, now: float) -> None:
        """The terminal has another size."""
        if cols and rows:
            self._add(RESIZE, b"%dx%d" % (cols, rows), now)

    def marker(self, text: str, now: float) -> None:
        """Something that whoever plays the recording should know."""
        self._add(MARKER, text.encode(), now)

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

    def finish(self, now: float) -> bool:
        """The agent has ended: let the recorder complete the file.

        False when it is not done within PATIENCE: a process that stays behind hands over the rest.
        """
        self._over = True
        self._waiting += RECORD.pack(END, self._last, 0)
        self.flush(now)
        self._wait(now + PATIENCE, PATIENCE)
        if self._fd >= 0:
            if self._waiting:
                self._stay_behind()
            descriptors.close([self._fd])
            self._fd = -1
            return False
        # It has hung up: nothing but its exit is left. Killed, it may have had everything from us
        # and written only a part of it.
        if self._pid and os.waitpid(self._pid, 0)[1]:
            self.failed = self.failed or ENDED
        return True

    def _wait(self, until: float, patience: float) -> None:
        """Hand over the rest and wait for the recorder to hang up.

        At the latest until this moment, and not longer than ``patience`` without any progress.
        """
        poll = select.poll()
        moved = time.monotonic()
        while self._fd >= 0 and (now := time.monotonic()) < min(until, moved + patience):
            poll.register(self._fd, select.POLLIN | (select.POLLOUT if self._waiting else 0))
            ready = poll.poll((min(until, moved + patience) - now) * 1000)
            if ready and ready[0][1] & ~select.POLLOUT:
                self._hung_up()
            elif ready:
                moved = now
                self.flush(now)

    def _stay_behind(self) -> None:
        """Fork a process that hands over the rest, so that the person need not wait for it."""
        try:
            if os.fork():
                return
        except OSError as error:
            self._waiting = bytearray()
            self.failed = error.strerror or str(error)
            return
        try:
            os.setsid()
            descriptors.release_stdio((0, 1, 2))
            descriptors.close_all_but((self._fd,))
            self._wait(float("inf"), LONG_PATIENCE)
        finally:
            os._exit(0)

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


class TappedLink(SessionLink):
    """The link to the session, with all that the session gets copied to the tap."""

    tap: RecorderClient | None = None

    def output(self, data: bytes, now: float) -> None:
        """See Link."""
        super().output(data, now)
        if self.tap is not None:
            self.tap.output(data, now)
            self.tap.flush(now)

    def event(self, kind: int, payload: bytes) -> None:
        """See Link."""
        super().event(kind, payload)
        if self.tap is not None:
            now = time.monotonic()
            if kind == frames.ACTIVITY:
                self.tap.activity(payload[4:5], now)
            elif kind == frames.SIZE:
                cols, rows = (int.from_bytes(payload[at : at + 2], "big") for at in (0, 2))
                self.tap.resize(cols, rows, now)
            elif kind == frames.JOB:
                stopped = payload == frames.STOPPED
                self.tap.marker("the agent is stopped" if stopped else "the agent goes on", now)
            self.tap.flush(now)

    def receive(self, now: float) -> list[Frame]:
        """See Link."""
        found = super().receive(now)
        if self.tap is not None:
            for kind, payload in found:
                if kind == frames.WRITE:
                    self.tap.words(payload[8:], now)
        return found

    def tick(self, now: float) -> None:
        """See Link."""
        super().tick(now)
        if self.tap is not None:
            self.tap.flush(now)

    def deadline(self) -> float | None:
        """See Link."""
        due, again = super().deadline(), self.tap.deadline() if self.tap is not None else None
        return again if due is None else due if again is None else min(due, again)

    def orphan(self) -> list[int]:
        """See Link."""
        self.tap = None
        return super().orphan()


class TappedConsole(OuterTerminal):
    """The outer terminal, with the person's keys copied to the tap: all but passwords."""

    tap: RecorderClient | None = None
    master = -1
    unnoted_max = 1

    def read(self) -> bytes:
        """See Console."""
        data = super().read()
        if data and self.tap is not None and not self._secret():
            self.tap.input(data, time.monotonic())
        return data

    def _secret(self) -> bool:
        """Whether the agent's terminal reads a line without showing it."""
        modes = tty.get_modes(self.master)
        if modes is None or not isinstance(modes[3], int):
            return True
        return bool(modes[3] & termios.ICANON) and not modes[3] & termios.ECHO
