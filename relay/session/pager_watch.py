"""Whether a pager or an editor has the agent's terminal: it shows text, and says nothing.

A directive on a page in a pager was said by nobody. Keys pressed there are no draft, and typed text
would be commands (``!`` runs a program in less, more and vi). The kernel knows which program is in
front; the screen does not show it.
"""

from __future__ import annotations

from collections.abc import Callable

#: The kernel is asked at most this often, and exactly this often while a pager is there. Seconds.
LOOK_GAP, LOOK_AGAIN = 0.01, 0.25
#: A key within so many seconds after a pager was there may be the one that ended it.
KEY_LATE = 0.5


class PagerWatch:
    """Caches the answer of ``in_front`` for the agent, the process ``pid``; None: unknown."""

    def __init__(
        self, in_front: Callable[[int], bool | None] = lambda pid: None, pid: int = 0
    ) -> None:
        self._in_front, self._pid = in_front, pid
        self._looked_at = self._seen_at = float("-inf")
        self._there = False

    def there(self, now: float, *, gap: float = LOOK_GAP) -> bool:
        """Whether a pager is there; looks again if the answer is older than ``gap`` seconds."""
        if now - self._looked_at >= gap:
            self._looked_at = now
            found = self._in_front(self._pid)
            self._there = self._there if found is None else found
            self._seen_at = now if self._there else self._seen_at
        return self._there

    def takes_key(self, now: float) -> bool:
        """Whether a key that was just pressed is for a pager, even if it has ended it."""
        return self.there(now, gap=0.0) or now - self._seen_at < KEY_LATE

    def deadline(self) -> float | None:
        """When to look again without output: a pager may end silently."""
        return self._looked_at + LOOK_AGAIN if self._there else None
