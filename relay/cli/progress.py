"""How far a verb has come: lines on a terminal that are written over, and gone at the end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from relay.core.visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

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


@contextmanager
def starting(at_once: int) -> Iterator[ThreadPoolExecutor]:
    """A pool that begins nothing more once the block is left, as by Ctrl-C."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import, for few verbs

    with ThreadPoolExecutor(at_once) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Rows:
    """A row for each of several things that go on at once, ``{name: state}``, written over at each
    ``show`` on a terminal that is high enough; elsewhere each change is a line."""

    def __init__(self, stream: IO[str], states: dict[str, str], *, wanted: bool) -> None:
        self._stream = stream
        self._states = states
        self._wanted = wanted
        self._width = max(map(len, states), default=0)
        size = os.get_terminal_size(stream.fileno()) if stream.isatty() else None
        self._columns = size.columns or _COLUMNS if size else 0
        self._over = size is not None and len(states) < size.lines
        self._drawn = 0

    def show(self, name: str, state: str) -> None:
        """This one has come so far."""
        self._states[name] = state
        if not self._wanted:
            return
        if self._over:
            self._draw()
        else:
            self._write(f"{name}: {state}\n")

    def __enter__(self) -> Rows:
        if self._wanted and self._over:
            self._draw()
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}F\x1b[J")

    def _draw(self) -> None:
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        rows = (f"{name:<{self._width}}  {state}" for name, state in self._states.items())
        lines = "".join(f"{visible(row)[: self._columns - 1]}\x1b[K\n" for row in rows)
        self._drawn = len(self._states)
        self._write(up + lines)

    def _write(self, text: str) -> None:
        with suppress(OSError):  # the verb goes on without
            self._stream.write(text)
            self._stream.flush()


def on_stderr(*, data_on_stdout: bool = False) -> Bar:
    """A bar on stderr when that is a terminal, and not the one on which the data appears."""
    wanted = sys.stderr.isatty() and not (data_on_stdout and sys.stdout.isatty())
    return Bar(sys.stderr, wanted=wanted)


def _columns_of(stream: IO[str]) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or _COLUMNS
    except (OSError, ValueError):
        return _COLUMNS
