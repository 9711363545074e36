"""When the session gets its copy of what the agent wrote. Pure.

In a quiet moment; where none comes, a moment later: what is heard soon costs nobody anything then.
A flood goes to the terminal first, for the session's work on it would slow it down: the session
hears it when the agent rests, or has flooded for long.
"""

from __future__ import annotations

#: Where no quiet moment comes, the session gets its copy after so many seconds, and with so many
#: bytes waiting after some more.
_LATEST = 0.010
_MUCH = 256 * 1024
_MUCH_LATEST = 0.250
#: A flood: so many bytes a second, seen for so many seconds.
FLOOD_RATE = 8 * 1024 * 1024
_WINDOW = 0.050
#: For so many seconds a session waits for a flood to end; then it hears without a rest, until it is
#: no more than so many bytes behind.
FLOOD_LATEST = 10.0
_BEHIND = 1024 * 1024


class Pace:
    """One run's; times are of the monotonic clock."""

    def __init__(self) -> None:
        self._informed_at = 0.0
        self._behind_at = 0.0  # since when the session has been behind
        self._flooding = False
        self._seen_at = 0.0
        self._seen = 0

    def due(self, written: int, backlog: int, convenient: bool, now: float) -> bool:
        """Whether the session is to get ``backlog`` bytes now, of ``written`` in all.

        ``convenient``: nothing else is to be done just now, or the session is awake anyway.
        """
        self._look(written, now)
        if backlog < _BEHIND:
            self._behind_at = now
        if self._flooding and now - self._behind_at < FLOOD_LATEST:
            return False
        patience = _MUCH_LATEST if backlog >= _MUCH else _LATEST
        if not convenient and now - self._informed_at < patience:
            return False
        self._informed_at = now
        return True

    def _look(self, written: int, now: float) -> None:
        passed = now - self._seen_at
        if passed >= _WINDOW:
            self._flooding = written - self._seen >= FLOOD_RATE * passed
            self._seen_at, self._seen = now, written
