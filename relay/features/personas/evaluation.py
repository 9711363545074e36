"""Has events evaluated by route functions, and stores what they said with what follows from it.

What is to be evaluated is due from the commit that stores the event to the one that has the
evaluations and the dispatches (relay.features.personas.due_rows). An event during whose evaluation
the worker ends is asked for again, alone; after ``DEATHS_MAX`` ends that is what is recorded of it.
A worker in which a function was given up that still runs is replaced, once it has answered for all
that it has; after ``HUNG_PER_HANDLER`` such calls in a row the function is switched off.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import NamedTuple

from relay.broker.batch import Accepted, Batch
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.committer import AGAIN_AFTER
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
from relay.features.personas import due_rows
from relay.features.personas.dispatch_rows import ORDER, add_dispatches
from relay.features.personas.due_rows import DueState
from relay.features.personas.ops import HookOff
from relay.features.personas.turn_engine import TurnEngine
from relay.features.personas.worker import ERROR_MAX, IN_FLIGHT, EventAnswer, RouteAnswer
from relay.features.personas.workers import Worker, WorkerPool, config_worker
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import ASKED_KINDS
from relay.hooks.run_functions import HUNG_PER_HANDLER
from relay.ledger.content_files import path_of
from relay.ledger.event_rows import files_of
from relay.ledger.persons import sender_type, with_address
from relay.ledger.schema import ORIGINAL
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

#: Ends of its worker after which an event is given up.
DEATHS_MAX = 3
#: Seconds until a worker that could not be started is started again.
BUSY_AFTER = 15.0
#: Evaluations that are looked at to count them.
COUNTED_MAX = 10_000
#: Of an event's metadata, what relay adds to it.
_OWN = frozenset({"person", "to", "files"})
#: To whom an event of relay's own channel is.
_TO = {
    "message": "SELECT recipient FROM deliveries WHERE event=?",
    ORDER: "SELECT persona FROM dispatches WHERE event=? ORDER BY seq LIMIT 1",
}


@dataclass(eq=False, slots=True)
class _Lane:
    """What one configuration has to evaluate. The ledger is the queue; this is the place in it."""

    key: str
    cursor: int = 0  # events until here were read; only a release or a failure goes back
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    out: set[int] = field(default_factory=set)  # the events that its worker has
    alone: bool = False  # it has one during which a worker has ended
    problem: str = ""  # why nothing can be evaluated

    @property
    def room(self) -> int:
        """How many events may go to its worker now."""
        return 0 if self.problem or self.alone else IN_FLIGHT - len(self.out)


class Marked(NamedTuple):
    """The handlers to which an event will be due, and whether they go before all others."""

    handlers: tuple[str, ...] = ()
    blocking: bool = False


class OtherHandlers:
    """What handles events beside route functions, or before them: automations, where that feature
    is installed. This one handles nothing."""

    @property
    def active(self) -> bool:
        """Whether there is anything that handles events."""
        return False

    def owns(self, handler: str) -> bool:
        """Whether what is due to this handler is for it, and not for route functions."""
        return False

    def wants(
        self, kind: str, channel: str, direction: str | None, sender: str, cwd: str | None
    ) -> bool:
        """Whether it may handle such an event; ``direction`` None: it is not known yet."""
        return False

    def mark(self, message: Accepted, batch: Batch) -> Marked:
        """To which of its handlers an event is due, that was stored with the batch."""
        return Marked()

    def let_go(self, seq: int, batch: Batch) -> bool:
        """An event that the person had to decide on is ready, for its handlers too. Returns whether
        they go before all others."""
        return False

    def ordered(self, seq: int, hops: int, batch: Batch) -> None:
        """The person asks a persona something: the event ``seq``, which is stored with the batch
        and its dispatch."""

    def enrich(self, seq: int, dispatches: list[BrokerDispatch]) -> list[BrokerDispatch]:
        """The dispatches of an event, with what was added to it."""
        return dispatches


class Evaluations:
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self,
        kernel: Kernel,
        workers: WorkerPool,
        engine: TurnEngine,
    ) -> None:
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._configs = kernel.configs
        self._workers = workers
        #: The feature of automations sets it.
        self.others = OtherHandlers()
        self._home = kernel.home
        self._log = kernel.log
        self._engine = engine
        self._lanes: dict[str, _Lane] = {}
        self._tasks = BrokerTasks(kernel)
        self._hangs: Counter[str] = Counter()  # calls in a row that did not end, by the hook's id
        #: The hooks that are switched off, by id.
        self.disabled: dict[str, HookOff] = disabled_hooks(kernel.ledger)

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        for key in due_rows.handlers(self._ledger):
            if not self.others.owns(key):
                self.offer(key)

    async def close(self) -> None:
        """Ask nothing more; what is due is asked by the next broker."""
        await self._tasks.close()

    @property
    def busy(self) -> bool:
        """Whether something waits to be evaluated."""
        return bool(self._lanes)

    def wants_ticks(self) -> bool:
        """Whether a route function or an automation wants an event every minute."""
        about = TICK_KIND, TIMER_CHANNEL
        wanted = self._configs.wanted(None, *about, self.disabled)
        return bool(wanted or self.others.wants(*about, None, MINUTE, None))

    def problems(self) -> dict[str, str]:
        """Why configurations evaluate nothing, by their paths."""
        return dict(self._workers.problems)

    def off(self, key: str) -> list[str]:
        """The names of what is switched off of the configuration ``key``."""
        prefix = f"{key}/"
        return [hook.removeprefix(prefix) for hook in self.disabled if hook.startswith(prefix)]

    def switched(self, hook_id: str, off: HookOff | None) -> None:
        """A hook was switched off, as ``off`` says, or on."""
        if off is None:
            self.disabled.pop(hook_id, None)
            self._hangs.pop(hook_id, None)
        else:
            self.disabled[hook_id] = off
        self._configs.look_again()

    # -- what is to be evaluated

    def mark(self, messages: Sequence[Accepted], batch: Batch) -> None:
        """Have messages and events evaluated that were stored with the batch.

        What is held for the person is not before it is let go: it has not been said yet.
        """
        is_observed = batch.is_observed(HookEventName.AFTER_RECEIVE_EVENT)
        is_active = self.others.active
        due: list[tuple[str, int, str, int]] = []
        offered: dict[str, None] = {}
        for message in messages:
            if not message.handled:
                continue
            if is_observed:
                event = event_of(self._ledger, self._home, message.seq).to_json()
                batch.observe(HookEventName.AFTER_RECEIVE_EVENT, partial(dict, received=event))
            channel = RELAY_CHANNEL if message.outside is None else message.outside.channel
            cwd = message.cwd or None
            keys = self._configs.wanted(cwd, message.kind, channel, self.disabled)
            if not (keys or is_active):
                continue
            others, blocking = self.others.mark(message, batch)
            state = DueState.HELD if message.parked else DueState.READY
            if blocking and state is DueState.READY:
                state = DueState.BLOCKED
            due += [(key, message.seq, state.value, message.hops) for key in (*keys, *others)]
            if state is DueState.READY:
                offered |= dict.fromkeys(keys)
        if due:
            due_rows.add(self._ledger, due)
        batch.after += [partial(self.offer, key) for key in offered]

    def decided(self, seq: int, batch: Batch) -> None:
        """The person has decided on a delivery of an event: has it evaluated if that lets it go."""
        handlers = due_rows.let_go(self._ledger, seq)
        ours = [key for key in handlers if not self.others.owns(key)]
        if len(ours) < len(handlers) and self.others.let_go(seq, batch):
            return
        batch.after += [partial(self.offer, key, seq) for key in ours]

    def wants(self, member: Member) -> list[str]:
        """The kinds of events of ``member`` that are told only where something listens."""
        cwd = member.record.cwd or None
        return [
            kind
            for kind in sorted(ASKED_KINDS)
            if self._configs.wanted(cwd, kind, RELAY_CHANNEL, self.disabled)
            or self.others.wants(kind, RELAY_CHANNEL, "sent", member.name, cwd)
        ]

    def offer(self, key: str, seq: int | None = None) -> None:
        """Something is due to the configuration ``key``: a new event, or ``seq``, which was held
        up until now."""
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(key)
            self._tasks.start(self._work_off(lane))
        if seq is not None:
            lane.cursor = min(lane.cursor, seq - 1)
        lane.woken.set()

    # -- the way of an event: read, asked, recorded

    async def _work_off(self, lane: _Lane) -> None:
        """Have all that is due to one configuration evaluated, until nothing is."""
        try:
            while True:
                lane.woken.clear()
                pause = self._ask_for_due(lane)
                if pause:
                    await asyncio.sleep(pause)
                    lane.cursor = 0
                elif lane.out:
                    await lane.woken.wait()
                elif lane.problem:
                    await self._committer.commit(partial(self._drop, lane))
                    lane.problem = ""
                elif not lane.woken.is_set():
                    return
        finally:
            del self._lanes[lane.key]

    def _ask_for_due(self, lane: _Lane) -> float:
        """Have events evaluated that are due, as many as there is room for. Returns the seconds
        until it is tried again; 0: it need not be."""
        try:
            rows = due_rows.first(
                self._ledger, lane.key, lane.room, after=lane.cursor, without=lane.out
            )
            if rows and rows[0].tries:  # so it is known which one ends the worker
                rows = [] if lane.out else rows[:1]
            rows = rows[:1] + list(takewhile(lambda row: not row.tries, rows[1:]))
            config = self._configs.by_key(lane.key)
            if not rows:
                return 0
            if config is None:
                lane.problem = "its configuration is not trusted any more"
                return 0
            worker = self._workers.get(config_worker(self._home, config))
            if worker.spent:  # what it still has ends first
                return 0
            events = [(row.event, event_of(self._ledger, self._home, row.event)) for row in rows]
        except StorageError:
            return AGAIN_AFTER
        except RelayError as error:
            self._log.write(error.line)
            return BUSY_AFTER
        lane.alone = rows[0].tries > 0
        for seq, event in events:
            lane.cursor = max(lane.cursor, seq)
            lane.out.add(seq)
            self._tasks.start(self._evaluate(_Asked(lane, worker, seq, event)))
        return 0

    async def _evaluate(self, asked: _Asked) -> None:
        """Ask the worker what it says of one event, and store that."""
        lane, seq = asked.lane, asked.seq
        try:
            answer = await self._answer(asked)
            if answer is not None:
                await self._committer.commit(partial(self._record, asked, answer))
        finally:
            lane.out.discard(seq)
            lane.alone = lane.alone and bool(lane.out)
            if asked.worker.spent and not lane.out:
                asked.worker.retire()
            lane.woken.set()

    async def _answer(self, asked: _Asked) -> EventAnswer | None:
        """What the worker says. None: it has ended, and the event stays due."""
        lane, worker, seq, event = asked
        question: Json = {"do": "evaluate", "event": event.to_json(), "skip": self.off(lane.key)}
        try:
            return self._counted(asked, EventAnswer.of(await worker.ask(question)))
        except RelayError as error:
            how = str(error)
        except (KeyError, TypeError, ValueError):
            worker.kill()
            how = "the worker answered nonsense"
        if worker.problem:
            lane.problem = worker.problem
        elif await self._committer.commit(partial(self._note_try, lane, seq)) >= DEATHS_MAX:
            return _failed(event, f"{how}, {DEATHS_MAX} times while this was evaluated")
        lane.cursor = min(lane.cursor, seq - 1)
        return None

    def _counted(self, asked: _Asked, answer: EventAnswer) -> EventAnswer:
        """Count the calls that hang, and have their worker replaced. Returns the answer with those
        of its functions in ``hung`` that are to be switched off."""
        hung = [f"{asked.lane.key}/{name}" for name in answer.hung]
        asked.worker.spent = asked.worker.spent or bool(hung)
        if self._hangs:
            quiet = json.loads(answer.quiet)
            ended = [*quiet, *(one.name for one in answer.said if one.error is None)]
            for name in ended:
                self._hangs.pop(f"{asked.lane.key}/{name}", None)
        self._hangs.update(hung)
        return answer._replace(hung=[one for one in hung if self._hangs[one] >= HUNG_PER_HANDLER])

    def _note_try(self, lane: _Lane, seq: int, batch: Batch) -> int:
        self._ledger.begin()
        return due_rows.again(self._ledger, lane.key, seq)

    def _drop(self, lane: _Lane, batch: Batch) -> None:
        """Evaluate nothing of what is due: who reads the log sees why."""
        self._ledger.begin()
        count = len(due_rows.drop(self._ledger, lane.key))
        batch.after.append(
            partial(
                self._log.write, f"{lane.key} leaves {count} events unevaluated: {lane.problem}"
            )
        )

    def _record(self, asked: _Asked, answer: EventAnswer, batch: Batch) -> None:
        """Store the evaluations and the dispatches of one event, in one commit."""
        self._ledger.begin()
        hops = due_rows.settle(self._ledger, asked.lane.key, asked.seq)
        if hops is None:
            return
        try:
            with self._ledger.part(), batch.part():
                self._store(asked, hops, answer, batch)
        except StorageError:
            raise
        except Exception as error:
            why = f"what was said of it cannot be stored: {type(error).__name__}: {error}"
            self._log.write(f"the event {asked.event.id} is given up: {why}")
            self._store(asked, hops, _failed(asked.event, why[:ERROR_MAX]), batch)

    def _store(self, asked: _Asked, hops: int, said: EventAnswer, batch: Batch) -> None:
        lane, worker, seq, event = asked
        rows, dispatches = [], []
        for one in said.said:
            row, result = self._row(lane.key, one, said.started_ms)
            rows.append(row)
            if result is None:
                continue
            if result.disable_hook:
                self._disable(row.hook_id, "it disabled itself", asked, batch)
            if result.fire:
                priority = worker.priorities.get(one.name, 0)
                dispatches.append(dispatch_of(event, row.hook_id, result, priority))
        for hook_id in said.hung:
            self._disable(hook_id, f"{HUNG_PER_HANDLER} calls in a row did not end", asked, batch)
        add_evaluations(self._ledger, lane.key, seq, said.started_ms, rows, said.quiet)
        if (worker.ready or {}).get("merge") == "same_session":
            dispatches = merged(dispatches)
        dispatches = self.others.enrich(seq, dispatches)
        if dispatches:
            add_dispatches(
                self._ledger, seq, dispatches, config=lane.key, hops=hops + 1, now_ms=batch.now_ms
            )
            batch.after.append(self._engine.wake)

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

    def _disable(self, hook_id: str, reason: str, asked: _Asked, batch: Batch) -> None:
        disable_hook(self._ledger, hook_id, reason, asked.seq, batch.now_ms)
        # At once: another event of this batch may find it fired too.
        event, now_ms = asked.event.id, batch.now_ms
        self.disabled[hook_id] = {"reason": reason, "event": event, "disabled_ms": now_ms}
        self._configs.look_again()
        batch.on_failure.append(partial(self.switched, hook_id, None))


class _Asked(NamedTuple):
    """An event that a worker is asked of."""

    lane: _Lane
    worker: Worker
    seq: int
    event: Event


def _failed(event: Event, why: str) -> EventAnswer:
    """That it is given up, and by all functions."""
    return EventAnswer(event.timestamp, [RouteAnswer("*", 0, None, why)], "{}")


@dataclass(frozen=True, slots=True)
class EvaluationRow:
    """What one route function said of one event. ``latency_us``: microseconds."""

    hook_id: str
    started_ms: int
    latency_us: int
    fired: bool
    result: Json | None = None
    error: str | None = None


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
    for handler, due in due_rows.of_event(ledger, event).items():
        if not handler.startswith("automation"):
            state = "held" if due is DueState.HELD else "waiting"
            rows.append(dict(zip(names, (handler, state, None, None), strict=True)))
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
    if row[1] in _TO and row[8] == RELAY_CHANNEL:
        to = [one[0] for one in ledger.rows(_TO[row[1]], (seq,))]
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
