"""Calls that were given up and have not ended, and the handlers that make too many of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from relay.hooks.hook_model import Callee

#: Lost threads: of one handler, and of all, before a handler that hangs is switched off.
HUNG_PER_HANDLER = 3
HUNG_MAX = 16
#: Calls that were given up altogether, before any further one switches its handler off.
GIVEN_UP_MAX = 512


class Hung:
    """``off``: the handlers that are switched off, with the reason. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.off: dict[Callee, str] = {}
        self._clock = clock
        self._calls: list[tuple[Callee, Future[Any], float]] = []

    def count(self) -> int:
        """How many abandoned calls have still not ended."""
        self._calls = [call for call in self._calls if not call[1].done()]
        return len(self._calls)

    def add(self, callee: Callee, future: Future[Any], due: float = -math.inf) -> None:
        """A call of ``callee`` that ends with ``future`` was given up.

        It hangs when it has not ended at the time ``due``: until then it is only that nobody waits
        for it any more.
        """
        self._calls.append((callee, future, due))
        total, now = self.count(), self._clock()
        hanging = [owner for owner, _future, due in self._calls if due <= now]
        own = hanging.count(callee)
        if own >= HUNG_PER_HANDLER or (own and len(hanging) >= HUNG_MAX):
            self.off[callee] = f"switched off: {own} of its calls hang"
        elif total >= GIVEN_UP_MAX:
            self.off[callee] = f"switched off: {total} calls that were given up have not ended"

    def note(self, callee: Callee) -> str:
        """What is to be added to an error of ``callee``."""
        return f"; {self.off[callee]}" if callee in self.off else ""
