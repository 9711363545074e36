"""The circuit breaker of one automation: after errors in a row it rests, then one run tries. Pure.

Closed: it runs. Open: it does not. Half-open: one run is let through; its success closes the
circuit, its failure opens it anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

#: Errors in a row that open it, and for how many milliseconds it then stays open.
ERRORS_MAX, OPEN_MS = 5, 300_000


class CircuitState(StrEnum):
    """Whether an automation runs."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(frozen=True, slots=True)
class Circuit:
    """``errors`` in a row; ``opened_ms``: since when it is open, None while it is closed."""

    errors: int = 0
    opened_ms: int | None = None

    def state(self, now_ms: int) -> CircuitState:
        """What it is at ``now_ms``. A clock that was set back does not keep it open for longer."""
        if self.opened_ms is None:
            return CircuitState.CLOSED
        waited = now_ms - self.opened_ms
        return CircuitState.OPEN if 0 <= waited < OPEN_MS else CircuitState.HALF_OPEN

    def after(self, success: bool, now_ms: int) -> Circuit:
        """The circuit after a run that ended at ``now_ms``."""
        if success:
            return Circuit()
        errors = self.errors + 1
        opened = self.opened_ms is not None or errors >= ERRORS_MAX
        return Circuit(errors, now_ms if opened else None)
