"""Group commit: requests that arrive while a commit runs are committed together.

Everything runs in the event loop's thread, the wait for the disk too. In a thread of its own it
would cost more than reading on meanwhile gains (measured: 64 in flight, a sixth).
Nothing is answered before its commit has returned; when it fails, all of the batch get the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TypeVar

from relay.broker.batch import Accepted, AnyRequest, Batch, Client, Handler, Job, Observer
from relay.broker.door import BrokerFeature
from relay.core.dispatch import RELAY_CHANNEL
from relay.core.errors import RelayError, StorageError
from relay.core.ids import new_ulid
from relay.core.log import Log
from relay.core.message import State
from relay.ledger import event_rows, obligation_rows, queries
from relay.ledger.store import DeliveryTuple, EventTuple, Ledger
from relay.protocol.broker import refusal
from relay.protocol.message_ops import SEND, DeliveryState, EventStored, MessageSent

#: The most requests in one commit; others wait for the next one.
BATCH_MAX = 1024
#: The time slice of one client, in seconds: a client that uses it up goes to the back of the queue.
TURN = 0.01
#: Requests after which the clock is looked at among messages: fewer are not worth a commit.
WORTH_A_COMMIT = 64
#: Seconds until a job is done again that was undone.
AGAIN_AFTER = 1.0
#: Ops whose messages a batch collects. Before any other op they are written, so that it finds them.
_COLLECTED = frozenset({"send", "event"})
#: Ops that refuse before they write, so that nothing has to be undone.
_CHECKED_FIRST = _COLLECTED | {"state"}
#: Ops that change nothing: they are skipped for a client that has gone.
_QUESTIONS = frozenset({"history", "inbox", "sent", "show", "agents", "hook_log"})

T = TypeVar("T")


class Committer:
    """Takes requests, runs them in order, commits them in groups."""

    def __init__(
        self,
        ledger: Ledger,
        features: BrokerFeature | None = None,
        *,
        log: Log,
        ledger_failed: Callable[[StorageError], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._features = features or BrokerFeature()
        self._log = log
        self._ledger_failed = ledger_failed
        self._now_ms = now_ms
        #: Reports to hooks what is stored; a feature sets it.
        self.observer: Observer | None = None
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[Handler, AnyRequest] | Job] = deque()
        self._scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, handler: Handler, request: AnyRequest) -> None:
        """Queue one request. Each connection bounds how many of its own are queued."""
        self._pending.append((handler, request))
        if not self._scheduled:
            self._schedule()

    def submit_job(self, job: Job) -> None:
        """Queue work of the broker itself."""
        self._pending.append(job)
        if not self._scheduled:
            self._schedule()

    async def commit(self, job: Callable[[Batch], T]) -> T:
        """Do ``job`` in a batch, and return what it returns once that is on the disk.

        If that fails the job is done again, in a later batch, until it succeeds: what it changes
        in memory must bear that. A fault of the job itself is in the broker's log.
        """
        while True:
            outcome: asyncio.Future[T] = self._loop.create_future()
            self.submit_job(partial(_attempt, job, outcome))
            try:
                return await outcome
            except _NotStored:
                await asyncio.sleep(AGAIN_AFTER)

    def _schedule(self) -> None:
        # After all readable sockets have been read, so that their requests share the commit.
        self._scheduled = True
        self._idle.clear()
        self._loop.call_soon(self._run)

    async def drain(self) -> None:
        """Wait until everything submitted so far is dealt with."""
        await self._idle.wait()

    def _run(self) -> None:
        self._scheduled = False
        try:
            self._finish(self._next_batch())
        finally:
            if not self._pending:
                self._idle.set()
            elif not self._scheduled:
                # Not in a loop: a long search must let the sockets be read between its steps.
                self._schedule()

    def _next_batch(self) -> Batch:
        """Run the pending requests and commit them."""
        pending = self._pending
        batch = Batch(self._now_ms(), self.observer)
        end = monotonic() + TURN
        try:
            for at in range(min(len(pending), BATCH_MAX)):
                entry = pending.popleft()
                if isinstance(entry, tuple):
                    self._apply(batch, *entry)
                    if (not batch.sends or at % WORTH_A_COMMIT == 0) and monotonic() > end:
                        self._let_others_pass(entry[1].client)
                        break
                else:
                    self._do(batch, entry)
                if batch.cut:
                    break
            self._write(batch)
            for job in batch.last:
                self._do(batch, job)
            if self._ledger.in_transaction:
                self._ledger.commit()
        except StorageError as error:
            failed = self._failed(batch, error)
            self._ledger_failed(error)
            return failed
        except Exception:
            return self._failed(batch, self._log.fault())
        return batch

    def _let_others_pass(self, client: Client) -> None:
        """Move the other requests of ``client`` to the back of the queue, in their order."""
        rest: deque[tuple[Handler, AnyRequest] | Job] = deque()
        last: list[tuple[Handler, AnyRequest]] = []
        for one in self._pending:
            if isinstance(one, tuple) and one[1].client is client:
                last.append(one)
            else:
                rest.append(one)
        rest.extend(last)
        self._pending = rest

    def _apply(self, batch: Batch, handler: Handler, request: AnyRequest) -> None:
        batch.requests.append(request)
        if request.client.closed and request.op in _QUESTIONS:
            return
        if batch.sends and request.op not in _COLLECTED:
            self._write(batch)
        try:
            if request.op in _CHECKED_FIRST:
                fields = handler(request, batch)
            else:
                with self._ledger.part(), batch.part():
                    fields = handler(request, batch)
            if fields is not None:
                batch.answer(request.client, request.n, fields)
        except StorageError:
            raise
        except RelayError as error:
            batch.answers.append((request.client, refusal(request.n, error)))
        except Exception:
            batch.answers.append((request.client, refusal(request.n, self._log.fault())))

    def _do(self, batch: Batch, job: Job) -> None:
        owed = len(batch.owed)
        try:
            with self._ledger.part(), batch.part():
                job(batch)
        except StorageError:
            raise
        except Exception as failed:
            # Only the requests that the job continues are concerned.
            requests = batch.owed[owed:]
            told = failed if requests and isinstance(failed, RelayError) else self._log.fault()
            batch.answers += [(one.client, refusal(one.n, told)) for one in requests]

    def _failed(self, batch: Batch, error: RelayError) -> Batch:
        """The batch to finish in the place of ``batch``: every request gets the error."""
        self._ledger.rollback()
        refused = dict.fromkeys(batch.requests + batch.owed)  # each once
        self._log.write(f"refused {len(refused)} requests: {error.message}")
        failed = Batch(batch.now_ms)
        failed.requests = batch.requests
        failed.after = batch.on_failure
        failed.answers = [(one.client, refusal(one.n, error)) for one in refused]
        return failed

    def _finish(self, batch: Batch) -> None:
        """Answer a batch that is committed or refused, and do what follows from it."""
        for client, line in batch.answers:
            client.send(line)
        for call in batch.after:
            call()
        for request in batch.requests:
            request.client.answered(request.size)

    # -- the messages of a batch become rows, many at a time

    def _write(self, batch: Batch) -> None:
        """Write the messages that the batch collected; they go from ``sends`` to ``stored``."""
        if not batch.sends:
            return
        sends, batch.sends = batch.sends, []
        ledger = self._ledger
        given = [message.id for message in sends if message.given]
        known = ledger.known(given) if given else set()
        events: list[EventTuple] = []
        deliveries: list[DeliveryTuple] = []
        repeated: list[Accepted] = []
        for message in sends:
            if message.id in known if message.outside is None else _is_told(message, known, ledger):
                repeated.append(message)
                continue
            known.add(message.id)
            message.seq = ledger.next_seq()
            message.created_ms = batch.now_ms
            batch.stored.append(message)
            if message.outside is not None:
                ledger.begin()
                event_rows.add(ledger, _outside(message), message.outside)
            else:
                if message.thread is not None:
                    ledger.begin()
                    event_rows.note_thread(ledger, RELAY_CHANNEL, message.thread, batch.now_ms)
                events.append(_event(message))
                deliveries += _deliveries(message, ledger)
            _answer(message, batch)
        if len(repeated) < len(sends):
            ledger.begin()
            ledger.add(events, deliveries)
            stored = [message for message in sends if message.seq]
            for message in stored:
                if message.owed_by:
                    obligation_rows.add(ledger, message.seq, message.owed_by, message.by_message)
            self._features.stored(stored, batch)
        for message in repeated:
            _answer_repeated(ledger, message, batch)


class _NotStored(Exception):
    """A job was undone."""


def _attempt(job: Callable[[Batch], T], outcome: asyncio.Future[T], batch: Batch) -> None:
    """Do a job, and say with ``outcome`` what has become of it."""

    def failed() -> None:
        if not outcome.done():
            outcome.set_exception(_NotStored())

    def stored() -> None:
        if not outcome.done():
            outcome.set_result(value)

    batch.on_failure.append(failed)
    value = job(batch)
    batch.after.append(stored)


def _is_told(message: Accepted, known: set[str], ledger: Ledger) -> bool:
    """Whether this event of another channel is stored already; ``known`` are stored ids. If so, the
    message gets the id of the stored event."""
    outside = message.outside
    if outside is None or outside.source_id is None:
        return message.id in known
    found = event_rows.id_of(ledger, outside.channel, outside.source_id)
    if found is not None:
        message.id = found
    elif message.id in known or ledger.known([message.id]):
        message.id = new_ulid(outside.occurred_ms)
    return found is not None


def _outside(message: Accepted) -> event_rows.OutsideRow:
    head = (message.seq, message.id, message.kind, message.sender)
    return (*head, message.thread, message.body, message.meta, message.created_ms)


def _event(message: Accepted) -> EventTuple:
    head = (message.seq, message.id, message.kind, message.sender, message.origin, message.mode)
    return (*head, message.thread, message.body, message.meta, message.created_ms)


def _deliveries(message: Accepted, ledger: Ledger) -> list[DeliveryTuple]:
    rows: list[DeliveryTuple] = []
    for one in message.routing.routes if message.routing is not None else ():
        state, number = one.state, ledger.next_number(one.to)
        reason = None if state is State.QUEUED else one.reason
        step = (0 if state.final else 1, str(state), reason, message.created_ms)
        rows.append((message.seq, one.to, number, *step, message.hops, int(one.parked)))
    message.numbers = [row[2] for row in rows]
    return rows


def _answer(message: Accepted, batch: Batch) -> None:
    routing = message.routing
    request = message.request
    if request is None:
        return
    if routing is None:
        event: EventStored = {"id": message.id, "from": message.sender, "duplicate": False}
        batch.answer(request.client, request.n, event)
        return
    deliveries: list[DeliveryState] = []
    for one in routing.routes:
        delivery: DeliveryState = {"to": one.to, "state": one.state, "reason": one.reason}
        if one.parked:
            delivery["parked"] = True
        deliveries.append(delivery)
    sent: MessageSent = {
        "id": message.id,
        "from": message.sender,
        "duplicate": False,
        "deliveries": deliveries,
        "did_you_mean": routing.did_you_mean,
        "present": routing.present,
    }
    batch.answer(request.client, request.n, sent)


def _answer_repeated(ledger: Ledger, message: Accepted, batch: Batch) -> None:
    request = message.request
    if request is None:
        return
    if request.op != SEND:
        event: EventStored = {"id": message.id, "from": message.sender, "duplicate": True}
        batch.answer(request.client, request.n, event)
        return
    deliveries: list[DeliveryState] = [
        {"to": row["to"], "state": row["state"], "reason": row["reason"]}
        for row in queries.deliveries(ledger, message.id)
    ]
    sent: MessageSent = {
        "id": message.id,
        "from": message.sender,
        "duplicate": True,
        "deliveries": deliveries,
    }
    batch.answer(request.client, request.n, sent)
