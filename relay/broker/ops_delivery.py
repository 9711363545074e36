"""How deliveries come to their end: the ``state``, ``read`` and ``wait`` ops, and what expires."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from relay.agents.interpreters import shows_anything
from relay.broker.batch import Batch, Client, ClientRequest, Served, serve
from relay.broker.broker_tasks import LaterAnswers
from relay.broker.delivery_states import (
    REPORTED,
    WAITING_FOR_MS,
    advance,
    can_cancel,
    expired,
)
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.ops_query import one_id
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.message import AgentState, State
from relay.ledger import obligation_rows, queries
from relay.ledger.agent_ledger import answers_to
from relay.ledger.schema import Delivery
from relay.ledger.store import Ledger
from relay.protocol.broker import ROWS_MAX
from relay.protocol.message_ops import (
    READ,
    STATE,
    WAIT,
    Cancel,
    Cancelled,
    DeliveryState,
    MarkedRead,
    Read,
    ReportState,
    StateStored,
    Wait,
    WaitResult,
)

#: The longest wait that one request may ask for; a client asks again. Seconds.
WAIT_MAX = 24 * 3600.0
#: Messages that expire in one batch; others follow in the next.
_SWEEP_ROWS = 500


@dataclass(slots=True, eq=False)
class _Wait:
    """One unanswered ``wait``."""

    request: ClientRequest[Wait]
    id: str
    answer: bool  # whether to wait for the answer, too
    timer: asyncio.TimerHandle | None = None


class DeliveryOps:
    """Changes the states of deliveries, and answers the clients that wait for them."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._rights = kernel.rights
        self._windows = kernel.windows
        self._committer = kernel.committer
        self._features = kernel.features
        self._later = LaterAnswers(kernel)
        self._waits: dict[str, list[_Wait]] = {}  # by the message's id

    def ops(self) -> list[Served]:
        return [
            serve(STATE, self.state),
            serve(READ, self.read),
            serve(WAIT, self.wait),
        ]

    def changed(
        self,
        batch: Batch,
        id_: str,
        sender: str,
        to: str,
        new: Delivery,
        by: Member | None = None,
    ) -> None:
        """A delivery changes with this batch: tell its sender, unless it is ``by`` itself, and the
        clients that wait for it."""
        if new.state in (State.FAILED, State.CANCELLED):
            obligation_rows.drop(self._ledger, id_, to)
        self._features.moved(id_, sender, to, new, batch)
        quiet = by is not None and by.name == sender
        batch.after.append(partial(self._tell, id_, sender, to, new, quiet))

    def _tell(self, id_: str, sender: str, to: str, new: Delivery, quiet: bool) -> None:
        told = (new.state.value, new.reason, new.proof)
        self._windows.receipt(sender, id_, to, *told, quiet=quiet)
        if id_ in self._waits:
            self._committer.submit_job(partial(self._answer_waits, id_, None))

    # -- state

    def state(
        self, request: ClientRequest[ReportState], batch: Batch, *, delayed: bool = False
    ) -> StateStored | None:
        """The recipient's session reports how far a delivery is. Before a message is handed over
        this may wait (once: ``delayed``) until what belongs to the message is known."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only the recipient's registered session can report a delivery")
        fields = request.fields
        id_ = fields["id"]
        try:
            state = State(fields["state"])
        except ValueError as error:
            raise UsageError(f"there is no state {fields['state']!r}") from error
        if state is State.HELD:
            # The session of an older relay, whose agent runs on through an upgrade, uses this name
            # for a delivery that a draft or a dialog keeps waiting.
            state = State.QUEUED
        if state not in REPORTED:
            raise UsageError(f"{state} is not a session's to report")
        found = self._ledger.delivery(id_, member.name)
        if found is None:
            raise NotFound(f"no message {id_} was sent to {member.name}")
        event, sender, delivery = found
        if delivery.state in (State.HELD, State.WAITING):
            # It was not offered: no session changes what waits for the person's decision.
            raise UsageError(f"a delivery that is {delivery.state} is not a session's to report")
        presence = fields.get("presence", False)
        if presence and not delayed and (work := self._features.delays(event)) is not None:
            with suppress(RelayError):  # too many wait already
                self._later.answer(request, batch, work, partial(self._after_delay, request))
                return None
        new = advance(
            delivery,
            state,
            batch.now_ms,
            reason=_short(fields.get("reason")),
            proof=_short(fields.get("proof")),
            attempt=fields.get("attempt"),
        )
        if new is not delivery:
            self._ledger.begin()
            self._ledger.update_delivery(event, member.name, new)
            self.changed(batch, id_, sender, member.name, new)
        self._note_cause(member, request.client, sender, id_, state)
        batch.after.append(partial(self._windows.settled, member.name, id_, state))
        answer: StateStored = {"id": id_, "state": state.value, "attempts": new.attempts}
        if presence and (news := self._features.news(member)):
            answer["presence"] = news
        if presence and (context := self._features.context(event)):
            answer["context"] = context
        return answer

    def _after_delay(
        self, request: ClientRequest[ReportState], _: object, batch: Batch
    ) -> StateStored | None:
        """Go on with a report that had to wait. A session that is gone will make it again."""
        return None if request.client.closed else self.state(request, batch, delayed=True)

    def _note_cause(
        self, member: Member, client: Client, sender: str, id_: str, state: State
    ) -> None:
        """Note that the recipient's words follow from this message: see relay.broker.loop_guard."""
        busy = member.record.state == AgentState.BUSY.value
        if state is not State.SEEN and (state is not State.SUBMITTED or busy):
            return  # a queued message was not read yet
        hops = self._ledger.hops(id_, member.name)
        if sender == "relay" and not hops:
            return  # the texts of the person's handlers change nothing
        caused_by(self._ledger, member, id_, hops)
        for outer in self._directory.around(member, client)[1:]:
            if outer.hops < hops:  # it can read what an agent inside it hears
                caused_by(self._ledger, outer, id_, hops)

    # -- cancel

    def cancel(self, request: ClientRequest[Cancel], batch: Batch) -> Cancelled:
        """Withdraw a message from every recipient to whom it was not delivered yet."""
        by = self._directory.speaker(request)
        id_ = one_id(self._ledger, request.fields["id"])
        message = queries.message(self._ledger, id_)
        if message is None:
            raise NotFound(f"there is no message {id_}", hint="relay sent lists the ids")
        sender = message["from"]
        if by is not None and by.name != sender:
            raise RelayError(
                f"{id_} is not a message of {by.name}'s", hint="relay sent", code="forbidden"
            )
        reason = f"{self._directory.owner if by is None else by.name} withdrew it"
        withdrawn = 0
        for row in message["deliveries"]:
            found = self._ledger.delivery(id_, row["to"])
            if found is None or not can_cancel(found[2]):
                continue
            event, _, delivery = found
            new = advance(delivery, State.CANCELLED, batch.now_ms, reason=reason)
            self._ledger.begin()
            self._ledger.update_delivery(event, row["to"], new)
            self.changed(batch, id_, sender, row["to"], new, by=by)
            batch.after.append(partial(self._windows.settled, row["to"], id_, State.CANCELLED))
            withdrawn += 1
        deliveries = queries.deliveries(self._ledger, id_)
        return {"id": id_, "withdrawn": withdrawn, "deliveries": deliveries}

    # -- read

    def read(self, request: ClientRequest[Read], batch: Batch) -> MarkedRead:
        """The person has seen these messages, or somebody in a shell the messages to it."""
        member, speaker = self._directory.named(request), self._directory.speaker(request)
        ids = request.fields["ids"]
        if len(ids) > ROWS_MAX:
            raise UsageError(f"at most {ROWS_MAX} messages are marked as read at once")
        own_shell = speaker is member and shows_anything(member.record.kind)
        if not own_shell and (not member.person or speaker is not None):
            raise UsageError(
                f"only a person can read for {member.name}"
                if member.person
                else f"{member.name} is an agent: its messages are seen when it sees them"
            )
        count = 0
        for id_ in ids:
            found = self._ledger.delivery(id_, member.name)
            if found is None or found[2].state.final:
                continue
            event, sender, delivery = found
            new = advance(delivery, State.SEEN, batch.now_ms, proof="inbox")
            self._ledger.begin()
            self._ledger.update_delivery(event, member.name, new)
            self.changed(batch, id_, sender, member.name, new)
            count += 1
        return {"read": count}

    # -- wait

    def wait(self, request: ClientRequest[Wait], batch: Batch) -> WaitResult | None:
        """Answer once all deliveries of a message are final, or when the time is up."""
        id_, timeout = request.fields["id"], request.fields["timeout"]
        if not 0 <= timeout <= WAIT_MAX:
            raise UsageError(f"a timeout is a number of seconds up to {WAIT_MAX:.0f}")
        answer = request.fields.get("answer", False)
        # Its receivers may know its state, as they may read it: a session asks for it after the one
        # before was killed. The answers of others are not for them.
        to = () if answer else (row["to"] for row in queries.deliveries(self._ledger, id_))
        reader = self._rights.reader(request)
        reader.check(reader.reads(queries.origin(self._ledger, id_)[0], *to))
        found = self._how_far(id_, answer)
        if not found["deliveries"] and queries.message(self._ledger, id_) is None:
            raise NotFound(f"there is no message {id_}")
        if found["done"] or timeout == 0:
            return found
        request.client.defer()
        waiting = _Wait(request, id_, answer)
        # At once, not after the commit: a change later in this very batch must find it.
        self._waits.setdefault(id_, []).append(waiting)
        late = partial(self._committer.submit_job, partial(self._answer_waits, id_, waiting))
        waiting.timer = asyncio.get_running_loop().call_later(timeout, late)
        batch.on_failure.append(partial(self._forget, waiting))
        return None

    def gone(self, client: Client) -> None:
        for waiting in [one for group in self._waits.values() for one in group]:
            if waiting.request.client is client:
                self._forget(waiting)

    def forget_waits(self) -> None:
        """The broker stops: forget all waits; clients ask the next broker."""
        for waiting in [one for group in self._waits.values() for one in group]:
            self._forget(waiting)

    def is_awaited(self, id_: str) -> bool:
        """Whether a client waits for the answer to this message now."""
        return any(one.answer for one in self._waits.get(id_, ()))

    def answered(self, id_: str) -> None:
        """The answer to this message or event is stored, or none will come."""
        if id_ in self._waits:
            self._committer.submit_job(partial(self._answer_waits, id_, None))

    def _how_far(self, id_: str, answer: bool) -> WaitResult:
        """The answer to a ``wait`` as things are now."""
        rows = self._directory.with_absence(queries.deliveries(self._ledger, id_))
        deliveries: list[DeliveryState] = [*rows]
        if not deliveries:
            progress = self._features.progress(id_, answer)
            return progress or {"id": id_, "done": True, "deliveries": []}
        if not answer:
            done = all(State(row["state"]).final for row in deliveries)
            return {"id": id_, "done": done, "deliveries": deliveries}
        answers = answers_to(self._ledger, id_)
        by = {one["from"].lower() for one in answers}
        over = [row["to"].lower() in by or self._never_answered(row) for row in deliveries]
        return {"id": id_, "done": all(over), "deliveries": deliveries, "answers": answers}

    def _never_answered(self, row: DeliveryState) -> bool:
        """Whether a delivery will not be answered any more: for example, its receiver has gone."""
        state, member = State(row["state"]), self._directory.get(row["to"])
        gone = member is None or member.person or not member.live
        return state.final and (state is not State.SEEN or gone)

    def _answer_waits(self, id_: str, late: _Wait | None, batch: Batch) -> None:
        """Answer the clients that wait for a message, if it is final, and the ``late`` one."""
        for waiting in list(self._waits.get(id_, ())):
            fields = self._how_far(id_, waiting.answer)
            if fields["done"] or waiting is late:
                # At once: a second job for this message may be in this very batch.
                self._forget(waiting)
                request = waiting.request
                batch.owed.append(request)
                batch.answer(request.client, request.n, fields)

    def _forget(self, waiting: _Wait) -> None:
        if waiting.timer is not None:
            waiting.timer.cancel()
        group = self._waits.get(waiting.id)
        if group is not None and waiting in group:
            group.remove(waiting)
            waiting.request.client.undefer()
            if not group:
                del self._waits[waiting.id]

    # -- what expires

    def sweep(self, batch: Batch) -> None:
        """Fail messages that have waited seven days for a name that never came, some at a time."""
        rows = queries.waiting_for_nobody(self._ledger, batch.now_ms - WAITING_FOR_MS, _SWEEP_ROWS)
        for event, recipient, id_, sender in rows:
            found = self._ledger.delivery(id_, recipient)
            if found is None:
                continue
            new = advance(found[2], State.FAILED, batch.now_ms, reason=expired(recipient))
            self._ledger.begin()
            self._ledger.update_delivery(event, recipient, new)
            self.changed(batch, id_, sender, recipient, new)
        if len(rows) == _SWEEP_ROWS:
            batch.after.append(partial(self._committer.submit_job, self.sweep))


def caused_by(ledger: Ledger, member: Member, id_: str, hops: int) -> None:
    """From now on this agent's words follow from the message ``id_``; "": from none."""
    if member.hops != hops:
        ledger.begin()
        ledger.save_hops(member.name, hops)
    member.caused_by(id_, hops)


def _short(value: str | None) -> str | None:
    return value[:1024] if value else None
