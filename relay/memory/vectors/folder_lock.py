"""One process at a time in a folder of memories, where the store itself would let in several."""

from __future__ import annotations

import fcntl
import os
import threading
import time

from relay.core.errors import StorageError
from relay.memory.backend import StoreUnavailable

_NAME = ".relay.lock"


class FolderLock:
    """Holds ``folder`` from when it is made until ``close``, or until the process ends.

    Waits ``seconds`` for another process that has it. Raises StoreUnavailable when that still has
    it then, StorageError when the folder cannot be made.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder = folder
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            self._file = os.open(os.path.join(folder, _NAME), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(
                f"cannot use the folder of memories {folder}: {error.strerror}",
                hint="make it writable, or name another path in memory.config.vector_store",
            ) from error
        end, pause = time.monotonic() + seconds, threading.Event()
        while not self._taken():
            if time.monotonic() >= end:
                self.close()
                raise StoreUnavailable(
                    f"another process has the memories in {folder} open",
                    hint="end the program that uses them; an embedded store is one process's"
                    " alone, a server is for many",
                    details={"path": folder},
                )
            pause.wait(0.05)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Let others in; calling it again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
