"""The pump's link to the session, which keeps the agent's output until it is acknowledged.

The session may stall, crash or be killed at any moment. Output since its last ACK is kept: at most
``KEPT_MAX`` bytes in memory, and what the store takes. The next session gets it again. When all is
full the pump stops reading the agent, and after ``PATIENCE`` seconds without progress the session
is dropped for good.
No clock is read here: ``now`` is in seconds of a monotonic clock.
"""

from __future__ import annotations

import os

from relay.core import signals
from relay.protocol import frames
from relay.pump.output_buffer import OutputBuffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from relay.pump.output_buffer import MakeStore

    #: Start a session: returns (socket, pid). Raises OSError.
    Start = Callable[[], tuple[int, int]]
    #: The HELLO payload for a session that begins at this offset, with this size, after n restarts.
    Hello = Callable[[int, bytes, int], bytes]

#: Without a store this is a third of a second's flood: the agent need not stand still for a session
#: that starts (it reads nothing for 300 ms). A store gets what is more than a quarter of it.
KEPT_MAX = 32 * 1024 * 1024
PATIENCE = 5.0
#: The pause before the next session, in seconds: doubled with each death up to the second number,
#: and short again after a session that has lived for so long.
_PAUSE, PAUSE_MAX = 0.1, 60.0
_DOUBLINGS_MAX = 16
#: Output bytes in one frame, and events in one write.
_CHUNK = 256 * 1024
#: Bytes written before the pump looks at the person's keys again.
_FLUSH_MAX = 4 * 1024 * 1024
_EVENTS_AT_ONCE = 256
#: Events waiting for the socket; beyond it the oldest keys, activity, size or rest is dropped.
#: Answers are never more than the words that the pump has taken.
_EVENTS_MAX = 4096
#: A rest of the agent's as short as this ends what it said, in seconds. At most this many rests
#: and key strokes are kept beside the output, for a session that gets it again; the latest ones.
_REST_MIN = 0.02
_PAST_MAX = 1024
_SIZES_MAX = 1024

Frame = tuple[int, bytes]


class SessionLink:
    """One agent's connection to its sessions, one after the other.

    ``give_up`` is called when no further session will be started during the run.
    """

    def __init__(
        self,
        start: Start,
        hello: Hello,
        size: bytes,
        give_up: Callable[[], None] | None = None,
        make_store: MakeStore | None = None,
        kept_max: int = KEPT_MAX,
    ) -> None:
        self.fd = -1
        self.dropped = ""  # why no session will be started any more
        self._start = start
        self._hello = hello
        self._give_up = give_up
        self.pid = 0  # of the session; 0 once it is reaped
        self._kept = OutputBuffer(kept_max, make_store)
        self._checkpoint = b""
        self.blocked = False  # the socket takes nothing now
        self.fresh = False  # the session has not got a byte yet
        self._out: list[bytes | memoryview] = []  # what is left of the frame under way
        self._left = 0  # ... of the output in it, in bytes
        self._events: list[tuple[int, int, bytes]] = []  # (offset, kind, payload), in order
        self._base_size = size
        self._sizes: list[tuple[int, bytes]] = []
        self._past: list[tuple[int, int, bytes]] = []  # (offset, REST or ACTIVITY, payload)
        self._written_at: float | None = None  # when the agent last wrote something
        self._sticky: dict[int, bytes] = {}  # the last ACTIVITY, JOB, EXIT: a next session's too
        self._decoder = frames.Decoder()
        self._deaths = 0  # one soon after the other
        self._opened_at = 0.0
        self._restarts = -1
        self._retry_at: float | None = None
        #: When the session last dealt with something, or the buffer filled.
        self._progress = 0.0
        self._was_full = False
        self._starting = True  # this session has not dealt with anything yet

    # -- what the pump has for the session

    def output(self, data: bytes, now: float) -> None:
        """Keep and send what the agent wrote."""
        if self.dropped:
            return
        if self._written_at is not None and now - self._written_at >= _REST_MIN:
            rest = min(int((now - self._written_at) * 1000), 0xFFFFFFFF).to_bytes(4, "big")
            self._remember(frames.REST, rest)
            if self._starting and self.fd >= 0:
                # It will read this later, and all at once.
                self._queue(frames.REST, rest)
        self._written_at = now
        self._kept.add(data)
        if self.full and not self._was_full:
            self._was_full = True
            self._progress = now

    def event(self, kind: int, payload: bytes) -> None:
        """Send a frame in its place between the bytes of the output."""
        if self.dropped:
            return
        if kind == frames.SIZE:
            end = self._kept.mark()
            if self._sizes and self._sizes[-1][0] == end:
                self._sizes.pop()
            self._sizes.append((end, payload))
            del self._sizes[:-_SIZES_MAX]
        elif kind in (frames.ACTIVITY, frames.JOB, frames.EXIT):
            self._sticky[kind] = payload
        if kind == frames.ACTIVITY:
            self._remember(kind, payload)
        if self.fd < 0:
            return  # a next session gets what still matters from the history
        self._queue(kind, payload)

    def _queue(self, kind: int, payload: bytes) -> None:
        self._events.append((self._kept.mark(), kind, payload))
        if len(self._events) > _EVENTS_MAX:
            self._forget_event()

    def _remember(self, kind: int, payload: bytes) -> None:
        """Keep what a session that gets the output again must get in its place."""
        self._past.append((self._kept.mark(), kind, payload))
        del self._past[:-_PAST_MAX]

    @property
    def full(self) -> bool:
        """Whether the agent must not be read now."""
        return self._kept.full

    @property
    def unsent(self) -> bool:
        """Whether something waits for the socket."""
        return bool(self._out or self._events) or self.backlog > 0

    @property
    def backlog(self) -> int:
        """Bytes of output that are not in a frame yet."""
        return self._kept.end - self._kept.framed

    @property
    def written(self) -> int:
        """Bytes that the agent has written; no more are counted once the session is dropped."""
        return self._kept.end

    # -- the session's life

    def open(self, now: float) -> None:
        """Start a session, from the last ACK on. A failure counts as its death."""
        self._retry_at = None
        self._kill()  # one that closed its connection had until now to end by itself
        self._restarts += 1
        self._opened_at = now
        self._kept.take_back()
        self._starting = True
        self._was_full, self._progress = False, now  # it has all of PATIENCE, whatever was before
        self._forget_frame()
        self._decoder = frames.Decoder()
        self.fresh = True
        try:
            self.fd, self.pid = self._start()
        except OSError:
            self._died(now)
            return
        hello = self._hello(self._kept.base, self._base_size, self._restarts)
        self._out.append(frames.pack(frames.HELLO, hello))
        self._out.append(frames.pack(frames.CHECKPOINT, self._checkpoint))
        end = self._kept.mark()
        sizes = [(at, frames.SIZE, size) for at, size in self._sizes]
        self._events = sorted(sizes + self._past, key=lambda event: event[0])
        self._events += [(end, kind, payload) for kind, payload in self._sticky.items()]

    def flush(self, now: float) -> None:
        """Write what the socket takes, or a good part of it; never blocks."""
        self.blocked = self.fresh = False
        left = _FLUSH_MAX
        while self.fd >= 0 and left > 0 and (self._out or self._fill()):
            try:
                written = os.writev(self.fd, self._out)
            except BlockingIOError:
                self.blocked = True
                return
            except OSError:
                self._died(now)
                return
            self._wrote(written)
            left -= written

    def receive(self, now: float) -> list[Frame]:
        """The frames for the pump that have come in; ACKs are dealt with here."""
        found: list[Frame] = []
        for _ in range(16):
            if self.fd < 0:
                break
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            except OSError:
                self._died(now)
                break
            if not data:
                self._died(now)
                break
            try:
                received = self._decoder.feed(data)
                for kind, payload in received:
                    if kind == frames.ACK:
                        self._acknowledged(payload, now)
                    else:
                        found.append((kind, payload))
            except frames.FrameError:
                self.broken(now)
                break
        return found

    def broken(self, now: float) -> None:
        """The session sent something senseless: end it and start another."""
        self._died(now)
        self._kill()

    def reaped(self, pid: int, now: float) -> None:
        """The process ``pid`` has ended; what it wrote before has been received."""
        if pid == self.pid:
            self.pid = 0
            if self.fd >= 0:
                self._died(now)

    def tick(self, now: float) -> None:
        """Do what is due: start a session again, or drop one that makes no progress."""
        if self.dropped:
            return
        if self.full and now >= self._progress + PATIENCE:
            why = "it made no progress" if self.fd >= 0 else "its buffer was full, and none ran,"
            self.drop(f"{why} for {PATIENCE:.0f} s")
        elif self._retry_at is not None and now >= self._retry_at:
            self.open(now)

    def deadline(self) -> float | None:
        """When ``tick`` has something to do; None for never."""
        if self.dropped:
            return None
        times = [] if self._retry_at is None else [self._retry_at]
        if self.full:
            times.append(self._progress + PATIENCE)
        return min(times, default=None)

    def writable(self) -> None:
        """Poll says that the socket takes more."""
        self.blocked = False

    def resumed(self, now: float) -> None:
        """We were stopped ourselves: that time does not count against the session."""
        self._progress = now

    def orphan(self) -> list[int]:
        """This process is a copy of the pump: the session is not its child to kill.

        Returns the descriptors that it needs.
        """
        self.pid = 0
        return [self.fd, *self._kept.descriptors()]

    def close(self) -> None:
        """Close what is open here: another process has taken over, or it is over."""
        self._close()
        self._kept.close()

    def drop(self, why: str) -> None:
        """Go on without a session for the rest of the run."""
        self.dropped = why
        self._close()
        self._kill()
        self._kept.clear()
        self._events = []
        self._sizes = []
        self._past = []
        self._forget_frame()
        if self._give_up is not None:
            self._give_up()

    def finish(self, now: float) -> bool:
        """Send what the socket takes; whether a session is there for ``spawn.leave_behind``."""
        if self.dropped:
            return False
        if self.fd < 0:
            self.open(now)
        self.flush(now)
        if self.fd < 0 and not self.dropped:
            self.open(now)
            self.flush(now)
        return self.fd >= 0

    # -- inside

    def _fill(self) -> bool:
        """``_next_frame``, where what was kept can be read."""
        try:
            return self._next_frame()
        except OSError as error:
            self.drop(f"what was kept for it cannot be read: {error.strerror or error}")
            return False

    def _next_frame(self) -> bool:
        """Begin the next frame of output, behind the events that come before it."""
        kept, events = self._kept, self._events
        while events and events[0][0] <= kept.framed:
            if len(self._out) >= _EVENTS_AT_ONCE:
                return True
            _, kind, payload = events.pop(0)
            self._out.append(frames.pack(kind, payload))
        pieces = kept.hand_out(_CHUNK, events[0][0] if events else None)
        if pieces:
            self._left = sum(map(len, pieces))
            self._out += [frames.header(frames.OUTPUT, self._left), *pieces]
        return bool(self._out)

    def _wrote(self, count: int) -> None:
        """``count`` bytes have gone."""
        whole = 0
        for buffer in self._out:
            if len(buffer) > count:
                break
            count -= len(buffer)
            whole += 1
        del self._out[:whole]
        if count:
            self._out[0] = memoryview(self._out[0])[count:]
        self._left = min(self._left, sum(map(len, self._out)))

    def _forget_frame(self) -> None:
        self.blocked = False
        self._out = []
        self._left = 0

    def _forget_event(self) -> None:
        for index, (_, kind, _payload) in enumerate(self._events):
            if kind in (frames.ACTIVITY, frames.KEYS, frames.SIZE, frames.REST):
                del self._events[index]
                return

    def _acknowledged(self, payload: bytes, now: float) -> None:
        if len(payload) < 8:
            raise frames.FrameError("an ACK without an offset")
        offset = int.from_bytes(payload[:8], "big")
        kept = self._kept
        sent = kept.framed - self._left
        if not kept.base <= offset <= sent:
            raise frames.FrameError(f"an ACK for {offset}, not in {kept.base}..{sent}")
        if len(payload) > 8:
            if self._checkpoint != payload[8:]:
                self._progress = now  # it works off what it has read, and reads more after that
            self._checkpoint = payload[8:]
        if offset == kept.base:
            return
        kept.drop(offset)
        self._progress = now
        self._starting = False
        self._was_full = self.full
        while self._past and self._past[0][0] < offset:
            del self._past[0]
        while self._sizes and self._sizes[0][0] <= offset:
            self._base_size = self._sizes.pop(0)[1]

    def _died(self, now: float) -> None:
        self._close()
        self._events = []
        self._forget_frame()
        self._deaths = 1 if now - self._opened_at >= PAUSE_MAX else self._deaths + 1
        pause = _PAUSE * 2 ** min(self._deaths - 1, _DOUBLINGS_MAX)
        self._retry_at = now + min(pause, PAUSE_MAX)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _kill(self) -> None:
        if self.pid:
            # Ours and not yet reaped, so the number cannot belong to anybody else.
            signals.kill(self.pid, signals.signal.SIGKILL)
