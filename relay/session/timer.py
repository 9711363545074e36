"""Wakes a session up when something of it is due, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable


class Alarm:
    """One timer of the running loop. ``ring(now)`` is called at the first of ``deadlines()``.

    Those are times of ``clock`` in seconds, None where there is none. They are asked for whenever
    it is set, and once more after it has rung.
    """

    def __init__(
        self,
        deadlines: Callable[[], Iterable[float | None]],
        ring: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._deadlines = deadlines
        self._ring = ring
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        """Ring at what is due now; an earlier setting is forgotten."""
        self.cancel()
        due = min((d for d in self._deadlines() if d is not None), default=None)
        if due is not None:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self._over)

    def cancel(self) -> None:
        """Do not ring until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _over(self) -> None:
        self._timer = None
        self._ring(self._clock())
        self.set()
