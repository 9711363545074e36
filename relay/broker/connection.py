"""Clients' connections: lines in, lines out, both bounded; and how many there may be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from relay.broker.batch import ClientRequest, Served
from relay.broker.committer import Committer
from relay.broker.directory import Directory
from relay.core import json_text
from relay.core.descriptors import is_own_peer
from relay.core.errors import RelayError, UsageError
from relay.core.log import Log
from relay.core.processes import Process, peer
from relay.protocol.broker import LINE_MAX, UNKNOWN_OP, check_unicode, refusal
from relay.protocol.decoding import decode

#: Beyond this much unsent output the broker reads no more from a client and pushes nothing.
OUTPUT_HIGH = 1024 * 1024
#: Beyond this much a client that does not read is cut off; it reconnects and asks again.
OUTPUT_MAX = 16 * 1024 * 1024
#: Requests without an answer, and their bytes, beyond which the broker reads no more.
REQUESTS_MAX = 1024
REQUEST_BYTES_MAX = 16 * 1024 * 1024
#: Waits and searches that one client may have under way.
DEFERRED_MAX = 256


def _parse(line: str) -> Any:
    """The request in one line. Raises UsageError for anything else."""
    try:
        request = json_text.loads(line)
    except ValueError as error:
        raise UsageError("a line that is not JSON") from error
    if type(request) is not dict or type(request.get("n")) is not int:
        raise UsageError("a request without a number")
    return request


def _check_text(request: Any) -> None:
    """Refuse text that UTF-8 cannot carry. Raises UsageError."""
    # The answers of a session's hooks are checked where they are forwarded: the asker is told
    # of a mistake.
    if request.get("op") != "answer":
        check_unicode(request)


def _unknown(op: object) -> UsageError:
    return UsageError(
        f"{UNKNOWN_OP} {str(op)[:100]!r}",
        hint="relay broker stop; the next command starts one of this version",
    )


class Host(Protocol):
    """What a connection needs of the broker that accepted it."""

    @property
    def stopping(self) -> bool:
        """Whether the broker takes no more connections."""

    def has_room(self) -> bool:
        """Whether there is room for one more connection; a silent one may be closed for it."""

    def connected(self, client: ClientConnection) -> None:
        """A client of our own user has connected."""

    def disconnected(self, client: ClientConnection) -> None:
        """A connection closed."""

    def writable(self, client: ClientConnection) -> None:
        """The client reads again."""

    @property
    def log(self) -> Log:
        """The broker's log."""


class ClientConnection(asyncio.Protocol):
    """The broker's side of one connection: ``ops`` by their names, run by the ``committer``."""

    def __init__(self, host: Host, ops: Mapping[str, Served], committer: Committer) -> None:
        #: Who connected, with its ancestors: see relay.core.processes.
        self.ancestors: Sequence[Process] = ()
        self.closed = False
        self.paused = False  # the client does not read
        self.heard_at = 0.0  # when it last sent something, by the loop's clock
        self._host = host
        self._ops = ops
        self._committer = committer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._deferred = 0  # requests that are answered later
        self._stopping = False
        self._part = bytearray()  # the beginning of a line
        self._searched = 0  # bytes of it that were searched for the line's end
        self._out: list[bytes] = []  # lines that the next flush writes
        self._asked = 0  # requests without an answer, and their characters
        self._asked_bytes = 0
        self._reading = True

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.heard_at = self._loop.time()
        transport.set_write_buffer_limits(high=OUTPUT_HIGH)
        if not self._accepted(transport):
            self.closed = True
            transport.close()
            return
        self._host.connected(self)

    def _accepted(self, transport: asyncio.Transport) -> bool:
        if self._host.stopping:
            return False  # silently: the client then tries the next broker
        try:
            connection = transport.get_extra_info("socket")
            if is_own_peer(connection):
                if self._host.has_room():
                    # Now: later the process may be gone, and another one have its pid.
                    self.ancestors = peer(connection)
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
        self.heard_at = self._loop.time()
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
            self._open_transport().pause_reading()

    def pause_writing(self) -> None:
        self.paused = True
        if self._reading:
            self._reading = False
            self._open_transport().pause_reading()

    def resume_writing(self) -> None:
        self.paused = False
        self._read_again()
        self._host.writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._part.clear()
        self._out.clear()
        self._host.disconnected(self)

    # -- what the ops see: see relay.broker.batch.Client

    def send(self, line: bytes) -> None:
        """Send one line with the others of this turn of the loop."""
        if self.closed:
            return
        if not self._out:
            self._loop.call_soon(self.flush)
        self._out.append(line)

    def defer(self) -> None:
        """A request will be answered later. Raises RelayError when too many are already."""
        if self._deferred >= DEFERRED_MAX:
            raise RelayError(
                f"more than {DEFERRED_MAX} waits and searches on one connection", code="busy"
            )
        self._deferred += 1

    def undefer(self) -> None:
        """A request that was answered later has its answer."""
        self._deferred -= 1

    def answered(self, size: int) -> None:
        """A request of ``size`` characters has been dealt with."""
        self._asked -= 1
        self._asked_bytes -= size
        if not self._reading:
            self._read_again()

    @property
    def waits(self) -> bool:
        """Whether a request of its waits for an answer."""
        return self._asked > 0 or self._deferred > 0

    @property
    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        held = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return held + sum(map(len, self._out))

    def flush(self) -> None:
        """Write what ``send`` collected; cut off a client that does not read."""
        out, self._out = self._out, []
        transport = self._transport
        if self.closed or transport is None or not out:
            return
        transport.write(out[0] if len(out) == 1 else b"".join(out))
        if transport.get_write_buffer_size() > OUTPUT_MAX:
            self._host.log.write("cut off a client that does not read")
            self.abort()

    def close(self) -> None:
        """Send what is collected, then close."""
        if self._out:
            self.flush()
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def stop_reading(self) -> None:
        """Read no more requests; those that were read get their answers."""
        if self._reading:
            self._reading = False
            self._open_transport().pause_reading()
        self._stopping = True

    def abort(self) -> None:
        """Close at once, whatever is still unsent."""
        self.closed = True
        self._open_transport().abort()

    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    def _overfull(self) -> bool:
        return self._asked >= REQUESTS_MAX or self._asked_bytes >= REQUEST_BYTES_MAX

    def _read_again(self) -> None:
        if self._reading or self.paused or self.closed or self._stopping:
            return
        if not self._overfull():
            self._reading = True
            self._open_transport().resume_reading()

    def _lines(self, data: bytes) -> None:
        broken = False
        try:
            lines = data.decode().split("\n")
        except UnicodeDecodeError:
            # Only one of them is invalid; the others are carried out.
            lines = [line.decode(errors="surrogateescape") for line in data.split(b"\n")]
            broken = True
        for line in lines:
            if not line:
                continue
            # In characters, which is exact enough for a bound against floods.
            size = len(line)
            request: Any = None
            try:
                request = _parse(line)
                # Only an escape, or what is no UTF-8 at all, makes half of a pair. (One character
                # is found many times as fast as three.)
                if broken or ("\\" in line and ("\\ud" in line or "\\uD" in line)):
                    _check_text(request)
                op = request.get("op")
                served = self._ops.get(op) if isinstance(op, str) else None
                if served is None:
                    raise _unknown(op)
                fields = decode(served.op, request)
            except RelayError as error:
                self.send(refusal(request["n"] if request else None, error))
                continue
            asked = ClientRequest(self, request["n"], served.op, fields, size)
            self._committer.submit(served.handler, asked)
            self._asked += 1
            self._asked_bytes += size

    def _too_long(self) -> None:
        error = UsageError(f"a line of more than {LINE_MAX} bytes")
        self.send(refusal(None, error))
        self.close()


#: Connections at a time. Beyond it, one that is no session of the person's is closed: ``has_room``.
CONNECTIONS_MAX = 2048
#: A connection that was made, or sent something, within so many seconds is not silent.
JUST_CAME = 1.0
#: How long a broker that stops waits for clients to read their last answers. Seconds.
GOODBYE = 2.0


class OpenConnections:
    """Holds at most ``limit`` connections."""

    def __init__(self, directory: Directory, limit: int, *, log: Log) -> None:
        """Create it inside a running event loop."""
        self._directory = directory
        self._limit = limit
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._open: set[ClientConnection] = set()
        self._left = asyncio.Event()  # set when the last one has closed

    def __len__(self) -> int:
        return len(self._open)

    def add(self, client: ClientConnection) -> None:
        self._open.add(client)

    def discard(self, client: ClientConnection) -> None:
        self._open.discard(client)
        if not self._open:
            self._left.set()

    def has_room(self) -> bool:
        """Whether there is room for one more; a silent connection may be closed for it."""
        if len(self._open) < self._limit:
            return True
        # Sessions that the person started stay; those inside an agent could be any number. A client
        # that waits for no answer is closed before one that does.
        others = [one for one in self._open if not self._stays(one)]
        if not others:
            return False
        now = self._loop.time()
        oldest = min(others, key=lambda c: (c.waits or now - c.heard_at < JUST_CAME, c.heard_at))
        self._log.write("too many connections: the one that was silent longest is closed")
        oldest.abort()
        self._open.discard(oldest)
        return True

    def _stays(self, client: ClientConnection) -> bool:
        return self._directory.member_of(client) is not None and self._directory.is_outside(client)

    def stop_reading(self) -> None:
        for connection in self._open:
            connection.stop_reading()

    async def close(self) -> None:
        """Give what is being written a moment, then cut it off."""
        self._left.clear()
        for connection in list(self._open):
            connection.close()
        if self._open:
            try:
                await asyncio.wait_for(self._left.wait(), GOODBYE)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()
