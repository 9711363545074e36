"""Answers requests that have to wait for something: a search, a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from relay.broker.batch import AnyRequest, Batch
from relay.broker.committer import Committer
from relay.core.errors import RelayError
from relay.core.log import Log
from relay.protocol.broker import Json

#: Makes the answer from the result, in a batch of its own; None: it answers in another way.
Then = Callable[[Any, Batch], Mapping[str, object] | None]


class LaterAnswers:
    """At most ``most`` requests wait at a time; the next one is refused as ``busy``."""

    def __init__(self, committer: Committer, log: Log, most: int = 64) -> None:
        self._committer = committer
        self._log = log
        self._most = most
        self._waiting = 0
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

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
        # In the owner's set: a loop holds tasks weakly.
        task = self._loop.create_task(self._work(request, work, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
