"""Tries an automation out: runs it for an event, and shows what would follow; nothing is stored."""

from __future__ import annotations

from functools import partial
from typing import Any

from relay.broker.batch import AnyRequest, Batch
from relay.broker.directory import Directory
from relay.broker.later_answers import LaterAnswers
from relay.broker.ops_query import one_id
from relay.core.dispatch import (
    MINUTE,
    RELAY_CHANNEL,
    TICK_KIND,
    TIMER_CHANNEL,
    BrokerDispatch,
    Event,
    PersonType,
    read_event,
)
from relay.core.errors import UsageError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.automations import automation_rows
from relay.features.automations.automation_pool import RunAnswer
from relay.features.automations.automation_registry import ActiveAutomation
from relay.features.automations.automation_reports import shown, text_of
from relay.features.automations.automations import Automations
from relay.features.automations.definition import Definition
from relay.features.automations.seen_events import SeenEvent
from relay.features.personas import evaluation
from relay.features.personas.ops_events import read_outside
from relay.ledger import persons, queries
from relay.ledger.store import Ledger
from relay.protocol.broker import Json


class AutomationTrials:
    """The op ``automation_test``. Not for agents: a handler may do all that the person may."""

    def __init__(
        self,
        home: Home,
        ledger: Ledger,
        directory: Directory,
        automations: Automations,
        later: LaterAnswers,
    ) -> None:
        self._home = home
        self._ledger = ledger
        self._directory = directory
        self._automations = automations
        self._later = later

    def test(self, request: AnyRequest, batch: Batch) -> None:
        """Run one for a stored event (``id``), or for one that did not happen: ``event``, else a
        tick of its clock."""
        self._directory.check_person(request, "try automations out")
        row = automation_rows.find(self._ledger, text_of(request, "name"))
        if row.definition is None:
            raise UsageError(
                f"{row.name} was never loaded, and a test would run it",
                hint=f"look at it: relay automation info {row.name} --source; then enable it",
            )
        one = ActiveAutomation(row, Definition.of(row.definition))
        fields = request.fields
        if fields.get("id") is None and fields.get("event") is None:
            fields = {"event": _tick(one, batch.now_ms)}
        seen = self._automations.seen.see(self._event(fields, batch.now_ms))
        question = self._automations.seen.question(one, seen, dry=True)
        source = partial(automation_rows.source, self._ledger, row.id, row.version)
        work = partial(self._automations.runs.pool.run, question, source, urgent=True)
        self._later.answer(request, batch, work, partial(self._told, one, seen))

    def _told(
        self, one: ActiveAutomation, seen: SeenEvent, answer: RunAnswer, batch: Batch
    ) -> Json:
        result, dispatch, triggers = answer.result, None, one.definition.triggers
        if result is not None and result.fire:
            dispatch = _shown_dispatch(self._automations.runs.planned(one, seen, result, {}))
        return {
            "automation": shown(one.row, batch.now_ms),
            "event": seen.event.to_json(),
            "principal": seen.principal.to_json(),
            "matches": self._automations.matches(one, seen),
            "unmet": [] if triggers is None else triggers.unmet(seen.event, seen.principal),
            "result": None if result is None else result.to_json(),
            "error": answer.error,
            "log": answer.log,
            "latency_us": answer.latency_us,
            "llm_calls": answer.llm_calls,
            "state": answer.state,
            "dispatch": dispatch,
        }

    def _event(self, fields: Json, now_ms: int) -> Event:
        if fields.get("id") is not None:
            id_ = one_id(self._ledger, fields["id"])
            return evaluation.event_of(self._ledger, self._home, queries.seq_of(self._ledger, id_))
        given = read_event(fields.get("event"))
        channel, kind = given.pop("channel", RELAY_CHANNEL), given.pop("kind", "message")
        type_, said = given.pop("sender_type", None), {key: given[key] for key in given}
        own = channel == RELAY_CHANNEL
        if own:
            said.setdefault("sender", self._directory.owner)
        # relay's own events, and what sessions tell of, may be tried out, too.
        said |= {"channel": "test" if own else channel, "files": None}
        read = read_outside(said, now_ms, None)
        outside = read.outside
        assert outside is not None
        person = persons.with_address(self._ledger, channel, read.sender)
        metadata: dict[str, Any] = dict(given.get("metadata") or {})
        if person is not None and not own:
            metadata["person"] = person.about
        if type_ is None:
            stranger = PersonType.SYSTEM if channel == TIMER_CHANNEL else PersonType.UNKNOWN
            type_ = stranger if person is None else person.type
        if not isinstance(kind, str) or type_ not in tuple(PersonType):
            raise UsageError(f"no event is {kind!r} from somebody {type_!r}")
        return Event(
            id=new_ulid(now_ms),
            channel=channel,
            kind=kind,
            sender=read.sender,
            content=read.body or "",
            timestamp=outside.occurred_ms,
            sender_type=PersonType(type_),
            source_id=outside.source_id,
            account=outside.account,
            peer_kind=outside.peer_kind,
            peer=outside.peer,
            thread=read.thread,
            reply_to=outside.reply_to,
            content_type=outside.content_type,
            metadata=metadata,
        )


def _tick(one: ActiveAutomation, now_ms: int) -> Json:
    """What comes to it by the clock. Raises UsageError where nothing does."""
    triggers = one.definition.triggers
    name = one.row.name
    if one.definition.schedule is None:
        if triggers is None or TICK_KIND not in (triggers.types or ()):
            raise UsageError(f"an event to try {name} with is needed", hint="give --event")
        name = MINUTE
    return {
        "channel": TIMER_CHANNEL,
        "kind": TICK_KIND,
        "sender": name,
        "sender_type": PersonType.SYSTEM,
        "metadata": {"schedule": name, "due_ms": now_ms, "missed": 0},
    }


def _shown_dispatch(one: BrokerDispatch) -> Json:
    return {
        "persona": one.persona,
        "session": one.session,
        "queue_mode": one.queue_mode.value,
        "priority": one.priority,
        "prompt": one.system_prompt,
        "extracted": one.extracted,
        "permissions": one.permissions.to_json(),
        "answer_to": one.delivery_context.to_json(),
    }
