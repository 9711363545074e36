"""The ops about dispatches: make one, list them, try dead ones again or drop them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from relay.broker.batch import AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.door import ItemAnswer
from relay.broker.kernel import Kernel
from relay.broker.ops_messages import checked_id
from relay.broker.trusted_configs import USER
from relay.core.agent_names import valid_name
from relay.core.dispatch import (
    FULL,
    MAIN_SESSION,
    RELAY_CHANNEL,
    BrokerDispatch,
    DeliveryContext,
    PermissionSet,
)
from relay.core.errors import NotFound, UsageError
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import BODY_MAX, QueueMode, State
from relay.core.visible import is_visible
from relay.features.personas import answers as answer_rows
from relay.features.personas import dispatch_rows
from relay.features.personas.answers import AnswerDeliveries
from relay.features.personas.dispatch_rows import (
    BY_HAND,
    ORDER,
    DispatchEnds,
    DispatchRow,
    DispatchState,
)
from relay.features.personas.evaluation import Evaluations
from relay.features.personas.known_personas import Personas
from relay.features.personas.ops import (
    DISPATCH,
    DISPATCHES,
    REDISPATCH,
    DispatchAsked,
    DispatchesQuery,
    DispatchMade,
    DispatchRows,
    DispatchShown,
    Redispatch,
)
from relay.features.personas.turn_engine import TurnEngine
from relay.protocol.broker import ROWS_MAX
from relay.protocol.item_ops import Item
from relay.protocol.message_ops import DeliveryState, MessageSent, Send
from relay.protocol.turns import TurnCause, TurnResult

#: The longest label of a session.
_LABEL_MAX = 256
_LISTED = "relay broker dead lists them; what waits is dropped by its id: relay broker queue"


class DispatchOps:
    """Checks who asks, and hands on to the turn engine."""

    def __init__(
        self,
        kernel: Kernel,
        turns: TurnEngine,
        ends: DispatchEnds,
        answers: AnswerDeliveries,
        personas: Personas,
        evaluations: Evaluations,
    ) -> None:
        self._evaluations = evaluations
        self._features = kernel.features
        self._personas = personas
        self._answers = answers
        self._ends = ends
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._turns = turns

    def ops(self) -> list[Served]:
        """The ops."""
        return [
            serve(DISPATCH, self.dispatch),
            serve(DISPATCHES, self.dispatches),
            serve(REDISPATCH, self.redispatch),
        ]

    def dispatch(self, request: ClientRequest[DispatchAsked], batch: Batch) -> DispatchMade:
        """Ask a persona something, without a route function."""
        self._directory.check_person(request, "dispatch to a persona")
        asked = request.fields
        made, event, duplicate = self._add(request, asked, self._directory.owner, None, batch)
        why = self._personas.why_absent(asked["persona"], USER)
        return {"id": made, "event": event, "duplicate": duplicate, "waits": why}

    def sent(
        self, request: ClientRequest[Send], sender: str, thread: str | None, batch: Batch
    ) -> MessageSent | None:
        """The person writes to a persona that does not run: that is a dispatch to it. None where
        no such persona is configured."""
        to = request.fields.get("to")
        if not isinstance(to, str):
            return None
        spec = self._personas.find(to, USER)
        if spec is None:
            return None
        fields = request.fields
        asked: DispatchAsked = {
            "persona": to,
            "body": fields["body"],
            "mode": fields.get("mode"),
            "id": fields.get("id"),
        }
        _, event, duplicate = self._add(request, asked, sender, thread, batch)
        rows: list[DeliveryState] = [{"to": spec.name, "state": State.QUEUED.value, "reason": None}]
        return {"id": event, "from": sender, "deliveries": rows, "duplicate": duplicate}

    def _add(
        self,
        request: AnyRequest,
        asked: DispatchAsked,
        sender: str,
        thread: str | None,
        batch: Batch,
    ) -> tuple[str, str, bool]:
        """Store a dispatch of the person's: its id, that of its event, and whether it was there."""
        led = self._directory.hops(None, request.client)  # a program may ask for an agent
        hops = 0 if led is None else led + 1
        given, now_ms = asked.get("id"), batch.now_ms
        id_ = new_ulid(now_ms) if given is None else checked_id(given)
        made = derived_ulid(now_ms, "dispatch", id_) if given is None else id_
        dispatch = _checked(asked, id_, made)
        if self._ledger.known([id_]):
            return made, id_, True
        self._ledger.begin()
        seq = self._ledger.next_seq()
        head = (seq, id_, ORDER, sender, "person", dispatch.queue_mode.value, thread)
        proven = self._directory.is_owners_word(request, sender)
        meta = json.dumps({"proven": True}) if proven else None
        self._ledger.add([(*head, asked["body"], meta, now_ms)], [])
        dispatch_rows.add_dispatches(
            self._ledger, seq, [dispatch], config=USER, hops=hops, now_ms=now_ms
        )
        with self._features.contained(batch):
            self._evaluations.others.ordered(seq, hops, batch)
        batch.after.append(self._turns.wake)
        return made, id_, False

    def dispatches(self, request: ClientRequest[DispatchesQuery], batch: Batch) -> DispatchRows:
        """What is open, or dead."""
        self._directory.check_person(request, "see what personas have to do")
        fields = request.fields
        limit = fields.get("limit", ROWS_MAX)
        if not 0 < limit <= ROWS_MAX:
            raise UsageError(f"a limit is a number up to {ROWS_MAX}")
        dead, part = fields.get("dead", False), fields.get("which") or ""
        found = dispatch_rows.listed(self._ledger, limit, dead=dead, part=part)
        answers = answer_rows.listed(self._ledger, limit, dead=dead, part=part)
        return {"rows": [*map(self._listed, found), *answers]}

    def _listed(self, row: DispatchRow) -> DispatchShown:
        shown = _shown(row)
        if row.state is DispatchState.QUEUED:
            why = self._personas.why_absent(row.persona, row.config)
            if why:
                shown["state"], shown["reason"] = "waiting", why
        return shown

    def redispatch(self, request: ClientRequest[Redispatch], batch: Batch) -> DispatchRows:
        """Try dead ones again, or drop them: dispatches, and answers that could not be sent."""
        self._directory.check_person(request, "decide on dead dispatches")
        which, drop = request.fields.get("which"), request.fields.get("drop", False)
        if which is None:
            which = [""]
        elif not all(which):
            raise UsageError("which is a list of ids or personas")
        rows: dict[str, DispatchRow] = {}
        answers: dict[str, DispatchShown] = {}
        for part in which:
            found = dispatch_rows.listed(self._ledger, ROWS_MAX, dead=True, part=part)
            unsent = answer_rows.listed(self._ledger, ROWS_MAX, dead=True, part=part)
            if not found and not unsent and part and drop:
                unsent = answer_rows.listed(self._ledger, ROWS_MAX, dead=False, part=part)
                unsent = [one for one in unsent if one["id"].endswith(part.upper())]
                rows |= {} if unsent else self._withdrawn(part, batch)
            elif not found and not unsent and part:
                raise NotFound(f"nothing dead has the id or the persona {part}", hint=_LISTED)
            rows |= {one.id: one for one in found}
            answers |= {one["id"]: one for one in unsent}
        answer_rows.decide(self._ledger, list(answers), batch.now_ms, drop=drop)
        if drop:
            dead = [one.id for one in rows.values() if one.state is DispatchState.DEAD]
            dispatch_rows.close(self._ledger, dead, DispatchState.DROPPED, batch.now_ms)
        else:
            self._ends.revive(list(rows.values()), batch.now_ms)
            batch.after += [self._turns.look_again, self._answers.wake]
        return {"rows": [*map(_shown, rows.values()), *answers.values()]}

    # -- what the person has to do before a persona takes turns: an item

    def waiting(self) -> list[Item]:
        """What they have to do now."""
        return self._personas.waiting()

    def answered(
        self, items: Sequence[Item], answer: ItemAnswer, request: AnyRequest, batch: Batch
    ) -> bool:
        """Yes: it is done, and what waits is tried again. No: that is given up."""
        for item in items:
            if not answer.yes:
                why = TurnResult.of(TurnCause.GIVEN_UP, item["what"])
                found = dispatch_rows.listed(self._ledger, ROWS_MAX, part=item["agent"])
                rows = [one for one in found if one.state is DispatchState.QUEUED]
                rows = [one for one in rows if self._personas.needs(one.persona, one.config, item)]
                self._ends.bury(rows, why, batch)
            batch.after.append(partial(self._personas.settle, item, answer))
        return True

    def _withdrawn(self, part: str, batch: Batch) -> dict[str, DispatchRow]:
        """Drop what is open: what waits at once, what a process does by stopping it."""
        found = dispatch_rows.listed(self._ledger, ROWS_MAX, part=part)
        rows = {one.id: one for one in found if one.id.endswith(part.upper())}
        if not rows:
            raise NotFound(f"nothing dead has the id or the persona {part}", hint=_LISTED)
        for one in rows.values():
            if one.state is DispatchState.QUEUED:
                self._ends.withdraw(one, batch)
            elif not self._turns.withdraw(one.id):
                raise UsageError(
                    f"{one.persona} has it", hint=f"relay cancel {one.message}, if it is not seen"
                )
        return rows


def _shown(row: DispatchRow) -> DispatchShown:
    return {
        "what": "dispatch",
        "id": row.id,
        "state": row.state.value,
        "reason": row.reason,
        "persona": row.persona,
        "session": row.session,
        "mode": row.mode.value,
        "priority": row.priority,
        "from": row.sender_shown,
        "channel": row.channel,
        "body": row.body,
        "hook": row.hook_id,
        "event": row.event_id,
        "tries": row.tries,
        "turn": row.turn,
        "created_ms": row.created_ms,
        "updated_ms": row.updated_ms,
    }


def _checked(asked: DispatchAsked, event: str, id_: str) -> BrokerDispatch:
    persona, body = asked["persona"], asked["body"]
    if not valid_name(persona):
        raise UsageError(f"{persona!r} cannot be a persona's name")
    if not body.strip():
        raise UsageError("a dispatch needs a text")
    if len(body.encode(errors="replace")) > BODY_MAX:
        raise UsageError(f"a text of more than {BODY_MAX} bytes", code="too_large")
    session = asked.get("session") or MAIN_SESSION
    if len(session) > _LABEL_MAX or not is_visible(session):
        raise UsageError(f"a session's label has at most {_LABEL_MAX} characters to be seen")
    priority = asked.get("priority", 0)
    if abs(priority) > 1_000_000:
        raise UsageError("a priority is between -1,000,000 and 1,000,000")
    mode = asked.get("mode") or QueueMode.FOLLOWUP.value
    try:
        queue_mode = QueueMode(mode)
    except ValueError as error:
        raise UsageError(f"there is no mode {mode!r}", hint=", ".join(QueueMode)) from error
    permissions = asked.get("permissions")
    return BrokerDispatch(
        id=id_,
        hook_id=BY_HAND,
        persona=persona,
        session=session,
        queue_mode=queue_mode,
        permissions=FULL if permissions is None else PermissionSet.from_json(permissions),
        delivery_context=DeliveryContext(RELAY_CHANNEL, reply_to=event),
        system_prompt=asked.get("system_prompt"),
        extracted=asked.get("extracted"),
        include_thread_history=asked.get("thread_history") is not False,
        priority=priority,
    )
