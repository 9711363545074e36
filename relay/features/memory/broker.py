"""Memory in the broker: requests go to the memory service, and its answers back unread.

The service is started when memory is first asked for. When it dies, another is started and gets
what was not answered again: a save under the same id, so that nothing is there twice.
relay.features.memory.service describes the lines, relay.broker.service_process runs the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.batch import AnyRequest, Batch, Served
from relay.broker.door import BrokerFeature
from relay.broker.parts import BrokerParts
from relay.broker.service_process import ServiceEnded, ServiceProcess, Starts
from relay.core.child_process import python
from relay.core.errors import RelayError, StorageError, Timeout, UsageError
from relay.core.files import make_private_folder
from relay.core.log import Log
from relay.features.memory.ops import MEMORY_EXTRACT, MEMORY_FORGET, MEMORY_SAVE, OPS
from relay.protocol.broker import refusal

if TYPE_CHECKING:
    from relay.broker.directory import Directory
    from relay.core.paths import Home


def feature(parts: BrokerParts) -> MemoryFeature:
    """The feature in the broker."""
    return MemoryFeature(parts)


class MemoryFeature(BrokerFeature):
    """Keeps the memory service."""

    def __init__(self, parts: BrokerParts) -> None:
        kernel = parts.kernel
        self._proxy = MemoryProxy(kernel.home, kernel.directory, log=kernel.log)

    def ops(self) -> list[Served]:
        """Those that begin with ``memory_``."""
        return [Served(op, self._proxy.ask) for op in OPS]

    def start(self) -> None:
        """Start the service where something waits for it."""
        self._proxy.start()

    async def close(self) -> None:
        """End the service."""
        await self._proxy.close()


#: What starts the service.
SERVICE = python("relay.features.memory.service")
#: Requests that wait for an answer, and their bytes; a further one is refused as ``busy``.
PENDING_MAX = 1000
PENDING_SIZE_MAX = 32 * 1024 * 1024
#: Seconds for one request, from when it was accepted.
DEADLINE = 25.0
#: Deaths of the service after which a request is given up. A forget is never repeated.
DEATHS_MAX = 3
#: Starts of the service within START_SPAN seconds.
STARTS_MAX, START_SPAN = 10, 60.0
#: Deaths of the service within START_SPAN seconds while one store was asked; then requests to that
#: store alone are refused, but never those to the default store, which is relay's own.
STORE_DEATHS_MAX = 4
#: Seconds without any answer, while requests wait, after which the service is killed. It ends by
#: itself before that, if it can.
SILENCE_MAX = 150.0
#: Seconds that a stopping broker gives the service to finish what was accepted.
CLOSE_DEADLINE = 15.0


@dataclass(slots=True, eq=False)
class MemoryJob:
    """One request that has no answer yet."""

    id: int
    request: AnyRequest
    line: bytes
    store: str  # the store that may kill the service, as JSON; "": none, or the default one
    began: bool = False  # its batch is committed


class MemoryProxy:
    """Takes requests in the broker's event loop, and passes them on to the service."""

    def __init__(
        self,
        home: Home,
        directory: Directory,
        *,
        log: Log,
        command: Sequence[str] = SERVICE,  # that starts the service
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
        self._starts = Starts(STARTS_MAX)
        self._tasks: set[asyncio.Task[None]] = set()
        self._deaths: deque[tuple[float, str]] = deque(maxlen=STARTS_MAX * STORE_DEATHS_MAX)
        self._log_path = os.path.join(home.logs, "memory.log")
        self._silent_since: float | None = None
        self._service: ServiceProcess | None = None
        self._closing = False

    def start(self) -> None:
        """Start the service if conversations still wait for a model since an earlier broker."""
        with suppress(OSError, RelayError):
            folder = os.path.join(self._home.memory, "extract")
            if any(name.endswith(".json") for name in os.listdir(folder)):
                self._running()

    async def close(self) -> None:
        """Let the service finish what was accepted and end; after CLOSE_DEADLINE it is killed."""
        self._closing = True
        if self._service is not None and not await self._service.close(CLOSE_DEADLINE):
            self._log.write("the memory was not done in time, and is left")

    # -- requests

    def ask(self, request: AnyRequest, batch: Batch) -> None:
        """Carry out one op; it is answered later."""
        member = self._directory.speaker(request)
        if request.op == MEMORY_EXTRACT:
            member = self._directory.member_of(request.client)
            if member is None:
                raise UsageError("only a registered session can leave its agent's last words")
        passed = {key: item for key, item in request.fields.items() if key != "auth"}
        # One that an agent has started speaks for that agent.
        whose = None if member is None else self._directory.around(member, request.client)[-1]
        if whose is not None:
            # Whatever an agent says: its project, its store and what is done with its secrets are
            # those of the run, as it was registered.
            if whose.memory is None:
                raise RelayError(f"{whose.name} is not ready yet", hint="try again", code="busy")
            for key in ("cwd", "store", "secrets"):
                passed.pop(key, None)
            passed |= {k: v for k, v in whose.memory.items() if k in ("store", "secrets")}
        if request.op == MEMORY_SAVE:
            passed["save_token"] = os.urandom(5).hex()
        self._last_id += 1
        asked = {
            "id": self._last_id,
            "until": time.monotonic() + self._deadline,
            "agent": None if whose is None else whose.name,
            "run": None if member is None else member.record.run,
            "project": None if whose is None else (whose.memory or {}).get("project"),
            "now_ms": batch.now_ms,
            "request": {**passed, "n": request.n, "op": request.op},
        }
        store = request.op != MEMORY_EXTRACT and passed.get("store")
        named = json.dumps(store, sort_keys=True) if store else ""
        job = MemoryJob(self._last_id, request, json.dumps(asked).encode() + b"\n", named)
        if len(self._pending) >= PENDING_MAX or self._size + len(job.line) > PENDING_SIZE_MAX:
            full = "too many requests to the memory wait already"
            raise RelayError(full, hint="try again", code="busy")
        request.client.defer()
        self._pending[job.id] = job
        self._size += len(job.line)
        batch.after.append(partial(self._begin, job))
        batch.on_failure.append(partial(self._drop, job))

    def _begin(self, job: MemoryJob) -> None:
        job.began = True
        task = self._loop.create_task(self._forward(job))
        self._tasks.add(task)  # a loop holds tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, job: MemoryJob) -> None:
        """Pass a request on until it is answered, and its answer to who asked."""
        client, n = job.request.client, job.request.n
        try:
            async with asyncio.timeout(self._deadline):
                line = await self._answer(job)
        except RelayError as error:
            line = refusal(n, error)
        except TimeoutError:
            late = f"the memory did not answer within {self._deadline:g} s"
            line = refusal(n, Timeout(late, hint="it may still be done"))
            self._look_if_silent()
        self._drop(job)
        client.send(line)

    async def _answer(self, job: MemoryJob) -> bytes:
        """The service's answer. Raises RelayError where there will be none."""
        how = ""
        for _ in range(1 if job.request.op == MEMORY_FORGET else DEATHS_MAX):
            if self._often_fatal(job.store):
                raise self._too_often(STORE_DEATHS_MAX)
            try:
                answer: bytes = await self._running().ask(job.id, job.line)
                return answer
            except ServiceEnded as end:
                how = end.how
            if self._closing:
                raise _stops()
        hint = "it may have been done: look before you do it again; see memory.log in"
        raise _error(f"{how} before it answered", f"{hint} {self._home.logs}")

    def _look_if_silent(self) -> None:
        now = time.monotonic()
        self._silent_since = self._silent_since or now - self._deadline
        if now - self._silent_since > SILENCE_MAX and self._service is not None:
            self._service.kill()

    def _on_line(self, line: bytes) -> tuple[int, bytes]:
        id_, _, answer = line.partition(b" ")
        number = int(id_)
        self._silent_since = None
        return number, answer

    def _drop(self, job: MemoryJob) -> None:
        if self._pending.pop(job.id, None) is not None:
            self._size -= len(job.line)
            job.request.client.undefer()

    # -- the service

    def _running(self) -> ServiceProcess:
        """The service; it is started if need be. Raises RelayError."""
        if self._service is not None:
            return self._service
        if self._closing:
            raise _stops()
        if not self._starts.may(START_SPAN):
            raise self._too_often(STARTS_MAX)
        try:
            make_private_folder(self._home.memory)
            self._service = ServiceProcess(
                [*self._command, self._home.root],
                cwd=self._home.memory,
                log=self._log_path,
                received=self._on_line,
                ended=self._on_end,
            )
        except OSError as error:
            why = f"cannot be started: {error.strerror or error}"
            raise _error(why, "free memory or processes, and try again") from error
        return self._service

    def _on_end(self, how: str) -> None:
        """The service has ended: those who wait for it ask the next one."""
        self._service = self._silent_since = None
        if self._closing:
            return
        self._log.write(f"the memory's process {how}")
        now = time.monotonic()
        stores = {job.store for job in self._pending.values() if job.began and job.store}
        self._deaths.extend((now, store) for store in stores)

    def _often_fatal(self, store: str) -> bool:
        """Whether the service has died too often lately while ``store`` was asked."""
        since = time.monotonic() - START_SPAN
        return sum(at > since and one == store for at, one in self._deaths) >= STORE_DEATHS_MAX

    def _too_often(self, times: int) -> StorageError:
        hint = f"see {self._log_path}; it is started again in a while"
        return _error(f"ended {times} times within a minute", hint)


def _stops() -> RelayError:
    return RelayError("the broker stops", hint="try again", code="busy")


def _error(what: str, hint: str) -> StorageError:
    return StorageError(f"the process of the memory {what}", hint=hint, code="memory_worker")
