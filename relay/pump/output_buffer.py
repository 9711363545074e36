"""What the agent wrote and the session has not dealt with yet, as it was read.

Offsets count the agent's bytes from its start. What is kept lies between ``base`` and ``end``; what
lies before ``framed`` was handed out to the session that there is now. A little is kept in memory;
what is more goes, oldest first, into a store, which is made when it is needed and closed when it
has drained. Pure, but for what the store does.
"""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Store(Protocol):
        """Bytes in a row, whose offsets are the stream's; see ``spool.Spool``."""

        def append(self, pieces: list[bytes]) -> int:
            """Take pieces; returns how many bytes of them were taken. Raises nothing."""

        def read(self, offset: int, most: int) -> bytes:
            """At least one byte from ``offset`` on. Raises OSError."""

        def drop(self, offset: int) -> None:
            """What stands before ``offset`` is not needed any more."""

        def descriptors(self) -> list[int]:
            """What a fork must keep open."""

        def close(self) -> None:
            """Give everything back."""

    #: Make a store that begins at this offset. Raises OSError or ImportError.
    MakeStore = Callable[[int], Store]

#: Smaller pieces are put together, where nothing happened between them.
_SMALL = 2048
#: Pieces handed out at once: writev(2) takes 1024 buffers.
_PIECES_MAX = 512
#: Parts of what memory may hold: with so much a store is made, and with so much it gets the next.
_SPILL = 4
_BATCH = 128


class OutputBuffer:
    """A stream in pieces: adding, handing out and dropping copy nothing that is large.

    ``memory_max``: with so many bytes in memory it is ``full``, and more should not be added.
    """

    def __init__(self, memory_max: int, make_store: MakeStore | None = None) -> None:
        self.base = 0
        self.framed = 0
        self.end = 0
        self._memory_max = memory_max
        self._make_store = make_store
        self._store: Store | None = None
        self._stored = 0  # the end of what is in the store; what follows is in memory
        self._handed: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._joint = 0
        self._spill_at = memory_max // _SPILL  # bytes in memory

    def __len__(self) -> int:
        return self.end - self.base

    @property
    def in_memory(self) -> int:
        """Bytes that are not in the store."""
        return self.end - self._stored

    @property
    def full(self) -> bool:
        """Whether nothing more should be added."""
        return self.end - self._stored >= self._memory_max

    def add(self, data: bytes) -> None:
        """The agent wrote ``data``."""
        waiting = self._waiting
        if waiting and self._joint != self.end and len(waiting[-1]) + len(data) <= _SMALL:
            waiting[-1] += data
        else:
            waiting.append(data)
        self.end += len(data)
        if self.end - self._stored >= self._spill_at and self._make_store is not None:
            self._spill()

    def mark(self) -> int:
        """The end now; ``hand_out`` can stop there."""
        self._joint = self.end
        return self.end

    def hand_out(self, most: int, until: int | None) -> list[bytes]:
        """The next pieces, about ``most`` bytes together; none goes beyond the mark ``until``.

        Raises OSError when the store cannot be read.
        """
        if self._store is not None and self.framed < self._stored:
            end = self._stored if until is None else min(until, self._stored)
            if self.framed >= end:
                return []
            data = self._store.read(self.framed, min(most, end - self.framed))
            self.framed += len(data)
            return [data]
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
        if offset <= self.base:
            return
        self.base = offset
        if self._store is not None:
            if offset < self._stored:
                self._store.drop(offset)
            else:
                self._close()
        if offset > self._stored:
            _cut(self._handed, offset - self._stored)
            self._stored = offset
        if self._store is not None and self.full:
            self._spill()  # there may be room now

    def clear(self) -> None:
        """Keep nothing: nobody will hear it."""
        self._close()
        self.base = self.framed = self._stored = self.end
        self._handed.clear()
        self._waiting.clear()

    def descriptors(self) -> list[int]:
        """What a fork that goes on handing out must keep open."""
        return [] if self._store is None else self._store.descriptors()

    def close(self) -> None:
        """Another process hands out the rest, or nobody."""
        self._close()

    def _spill(self) -> None:
        """Let the store take what is in memory. What it does not take stays."""
        taken = 0
        try:
            if self._store is None and self._make_store is not None:
                self._store = self._make_store(self._stored)
        except (OSError, ImportError):
            pass  # as if it took nothing
        if self._store is not None:
            taken = self._store.append([*self._handed, *self._waiting])
        self._stored += taken
        _cut(self._waiting, _cut(self._handed, taken))
        batch = self._memory_max // _BATCH
        # A store that takes nothing, as on a full disk, is asked again after some more.
        self._spill_at = batch if not self.in_memory else self.in_memory + 4 * batch

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None
        self._spill_at = self._memory_max // _SPILL


def _cut(pieces: deque[bytes], count: int) -> int:
    """Remove ``count`` bytes in front, or all; how many are left to be removed elsewhere."""
    while pieces and len(pieces[0]) <= count:
        count -= len(pieces.popleft())
    if pieces and count:
        pieces[0] = pieces[0][count:]
        count = 0
    return count
