"""The ops of memory: asked here, done in one thread, so that no message waits for a search.

Nothing of relay.memory is imported before the first such op. What was accepted is done in the
order in which it came, also when the broker stops; then the store is closed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.committer import Batch, Handler, refusal
from relay.broker.protocol import Json, encode
from relay.errors import RelayError, Timeout

if TYPE_CHECKING:
    from relay.broker.connection import Connection
    from relay.broker.directory import Member
    from relay.broker.remembering import Desk
    from relay.paths import Home

OPS = (
    *("memory_save", "memory_search", "memory_get", "memory_list"),
    *("memory_forget", "memory_stats", "memory_export", "memory_import"),
)
#: Requests that wait for the thread, and their characters; a further one is refused as ``busy``.
PENDING_MAX = 1000
PENDING_SIZE_MAX = 32 * 1024 * 1024
#: How long a request may take, from when it was accepted. Seconds.
DEADLINE = 25.0
#: How long a broker that stops waits for what it has accepted. Seconds.
CLOSE_DEADLINE = 15.0


class Job:
    """One request. ``agent`` and ``run`` are None for a person's."""

    __slots__ = ("connection", "request", "agent", "run", "now_ms", "timer", "begun", "over")

    def __init__(self, connection: Connection, request: Json, now_ms: int) -> None:
        self.connection = connection
        self.request = request
        self.agent: str | None = None
        self.run: str | None = None
        self.now_ms = now_ms
        self.timer: asyncio.TimerHandle | None = None
        self.begun = False
        self.over = False

    @property
    def size(self) -> int:
        """Characters of the request's line."""
        return int(self.request.get("size", 0))


class Memories:
    """Takes the requests in the loop's thread; ``flush_soon`` writes what was sent.

    ``fault`` logs the exception in flight and makes an error of it, in any thread.
    """

    def __init__(
        self,
        home: Home,
        authenticated: Callable[[Connection | None, Json], Member | None],
        flush_soon: Callable[[], None],
        *,
        fault: Callable[[], RelayError],
        log: Callable[[str], None],
        deadline: float = DEADLINE,
    ) -> None:
        self._home = home
        self._authenticated = authenticated
        self._flush_soon = flush_soon
        self._fault = fault
        self._log = log
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._pending: set[Job] = set()
        self._size = 0
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._desk: Desk | None = None  # only the thread touches it
        self._ended = asyncio.Event()

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {op: self._ask for op in OPS}

    def _ask(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        assert connection is not None
        member = self._authenticated(connection, request)
        job = Job(connection, request, batch.now_ms)
        if member is not None:
            job.agent, job.run = member.name, member.record.run
        if len(self._pending) >= PENDING_MAX or self._size + job.size > PENDING_SIZE_MAX:
            raise RelayError(
                "too many requests to the memory wait already", hint="try again", code="busy"
            )
        connection.defer()
        self._pending.add(job)
        self._size += job.size
        batch.after.append(partial(self._begin, job))
        batch.on_failure.append(partial(self._forget, job))

    def _begin(self, job: Job) -> None:
        job.timer = self._loop.call_later(self._deadline, self._late, job)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="relay-memory", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _late(self, job: Job) -> None:
        # What has begun cannot be taken back: to save it again then changes nothing more.
        hint = "it may still be done" if job.begun else "it was not done; try again"
        error = Timeout(f"the memory did not answer within {self._deadline:g} s", hint=hint)
        self._end(job, refusal(job.request["n"], error))

    def _end(self, job: Job, line: bytes) -> None:
        if job in self._pending:
            self._forget(job)
            job.connection.send(line)
            self._flush_soon()

    def _forget(self, job: Job) -> None:
        job.over = True
        self._pending.discard(job)
        self._size -= job.size
        if job.timer is not None:
            job.timer.cancel()
        job.connection.undefer()

    async def close(self) -> None:
        """Do what was accepted, then close the store; at most CLOSE_DEADLINE seconds."""
        if self._thread is None:
            return
        self._jobs.put(None)
        try:
            await asyncio.wait_for(self._ended.wait(), CLOSE_DEADLINE)
        except TimeoutError:
            self._log("the memory was not done in time, and is left")

    # -- the thread

    def _work(self) -> None:
        try:
            while (job := self._next()) is not None:
                if not job.over:
                    job.begun = True
                    self._in_loop(partial(self._end, job, self._answer(job)))
        finally:
            try:
                if self._desk is not None:
                    self._desk.close()
            except Exception:
                self._fault()
            self._in_loop(self._ended.set)

    def _next(self) -> Job | None:
        """The next job; while there is none, vectors that are missing are made."""
        while True:
            try:
                return self._jobs.get_nowait()
            except queue.Empty:
                if not self._caught_up():
                    continue
                return self._jobs.get()

    def _caught_up(self) -> bool:
        try:
            return self._desk is None or self._desk.caught_up(int(time.time() * 1000))
        except RelayError as error:
            self._log(f"the memory's vectors wait: {error.message}")
        except Exception:
            self._fault()
        return True

    def _answer(self, job: Job) -> bytes:
        n = job.request["n"]
        try:
            fields = self._at_desk().answer(job.request, job.agent, job.run, job.now_ms)
            return encode({"n": n, "ok": True, **fields})
        except RelayError as error:
            return refusal(n, error)
        except Exception:
            return refusal(n, self._fault())

    def _at_desk(self) -> Desk:
        """What answers. That it cannot be imported (relay was updated while the broker ran, say) is
        told to whoever asks, and does not end the thread."""
        if self._desk is None:
            from relay.broker.remembering import Desk

            self._desk = Desk(self._home, self._log)
        return self._desk

    def _in_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return
