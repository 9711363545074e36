"""The broker's end of a worker process of the memory (relay.memory.worker): ask, wait, reap."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from relay.core.errors import RelayError, StorageError, Timeout
from relay.core.log import Log
from relay.core.paths import Home
from relay.protocol.broker import Json, error_from

#: A worker that has not answered for so long is killed. Seconds.
ANSWER_MAX = 120.0
#: How long a worker may take to close its store. Seconds.
CLOSE_MAX = 10.0
#: Starts of one store's worker within START_SPAN seconds.
STARTS_MAX, START_SPAN = 3, 60.0
#: The longest line of a worker. A page of memories whose every byte is escaped fits.
_LINE_MAX = 32 * 1024 * 1024
#: What a worker prints is taken this fast, in bytes a second: a flood stalls who prints it.
_PRINT_RATE = 1024 * 1024
#: How often a silent worker is looked at, in case somebody else holds its socket open. Seconds.
_LOOK = 1.0
_HERE = ("localhost", "127.0.0.1", "::1")

_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from relay.memory.worker import main; main()"


class _Ended(Exception):
    """The process has ended, or speaks no more."""


class _Hangs(Exception):
    """It did not answer in time."""


def command() -> list[str]:
    """What starts a worker. -P: nothing in its folder may take a module's place."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [sys.executable, "-P", "-c", _RUN, root]


class Worker:
    """A store in a process of its own, which is started by the first request and again when it has
    died. ``store`` is StoreSpec.to_json(). All but ``kill`` belong to one thread."""

    def __init__(
        self,
        home: Home,
        store: Mapping[str, Any],
        log: Callable[[str], None],
        *,
        start: Sequence[str] = (),
        answer_max: float = ANSWER_MAX,
        close_max: float = CLOSE_MAX,
    ) -> None:
        self._home = home
        self._store = store
        self._log = log
        self._command = list(start) or command()
        self._answer_max = answer_max
        self._close_max = close_max
        self._starts: deque[float] = deque(maxlen=STARTS_MAX)
        self._process: _Process | None = None
        self._n = 0
        self._stopped = False
        self._log_path = os.path.join(home.logs, "memory.log")

    def answer(self, request: Json, agent: str | None, run: str | None, now_ms: int) -> Json:
        """The answer's fields. Raises RelayError."""
        self._n += 1
        # Neither the key of the agent nor those of the store are of use there.
        plain = {key: value for key, value in request.items() if key not in ("auth", "store")}
        asked = {"request": plain, "agent": agent, "run": run, "now_ms": now_ms}
        line = _line({"n": self._n, **asked})
        process = self._running()
        try:
            answer = process.ask(line, self._answer_max)
        except _Hangs:
            self._end(0.0)
            self._log("the memory's process hung, and was killed")
            raise Timeout(
                f"the store did not answer within {self._answer_max:g} s, and its process was"
                " ended",
                hint=f"it may have been done: look before you do it again; see {self._log_path}",
            ) from None
        except _Ended:
            # Its files are closed a moment before it is to be reaped.
            how = self._end(1.0)
            self._log(f"the memory's process {how}")
            raise StorageError(
                f"the process of the memory {how} before it answered",
                hint=f"it may have been done: look before you do it again; see {self._log_path}",
                code="memory_worker",
            ) from None
        return self._fields(answer)

    def caught_up(self, now_ms: int) -> bool:
        """It sees to that itself."""
        return True

    def close(self) -> None:
        """Let the worker close the store and end; kill it when that takes too long."""
        self._stopped = True
        self._end(self._close_max)

    def kill(self) -> None:
        """End it now, from any thread: who waits for it is told, and nothing is started again."""
        self._stopped = True
        process = self._process
        if process is not None:
            process.kill()

    def _fields(self, line: bytes) -> Json:
        try:
            answer = json.loads(line)
            if answer["n"] != self._n:
                raise ValueError(f"it answered {answer['n']} instead of {self._n}")
            if answer["ok"]:
                fields: Json = answer["fields"]
                return fields
            error = error_from(answer["error"])
        except (ValueError, KeyError, TypeError, AttributeError) as error_:
            self._end(0.0)
            raise StorageError(
                f"the process of the memory answered what is no answer: {error_}",
                hint=f"see {self._log_path}",
                code="memory_worker",
            ) from error_
        raise error

    def _running(self) -> _Process:
        if self._process is not None and self._process.has_ended():
            self._log(f"the memory's process {self._end(0.0)} while nobody used it")
        if self._stopped:
            raise RelayError("the broker stops", hint="try again", code="busy")
        if self._process is None:
            now = time.monotonic()
            if len(self._starts) == STARTS_MAX and now - self._starts[0] < START_SPAN:
                raise StorageError(
                    f"the process of the memory ended {STARTS_MAX} times within a minute",
                    hint=f"see {self._log_path}; it is started again in a while",
                    code="memory_worker",
                )
            self._starts.append(now)
            self._process = self._started()
            if self._stopped:  # meanwhile: who did that did not see it
                self._process.kill()
        return self._process

    def _started(self) -> _Process:
        folder = self._home.memory
        telemetry = dict(self._store.get("config") or {}).get("telemetry") is True
        own = {
            "MEM0_DIR": os.path.join(folder, "mem0"),
            "MEM0_TELEMETRY": str(telemetry),
            # More threads than one cost time rather than save it, on vectors of this size.
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **_without_proxy(os.environ),
        }
        hello = _line({"home": self._home.root, "store": dict(self._store)})
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            return _Process(self._command, {**os.environ, **own}, folder, self._log_path, hello)
        except OSError as error:
            raise StorageError(
                f"the process of the memory cannot be started: {error.strerror or error}",
                hint="free memory or processes, and try again",
                code="memory_worker",
            ) from error

    def _end(self, grace: float) -> str:
        process, self._process = self._process, None
        return process.end(grace) if process is not None else "has ended"


class _Process:
    """One process and what it prints. ``hello`` is said first. Raises OSError."""

    def __init__(
        self, start: Sequence[str], environ: Mapping[str, str], cwd: str, log: str, hello: bytes
    ) -> None:
        self._lock = threading.Lock()
        self._part = bytearray()
        self._channel, theirs = socket.socketpair()
        self._printed, prints = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                start,
                stdin=theirs.fileno(),
                stdout=prints.fileno(),
                stderr=prints.fileno(),
                cwd=cwd,
                env=environ,
                start_new_session=True,
            )
        except BaseException:
            self._channel.close()
            self._printed.close()
            raise
        finally:
            theirs.close()
            prints.close()
        self._channel.settimeout(_LOOK)
        self._hello = hello
        self._over = threading.Event()  # it is reaped
        self._drain = threading.Thread(target=self._log_prints, args=(Log(log),), daemon=True)
        self._drain.start()

    def ask(self, line: bytes, seconds: float) -> bytes:
        """Send a line and return the one that comes back. Raises _Ended and _Hangs."""
        end = time.monotonic() + seconds
        try:
            self._send(self._hello + line, end)
            self._hello = b""
            return self._receive(end)
        except OSError as error:
            raise _Ended from error

    def has_ended(self) -> bool:
        """Whether the process is there no more; it need not be reaped yet."""
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return self._popen.poll() is not None
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            return os.waitid(os.P_PID, self._popen.pid, options) is not None
        except ChildProcessError:
            return True

    def kill(self) -> None:
        """Kill it and what it has started, from any thread."""
        with self._lock:
            # Before it is reaped its number can be nobody else's.
            if not self._over.is_set():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self, grace: float) -> str:
        """Let it end within ``grace`` seconds, then kill it; reap it. How it ended, in words."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        came_by_itself = self._wait(grace) if grace else self.has_ended()
        self.kill()
        with self._lock:
            status = self._popen.wait()
            self._over.set()
        self._channel.close()
        with suppress(OSError):
            self._printed.shutdown(socket.SHUT_RDWR)  # a child that lives on may hold the other end
        self._drain.join()
        self._printed.close()
        if not came_by_itself:
            return "was killed"
        if status < 0:
            return f"was ended by {_signal_name(-status)}"
        return f"ended with status {status}"

    def _send(self, data: bytes, end: float) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[self._channel.send(left) :]
            except TimeoutError:
                self._look(end)

    def _receive(self, end: float) -> bytes:
        searched = 0
        while (at := self._part.find(b"\n", searched)) < 0:
            searched = len(self._part)
            if searched > _LINE_MAX:
                raise _Hangs
            try:
                data = self._channel.recv(256 * 1024)
            except TimeoutError:
                self._look(end)
                continue
            if not data:
                raise _Ended
            self._part += data
        line = bytes(self._part[:at])
        del self._part[: at + 1]
        return line

    def _look(self, end: float) -> None:
        if self.has_ended():
            raise _Ended
        if time.monotonic() > end:
            raise _Hangs

    def _wait(self, seconds: float) -> bool:
        """Whether it ends in time. Its end of the channel closes with it."""
        end = time.monotonic() + seconds
        with suppress(OSError):
            while time.monotonic() < end:
                try:
                    if not self._channel.recv(256 * 1024):
                        break
                except TimeoutError:
                    if self.has_ended():
                        break
        while not self.has_ended():  # what it has open is closed a moment before it is to be reaped
            if time.monotonic() > end:
                return False
            self._over.wait(0.02)
        return True

    def _log_prints(self, log: Log) -> None:
        from relay.directive.redact import redact

        while True:
            try:
                data = self._printed.recv(64 * 1024)
            except OSError:
                return
            if not data:
                return
            log.write(redact(data.decode(errors="backslashreplace").rstrip()))
            self._over.wait(len(data) / _PRINT_RATE)


def _without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """What keeps requests to this machine, and the keys in them, from the user's proxy."""
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = [host for host in given.split(",") if host.strip()]
    value = "*" if given.strip() == "*" else ",".join([*hosts, *_HERE])
    return {"no_proxy": value, "NO_PROXY": value}


def _line(record: Json) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
