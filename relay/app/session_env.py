"""What a session finds around it: a clock, a terminal, and what its environment says."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Any

from relay.session.actions import TEXTS_MAX
from relay.session.agent_tty import InnerTerminal, NoTerminal


class LateClock:
    """A monotonic clock for what is heard late: the rests that lie between it are added to it.

    Two lines with a second between them are two things said, also when a session that has just
    started reads both at once.
    """

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._skipped

    def skip(self, seconds: float) -> None:
        """So long the agent rested before what it wrote next."""
        self._skipped += seconds


def inner_terminal(hello: dict[str, Any]) -> InnerTerminal | NoTerminal:
    """The program's own terminal, where the pump could say which it is."""
    if hello.get("tty"):
        with contextlib.suppress(OSError):
            return InnerTerminal(hello["tty"])
    return NoTerminal()


def takes_utf8(env: dict[str, str]) -> bool:
    """Whether programs with this environment take what is typed as UTF-8."""
    locale = env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or ""
    return "utf" in locale.lower() or sys.platform == "darwin"


def texts_max(env: Mapping[str, str]) -> int:
    """As many as messages between two agents; the same variable says how many."""
    given = env.get("RELAY_RATE_MAX", "")
    return int(given) if given.isdigit() else TEXTS_MAX
