"""The agent's last words: it may go on for a moment after the person's terminal has gone.

Only where the session asked for it, because hooks want to have something said at the end. Pure.
"""

from __future__ import annotations

#: The longest that a session can ask for, in seconds.
LONGEST = 60.0


class GraceTimer:
    """One run's. Times are of the monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._granted = 0.0
        self._until: float | None = None

    def grant(self, seconds: float) -> None:
        """The session asks for so much time, or says with 0 that no more is needed."""
        self._granted = min(seconds, LONGEST)
        if self._until is not None and not seconds:
            self._until = 0.0

    def begin(self, now: float) -> bool:
        """The person's terminal goes: whether the agent's waits. Only the first time."""
        if self._until is not None or not self._granted:
            return False
        self._until = now + self._granted
        return True

    def holds(self, now: float) -> bool:
        """Whether the agent goes on without its person at this moment."""
        return self._until is not None and now < self._until

    def over(self, now: float) -> bool:
        """Whether its time has come; True once."""
        if self._until is None or self._until < 0 or now < self._until:
            return False
        self._until = -1.0
        return True

    def deadline(self) -> float | None:
        """When ``over`` has something to say; None for never."""
        return None if self._until is None or self._until < 0 else self._until
