"""Answers requests that something else must be waited for first, off the batch that brought them.

A file of its own, tested by itself where automations are loaded and tried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from relay.broker.batch import Batch, ClientRequest
from relay.broker.committer import Committer
from relay.core.errors import RelayError
from relay.protocol.broker import Json, refusal

#: What an answer is made of once it is there, in a batch of its own.
Then = Callable[[Any, Batch], Json]


class LaterAnswers:
    """At most ``most`` at a time; a further one is refused as ``busy``."""

    def __init__(
        self, committer: Committer, fault: Callable[[], RelayError], most: int = 64
    ) -> None:
        """``fault`` logs the exception in flight and returns what a client is told of it."""
        self._committer = committer
        self._fault = fault
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def answer(
        self,
        request: ClientRequest,
        batch: Batch,
        work: Callable[[], Awaitable[Any]],
        then: Then,
    ) -> None:
        """Answer ``request`` with what ``then`` makes of what ``work`` has found, or its error."""
        if len(self._tasks) >= self._most:
            raise RelayError("too much is waited for already", hint="try again", code="busy")
        request.client.defer()
        batch.on_failure.append(request.client.undefer)
        batch.after.append(partial(self._begin, request, work, then))

    def _begin(
        self, request: ClientRequest, work: Callable[[], Awaitable[Any]], then: Then
    ) -> None:
        # In the owner's set: a loop holds tasks weakly.
        task = self._loop.create_task(self._work(request, work, then))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(
        self, request: ClientRequest, work: Callable[[], Awaitable[Any]], then: Then
    ) -> None:
        answer: Callable[[Batch], Json]
        try:
            answer = partial(then, await work())
        except RelayError as error:
            answer = partial(_refused, error)
        except Exception:
            answer = partial(_refused, self._fault())
        self._committer.submit_job(partial(self._answer, request, answer))

    def _answer(
        self, request: ClientRequest, answer: Callable[[Batch], Json], batch: Batch
    ) -> None:
        batch.owed.append(request)
        batch.on_failure.append(request.client.undefer)
        batch.after.append(request.client.undefer)
        try:
            batch.answer(request.client, request.n, answer(batch))
        except RelayError as error:
            batch.answers.append((request.client, refusal(request.n, error)))


def _refused(error: RelayError, batch: Batch) -> Json:
    raise error
