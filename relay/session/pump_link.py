"""The session's end of the socketpair to the pump."""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from relay.core.errors import NotDelivered
from relay.protocol import frames
from relay.session.background import failure
from relay.session.door import FrameWatcher
from relay.session.session_events import (
    AgentExited,
    AgentStopped,
    AgentWrote,
    EventQueue,
    OutputRested,
    PersonTyped,
    PumpCheckpoint,
    PumpHello,
    PumpLost,
    SessionEvent,
    TerminalGone,
    TerminalResized,
)

_WRITE_HEAD = struct.Struct(">II")
_WRITE_AT_HEAD = struct.Struct(">IIQ")
#: The outcome of a write, by the kind of the frame that reports it.
_SETTLED = {frames.WRITTEN: True, frames.REFUSED: False, frames.OVERTAKEN: None}
_ACK_HEAD = struct.Struct(">Q")
_SIZE = struct.Struct(">4H")


def event_of(kind: int, payload: bytes) -> SessionEvent | None:
    """The event of a frame from the pump; None for a frame without one."""
    match kind:
        case frames.HELLO:
            return PumpHello(json.loads(payload))
        case frames.CHECKPOINT:
            return PumpCheckpoint(json.loads(payload) if payload else {})
        case frames.ACTIVITY:
            sequence, key, more = int.from_bytes(payload[:4], "big"), payload[4:5], payload[5:]
            if key in (frames.TYPED, frames.ENTERED):
                return PersonTyped(sequence, key)
            return PersonTyped(sequence, key, int.from_bytes(more[:4], "big"))
        case frames.SIZE:
            cols, rows, _, _ = _SIZE.unpack(payload)
            return TerminalResized(cols, rows)
        case frames.REST:
            return OutputRested(int.from_bytes(payload, "big") / 1000)
        case frames.JOB:
            return AgentStopped(payload == frames.STOPPED)
        case frames.GOING:
            return TerminalGone()
        case frames.EXIT:
            return AgentExited(json.loads(payload).get("unread"))
    return None


class PumpLink(asyncio.Protocol):
    """Posts the pump's frames as events, except outcomes of writes; sends frames to it.

    ``watchers`` get all frames.
    """

    def __init__(self, events: EventQueue, watchers: Sequence[FrameWatcher] = ()) -> None:
        self._events = events
        self._watchers = list(watchers)
        self._decoder = frames.Decoder()
        self._transport: asyncio.Transport | None = None
        self._writes: dict[int, asyncio.Future[bool | None]] = {}
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            received = self._decoder.feed(data)
        except frames.FrameError:
            # A peer with another protocol cannot be understood.
            self.close()
            return
        for kind, payload in received if self._watchers else ():
            self._show("received", kind, payload)
        for kind, group in groupby(received, itemgetter(0)):
            payloads = [payload for _, payload in group]
            if kind == frames.OUTPUT:
                # Output that came together is one event: under a flood that is much cheaper.
                data = b"".join(payloads) if len(payloads) > 1 else payloads[0]
                self._events.post(AgentWrote(data))
                continue
            for payload in payloads:
                if kind in _SETTLED:
                    self._settle(int.from_bytes(payload, "big"), _SETTLED[kind])
                elif (event := event_of(kind, payload)) is not None:
                    self._events.post(event)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._writable.set()
        for waiting in self._writes.values():
            if not waiting.done():
                waiting.set_exception(NotDelivered("the agent is gone", code="agent_gone"))
                waiting.exception()  # those that wait see it; otherwise nobody has to
        self._writes.clear()
        self._show("lost")
        self._events.post(PumpLost())

    async def write(
        self, data: bytes, *, write_id: int, sequence: int, offset: int | None = None
    ) -> bool | None:
        """Have ``data`` typed into the agent's terminal, whole.

        False if the person pressed a key after ``sequence``, None if the agent wrote beyond
        ``offset``: then not a byte was written. Waits as long as the agent does not read: the pump
        types the data later anyway, so a second try could only double it. Raises NotDelivered when
        the agent is gone.
        """
        await self._writable.wait()
        if self._transport is None:
            raise NotDelivered("the agent is gone", code="agent_gone")
        waiting: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()
        self._writes[write_id] = waiting
        if offset is None:
            self._send(frames.WRITE, _WRITE_HEAD.pack(write_id, sequence) + data)
        else:
            self._send(frames.WRITE_AT, _WRITE_AT_HEAD.pack(write_id, sequence, offset) + data)
        try:
            return await waiting
        finally:
            self._writes.pop(write_id, None)

    def ack(self, offset: int, checkpoint: bytes) -> None:
        """All output before ``offset`` is handled; a next session continues from ``checkpoint``."""
        self._send(frames.ACK, _ACK_HEAD.pack(offset) + checkpoint)

    def farewell(self, seconds: float) -> None:
        """When the person's terminal goes, keep the agent's open for ``seconds``; 0: close it."""
        self._send(frames.FAREWELL, min(0xFFFF, math.ceil(seconds)).to_bytes(2, "big"))

    def read(self, on: bool) -> None:
        """Read the agent's output, or pause: the pump keeps it meanwhile."""
        if self._transport is not None and not self._transport.is_closing():
            if on:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def close(self) -> None:
        """Hang up; the pump sees the end and, while the agent runs, starts another session."""
        if self._transport is not None:
            self._transport.close()

    def _settle(self, write_id: int, written: bool | None) -> None:
        waiting = self._writes.get(write_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(written)

    def _show(self, method: str, *frame: object) -> None:
        for watcher in list(self._watchers):
            try:
                getattr(watcher, method)(*frame)
            except Exception as error:  # it is shown nothing more; the session goes on
                self._watchers.remove(watcher)
                self._events.post(failure(error))

    def _send(self, kind: int, payload: bytes) -> None:
        self._show("sent", kind, payload)
        if self._transport is not None:
            self._transport.write(frames.pack(kind, payload))
