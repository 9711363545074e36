"""Obligations: who has asked for an answer that will not come is told, once.

An answer is owed from the commit of the message that asks for it (``relay ask``, ``[await:60s]``)
until a turn has answered it, or its message has failed. Where the turn ends without an answer, or
the agent has gone, the row goes in the commit that stores the word of it: no kill of the broker
makes that word come twice, or never.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.directory import Directory, Member
from relay.broker.evaluation import Evaluations
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.ops_delivery import DeliveryOps
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.ledger import obligation_rows
from relay.ledger.obligation_rows import ObligationRow
from relay.ledger.store import Ledger
from relay.protocol.turns import TurnEnded, TurnState

#: The thread in which askers are told.
THREAD = "obligations"
#: The kind of the event for route functions and automations.
KIND = "unanswered"
#: Characters of what was asked that a notice repeats.
_SHOWN = 200
#: How long after a failed commit an agent's end is looked at again. Seconds.
_AGAIN_AFTER = 1.0


class Obligations:
    """Settles what agents owe, each with the commit of a batch."""

    def __init__(
        self,
        kernel: Kernel,
        held: HeldMessages,
        deliveries: DeliveryOps,
        evaluations: Evaluations,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._committer = kernel.committer
        self._held = held
        self._deliveries = deliveries
        self._evaluations = evaluations
        self._watchers = kernel.watchers

    def turn_ended(
        self, member: Member, events: Collection[int], ended: TurnEnded, batch: Batch
    ) -> None:
        """A turn of ``member`` has ended that was to answer these messages."""
        said = ended.state is TurnState.COMPLETED and bool(ended.text.strip())
        for row in obligation_rows.of(self._ledger, member.name, events):
            answered = obligation_rows.has_written(self._ledger, row)
            if not answered and not (said and not row.by_message):
                self._tell(row, member, "unanswered", ended.reason or "", batch)
            else:
                obligation_rows.settle(self._ledger, row)

    def gone(self, member: Member, batch: Batch) -> None:
        """``member`` has ended: what it owes it will not give."""
        again = partial(self._committer.submit_job, partial(self.gone, member))
        later = partial(asyncio.get_running_loop().call_later, _AGAIN_AFTER, again)
        batch.on_failure.append(later)
        for row in obligation_rows.of(self._ledger, member.name):
            if obligation_rows.has_written(self._ledger, row):
                obligation_rows.settle(self._ledger, row)
            else:
                self._tell(row, member, "gone", "", batch)
            batch.after.append(partial(self._deliveries.answered, row.id))

    def _tell(
        self, row: ObligationRow, member: Member, why: str, reason: str, batch: Batch
    ) -> None:
        """The answer will not come: say so to those who watch, to hooks, and to the asker."""
        self._ledger.begin()
        if not obligation_rows.settle(self._ledger, row):
            return
        about = {"id": row.id, "asker": row.asker, "why": why}
        batch.after.append(
            partial(self._watchers.obligation, row.id, row.asker, row.recipient, why)
        )
        batch.observe(HookEventName.UNANSWERED, lambda: {"agent": row.recipient, **about})
        text = " ".join(row.body.split())
        text = f"“{text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}”"
        event = Accepted(
            request=None,
            id=new_ulid(batch.now_ms),
            given=False,
            kind=KIND,
            sender=row.recipient,
            origin="relay",
            body=text,
            meta=json.dumps({"meta": about}),
            hops=member.hops,
        )
        self._evaluations.mark(event, member, batch)
        self._windows.collect(event, batch)
        ended = "has gone" if why == "gone" else "ended its turn"
        self._notify(row, f"{row.recipient} {ended} without an answer to {text}", reason, batch)

    def _notify(self, row: ObligationRow, text: str, reason: str, batch: Batch) -> None:
        asker = self._directory.get(row.asker)
        if asker is None or self._deliveries.is_awaited(row.id):
            return  # who waits for the answer itself hears it there
        if obligation_rows.was_told(self._ledger, row.id, row.asker):
            return  # its time was up before
        if asker.person:
            text += f": {reason}" if reason else ""
        elif not asker.live:
            return  # the next one of its name has asked for nothing
        text += f" ({row.id[-8:]})."
        notice = Accepted.notice(asker.name, text, THREAD, batch.now_ms)
        # So that its session expects that answer no more, and nobody tells it again.
        notice = replace(notice, meta=obligation_rows.told_meta(row.id))
        batch.cut = True
        if not asker.person:
            try:
                self._held.admit_notice(notice, asker, batch)
            except RelayError:
                return  # beyond what relay tells an agent for now: those who watch know
        self._windows.collect(notice, batch)


def overdue(
    ledger: Ledger, directory: Directory, question: str, asker: str, text: str
) -> str | None:
    """What the asker is told whose time for an answer is up, with what keeps the others from
    answering; None where it was told before that no answer will come."""
    if obligation_rows.was_told(ledger, question, asker):
        return None
    asked = [directory.get(one) for one in obligation_rows.asked(ledger, question, asker)]
    at_dialog = [one.name for one in asked if one and one.record.state == AgentState.BLOCKED]
    if at_dialog:
        text += f": a dialog that only a person can answer is open at {', '.join(at_dialog)}"
    return text
