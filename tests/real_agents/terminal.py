"""The terminal that ``relay agent check`` gives a program, with what tests wait for there."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from relay.app.driven_program import DrivenProgram
from tests.support import wait_until

STOP_DEADLINE = 10.0
QUIET = 0.3  # seconds
ALWAYS_DRAWS = 2.0
TITLE = re.compile(rb"\x1b\][02];([^\x07\x1b]*)(?:\x07|\x1b\\)")


class Terminal(DrivenProgram):
    """Runs ``argv`` in a terminal of ``cols`` by ``rows``; close it, or use it in a ``with``."""

    def __init__(
        self, *, argv: list[str], env: dict[str, str], cwd: Path, cols: int = 80, rows: int = 24
    ) -> None:
        self.raw = bytearray()
        super().__init__(argv, env, cols, rows, cwd=str(cwd))

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        return self.runs

    def lines(self) -> list[str]:
        """The screen's rows, top to bottom, always as many as the terminal has."""
        shown = self.rows()
        return shown + [""] * (self._screen.size[1] - len(shown))

    def text(self) -> str:
        return "\n".join(self.lines())

    @property
    def title(self) -> str:
        """The title that the program gave the window last, "" for none."""
        titles = TITLE.findall(bytes(self.raw))
        return titles[-1].decode("utf-8", "replace") if titles else ""

    def wait_for(self, text: str, timeout: float = 40.0) -> None:
        """Until ``text`` stands on the screen."""
        self.wait_match(re.escape(text), timeout)

    def matches(self, pattern: str) -> bool:
        """Whether the regular expression is found on the screen."""
        return re.search(pattern, self.text(), re.MULTILINE) is not None

    def wait_match(self, pattern: str, timeout: float = 40.0) -> None:
        """Until the regular expression is found on the screen."""
        self.wait_that(lambda: self.matches(pattern), timeout, f"{pattern!r} on screen")

    def wait_that(self, check: Callable[[], bool], timeout: float = 40.0, what: str = "") -> None:
        """Until ``check`` holds; fails with the screen when it does not, or the program ended."""
        try:
            wait_until(lambda: check() or self._gone(what), timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def wait_quiet(self) -> None:
        """Until the program draws nothing more, or it has become clear that it always does."""
        begun = time.monotonic()
        drawn = [len(self.raw), begun]

        def quiet() -> bool:
            if drawn[0] != len(self.raw):
                drawn[:] = [len(self.raw), time.monotonic()]
            now = time.monotonic()
            return now - drawn[1] > QUIET or now - begun > ALWAYS_DRAWS

        wait_until(quiet, ALWAYS_DRAWS)

    def wait_end(self, timeout: float = STOP_DEADLINE) -> None:
        """Until the program has ended."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the program did not end"

    def close(self) -> None:
        """End it, and whatever it has started in its own process group."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self.runs:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
                self._thread.join(STOP_DEADLINE)
        super().close()

    def _gone(self, what: str) -> bool:
        if self.runs:
            return False
        raise AssertionError(f"the program ended before there was {what}")

    def _output(self) -> bytes:
        data = super()._output()
        self.raw += data
        return data
