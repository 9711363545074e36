"""How far a session has dealt with the agent's output, and that the pump knows it.

What is acknowledged the pump forgets, so each acknowledgement carries a checkpoint from which a
next session could go on. While much waits for the broker the pump is not read: it keeps the output
and, when it cannot keep more, slows the agent down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from relay.protocol import frames

#: Output is acknowledged after this many bytes (half of what the pump keeps), or this many seconds
#: after the first of it. Each acknowledgement costs a checkpoint, some milliseconds.
ACK_BYTES = 4 * 1024 * 1024
ACK_SECONDS = 0.1
#: How long the agent may be kept waiting for the broker at a time; the pump gives a session up that
#: makes no progress for five seconds.
PAUSE_MAX = 1.0


class Link(Protocol):
    """The part of the pump link that this needs."""

    def ack(self, offset: int, checkpoint: bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def farewell(self, seconds: float) -> None: ...


class Progress:
    """Counts the output and acknowledges it. ``busy()``: no more should be heard for the moment."""

    def __init__(
        self,
        link: Link,
        offset: int,
        checkpoint: Callable[[], bytes],
        note: Callable[[str], None],
        *,
        busy: Callable[[], bool],
    ) -> None:
        self._link = link
        self._checkpoint = checkpoint
        self._note = note
        self._busy = busy
        self._offset = self._acked = offset
        self._changed = False  # something has been heard since the last ACK
        self._pause: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, size: int) -> None:
        """``size`` bytes of output, or with 0 something else: the checkpoint is out of date."""
        self._offset += size
        self._changed = True
        if self._offset - self._acked >= ACK_BYTES:
            self.acknowledge()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ACK_SECONDS, self.acknowledge)

    def acknowledge(self) -> None:
        """Tell the pump now, if there is anything to tell."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._changed:
            return
        self._acked = self._offset
        self._changed = False
        checkpoint = self._checkpoint()
        if len(checkpoint) > frames.FRAME_MAX - 8:
            # The pump would end this session for it, and the next one for the same reason.
            self._note("too much waits to be kept across a restart of relay's session")
            checkpoint = b""
        self._link.ack(self._offset, checkpoint)

    def slow_down(self) -> None:
        """Hear no more while much waits for the broker; but not for long, should it be away."""
        if self._pause is None and self._busy():
            self._link.pause_reading()
            self._pause = asyncio.get_running_loop().call_later(PAUSE_MAX, self.go_on)

    def go_on(self) -> None:
        """Hear again."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._link.resume_reading()

    def stop(self) -> None:
        """Nothing more will be heard."""
        for timer in (self._pause, self._timer):
            if timer is not None:
                timer.cancel()
