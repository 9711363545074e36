"""Turns of wrapped agents: a dispatch is a message to the agent, whose session tells the end.

That message says which dispatches it carries, what they permit, and that the turn is to be
reported. It moves on as any other does: it waits for an agent that is not there, is parked by the
loop guard, and can be withdrawn. How a turn ends is recorded in the commit that tells it: the
session forgets what the broker has acknowledged.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from relay.broker.batch import Accepted, Batch
from relay.broker.delivery_states import advance, can_cancel
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.routing import route
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.message import BY_HOOK, REPORTED, QueueMode, State
from relay.features.personas import dispatch_rows
from relay.features.personas.dispatch_rows import DispatchEnds, DispatchRow, label_of
from relay.features.personas.turn_context import AskedMessage, assemble
from relay.hooks.events import HookEventName
from relay.ledger.event_rows import OUTSIDE
from relay.ledger.schema import Delivery
from relay.protocol.broker import Json
from relay.protocol.turns import TurnCause, TurnResult

#: Who has the lease of what a wrapped agent was sent.
AGENT = "agent"


class WrappedTurn:
    """All that an agent was sent for one session and has not answered: a turn, and what went into
    it."""

    wrapped = True

    def __init__(
        self, turns: WrappedTurns, id_: str, started_ms: int, deadline: float, row: DispatchRow
    ) -> None:
        self.id = id_
        self.started_ms = started_ms
        self.deadline = deadline
        self.permissions: Mapping[str, Any] = row.permissions
        self.fences: dict[str, int] = {}
        self._turns = turns
        self._end = asyncio.Event()
        self._ended = TurnResult()

    def take(self, row: DispatchRow, mode: QueueMode, batch: Batch) -> None:
        """Send it to the agent as another message."""
        if self._turns.send([row], 0, mode, self.deadline, batch):
            batch.after.append(partial(self.add, row.id, row.fence + 1))

    def add(self, id_: str, fence: int) -> None:
        """The agent has this dispatch, too."""
        self._end.clear()
        self.fences[id_] = fence
        self._turns.under_way[id_] = self

    def settle(self, id_: str, ended: TurnResult) -> None:
        """The agent does not have this dispatch any more."""
        del self.fences[id_]
        if not self.fences:
            self._ended = ended
            self._end.set()

    async def ended(self) -> TurnResult:
        """Wait until the agent has answered all of it. What is beyond its deadline is given up."""
        rest = self.deadline
        while self.fences:
            try:
                async with asyncio.timeout(max(0.05, rest)):
                    await self._end.wait()
            except TimeoutError:
                rest = await self._turns.give_up_late(self)
        return self._ended


class WrappedTurns:
    """Begins the turns of wrapped agents, and records how they end."""

    def __init__(self, kernel: Kernel, held: HeldMessages, ends: DispatchEnds) -> None:
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._held = held
        self._ends = ends
        #: The turns that have not ended, by the dispatches that they are about.
        self.under_way: dict[str, WrappedTurn] = {}

    def begin(
        self, rows: Sequence[DispatchRow], summarised: int, deadline: float, batch: Batch
    ) -> WrappedTurn | None:
        """Begin a turn with these dispatches. None: they wait for the person's decision. Raises
        RelayError where no agent can ever have that name."""
        if not self.send(rows, summarised, QueueMode.FOLLOWUP, deadline, batch):
            return None
        turn = WrappedTurn(self, rows[0].id, batch.now_ms, deadline, rows[0])
        batch.after += [partial(turn.add, one.id, one.fence + 1) for one in rows]
        return turn

    def taken_up(self, turn: WrappedTurn | None, row: DispatchRow, deadline: float) -> WrappedTurn:
        """After a start of the broker: ``turn``, or a new one, with what an agent has."""
        if turn is None:
            turn = WrappedTurn(self, row.id, row.updated_ms, deadline, row)
        turn.add(row.id, row.fence)
        return turn

    def send(
        self,
        rows: Sequence[DispatchRow],
        summarised: int,
        mode: QueueMode,
        deadline: float,
        batch: Batch,
    ) -> bool:
        """Send the agent what it is asked, as one message, with the batch. Returns whether that is
        on its way: not where it waits for the person's decision."""
        persona, last = rows[0].persona, rows[-1]
        member = self._directory.get(persona)
        if member is not None and member.person:
            raise RelayError(f"{member.name} is a person, not a persona")
        origins = {one.origin for one in rows}
        origin = OUTSIDE if OUTSIDE in origins else last.origin if len(origins) == 1 else "agent"
        sender = last.sender_shown
        if sender.lower() == persona.lower():
            # A route function has sent it back to who it is from: these are the person's words.
            origin = sender = "relay"
        meta: Json = {
            "attributes": {**REPORTED, **(BY_HOOK if origin == "relay" else {})},
            "dispatches": [one.id for one in rows],
            "permissions": last.permissions,
        }
        if origin == "person" and all(one.proven for one in rows):
            meta["proven"] = True
        message = Accepted(
            request=None,
            id=new_ulid(batch.now_ms),  # no derived one: nobody can take it before
            given=False,
            kind="message",
            sender=sender,
            origin=origin,
            body=assemble(
                asked(rows), (), summarised=summarised, attempt=max(one.fence for one in rows)
            ).body,
            mode=mode.value,
            meta=json.dumps(meta),
            routing=route([persona], sender, self._directory.members, strict=False),
            hops=max(one.hops for one in rows),
        )
        if origin != "person":
            self._held.admit_followed(message, message.hops, batch)
        until_ms = batch.now_ms + int(deadline * 1000)
        ids = [one.id for one in rows]
        dispatch_rows.begin(self._ledger, ids, AGENT, until_ms, batch.now_ms, message.id)
        self._windows.collect(message, batch)
        batch.observe(
            HookEventName.AFTER_ASSEMBLE_CONTEXT, partial(prompt_told, rows, message.body or "")
        )
        assert message.routing is not None
        return not any(one.parked for one in message.routing.routes)

    def _delivery(self, row: DispatchRow) -> Delivery | None:
        found = self._ledger.delivery(row.message or "", row.persona)
        return found and found[2]

    def is_parked(self, row: DispatchRow) -> bool:
        """Whether it waits for the person's decision, and holds up nothing."""
        return self._state(row) is State.HELD

    def _state(self, row: DispatchRow) -> State | None:
        delivery = self._delivery(row)
        return None if delivery is None else delivery.state

    # -- how they end

    def reported(
        self, ids: Sequence[str], ended: TurnResult, started_ms: int, batch: Batch
    ) -> tuple[set[str], bool]:
        """The agent's session tells of a turn with these messages. Returns those that carry
        dispatches, or did, and whether any still does: what is told of an earlier try, or again,
        changes nothing."""
        if ended.needs_person:  # what its session sees on its screen is an item already
            ended = replace(ended, cause=TurnCause.OTHER)
        mine = {id_ for id_ in ids if dispatch_rows.is_dispatched(self._ledger, id_)}
        by_label: dict[str, list[DispatchRow]] = {}
        for row in (row for id_ in mine for row in dispatch_rows.carried_by(self._ledger, id_)):
            label = label_of(self._ledger, row.persona, row.session)
            by_label.setdefault(label, []).append(row)
        for label, rows in by_label.items():
            self._ends.turn_ended(label, rows[0].message or "", rows, ended, started_ms, batch)
            self._settle(rows, ended, batch)
        return mine, bool(by_label)

    def delivery_ended(self, id_: str, reason: str | None, batch: Batch) -> None:
        """A message to an agent has failed, or somebody has withdrawn it."""
        rows = dispatch_rows.carried_by(self._ledger, id_)
        why = reason or "it could not be delivered"
        self._give_up(rows, TurnResult.of(TurnCause.UNDELIVERED, why), batch)

    def gone(self, persona: str, batch: Batch) -> bool:
        """An agent has ended: what it had not answered goes to the next of its name, if it had
        seen it as another try. Returns whether it had anything."""
        rows = dispatch_rows.running(self._ledger, AGENT, persona)
        cut_off = [one for one in rows if self._state(one) is State.SEEN]
        gone = TurnResult.of(TurnCause.GONE, persona)
        if cut_off:
            self._ends.failed(cut_off, gone, batch)
        unread = self._withdraw([one for one in rows if one not in cut_off], batch)
        self._settle([*cut_off, *unread], gone, batch)
        return bool(rows)

    async def give_up_late(self, turn: WrappedTurn) -> float:
        """Give up what an agent has had for too long. Returns the seconds until more is late."""
        return await self._committer.commit(partial(self._late, turn))

    def _late(self, turn: WrappedTurn, batch: Batch) -> float:
        """The time begins when the agent has the message; without a message it is over."""
        late, rest = [], turn.deadline
        for row in dispatch_rows.held_by(self._ledger, AGENT, turn.fences):
            delivery = self._delivery(row)
            if delivery is not None and delivery.state not in (State.SUBMITTED, State.SEEN):
                continue
            begun = (delivery.submitted_ms or delivery.updated_ms) if delivery else 0
            left = turn.deadline - (batch.now_ms - begun) / 1000
            if left <= 0:
                late.append(row)
            else:
                rest = min(rest, left)
        self._give_up(late, TurnResult.of(TurnCause.DEADLINE, f"{turn.deadline:g}"), batch)
        return rest

    def _give_up(self, rows: Sequence[DispatchRow], why: TurnResult, batch: Batch) -> None:
        if rows:
            self._ends.bury(rows, why, batch)
            self._settle(rows, why, batch)

    def _settle(self, rows: Sequence[DispatchRow], ended: TurnResult, batch: Batch) -> None:
        """Once the batch is committed the agent does not have these any more."""

        def settle() -> None:
            for one in rows:
                if (turn := self.under_way.pop(one.id, None)) is not None:
                    turn.settle(one.id, ended)

        batch.after.append(settle)

    def _withdraw(self, rows: Sequence[DispatchRow], batch: Batch) -> list[DispatchRow]:
        """Take back what no agent has been given yet, nor the person must decide on: who comes next
        is asked anew. Returns it."""
        taken = []
        for row in rows:
            found = self._ledger.delivery(row.message or "", row.persona)
            if found is None or found[2].state is State.HELD:
                continue
            if not found[2].state.final and can_cancel(found[2]):
                reason = f"{row.persona} has ended; it is sent again when somebody takes the turn"
                new = advance(found[2], State.CANCELLED, batch.now_ms, reason=reason)
                self._ledger.begin()
                self._ledger.update_delivery(found[0], row.persona, new)
                taken.append(row)
            elif found[2].state is State.CANCELLED:
                taken.append(row)  # with another of the same message
        ids = [one.id for one in taken]
        dispatch_rows.requeue(self._ledger, ids, None, batch.now_ms, failed=False, unread=True)
        return taken


def prompt_told(rows: Sequence[DispatchRow], prompt: str) -> Json:
    """What hooks are told of the prompt that a persona gets for these dispatches."""
    told: Json = {"prompt": prompt, "persona": rows[0].persona, "session": rows[0].session}
    return told | {"dispatches": [one.id for one in rows]}


def asked(rows: Sequence[DispatchRow]) -> list[AskedMessage]:
    """What these dispatches ask."""
    return [
        AskedMessage(
            *(one.event_id, one.sender_shown, one.channel, one.body or f"({one.kind})"),
            *(one.context.get("system_prompt"), one.context.get("extracted")),
        )
        for one in rows
    ]
