"""One client's connection: lines in, lines out, both bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.broker.batch import refusal
from relay.broker.checks import check_unicode
from relay.broker.peercred import is_own
from relay.core.errors import RelayError, UsageError
from relay.protocol.broker import LINE_MAX

if TYPE_CHECKING:
    from relay.broker.directory import Member
    from relay.broker.server import Broker

#: Beyond this much unsent output the broker reads no more from a client and pushes nothing.
OUTPUT_HIGH = 1024 * 1024
#: Beyond this much a client that does not read is cut off; it reconnects and asks again.
OUTPUT_MAX = 16 * 1024 * 1024
#: Requests without an answer, and their bytes, beyond which the broker reads no more.
REQUESTS_MAX = 1024
REQUEST_BYTES_MAX = 16 * 1024 * 1024
#: Waits and searches that one client may have under way.
DEFERRED_MAX = 256


# The scanner alone, without what json.loads does around it: this is the broker's hottest line.
_scan: Callable[[str, int], tuple[Any, int]] = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009


def _parse(line: str) -> Any:
    """The request in one line. Raises UsageError when it is none."""
    try:
        request, end = _scan(line, 0)
        if end != len(line):
            request = json.loads(line)
    except (StopIteration, ValueError, RecursionError) as error:
        raise UsageError("a line that is not JSON") from error
    if type(request) is not dict or type(request.get("n")) is not int:
        raise UsageError("a request without a number")
    return request


def _check_text(request: Any) -> None:
    """Refuse text that UTF-8 cannot carry. Raises UsageError."""
    # What a session's hooks say is checked where it is passed on: whoever asked is told of it.
    if request.get("op") != "hook_answer":
        check_unicode(request)


class Connection(asyncio.Protocol):
    """The server's side of one connection."""

    __slots__ = (
        "broker",
        "transport",
        "member",
        "paused",
        "closed",
        "stopping",
        "follows",
        "notified",
        "deferred",
        "_part",
        "_searched",
        "_out",
        "_asked",
        "_asked_bytes",
        "_reading",
    )

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.transport: asyncio.Transport | None = None
        self.member: Member | None = None
        self.paused = False
        self.closed = False
        self.stopping = False
        self.follows: str | None = None  # the inbox whose news this client wants
        self.notified = False
        self.deferred = 0
        self._part = bytearray()
        self._searched = 0
        self._out: list[bytes] = []
        self._asked = 0
        self._asked_bytes = 0
        self._reading = True

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=OUTPUT_HIGH)
        if not self._accepted(transport):
            self.closed = True
            transport.close()
            return
        self.broker.connected(self)

    def _accepted(self, transport: asyncio.Transport) -> bool:
        if self.broker.stopped.is_set():
            return False  # without a word: the client then turns to the next broker
        try:
            if is_own(transport.get_extra_info("socket")):
                if self.broker.has_room():
                    return True
                error = RelayError("the broker has too many connections", code="busy")
            else:
                error = RelayError("this broker belongs to another user", code="forbidden")
        except OSError:
            return False
        transport.write(refusal(None, error))
        return False

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if self._part:
            self._part += data
            end = self._part.rfind(b"\n", self._searched)
            if end < 0:
                self._searched = len(self._part)
                if self._searched > LINE_MAX:
                    self._too_long()
                return
            data = bytes(self._part[:end])
            del self._part[: end + 1]
            self._searched = len(self._part)
        else:
            end = data.rfind(b"\n")
            if end < 0:
                self._part += data
                self._searched = len(data)
                return
            self._part += data[end + 1 :]
            self._searched = len(self._part)
            data = data[:end]
        self._lines(data)
        if self._reading and self._overfull():
            self._reading = False
            self._transport().pause_reading()

    def pause_writing(self) -> None:
        self.paused = True
        if self._reading:
            self._reading = False
            self._transport().pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self._read_again()
        self.broker.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._part.clear()
        self._out.clear()
        self.broker.disconnected(self)

    # -- the broker's calls

    def send(self, line: bytes) -> None:
        """Add one line to what ``flush`` writes."""
        if self.closed:
            return
        if not self._out:
            self.broker.unflushed.append(self)
        self._out.append(line)

    def defer(self) -> None:
        """A request will be answered later. Raises RelayError when too many are already."""
        if self.deferred >= DEFERRED_MAX:
            raise RelayError(
                f"more than {DEFERRED_MAX} waits and searches on one connection", code="busy"
            )
        self.deferred += 1

    def undefer(self) -> None:
        """It was answered."""
        self.deferred -= 1

    def answered(self, size: int) -> None:
        """A request of ``size`` bytes has its answer."""
        self._asked -= 1
        self._asked_bytes -= size
        if not self._reading:
            self._read_again()

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        held = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return held + sum(map(len, self._out))

    def flush(self) -> None:
        """Write what ``send`` collected; cut off a client that does not read."""
        out, self._out = self._out, []
        transport = self.transport
        if self.closed or transport is None:
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        if transport.get_write_buffer_size() > OUTPUT_MAX:
            self.broker.log("cut off a client that does not read")
            self.abort()

    def close(self) -> None:
        """Send what is collected, then close."""
        if self._out:
            self.flush()
        self.closed = True
        if self.transport is not None:
            self.transport.close()

    def stop_reading(self) -> None:
        """Take no more requests; those already taken get their answers."""
        if self._reading:
            self._reading = False
            self._transport().pause_reading()
        self.stopping = True

    def abort(self) -> None:
        """Close at once, whatever is still unsent."""
        self.closed = True
        self._transport().abort()

    def _transport(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport

    def _overfull(self) -> bool:
        return self._asked >= REQUESTS_MAX or self._asked_bytes >= REQUEST_BYTES_MAX

    def _read_again(self) -> None:
        if self._reading or self.paused or self.closed or self.stopping:
            return
        if not self._overfull():
            self._reading = True
            self._transport().resume_reading()

    def _lines(self, data: bytes) -> None:
        broken = False
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError:
            # One of them is at fault; the others are not refused for it.
            lines = [line.decode(errors="surrogateescape") for line in data.split(b"\n")]
            broken = True
        for line in lines:
            if not line:
                continue
            # Counted in characters: a bound against floods needs no more.
            size = len(line)
            request: Any = None
            try:
                request = _parse(line)
                # Only an escape, or what is no UTF-8 at all, makes half of a pair. (One character
                # is found many times as fast as three.)
                if broken or ("\\" in line and ("\\ud" in line or "\\uD" in line)):
                    _check_text(request)
                request["size"] = size
                self.broker.request(self, request)
            except RelayError as error:
                self.send(refusal(request["n"] if request else None, error))
                self.broker.flush_soon()
                continue
            self._asked += 1
            self._asked_bytes += size

    def _too_long(self) -> None:
        error = UsageError(f"a line of more than {LINE_MAX} bytes")
        self.send(refusal(None, error))
        self.close()
