"""What the agent wrote and the session has not dealt with yet, as it was read.

Offsets count the agent's bytes from its start. What is kept lies between ``base`` and ``end``; what
lies before ``framed`` was handed out to the session that there is now. Pure.
"""

from __future__ import annotations

from collections import deque

#: Smaller pieces are put together, where nothing happened between them.
_SMALL = 2048
#: Pieces handed out at once: writev(2) takes 1024 buffers.
_PIECES_MAX = 512


class Kept:
    """A stream in pieces: adding, handing out and dropping copy nothing that is large."""

    def __init__(self) -> None:
        self.base = 0
        self.framed = 0
        self.end = 0
        self._handed: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._joint = 0

    def __len__(self) -> int:
        return self.end - self.base

    def add(self, data: bytes) -> None:
        """The agent wrote ``data``."""
        waiting = self._waiting
        if waiting and self._joint != self.end and len(waiting[-1]) + len(data) <= _SMALL:
            waiting[-1] += data
        else:
            waiting.append(data)
        self.end += len(data)

    def mark(self) -> int:
        """The end now; ``hand_out`` can stop there."""
        self._joint = self.end
        return self.end

    def hand_out(self, most: int, until: int | None) -> list[bytes]:
        """The next pieces, about ``most`` bytes together; none goes beyond the mark ``until``."""
        waiting = self._waiting
        pieces: list[bytes] = []
        size = 0
        while waiting and size < most and len(pieces) < _PIECES_MAX and self.framed != until:
            piece = waiting.popleft()
            pieces.append(piece)
            size += len(piece)
            self.framed += len(piece)
        self._handed.extend(pieces)
        return pieces

    def take_back(self) -> None:
        """Another session gets it all, from ``base`` on."""
        self._waiting.extendleft(reversed(self._handed))
        self._handed.clear()
        self.framed = self.base

    def drop(self, offset: int) -> None:
        """What stands before ``offset``, which was handed out, is dealt with."""
        handed = self._handed
        while handed and self.base + len(handed[0]) <= offset:
            self.base += len(handed.popleft())
        if self.base < offset:
            handed[0] = handed[0][offset - self.base :]
            self.base = offset

    def clear(self) -> None:
        """Keep nothing: nobody will hear it."""
        self.base = self.framed = self.end
        self._handed.clear()
        self._waiting.clear()
