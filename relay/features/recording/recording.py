"""``relay wrap --record``: what passes between the pump and its session becomes an asciicast.

``Recording`` creates the file before the agent starts, and at the end says what is missing in it.
``Recorder`` belongs to the session: the link to the pump shows it every frame, and a thread masks
secrets and writes, so that neither the session nor the agent waits for a disk. What waits for the
thread is bounded. A recording ends with the session that began it.

Times and events stay as they came: masking keeps every length, so what is kept back (the end of
what may become a token) only delays when it is written. A file that ends anywhere can be played.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import queue
import select
import shlex
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from relay import __version__
from relay.core import asciicast, descriptors, files
from relay.core.asciicast import CastEvent, event_line, header_line
from relay.core.errors import RelayError, UsageError
from relay.directive.redact import Redactor, redact
from relay.protocol import frames

#: What waits for a disk that is slower than the agent, in bytes. Beyond it the recording ends.
WAITING_MAX = 64 * 1024 * 1024
#: What a record costs beside its bytes.
_RECORD_COST = 200
#: Seconds that the person waits after the agent's end for a recording that does not grow.
PATIENCE = 10.0
#: How often it is looked at meanwhile, in seconds.
_LOOK = 0.2
#: Events that wait behind output that may become a token; with more, it is written as it is.
QUEUE_MAX = 1000
#: Written at once.
_CHUNK = 256 * 1024
#: What the recorder reports of a recording that has everything; else it reports what went wrong.
COMPLETE = "complete"
ENDED = "relay's session, which writes it, has ended"
STARTED_AGAIN = "relay's session, which wrote it, was started again"
STUCK = "relay's session still writes the rest, or its disk takes nothing"
TOO_MUCH = "the agent wrote faster than it could be recorded"
LOST = "recording ends here: relay was killed, or its session stopped"

#: Codes of the records beside those of the file.
_HEADER, _END = "header", "end"
_KEYS = {
    frames.TYPED: "typed",
    frames.ENTERED: "entered",
    frames.CLEARED: "cleared",
    frames.FLUSHED: "cleared",
    frames.INTERRUPTED: "cleared",
}


class Recording:
    """A recording as the process knows it that wraps the agent.

    ``fds`` are for the session: the file, and where it reports how the recording ended.
    ``keys``: what the person types is recorded too. Raises RelayError when the file cannot be made.
    """

    def __init__(self, path: str, *, overwrite: bool, keys: bool = False) -> None:
        self._path = path
        self.keys = keys
        file = _create(path, overwrite)
        self._file = os.dup(file)
        self._reports, reports = os.pipe()
        self.fds = {"record": file, "recorded": reports}

    def close(self) -> None:
        """Nothing was started that would write it."""
        descriptors.close([self._file, self._reports, *self.fds.values()])

    def finish(self) -> str:
        """What is missing in the file, "" if nothing is; called when ``fds`` are closed here.

        Waits for the session as long as the file grows, and then for PATIENCE seconds; Ctrl-C ends
        the wait.
        """
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            missing = self._report()
        except KeyboardInterrupt:
            missing = STUCK
        finally:
            signal.signal(signal.SIGINT, before)
        descriptors.close([self._file, self._reports])
        if missing == COMPLETE:
            return ""
        return f"the recording {self._path} is not complete: {missing}"

    def _report(self) -> str:
        poll = select.poll()
        poll.register(self._reports, select.POLLIN)
        report, size, grew = b"", -1, time.monotonic()
        while (left := grew + PATIENCE - time.monotonic()) > 0:
            if poll.poll(min(left, _LOOK) * 1000):
                data = os.read(self._reports, 4096)
                report += data
                if not data:
                    return report.decode("utf-8", "replace") or ENDED
            elif os.fstat(self._file).st_size != size:
                size, grew = os.fstat(self._file).st_size, time.monotonic()
        return STUCK


def _create(path: str, overwrite: bool) -> int:
    """Create the file for us alone to read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    flags |= 0 if overwrite else os.O_EXCL
    try:
        files.check_own_link(path)
        file = os.open(path, flags, 0o600)
        if stat.S_ISREG(os.fstat(file).st_mode):
            files.check_owner(path, os.fstat(file))
            os.fchmod(file, 0o600)
            os.ftruncate(file, 0)
        os.set_blocking(file, True)
    except FileExistsError:
        raise UsageError(
            f"{path} already exists",
            hint="choose another name, or replace it with: --overwrite",
        ) from None
    except OSError as error:
        hint = "check the folder and its permissions; nothing was started"
        if error.errno == errno.ENXIO:
            hint = "nobody reads this pipe; nothing was started"
        raise RelayError(f"cannot write {path}: {error.strerror}", hint=hint) from None
    return file


class Recorder:
    """Records one session into ``file``; ``reports`` is where it says how that ended.

    Both descriptors are its own. Nothing here blocks but ``close``.
    """

    def __init__(self, file: int, reports: int, profile: str) -> None:
        for fd in (file, reports):
            os.set_inheritable(fd, False)
        os.set_blocking(reports, False)
        self._file = file
        self._reports = reports
        self._profile = profile
        self._records: queue.SimpleQueue[tuple[str, float, bytes]] = queue.SimpleQueue()
        self._added = 0  # by the session
        self._taken = 0  # by the thread
        self._began = 0.0
        self._rested = 0.0  # seconds in which the agent wrote nothing, before what came late
        self._over = False
        self._missing = ""
        self._thread = threading.Thread(target=self._write, name="recording", daemon=True)

    # -- what passes

    def received(self, kind: int, payload: bytes) -> None:
        """Record a frame of the pump's."""
        if kind == frames.OUTPUT:
            self._add(asciicast.OUTPUT, payload)
        elif kind == frames.KEYS:
            self._add(asciicast.INPUT, payload)
        elif kind == frames.ACTIVITY:
            self._add(asciicast.KEYS, _KEYS.get(payload[4:5], "typed").encode())
        elif kind == frames.SIZE:
            cols, rows = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
            if cols and rows:
                self._add(asciicast.RESIZE, b"%dx%d" % (cols, rows))
        elif kind == frames.JOB:
            stopped = payload == frames.STOPPED
            self._add(
                asciicast.MARKER, b"the agent is stopped" if stopped else b"the agent goes on"
            )
        elif kind == frames.REST:
            self._rested += int.from_bytes(payload, "big") / 1000
        elif kind == frames.HELLO:
            self._begin(payload)
        elif kind == frames.EXIT:
            self._end()

    def sent(self, kind: int, payload: bytes) -> None:
        """Record a frame to the pump: what relay types."""
        if kind in (frames.WRITE, frames.WRITE_AT):
            self._add(asciicast.WORDS, payload[8 if kind == frames.WRITE else 16 :])

    def lost(self) -> None:
        """The pump has hung up; there is no more unless it said that this is the end."""
        self._end(missing=ENDED, remark=LOST)

    def close(self) -> None:
        """Wait until all is written, PATIENCE seconds at most."""
        if self._thread.is_alive():
            self._thread.join(PATIENCE)

    def _begin(self, hello: bytes) -> None:
        self._began = time.monotonic()
        facts = json.loads(hello)
        if facts["restarts"]:
            self._over = True
            self._finish(STARTED_AGAIN)
            return
        header = {
            "version": 2,
            "width": facts["cols"] or 80,
            "height": facts["rows"] or 24,
            "timestamp": facts["started_ms"] // 1000,
            "command": redact(shlex.join(facts["command"])),
            "title": redact(facts["name"]),
            "env": {name: os.environ[name] for name in ("SHELL", "TERM") if name in os.environ},
            "relay": {"version": __version__, "agent": facts["name"], "profile": self._profile},
        }
        self._add(_HEADER, header_line(header).encode("utf-8", "replace"))
        try:
            self._thread.start()
        except RuntimeError as error:
            self._over = True
            self._finish(str(error))

    def _end(self, missing: str = "", remark: str = "") -> None:
        if not self._over:
            self._missing = missing
            self._add(_END, remark.encode())
            self._over = True

    def _add(self, code: str, data: bytes) -> None:
        if self._over:
            return
        at = time.monotonic() - self._began + self._rested
        cost = len(data) + _RECORD_COST
        self._added += cost
        if self._added - self._taken > WAITING_MAX:
            self._over = True
            self._missing = TOO_MUCH
            code, data = _END, f"recording given up: {TOO_MUCH}".encode()
        self._records.put((code, at, data))

    # -- the thread

    def _write(self) -> None:
        file = _File(self._file)
        writer = Writer()
        try:
            while not writer.ended:
                file.write(self._lines(writer))
        except OSError as error:
            self._over = True
            reason = error.strerror or str(error)
            self._finish(reason, file, writer.given_up(reason))
        except Exception as error:
            self._over = True
            self._finish(f"a fault of relay's own: {type(error).__name__}: {error}")
        else:
            self._finish(self._missing)

    def _lines(self, writer: Writer) -> str:
        """The lines of the next records; waits for the first."""
        lines: list[str] = []
        size = 0
        while not writer.ended and size < _CHUNK and not (lines and self._records.empty()):
            code, at, data = self._records.get()
            lines.append(writer.record(code, at, data))
            size += len(data)
            self._taken += len(data) + _RECORD_COST
        return "".join(lines)

    def _finish(self, missing: str, file: _File | None = None, last: str = "") -> None:
        """Say how the recording ended; it ends now."""
        if file is not None:
            with contextlib.suppress(OSError):  # not even that can be written
                file.write(last)
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(self._reports, (missing or COMPLETE).encode("utf-8", "replace")[:1000])
        descriptors.close([self._file, self._reports])
        self._records = queue.SimpleQueue()  # what nobody writes is not kept


@dataclass(slots=True)
class _Entry:
    """An event whose text is known but for its last ``missing`` characters."""

    at: float
    code: str
    text: str = ""
    missing: int = 0


class _Stream:
    """Bytes in, entries out: UTF-8 that is cut is joined, what is not UTF-8 becomes U+FFFD."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._redactor = Redactor()
        self._open: deque[_Entry] = deque()

    def add(self, data: bytes, at: float, final: bool = False) -> _Entry:
        """The entry for ``data``; it and earlier ones are completed as far as is decided."""
        text = self._decoder.decode(data, final)
        entry = _Entry(at, self._code, missing=len(text))
        self._open.append(entry)
        self._decide(self._redactor.feed(text))
        return entry

    def finish(self) -> None:
        """Complete all entries, whatever may follow."""
        self._decide(self._redactor.finish())

    def _decide(self, text: str) -> None:
        used = 0
        while self._open:
            entry = self._open[0]
            part = text[used : used + entry.missing]
            used += len(part)
            entry.text += part
            entry.missing -= len(part)
            if entry.missing:
                return
            self._open.popleft()


class Writer:
    """Records in, lines out; ``ended`` after the last record. Reads no clock and does no I/O."""

    def __init__(self) -> None:
        self.ended = False
        self._output = _Stream(asciicast.OUTPUT)
        self._input = _Stream(asciicast.INPUT)
        self._queue: deque[_Entry] = deque()
        self._last = 0.0

    def record(self, code: str, at: float, data: bytes) -> str:
        """The lines that can be written after this record, each with its newline."""
        self._last = at
        if code == _HEADER:
            return data.decode() + "\n"
        if code == _END:
            self._end(data.decode())
        elif code == asciicast.OUTPUT:
            self._queue.append(self._output.add(data, at))
        elif code == asciicast.INPUT:
            self._queue.append(self._input.add(data, at))
        else:
            self._queue.append(_Entry(at, code, redact(data.decode("utf-8", "replace"))))
        if len(self._queue) > QUEUE_MAX:
            self._output.finish()
            self._input.finish()
        return "".join(self._ready())

    def given_up(self, why: str) -> str:
        """The last line of a recording that lacks what came before it."""
        return (
            event_line(CastEvent(self._last, asciicast.MARKER, f"recording given up: {why}")) + "\n"
        )

    def _end(self, remark: str) -> None:
        """Complete the rest, with a marker that says why it ends here."""
        self.ended = True
        for stream in (self._output, self._input):
            self._queue.append(stream.add(b"", self._last, final=True))
            stream.finish()
        if remark:
            self._queue.append(_Entry(self._last, asciicast.MARKER, remark))

    def _ready(self) -> Iterator[str]:
        queue = self._queue
        while queue and not queue[0].missing:
            entry = queue.popleft()
            if entry.text:
                yield event_line(CastEvent(entry.at, entry.code, entry.text)) + "\n"


class _File:
    """The file, of which only whole lines are kept."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._regular = stat.S_ISREG(os.fstat(fd).st_mode)
        self._whole = 0

    def write(self, text: str) -> None:
        """Write lines. Raises OSError, and then none of them is in a regular file."""
        data = memoryview(text.encode("utf-8", "replace"))
        left = data
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            if self._regular:
                os.ftruncate(self._fd, self._whole)
                os.lseek(self._fd, self._whole, os.SEEK_SET)
            raise
        self._whole += len(data)
