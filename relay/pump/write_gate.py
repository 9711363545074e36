"""The person's keys and the session's words, both on their way into the agent's terminal.

The session's words go in whole: keys wait behind them, for at most ``HOLD`` seconds. Nothing is
typed if the person pressed a key after the session last looked. No I/O: bytes to write come out of
``head``; ``now`` is in seconds of a monotonic clock.
"""

from __future__ import annotations

from relay.protocol.frames import ANY_SEQUENCE

#: Keys wait at most so long for words that are being typed.
HOLD = 2.0
#: Keys that are not read from the terminal while so many wait.
KEYS_MAX = 64 * 1024
#: Words waiting for their turn; a further WRITE is refused.
QUEUE_MAX = 16
#: Ids of words that are whole, kept for the next session: it must not type them again.
FINISHED_MAX = 1024


class Words:
    """One WRITE frame: its id, the sequence it depends on, and what is left of it."""

    __slots__ = ("number", "sequence", "left", "begun")

    def __init__(self, number: int, sequence: int, text: bytes) -> None:
        self.number = number
        self.sequence = sequence
        self.left = bytearray(text)
        self.begun: float | None = None


class Typing:
    """Decides which bytes go into the agent's terminal next."""

    def __init__(self) -> None:
        self.keys = bytearray()
        self.sequence = 0  # of the last ACTIVITY
        self.unreported = False  # keys were pressed after that ACTIVITY
        self.finished: list[int] = []  # the ids of the last words that went in whole
        self._queue: list[Words] = []

    @property
    def writing(self) -> bool:
        """Whether words are on their way, the first byte gone."""
        return bool(self._queue) and self._queue[0].begun is not None

    @property
    def waiting(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.keys or self._queue)

    @property
    def certain(self) -> list[int]:
        """The ids of words that went in whole, or will: what has begun is always finished."""
        return [*self.finished, self._queue[0].number] if self.writing else self.finished

    def words(self, number: int, sequence: int, text: bytes) -> bool:
        """Queue the words of a WRITE. False when too many wait already."""
        if len(self._queue) >= QUEUE_MAX:
            return False
        self._queue.append(Words(number, sequence, text))
        return True

    def forget(self) -> None:
        """The session that asked has gone: what has not begun is not typed; the next asks anew."""
        del self._queue[1 if self.writing else 0 :]

    def refused(self, settled: bool) -> list[int]:
        """Take out and return the ids at the head that must not be typed any more.

        ``settled``: no key sequence is unfinished; otherwise nothing is decided yet.
        """
        refused = []
        while settled and self._queue and not self.writing and self._stale(self._queue[0]):
            refused.append(self._queue.pop(0).number)
        return refused

    def head(self, now: float, settled: bool) -> bytearray | None:
        """What to write now; ``taken`` says how much of it went. None when there is nothing."""
        if self._queue:
            first = self._queue[0]
            if first.begun is not None:
                held = now < first.begun + HOLD
                return first.left if held or not self.keys else self.keys
            if settled and not self.keys:
                first.begun = now
                return first.left
        return self.keys or None

    def taken(self, head: bytearray, count: int) -> int | None:
        """``count`` bytes of ``head`` were written. The id of the words that are whole now."""
        del head[:count]
        if self._queue and head is self._queue[0].left and not head:
            number = self._queue.pop(0).number
            self.finished.append(number)
            del self.finished[:-FINISHED_MAX]
            return number
        return None

    def deadline(self, now: float) -> float | None:
        """When keys stop waiting for words; None when they do not, or no longer."""
        if self.keys and self._queue and self._queue[0].begun is not None:
            until = self._queue[0].begun + HOLD
            return until if now < until else None
        return None

    def _stale(self, words: Words) -> bool:
        if words.sequence == ANY_SEQUENCE:
            return False
        return self.unreported or words.sequence < self.sequence
