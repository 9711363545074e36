"""Has events evaluated by route functions, and stores what they said with what follows from it.

An event that a configuration is to evaluate has a row for it in ``evaluations_due`` from the commit
that stored the event. That row goes with the commit that has the evaluations and the dispatches:
a broker that is killed in between begins again with what is due, and an answer that comes twice
finds nothing due. An event during whose evaluation the worker ends is asked for again, alone;
after ``DEATHS_MAX`` ends that is what is recorded of it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
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
    PeerKind,
    dispatch_of,
    merged,
)
from relay.core.errors import RelayError, StorageError, UsageError
from relay.core.paths import Home
from relay.features.personas.dispatch_rows import add_dispatches
from relay.features.personas.ops import HookOff
from relay.features.personas.worker import ERROR_MAX, IN_FLIGHT
from relay.features.personas.workers import ConfigWorker, ConfigWorkers, EventAnswer, RouteAnswer
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import ASKED_KINDS
from relay.ledger.content_files import path_of
from relay.ledger.event_rows import files_of
from relay.ledger.persons import sender_type, with_address
from relay.ledger.schema import ORIGINAL
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

#: Ends of its worker after which an event is given up.
DEATHS_MAX = 3
#: Seconds until what could not be done is tried again.
AGAIN_AFTER = 1.0
BUSY_AFTER = 15.0
#: Before a key, while the person has to decide on the event.
HELD = "held/"
#: Evaluations that are looked at to count them.
COUNTED_MAX = 10_000
#: Of an event's metadata, what relay adds to it.
_OWN = frozenset({"person", "to", "files"})


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
        self.disabled: dict[str, HookOff] = disabled_hooks(kernel.ledger)
        self._closed = False

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        for key in due_configs(self._ledger):
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

    def switched(self, hook_id: str, off: HookOff | None) -> None:
        """A hook was switched off, as ``off`` says, or on."""
        if off is None:
            self.disabled.pop(hook_id, None)
        else:
            self.disabled[hook_id] = off
        self._configs.look_again()

    # -- what is to be evaluated

    def _tell_received(self, message: Accepted, batch: Batch) -> None:
        if message.seq:  # else it was a repetition
            event = event_of(self._ledger, self._home, message.seq).to_json()
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
            message.due = tuple(HELD + key for key in message.due)
            return
        for key in keys:
            batch.after.append(partial(self.offer, key))

    def decided(self, seq: int, batch: Batch) -> None:
        """The person has decided on a delivery of an event: has it evaluated if that lets it go."""
        keys = let_go(self._ledger, seq)
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
        seqs = still_due(self._ledger, queue.key, released) if released else []
        found = due(self._ledger, queue.key, queue.cursor, room - len(seqs))
        seqs += [seq for seq, held in found if not held]
        events = [(seq, event_of(self._ledger, self._home, seq)) for seq in seqs]
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
            self._log.write(error.line)
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
            count = drop_due(self._ledger, queue.key)
            told = f"{queue.key} leaves {count} events unevaluated: {why}"
            batch.after.append(partial(self._log.write, told))

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
        hops = settle(self._ledger, queue.key, seq)
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
            self._log.write(f"the event {asked.event.id} is given up: {why}")
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
        add_evaluations(self._ledger, queue.key, seq, said.started_ms, rows, said.quiet)
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
        disable_hook(self._ledger, hook_id, reason, seq, batch.now_ms)
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


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """What one route function said of one event. ``latency_us``: microseconds."""

    hook_id: str
    started_ms: int
    latency_us: int
    fired: bool
    result: Json | None = None
    error: str | None = None


def add_due(ledger: Ledger, rows: Iterable[tuple[str, int, int]]) -> None:
    """Events that are to be evaluated, as (config, event, hops), within the open transaction."""
    with ledger.guard() as db:
        db.executemany("INSERT OR IGNORE INTO evaluations_due VALUES (?,?,?)", rows)


def due(ledger: Ledger, config: str, after: int, limit: int) -> list[tuple[int, bool]]:
    """The events beyond ``after`` that ``config`` is to evaluate, in order, each with whether an
    automation holds it up (relay.features.automations.automation_runs)."""
    found = ledger.rows(
        "SELECT event, EXISTS (SELECT 1 FROM evaluations_due b WHERE b.event = d.event"
        " AND b.config = 'automations/blocking') FROM evaluations_due d"
        " WHERE config=? AND event>? ORDER BY event LIMIT ?",
        (config, after, limit),
    )
    return [(row[0], bool(row[1])) for row in found]


def still_due(ledger: Ledger, config: str, events: Sequence[int]) -> list[int]:
    """Those of these events that ``config`` is to evaluate."""
    found = ledger.rows(
        "SELECT event FROM evaluations_due WHERE config=? AND event IN"
        " (SELECT value FROM json_each(?))",
        (config, json.dumps(list(events))),
    )
    return [row[0] for row in found]


def let_go(ledger: Ledger, event: int) -> list[str]:
    """The person has decided on a delivery of this event, within the open transaction. Once none of
    it waits for that any more it is due, unless all of it was refused. Returns under which keys."""
    held = "event=? AND config>='held/' AND config<'held0'"  # as the index has it
    waits, said = ledger.row(
        "SELECT max(parked), max(ifnull(decided,'') NOT LIKE 'refused%') FROM deliveries"
        " WHERE event=?",
        (event,),
    )
    if waits:
        return []
    if not said:
        ledger.change(f"DELETE FROM evaluations_due WHERE {held}", (event,))
        return []
    # As with its deliveries, hops count anew from here.
    change = f"UPDATE evaluations_due SET config=substr(config,{len(HELD) + 1}), hops=0"
    return [row[0] for row in ledger.rows(f"{change} WHERE {held} RETURNING config", (event,))]


def due_configs(ledger: Ledger) -> list[str]:
    """The configurations for which events wait."""
    found = ledger.rows("SELECT DISTINCT config FROM evaluations_due")
    return [row[0] for row in found if not row[0].startswith(HELD)]


def settle(ledger: Ledger, config: str, event: int) -> int | None:
    """The event is evaluated: nothing more is due. Returns its hops; None if nothing was due."""
    found = ledger.row(
        "DELETE FROM evaluations_due WHERE config=? AND event=? RETURNING hops", (config, event)
    )
    return None if found is None else int(found[0])


def drop_due(ledger: Ledger, config: str) -> int:
    """Nothing of ``config`` will be evaluated. Returns how many events were to be."""
    return ledger.change("DELETE FROM evaluations_due WHERE config=?", (config,))


def add_evaluations(
    ledger: Ledger,
    config: str,
    event: int,
    started_ms: int,
    rows: Sequence[EvaluationRow],
    quiet: str,
) -> None:
    """Append what was said of one event, within the open transaction. ``quiet``: of the route
    functions that said nothing the microseconds that they took, by name, as JSON; what is none is
    left out."""
    with ledger.guard() as db:
        if quiet != "{}":
            db.execute(
                "INSERT OR IGNORE INTO quiet_evaluations"
                " (event, config, started_ms, latencies_json)"
                " SELECT ?1,?2,?3,?4 WHERE json_valid(?4)",
                (event, config, started_ms, quiet),
            )
        db.executemany(
            "INSERT OR IGNORE INTO hook_evaluations VALUES (?,?,?,?,?,?,?)",
            (
                (
                    *(event, one.hook_id, one.started_ms, one.latency_us, one.fired),
                    json.dumps(one.result) if one.result is not None else None,
                    one.error,
                )
                for one in rows
            ),
        )


def of_event(ledger: Ledger, event: int) -> list[Json]:
    """What each route function said of an event (``state``: fired, not fired, failed), and which
    configurations are still to evaluate it (waiting, or held for the person)."""
    said = ledger.rows(
        "SELECT hook_id, CASE WHEN error IS NOT NULL THEN 'failed' WHEN fired THEN 'fired'"
        " ELSE 'not fired' END, error, latency_us FROM evaluations WHERE event=?"
        " ORDER BY fired DESC, hook_id",
        (event,),
    )
    names = ("hook", "state", "error", "latency_us")
    rows = [dict(zip(names, one, strict=True)) for one in said]
    for (config,) in ledger.rows("SELECT config FROM evaluations_due WHERE event=?", (event,)):
        if not config.removeprefix(HELD).startswith("automation"):
            state = "held" if config.startswith(HELD) else "waiting"
            given = (config.removeprefix(HELD), state, None, None)
            rows.append(dict(zip(names, given, strict=True)))
    return rows


def counts(ledger: Ledger, since_ms: int) -> Json:
    """How many of the newest evaluations fired, did not, and failed since then; of very many only
    the last ones are looked at."""
    found = {"fired": 0, "not_fired": 0, "failed": 0}
    with ledger.guard() as db:
        said = db.execute(
            "SELECT CASE WHEN error IS NOT NULL THEN 'failed' WHEN fired THEN 'fired'"
            " ELSE 'not_fired' END, 1, started_ms FROM hook_evaluations"
            " ORDER BY event DESC LIMIT ?",
            (COUNTED_MAX,),
        ).fetchall()
        said += db.execute(
            "SELECT 'not_fired', (SELECT count(*) FROM json_each(latencies_json)), started_ms"
            " FROM quiet_evaluations ORDER BY seq DESC LIMIT ?",
            (COUNTED_MAX,),
        ).fetchall()
    for state, number, started_ms in said:
        found[state] += number if started_ms >= since_ms else 0
    return found


def disabled_hooks(ledger: Ledger) -> dict[str, HookOff]:
    """The hooks that are switched off, by id: reason, event (an id or null), disabled_ms."""
    found = ledger.rows(
        "SELECT d.hook_id, d.reason, e.id, d.disabled_ms FROM disabled_hooks d"
        " LEFT JOIN events e ON e.seq = d.event"
    )
    return {row[0]: {"reason": row[1], "event": row[2], "disabled_ms": row[3]} for row in found}


def disable_hook(ledger: Ledger, hook_id: str, reason: str, event: int | None, now_ms: int) -> None:
    """Switch a hook off until it is enabled, within the open transaction."""
    ledger.change(
        "INSERT OR REPLACE INTO disabled_hooks VALUES (?,?,?,?)",
        (hook_id, reason, event, now_ms),
    )


def enable_hook(ledger: Ledger, hook_id: str) -> bool:
    """Switch a hook on again, within the open transaction. Returns whether it was off."""
    return bool(ledger.change("DELETE FROM disabled_hooks WHERE hook_id=?", (hook_id,)))


def event_of(ledger: Ledger, home: Home, seq: int) -> Event:
    """The event number ``seq`` as route functions are given it. Raises KeyError without one."""
    row = ledger.row(
        f"SELECT id, kind, agent, origin, thread, {ORIGINAL}, meta_json, created_ms, channel,"
        " source_id, account, peer_kind, peer, reply_to, content_type, occurred_ms"
        " FROM events e WHERE seq=?",
        (seq,),
    )
    if row is None:
        raise KeyError(seq)
    to: list[str] = []
    if row[1] == "message":
        found = ledger.rows("SELECT recipient FROM deliveries WHERE event=?", (seq,))
        to = [one[0] for one in found]
    meta = json.loads(row[6]) if row[6] else {}
    metadata = {**meta.get("attributes", {}), **(meta.get("meta") or {})}
    if row[8] != RELAY_CHANNEL:
        # What relay says of an event is nothing that somebody outside could have said.
        metadata = {key: one for key, one in metadata.items() if key not in _OWN}
        person = with_address(ledger, row[8], row[2] or "")
        if person is not None:
            metadata["person"] = person.about
    if to:
        metadata["to"] = to
    files = files_of(ledger, seq) if row[8] != RELAY_CHANNEL else []
    if files:
        metadata["files"] = [
            {
                "path": path_of(home, one.sha256),
                "name": one.name,
                "content_type": one.content_type,
                "size": one.size,
            }
            for one in files
        ]
    return Event(
        id=row[0],
        channel=row[8],
        kind=row[1],
        sender=row[2] or "",
        content=row[5] or "",
        timestamp=row[15] or row[7],
        sender_type=sender_type(ledger, row[8], row[2] or "", row[3]),
        source_id=row[9],
        account=row[10],
        peer_kind=PeerKind(row[11] or "dm"),
        peer=row[12],
        thread=row[4],
        reply_to=row[13],
        content_type=row[14] or "text",
        metadata=metadata,
    )
