"""Group commit: requests that arrive while a commit runs are committed together.

Everything runs in the event loop's thread, the wait for the disk too. A thread for it would let
the loop read on meanwhile, but nothing can be handled before the commit is over anyway, and waking
two threads for every commit costs more than reading on gains (measured: 64 in flight, a sixth).
Nothing is answered before its commit has returned. When it fails, every request of the batch gets
the error.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from relay.core.errors import RelayError, StorageError
from relay.ledger.store import Ledger
from relay.protocol.broker import Json, encode, error_fields

if TYPE_CHECKING:
    from relay.broker.connection import Connection
    from relay.broker.insert_messages import Accepted

#: The most requests in one commit; what is beyond waits for the next.
BATCH_MAX = 1024

#: (connection, request, batch) -> the answer's fields, or None when the batch is told otherwise.
Handler = Callable[["Connection | None", Json, "Batch"], "Json | None"]


class Batch:
    """The requests of one commit: what to answer, and what to do once it is on the disk."""

    __slots__ = (
        "now_ms",
        "answers",
        "after",
        "on_failure",
        "sends",
        "stored",
        "changed",
        "cut",
        "asked",
    )

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.answers: list[tuple[Connection, bytes]] = []
        self.after: list[Callable[[], None]] = []
        self.on_failure: list[Callable[[], None]] = []  # instead of ``after``
        self.sends: list[Accepted] = []
        self.stored: list[Accepted] = []  # what was written of them
        self.changed: set[str] = set()  # ids of messages with a delivery that changed
        self.cut = False  # what follows must see this batch committed
        self.asked: list[tuple[Connection | None, Json]] = []

    def answer(self, connection: Connection | None, n: int, fields: Json) -> None:
        """Answer request ``n`` once the batch is committed."""
        if connection is not None:
            self.answers.append((connection, encode({"n": n, "ok": True, **fields})))

    def refuse(self, connection: Connection | None, n: int, error: RelayError) -> None:
        """Answer request ``n`` with an error."""
        if connection is not None:
            self.answers.append((connection, refusal(n, error)))


def refusal(n: int | None, error: RelayError) -> bytes:
    """The line that refuses request ``n``. Always one: an error may name a file whose name is no
    Unicode, which is told with question marks."""
    record = {"n": n, "ok": False, "error": error_fields(error)}
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    return line.encode(errors="replace") + b"\n"


class Committer:
    """Takes requests, runs them in order, commits them in groups."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        flush: Callable[[Batch], None],
        done: Callable[[Batch], None],
        log: Callable[[str], None],
        fault: Callable[[], RelayError],
        now_ms: Callable[[], int],
    ) -> None:
        """``flush`` writes a batch's collected sends; ``done`` is called with every batch that is
        committed or refused; ``fault`` reports the exception in flight and makes an error of it."""
        self._ledger = ledger
        self._flush = flush
        self._done = done
        self._log = log
        self._fault = fault
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[Handler, Connection | None, Json]] = deque()
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, handler: Handler, connection: Connection | None, request: Json) -> None:
        """Queue one request. Connections bound how many they have here."""
        self._pending.append((handler, connection, request))
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        # After all sockets that are readable now were read: they share the commit.
        self._scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._run)

    async def drain(self) -> None:
        """Wait until everything submitted so far is dealt with."""
        await self._idle.wait()

    def _run(self) -> None:
        self._scheduled = False
        try:
            self._done(self._next_batch())
        finally:
            if not self._pending:
                self._idle.set()
            elif not self._scheduled:
                # Not in a loop: a long search must let the sockets be read between its steps.
                self._schedule()

    def _next_batch(self) -> Batch:
        """Apply what is pending and put it on the disk."""
        pending = self._pending
        batch = Batch(self._now_ms())
        try:
            for _ in range(min(len(pending), BATCH_MAX)):
                handler, connection, request = pending.popleft()
                self._apply(batch, handler, connection, request)
                if batch.cut:
                    break
            self._flush(batch)
            if self._ledger.in_transaction:
                self._ledger.commit()
        except StorageError as error:
            return self._failed(batch, error)
        except Exception:
            return self._failed(batch, self._fault())
        return batch

    def _apply(
        self, batch: Batch, handler: Handler, connection: Connection | None, request: Json
    ) -> None:
        n = request["n"]
        batch.asked.append((connection, request))
        try:
            fields = handler(connection, request, batch)
            if fields is not None:
                batch.answer(connection, n, fields)
        except StorageError:
            raise
        except RelayError as error:
            batch.refuse(connection, n, error)
        except Exception:
            batch.refuse(connection, n, self._fault())

    def _failed(self, batch: Batch, error: RelayError) -> Batch:
        """What to finish instead of ``batch``: every request gets the error."""
        self._ledger.rollback()
        self._log(f"refused {len(batch.asked)} requests: {error.message}")
        failed = Batch(batch.now_ms)
        failed.asked = batch.asked
        failed.after = batch.on_failure
        for connection, request in batch.asked:
            failed.refuse(connection, request["n"], error)
        return failed
