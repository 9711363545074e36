"""Has events evaluated by automations: finds those that want one, runs them, stores what follows.

From the commit that stores it an event is due to ``STAGE``, if an automation may want it. The
blocking ones that match are run one after the other; until they are done, nothing else of the event
is evaluated. The stage then makes of the event one row for each other automation that matches;
where none may block, in the same commit. The runs are those of
relay.features.automations.run_queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.kernel import Kernel
from relay.core import json_text
from relay.core.dispatch import (
    MINUTE,
    RELAY_CHANNEL,
    TICK_KIND,
    TIMER_CHANNEL,
    BrokerDispatch,
)
from relay.core.files import unlink_if_there, write_atomically
from relay.core.paths import is_within
from relay.features.automations import automation_runs
from relay.features.automations.automation_rows import ActiveAutomation
from relay.features.automations.automation_runs import (
    STAGE,
    SeenEvent,
    SeenEvents,
    is_ours,
    run_key,
)
from relay.features.automations.definition import DIRECTIONS, Principal, direction_of
from relay.features.automations.run_queues import RunQueues
from relay.features.automations.start import hearers_file
from relay.features.personas import due_rows
from relay.features.personas.dispatch_rows import ORDER, ORDER_WAIT_MS
from relay.features.personas.due_rows import DueState
from relay.features.personas.evaluation import Evaluations, Marked, OtherHandlers
from relay.features.personas.turn_engine import TurnEngine
from relay.features.personas.workers import WorkerPool
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import ASKED_KINDS
from relay.protocol.broker import Json

#: Events that are matched in one commit.
PAGE = 64
#: Events that blocking automations hold up at a time; more wait in the ledger.
HELD_MAX = 64
#: Seconds that a message to an agent waits for them.
MESSAGE_WAIT = 10.0
#: Bytes that are added to such a message, as JSON.
CONTEXT_BYTES = 4096
#: What is asked of an automation to know whether it listens for the tool calls of agents.
_TOOL_CALL = ("tool_call", RELAY_CHANNEL, "sent")
#: Kinds of events of which is kept who may want them.
_KINDS_MAX = 1024


class Automations(OtherHandlers):
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self, kernel: Kernel, evaluations: Evaluations, engine: TurnEngine, pool: WorkerPool
    ) -> None:
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._evaluations = evaluations
        self.seen = SeenEvents(kernel.ledger, kernel.configs, kernel.directory, kernel.home)
        self.runs = RunQueues(kernel, self.seen, engine, pool)
        self._wanted: dict[tuple[str | None, ...], _Wanting] = {}
        self._registered = -1  # the state of the registry that _wanted is made of
        self._hearers = hearers_file(kernel.home)
        self._log = kernel.log
        self._tasks = BrokerTasks(kernel)
        self._held: set[int] = set()  # the events that blocking automations are at
        self._awaited: dict[int, tuple[asyncio.Future[None], float]] = {}  # … until when, by event
        self._loop = asyncio.get_running_loop()
        self._engine = engine
        self._to_hold = asyncio.Event()

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        self._take_registered()
        self.runs.start()
        self._tasks.start(self._split_left())
        self._tasks.start(self._hold_all())
        self._to_hold.set()
        self._wake_later()  # what the person has asked may have waited

    async def close(self) -> None:
        """Run nothing more; what is under way is run again by the next broker."""
        await self._tasks.close()
        await self.runs.close()

    @property
    def busy(self) -> bool:
        """Whether an event is matched, or an automation runs."""
        return bool(self._held) or self._to_hold.is_set() or self.runs.busy

    def changed(self, id_: str) -> None:
        """An automation was registered, updated, switched on or off, or deleted."""
        self.runs.registry.refresh(id_)
        self._take_registered()
        self.runs.look_again()

    def _take_registered(self) -> None:
        """Other automations may be active than before."""
        if self._registered == self.runs.registry.generation:
            return
        self._registered = self.runs.registry.generation
        self._wanted.clear()
        active = self.runs.registry.active.values()
        hearing = {one.row.folder or "/" for one in active if one.definition.wants(*_TOOL_CALL)}
        try:
            if hearing:
                lines = "".join(f"{one}\n" for one in sorted(hearing))
                write_atomically(self._hearers, lines, durable=False)
            else:
                unlink_if_there(self._hearers)
        except OSError as error:
            self._log.write(f"agents that start now report no tool calls: {error}")

    @property
    def active(self) -> bool:
        return bool(self.runs.registry.active)

    def owns(self, handler: str) -> bool:
        return is_ours(handler)

    def enrich(self, seq: int, dispatches: list[BrokerDispatch]) -> list[BrokerDispatch]:
        return self.runs.add_enriched(seq, dispatches)

    # -- what waits for what is added to it

    def ordered(self, seq: int, hops: int, batch: Batch) -> None:
        batch.on_failure.append(partial(self.seen.forget, seq))
        if self._wanting(*_about(self.seen.of(seq))):
            due_rows.add(self._ledger, [(STAGE, seq, DueState.READY.value, hops)])
            if self.let_go(seq, batch):
                batch.after.append(self._wake_later)

    def _wake_later(self) -> None:
        """What the person asks waits for blocking automations only until then."""
        self._loop.call_later(ORDER_WAIT_MS / 1000, self._engine.look_again)

    def delays(self, seq: int) -> Callable[[], Awaitable[object]] | None:
        """What an agent waits for before it is given the message ``seq``."""
        if not self.active or not due_rows.is_blocked(self._ledger, STAGE, seq):
            return None
        # At once: it may be let on in this very batch.
        awaited = self._awaited.get(seq)
        if awaited is None:
            awaited = self._loop.create_future(), self._loop.time() + MESSAGE_WAIT
            self._awaited[seq] = awaited
        return partial(self._let_on_or_late, *awaited)

    async def _let_on_or_late(self, let_on: asyncio.Future[None], end: float) -> None:
        await asyncio.wait([let_on], timeout=max(0.0, end - self._loop.time()))

    def context(self, seq: int) -> str:
        """What automations have added to the message ``seq``, as JSON."""
        added = self.runs.enriched(seq, CONTEXT_BYTES) if self.active else None
        text = json_text.dumps(added, ascii=False) if added else ""
        return text.encode(errors="replace").decode()  # a lone surrogate is not text

    # -- what is due

    def wants(
        self, kind: str, channel: str, direction: str | None, sender: str, cwd: str | None
    ) -> bool:
        """Whether an automation may want such an event; ``direction`` None: it is not known yet.

        Asked of every event: it costs a look-up.
        """
        return bool(self._wanting(kind, channel, direction, sender, cwd))

    def _wanting(
        self, kind: str, channel: str, direction: str | None, sender: str, cwd: str | None
    ) -> _Wanting:
        self._take_registered()
        asked = (kind, channel, direction, sender if kind == TICK_KIND else "", cwd)
        found = self._wanted.get(asked)
        if found is None:
            if len(self._wanted) >= _KINDS_MAX:
                self._wanted.clear()
            found = self._wanted[asked] = _Wanting(self.runs.registry.active.values(), *asked)
        return found

    def mark(self, message: Accepted, batch: Batch) -> Marked:
        """Whether an event that was stored is due to the stage; the batch goes on with it."""
        channel = RELAY_CHANNEL if message.outside is None else message.outside.channel
        direction = {"agent": "sent", "relay": "received"}.get(message.origin)
        wanting = self._wanting(message.kind, channel, direction, message.sender, message.cwd)
        if not wanting:
            return Marked()
        if message.parked:
            pass
        elif wanting.blocks:
            batch.after.append(self._to_hold.set)
        else:
            batch.last.append(partial(self._split_stored, message.seq))
        return Marked((STAGE,), wanting.blocks)

    def let_go(self, seq: int, batch: Batch) -> bool:
        """An event that the person had to decide on is due now. Returns whether blocking
        automations may hold it up."""
        blocks = self._wanting(*_about(self.seen.of(seq))).blocks
        if blocks:
            due_rows.block(self._ledger, seq)
            batch.after.append(self._to_hold.set)
        else:
            self._split([seq], batch)
        return blocks

    # -- the stage

    async def _split_left(self) -> None:
        """Match the events that are due and were not matched when they were stored."""
        while await self._committer.commit(self._split_page):
            pass

    def _split_page(self, batch: Batch) -> bool:
        rows = due_rows.first(self._ledger, STAGE, PAGE)
        if rows:
            self._split([row.event for row in rows], batch)
        return bool(rows)

    def _split_stored(self, seq: int, batch: Batch) -> None:
        # In the commit that stores the event: that spares the disk another one.
        batch.on_failure.append(partial(self._not_split, seq))
        self._split([seq], batch)

    def _not_split(self, seq: int) -> None:
        self.seen.forget(seq)  # another event may get the number
        self._tasks.start(self._split_left())

    def _split(self, page: Sequence[int], batch: Batch) -> None:
        """Make of some events that are due one row for each automation that matches."""
        self._ledger.begin()
        wanted: dict[str, None] = {}
        for seq in page:
            hops = due_rows.settle(self._ledger, STAGE, seq)
            if hops is None:
                continue
            seen = self.seen.of(seq)
            if seq not in self._held:
                batch.observe(HookEventName.AFTER_RESOLVE_IDENTITY, partial(_who, seen))
            found = [one.id for one in self._matching(seen) if not one.definition.blocking]
            if not found:
                self.runs.look_if_over(seq, batch)
                continue
            ready = DueState.READY.value
            due_rows.add(self._ledger, [(run_key(one), seq, ready, hops) for one in found])
            wanted |= dict.fromkeys(found)
        for one in wanted:
            self.runs.begin(one, batch)

    def matches(self, one: ActiveAutomation, seen: SeenEvent) -> bool:
        """Whether an automation, active or not, is one of those that are run for an event."""
        return bool(_Wanting([one], *_about(seen)).of(seen.principal))

    def _matching(self, seen: SeenEvent) -> Sequence[ActiveAutomation]:
        return self._wanting(*_about(seen)).of(seen.principal)

    # -- blocking ones

    async def _hold_all(self) -> None:
        """Begin with each event that blocking automations hold up, HELD_MAX at a time."""
        while True:
            await self._to_hold.wait()
            self._to_hold.clear()
            rows = await self._committer.commit(
                lambda batch: due_rows.blocked(self._ledger, STAGE, HELD_MAX)
            )
            for seq, hops, _ in rows:
                if seq not in self._held:
                    self._held.add(seq)
                    self._tasks.start(self._hold(seq, hops))

    async def _hold(self, seq: int, hops: int) -> None:
        """Run the blocking automations of one event, one after the other; then it goes on."""
        for id_ in await self._committer.commit(partial(self._blocking, seq)):
            await self.runs.hold(id_, seq, hops)
        keys = await self._committer.commit(partial(self._let_on, seq))
        self._held.discard(seq)
        let_on, _ = self._awaited.pop(seq, (None, 0))
        if let_on is not None:
            let_on.set_result(None)
        self._to_hold.set()
        for key in keys:
            self._evaluations.offer(key, seq)

    def _blocking(self, seq: int, batch: Batch) -> list[str]:
        """The blocking automations that are still to run for an event, in their order."""
        ran, seen = automation_runs.ran(self._ledger, seq), self.seen.of(seq)
        batch.observe(HookEventName.AFTER_RESOLVE_IDENTITY, partial(_who, seen))
        matching = [one for one in self._matching(seen) if one.definition.blocking]
        matching.sort(key=lambda one: (-one.definition.priority, one.row.name))
        return [one.id for one in matching if one.id not in ran]

    def _let_on(self, seq: int, batch: Batch) -> list[str]:
        """No automation holds the event up any more: the others are run for it. Returns the
        configurations that are to evaluate it."""
        self._ledger.begin()
        handlers = due_rows.unblock(self._ledger, seq)
        self._split([seq], batch)
        if self.seen.of(seq).event.kind == ORDER:
            batch.after.append(self._engine.look_again)
        return [key for key in handlers if not is_ours(key)]


def _who(seen: SeenEvent) -> Json:
    """What hooks are told of who an event comes from."""
    event = seen.event
    told: Json = {"received": event.to_json(), "session": event.session_key}
    return told | {"principal": seen.principal.to_json()}


def _about(seen: SeenEvent) -> tuple[str, str, str, str, str | None]:
    event = seen.event
    return event.kind, event.channel, direction_of(event), event.sender, seen.cwd or None


class _Wanting:
    """Those of some automations that may want events of one kind. ``direction`` None: it is not
    known yet."""

    def __init__(
        self,
        automations: Iterable[ActiveAutomation],
        kind: str,
        channel: str,
        direction: str | None,
        sender: str,
        cwd: str | None,
    ) -> None:
        self._tick = sender if (channel, kind) == (TIMER_CHANNEL, TICK_KIND) else ""
        self._about = kind, channel, DIRECTIONS if direction is None else (direction,), cwd
        self._found = [one for one in automations if self._may_be(one)]
        #: Whether one of them holds up such an event.
        self.blocks = any(one.definition.blocking for one in self._found)

    def __bool__(self) -> bool:
        return bool(self._found)

    def of(self, who: Principal) -> Sequence[ActiveAutomation]:
        """Those that are run for one that comes from ``who``."""
        return [one for one in self._found if self._wants(one, who)]

    def _may_be(self, one: ActiveAutomation) -> bool:
        triggers, folder = one.definition.triggers, one.row.folder
        kind, channel, directions, cwd = self._about
        if self._tick:
            if one.definition.schedule is not None:
                return self._tick == one.row.name
            if self._tick != MINUTE:
                return False
        elif folder is not None and not is_within(cwd or "", folder):
            return False
        if kind in ASKED_KINDS and (triggers is None or triggers.types is None):
            return False
        return any(one.definition.wants(kind, channel, way) for way in directions)

    def _wants(self, one: ActiveAutomation, who: Principal) -> bool:
        triggers = one.definition.triggers
        own_tick = self._tick and one.definition.schedule is not None
        return triggers is None or bool(own_tick) or triggers.match_principal(who)
