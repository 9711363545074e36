"""The ops of memory: asked here, done in threads and processes, so that no message waits for them.

Nothing of relay.memory is imported before the first such op, and nothing of what a store in a
worker process needs ever. What was accepted is done in the order in which it came, also when the
broker stops; then the stores are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.batch import Batch, ClientRequest, Handler
from relay.broker.memory_lanes import Clerk, Job, Lane, Lanes
from relay.core.errors import RelayError, Timeout
from relay.protocol.broker import Json, refusal

if TYPE_CHECKING:
    from relay.broker.directory import Directory
    from relay.config.memory_spec import StoreSpec
    from relay.core.paths import Home

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
#: And then for processes that it kills. Seconds.
KILL_DEADLINE = 3.0


class Memories:
    """Takes the requests in the loop's thread.

    ``fault`` logs the exception in flight and makes an error of it, in any thread.
    """

    def __init__(
        self,
        home: Home,
        directory: Directory,
        *,
        fault: Callable[[], RelayError],
        log: Callable[[str], None],
        deadline: float = DEADLINE,
    ) -> None:
        self._home = home
        self._directory = directory
        self._fault = fault
        self._log = log
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._pending: set[Job] = set()
        self._size = 0
        self._lanes = Lanes(self._lane)
        self.extractions: Callable[[], Json] = dict  # what memory_stats tells of them

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {op: self._ask for op in OPS}

    def _ask(self, request: ClientRequest, batch: Batch) -> None:
        member = self._directory.speaker(request)
        job = Job(request, _spec(request.fields), batch.now_ms)
        if member is not None:
            job.agent, job.run = member.name, member.record.run
        if request.op == "memory_stats":
            job.more = {"extractions": self.extractions()}
        if len(self._pending) >= PENDING_MAX or self._size + job.size > PENDING_SIZE_MAX:
            raise RelayError(
                "too many requests to the memory wait already", hint="try again", code="busy"
            )
        request.client.defer()
        self._pending.add(job)
        self._size += job.size
        batch.after.append(partial(self._begin, job))
        batch.on_failure.append(partial(self._forget, job))

    def _begin(self, job: Job) -> None:
        job.timer = self._loop.call_later(self._deadline, self._late, job)
        try:
            lane = self._lanes.lane(job.spec)
        except RelayError as error:
            self._end(job, refusal(job.request.n, error))
            return
        except Exception:  # no thread can be started: the others of the batch must not suffer
            self._end(job, refusal(job.request.n, self._fault()))
            return
        job.lane = lane
        lane.pending += 1
        lane.put(job)

    def _late(self, job: Job) -> None:
        # What has begun cannot be taken back: to save it again then changes nothing more.
        hint = "it may still be done" if job.begun else "it was not done; try again"
        error = Timeout(f"the memory did not answer within {self._deadline:g} s", hint=hint)
        self._end(job, refusal(job.request.n, error))

    def _end(self, job: Job, line: bytes) -> None:
        if job in self._pending:
            self._forget(job)
            job.request.client.send(line)

    def _forget(self, job: Job) -> None:
        job.over = True
        self._pending.discard(job)
        self._size -= job.size
        if job.lane is not None:
            job.lane.pending -= 1
        if job.timer is not None:
            job.timer.cancel()
        job.request.client.undefer()

    async def close(self) -> None:
        """Do what was accepted, then close the stores; what takes longer than CLOSE_DEADLINE
        seconds is given up, its process killed."""
        if not await self._lanes.close(CLOSE_DEADLINE, KILL_DEADLINE):
            self._log("the memory was not done in time, and is left")

    # -- lanes

    def _lane(self, spec: StoreSpec | None, before: list[Lane]) -> Lane:
        return Lane(
            spec,
            partial(self._clerk, spec),
            before=before,
            done=self._end,
            on_end=self._lanes.ended,
            fault=self._fault,
            log=self._log,
        )

    def _clerk(self, spec: StoreSpec | None) -> Clerk:
        """Who answers for a store; called in its lane's thread."""
        if spec is not None and spec.backend != "local":
            from relay.broker.memory_process import Worker

            return Worker(self._home, spec.to_json(), self._log)
        return _local_desk(self._home, spec, self._log)


def _local_desk(home: Home, spec: StoreSpec | None, log: Callable[[str], None]) -> Clerk:
    from relay.config.memory_spec import StoreSpec
    from relay.memory.desk import Desk
    from relay.memory.sources import LocalSource

    spec = spec or StoreSpec()
    return Desk(LocalSource(home, spec, log), spec.masked(), home.memory)


def _spec(request: Json) -> StoreSpec | None:
    """The store that a request is for; None: the default one. Raises UsageError."""
    if request.get("store") is None:
        return None
    from relay.config.memory_spec import StoreSpec

    spec = StoreSpec.from_json(request["store"])
    return None if spec == StoreSpec() else spec
