"""How far a verb has come: a line on a terminal that is written over, and gone at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import IO

#: Seconds between two redraws.
EVERY = 0.1
_COLUMNS = 80


class Bar:
    """A line on ``stream`` when ``wanted``, at most every EVERY seconds of ``clock``.

    Only carriage returns and spaces are used, so that any terminal shows it. A stream that cannot
    be written any more ends the drawing, not the verb.
    """

    def __init__(
        self, stream: IO[str], *, wanted: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.wanted = wanted
        self._stream = stream
        self._clock = clock
        self._next = float("-inf")
        self._drawn = 0

    def show(self, text: str) -> None:
        """``text`` says how far it is; it is cut before the last column, where it may wrap."""
        if self.wanted and (now := self._clock()) >= self._next:
            self._next = now + EVERY
            drawn = text[: _columns_of(self._stream) - 1]
            self._write("\r" + drawn.ljust(self._drawn))
            self._drawn = len(drawn)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._write(f"\r{' ' * self._drawn}\r")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self.wanted = False


def on_stderr(*, data_on_stdout: bool = False) -> Bar:
    """A bar on stderr when that is a terminal, and not the one on which the data appears."""
    wanted = sys.stderr.isatty() and not (data_on_stdout and sys.stdout.isatty())
    return Bar(sys.stderr, wanted=wanted)


def _columns_of(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS
