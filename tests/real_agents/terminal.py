"""A terminal for a real program: a PTY, a thread that reads it, and a screen that answers it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ptyprocess
import pyghostty

from tests.support import wait_until

STOP_DEADLINE = 10.0
QUIET = 0.3  # seconds
ALWAYS_DRAWS = 2.0
TITLE = re.compile(rb"\x1b\][02];([^\x07\x1b]*)(?:\x07|\x1b\\)")


class Terminal:
    """Runs ``argv`` in a terminal of ``cols`` by ``rows``; close it, or use it in a ``with``."""

    def __init__(
        self, *, argv: list[str], env: dict[str, str], cwd: Path, cols: int = 80, rows: int = 24
    ) -> None:
        self.cols, self.rows = cols, rows
        self.raw = bytearray()
        self._lock = threading.Lock()
        self._screen = pyghostty.Terminal(cols, rows)
        self._screen.on_reply(self._reply)
        self._process: Any = ptyprocess.PtyProcess.spawn(
            argv, env=env, cwd=str(cwd), dimensions=(rows, cols)
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def lines(self) -> list[str]:
        """The screen's rows, top to bottom, always as many as the terminal has."""
        with self._lock:
            shown = self._screen.text().split("\n")
        return [row.rstrip() for row in shown] + [""] * (self.rows - len(shown))

    def text(self) -> str:
        return "\n".join(self.lines())

    @property
    def title(self) -> str:
        """The title that the program gave the window last, "" for none."""
        with self._lock:
            titles = TITLE.findall(self.raw)
        return titles[-1].decode("utf-8", "replace") if titles else ""

    def type(self, keys: str | bytes) -> None:
        """What a person's keyboard would send."""
        self._write(keys.encode() if isinstance(keys, str) else keys)

    def wait_for(self, text: str, timeout: float = 40.0) -> None:
        """Until ``text`` stands on the screen."""
        self.wait_match(re.escape(text), timeout)

    def shows(self, pattern: str) -> bool:
        """Whether the regular expression is found on the screen."""
        return re.search(pattern, self.text(), re.MULTILINE) is not None

    def wait_match(self, pattern: str, timeout: float = 40.0) -> None:
        """Until the regular expression is found on the screen."""
        self.wait_that(lambda: self.shows(pattern), timeout, f"{pattern!r} on screen")

    def wait_that(self, check: Callable[[], bool], timeout: float = 40.0, what: str = "") -> None:
        """Until ``check`` holds; fails with the screen when it does not, or the program ended."""
        try:
            wait_until(lambda: check() or self._gone(what), timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text()}") from None

    def wait_quiet(self) -> None:
        """Until the program draws nothing more, or it has become clear that it always does."""
        drawn = [len(self.raw), time.monotonic()]

        def quiet() -> bool:
            if drawn[0] != len(self.raw):
                drawn[:] = [len(self.raw), time.monotonic()]
            return time.monotonic() - drawn[1] > QUIET

        with contextlib.suppress(AssertionError):
            wait_until(quiet, ALWAYS_DRAWS)

    def resize(self, cols: int, rows: int) -> None:
        """Another size, as when the person drags the window's corner."""
        with self._lock:
            self.cols, self.rows = cols, rows
            self._screen.resize(cols, rows)
        self._process.setwinsize(rows, cols)

    def wait_end(self, timeout: float = STOP_DEADLINE) -> None:
        """Until the program has ended."""
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the program did not end"

    def close(self) -> None:
        if self._thread.is_alive():
            for number in (signal.SIGHUP, signal.SIGKILL):
                self._kill(number)
                self._thread.join(STOP_DEADLINE)
                if not self._thread.is_alive():
                    break
        self._process.close(force=True)
        self._screen.close()

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gone(self, what: str) -> bool:
        if self._thread.is_alive():
            return False
        raise AssertionError(f"the program ended before there was {what}")

    def _kill(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return

    def _read(self) -> None:
        fd = self._process.fd
        while True:
            try:
                data = os.read(fd, 65536)
            except OSError:
                data = b""
            if not data:
                return
            with self._lock:
                self.raw += data
                self._screen.feed(data)

    def _reply(self, data: bytes) -> None:
        self._write(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            select.select([], [self._process.fd], [], STOP_DEADLINE)
            view = view[os.write(self._process.fd, view) :]
