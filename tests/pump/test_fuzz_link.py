"""The pump's end of the session under every order of events that a pump and a session can make.

A model of one run: what the pump puts in, and what the sessions, one after the other, took out.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from relay.core import signals
from relay.protocol import frames
from relay.pump import output_buffer
from relay.pump.session_link import PATIENCE, PAUSE_MAX, SessionLink
from tests.pump.fuzzing import fuzz

if TYPE_CHECKING:
    from relay.pump.output_buffer import Spool

KEPT = 4096
READ = 1024
BUFFER = 4096  # of the socket: so small that writes are cut
SPOOLED = 8192  # what the spool takes, in files of
SPOOL_FILE = 1500
FRAMED_MAX = 1 << 20  # bytes that wait for the socket as frames
REST = 0.02
#: Numbers that no process has: the kernel's largest is 2**22.
NO_PROCESS = 2**30

EVENTS = [
    bytes([kind])
    for kind in (frames.ACTIVITY, frames.SIZE, frames.JOB, frames.WRITTEN, frames.REFUSED)
]

Event = tuple[int, int, bytes]  # the offset at which it was put in, kind, payload


class Far:
    """The session's end: decodes, and keeps what it got with its place in the output."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.sock = sock
        self.pid = pid
        self.decoder = frames.Decoder()
        self.offset = 0  # of the next byte of output
        self.hello: tuple[int, bytes, int] | None = None
        self.checkpoint: bytes | None = None
        self.events: list[Event] = []
        self.ended = False

    def read(self, size: int, output: Callable[[int, bytes], None]) -> bool:
        """Take at most ``size`` bytes; whether there were any."""
        try:
            data = self.sock.recv(size)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self.ended = True
            return False
        for kind, payload in self.decoder.feed(data):
            if kind == frames.HELLO:
                assert self.hello is None, "a second HELLO"
                self.hello = _unpack_hello(payload)
                self.offset = self.hello[0]
            elif kind == frames.CHECKPOINT:
                assert self.hello is not None and self.checkpoint is None
                self.checkpoint = payload
            elif kind == frames.OUTPUT:
                assert self.checkpoint is not None and payload
                output(self.offset, payload)
                self.offset += len(payload)
            else:
                assert self.checkpoint is not None
                self.events.append((self.offset, kind, payload))
        return True

    def drain(self, output: Callable[[int, bytes], None]) -> bool:
        """Take all there is; whether that was anything."""
        got = False
        while self.read(65536, output):
            got = True
        return got

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.sock.sendall(data)


def _hello(offset: int, size: bytes, restarts: int) -> bytes:
    return b"%d %d " % (offset, restarts) + size


def _unpack_hello(payload: bytes) -> tuple[int, bytes, int]:
    offset, restarts, size = payload.split(b" ", 2)
    return int(offset), size, int(restarts)


class Disk(output_buffer.Spool):
    """A spool in real files, on a disk that can run full in the middle of a write."""

    def __init__(self, folder: str, offset: int, room: Callable[[], int | None]) -> None:
        self._room = room
        if room() == 0:
            raise OSError(28, "no room for a file")
        super().__init__(folder, offset)

    def append(self, pieces: list[bytes]) -> int:
        room = self._room()
        if room is None:
            return super().append(pieces)
        some = b"".join(pieces)[:room]
        return super().append([some]) if some else 0


class LinkMachine(RuleBasedStateMachine):
    """One run; every rule is something that the pump, the session or the clock does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.sent = bytearray()  # what the agent wrote
        self.got = bytearray()  # the same, put together from all sessions
        self.acked = 0
        self.checkpoint = b""
        self.sizes: list[tuple[int, bytes]] = [(0, b"size0000")]
        self.past: list[Event] = []  # RESTs and ACTIVITYs
        self.sticky: dict[int, bytes] = {}
        self.wanted: list[Event] = []  # what this session must get, in order
        self.begins = (0, b"size0000", 0), b""  # this session's HELLO and CHECKPOINT
        self.wrote_at: float | None = None
        self.progress = 100.0
        self.progressed = False  # this session has acknowledged something
        self.starts = 0
        self.far: Far | None = None
        self.killed: list[int] = []
        self.given_up = 0
        self.refuse_start = False
        self.counter = 0
        kill = mock.patch.object(signals, "kill", lambda pid, _: self.killed.append(pid))
        kill.start()
        self.undo = kill.stop
        self.room: int | None = None  # on the disk, for each write
        self.spools = 0
        self.link = SessionLink(self._start, _hello, b"size0000", self._give_up, self.store(), KEPT)

    def store(self) -> Callable[[int], Spool] | None:
        """What the link makes a store with: none, all has to fit into memory."""
        return None

    # -- what the link calls

    def _start(self) -> tuple[int, int]:
        assert not self.link.dropped and not self.given_up
        self.starts += 1
        if self.refuse_start:
            raise OSError(11, "no process to be had")
        if self.far is not None:
            self.far.sock.close()
        ours, theirs = socket.socketpair()
        for sock in (ours, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            sock.setblocking(False)
        self.far = Far(theirs, NO_PROCESS + self.starts)
        self.progressed = False
        self.wanted = self._history()
        self.begins = (self.acked, self.sizes[0][1], self.starts - 1), self.checkpoint
        return ours.detach(), self.far.pid

    def _give_up(self) -> None:
        self.given_up += 1

    def _history(self) -> list[Event]:
        """What a session gets that starts now, beside HELLO, CHECKPOINT and the output."""
        sizes = [(at, frames.SIZE, size) for at, size in self.sizes[1:]]
        places = sorted(sizes + self.past, key=lambda event: event[0])
        end = len(self.sent)
        return places + [(end, kind, payload) for kind, payload in self.sticky.items()]

    def _output(self, at: int, data: bytes) -> None:
        assert at >= self.acked, "what was acknowledged came again"
        assert at <= len(self.got), f"a gap before {at}"
        assert self.sent[at : at + len(data)] == data, f"different bytes at {at}"
        self.got += data[len(self.got) - at :]

    def _check_alive(self, far: Far) -> None:
        """Whatever the session received was what it had to get, in its place."""
        assert far.hello in (None, self.begins[0])
        assert far.checkpoint in (None, self.begins[1])
        assert far.events == self.wanted[: len(far.events)]

    # -- the pump

    @initialize()
    def open(self) -> None:
        self.link.open(self.now)

    @rule(batch=st.lists(st.one_of(st.integers(1, READ), st.sampled_from(EVENTS)), max_size=8))
    def agent_and_person(self, batch: list[int | bytes]) -> None:
        """Output (its size) and events (their kind), and what the socket takes of them."""
        for what in batch:
            if isinstance(what, int):
                self._put_output(what)
            else:
                self._event(what[0])
        self._flush()

    @rule(pieces=st.integers(4, 16))
    def agent_floods(self, pieces: int) -> None:
        for _ in range(pieces):
            self._put_output(READ)
        self._flush()

    def _put_output(self, size: int) -> None:
        if self.link.full and not self.link.dropped:
            return  # the pump does not read the agent now
        seed = len(self.sent) * 7
        data = bytes((seed + n) % 251 for n in range(size))
        if not self.link.dropped and self.wrote_at is not None and self.now - self.wrote_at >= REST:
            rest = int((self.now - self.wrote_at) * 1000).to_bytes(4, "big")
            self.past.append((len(self.sent), frames.REST, rest))
            if not self.progressed and self.link.fd >= 0:
                self.wanted.append(self.past[-1])
        self.wrote_at = self.now
        self.link.output(data, self.now)
        if not self.link.dropped:
            self.sent += data
            if self.link.full:
                self.progress = self.now

    def _event(self, kind: int) -> None:
        self.counter += 1
        payload = self.counter.to_bytes(8, "big")
        self.link.event(kind, payload)
        if self.link.dropped:
            return
        at = len(self.sent)
        if kind == frames.SIZE:
            if len(self.sizes) > 1 and self.sizes[-1][0] == at:
                self.sizes.pop()
            self.sizes.append((at, payload))
        elif kind in (frames.ACTIVITY, frames.JOB, frames.EXIT):
            self.sticky[kind] = payload
        if kind == frames.ACTIVITY:
            self.past.append((at, kind, payload))
        if self.link.fd >= 0:
            self.wanted.append((at, kind, payload))

    def _flush(self) -> None:
        before = self.link.fd
        ended = self.far is not None and self.far.ended
        self.link.flush(self.now)
        if before >= 0 and self.link.fd < 0:
            assert ended

    def _receive(self) -> list[tuple[int, bytes]]:
        return self.link.receive(self.now)

    @rule(seconds=st.sampled_from([0.001, 0.03, 0.2, 1.7, 4.0]))
    def time_passes(self, seconds: float) -> None:
        """The pump's loop: no deadline is missed."""
        end = self.now + seconds
        for _ in range(50):
            due = self.link.deadline()
            assert due is None or math.isfinite(due)
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.link.tick(self.now)
            after = self.link.deadline()
            assert after is None or after > self.now, "a tick at the deadline makes no progress"
        else:
            raise AssertionError("the deadline does not pass")
        self.now = end
        self._flush()

    @precondition(lambda self: self.link.full)
    @rule()
    def stopped_and_continued(self) -> None:
        self.now += 3 * PATIENCE
        self.link.resumed(self.now)
        self.progress = self.now
        self.link.tick(self.now)

    # -- the session

    def _alive(self) -> bool:
        return self.far is not None and not self.far.ended and self.link.fd >= 0

    @precondition(_alive)
    @rule(size=st.one_of(st.integers(1, 64), st.integers(1, 3000)))
    def session_reads(self, size: int) -> None:
        assert self.far is not None
        self.far.read(size, self._output)
        self._check_alive(self.far)
        self._flush()

    @precondition(_alive)
    @rule(part=st.sampled_from([0.0, 0.3, 0.9, 1.0]), checkpoint=st.binary(max_size=3))
    def session_reads_all_and_acknowledges(self, part: float, checkpoint: bytes) -> None:
        """Any offset that it may name, with a checkpoint or without one."""
        far = self.far
        assert far is not None
        self._read_all(far)
        self._acknowledge(part, checkpoint)
        self._flush()

    def _read_all(self, far: Far) -> None:
        while far.drain(self._output):
            self._flush()
        self._check_alive(far)

    def _acknowledge(self, part: float, checkpoint: bytes) -> None:
        far = self.far
        assert far is not None
        if far.hello is None:
            return
        offset = self.acked + int((far.offset - self.acked) * part)
        far.send(frames.pack(frames.ACK, offset.to_bytes(8, "big") + checkpoint))
        assert self._receive() == []
        assert self.link.fd >= 0, "a legal ACK was refused"
        if checkpoint:
            if checkpoint != self.checkpoint:
                self.progress = self.now
            self.checkpoint = checkpoint
        if offset == self.acked:
            return
        self.acked, self.progress, self.progressed = offset, self.now, True
        self.past = [event for event in self.past if event[0] >= offset]
        while len(self.sizes) > 1 and self.sizes[1][0] <= offset:
            self.sizes.pop(0)

    @precondition(_alive)
    @rule(data=st.lists(st.binary(max_size=20), min_size=1, max_size=4))
    def session_asks(self, data: list[bytes]) -> None:
        """Frames for the pump come out in order, however they are cut."""
        assert self.far is not None
        whole = b"".join(frames.pack(frames.WRITE, payload) for payload in data)
        cut = len(whole) // 2
        self.far.send(whole[:cut])
        found = self._receive()
        self.far.send(whole[cut:])
        found += self._receive()
        assert found == [(frames.WRITE, payload) for payload in data]

    @precondition(_alive)
    @rule(
        garbage=st.sampled_from(
            [
                b"\xff" * 64,
                frames.pack(frames.ACK, b"short"),
                frames.pack(frames.ACK, (2**62).to_bytes(8, "big")),
            ]
        )
    )
    def session_sends_garbage(self, garbage: bytes) -> None:
        assert self.far is not None
        self.far.send(garbage)
        assert self._receive() == []
        assert self.link.fd < 0
        assert self.far.pid in self.killed
        self.far.ended = True

    @precondition(_alive)
    @rule(part=st.sampled_from([0.0, 0.5, 1.0]), reaped=st.booleans())
    def session_dies(self, part: float, reaped: bool) -> None:
        """Its last ACK may still be in the socket when its end is noticed."""
        far = self.far
        assert far is not None
        if part:
            self._acknowledge(part, b"last")
        far.sock.close()
        far.ended = True
        if reaped:
            self.session_is_reaped()
        else:
            self._flush()

    @precondition(_alive)
    @rule(part=st.sampled_from([0.0, 0.5, 1.0]))
    def session_is_replaced(self, part: float) -> None:
        """The next one gets what this one has not acknowledged."""
        self.refuse_start = False
        assert self.far is not None
        self._read_all(self.far)
        self.session_dies(part, reaped=True)
        while (due := self.link.deadline()) is not None and self.link.fd < 0:
            self.time_passes(due - self.now)
        if self.link.fd >= 0:
            self._read_all(self.far)

    @precondition(lambda self: self.far is not None and self.far.ended)
    @rule()
    def session_is_reaped(self) -> None:
        assert self.far is not None
        self._receive()
        self.link.reaped(self.far.pid, self.now)
        assert self.link.fd < 0 and self.link.pid != self.far.pid

    @rule(refuse=st.booleans())
    def processes_can_be_had(self, refuse: bool) -> None:
        self.refuse_start = refuse

    # -- the end

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.link.close()
            if self.far is not None:
                self.far.sock.close()
            self.undo()

    def _finish(self) -> None:
        """The agent has ended: a session that reads gets everything, and EXIT at the very end."""
        self._event(frames.EXIT)
        self.refuse_start = False
        if not self.link.finish(self.now):
            assert self.link.dropped
            return
        far = self.far
        assert far is not None
        if far.ended:
            return  # it died just now: what it had not read is lost with it
        while far.drain(self._output) or self.link.unsent:
            self.link.flush(self.now)
        self._check_alive(far)
        assert far.events == self.wanted and far.events[-1][1] == frames.EXIT
        assert self.got == self.sent

    # -- always

    @invariant()
    def what_is_kept_is_bounded(self) -> None:
        assert self.link._kept.in_memory < KEPT + READ
        assert len(self.link._kept) < KEPT + SPOOLED + 2 * READ
        assert sum(map(len, self.link._out)) <= FRAMED_MAX
        assert self.link._kept.base <= self.link._kept.framed or self.link.dropped

    @invariant()
    def dropped_is_dropped(self) -> None:
        link = self.link
        assert self.given_up == bool(link.dropped)
        if not link.dropped:
            return
        assert link.fd < 0 and not link.unsent and link.deadline() is None
        assert not link._kept and not link.full
        if "no progress" in link.dropped:
            assert self.now >= self.progress + PATIENCE

    @invariant()
    def a_dead_session_comes_back(self) -> None:
        link = self.link
        if self.starts and link.fd < 0 and not link.dropped:
            assert link.deadline() is not None
            assert link._retry_at is not None and link._retry_at - self.now <= PAUSE_MAX


class SpoolingMachine(LinkMachine):
    """The same with a spool, on a disk that now and then is full."""

    most_spools = 0

    def store(self) -> Callable[[int], Spool] | None:
        folder = tempfile.TemporaryDirectory(prefix="relay-spool-")
        limits = mock.patch.multiple(output_buffer, SPOOL_MAX=SPOOLED, FILE_MAX=SPOOL_FILE)
        limits.start()
        unpatch = self.undo

        def undo() -> None:
            unpatch()
            limits.stop()
            folder.cleanup()

        def make(offset: int) -> Spool:
            made = Disk(folder.name, offset, lambda: self.room)
            self.spools += 1
            return made

        self.undo = undo
        return make

    @rule(room=st.one_of(st.none(), st.just(0), st.integers(1, 2000)))
    def disk_has_room(self, room: int | None) -> None:
        self.room = room

    @invariant()
    def no_descriptor_is_left_of_what_has_drained(self) -> None:
        kept = self.link._kept
        if not len(kept) or not self.spools:
            assert kept.descriptors() == []

    def teardown(self) -> None:
        super().teardown()
        SpoolingMachine.most_spools = max(SpoolingMachine.most_spools, self.spools)


@pytest.mark.parametrize("machine", [LinkMachine, SpoolingMachine])
def test_any_order_of_events_keeps_the_stream_whole(machine: type[LinkMachine]) -> None:
    run_state_machine_as_test(machine, settings=fuzz(80))
    if machine is SpoolingMachine:
        assert SpoolingMachine.most_spools > 1  # or it has tried nothing new


@pytest.mark.parametrize("part", [0.5, 0.99, 1.0])
def test_a_session_that_acknowledges_what_it_has_not_got_harms_only_itself(part: float) -> None:
    machine = LinkMachine()
    machine.open()
    link, far = machine.link, machine.far
    assert far is not None
    while not link.full:
        link.output(bytes(READ), 0.0)
    link.flush(0.0)
    offset = int(link._kept.framed * part)
    far.send(frames.pack(frames.ACK, offset.to_bytes(8, "big")))
    link.receive(0.0)
    for _ in range(1000):
        link.flush(0.0)
        with contextlib.suppress(OSError):
            far.sock.recv(65536)
        if link.fd < 0 or not link.unsent:
            break
    assert link.fd < 0 or not link.unsent
    machine.undo()
    far.sock.close()
    if link.fd >= 0:
        os.close(link.fd)
