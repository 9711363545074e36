"""The turn engine: dispatches become turns, one at a time in each session of a persona.

A *lane* is what waits for one session of one persona. relay.core.queue_modes says what it does
next. One coroutine works it off: it takes what is due, begins a turn with it, awaits how the turn
ends, and stores that. A turn is carried by the wrapped agent of the persona's name
(relay.features.personas.wrapped_turns), or by a headless run (headless_turns). Every step is a
commit, and the ledger is the queue: after a kill the next broker goes on from its rows. What had
begun then, or when its agent was killed, is begun once more and says so; reports from an earlier
try are ignored (fence).
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from relay.broker.batch import Batch
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.kernel import Kernel
from relay.core.errors import RelayError, StorageError
from relay.core.message import QueueMode
from relay.core.queue_modes import (
    QueueStep,
    StartTurn,
    SteerTurn,
    StopTurn,
    WaitQueue,
    next_step,
)
from relay.core.visible import visible
from relay.features.personas import dispatch_rows
from relay.features.personas.dispatch_rows import DispatchEnds, DispatchRow, label_of, labels_of
from relay.features.personas.headless_turns import HEADLESS, HeadlessTurns
from relay.features.personas.known_personas import Personas
from relay.features.personas.wrapped_turns import AGENT, WrappedTurn, WrappedTurns
from relay.protocol.turns import TurnCause, TurnResult

Rows = Sequence[DispatchRow]
#: How long a wrapped agent's turn may take where no persona of that name says it. Seconds.
DEADLINE = 3600.0
#: What is looked at of a lane's queue.
QUEUE_MAX = 1000
#: Seconds between two tries of a turn, at most.
_PAUSE_MAX = 60.0
#: Seconds that a broker that stops gives to its headless turns.
_CLOSE_DEADLINE = 3.0


class Turn(Protocol):
    """One turn that has begun, whoever carries it."""

    #: Whether a wrapped agent carries it: what comes meanwhile can go into it.
    wrapped: bool
    id: str
    started_ms: int
    permissions: Mapping[str, Any]

    @property
    def fences(self) -> Mapping[str, int]:
        """The dispatches that it is about, each as often as it has been begun."""

    def take(self, row: DispatchRow, mode: QueueMode, batch: Batch) -> None:
        """Give it a dispatch that came meanwhile: to steer it, or to interrupt it."""

    async def ended(self) -> TurnResult:
        """Carry it to its end. Whatever of it the carrier has not recorded is then recorded."""


@dataclass(slots=True, eq=False)
class _Lane:
    """The queue of one session of one persona. ``woken``: there may be something to do."""

    persona: str
    label: str
    turn: Turn | None = None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
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
    ) -> None:
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._personas = personas
        self._wrapped = wrapped
        self._headless = headless
        self._ends = ends
        self._tasks = BrokerTasks(kernel)
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._for_room = OrderedDict[_Lane, None]()  # until another headless turn has ended
        self._absent: set[tuple[str, str]] = set()  # personas that are waited for
        self._seq = 0  # of the newest dispatch that was looked at
        self._waking = False

    # -- what there is to do

    def restore(self) -> None:
        """After a start: what had begun is taken up as it is."""
        rows = dispatch_rows.running(self._ledger, AGENT)
        turns: dict[_Lane, WrappedTurn] = {}
        for row in rows:
            if not self._wrapped.is_parked(row):
                lane = self._lane(row.persona, label_of(self._ledger, row.persona, row.session))
                turn = self._wrapped.taken_up(turns.get(lane), row, self._deadline(row))
                lane.turn = turns[lane] = turn
        for persona in {one.persona for one in rows}:
            if not self._personas.is_there(persona):
                self._tasks.start(self._hand_over(persona))
        self._tasks.start(self._begin_again(dispatch_rows.running(self._ledger, HEADLESS)))

    async def _begin_again(self, rows: Rows) -> None:
        """Nobody goes on with what a process of the last broker's had."""
        if ids := [one.id for one in rows]:
            why = TurnResult.of(TurnCause.BROKER).reason
            await self._committer.commit(
                lambda batch: dispatch_rows.requeue(
                    self._ledger, ids, why, batch.now_ms, failed=False
                )
            )
        self.wake()

    def wake(self) -> None:
        """There are new dispatches."""
        if not self._waking:
            self._waking = True
            self._tasks.start(self._look(None))

    def look_again(self) -> None:
        """What is queued may go on, or goes to another session now."""
        self._tasks.start(self._look(0))

    async def _look(self, after: int | None) -> None:
        """Wake the lanes of all dispatches beyond the number ``after``; None: of the new ones."""
        found, last = await self._committer.commit(partial(self._open_lanes, after))
        self._seq = max(self._seq, last)
        for persona, label in found:
            self._lane(persona, label).woken.set()

    def _open_lanes(self, after: int | None, batch: Batch) -> tuple[set[tuple[str, str]], int]:
        if after is None:
            self._waking, after = False, self._seq
        found, last = dispatch_rows.lanes_after(self._ledger, after)
        return {(who, label_of(self._ledger, who, session)) for who, session in found}, last

    def _lane(self, persona: str, label: str) -> _Lane:
        """The lane of this session, which is being worked off."""
        key = persona.lower(), label
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(persona, label)
            self._tasks.start(self._work_off(lane))
        return lane

    def withdraw(self, id_: str) -> bool:
        """Stop the process that has this dispatch; False: none has it."""
        return self._headless.stop(id_, TurnCause.WITHDRAWN)

    @property
    def busy(self) -> bool:
        """Whether headless turns run, or wait."""
        turns = [one.turn for one in self._lanes.values()]
        return any(one is None or not one.wrapped for one in turns)

    # -- the way of a dispatch: taken, carried, recorded

    async def _work_off(self, lane: _Lane) -> None:
        """Take one turn after the other, until nothing waits. Each commit stores how a turn has
        ended, and begins the next one."""
        try:
            while True:
                ended = None if lane.turn is None else await self._carry(lane, lane.turn)
                lane.woken.clear()
                wait = await self._committer.commit(partial(self._next, lane, ended))
                if lane.turn is None and wait is None and not lane.woken.is_set():
                    return
                if lane.turn is None and wait:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(wait):
                            await lane.woken.wait()
        finally:
            self._for_room.pop(lane, None)
            del self._lanes[lane.persona.lower(), lane.label]

    async def _carry(self, lane: _Lane, turn: Turn) -> TurnResult:
        """Await the end of a turn. What comes meanwhile may go into it, or stop it."""
        ended = asyncio.ensure_future(turn.ended())
        ended.add_done_callback(lambda _: lane.woken.set())
        lane.woken.set()  # something may have waited for the turn to begin
        try:
            while True:
                await lane.woken.wait()
                if ended.done():
                    break
                lane.woken.clear()
                await self._committer.commit(partial(self._join, lane, turn))
        finally:
            ended.cancel()
        if self._for_room and self._headless.has_room:
            self._for_room.popitem(last=False)[0].woken.set()
        return ended.result()

    def _next(self, lane: _Lane, ended: TurnResult | None, batch: Batch) -> float | None:
        """Record how the lane's turn has ended, and begin the next one, if one can begin. Returns
        the seconds after which that can be tried again; None: nothing waits that anybody takes."""
        if lane.turn is not None and ended is not None:
            self._record(lane, lane.turn, ended, batch)
            batch.after.append(partial(setattr, lane, "turn", None))
        label = label_of(self._ledger, lane.persona, lane.label)
        if label != lane.label:  # it has become another session's: that one's lane goes on
            return None
        if (left := lane.not_before_ms - batch.now_ms) > 0:
            return left / 1000
        step = self._step(lane, None, batch)
        if isinstance(step, StartTurn):
            rows = dispatch_rows.rows_of(self._ledger, step.ids)
            return self._begin(lane, rows, step.summarised, batch)
        assert isinstance(step, WaitQueue)
        return None if step.until_ms is None else max(1, step.until_ms - batch.now_ms) / 1000

    def _step(self, lane: _Lane, turn: Turn | None, batch: Batch) -> QueueStep:
        # While a turn runs only these can do anything.
        modes = tuple(QueueMode) if turn is None else (QueueMode.STEER, QueueMode.INTERRUPT)
        labels = labels_of(self._ledger, lane.persona, lane.label)
        return next_step(
            dispatch_rows.queued(
                self._ledger, lane.persona, labels, modes, QUEUE_MAX, batch.now_ms
            ),
            batch.now_ms,
            # What is there in the same millisecond was there before.
            running_since_ms=None if turn is None else turn.started_ms + 1,
            steers=turn is not None and turn.wrapped,
            # A session does what it can where there is no key for it.
            interrupts=True,
        )

    def _record(self, lane: _Lane, turn: Turn, ended: TurnResult, batch: Batch) -> None:
        """Store how a turn has ended, unless its dispatches have been begun again since."""
        rows = dispatch_rows.held_by(self._ledger, HEADLESS, turn.fences)
        rows = [one for one in rows if one.fence == turn.fences[one.id]]
        if rows:
            self._ends.turn_ended(lane.label, turn.id, rows, ended, turn.started_ms, batch)
            if ended.needs_person:
                self._personas.need(rows[0].persona, rows[0].config, ended, turn.started_ms)
        if ended.again:
            pause = min(2.0 ** max((one.tries for one in rows), default=0), _PAUSE_MAX)
            lane.not_before_ms = batch.now_ms + int(pause * 1000)

    def _begin(self, lane: _Lane, rows: Rows, summarised: int, batch: Batch) -> float | None:
        """Begin a turn with these. What cannot be asked for a fault of its own is dead, and holds
        nobody up."""
        try:
            with self._ledger.part(), batch.part():
                return self._begin_with(lane, rows, summarised, batch)
        except StorageError:
            raise
        except Exception as error:
            if len(rows) > 1:  # one of them may be why: each by itself, then
                return self._begin(lane, rows[:1], 0, batch)
            self._ends.bury(rows, _fault(error), batch)
        return 0.0

    def _begin_with(self, lane: _Lane, rows: Rows, summarised: int, batch: Batch) -> float | None:
        persona, config = lane.persona, rows[0].config
        spec = self._personas.find(persona, config)
        turn: Turn | None
        if self._personas.is_there(persona):
            deadline = self._deadline(rows[0])
            turn = self._wrapped.begin(rows, summarised, deadline, batch)
        elif spec is None or self._personas.why_absent(persona, config) is not None:
            batch.after.append(partial(self._miss, persona, config))
            return None
        elif not self._headless.has_room:
            self._for_room[lane] = None
            return math.inf
        else:
            asked, rows = rows, self._ends.admit(rows, batch)
            if not rows:
                return 0.0
            summarised = max(0, summarised - len(asked) + len(rows))
            turn = self._headless.begin(lane.label, rows, summarised, spec, batch)
        # None: it waits for the person's decision, and holds nobody up.
        batch.after.append(partial(setattr, lane, "turn", turn))
        return 0.0

    def _join(self, lane: _Lane, turn: Turn, batch: Batch) -> None:
        """Give the turn what has come meanwhile, and is to steer or to interrupt it."""
        if not turn.fences:  # it is over
            return
        step = self._step(lane, turn, batch)
        if isinstance(step, SteerTurn):
            rows = dispatch_rows.rows_of(self._ledger, step.ids)
            # Else it waits for its own turn.
            rows = [one for one in rows if one.permissions == turn.permissions]
            mode = QueueMode.STEER
        elif isinstance(step, StopTurn):
            rows, mode = dispatch_rows.rows_of(self._ledger, [step.id]), QueueMode.INTERRUPT
        else:
            return
        for row in rows:
            try:
                with self._ledger.part(), batch.part():
                    turn.take(row, mode, batch)
            except StorageError:
                raise
            except Exception as error:
                self._ends.bury([row], _fault(error), batch)
        if rows and turn.wrapped:
            batch.after.append(lane.woken.set)

    def _deadline(self, row: DispatchRow) -> float:
        spec = self._personas.find(row.persona, row.config)
        return DEADLINE if spec is None else spec.deadline

    # -- who carries it

    def _miss(self, persona: str, config: str) -> None:
        """Nobody takes what is for this persona: start it, if that can be, and wait for it."""
        self._personas.start(persona, config)
        if (persona.lower(), config) not in self._absent:
            self._tasks.start(self._wait_for(persona, config))

    async def _wait_for(self, persona: str, config: str) -> None:
        key = persona.lower(), config
        self._absent.add(key)
        try:
            await self._personas.wait_for(persona, config)
        finally:
            self._absent.discard(key)
        self.look_again()

    def agent_gone(self, persona: str, batch: Batch) -> None:
        """An agent has ended: what it had not answered goes to the next of its name."""
        # Once it counts as gone, so that nothing is sent to it afterwards.
        settle = partial(self._gone, persona)
        batch.after.append(settle)
        batch.on_failure.append(settle)

    def _gone(self, persona: str) -> None:
        self._tasks.start(self._hand_over(persona))

    async def _hand_over(self, persona: str) -> None:
        if await self._committer.commit(partial(self._wrapped.gone, persona)):
            self.look_again()

    # -- the end

    async def close(self) -> None:
        """The broker stops: the next one goes on."""
        await self._tasks.close()
        await self._headless.close(_CLOSE_DEADLINE)


def _fault(error: Exception) -> TurnResult:
    """Why no turn can be made of a dispatch."""
    told = error.message if isinstance(error, RelayError) else None
    told = visible(told or f"no turn can be made of it: {type(error).__name__}: {error}")
    return TurnResult.of(TurnCause.IMPOSSIBLE, told[:500])
