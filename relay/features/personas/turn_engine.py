"""The turn engine: dispatches become turns, one at a time in each session of a persona.

A *lane* is what waits for one session of one persona. relay.core.queue_modes says what it does
next. A wrapped agent of the persona's name gets a message, and its session tells how the turn
ended (op ``turn``); a headless persona gets a process of its own. Every step is a commit, and the
ledger is the queue: after a kill the next broker goes on from its rows. What had begun then, or
when its agent was killed, is begun once more and says so; what is told of an earlier try comes too
late, and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from relay.broker.batch import Batch, Job
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.kernel import Kernel
from relay.core.errors import RelayError, StorageError
from relay.core.message import QueueMode
from relay.core.queue_modes import StartTurn, SteerTurn, StopTurn, next_step
from relay.core.visible import visible
from relay.features.personas import dispatch_rows
from relay.features.personas.dispatch_rows import DispatchEnds, DispatchRow, label_of, labels_of
from relay.features.personas.headless_turns import HEADLESS, HeadlessRun, HeadlessTurns
from relay.features.personas.known_personas import Personas
from relay.features.personas.settings import PersonaSpec
from relay.features.personas.wrapped_turns import AGENT, WrappedTurns
from relay.protocol.turns import TurnEnded

Rows = Sequence[DispatchRow]
#: How long a wrapped agent's turn may take where no persona of that name says it. Seconds.
DEADLINE = 3600.0
#: What is looked at of a lane's queue.
QUEUE_MAX = 1000
#: Seconds between two tries of a turn, at most.
_PAUSE_MAX = 60.0
#: Seconds that a broker that stops gives to its headless turns.
_CLOSE_DEADLINE = 3.0


@dataclass(slots=True, eq=False)
class RunningTurn:
    """What a persona has in hand: of a wrapped agent all that it was sent and has not answered."""

    since_ms: int
    deadline: float
    permissions: Mapping[str, Any]
    run: HeadlessRun | None = None
    ids: set[str] = field(default_factory=set)
    watch: asyncio.Task[None] | None = None  # over a wrapped agent's deadline


@dataclass(slots=True, eq=False)
class Lane:
    """The queue of one session of one persona."""

    persona: str
    label: str
    running: RunningTurn | None = None
    timer: asyncio.TimerHandle | None = None
    looking: bool = False
    not_before_ms: int = 0


class TurnEngine:
    """Takes dispatches from the ledger, and sees to it that each comes to its end."""

    def __init__(
        self,
        kernel: Kernel,
        personas: Personas,
        wrapped: WrappedTurns,
        headless: HeadlessTurns,
        ends: DispatchEnds,
        ended: Callable[[str], None],
    ) -> None:
        """``ended`` gets the id of each event of which a dispatch has ended, or waits again."""
        self._ended = ended
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._personas = personas
        self._wrapped = wrapped
        self._headless = headless
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._tasks = BrokerTasks(kernel)
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._for_room = OrderedDict[Lane, None]()  # until another headless turn has ended
        self._seq = 0  # of the newest dispatch that was looked at
        self._waking = self._closing = False

    # -- what there is to do

    def restore(self) -> None:
        """After a start: what had begun is taken up as it is."""
        rows = dispatch_rows.running(self._ledger, AGENT)
        for row in rows:
            if not self._wrapped.is_parked(row):
                lane = self._lane(row.persona, row.session)
                self._went_out(lane, [row], row.updated_ms, self._deadline(row))
        for persona in {one.persona for one in rows}:
            if not self._personas.is_there(persona):
                self._commit(partial(self._settle_gone, persona))
        if rows := dispatch_rows.running(self._ledger, HEADLESS):
            self._commit(partial(self._cut_off, rows))
        self.wake()

    def _cut_off(self, rows: Rows, batch: Batch) -> None:
        """Nobody goes on with what a process of the last broker's had."""
        ids, why = [one.id for one in rows], "the broker ended in the middle of it"
        dispatch_rows.requeue(self._ledger, ids, why, batch.now_ms, failed=False)
        self._done(rows, batch)

    def wake(self) -> None:
        """There are new dispatches."""
        if not self._waking:
            self._waking = True
            self._commit(self._look_for_new)

    def _look_for_new(self, batch: Batch) -> None:
        self._waking = False
        found, self._seq = dispatch_rows.lanes_after(self._ledger, self._seq)
        for persona, session in found:
            self._look(self._lane(persona, session))

    def look_again(self) -> None:
        """What is queued may go on, or goes to another session now."""
        self._seq = 0
        self.wake()

    def stop(self, id_: str, reason: str) -> bool:
        """Stop the process that has this dispatch; False: none has it."""
        runs = [one.running.run for one in self._lanes.values() if one.running]
        run = next((one for one in runs if one is not None and id_ in one.fences), None)
        if run is not None:
            run.stop(reason)
        return run is not None

    @property
    def busy(self) -> bool:
        """Whether headless turns run, or wait."""
        return any(one.timer or one.running and one.running.run for one in self._lanes.values())

    def _lane(self, persona: str, session: str) -> Lane:
        label = label_of(self._ledger, persona, session)
        return self._lanes.setdefault((persona.lower(), label), Lane(persona, label))

    def _look(self, lane: Lane) -> None:
        if not lane.looking and not self._closing:
            lane.looking = True
            self._commit(partial(self._step, lane))

    def _commit(self, job: Job) -> None:
        """Do a job in a batch; again, if its commit fails."""
        self._tasks.start(self._committer.commit(job))

    # -- one step

    def _step(self, lane: Lane, batch: Batch) -> None:
        lane.looking = False
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        running = lane.running
        if running is None and batch.now_ms < lane.not_before_ms:
            self._look_at(lane, lane.not_before_ms, batch)
            return
        # While a turn runs only these can do anything.
        modes = tuple(QueueMode) if running is None else (QueueMode.STEER, QueueMode.INTERRUPT)
        labels = labels_of(self._ledger, lane.persona, lane.label)
        entries = dispatch_rows.queued(
            self._ledger, lane.persona, labels, modes, QUEUE_MAX, batch.now_ms
        )
        step = next_step(
            entries,
            batch.now_ms,
            running_since_ms=None if running is None else running.since_ms,
            steers=running is not None and running.run is None,
            # A session does what it can where there is no key for it.
            interrupts=True,
        )
        if isinstance(step, StartTurn):
            rows = dispatch_rows.rows_of(self._ledger, step.ids)
            self._take(lane, rows, step.summarised, None, batch)
        elif isinstance(step, SteerTurn):
            assert running is not None
            for row in dispatch_rows.rows_of(self._ledger, step.ids):
                if row.permissions == running.permissions:  # else it waits for its own turn
                    self._take(lane, [row], 0, QueueMode.STEER, batch)
        elif isinstance(step, StopTurn):
            if running is not None and running.run is not None:
                running.run.stop("something else goes first")
            else:
                rows = dispatch_rows.rows_of(self._ledger, [step.id])
                self._take(lane, rows, 0, QueueMode.INTERRUPT, batch)
        elif step.until_ms is not None:
            self._look_at(lane, step.until_ms, batch)
        elif running is None:
            self._forget(lane)

    def _look_at(self, lane: Lane, at_ms: int, batch: Batch) -> None:
        wait = max(0, at_ms - batch.now_ms) / 1000
        lane.timer = self._loop.call_later(wait, self._look, lane)

    def _forget(self, lane: Lane) -> None:
        self._lanes.pop((lane.persona.lower(), lane.label), None)

    def _take(
        self, lane: Lane, rows: Rows, summarised: int, mode: QueueMode | None, batch: Batch
    ) -> None:
        """Begin a turn with these, or send them into the one that runs. What cannot be asked for a
        fault of its own is dead, and holds nobody up."""
        try:
            with self._ledger.part(), batch.part():
                if mode is None:
                    self._start(lane, rows, summarised, batch)
                else:
                    self._send(lane, rows, summarised, mode, batch)
        except StorageError:
            raise
        except Exception as error:
            if len(rows) > 1:  # one of them may be why: each by itself, then
                self._take(lane, rows[:1], 0, mode, batch)
                return
            told = error.message if isinstance(error, RelayError) else None
            why = told or f"no turn can be made of it: {type(error).__name__}: {error}"
            self._give_up(rows, visible(why)[:500], batch)

    def _start(self, lane: Lane, rows: Rows, summarised: int, batch: Batch) -> None:
        spec = self._spec(rows[0])
        if self._personas.is_there(lane.persona):
            self._send(lane, rows, summarised, QueueMode.FOLLOWUP, batch)
            return
        if spec is None or spec.mode != HEADLESS:
            wait = partial(self._personas.wait_for, lane.persona, rows[0].config, self.look_again)
            batch.after.append(wait)
            self._forget(lane)
            return
        if not self._headless.has_room:
            self._for_room[lane] = None
            return
        asked, rows = rows, self._ends.admit(rows, batch)
        self._done([one for one in asked if one not in rows], batch)
        if not rows:
            return
        summarised = max(0, summarised - len(asked) + len(rows))
        run = self._headless.begin(lane.label, rows, summarised, spec, batch)
        self._went_out(lane, rows, batch.now_ms + 1, spec.deadline, run)
        batch.on_failure.append(partial(self._settled, lane, rows))
        batch.after.append(lambda: self._tasks.start(self._carry(lane, run)))
        batch.after.append(partial(self._look, lane))

    def _send(self, lane: Lane, rows: Rows, summarised: int, mode: QueueMode, batch: Batch) -> None:
        deadline = self._deadline(rows[0])
        if self._wrapped.send(rows, summarised, mode, deadline, batch):
            # What waits for the person's decision holds nobody up.
            # One that is there in the same millisecond was there before.
            self._went_out(lane, rows, batch.now_ms + 1, deadline)
            batch.on_failure.append(partial(self._settled, lane, rows))
        batch.after.append(partial(self._look, lane))

    def _spec(self, row: DispatchRow) -> PersonaSpec | None:
        return self._personas.find(row.persona, row.config)

    def _deadline(self, row: DispatchRow) -> float:
        return DEADLINE if (spec := self._spec(row)) is None else spec.deadline

    # -- what is in hand

    def _went_out(
        self, lane: Lane, rows: Rows, since_ms: int, deadline: float, run: HeadlessRun | None = None
    ) -> None:
        if lane.running is None:
            lane.running = RunningTurn(since_ms, deadline, rows[0].permissions, run)
            if run is None:
                watch = self._watch(lane, lane.running, deadline)
                lane.running.watch = self._tasks.start(watch)
        lane.running.ids.update(one.id for one in rows)

    def _settled(self, lane: Lane, rows: Rows) -> None:
        """These are in nobody's hands any more."""
        running = lane.running
        if running is not None:
            running.ids.difference_update(one.id for one in rows)
            if not running.ids:
                lane.running = None
                if running.watch is not None:
                    running.watch.cancel()

    def _done(self, rows: Rows, batch: Batch) -> None:
        """Once the batch is committed their lanes go on."""

        def go_on() -> None:
            for one in rows:
                lane = self._lane(one.persona, one.session)
                self._settled(lane, [one])
                self._look(lane)
                self._ended(one.event_id)
            if self._for_room and self._headless.has_room:
                self._look(self._for_room.popitem(last=False)[0])

        batch.after.append(go_on)

    def _give_up(self, rows: Rows, reason: str, batch: Batch) -> None:
        if rows:
            self._ends.bury(rows, reason, batch)
            self._done(rows, batch)

    # -- how it ends

    def reported(
        self, ids: Sequence[str], ended: TurnEnded, started_ms: int, batch: Batch
    ) -> tuple[list[str], bool]:
        """The session of a wrapped agent tells of a turn with these messages. Returns those that
        carry dispatches, or did, and whether any still does: what is told of an earlier try, or
        again, changes nothing."""
        mine = [id_ for id_ in ids if dispatch_rows.is_dispatched(self._ledger, id_)]
        rows = [row for id_ in mine for row in dispatch_rows.carried_by(self._ledger, id_)]
        lanes = {one.id: self._lane(one.persona, one.session).label for one in rows}
        for label in dict.fromkeys(lanes.values()):
            together = [one for one in rows if lanes[one.id] == label]
            turn = together[0].message or ""
            self._ends.turn_ended(label, turn, together, ended, started_ms, batch)
        self._done(rows, batch)
        return mine, bool(rows)

    async def _carry(self, lane: Lane, run: HeadlessRun) -> None:
        """Carry a headless turn to its end, and store that."""
        ended = await self._headless.carry(run)
        await self._committer.commit(partial(self._close_run, lane, run, ended))

    def _close_run(self, lane: Lane, run: HeadlessRun, ended: TurnEnded, batch: Batch) -> None:
        rows = dispatch_rows.held_by(self._ledger, HEADLESS, run.fences)
        rows = [one for one in rows if one.fence == run.fences[one.id]]
        if rows:
            turn = run.request.turn
            self._ends.turn_ended(lane.label, turn, rows, ended, run.started_ms, batch)
        if ended.again:
            pause = min(2.0 ** max((one.tries for one in rows), default=0), _PAUSE_MAX)
            lane.not_before_ms = batch.now_ms + int(pause * 1000)
        self._done(rows, batch)

    def delivery_ended(self, id_: str, reason: str | None, batch: Batch) -> None:
        """A message to an agent has failed, or somebody has withdrawn it."""
        rows = dispatch_rows.carried_by(self._ledger, id_)
        self._give_up(rows, reason or "it could not be delivered", batch)

    def agent_gone(self, persona: str, batch: Batch) -> None:
        """An agent has ended: what it had not answered goes to the next of its name, if it had
        seen it as another try."""
        # Once it counts as gone, so that nothing is sent to it afterwards.
        settle = partial(self._commit, partial(self._settle_gone, persona))
        batch.after.append(settle)
        batch.on_failure.append(settle)

    def _settle_gone(self, persona: str, batch: Batch) -> None:
        rows = dispatch_rows.running(self._ledger, AGENT, persona)
        cut_off = self._wrapped.cut_off(rows)
        self._ends.failed(cut_off, f"{persona} ended before it had answered", batch)
        unread = [one for one in rows if one not in cut_off]
        self._done([*cut_off, *self._wrapped.withdraw(unread, batch)], batch)

    # -- deadlines

    async def _watch(self, lane: Lane, running: RunningTurn, seconds: float) -> None:
        """Give up what a wrapped agent has in hand beyond its deadline."""
        rest: float | None = seconds
        while rest is not None:
            await asyncio.sleep(max(0.05, rest))
            rest = await self._committer.commit(partial(self._late, lane, running))

    def _late(self, lane: Lane, running: RunningTurn, batch: Batch) -> float | None:
        """Give up what is late. Returns the seconds until more may be; None: nothing is left."""
        if lane.running is not running:
            return None
        rows = dispatch_rows.held_by(self._ledger, AGENT, running.ids)
        late, rest = self._wrapped.late(rows, running.deadline, batch.now_ms)
        self._give_up(late, f"no end of the turn within {running.deadline:g} s", batch)
        return rest if len(late) < len(rows) else None

    # -- the end

    async def close(self) -> None:
        """The broker stops: the next one goes on."""
        self._closing = True
        self._personas.close()
        for lane in self._lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
        await self._tasks.close()
        await self._headless.close(_CLOSE_DEADLINE)
