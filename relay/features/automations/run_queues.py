"""The runs of automations: each has a queue, in which it is run for one event after the other.

What is due is in the ledger (relay.features.automations.automation_runs), and the commit that has a
run, what it keeps, its circuit and its dispatch takes that away: after a kill what is still due is
run again, marked as a retry. An event that a blocking one holds up goes before what else is due to
it."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from relay.broker.batch import Batch
from relay.broker.kernel import Kernel
from relay.broker.trusted_configs import USER
from relay.core import json_text
from relay.core.dispatch import BrokerDispatch, dispatch_of
from relay.core.errors import RelayError, StorageError
from relay.features.automations import automation_rows, automation_runs
from relay.features.automations.automation_pool import (
    AutomationPool,
    RunAnswer,
)
from relay.features.automations.automation_rows import (
    ActiveAutomation,
    AutomationRegistry,
    AutomationStatus,
)
from relay.features.automations.automation_runs import SeenEvent, SeenEvents, run_key
from relay.features.automations.circuit import CircuitState
from relay.features.automations.definition import RESULT_MAX, AutomationResult
from relay.features.automations.settings import automation_settings
from relay.features.personas import evaluation
from relay.features.personas.dispatch_rows import add_dispatches
from relay.features.personas.worker import ERROR_MAX
from relay.hooks.events import HookEventName
from relay.protocol.broker import Json

#: Runs that are left out or dropped in one commit.
PAGE_OF_RUNS = 1000
#: Seconds until what could not be done is tried again.
AGAIN_AFTER, BUSY_AFTER = 1.0, 15.0


@dataclass(eq=False, slots=True)
class Hold:
    """An event that blocking automations hold up; ``rest``: those still to run, in their order."""

    seq: int
    hops: int
    rest: deque[str] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class _RunQueue:
    """The runs of one automation. The ledger is the queue; ``holds`` go before what is there."""

    id: str
    busy: bool = False
    woken: bool = False  # there may be more to do than who is at work has found
    task: asyncio.Task[RunAnswer] | None = None  # its last run
    holds: deque[Hold] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class _Run:
    """One run that is under way."""

    queue: _RunQueue
    automation: ActiveAutomation
    seq: int
    hops: int
    hold: Hold | None = None


class RunQueues:
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self,
        kernel: Kernel,
        seen: SeenEvents,
        *,
        dispatched: Callable[[], None],
        changed: Callable[[], None],
        held: Callable[[Hold], None],
    ) -> None:
        """``dispatched`` is called once new dispatches are stored, ``changed`` once an automation
        has switched itself off; ``held`` gets an event back that one holds up no more."""
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._configs = kernel.configs
        self._seen = seen
        self._log = kernel.log
        self._dispatched = dispatched
        self._changed = changed
        self._held = held
        self.registry = AutomationRegistry(kernel.ledger)
        self.pool = AutomationPool(
            kernel.home, log=kernel.log, workers=automation_settings(kernel.configs).workers
        )
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, _RunQueue] = {}
        self._begun: dict[str, int] = {}  # for which event each was run last by an earlier broker
        self._closed = False

    def start(self) -> None:
        """Go on with what an earlier broker has left."""
        self._begun = automation_runs.begun(self._ledger)
        for key in evaluation.due_configs(self._ledger):
            if id_ := automation_runs.automation_of(key):
                self._next(self._queue(id_))

    async def close(self) -> None:
        """Run nothing more; what is under way is run again by the next broker."""
        self._closed = True
        await self.pool.close()

    @property
    def busy(self) -> bool:
        """Whether an automation runs."""
        return any(one.busy for one in self._queues.values())

    def look_again(self) -> None:
        """Other automations are active than before: what is not any more is run no further."""
        for one in list(self._queues.values()):
            if one.id not in self.registry.active:
                if one.task is not None:
                    one.task.cancel()
                self._next(one)

    def wake(self, id_: str, batch: Batch) -> None:
        """With this batch something is due to this automation."""
        own = self._queue(id_)
        own.woken = own.busy
        if not own.busy and not self._closed:
            own.busy = True
            self._begin(own, batch)

    def hold(self, id_: str, hold: Hold) -> None:
        """This automation is to be run for an event that waits for it."""
        own = self._queue(id_)
        own.holds.append(hold)
        self._next(own)

    # -- runs

    def _queue(self, id_: str) -> _RunQueue:
        return self._queues.setdefault(id_, _RunQueue(id_))

    def _next(self, own: _RunQueue) -> None:
        """Run an automation for the next event, if it is not at work."""
        own.woken = own.busy
        if not own.busy and not self._closed:
            own.busy = True
            self._committer.submit_job(partial(self._begin, own))

    def _begin(self, own: _RunQueue, batch: Batch) -> None:
        batch.on_failure.append(partial(self._later, own, AGAIN_AFTER))
        self._take(own, None, batch)

    def _take(self, own: _RunQueue, done: Hold | None, batch: Batch) -> None:
        """Take the next event that an automation is to be run for; it is ``done`` with this one."""
        one = self.registry.active.get(own.id)
        holds = [hold for hold in own.holds if hold is not done]
        if one is None:
            self._drop(own, batch)
        elif one.circuit.state(batch.now_ms) is CircuitState.OPEN:
            self._skip(own, holds, batch)
        elif holds:
            self._ask_for(_Run(own, one, holds[0].seq, holds[0].hops, holds[0]), batch)
        elif found := automation_runs.first_due(self._ledger, own.id):
            self._ask_for(_Run(own, one, *found), batch)
        else:
            batch.after.append(partial(self._rest, own))

    def _ask_for(self, run: _Run, batch: Batch) -> None:
        # In a commit with the run before: after a kill it is known which run may have begun.
        self._ledger.begin()
        automation_runs.note_begun(self._ledger, run.automation.id, run.seq)
        question = self._seen.question(run.automation, self._seen.of(run.seq))
        batch.after.append(partial(self._ask, run, question))

    def _rest(self, own: _RunQueue) -> None:
        """Nothing was due."""
        own.busy = False
        if own.woken:
            self._next(own)

    def _drop(self, own: _RunQueue, batch: Batch) -> None:
        """An automation that is not active any more is run for nothing that is due."""
        self._ledger.begin()
        dropped = automation_runs.drop(self._ledger, own.id, PAGE_OF_RUNS)
        batch.after.append(partial(self._dropped, own, len(dropped) == PAGE_OF_RUNS))

    def _dropped(self, own: _RunQueue, more: bool) -> None:
        holds, own.busy = list(own.holds), False
        own.holds.clear()
        for hold in holds:
            self._held(hold)
        if more or own.woken:
            self._next(own)
        else:
            del self._queues[own.id]

    def _skip(self, own: _RunQueue, holds: list[Hold], batch: Batch) -> None:
        """Its circuit is open: what is due is left out, and counted."""
        self._ledger.begin()
        skipped = automation_runs.drop(self._ledger, own.id, PAGE_OF_RUNS)
        automation_runs.note_skipped(self._ledger, own.id, len(holds) + len(skipped))
        own.woken = own.woken or len(skipped) == PAGE_OF_RUNS
        for seq in skipped:
            self.look_if_over(seq, batch)
        batch.after.append(partial(self._skipped, own, holds))

    def _skipped(self, own: _RunQueue, holds: list[Hold]) -> None:
        for hold in holds:
            own.holds.remove(hold)
            self._held(hold)
        self._rest(own)

    def _later(self, own: _RunQueue, seconds: float) -> None:
        def again() -> None:
            own.busy = False
            self._next(own)

        self._loop.call_later(seconds, again)

    def _ask(self, run: _Run, question: Json) -> None:
        source = partial(self.registry.source, run.automation)
        asked = self.pool.run(question, source, urgent=run.hold is not None)
        run.queue.task = self._loop.create_task(asked)
        run.queue.task.add_done_callback(partial(self._ran, run))

    def _ran(self, run: _Run, task: asyncio.Task[RunAnswer]) -> None:
        if self._closed:
            return
        try:
            answer = None if task.cancelled() else task.result()
        except Exception as error:  # it was not begun
            self._log.write(error.line if isinstance(error, RelayError) else repr(error))
            self._later(run.queue, BUSY_AFTER)
        else:
            self._committer.submit_job(partial(self._record, run, answer))

    # -- what was said

    def _record(self, run: _Run, answer: RunAnswer | None, batch: Batch) -> None:
        """Store one run with all that follows from it, in one commit; None: it was cut off."""
        ledger, id_ = self._ledger, run.automation.id
        again = partial(self._committer.submit_job, partial(self._record, run, answer))
        batch.on_failure.append(lambda: self._loop.call_later(AGAIN_AFTER, again))
        batch.after.append(partial(self._recorded, run))
        ledger.begin()
        is_due = run.hold is not None or evaluation.settle(ledger, run_key(id_), run.seq)
        now = self.registry.active.get(id_)
        if answer is not None and is_due is not None and now is not None:  # it is still active
            self._keep(run, now, answer, batch)
        self._take(run.queue, run.hold, batch)

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
        told = automation_runs.outcome(self._ledger, seq, self._queues)
        if told is not None:
            told["received"] = self._seen.of(seq).event.to_json()
        return told

    def _store(self, run: _Run, now: ActiveAutomation, answer: RunAnswer, batch: Batch) -> None:
        ledger, row = self._ledger, run.automation.row
        result = answer.result or AutomationResult()
        automation_runs.add_run(
            ledger,
            row.id,
            row.version,
            run.seq,
            started_ms=answer.started_ms,
            latency_us=answer.latency_us,
            fired=result.fire,
            retry=run.seq == self._begun.get(row.id),
            llm_calls=answer.llm_calls,
            result=None if answer.result is None else result.to_json(),
            error=answer.error,
            log=answer.log,
        )
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
        if result.fire:
            made = self.planned(
                run.automation, self._seen.of(run.seq), result, self.enriched(run.seq)
            )
            config = self._config(row.folder)
            hops = run.hops + 1
            add_dispatches(ledger, run.seq, [made], config=config, hops=hops, now_ms=batch.now_ms)
            batch.after.append(self._dispatched)

    def _refresh(self, id_: str, batch: Batch) -> None:
        # At once: its next run is begun in this commit.
        self.registry.refresh(id_)
        batch.on_failure.append(partial(self.registry.refresh, id_))

    def _recorded(self, run: _Run) -> None:
        if run.hold is not None:
            run.queue.holds.remove(run.hold)
            self._held(run.hold)

    def _disable(self, id_: str, batch: Batch) -> None:
        status = AutomationStatus.DISABLED
        automation_rows.set_status(self._ledger, id_, status, "it disabled itself", batch.now_ms)
        self._refresh(id_, batch)
        batch.after.append(self._changed)

    def planned(
        self, one: ActiveAutomation, seen: SeenEvent, result: AutomationResult, enriched: Json
    ) -> BrokerDispatch:
        """The dispatch of an automation that fired; ``enriched``: by others, for the same event."""
        said = result.hook_result(seen.persona, enriched)
        hook_id = f"automation/{one.row.name}"
        return dispatch_of(seen.event, hook_id, said, one.definition.priority)

    def enriched(self, seq: int) -> Json:
        """What automations have added to an event so far: what does not fire, or blocks. Of one key
        the value of the highest priority; what is too much in all is left out."""
        found: Json = {}
        for added in automation_runs.enriching(self._ledger, seq):
            more = {**added, **found}
            if json_text.size_of(more) <= RESULT_MAX:
                found = more
            else:
                self._log.write(
                    f"event {seq}: more than {RESULT_MAX} bytes are added to it; not all are"
                )
        return found

    def add_enriched(self, seq: int, dispatches: list[BrokerDispatch]) -> list[BrokerDispatch]:
        """What follows otherwise from an event, with what automations have added to it."""
        enriched = self.enriched(seq) if dispatches else {}
        if not enriched:
            return dispatches
        return [replace(one, extracted={**enriched, **(one.extracted or {})}) for one in dispatches]

    def _config(self, folder: str | None) -> str:
        """The configuration whose personas are meant."""
        own = () if folder is None else self._configs.applying(folder)
        keys = [one.key for one in own if os.path.dirname(one.path) == folder]
        return keys[0] if keys else USER
