"""Work of the broker that waits between its steps, as coroutines; and requests that are answered
when such work is done: a search, a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from relay.broker.batch import AnyRequest, Batch
from relay.broker.kernel import Kernel
from relay.core.errors import RelayError
from relay.protocol.broker import Json

#: Makes the answer from the result, in a batch of its own; None: it answers in another way.
Then = Callable[[Any, Batch], Mapping[str, object] | None]

#: Seconds in which work that is cancelled has cleaned up.
_AGAIN = 5.0


class BrokerTasks:
    """The coroutines of one part of the broker. What one raises is logged, and ends no other."""

    def __init__(self, kernel: Kernel) -> None:
        self._log = kernel.log
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[None] | None:
        """Begin ``work``; after ``close`` nothing begins."""
        if self._closed:
            work.close()
            return None
        task = self._loop.create_task(self._guarded(work))

        def over(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            work.close()  # it may have been cancelled before it began

        self._tasks.add(task)  # a loop would not keep it
        task.add_done_callback(over)
        return task

    async def close(self) -> None:
        """Cancel all of it, and wait for its end."""
        self._closed = True
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            # Once more later: until Python 3.12, wait_for() may lose a cancellation.
            await asyncio.wait(tasks, timeout=_AGAIN)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    async def _guarded(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except Exception:
            self._log.fault()


class LaterAnswers:
    """At most ``most`` requests wait at a time; the next one is refused as ``busy``."""

    def __init__(self, kernel: Kernel, most: int = 64) -> None:
        self._committer = kernel.committer
        self._log = kernel.log
        self._most = most
        self._waiting = 0
        self._tasks = BrokerTasks(kernel)

    def answer(
        self,
        request: AnyRequest,
        batch: Batch,
        work: Callable[[], Awaitable[Any]],
        then: Then,
    ) -> None:
        """Answer ``request`` with what ``then`` makes of the result of ``work``, or its error."""
        if self._waiting >= self._most:
            raise RelayError(
                "too much is waited for already", hint="try again in a moment", code="busy"
            )
        request.client.defer()
        self._waiting += 1
        batch.on_failure.append(partial(self._done, request))
        batch.after.append(partial(self._begin, request, work, then))

    def _begin(self, request: AnyRequest, work: Callable[[], Awaitable[Any]], then: Then) -> None:
        self._tasks.start(self._work(request, work, then))

    async def _work(
        self, request: AnyRequest, work: Callable[[], Awaitable[Any]], then: Then
    ) -> None:
        answer: Callable[[Batch], Mapping[str, object] | None]
        try:
            answer = partial(then, await work())
        except RelayError as error:
            answer = partial(_refused, error)
        except Exception:
            answer = partial(_refused, self._log.fault())
        self._committer.submit_job(partial(self._answer, request, answer))

    def _answer(
        self,
        request: AnyRequest,
        answer: Callable[[Batch], Mapping[str, object] | None],
        batch: Batch,
    ) -> None:
        batch.owed.append(request)
        batch.on_failure.append(partial(self._done, request))
        batch.after.append(partial(self._done, request))
        fields = answer(batch)
        if fields is not None:
            batch.answer(request.client, request.n, fields)

    def _done(self, request: AnyRequest) -> None:
        self._waiting -= 1
        request.client.undefer()


def _refused(error: RelayError, batch: Batch) -> Json:
    raise error
