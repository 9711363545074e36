"""Has events evaluated by automations: finds those that want one, runs them, stores what follows.

From the commit that stores it an event is due under ``STAGE``, if an automation may want it, and
under ``BLOCKING``, if one that holds it up may. The blocking ones that match are run one after the
other; until they are done, nothing else of the event is evaluated. The stage then makes of the
event one row for each other automation that matches; where none may block, in the same commit. The
runs are those of relay.features.automations.run_queues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.core.bounded import BoundedDict
from relay.core.dispatch import (
    MINUTE,
    RELAY_CHANNEL,
    TICK_KIND,
    TIMER_CHANNEL,
    BrokerDispatch,
)
from relay.features.automations import automation_runs
from relay.features.automations.automation_rows import ActiveAutomation
from relay.features.automations.automation_runs import (
    BLOCKING,
    STAGE,
    SeenEvent,
    SeenEvents,
    run_key,
)
from relay.features.automations.definition import DIRECTIONS, Principal, direction_of
from relay.features.automations.run_queues import AGAIN_AFTER, Hold, RunQueues
from relay.features.personas import evaluation
from relay.features.personas.evaluation import OtherHandlers
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import ASKED_KINDS
from relay.protocol.broker import Json

#: Events that are matched in one commit.
PAGE = 64
#: Events that blocking automations hold up at a time; more wait in the ledger.
HELD_MAX = 64
#: Kinds of events of which is kept who may want them, and senders of each of whom is kept whose.
_KINDS_MAX, _SENDERS_MAX = 1024, 256


class Automations(OtherHandlers):
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self,
        kernel: Kernel,
        *,
        dispatched: Callable[[], None],
        released: Callable[[int], None],
    ) -> None:
        """``dispatched`` is called once new dispatches are stored, ``released`` with the number of
        an event that no automation holds up any more."""
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._released = released
        self.seen = SeenEvents(kernel.ledger, kernel.configs, kernel.directory, kernel.home)
        self.runs = RunQueues(
            kernel,
            self.seen,
            dispatched=dispatched,
            changed=self._look_again,
            held=self._step,
        )
        self._loop = asyncio.get_running_loop()
        self._wanted: dict[tuple[str | None, ...], _Wanting] = {}
        self._arrived: deque[int] = deque()  # events that are to be matched
        self._known: set[int] = set()  # those of them that were held up
        self._splitting = False
        self._holding = self._hold_missed = False
        self._holds: set[Hold] = set()
        self._closed = False

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        self.runs.start()
        self._arrived.extend(automation_runs.stage_due(self._ledger))
        self._split_soon()
        self._hold_soon()

    async def close(self) -> None:
        """Run nothing more; what is under way is run again by the next broker."""
        self._closed = True
        await self.runs.close()

    @property
    def busy(self) -> bool:
        """Whether an event is matched, or an automation runs."""
        return bool(self._arrived or self._holds) or self.runs.busy

    def changed(self, id_: str) -> None:
        """An automation was registered, updated, switched on or off, or deleted."""
        self.runs.registry.refresh(id_)
        self._look_again()
        self.runs.look_again()

    def _look_again(self) -> None:
        self._wanted.clear()

    @property
    def active(self) -> bool:
        return bool(self.runs.registry.active)

    def owns(self, key: str) -> bool:
        return automation_runs.is_ours(key)

    def enrich(self, seq: int, dispatches: list[BrokerDispatch]) -> list[BrokerDispatch]:
        return self.runs.add_enriched(seq, dispatches)

    # -- what is due

    def keys(
        self, kind: str, channel: str, direction: str | None, sender: str, cwd: str | None
    ) -> tuple[str, ...]:
        """The keys under which such an event is due; ``direction`` None: it is not known yet.

        Asked of every event: it costs a look-up.
        """
        return self._wanting(kind, channel, direction, sender, cwd).keys

    def _wanting(
        self, kind: str, channel: str, direction: str | None, sender: str, cwd: str | None
    ) -> _Wanting:
        asked = (kind, channel, direction, sender if kind == TICK_KIND else "", cwd)
        found = self._wanted.get(asked)
        if found is None:
            if len(self._wanted) >= _KINDS_MAX:
                self._wanted.clear()
            found = self._wanted[asked] = _Wanting(self.runs.registry.active.values(), *asked)
        return found

    def mark(self, message: Accepted, member: Member | None, batch: Batch) -> tuple[str, ...]:
        """The keys under which an event will be due; once it is stored, it is gone on with."""
        cwd = None if member is None else member.record.cwd
        channel = RELAY_CHANNEL if message.outside is None else message.outside.channel
        direction = {"agent": "sent", "relay": "received"}.get(message.origin)
        keys = self.keys(message.kind, channel, direction, message.sender, cwd)
        if message.parked:
            return keys
        if BLOCKING in keys:
            batch.after.append(self._hold_soon)
        elif keys:
            batch.last.append(partial(self._split_at_once, message))
        return keys

    def let_go(self, seq: int, keys: Sequence[str], batch: Batch) -> None:
        """An event that the person had to decide on is due now, under these keys."""
        if BLOCKING in keys:
            batch.after.append(self._hold_soon)
            return
        batch.after.append(partial(self._released, seq))
        if STAGE in keys:
            batch.after += [partial(self._arrived.append, seq), self._split_soon]

    # -- the stage

    def _split_soon(self) -> None:
        if self._arrived and not self._splitting and not self._closed:
            self._splitting = True
            self._committer.submit_job(self._split_some)

    def _split_some(self, batch: Batch) -> None:
        page = [self._arrived.popleft() for _ in range(min(PAGE, len(self._arrived)))]
        batch.after.append(partial(self._split_done, page))
        self._split(page, batch)

    def _split_done(self, page: list[int]) -> None:
        self._known.difference_update(page)
        self._splitting = False
        self._split_soon()

    def _split_at_once(self, message: Accepted, batch: Batch) -> None:
        # In the commit that stores the event: that spares the disk another one.
        if message.seq:  # not one that was stored before
            batch.on_failure.append(partial(self.seen.forget, message.seq))
            self._split([message.seq], batch)

    def _split(self, page: list[int], batch: Batch) -> None:
        """Make of some events that are due one row for each automation that matches."""
        batch.on_failure.append(partial(self._split_later, page))
        self._ledger.begin()
        wanted: dict[str, None] = {}
        for seq in page:
            hops = evaluation.settle(self._ledger, STAGE, seq)
            held_up = seq in self._known
            if hops is None and not held_up:
                continue
            seen = self.seen.of(seq)
            if not held_up:
                batch.observe(HookEventName.AFTER_RESOLVE_IDENTITY, partial(_who, seen))
            found = [one.id for one in self._matching(seen) if not one.definition.blocking]
            if hops is None or not found:
                self.runs.look_if_over(seq, batch)
                continue
            evaluation.add_due(self._ledger, [(run_key(one), seq, hops) for one in found])
            wanted |= dict.fromkeys(found)
        for one in wanted:
            self.runs.wake(one, batch)

    def _split_later(self, page: list[int]) -> None:
        def again() -> None:
            self._splitting = False
            self._arrived.extendleft(reversed(page))
            self._split_soon()

        self._loop.call_later(AGAIN_AFTER, again)

    def matches(self, one: ActiveAutomation, seen: SeenEvent) -> bool:
        """Whether an automation, active or not, is one of those that are run for an event."""
        return bool(_Wanting([one], *_about(seen)).of(seen.principal))

    def _matching(self, seen: SeenEvent) -> Sequence[ActiveAutomation]:
        return self._wanting(*_about(seen)).of(seen.principal)

    # -- blocking ones

    def _hold_soon(self) -> None:
        self._hold_missed = True
        if not self._holding and len(self._holds) < HELD_MAX and not self._closed:
            self._holding, self._hold_missed = True, False
            self._committer.submit_job(self._hold)

    def _hold(self, batch: Batch) -> None:
        """Begin with events that blocking automations hold up."""
        batch.on_failure.append(self._hold_later)
        room = HELD_MAX - len(self._holds)
        held = {hold.seq for hold in self._holds}
        due = evaluation.due(self._ledger, BLOCKING, 0, HELD_MAX)
        found: list[Hold] = []
        for seq in [seq for seq, _ in due if seq not in held][:room]:
            hold = Hold(seq, automation_runs.hops_of(self._ledger, BLOCKING, seq) or 0)
            ran, seen = automation_runs.ran(self._ledger, seq), self.seen.of(seq)
            batch.observe(HookEventName.AFTER_RESOLVE_IDENTITY, partial(_who, seen))
            matching = [one for one in self._matching(seen) if one.definition.blocking]
            matching.sort(key=lambda one: (-one.definition.priority, one.row.name))
            hold.rest.extend(one.id for one in matching if one.id not in ran)
            found.append(hold)
        batch.after.append(partial(self._hold_all, found))

    def _hold_all(self, found: list[Hold]) -> None:
        self._holding = False
        self._holds.update(found)
        for hold in found:
            self._step(hold)
        if found or self._hold_missed:
            self._hold_soon()

    def _hold_later(self) -> None:
        def again() -> None:
            self._holding = False
            self._hold_soon()

        self._loop.call_later(AGAIN_AFTER, again)

    def _step(self, hold: Hold) -> None:
        """Run the next of those that hold an event up; without one it goes on."""
        if hold.rest:
            self.runs.hold(hold.rest.popleft(), hold)
        else:
            self._committer.submit_job(partial(self._release, hold))

    def _release(self, hold: Hold, batch: Batch) -> None:
        self._ledger.begin()
        evaluation.settle(self._ledger, BLOCKING, hold.seq)
        batch.after.append(partial(self._has_released, hold))
        batch.on_failure.append(lambda: self._loop.call_later(AGAIN_AFTER, self._step, hold))

    def _has_released(self, hold: Hold) -> None:
        self._holds.discard(hold)
        self._known.add(hold.seq)
        self._arrived.append(hold.seq)
        self._split_soon()
        self._released(hold.seq)
        self._hold_soon()


def _who(seen: SeenEvent) -> Json:
    """What hooks are told of who an event comes from."""
    event = seen.event
    told: Json = {"received": event.to_json(), "session": event.session_key}
    return told | {"principal": seen.principal.to_json()}


def _about(seen: SeenEvent) -> tuple[str, str, str, str, str | None]:
    event = seen.event
    return event.kind, event.channel, direction_of(event), event.sender, seen.cwd or None


class _Wanting:
    """Those of some automations that may want events of one kind, and by who sends them those
    that do. ``direction`` None: it is not known yet."""

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
        self._by_sender: BoundedDict[Principal, Sequence[ActiveAutomation]] = BoundedDict(
            _SENDERS_MAX
        )
        blocking = [one.definition.blocking for one in self._found]
        #: Under which such an event is due.
        self.keys = (*([] if all(blocking) else [STAGE]), *([BLOCKING] if any(blocking) else []))

    def of(self, who: Principal) -> Sequence[ActiveAutomation]:
        """Those that are run for one that comes from ``who``."""
        found = self._by_sender.get(who)
        if found is None:
            found = self._by_sender[who] = [one for one in self._found if self._wants(one, who)]
        return found

    def _may_be(self, one: ActiveAutomation) -> bool:
        triggers, folder = one.definition.triggers, one.row.folder
        kind, channel, directions, cwd = self._about
        if self._tick:
            if one.definition.schedule is not None:
                return self._tick == one.row.name
            if self._tick != MINUTE:
                return False
        elif folder is not None and not f"{cwd or ''}/".startswith(f"{folder.rstrip('/')}/"):
            return False
        if kind in ASKED_KINDS and (triggers is None or triggers.types is None):
            return False
        return any(one.definition.wants(kind, channel, way) for way in directions)

    def _wants(self, one: ActiveAutomation, who: Principal) -> bool:
        triggers = one.definition.triggers
        own_tick = self._tick and one.definition.schedule is not None
        return triggers is None or bool(own_tick) or triggers.match_principal(who)
