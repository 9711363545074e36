"""The answers that agents owe: the op ``turn``, by which a session reports the end of a turn that
somebody waits for, and the notice to the asker, once, that an answer will not come.

An answer is owed from the commit of the message that asks for it (``relay ask``, ``[await:60s]``)
until a turn has answered it, or its message has failed. If the turn ends without an answer, or the
agent ends, the row is deleted in the commit that stores the notice: so the notice comes exactly
once, even if the broker is killed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from relay.broker.batch import Accepted, Batch, ClientRequest, Served, serve
from relay.broker.directory import Directory, Member
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.ops_spawn import SpawnOps
from relay.core.dispatch import MAIN_SESSION
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.ledger import obligation_rows
from relay.ledger.agent_ledger import TurnPrompt, add_turn, answered, session_of
from relay.ledger.obligation_rows import ObligationRow
from relay.ledger.schema import SENDER
from relay.ledger.store import Ledger
from relay.protocol.message_ops import TURN, TurnReport, TurnStored
from relay.protocol.turns import TurnResult, TurnState

#: The thread of the notices to askers.
THREAD = "obligations"
#: The kind of the event for route functions and automations.
KIND = "unanswered"
#: Characters of the question that a notice repeats.
_SHOWN = 200
#: How long after a failed commit an agent's end is handled again. Seconds.
_AGAIN_AFTER = 1.0
#: Messages that one turn can answer.
IDS_MAX = 1000


class Obligations:
    """Settles the answers that agents owe, each with the commit of a batch."""

    def __init__(
        self,
        kernel: Kernel,
        held: HeldMessages,
        deliveries: DeliveryOps,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._committer = kernel.committer
        self._held = held
        self._deliveries = deliveries
        self._features = kernel.features
        self._watchers = kernel.watchers

    def turn_ended(
        self, member: Member, events: Collection[int], ended: TurnResult, batch: Batch
    ) -> None:
        """A turn of ``member`` has ended that should have answered these messages."""
        said = ended.state is TurnState.COMPLETED and bool(ended.text.strip())
        for row in obligation_rows.of(self._ledger, member.name, events):
            answered = obligation_rows.has_written(self._ledger, row)
            if not answered and not (said and not row.by_message):
                self._tell(row, member, "unanswered", ended.reason or "", batch)
            else:
                obligation_rows.settle(self._ledger, row)

    def gone(self, member: Member, batch: Batch) -> None:
        """``member`` has ended, and will give no answer that it owes."""
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
        """Report to watchers, hooks and the asker that the answer will not come."""
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
            handled=True,
            cwd=member.record.cwd,
        )
        self._windows.collect(event, batch)
        ended = "has gone" if why == "gone" else "ended its turn"
        self._notify(row, f"{row.recipient} {ended} without an answer to {text}", reason, batch)

    def _notify(self, row: ObligationRow, text: str, reason: str, batch: Batch) -> None:
        asker = self._directory.get(row.asker)
        if asker is None or self._deliveries.is_awaited(row.id):
            return  # a client that waits for the answer is told there
        if obligation_rows.was_told(self._ledger, row.id, row.asker):
            return  # its own deadline was over before
        if asker.person:
            text += f": {reason}" if reason else ""
        elif not asker.live:
            return  # this run of that name has asked for nothing
        text += f" ({row.id[-8:]})."
        notice = Accepted.notice(asker.name, text, THREAD, batch.now_ms)
        # So that its session stops waiting for that answer, and nobody tells it again.
        notice = replace(notice, meta=obligation_rows.told_meta(row.id))
        batch.cut = True
        if not asker.person:
            try:
                self._held.admit_notice(notice, asker, batch)
            except RelayError:
                return  # the guard allows no more notices to it now; watchers know
        self._windows.collect(notice, batch)


def overdue(
    ledger: Ledger, directory: Directory, question: str, asker: str, text: str
) -> str | None:
    """The notice to an asker whose deadline is over, with the reason why the others do not answer;
    None if it was told before that no answer will come."""
    if obligation_rows.was_told(ledger, question, asker):
        return None
    asked = [directory.get(one) for one in obligation_rows.asked(ledger, question, asker)]
    at_dialog = [one.name for one in asked if one and one.record.state == AgentState.BLOCKED]
    if at_dialog:
        text += f": a dialog that only a person can answer is open at {', '.join(at_dialog)}"
    return text


class TurnOps:
    """Stores the turns that sessions report, and answers the clients that wait for them."""

    def __init__(
        self,
        kernel: Kernel,
        deliveries: DeliveryOps,
        obligations: Obligations,
        spawns: SpawnOps,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._deliveries = deliveries
        self._features = kernel.features
        self._obligations = obligations
        self._watchers = kernel.watchers
        self._spawns = spawns

    def ops(self) -> list[Served]:
        return [serve(TURN, self.turn)]

    def turn(self, request: ClientRequest[TurnReport], batch: Batch) -> TurnStored:
        """A turn is over. A repeated report, after a kill, changes nothing."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only an agent's registered session can report its turn")
        fields = request.fields
        ids, started_ms = fields["ids"], fields["started_ms"]
        if not 0 < len(ids) <= IDS_MAX:
            raise UsageError("a turn is reported with the ids of its messages")
        ended = TurnResult.from_json(fields)
        told = list(dict.fromkeys(ids))
        found = {id_: self._asked(id_, member.name) for id_ in told}
        asked = {id_: prompt for id_, (prompt, _) in found.items()}
        self._ledger.begin()
        dispatched, fresh = self._features.turn_ended(told, ended, started_ms, batch)
        plain = {one.event: one for id_, one in asked.items() if id_ not in dispatched}
        if plain:
            fresh |= self._answered(member.name, plain, ended, started_ms, batch.now_ms)
            self._obligations.turn_ended(member, plain, ended, batch)
        for id_ in told:
            batch.after.append(partial(self._deliveries.answered, id_))
        if fresh:
            askers = {sender for _, sender in found.values()}
            watched = partial(self._watchers.turn, member.name, told, askers, ended, started_ms)
            batch.after.append(watched)
        return {"duplicate": not fresh}

    def agent_gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended: settle the answers that it owes."""
        self._features.gone(member, batch)
        self._obligations.gone(member, batch)
        self._spawns.gone(member, batch)

    def _answered(
        self,
        name: str,
        asked: Mapping[int, TurnPrompt],
        ended: TurnResult,
        started_ms: int,
        now_ms: int,
    ) -> bool:
        """Store a turn that answers messages to an agent. False: it is stored already."""
        session = session_of(self._ledger, name, MAIN_SESSION, now_ms)
        done = answered(self._ledger, session, list(asked))
        fresh = [one for event, one in asked.items() if event not in done]
        if fresh:
            # Derived, so that a report that is repeated with other messages is no second turn.
            turn = derived_ulid(now_ms, "turn", session, str(fresh[0].event))
            add_turn(
                *(self._ledger, session, turn, fresh, ended),
                started_ms=started_ms,
                now_ms=now_ms,
            )
        return bool(fresh)

    def _asked(self, id_: str, recipient: str) -> tuple[TurnPrompt, str]:
        """The prompt of a turn, and who sent it."""
        row = self._ledger.row(
            f"SELECT e.seq, ifnull(e.body,''), e.created_ms, {SENDER} FROM events e"
            " JOIN deliveries d ON d.event=e.seq WHERE e.id=? AND d.recipient=?",
            (id_, recipient),
        )
        if row is None:
            raise NotFound(f"no message {id_} was sent to {recipient}")
        return TurnPrompt(*row[:3]), str(row[3])
