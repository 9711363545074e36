"""How much of the agent's output the session has handled, and when it acknowledges that. Pure.

The pump forgets acknowledged output, so each acknowledgement carries a checkpoint from which the
next session could continue. While much waits for the broker or for handlers, and makes progress,
the session does not read the pump: the pump keeps the output and, when it can keep no more, slows
the agent down.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from relay.protocol import frames
from relay.session.session_commands import (
    Acknowledge,
    DriverCommand,
    PersonNote,
    ReadPump,
)

#: Output is acknowledged after this many bytes (half of what the pump keeps), or this many seconds
#: after the first of it. Each acknowledgement costs a checkpoint, some milliseconds.
ACK_BYTES = 4 * 1024 * 1024
ACK_SECONDS = 0.1
#: How long the pump may stay unread without progress, and how soon progress is acknowledged: the
#: pump drops a session that makes none for five seconds.
PAUSE_MAX = 1.0


class Checkpointed(Protocol):
    """A service with a state that a next session needs."""

    def state(self) -> Any: ...


class AckTracker:
    """Counts the output from ``offset`` on and says when it is to be acknowledged."""

    def __init__(self, offset: int) -> None:
        self._offset = self._acked = offset
        self._ack_at: float | None = None  # None: nothing has changed since the last one
        self._resume_at: float | None = None  # None: the pump is read
        self._read = False  # whether something was read since the last pause

    def output(self, size: int, now: float) -> None:
        """``size`` bytes of output were read."""
        self._offset += size
        self._read = True
        self.changed(now)

    def changed(self, now: float) -> None:
        """Note that the last checkpoint is out of date."""
        if self._offset - self._acked >= ACK_BYTES:
            self._ack_at = now
        elif self._ack_at is None:
            self._ack_at = now + ACK_SECONDS

    def due(self, now: float) -> bool:
        """Whether to acknowledge now."""
        return self._ack_at is not None and now >= self._ack_at

    def acknowledge(self, checkpoint: bytes) -> Iterator[DriverCommand]:
        """Acknowledge all output until now."""
        self._acked, self._ack_at = self._offset, None
        if len(checkpoint) > frames.FRAME_MAX - 8:
            # The pump would end this session for it, and the next one for the same reason.
            yield PersonNote("too much waits to be kept across a restart of relay's session")
            checkpoint = b""
        yield Acknowledge(self._offset, checkpoint)

    def pace(self, busy: bool, now: float, *, moved: bool = False) -> Iterator[DriverCommand]:
        """Read no more while much waits (``busy``), but not for long unless it goes on (``moved``).

        A pump that is not read is deaf: a handler that hangs must not cause that.
        """
        if not busy:
            yield from self._go_on()
        elif self._resume_at is not None:
            if moved:
                self._resume_at = now + PAUSE_MAX
                self._ack_at = now + PAUSE_MAX if self._ack_at is None else self._ack_at
        elif self._read:
            self._read = False
            self._resume_at = now + PAUSE_MAX
            yield ReadPump(False)

    def _go_on(self) -> Iterator[DriverCommand]:
        if self._resume_at is not None:
            self._resume_at = None
            yield ReadPump(True)

    def deadline(self) -> float | None:
        """When ``tick`` is due, or an acknowledgement."""
        due = (self._ack_at, self._resume_at)
        return min((one for one in due if one is not None), default=None)

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Time has passed."""
        if self._resume_at is not None and now >= self._resume_at:
            yield from self._go_on()
