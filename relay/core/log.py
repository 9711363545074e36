"""A log: one file and its predecessor, each at most ``SIZE_MAX`` bytes."""

from __future__ import annotations

import io
import os
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from relay.core.errors import RelayError
from relay.core.files import open_private

SIZE_MAX = 1024 * 1024
#: Shorter texts hold no secret, and what masks them need not be loaded for them.
SHORT = 16
#: Characters of one line; a longer one is cut.
LINE_MAX = 16 * 1024


class Log:
    """Lines with the time in UTC. A log that cannot be written is silently given up: the broker
    has more important work. ``mask`` takes secrets out of a text."""

    def __init__(
        self, path: str, mask: Callable[[str], str] = str, size_max: int = SIZE_MAX
    ) -> None:
        self.path = path
        self._mask = mask
        self._size_max = size_max

    def write(self, text: str) -> None:
        """Add one line."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = f"{now} {os.getpid()} {self._masked(text)}\n"
        try:
            if os.path.exists(self.path) and os.path.getsize(self.path) > self._size_max:
                os.replace(self.path, self.path + ".1")
            how: Any = {"encoding": "utf-8", "errors": "backslashreplace", "opener": open_private}
            with open(self.path, "a", **how) as file:
                file.write(line)
        except OSError:
            return

    def _masked(self, text: str) -> str:
        return text if len(text) < SHORT else self._mask(text)

    def fault(self) -> RelayError:
        """Record the exception in flight; what a client is told about it."""
        self.write(traceback.format_exc())
        return RelayError(
            "internal error in the broker",
            hint=f"please report it with the last lines of {self.path}",
            code="internal",
        )


class LogStream(io.TextIOBase):
    """What a process prints, as lines of a log: bounded, and without secrets."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._part = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Take a text; each line of it that is whole is logged."""
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
            if len(self._part) > LINE_MAX:
                lines.append(self._part)
                self._part = ""
        for line in lines:
            if line:
                self._log.write(line[:LINE_MAX])
        return len(text)

    def fileno(self) -> int:
        """Where a child's output goes that is sent here."""
        return 2

    def close(self) -> None:
        """Log what is left of a line."""
        if self._part:
            self.write("\n")
        super().close()
