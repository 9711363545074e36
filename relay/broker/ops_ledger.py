"""The ops about the ledgers as a whole: searching them by text, the index of that, compacting.

Searches run in the only thread beside the event loop's, so a search through a million messages
keeps nobody else waiting. It reads committed rows, over connections of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from relay.broker.batch import AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.broker_tasks import LaterAnswers, Then
from relay.broker.kernel import Kernel
from relay.core.errors import RelayError, UsageError
from relay.ledger import agent_ledger
from relay.ledger.queries import Filter
from relay.ledger.search_index import SearchIndex
from relay.protocol.broker_ops import COMPACT, REINDEX, Compact, Compacted, Reindex

#: How often to check whether the index can catch up, in seconds. It does so if nothing was stored
#: since the last check.
CATCH_UP_EVERY = 30.0
#: Searches of all clients that may wait for the thread.
WAITING_MAX = 64


class LedgerOps:
    """Searches both ledgers, and keeps their index."""

    def __init__(self, kernel: Kernel, index: SearchIndex) -> None:
        """``index``: the search index, which this keeps up to date."""
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._index = index
        self._log = kernel.log
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="search")
        self._later = LaterAnswers(kernel, WAITING_MAX)
        self._catching_up = False
        self._written = self._indexed = -1  # rows, as the ledger's connection counts them
        self._timer: asyncio.TimerHandle | None = None

    def ops(self) -> list[Served]:
        return [serve(REINDEX, self.reindex), serve(COMPACT, self.compact)]

    def start(self) -> None:
        """Have the index catch up whenever nothing happens."""
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
        # A search reports the error itself; waiting searches go first; the broker may have ended.
        with suppress(RelayError, RuntimeError):
            if self._index.catch_up()[1]:
                self._thread.submit(self._catch_up)
                return
        self._catching_up = False

    def close(self) -> None:
        """End the running work; the index continues from there another time."""
        if self._timer is not None:
            self._timer.cancel()
        self._index.interrupt()
        self._thread.submit(self._index.close)
        self._thread.shutdown()

    # -- ops

    def search(
        self, request: AnyRequest, batch: Batch, wanted: Filter, limit: int, then: Then
    ) -> None:
        """Answer ``request`` with what ``then`` makes of the newest ``limit`` rows of both ledgers
        that contain ``wanted.grep``; of a RelayError where there is no index to search."""
        self._later.answer(request, batch, partial(self._search, wanted, limit), then)

    def reindex(self, request: ClientRequest[Reindex], batch: Batch) -> None:
        """Rebuild the index of both ledgers, or continue that."""
        self._directory.check_person(request, "make the search index anew")
        call = self._index.make_anew if request.fields.get("begin") else self._index.catch_up
        work = partial(self._in_thread, call)
        self._later.answer(
            request, batch, work, lambda done, _: {"indexed": done[0], "more": done[1]}
        )

    def compact(self, request: ClientRequest[Compact], batch: Batch) -> Compacted:
        """Compact the agent ledger, one step; without ``really``, only say what it would do."""
        self._directory.check_person(request, "compact the agent ledger")
        fields = request.fields
        after, before_ms, really = (
            fields.get("after", 0),
            fields["before_ms"],
            fields.get("really", False),
        )
        if not 0 <= after < 1 << 53 or not 0 <= before_ms < 1 << 53:
            raise UsageError("after and before_ms are numbers from 0 on")
        if really:
            self._ledger.begin()
        done = agent_ledger.compact(
            self._ledger,
            after,
            before_ms=before_ms,
            now_ms=batch.now_ms,
            really=really,
        )
        return {"turns": done.turns, "characters": done.characters, "after": done.following}

    # -- the thread

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        try:
            running = self._loop.run_in_executor(self._thread, call)
        except RuntimeError as error:
            raise RelayError("the broker stops", hint="try again", code="busy") from error
        return await running

    async def _search(self, wanted: Filter, limit: int) -> Any:
        try:
            return await self._in_thread(partial(self._index.search, wanted, limit))
        except RelayError as error:
            self._log.write(f"searched without the index: {error.message}")
            self._begin_to_catch_up()
            return error
