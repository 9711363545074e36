"""Our ends of a program's pipes, in the running loop: nothing here blocks, nothing grows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO

_READ = 65536
#: Reads of a last look at a pipe: more than any pipe holds, and an end to what is filled for ever.
_DRAIN_MAX = 32


class Feed:
    """Writes ``data`` to a program's stdin and closes it; what it does not read is lost."""

    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._rest = memoryview(data)

    def begin(self) -> None:
        os.set_blocking(self._pipe.fileno(), False)
        self._write()
        if not self._pipe.closed:
            self._loop.add_writer(self._pipe.fileno(), self._write)

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()

    def _write(self) -> None:
        while self._rest:
            try:
                self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
            except BlockingIOError:
                return
            except OSError:  # it has closed its stdin, which is its good right
                break
        self.close()


class Capture:
    """Reads a pipe to its end, and keeps the first ``kept_max`` bytes of it.

    ``heard`` is called with the size of each piece, and with 0 at the end.
    """

    def __init__(self, pipe: IO[bytes], kept_max: int, heard: Callable[[int], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._kept_max = kept_max
        self._heard = heard
        self._kept = bytearray()
        self.at_end = False
        self.cut = False

    def begin(self) -> None:
        os.set_blocking(self._pipe.fileno(), False)
        self._loop.add_reader(self._pipe.fileno(), self._read)

    def pause(self) -> None:
        """Read no more: whoever writes will have to wait."""
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())

    def drain(self) -> None:
        """Read what is there now, so that a busy loop loses nothing that was printed in time."""
        for _ in range(_DRAIN_MAX):
            if self.at_end or self._pipe.closed or not self._read():
                return

    def data(self) -> bytes:
        """What is kept."""
        return bytes(self._kept)

    def close(self) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()

    def _read(self) -> bool:
        """Whether there was something, or the end."""
        try:
            data = os.read(self._pipe.fileno(), _READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            room = self._kept_max - len(self._kept)
            self._kept += data[:room]
            self.cut = self.cut or len(data) > room
        else:
            self.at_end = True
            self.close()
        self._heard(len(data))
        return True
