"""Turns of wrapped agents: a dispatch is a message to the agent, whose session tells the end.

That message says which dispatches it carries, what they permit, and that the turn is to be
reported. It moves on as any other does: it waits for an agent that is not there, is parked by the
loop guard, and can be withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.delivery_states import advance, can_cancel
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.routing import route
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.message import BY_HOOK, REPORTED, QueueMode, State
from relay.features.personas import dispatch_rows
from relay.features.personas.dispatch_rows import DispatchRow
from relay.features.personas.turn_context import AskedMessage, assemble
from relay.hooks.events import HookEventName
from relay.ledger.event_rows import OUTSIDE
from relay.ledger.schema import Delivery
from relay.protocol.broker import Json

#: Who has the lease of what a wrapped agent was sent.
AGENT = "agent"


class WrappedTurns:
    """Begins the turns of wrapped agents, and says which of them will not end any more."""

    def __init__(self, kernel: Kernel, held: HeldMessages) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._held = held

    def send(
        self,
        rows: Sequence[DispatchRow],
        summarised: int,
        mode: QueueMode,
        deadline: float,
        batch: Batch,
    ) -> bool:
        """Send the agent what it is asked, as one message, with the batch. Returns whether that is
        on its way: not where it waits for the person's decision. Raises RelayError where no agent
        can ever have that name."""
        persona, last = rows[0].persona, rows[-1]
        member = self._directory.get(persona)
        if member is not None and member.person:
            raise RelayError(f"{member.name} is a person, and no persona")
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
        delivery = self._delivery(row)
        return delivery is not None and delivery.state is State.HELD

    def cut_off(self, rows: Sequence[DispatchRow]) -> list[DispatchRow]:
        """Of what an agent had that has gone: what it had seen, and not answered."""
        found = ((one, self._delivery(one)) for one in rows)
        return [one for one, delivery in found if delivery and delivery.state is State.SEEN]

    def withdraw(self, rows: Sequence[DispatchRow], batch: Batch) -> list[DispatchRow]:
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

    def late(
        self, rows: Sequence[DispatchRow], deadline: float, now_ms: int
    ) -> tuple[list[DispatchRow], float]:
        """Which of these are beyond the deadline, and in how many seconds the next one is. The
        time begins when the agent has the message; without a message it is over."""
        late = []
        rest = deadline
        for row in rows:
            delivery = self._delivery(row)
            if delivery is not None and delivery.state not in (State.SUBMITTED, State.SEEN):
                continue
            begun = (delivery.submitted_ms or delivery.updated_ms) if delivery else 0
            left = deadline - (now_ms - begun) / 1000
            if left <= 0:
                late.append(row)
            rest = min(rest, left) if left > 0 else rest
        return late, rest


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
