"""Whether a pager or an editor has the agent's terminal: it shows text, and says nothing.

A find on a page that somebody leafs through was said by nobody, keys pressed there are no draft,
and what is typed there are commands (``!`` runs one in less, more and vi). The kernel knows which
program is in front; what the terminal shows does not tell.
"""

from __future__ import annotations

from collections.abc import Callable

#: The kernel is asked no oftener than after this many seconds, and this often while one is there.
LOOK_GAP, LOOK_AGAIN = 0.01, 0.25
#: Within this many seconds after one was there, the session is told of the key that has ended it.
KEY_LATE = 0.5


class PagerWatch:
    """Remembers what ``in_front`` said last of the agent, the process ``pid``: None is unknown."""

    def __init__(
        self, in_front: Callable[[int], bool | None] = lambda pid: None, pid: int = 0
    ) -> None:
        self._in_front, self._pid = in_front, pid
        self._looked_at = self._seen_at = float("-inf")
        self._there = False

    def there(self, now: float, *, gap: float = LOOK_GAP) -> bool:
        """Whether one is there; asked again if ``gap`` seconds have gone since."""
        if now - self._looked_at >= gap:
            self._looked_at = now
            found = self._in_front(self._pid)
            self._there = self._there if found is None else found
            self._seen_at = now if self._there else self._seen_at
        return self._there

    def takes_key(self, now: float) -> bool:
        """Whether a key that was just pressed is for it, be it the one that has ended it."""
        return self.there(now, gap=0.0) or now - self._seen_at < KEY_LATE

    def deadline(self) -> float | None:
        """When to ask again without output: one may end in silence."""
        return self._looked_at + LOOK_AGAIN if self._there else None
