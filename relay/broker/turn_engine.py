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
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.committer import Committer
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory, Member
from relay.broker.dispatch_ends import DispatchEnds
from relay.broker.loop_guard import HeldMessages
from relay.broker.routing import route
from relay.core.errors import RelayError
from relay.core.message import BODY_MAX, BY_HOOK, QueueMode, State
from relay.core.queue_modes import (
    StartTurn,
    SteerTurn,
    StopTurn,
    collected_text,
    next_step,
)
from relay.ledger import dispatch_rows
from relay.ledger.dispatch_rows import DispatchRow
from relay.ledger.event_rows import OUTSIDE
from relay.ledger.persona_sessions import label_of, labels_of
from relay.ledger.store import Ledger
from relay.protocol.turns import TurnEnded

#: How long a wrapped agent's turn may take where its persona says nothing. Seconds.
DEADLINE = 3600.0
#: What is looked at of a lane's queue.
QUEUE_MAX = 1000
#: After a failed commit. Seconds.
_AGAIN_AFTER = 1.0
#: Who has a lease.
AGENT = "agent"
#: Before what had begun already.
_AGAIN = (
    "(This is sent again: the last try ended before it was answered. Look at what is done already.)"
)


@dataclass(slots=True, eq=False)
class RunningTurn:
    """What a persona has in hand: of a wrapped agent all that it was sent and has not answered."""

    since_ms: int
    deadline: float
    ids: set[str] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


@dataclass(slots=True, eq=False)
class Lane:
    """The queue of one session of one persona."""

    persona: str
    label: str
    running: RunningTurn | None = None
    timer: asyncio.TimerHandle | None = None
    looking: bool = False


class TurnEngine:
    """Takes dispatches from the ledger, and sees to it that each comes to its end."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        windows: DeliveryWindows,
        held: HeldMessages,
        committer: Committer,
        answered: Callable[[], None],
    ) -> None:
        """``answered`` is called when an answer is there to be sent."""
        self._ledger = ledger
        self._directory = directory
        self._windows = windows
        self._held = held
        self._committer = committer
        self._answered = answered
        self._ends = DispatchEnds(ledger, directory, windows, held)
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[tuple[str, str], Lane] = {}
        self._seq = 0  # of the newest dispatch that was looked at
        self._waking = False

    # -- what there is to do

    def restore(self) -> None:
        """After a start: what had begun is taken up as it is."""
        for row in dispatch_rows.running(self._ledger):
            if row.lease_owner == AGENT:
                self._went_out(self._lane(row.persona, row.session), [row.id], row.updated_ms)
        self._committer.submit_job(self._without_agent)
        self.wake()

    def wake(self) -> None:
        """There are new dispatches."""
        if not self._waking:
            self._waking = True
            self._committer.submit_job(self._look_for_new)

    def _look_for_new(self, batch: Batch) -> None:
        self._waking = False
        found, self._seq = dispatch_rows.lanes_after(self._ledger, self._seq)
        for persona, session in found:
            self.look(persona, session)

    def look(self, persona: str, session: str) -> None:
        """Something changed for this session."""
        self._look(self._lane(persona, session))

    def _lane(self, persona: str, session: str) -> Lane:
        label = label_of(self._ledger, persona, session)
        return self._lanes.setdefault((persona.lower(), label), Lane(persona, label))

    def _look(self, lane: Lane) -> None:
        if not lane.looking:
            lane.looking = True
            self._committer.submit_job(partial(self._step, lane))

    # -- one step

    def _step(self, lane: Lane, batch: Batch) -> None:
        lane.looking = False
        if lane.timer is not None:
            lane.timer.cancel()
        running = lane.running
        # While a turn runs only these can do anything.
        modes = tuple(QueueMode) if running is None else (QueueMode.STEER, QueueMode.INTERRUPT)
        labels = labels_of(self._ledger, lane.persona, lane.label)
        entries = dispatch_rows.queued(self._ledger, lane.persona, labels, modes, QUEUE_MAX)
        step = next_step(
            entries,
            batch.now_ms,
            running_since_ms=None if running is None else running.since_ms,
            steers=True,
            interrupts=True,
        )
        if isinstance(step, StartTurn):
            self._start(lane, step, batch)
        elif isinstance(step, SteerTurn):
            for row in dispatch_rows.rows_of(self._ledger, step.ids):
                self._send(lane, [row], 0, QueueMode.STEER, batch)
        elif isinstance(step, StopTurn):
            [row] = dispatch_rows.rows_of(self._ledger, [step.id])
            self._send(lane, [row], 0, QueueMode.INTERRUPT, batch)
        elif step.until_ms is not None:
            wait = max(0, step.until_ms - batch.now_ms) / 1000
            lane.timer = self._loop.call_later(wait, self._look, lane)
        elif running is None:
            self._lanes.pop((lane.persona.lower(), lane.label), None)

    def _start(self, lane: Lane, step: StartTurn, batch: Batch) -> None:
        rows = dispatch_rows.rows_of(self._ledger, step.ids)
        self._send(lane, rows, step.summarised, QueueMode.FOLLOWUP, batch)

    # -- to a wrapped agent

    def _send(
        self,
        lane: Lane,
        rows: Sequence[DispatchRow],
        summarised: int,
        mode: QueueMode,
        batch: Batch,
    ) -> None:
        """Send a wrapped agent what it is asked, as one message."""
        member = self._directory.get(lane.persona)
        try:
            if member is not None and member.person:
                raise RelayError(f"{member.name} is a person, and no persona")
            routing = route([lane.persona], rows[-1].sender, self._directory.members, strict=False)
        except RelayError as error:
            self._ends.bury(rows, error.message, batch)
            batch.after.append(partial(self._look, lane))
            return
        message = self._message(rows, summarised, mode)
        message.routing = routing
        if message.origin != "person":
            self._held.admit_followed(message, message.hops, batch)
        parked = any(one.parked for one in message.routing.routes)
        ids = [one.id for one in rows]
        until_ms = batch.now_ms + int(DEADLINE * 1000)
        dispatch_rows.begin(self._ledger, ids, AGENT, until_ms, batch.now_ms, message.id)
        self._windows.collect(message, batch)
        if not parked:  # what waits for the person's decision holds nobody up
            # One that is there in the same millisecond was there before.
            self._went_out(lane, ids, batch.now_ms + 1)
            batch.on_failure.append(partial(self._came_back, lane, ids))
        batch.after.append(partial(self._look, lane))

    def _message(self, rows: Sequence[DispatchRow], summarised: int, mode: QueueMode) -> Accepted:
        last = rows[-1]
        texts = [(one.event_id, one.sender_shown, one.body) for one in rows]
        while len(body := collected_text(texts, summarised).encode()) > BODY_MAX // 2:
            if summarised >= len(rows) - 1:
                break
            summarised += 1
        text = body.decode()
        if any(one.fence for one in rows):
            text = f"{_AGAIN}\n{text}"
        origins = {one.origin for one in rows}
        origin = OUTSIDE if OUTSIDE in origins else last.origin if len(origins) == 1 else "agent"
        attributes = {"report": "turn", **(BY_HOOK if origin == "relay" else {})}
        meta = {
            "attributes": attributes,
            "dispatches": [one.id for one in rows],
            "permissions": last.permissions,
        }
        return Accepted(
            request=None,
            id=rows[0].next_turn,
            given=True,
            kind="message",
            sender=last.sender_shown,
            origin=origin,
            body=text,
            mode=mode.value,
            meta=json.dumps(meta),
            hops=max(one.hops for one in rows),
        )

    def _went_out(self, lane: Lane, ids: Sequence[str], since_ms: int) -> None:
        if lane.running is None:
            lane.running = RunningTurn(since_ms, DEADLINE)
            self._watch(lane, lane.running, DEADLINE)
        lane.running.ids.update(ids)

    def _came_back(self, lane: Lane, ids: Sequence[str]) -> None:
        """It could not be stored that these have begun."""
        self._settled(lane, ids)
        self._loop.call_later(_AGAIN_AFTER, self._look, lane)

    def _settled(self, lane: Lane, ids: Sequence[str]) -> None:
        """These are in nobody's hands any more."""
        running = lane.running
        if running is not None:
            running.ids.difference_update(ids)
            if not running.ids:
                running.cancel_timer()
                lane.running = None

    def _done(self, rows: Sequence[DispatchRow], batch: Batch) -> None:
        """Once the batch is committed their lanes go on."""

        def go_on() -> None:
            for one in rows:
                lane = self._lane(one.persona, one.session)
                self._settled(lane, [one.id])
                self._look(lane)

        batch.after.append(go_on)

    # -- how it ends

    def reported(
        self, ids: Sequence[str], ended: TurnEnded, started_ms: int, batch: Batch
    ) -> tuple[list[str], bool]:
        """The session of a wrapped agent tells of a turn with these messages. Returns those that
        carry dispatches, or did, and whether any still does: what is told of an earlier try, or
        again, changes nothing."""
        mine = [id_ for id_ in ids if dispatch_rows.is_dispatched(self._ledger, id_)]
        rows = [row for id_ in mine for row in dispatch_rows.carried_by(self._ledger, id_)]
        if rows:
            label = label_of(self._ledger, rows[0].persona, rows[0].session)
            turn = rows[0].message
            assert turn is not None
            self._ends.turn_ended(label, turn, rows, ended, started_ms, batch)
            self._done(rows, batch)
            batch.after.append(self._answered)
        return mine, bool(rows)

    def delivery_ended(self, id_: str, reason: str | None, batch: Batch) -> None:
        """A message to an agent has failed, or somebody has withdrawn it."""
        rows = dispatch_rows.carried_by(self._ledger, id_)
        if rows:
            self._ends.bury(rows, reason or "it could not be delivered", batch)
            self._done(rows, batch)

    def agent_gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended: what it had seen and not answered is sent to the next of its name.
        What it had not seen waits for that one anyway."""
        self._try_again(dispatch_rows.running(self._ledger, member.name), batch)

    def _without_agent(self, batch: Batch) -> None:
        """After a start: as ``agent_gone``, of those that ended while no broker was there."""
        rows = dispatch_rows.running(self._ledger)
        there = {one.persona: self._directory.get(one.persona) for one in rows}
        gone = [one for one in rows if (member := there[one.persona]) is None or not member.live]
        self._try_again(gone, batch)

    def _try_again(self, rows: Sequence[DispatchRow], batch: Batch) -> None:
        for one in rows:
            found = self._ledger.delivery(one.message or "", one.persona)
            if found is None or found[2].state is State.SEEN:
                reason = f"{one.persona} ended before it had answered"
                self._ends.failed([one], reason, batch)
                self._done([one], batch)

    # -- deadlines

    def _watch(self, lane: Lane, running: RunningTurn, seconds: float) -> None:
        running.cancel_timer()
        look = partial(self._committer.submit_job, partial(self._late, lane, running))
        running.timer = self._loop.call_later(seconds, look)

    def _late(self, lane: Lane, running: RunningTurn, batch: Batch) -> None:
        """Look whether what the agent has in hand is beyond its deadline. What it has not taken
        up yet is not."""
        if lane.running is not running:
            return
        oldest = batch.now_ms
        late = []
        for row in dispatch_rows.rows_of(self._ledger, sorted(running.ids)):
            found = self._ledger.delivery(row.message or "", row.persona)
            begun = found[2].submitted_ms or found[2].updated_ms if found else row.updated_ms
            if found and found[2].state not in (State.SUBMITTED, State.SEEN):
                continue
            if begun + running.deadline * 1000 <= batch.now_ms:
                late.append(row)
            else:
                oldest = min(oldest, begun)
        if late:
            reason = f"no end of the turn within {running.deadline:g} s"
            self._ends.bury(late, reason, batch)
            self._done(late, batch)
        rest = running.deadline - (batch.now_ms - oldest) / 1000
        batch.after.append(partial(self._watch_on, lane, running, rest))

    def _watch_on(self, lane: Lane, running: RunningTurn, seconds: float) -> None:
        if lane.running is running:
            self._watch(lane, running, max(1.0, seconds))

    def close(self) -> None:
        """The broker stops."""
        for lane in self._lanes.values():
            if lane.timer is not None:
                lane.timer.cancel()
            if lane.running is not None:
                lane.running.cancel_timer()
