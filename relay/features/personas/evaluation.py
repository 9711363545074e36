"""Has events evaluated by route functions, and stores what they said with what follows from it.

An event that a configuration is to evaluate has a row for it in ``evaluations_due`` from the commit
that stored the event. That row goes with the commit that has the evaluations and the dispatches:
a broker that is killed in between begins again with what is due, and an answer that comes twice
finds nothing due. An event during whose evaluation the worker ends is asked for again, alone;
after ``DEATHS_MAX`` ends that is what is recorded of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from relay.broker.batch import Accepted, Batch
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.core import json_text
from relay.core.dispatch import (
    MINUTE,
    RELAY_CHANNEL,
    TICK_KIND,
    TIMER_CHANNEL,
    BrokerDispatch,
    Event,
    HookResult,
    dispatch_of,
    merged,
)
from relay.core.errors import RelayError, StorageError, UsageError
from relay.features.personas import evaluation_rows
from relay.features.personas.dispatch_rows import add_dispatches
from relay.features.personas.evaluation_rows import EvaluationRow
from relay.features.personas.worker import ERROR_MAX, IN_FLIGHT
from relay.features.personas.workers import ConfigWorker, ConfigWorkers, EventAnswer, RouteAnswer
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import ASKED_KINDS
from relay.protocol.broker import Json

#: Ends of its worker after which an event is given up.
DEATHS_MAX = 3
#: Seconds until what could not be done is tried again.
AGAIN_AFTER = 1.0
BUSY_AFTER = 15.0


@dataclass(eq=False, slots=True)
class _Queue:
    """What one configuration has to evaluate. The ledger is the queue; this is the place in it."""

    key: str
    cursor: int = 0
    reading: bool = False
    missed: bool = False  # something came that this reading may not find
    released: list[int] = field(default_factory=list)  # what was held up until now
    waiting: bool = False  # for a while, until something is tried again
    out: set[int] = field(default_factory=set)  # the events that its worker has
    deaths: dict[int, int] = field(default_factory=dict)


class OtherHandlers:
    """What handles events beside route functions, or before them: automations, where that feature
    is installed. This one handles nothing."""

    @property
    def active(self) -> bool:
        """Whether there is anything that handles events."""
        return False

    def owns(self, key: str) -> bool:
        """Whether what is due under this key is for it, and not for route functions."""
        return False

    def keys(
        self, kind: str, channel: str, direction: str | None, sender: str, cwd: str | None
    ) -> tuple[str, ...]:
        """The keys under which such an event is due; ``direction`` None: it is not known yet."""
        return ()

    def mark(self, message: Accepted, member: Member | None, batch: Batch) -> tuple[str, ...]:
        """The keys under which an event will be due; once it is stored, it is gone on with."""
        return ()

    def let_go(self, seq: int, keys: Sequence[str], batch: Batch) -> None:
        """An event that the person had to decide on is due now, under these keys."""

    def enrich(self, seq: int, dispatches: list[BrokerDispatch]) -> list[BrokerDispatch]:
        """The dispatches of an event, with what was added to it."""
        return dispatches


class Evaluations:
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self,
        kernel: Kernel,
        workers: ConfigWorkers,
        *,
        dispatched: Callable[[], None],
    ) -> None:
        """``dispatched`` is called once new dispatches are stored."""
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._configs = kernel.configs
        self._workers = workers
        #: The feature of automations sets it.
        self.others = OtherHandlers()
        self._home = kernel.home
        self._log = kernel.log
        self._dispatched = dispatched
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, _Queue] = {}
        #: The hooks that are switched off, by id.
        self.disabled: dict[str, Json] = evaluation_rows.disabled_hooks(kernel.ledger)
        self._closed = False

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        for key in evaluation_rows.due_configs(self._ledger):
            if not self.others.owns(key):
                self.offer(key)

    def close(self) -> None:
        """Ask nothing more."""
        self._closed = True

    @property
    def busy(self) -> bool:
        """Whether something waits to be evaluated."""
        return any(one.out or one.waiting or one.reading for one in self._queues.values())

    def wants_ticks(self) -> bool:
        """Whether a route function or an automation wants an event every minute."""
        about = TICK_KIND, TIMER_CHANNEL
        wanted = self._configs.wanted(None, *about, self.disabled)
        return bool(wanted or self.others.keys(*about, None, MINUTE, None))

    def problems(self) -> dict[str, str]:
        """Why configurations evaluate nothing, by their paths."""
        return dict(self._workers.problems)

    def switched(self, hook_id: str, off: Json | None) -> None:
        """A hook was switched off, as ``off`` says, or on."""
        if off is None:
            self.disabled.pop(hook_id, None)
        else:
            self.disabled[hook_id] = off
        self._configs.look_again()

    # -- what is to be evaluated

    def _tell_received(self, message: Accepted, batch: Batch) -> None:
        if message.seq:  # else it was a repetition
            event = evaluation_rows.event_of(self._ledger, self._home, message.seq).to_json()
            batch.observe(HookEventName.AFTER_RECEIVE_EVENT, lambda: {"received": event})

    def mark(self, message: Accepted, member: Member | None, batch: Batch) -> None:
        """Have a message or an event of ``member`` evaluated once it is stored; None: of no agent.

        What is held for the person is not before it is let go: it has not been said yet.
        """
        if batch.is_observed(HookEventName.AFTER_RECEIVE_EVENT):
            batch.last.append(partial(self._tell_received, message))
        cwd = None if member is None else member.record.cwd or None
        channel = RELAY_CHANNEL if message.outside is None else message.outside.channel
        keys = self._configs.wanted(cwd, message.kind, channel, self.disabled)
        if not (keys or self.others.active):
            return
        message.due = keys + self.others.mark(message, member, batch)
        if message.parked:
            message.due = tuple(evaluation_rows.HELD + key for key in message.due)
            return
        for key in keys:
            batch.after.append(partial(self.offer, key))

    def decided(self, seq: int, batch: Batch) -> None:
        """The person has decided on a delivery of an event: has it evaluated if that lets it go."""
        keys = evaluation_rows.let_go(self._ledger, seq)
        if keys:
            self.others.let_go(seq, keys, batch)
        ours = [key for key in keys if not self.others.owns(key)]
        batch.after += [partial(self.offer, key) for key in ours]

    def wants(self, member: Member) -> list[str]:
        """The kinds of events of ``member`` that are told only where something listens."""
        cwd = member.record.cwd or None
        return [
            kind
            for kind in sorted(ASKED_KINDS)
            if self._configs.wanted(cwd, kind, RELAY_CHANNEL, self.disabled)
            or self.others.keys(kind, RELAY_CHANNEL, "sent", member.name, cwd)
        ]

    def offer(self, key: str) -> None:
        """Read on in what ``key`` has to evaluate, if its worker has room."""
        queue = self._queues.setdefault(key, _Queue(key))
        if queue.reading:
            queue.missed = True
            return
        if queue.waiting or self._closed or len(queue.out) >= self._room(queue):
            return
        queue.reading = True
        self._committer.submit_job(partial(self._read, queue))

    def release(self, seq: int) -> None:
        """Go on with an event that automations, or the person, have held up."""
        for key, queue in self._queues.items():
            queue.released.append(seq)
            self.offer(key)

    def _room(self, queue: _Queue) -> int:
        # After an end it gets one event at a time, so that it is known which one ends it.
        return 1 if queue.deaths else IN_FLIGHT

    def _read(self, queue: _Queue, batch: Batch) -> None:
        batch.on_failure.append(partial(self._later, queue, AGAIN_AFTER))
        room = self._room(queue) - len(queue.out)
        released = queue.released[:room]
        seqs = evaluation_rows.still_due(self._ledger, queue.key, released) if released else []
        found = evaluation_rows.due(self._ledger, queue.key, queue.cursor, room - len(seqs))
        seqs += [seq for seq, held in found if not held]
        events = [(seq, evaluation_rows.event_of(self._ledger, self._home, seq)) for seq in seqs]
        more = len(released) + len(found) >= room
        done = partial(self._ask_all, queue, events, found[-1][0] if found else 0, more)
        batch.after += [lambda: queue.released.__delitem__(slice(len(released))), done]

    def _ask_all(
        self, queue: _Queue, events: list[tuple[int, Event]], cursor: int, more: bool
    ) -> None:
        queue.reading = False
        queue.cursor = max(queue.cursor, cursor)
        if events:
            self._ask(queue, events)
        if more or queue.missed:
            queue.missed = False
            self.offer(queue.key)

    def _ask(self, queue: _Queue, events: list[tuple[int, Event]]) -> None:
        config = self._configs.by_key(queue.key)
        if config is None:
            self._drop(queue, "its configuration is not trusted any more")
            return
        try:
            worker = self._workers.get(config)
        except RelayError as error:
            self._log(error.line)
            self._later(queue, BUSY_AFTER)
            return
        off = [one.partition("/")[2] for one in self.disabled if one.startswith(f"{config.key}/")]
        for seq, event in events:
            queue.cursor = max(queue.cursor, seq)
            if seq in queue.out:
                continue
            queue.out.add(seq)
            fields: Json = {"do": "evaluate", "event": event.to_json(), "skip": off}
            asked = _Asked(queue, worker, seq, event)
            worker.ask(fields).add_done_callback(partial(self._answered, asked))

    def _later(self, queue: _Queue, seconds: float) -> None:
        queue.reading = False
        queue.waiting = True

        def again() -> None:
            queue.waiting = False
            queue.cursor = 0
            self.offer(queue.key)

        self._loop.call_later(seconds, again)

    def _drop(self, queue: _Queue, why: str) -> None:
        """Evaluate nothing of what is due: who reads the log sees why."""

        def drop(batch: Batch) -> None:
            self._ledger.begin()
            count = evaluation_rows.drop_due(self._ledger, queue.key)
            told = f"{queue.key} leaves {count} events unevaluated: {why}"
            batch.after.append(partial(self._log, told))

        queue.deaths.clear()
        self._committer.submit_job(drop)

    # -- what was said

    def _answered(self, asked: _Asked, answer: asyncio.Future[Json]) -> None:
        if self._closed:
            return
        error = answer.exception()
        if error is None:
            try:
                self._submit(asked, EventAnswer.of(answer.result()))
            except (KeyError, TypeError, ValueError):
                asked.worker.kill()
                self._died(asked, "the worker answered nonsense")
        else:
            self._died(asked, str(error))

    def _died(self, asked: _Asked, how: str) -> None:
        """The worker has ended while it had this event."""
        queue, worker, seq, _ = asked
        queue.cursor = min(queue.cursor, seq - 1)
        if not worker.problem:
            queue.deaths[seq] = queue.deaths.get(seq, 0) + 1
            if queue.deaths[seq] >= DEATHS_MAX:
                told = f"{how}, {DEATHS_MAX} times while this was evaluated"
                self._submit(asked, _failed(asked, told))
                return
        queue.out.discard(seq)
        if queue.out:
            return
        if worker.problem:
            self._drop(queue, worker.problem)
        else:
            self.offer(queue.key)

    def _submit(self, asked: _Asked, said: EventAnswer) -> None:
        self._committer.submit_job(partial(self._record, asked, said))

    def _record(self, asked: _Asked, said: EventAnswer, batch: Batch) -> None:
        """Store the evaluations and the dispatches of one event, in one commit."""
        queue, seq = asked.queue, asked.seq
        again = partial(self._submit, asked, said)
        batch.on_failure.append(lambda: self._loop.call_later(AGAIN_AFTER, again))
        self._ledger.begin()
        hops = evaluation_rows.settle(self._ledger, queue.key, seq)
        batch.after.append(partial(self._recorded, queue, seq))
        if hops is None:
            return
        try:
            with self._ledger.part(), batch.part():
                self._store(asked, hops, said, batch)
        except StorageError:
            raise
        except Exception as error:
            why = f"what was said of it cannot be stored: {type(error).__name__}: {error}"
            self._log(f"the event {asked.event.id} is given up: {why}")
            self._store(asked, hops, _failed(asked, why[:ERROR_MAX]), batch)

    def _store(self, asked: _Asked, hops: int, said: EventAnswer, batch: Batch) -> None:
        queue, worker, seq, event = asked
        rows, dispatches = [], []
        for one in said.said:
            row, result = self._row(queue.key, one, said.started_ms)
            rows.append(row)
            if result is None:
                continue
            if result.disable_hook:
                self._disable(row.hook_id, seq, event.id, batch)
            if result.fire:
                priority = worker.priorities.get(one.name, 0)
                dispatches.append(dispatch_of(event, row.hook_id, result, priority))
        evaluation_rows.add_evaluations(
            self._ledger, queue.key, seq, said.started_ms, rows, said.quiet
        )
        if (worker.ready or {}).get("merge") == "same_session":
            dispatches = merged(dispatches)
        dispatches = self.others.enrich(seq, dispatches)
        if dispatches:
            add_dispatches(
                self._ledger, seq, dispatches, config=queue.key, hops=hops + 1, now_ms=batch.now_ms
            )
            batch.after.append(self._dispatched)

    def _row(
        self, key: str, one: RouteAnswer, started_ms: int
    ) -> tuple[EvaluationRow, HookResult | None]:
        """The row of what one function said, and its result where that counts."""
        hook_id = f"{key}/{one.name}"
        row = EvaluationRow(hook_id, started_ms, one.latency_us, False, error=one.error)
        if one.error is not None or one.result is None:
            return row, None
        if hook_id in self.disabled:
            return replace(row, error="an earlier event had switched it off"), None
        try:
            result = HookResult.of(one.result)
            json_text.size_of(result.to_json())
        except (UsageError, ValueError) as wrong:
            return replace(row, error=str(wrong)[:ERROR_MAX]), None
        return replace(row, fired=result.fire, result=result.to_json()), result

    def _disable(self, hook_id: str, seq: int, event: str, batch: Batch) -> None:
        reason = "it disabled itself"
        evaluation_rows.disable_hook(self._ledger, hook_id, reason, seq, batch.now_ms)
        # At once: another event of this batch may find it fired too.
        self.disabled[hook_id] = {"reason": reason, "event": event, "disabled_ms": batch.now_ms}
        self._configs.look_again()
        batch.on_failure.append(partial(self.switched, hook_id, None))

    def _recorded(self, queue: _Queue, seq: int) -> None:
        queue.out.discard(seq)
        queue.deaths.pop(seq, None)
        self.offer(queue.key)


class _Asked(NamedTuple):
    """An event that a worker was asked of."""

    queue: _Queue
    worker: ConfigWorker
    seq: int
    event: Event


def _failed(asked: _Asked, why: str) -> EventAnswer:
    """That it is given up, and by all functions."""
    return EventAnswer(asked.event.timestamp, [RouteAnswer("*", 0, None, why)], "{}")
