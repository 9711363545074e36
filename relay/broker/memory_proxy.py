"""The broker's way to the memory service (relay.memory.service): start, forward, restart, end.

The service is started when memory is first asked for. A request goes to it as it came, and its
answer is passed on unread. When the service dies, another is started and gets again what was not
answered: a save under the same id, so that nothing is there twice. relay.memory.service describes
the lines.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.batch import Batch, ClientRequest, Handler
from relay.core.errors import RelayError, StorageError, Timeout, UsageError
from relay.core.files import make_private_folder
from relay.core.log import Log
from relay.protocol.broker import refusal

if TYPE_CHECKING:
    from relay.broker.directory import Directory
    from relay.core.paths import Home

OPS = (
    *("memory_save", "memory_search", "memory_get", "memory_list", "memory_forget"),
    *("memory_stats", "memory_export", "memory_import", "memory_extract"),
)
#: Requests that wait for an answer, and their characters; a further one is refused as ``busy``.
PENDING_MAX = 1000
PENDING_SIZE_MAX = 32 * 1024 * 1024
#: Seconds for one request, from when it was accepted.
DEADLINE = 25.0
#: Services that one request may see die. A forget is never asked for again.
DEATHS_MAX = 3
#: Starts of the service within START_SPAN seconds.
STARTS_MAX, START_SPAN = 10, 60.0
#: Deaths of the service within START_SPAN seconds while one store was asked; then that store alone
#: is refused. The default store is relay's own, and never is.
STORE_DEATHS_MAX = 4
#: Seconds for which requests may wait in vain for any answer of the service; then it is killed. It
#: ends by itself before that, if it can.
SILENCE_MAX = 150.0
#: Seconds that a broker that stops gives the service for what was accepted, then for being killed.
CLOSE_DEADLINE, KILL_DEADLINE = 15.0, 3.0
#: Bytes of one answer: a page of memories whose every byte is escaped fits.
_LINE_MAX = 32 * 1024 * 1024
#: Bytes a second that are taken of what the service prints: a flood stalls who prints it.
_PRINT_RATE = 1024 * 1024

_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from relay.memory.service import main; main()"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What starts the service. -P: nothing in its folder may take a module's place.
SERVICE = (sys.executable, "-P", "-u", "-c", _RUN, _ROOT)


@dataclass(slots=True, eq=False)
class MemoryJob:
    """One request that has no answer yet."""

    id: int
    request: ClientRequest
    line: bytes
    store: str  # which it may die of, as JSON; "" for none, or the default one
    timer: asyncio.TimerHandle | None = None  # once its batch is committed
    deaths: int = 0  # of the service, since it was accepted


class MemoryProxy:
    """Takes the requests in the broker's loop, and passes them on to the service."""

    def __init__(
        self,
        home: Home,
        directory: Directory,
        *,
        log: Callable[[str], None],
        command: Sequence[str] = SERVICE,  # starts it
        deadline: float = DEADLINE,
    ) -> None:
        self._home = home
        self._directory = directory
        self._log = log
        self._command = command
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._pending: dict[int, MemoryJob] = {}
        self._size = 0
        self._last_id = 0
        self._starts: deque[float] = deque(maxlen=STARTS_MAX)
        self._deaths: deque[tuple[float, str]] = deque(maxlen=STARTS_MAX * STORE_DEATHS_MAX)
        self._log_path = os.path.join(home.logs, "memory.log")
        self._silent_since: float | None = None
        self._service: _ServiceProcess | None = None
        self._closing = False
        self._over = asyncio.Event()

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {op: self._ask for op in OPS}

    def start(self) -> None:
        """Start the service if conversations still wait for a model since an earlier broker."""
        with suppress(OSError):
            folder = os.path.join(self._home.memory, "extract")
            if any(name.endswith(".json") for name in os.listdir(folder)):
                self._start()

    async def close(self) -> None:
        """Let the service do what was accepted and end; after CLOSE_DEADLINE it is killed."""
        self._closing = True
        if self._service is None:
            return
        self._service.finish()
        try:
            await asyncio.wait_for(self._over.wait(), CLOSE_DEADLINE)
        except TimeoutError:
            self._log("the memory was not done in time, and is left")
            self._service.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), KILL_DEADLINE)

    # -- requests

    def _ask(self, request: ClientRequest, batch: Batch) -> None:
        member = self._directory.speaker(request)
        if request.op == "memory_extract":
            member = self._directory.member_of(request.client)
            if member is None:
                raise UsageError("only a registered session can leave its agent's last words")
        passed = {key: item for key, item in request.fields.items() if key != "auth"}
        if request.op == "memory_save":
            passed["save_token"] = os.urandom(5).hex()
        self._last_id += 1
        asked = {
            "id": self._last_id,
            "until": time.monotonic() + self._deadline,
            "agent": None if member is None else member.name,
            "run": None if member is None else member.record.run,
            "now_ms": batch.now_ms,
            "request": {**passed, "n": request.n, "op": request.op},
        }
        store = request.op != "memory_extract" and passed.get("store")
        named = json.dumps(store, sort_keys=True) if store else ""
        job = MemoryJob(self._last_id, request, json.dumps(asked).encode() + b"\n", named)
        if len(self._pending) >= PENDING_MAX or self._size + len(job.line) > PENDING_SIZE_MAX:
            full = "too many requests to the memory wait already"
            raise RelayError(full, hint="try again", code="busy")
        request.client.defer()
        self._pending[job.id] = job
        self._size += len(job.line)
        batch.after.append(partial(self._begin, job))
        batch.on_failure.append(partial(self._forget, job))

    def _begin(self, job: MemoryJob) -> None:
        job.timer = self._loop.call_later(self._deadline, self._late, job)
        if self._kills(job.store):
            self._refuse(job, self._too_often(STORE_DEATHS_MAX))
        elif self._service is None:
            self._start()
        else:
            self._service.send(job.line)

    def _late(self, job: MemoryJob) -> None:
        late, now = f"the memory did not answer within {self._deadline:g} s", time.monotonic()
        self._refuse(job, Timeout(late, hint="it may still be done"))
        self._silent_since = self._silent_since or now - self._deadline
        if now - self._silent_since > SILENCE_MAX and self._service is not None:
            self._service.kill()

    def _heard(self, id_: int, line: bytes) -> None:
        self._silent_since = None
        self._answered(id_, line)

    def _answered(self, id_: int, line: bytes) -> None:
        job = self._pending.get(id_)
        if job is not None:
            self._forget(job)
            job.request.client.send(line)

    def _refuse(self, job: MemoryJob, error: RelayError) -> None:
        self._answered(job.id, refusal(job.request.n, error))

    def _forget(self, job: MemoryJob) -> None:
        if self._pending.pop(job.id, None) is not None:
            self._size -= len(job.line)
            if job.timer is not None:
                job.timer.cancel()
            job.request.client.undefer()

    # -- the service

    def _start(self) -> None:
        """Start the service with all that waits; when that fails, refuse it."""
        now = time.monotonic()
        if len(self._starts) == STARTS_MAX and now - self._starts[0] < START_SPAN:
            self._refuse_all(self._too_often(STARTS_MAX))
            return
        self._starts.append(now)
        self._over.clear()
        try:
            self._service = _ServiceProcess(
                self._command, self._home, self._log_path, self._heard, self._ended
            )
        except OSError as error:
            why = f"cannot be started: {error.strerror or error}"
            self._refuse_all(_error(why, "free memory or processes, and try again"))
        else:
            for job in self._accepted():
                self._service.send(job.line)

    def _ended(self, how: str) -> None:
        """The service is over: ask another one for what has no answer."""
        self._service = self._silent_since = None
        self._over.set()
        if self._closing:
            self._refuse_all(RelayError("the broker stops", hint="try again", code="busy"))
            return
        self._log(f"the memory's process {how}")
        now, asked = time.monotonic(), self._accepted()
        self._deaths.extend((now, store) for store in {job.store for job in asked if job.store})
        for job in asked:
            job.deaths += 1
            if job.request.op == "memory_forget" or job.deaths >= DEATHS_MAX:
                hint = "it may have been done: look before you do it again; see memory.log in"
                self._refuse(job, _error(f"{how} before it answered", f"{hint} {self._home.logs}"))
            elif self._kills(job.store):
                self._refuse(job, self._too_often(STORE_DEATHS_MAX))
        if self._accepted():
            self._start()

    def _accepted(self) -> list[MemoryJob]:
        """What waits and whose batch is committed."""
        return [job for job in self._pending.values() if job.timer is not None]

    def _kills(self, store: str) -> bool:
        """Whether the service has died too often lately while ``store`` was asked."""
        since = time.monotonic() - START_SPAN
        return sum(at > since and one == store for at, one in self._deaths) >= STORE_DEATHS_MAX

    def _too_often(self, times: int) -> StorageError:
        hint = f"see {self._log_path}; it is started again in a while"
        return _error(f"ended {times} times within a minute", hint)

    def _refuse_all(self, error: RelayError) -> None:
        for job in self._accepted():
            self._refuse(job, error)


def _error(what: str, hint: str) -> StorageError:
    return StorageError(f"the process of the memory {what}", hint=hint, code="memory_worker")


class _ServiceProcess(asyncio.Protocol):
    """One run of the service. Raises OSError when it cannot be started.

    ``answered(id, line)`` gets each answer; ``ended(how)`` comes once, when the process is reaped
    and all that it has answered is read.
    """

    def __init__(
        self,
        command: Sequence[str],
        home: Home,
        log: str,
        answered: Callable[[int, bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self._answered = answered
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._part = bytearray()
        self._searched = 0
        self._early: list[bytes] = []  # what is sent before there is a transport
        self._transport: asyncio.Transport | None = None
        self._finished = False
        self._how = ""  # how the process ended, once it is reaped
        self._read_all = False
        make_private_folder(home.memory)
        ours, theirs = socket.socketpair()
        self._printed, prints = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                [*command, home.root],
                stdin=theirs.fileno(),
                stdout=prints.fileno(),
                stderr=prints.fileno(),
                cwd=home.memory,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            self._printed.close()
            raise
        finally:
            theirs.close()
            prints.close()
        connecting = self._loop.create_connection(lambda: self, sock=ours)
        self._connecting = self._loop.create_task(connecting)
        self._draining = threading.Thread(target=self._log_prints, args=(Log(log),), daemon=True)
        self._draining.start()
        threading.Thread(target=self._reap, daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send one request."""
        if self._transport is None:
            self._early.append(line)
        else:
            self._transport.write(line)

    def finish(self) -> None:
        """Say that nothing more will be asked."""
        self._finished = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        if not self._how:
            self._popen.kill()  # the thread that reaps it does the rest

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.writelines(self._early)
        self._early.clear()
        if self._finished:
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._part += data
        while (end := self._part.find(b"\n", self._searched)) >= 0:
            id_, _, line = bytes(self._part[: end + 1]).partition(b" ")
            del self._part[: end + 1]
            self._searched = 0
            if not id_.isdigit():
                self.kill()
                return
            self._answered(int(id_), line)
        self._searched = len(self._part)
        if self._searched > _LINE_MAX:
            self.kill()

    def connection_lost(self, error: Exception | None) -> None:
        self._read_all = True
        self.kill()  # it can answer no more
        self._tell()

    # -- the process

    def _reap(self) -> None:
        """The thread that waits for the process, ends what it has started, and reaps it."""
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        with suppress(OSError):
            self._printed.shutdown(socket.SHUT_RDWR)  # a child that lives on may hold the other end
        self._draining.join()
        self._printed.close()
        names = {one.value: one.name for one in signal.Signals}
        killer = names.get(-status, f"signal {-status}")
        how = f"was ended by {killer}" if status < 0 else f"ended with status {status}"
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._reaped, how)

    def _reaped(self, how: str) -> None:
        self._how = how
        self._tell()

    def _tell(self) -> None:
        if self._how and self._read_all:
            self._ended(self._how)

    def _log_prints(self, log: Log) -> None:
        from relay.directive.redact import redact

        pause = threading.Event()
        with suppress(OSError):
            while data := self._printed.recv(64 * 1024):
                log.write(redact(data.decode(errors="backslashreplace").rstrip()))
                pause.wait(len(data) / _PRINT_RATE)
