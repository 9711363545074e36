"""Starts, stops and kills the test server of qdrant's API
(``tests.features.memory.qdrant_server``)."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import socket
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_DEADLINE_S = 60


class QdrantProcess:
    """The server as a process. ``folder`` None: in memory; a second start has the first's port."""

    def __init__(self, folder: Path | None = None, api_key: str | None = None) -> None:
        self._options = [] if folder is None else ["--path", str(folder)]
        self._options += [] if api_key is None else ["--api-key", api_key]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process
        return self._process.pid

    def start(self) -> QdrantProcess:
        """Start it and wait until it answers."""
        assert self._process is None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.features.memory.qdrant_server", "--until-eof"]
            + ["--port", str(self.port), *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_ROOT,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        try:
            self.port = int(self._line())
        except BaseException:
            self.kill()
            raise
        return self

    def _line(self) -> bytes:
        assert self._process and self._process.stdout
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            assert ready.select(_DEADLINE_S), "the server does not start"
        return self._process.stdout.readline()

    def kill(self) -> None:
        """End it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=_DEADLINE_S)

    def __enter__(self) -> QdrantProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _free_port() -> int:
    """One that no outgoing connection is given while the server is away (those are from 32768)."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")
