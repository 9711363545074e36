"""A log: one file and its predecessor, each at most ``SIZE_MAX`` bytes."""

from __future__ import annotations

import os
import time
import traceback

from relay.core.errors import RelayError

SIZE_MAX = 1024 * 1024


class Log:
    """Lines with the time in UTC. A log that cannot be written is silently given up: the broker
    has more important work."""

    def __init__(self, path: str, size_max: int = SIZE_MAX) -> None:
        self.path = path
        self._size_max = size_max

    def write(self, text: str) -> None:
        """Add one line."""
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {os.getpid()} {text}\n"
        try:
            if os.path.exists(self.path) and os.path.getsize(self.path) > self._size_max:
                os.replace(self.path, self.path + ".1")
            with open(self.path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        except OSError:
            return

    def fault(self) -> RelayError:
        """Record the exception in flight; what a client is told about it."""
        self.write(traceback.format_exc())
        return RelayError(
            "the broker met a fault of its own",
            hint=f"please report it with the last lines of {self.path}",
            code="internal",
        )
