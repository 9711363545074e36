"""The recorder, a process of its own: records of the pump become an asciicast, secrets masked.

Times and events stay as they came: masking keeps every length, so what is kept back (the end of
what may become a token) only delays when it is written. A file that ends anywhere can be played.
"""

from __future__ import annotations

import codecs
import json
import os
import shlex
import stat
from collections import deque
from collections.abc import Iterator

from relay.core import asciicast
from relay.core.asciicast import CastEvent, event_line, header_line
from relay.directive.redact import Redactor, redact
from relay.protocol import frames
from relay.pump import recorder_client

#: Events that wait behind output that may become a token; with more, it is written as it is.
QUEUE_MAX = 1000
#: Read at once from the pump.
_CHUNK = 256 * 1024
_KEYS = {
    frames.TYPED: "typed",
    frames.ENTERED: "entered",
    frames.CLEARED: "cleared",
    frames.FLUSHED: "cleared",
    frames.INTERRUPTED: "cleared",
}


class _Entry:
    """An event whose text is known but for its last ``missing`` characters."""

    __slots__ = ("at", "code", "missing", "text")

    def __init__(self, at: float, code: str, text: str = "", missing: int = 0) -> None:
        self.at = at
        self.code = code
        self.text = text
        self.missing = missing


class _Stream:
    """Bytes in, entries out: UTF-8 that is cut is joined, what is no UTF-8 becomes U+FFFD."""

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
    """Records in, lines out. Pure."""

    def __init__(self) -> None:
        self._output = _Stream(asciicast.OUTPUT)
        self._input = _Stream(asciicast.INPUT)
        self._queue: deque[_Entry] = deque()
        self._last = 0.0

    def record(self, code: int, at: float, data: bytes) -> str:
        """The lines that can be written after this record, each with its newline."""
        self._last = at
        if code == recorder_client.HEADER:
            return _header(data)
        if code == recorder_client.OUTPUT:
            self._queue.append(self._output.add(data, at))
        elif code == recorder_client.INPUT:
            self._queue.append(self._input.add(data, at))
        elif code == recorder_client.KEYS:
            self._queue.append(_Entry(at, asciicast.KEYS, _KEYS.get(data, "typed")))
        elif code in (recorder_client.RESIZE, recorder_client.MARKER, recorder_client.WORDS):
            text = redact(data.decode("utf-8", "replace"))
            self._queue.append(_Entry(at, chr(code), text))
        if len(self._queue) > QUEUE_MAX:
            self._output.finish()
            self._input.finish()
        return "".join(self._ready())

    def end(self, remark: str = "") -> str:
        """The rest, and a marker that says why it ends here."""
        for stream in (self._output, self._input):
            self._queue.append(stream.add(b"", self._last, final=True))
            stream.finish()
        if remark:
            self._queue.append(_Entry(self._last, asciicast.MARKER, remark))
        return "".join(self._ready())

    def given_up(self, why: str) -> str:
        """The last line of a recording that lacks what came before it."""
        return (
            event_line(CastEvent(self._last, asciicast.MARKER, f"recording given up: {why}")) + "\n"
        )

    def _ready(self) -> Iterator[str]:
        queue = self._queue
        while queue and not queue[0].missing:
            entry = queue.popleft()
            if entry.text:
                yield event_line(CastEvent(entry.at, entry.code, entry.text)) + "\n"


def _header(data: bytes) -> str:
    fields = json.loads(data)
    fields["command"] = redact(shlex.join(fields["command"]))
    fields["title"] = redact(fields["title"])
    return header_line(fields) + "\n"


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


def main(socket: int, fd: int) -> None:
    """Record until the pump says that this is the end, or is no more."""
    file, writer = _File(fd), Writer()
    try:
        try:
            _record(socket, file, writer)
        except OSError as error:
            _excuse(socket, error.strerror or str(error))
            file.write(writer.given_up(error.strerror or str(error)))
    except OSError:
        return  # not even that could be written
    except Exception as error:
        _excuse(socket, f"a fault of relay's own: {type(error).__name__}: {error}")


def _record(socket: int, file: _File, writer: Writer) -> None:
    buffer = bytearray()
    while True:
        data = os.read(socket, _CHUNK)
        if not data:
            file.write(
                writer.end("recording ends here: relay was killed, or gave up waiting for the disk")
            )
            return
        buffer += data
        lines: list[str] = []
        at = 0
        while len(buffer) - at >= recorder_client.RECORD.size:
            code, moment, length = recorder_client.RECORD.unpack_from(buffer, at)
            end = at + recorder_client.RECORD.size + length
            if len(buffer) < end:
                break
            if code == recorder_client.END:
                file.write("".join(lines) + writer.end())
                return
            lines.append(
                writer.record(code, moment, bytes(buffer[at + recorder_client.RECORD.size : end]))
            )
            at = end
        del buffer[:at]
        if text := "".join(lines):
            file.write(text)


def _excuse(socket: int, reason: str) -> None:
    """Tell the pump why there will be no more."""
    try:
        os.write(socket, reason.encode("utf-8", "replace")[:1000])
    except OSError:
        return  # it is gone
