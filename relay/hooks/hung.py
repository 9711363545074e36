"""Calls that were given up and have not ended, and the handlers that make too many of them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from relay.hooks.model import Callee

#: Lost threads: of one handler, and of all, before a handler that hangs is switched off.
HUNG_PER_HANDLER = 3
HUNG_MAX = 16


class Hung:
    """``off``: the handlers that are switched off, with the reason."""

    def __init__(self) -> None:
        self.off: dict[Callee, str] = {}
        self._calls: list[tuple[Callee, Future[Any]]] = []

    def count(self) -> int:
        """How many abandoned calls have still not ended."""
        self._calls = [(callee, future) for callee, future in self._calls if not future.done()]
        return len(self._calls)

    def add(self, callee: Callee, future: Future[Any]) -> None:
        """A call of ``callee`` that ends with ``future`` was given up."""
        total = self.count() + 1
        self._calls.append((callee, future))
        own = sum(1 for owner, _future in self._calls if owner is callee)
        if own >= HUNG_PER_HANDLER or total >= HUNG_MAX:
            self.off[callee] = f"switched off: {own} of its calls hang"

    def note(self, callee: Callee) -> str:
        """What is to be added to an error of ``callee``."""
        return f"; {self.off[callee]}" if callee in self.off else ""
