"""The ops about the ledgers as a whole: searching them by text, the index of that, compacting.

What searches is the only thread beside the event loop's: a search through a million messages keeps
nobody else waiting. It reads what is committed, over connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from relay.broker.batch import Batch, ClientRequest, Handler
from relay.broker.committer import Committer
from relay.broker.directory import Directory
from relay.core.errors import RelayError, UsageError
from relay.ledger import compaction
from relay.ledger.queries import Filter
from relay.ledger.schema import Row
from relay.ledger.search_index import SearchIndex
from relay.ledger.store import Ledger
from relay.protocol.broker import Json, refusal

#: Seconds between two looks whether the index can catch up. It does where nothing was stored
#: since the last one.
CATCH_UP_EVERY = 30.0
#: Searches that may wait for their turn, of all clients together.
WAITING_MAX = 64

#: What is made of the rows of a search in the broker's own thread.
Found = Callable[[list[Row], Batch], Json]
#: Instead, where there is no index to search, for whatever reason.
Otherwise = Callable[[Batch, RelayError], None]


class LedgerOps:
    """Searches both ledgers, and keeps the index of them."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        committer: Committer,
        index: SearchIndex,
        *,
        log: Callable[[str], None],
        fault: Callable[[], RelayError],
    ) -> None:
        """``fault`` logs the exception in flight and returns what a client is told of it."""
        self._ledger = ledger
        self._directory = directory
        self._committer = committer
        self._index = index
        self._log = log
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._waiting = 0
        self._catching_up = False
        self._written = self._indexed = -1  # rows, as the ledger's connection counts them
        self._timer: asyncio.TimerHandle | None = None

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {
            "reindex": self.reindex,
            "compact": self.compact,
        }

    def start(self) -> None:
        """Look from time to time whether nothing happens, and catch up then."""
        with self._ledger.guard() as db:
            written = db.total_changes
        if written == self._written != self._indexed:
            self._indexed = written
            self._begin_to_catch_up()
        self._written = written
        self._timer = self._loop.call_later(CATCH_UP_EVERY, self.start)

    def _begin_to_catch_up(self) -> None:
        if not self._catching_up:
            self._catching_up = True
            self._thread.submit(self._catch_up)

    def _catch_up(self) -> None:
        # Whoever searches is told of an error; what waits goes first; the broker may have ended.
        with suppress(RelayError, RuntimeError):
            if self._index.catch_up()[1]:
                self._thread.submit(self._catch_up)
                return
        self._catching_up = False

    def close(self) -> None:
        """End what runs; the index goes on from there another time."""
        if self._timer is not None:
            self._timer.cancel()
        self._index.interrupt()
        self._thread.submit(self._index.close)
        self._thread.shutdown()

    # -- ops

    def search(
        self,
        request: ClientRequest,
        batch: Batch,
        wanted: Filter,
        limit: int,
        found: Found,
        otherwise: Otherwise,
    ) -> None:
        """Answer ``request`` with what ``found`` makes of the newest ``limit`` rows of both ledgers
        that have ``wanted.grep`` in them."""
        self._run(request, batch, partial(self._index.search, wanted, limit), found, otherwise)

    def reindex(self, request: ClientRequest, batch: Batch) -> None:
        """Begin the index of both ledgers anew, or go on with it."""
        self._directory.check_person(request, "make the search index anew")
        begin = request.fields.get("begin") is True
        call = self._index.make_anew if begin else self._index.catch_up
        self._run(request, batch, call, lambda done, _: {"indexed": done[0], "more": done[1]})

    def compact(self, request: ClientRequest, batch: Batch) -> Json:
        """One step of compacting the agent ledger; without ``really``, what it would do."""
        self._directory.check_person(request, "compact the agent ledger")
        after, before_ms = _number(request, "after"), _number(request, "before_ms")
        really = request.fields.get("really") is True
        if really:
            self._ledger.begin()
        done = compaction.step(
            self._ledger,
            after,
            before_ms=before_ms,
            now_ms=batch.now_ms,
            really=really,
        )
        return {"turns": done.turns, "characters": done.characters, "after": done.following}

    # -- the thread

    def _run(
        self,
        request: ClientRequest,
        batch: Batch,
        call: Callable[[], Any],
        found: Callable[[Any, Batch], Json],
        otherwise: Otherwise | None = None,
    ) -> None:
        if self._waiting >= WAITING_MAX:
            raise RelayError(
                "too many searches wait for their turn", hint="try again in a moment", code="busy"
            )
        request.client.defer()
        self._waiting += 1
        batch.on_failure.append(partial(self._done, request))
        # What is committed with this request is found by it.
        batch.after.append(partial(self._submit, request, call, found, otherwise))

    def _submit(
        self,
        request: ClientRequest,
        call: Callable[[], Any],
        found: Callable[[Any, Batch], Json],
        otherwise: Otherwise | None,
    ) -> None:
        def ended(future: Future[Any]) -> None:
            job = partial(self._answer, request, future, found, otherwise)
            with suppress(RuntimeError):  # the broker has ended meanwhile
                self._loop.call_soon_threadsafe(self._committer.submit_job, job)

        try:
            future = self._thread.submit(call)
        except RuntimeError:  # the broker ends
            future = Future()
            future.set_exception(RelayError("the broker stops", hint="try again", code="busy"))
        future.add_done_callback(ended)

    def _answer(
        self,
        request: ClientRequest,
        future: Future[Any],
        found: Callable[[Any, Batch], Json],
        otherwise: Otherwise | None,
        batch: Batch,
    ) -> None:
        batch.owed.append(request)
        batch.on_failure.append(partial(self._done, request))
        batch.after.append(partial(self._done, request))
        try:
            result = future.result()
        except RelayError as error:
            if otherwise is not None:
                self._log(f"searched without the index: {error.message}")
                self._begin_to_catch_up()
                otherwise(batch, error)
            else:
                batch.answers.append((request.client, refusal(request.n, error)))
        except Exception:
            batch.answers.append((request.client, refusal(request.n, self._fault())))
        else:
            batch.answer(request.client, request.n, found(result, batch))

    def _done(self, request: ClientRequest) -> None:
        self._waiting -= 1
        request.client.undefer()


def _number(request: ClientRequest, name: str) -> int:
    value = request.fields.get(name)
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise UsageError(f"{name} must be a number from 0 on, not {value!r}")
    return value
