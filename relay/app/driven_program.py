"""A program in a terminal of its own that nobody sits at: its screen is read, its keys are typed.

A file of its own, apart from what is done with it: threads and signals stand here only.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import Any

from ptyprocess import PtyProcess

from relay.core.errors import RelayError

#: Seconds that it may take to end after a hang-up, and after it was killed.
ENDING = 20.0
#: Seconds that it may leave typed keys unread.
_TYPING = 5.0


class DrivenProgram:
    """Runs ``argv`` in a terminal of ``cols`` by ``rows``. Close it, or use it in a ``with``."""

    def __init__(self, argv: list[str], env: dict[str, str], cols: int, rows: int) -> None:
        try:
            import pyghostty
        except ImportError as error:
            raise RelayError(
                "a terminal emulator is needed for this, and there is none here",
                hint="relay doctor says more",
            ) from error
        self._lock = threading.Lock()
        self._screen: Any = pyghostty.Terminal(cols, rows)
        self._screen.on_reply(self._write)
        self._text = ""
        self._drawn = time.monotonic()
        self._process: Any = PtyProcess.spawn(argv, env=env, dimensions=(rows, cols))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether something still has its terminal."""
        return self._thread.is_alive()

    @property
    def quiet(self) -> float:
        """Seconds since a row of its screen has changed; a cursor that blinks changes none."""
        return time.monotonic() - self._drawn

    def rows(self) -> list[str]:
        """The rows of its screen, top to bottom."""
        return [row.rstrip() for row in self._text.split("\n")]

    def shows(self, text: str) -> bool:
        """Whether ``text`` stands on its screen, however that is divided into rows."""
        return _solid(text) in _solid("".join(self.rows()))

    def type(self, keys: str) -> None:
        """Press keys, as a person would."""
        self._write(keys.encode())

    def close(self) -> None:
        """Hang up, wait for its end, kill it when that does not come."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self._process.isalive():
                os.kill(self._process.pid, number)
            self._thread.join(ENDING)
            if not self._thread.is_alive():
                break
        self._process.close(force=True)
        self._thread.join(ENDING)
        self._screen.close()

    def __enter__(self) -> DrivenProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._process.fd, 65536)
            except OSError:  # Linux reports the end of a pseudo-terminal as EIO
                return
            if not data:
                return
            with self._lock:
                self._screen.feed(data)
                if (text := self._screen.text()) != self._text:
                    self._text, self._drawn = text, time.monotonic()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            _, writable, _ = select.select([], [self._process.fd], [], _TYPING)
            if not writable:
                return
            try:
                view = view[os.write(self._process.fd, view) :]
            except OSError:
                return


def _solid(text: str) -> str:
    """Text without what a terminal adds when it divides it: white space."""
    return "".join(text.split())
