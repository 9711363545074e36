"""The runs of automations: each has a lane, in which it is run for one event after the other.

What is due is in the ledger (relay.features.automations.automation_runs), and the commit that has a
run, what it keeps, its circuit and its dispatch takes that away: after a kill what is still due is
run again, marked as a retry. An event that a blocking one holds up goes before what else is due to
it. ``RunQueues._work_off`` is the way of a lane from top to bottom.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import partial

from relay.broker.batch import Batch
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.kernel import Kernel
from relay.broker.trusted_configs import USER
from relay.core import json_text
from relay.core.dispatch import BrokerDispatch, dispatch_of
from relay.core.errors import RelayError, StorageError
from relay.features.automations import automation_rows, automation_runs
from relay.features.automations.automation_rows import (
    ActiveAutomation,
    AutomationRegistry,
    AutomationStatus,
)
from relay.features.automations.automation_runner import AutomationRunner, RunAnswer
from relay.features.automations.automation_runs import SeenEvent, SeenEvents, run_key
from relay.features.automations.circuit import CircuitState
from relay.features.automations.definition import RESULT_MAX, AutomationResult
from relay.features.automations.ops import RunUnderWay
from relay.features.automations.settings import automation_settings
from relay.features.personas import due_rows
from relay.features.personas.dispatch_rows import ORDER, add_dispatches, add_extracted
from relay.features.personas.turn_engine import TurnEngine
from relay.features.personas.worker import ERROR_MAX
from relay.features.personas.workers import WorkerPool
from relay.hooks.events import HookEventName
from relay.protocol.broker import Json

#: Runs that are left out or dropped in one commit.
PAGE_OF_RUNS = 1000
#: Seconds until what could not be begun is tried again.
BUSY_AFTER = 15.0


@dataclass(eq=False, slots=True)
class Hold:
    """An event that a blocking automation holds up; ``over`` once it does so no more."""

    seq: int
    hops: int
    over: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of an automation."""

    automation: ActiveAutomation
    seq: int
    hops: int
    question: Json
    hold: Hold | None = None


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run with its answer; None: it was cut off."""

    run: _Run
    answer: RunAnswer | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What a commit has made of a lane: the run that is next, and the events that the automation
    holds up no more. ``more``: there may be more to do, though no run is next."""

    run: _Run | None = None
    released: tuple[Hold, ...] = ()
    more: bool = False


@dataclass(eq=False, slots=True)
class _Lane:
    """The runs of one automation. The ledger is the queue; ``holds`` go before what is there."""

    id: str
    woken: bool = False  # something is due since the last commit has looked
    running: asyncio.Task[RunAnswer] | None = None
    under_way: RunUnderWay | None = None
    holds: deque[Hold] = field(default_factory=deque)


class RunQueues:
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self, kernel: Kernel, seen: SeenEvents, engine: TurnEngine, pool: WorkerPool
    ) -> None:
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._configs = kernel.configs
        self._seen = seen
        self._log = kernel.log
        self._engine = engine
        self.registry = AutomationRegistry(kernel.ledger)
        self.runner = AutomationRunner(pool, automation_settings(kernel.configs).workers)
        self._loop = asyncio.get_running_loop()
        self._tasks = BrokerTasks(kernel)
        self._lanes: dict[str, _Lane] = {}
        self._begun: dict[str, int] = {}  # for which event each was run last by an earlier broker

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        self._begun = automation_runs.begun(self._ledger)
        for key in due_rows.handlers(self._ledger):
            if id_ := automation_runs.automation_of(key):
                self._wake(id_)

    async def close(self) -> None:
        """Run nothing more; what is under way is run again by the next broker."""
        await self._tasks.close()

    @property
    def busy(self) -> bool:
        """Whether an automation runs."""
        return bool(self._lanes)

    def under_way(self, id_: str) -> RunUnderWay | None:
        """The run of an automation that has not ended."""
        lane = self._lanes.get(id_)
        return None if lane is None else lane.under_way

    def look_again(self) -> None:
        """Other automations are active than before: what is not any more is run no further."""
        for lane in self._lanes.values():
            if lane.id not in self.registry.active:
                lane.woken = True
                if lane.running is not None:
                    lane.running.cancel()

    def begin(self, id_: str, batch: Batch) -> None:
        """With this batch something is due to this automation: its run begins in the same commit,
        if none is under way."""
        lane = self._lanes.get(id_)
        if lane is not None:
            lane.woken = True
            return
        lane = _Lane(id_)
        step = self._next(lane, None, batch)
        batch.after.append(partial(self._begin, lane, step))

    async def hold(self, id_: str, seq: int, hops: int) -> None:
        """Run an automation for an event that waits for it."""
        hold = Hold(seq, hops, self._loop.create_future())
        self._wake(id_).holds.append(hold)
        await hold.over

    # -- a lane: one run after the other

    def _begin(self, lane: _Lane, step: _Step) -> None:
        if lane.id in self._lanes:  # another event of that batch has begun it
            self._lanes[lane.id].woken = True
            return
        self._lanes[lane.id] = lane
        self._tasks.start(self._work_off(lane, step))

    def _wake(self, id_: str) -> _Lane:
        """Something is due to this automation."""
        if id_ not in self._lanes:
            self._begin(_Lane(id_), _Step(more=True))
        lane = self._lanes[id_]
        lane.woken = True
        return lane

    async def _work_off(self, lane: _Lane, step: _Step) -> None:
        """Run one automation for all that is due to it. Each commit stores the run that has ended,
        and takes the next one."""
        try:
            while True:
                for hold in step.released:
                    lane.holds.remove(hold)
                    if not hold.over.done():  # else who waited is gone
                        hold.over.set_result(None)
                ended = None
                if step.run is not None:
                    ended = await self._run(lane, step.run)
                elif not (step.more or lane.woken):
                    return
                lane.woken = False
                step = await self._committer.commit(partial(self._next, lane, ended))
        finally:
            del self._lanes[lane.id]

    async def _run(self, lane: _Lane, run: _Run) -> _Ended | None:
        """Have a worker do it. None: it could not be begun, and is still due."""
        event: str = run.question["event"]["id"]
        lane.under_way = {"event": event, "started_ms": time.time_ns() // 1_000_000}
        try:
            question = {**run.question, "source": self.registry.source(run.automation)}
            asked = self.runner.run(question, urgent=run.hold is not None)
            lane.running = self._loop.create_task(asked)
            await asyncio.wait([lane.running])
            return _Ended(run, None if lane.running.cancelled() else lane.running.result())
        except Exception as error:
            self._log.write(error.line if isinstance(error, RelayError) else repr(error))
        finally:
            if lane.running is not None:
                lane.running.cancel()
            lane.running = lane.under_way = None
        await asyncio.sleep(BUSY_AFTER)
        return None

    def _next(self, lane: _Lane, ended: _Ended | None, batch: Batch) -> _Step:
        """Store the run that has ended, and take the next event that there is one for."""
        released: list[Hold] = []
        if ended is not None:
            self._record(ended, batch)
            released += [ended.run.hold] if ended.run.hold is not None else []
        automation = self.registry.active.get(lane.id)
        holds = [hold for hold in lane.holds if hold not in released]
        if automation is None:  # it is run for nothing that is due
            self._ledger.begin()
            dropped = due_rows.drop(self._ledger, run_key(lane.id), PAGE_OF_RUNS)
            return _Step(None, (*released, *holds), len(dropped) == PAGE_OF_RUNS)
        if automation.circuit.state(batch.now_ms) is CircuitState.OPEN:
            skipped = self._skip(lane, len(holds), batch)
            return _Step(None, (*released, *holds), skipped == PAGE_OF_RUNS)
        hold = holds[0] if holds else None
        if hold is not None:
            seq, hops = hold.seq, hold.hops
        elif rows := due_rows.first(self._ledger, run_key(lane.id), 1):
            seq, hops, _ = rows[0]
        else:
            return _Step(None, tuple(released))
        # In a commit with the run before: after a kill it is known which run may have begun.
        self._ledger.begin()
        automation_runs.note_begun(self._ledger, lane.id, seq)
        question = self._seen.question(automation, self._seen.of(seq))
        return _Step(_Run(automation, seq, hops, question, hold), tuple(released))

    def _skip(self, lane: _Lane, holds: int, batch: Batch) -> int:
        """Its circuit is open: what is due is left out, and counted."""
        self._ledger.begin()
        skipped = due_rows.drop(self._ledger, run_key(lane.id), PAGE_OF_RUNS)
        automation_runs.note_skipped(self._ledger, lane.id, holds + len(skipped))
        for seq in skipped:
            self.look_if_over(seq, batch)
        return len(skipped)

    # -- what was said

    def _record(self, ended: _Ended, batch: Batch) -> None:
        """Store one run with all that follows from it, in one commit."""
        run, id_ = ended.run, ended.run.automation.id
        self._ledger.begin()
        is_due = run.hold is not None or due_rows.settle(self._ledger, run_key(id_), run.seq)
        now = self.registry.active.get(id_)
        if ended.answer is not None and is_due is not None and now is not None:
            self._keep(run, now, ended.answer, batch)

    def _keep(self, run: _Run, now: ActiveAutomation, answer: RunAnswer, batch: Batch) -> None:
        for _ in range(2):  # if not even the failure can be stored, only the log has it
            try:
                with self._ledger.part(), batch.part():
                    self._store(run, now, answer, batch)
            except StorageError:
                raise
            except Exception as error:
                why = f"what it said cannot be stored: {type(error).__name__}: {error}"[:ERROR_MAX]
                self._log.write(f"automation {now.row.name}: {why}")
                answer = RunAnswer(answer.started_ms, 0, error=why)
            else:
                break
        if run.hold is None:
            self.look_if_over(run.seq, batch)

    def look_if_over(self, seq: int, batch: Batch) -> None:
        """If all automations have run for an event, tell the hooks that want to know."""
        batch.observe(HookEventName.AFTER_RUN_AUTOMATIONS, partial(self._outcome, seq))

    def _outcome(self, seq: int) -> Json | None:
        told = automation_runs.outcome(self._ledger, seq)
        if told is not None:
            told["received"] = self._seen.of(seq).event.to_json()
        return told

    def _store(self, run: _Run, now: ActiveAutomation, answer: RunAnswer, batch: Batch) -> None:
        ledger, row = self._ledger, run.automation.row
        result = answer.result or AutomationResult()
        retry = run.seq == self._begun.get(row.id)
        automation_runs.add_run(ledger, row, run.seq, answer, retry=retry)
        if answer.state:
            automation_rows.save_state(ledger, row.id, answer.state, batch.now_ms)
        circuit = now.circuit.after(answer.error is None, batch.now_ms)
        fired_ms = batch.now_ms if result.fire else None
        if fired_ms is not None or circuit != now.circuit:
            about = circuit.errors, circuit.opened_ms, fired_ms
            automation_runs.save_circuit(ledger, row.id, *about)
            self._refresh(row.id, batch)
        if result.disable:
            self._disable(row.id, batch)
        if result.enrich and self._seen.of(run.seq).event.kind == ORDER:
            add_extracted(ledger, run.seq, self.enriched(run.seq))
        if result.fire:
            made = self.planned(
                run.automation, self._seen.of(run.seq), result, self.enriched(run.seq)
            )
            config = self.config_of(row.folder)
            hops = run.hops + 1
            add_dispatches(ledger, run.seq, [made], config=config, hops=hops, now_ms=batch.now_ms)
            batch.after.append(self._engine.wake)

    def _refresh(self, id_: str, batch: Batch) -> None:
        # At once: its next run is begun in this commit.
        self.registry.refresh(id_)
        batch.on_failure.append(partial(self.registry.refresh, id_))

    def _disable(self, id_: str, batch: Batch) -> None:
        status = AutomationStatus.DISABLED
        automation_rows.set_status(self._ledger, id_, status, "it disabled itself", batch.now_ms)
        self._refresh(id_, batch)

    def planned(
        self, one: ActiveAutomation, seen: SeenEvent, result: AutomationResult, enriched: Json
    ) -> BrokerDispatch:
        """The dispatch of an automation that fired; ``enriched``: by others, for the same event."""
        said = result.hook_result(seen.persona, enriched)
        hook_id = f"automation/{one.row.name}"
        made = dispatch_of(seen.event, hook_id, said, one.definition.priority)
        return replace(made, quiet_when=result.quiet_when)

    def enriched(self, seq: int, most: int = RESULT_MAX) -> Json:
        """What automations have added to an event so far: what does not fire, or blocks. Of one key
        the value of the highest priority; what is more than ``most`` bytes in all is left out."""
        found: Json = {}
        for added in automation_runs.enriching(self._ledger, seq):
            more = {**added, **found}
            if json_text.size_of(more) <= most:
                found = more
            else:
                self._log.write(f"event {seq}: more than {most} bytes are added to it; not all are")
        return found

    def add_enriched(self, seq: int, dispatches: list[BrokerDispatch]) -> list[BrokerDispatch]:
        """What follows otherwise from an event, with what automations have added to it."""
        enriched = self.enriched(seq) if dispatches else {}
        if not enriched:
            return dispatches
        return [replace(one, extracted={**enriched, **(one.extracted or {})}) for one in dispatches]

    def config_of(self, folder: str | None) -> str:
        """The configuration whose personas are meant."""
        own = () if folder is None else self._configs.applying(folder)
        keys = [one.key for one in own if os.path.dirname(one.path) == folder]
        return keys[0] if keys else USER
