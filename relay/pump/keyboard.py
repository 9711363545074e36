"""The person's activity: classified keys, reported to the session at a sensible rate.

``now`` is in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.protocol import frames
from relay.pump.activity import Classifier

#: Further keys of a draft are reported at most once in this many seconds.
TYPED_EVERY = 0.05
#: After this silence an unfinished sequence was a key by itself (Escape).
ALONE_AFTER = 0.1


class Keyboard:
    """Reports ACTIVITY through ``report(kind)``. ``unreported``: a key whose report is due."""

    def __init__(self, report: Callable[[bytes], None]) -> None:
        self.unreported = False
        self._classifier = Classifier()
        self._report = report
        self._last = frames.ENTERED
        self._typed_at = float("-inf")
        self._flush_at: float | None = None

    @property
    def settled(self) -> bool:
        """Whether no key sequence is unfinished."""
        return self._flush_at is None

    def pressed(self, data: bytes, cooked: bool, now: float) -> None:
        """The terminal sent ``data``."""
        self._flush_at = None
        self._note(self._classifier.feed(data, cooked), now)
        if self._classifier.pending:
            self._flush_at = now + ALONE_AFTER

    def tick(self, cooked: bool, now: float) -> None:
        """Do what is due."""
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = None
            self._note(self._classifier.flush(cooked), now)
        if self.unreported and now >= self._typed_at + TYPED_EVERY:
            self._typed(now)

    def deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        due = self._typed_at + TYPED_EVERY if self.unreported else None
        if self._flush_at is None or due is None:
            return due if self._flush_at is None else self._flush_at
        return min(due, self._flush_at)

    def _note(self, kinds: list[bytes], now: float) -> None:
        for kind in kinds:
            if kind != frames.TYPED:
                self.unreported = False
                self._last = kind
                self._report(kind)
            elif self._last == frames.TYPED and now < self._typed_at + TYPED_EVERY:
                self.unreported = True
            else:
                self._typed(now)

    def _typed(self, now: float) -> None:
        self.unreported = False
        self._typed_at = now
        self._last = frames.TYPED
        self._report(frames.TYPED)
