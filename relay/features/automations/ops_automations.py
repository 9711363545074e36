"""The ops of automations: registered by files' texts, switched, shown, and tried out.

What runs is the text that was registered, never the file. A person's is loaded in a worker at once;
an agent's is only stored, and loaded once the person has looked at it.
"""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from relay.broker.batch import Accepted, Batch, ClientRequest, Served, serve
from relay.broker.broker_tasks import LaterAnswers
from relay.broker.kernel import Kernel
from relay.broker.ops_query import fitting, one_id
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
from relay.core.errors import RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.core.visible import is_visible, visible
from relay.features.automations import automation_rows
from relay.features.automations.automation_rows import (
    ActiveAutomation,
    AutomationRow,
    AutomationStatus,
    RegisteredVersion,
)
from relay.features.automations.automation_runner import RunAnswer
from relay.features.automations.automation_runs import SeenEvent
from relay.features.automations.automations import Automations
from relay.features.automations.circuit import Circuit
from relay.features.automations.clock import Clock, local_zone
from relay.features.automations.definition import Definition, Schedule, check_size
from relay.features.automations.ops import (
    AUTOMATION_DELETE,
    AUTOMATION_DISABLE,
    AUTOMATION_ENABLE,
    AUTOMATION_INFO,
    AUTOMATION_REGISTER,
    AUTOMATION_RUNS,
    AUTOMATION_TEST,
    AUTOMATION_UPDATE,
    AUTOMATIONS,
    AutomationAnswer,
    AutomationDeleteQuery,
    AutomationDetails,
    AutomationDisableQuery,
    AutomationEnableQuery,
    AutomationInfoAnswer,
    AutomationInfoQuery,
    AutomationRegisterQuery,
    AutomationRunsAnswer,
    AutomationRunsQuery,
    AutomationsAnswer,
    AutomationsQuery,
    AutomationTestAnswer,
    AutomationTestQuery,
    AutomationUpdateQuery,
    ShownAutomation,
    TestedDispatch,
)
from relay.features.automations.settings import automation_settings
from relay.features.personas import evaluation
from relay.features.personas.known_personas import Personas
from relay.features.personas.ops_events import read_outside
from relay.ledger import persons, queries
from relay.protocol.broker import ROWS_MAX, Json

#: How many automations of agents may wait for the person to look at them.
UNSEEN_MAX = 50
#: How many may be registered in all.
AUTOMATIONS_MAX = 5000
#: Characters of a path, and of a reason.
_PATH_MAX, _REASON_MAX = 4096, 500
#: How many agents of one text are looked up.
_AGENTS_ASKED = 64
_STEM = re.compile(r"[^a-z0-9_.-]+")
_FOLDER = os.path.join(".relay", "automations")
#: Versions that are shown of one.
_VERSIONS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class _GivenFile:
    """A file as a client says it is: the broker reads none for anybody."""

    path: str
    source: str
    sha256: str

    def version(self, definition: Definition | None, who: str) -> RegisteredVersion:
        """It as a version, registered by ``who``."""
        told = None if definition is None else definition.to_json()
        return RegisteredVersion(self.path, self.sha256, self.source, told, who)


class AutomationOps:
    """Checks who asks, has files loaded, and stores what was registered."""

    def __init__(
        self, kernel: Kernel, automations: Automations, clock: Clock, personas: Personas
    ) -> None:
        self._later = LaterAnswers(kernel)
        self._home = kernel.home
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._configs = kernel.configs
        self._runs = automations.runs
        self._runner = automations.runs.runner
        self._personas = personas
        self._automations = automations
        self._clock = clock

    def ops(self) -> list[Served]:
        """The ops."""
        return [
            serve(AUTOMATION_REGISTER, self.register),
            serve(AUTOMATION_UPDATE, self.update),
            serve(AUTOMATION_ENABLE, self.enable),
            serve(AUTOMATION_DISABLE, self.disable),
            serve(AUTOMATION_DELETE, self.delete),
            serve(AUTOMATION_TEST, self.test),
            serve(AUTOMATIONS, self.listed),
            serve(AUTOMATION_INFO, self.info),
            serve(AUTOMATION_RUNS, self.runs),
        ]

    # -- registering

    def register(
        self, request: ClientRequest[AutomationRegisterQuery], batch: Batch
    ) -> AutomationAnswer | None:
        """Register the text of a file. A person's is active once it was loaded."""
        member = self._directory.speaker(request)
        agents = request.fields.get("agents", [])[:_AGENTS_ASKED]
        if member is not None:
            answer = self._register_unseen(member.name, _given(request.fields), batch)
            return self._with_unknown(answer, agents)
        who = self._directory.check_person(request, "register automations that run")
        given = _given(request.fields)

        def store(definition: Definition, batch: Batch) -> AutomationAnswer:
            if known := self._known(definition.name, given, batch):
                return self._with_unknown(known, agents)
            self._check_room()
            version = given.version(definition, who)
            answer = self._add(definition.name, AutomationStatus.ACTIVE, version, batch)
            return self._with_unknown(answer, agents)

        self._later.answer(
            request, batch, partial(self._runner.load, given.path, given.source), store
        )
        return None

    def _register_unseen(self, agent: str, given: _GivenFile, batch: Batch) -> AutomationAnswer:
        """Keep an agent's text until the person enables it. Nothing of it is run before."""
        if not automation_settings(self._configs).agents:
            raise RelayError(
                "agents may not register automations here",
                hint='the configuration says so: automations = {"agents": False}',
                code="forbidden",
            )
        stem = os.path.splitext(os.path.basename(given.path))[0].lower()
        name = _STEM.sub("-", stem).strip("-._")[:64]
        if not name:
            raise UsageError(f"no automation can have a name made from {given.path}")
        if known := self._known(name, given, batch):
            return known
        self._check_room()
        if automation_rows.count_unseen(self._ledger) >= UNSEEN_MAX:
            raise RelayError(
                f"{UNSEEN_MAX} automations of agents wait for the person already",
                hint="the person enables or deletes some: relay automation list --status paused",
                code="busy",
            )
        reason = f"{agent} registered it: look at it, then relay automation enable {name}"
        told = (
            f"{agent} has registered the automation {name}. It does not run before you let it:"
            f" relay automation info {name} --source shows it, relay automation enable {name}"
            " lets it run."
        )
        said = Accepted.notice(self._directory.owner, told, "automations", batch.now_ms)
        self._windows.collect(said, batch)
        version = given.version(None, agent)
        return self._add(name, AutomationStatus.PAUSED, version, batch, reason)

    def _add(
        self,
        name: str,
        status: AutomationStatus,
        version: RegisteredVersion,
        batch: Batch,
        reason: str | None = None,
    ) -> AutomationAnswer:
        id_ = new_ulid(batch.now_ms)
        folder = folder_of(version.path, self._home)
        self._ledger.begin()
        automation_rows.add(
            self._ledger, id_, name, status, folder, version, batch.now_ms, reason=reason
        )
        return self._done(id_, batch)

    def update(self, request: ClientRequest[AutomationUpdateQuery], batch: Batch) -> None:
        """Take the text of a file as the next version of the automation that it names."""
        who = self._directory.check_person(request, "update automations")
        given, agents = _given(request.fields), request.fields.get("agents", [])[:_AGENTS_ASKED]
        name = request.fields.get("name")
        if name is not None:
            self._seen(automation_rows.find(self._ledger, name))

        def store(definition: Definition, batch: Batch) -> AutomationAnswer:
            row = self._seen(automation_rows.find(self._ledger, name or definition.name))
            if definition.name != row.name:
                raise UsageError(
                    f"the file calls its automation {definition.name}, not {row.name}",
                    hint=f"relay automation register {given.path} makes another one",
                )
            if (row.path, row.sha256) == (given.path, given.sha256):
                same = {"automation": shown(row, batch.now_ms), "unchanged": True}
                return self._with_unknown(cast(AutomationAnswer, same), agents)
            folder = folder_of(given.path, self._home)
            if folder != row.folder:
                before, then = row.folder or "all events", folder or "all events"
                raise UsageError(
                    f"{row.name} is run for {before}, and would be for {then} with {given.path}",
                    hint=f"relay automation delete {row.name}, then register the file",
                )
            self._ledger.begin()
            version = given.version(definition, who)
            automation_rows.add_version(self._ledger, row, version, batch.now_ms)
            return self._with_unknown(self._done(row.id, batch), agents)

        self._later.answer(
            request, batch, partial(self._runner.load, given.path, given.source), store
        )

    # -- switching

    def enable(
        self, request: ClientRequest[AutomationEnableQuery], batch: Batch
    ) -> AutomationAnswer | None:
        """Let one be run. One that was never loaded is loaded first: its text has ``sha256``, as
        the person was shown."""
        self._directory.check_person(request, "enable automations")
        row = automation_rows.find(self._ledger, request.fields["name"])
        if row.definition is not None:
            return self._switch(row, AutomationStatus.ACTIVE, None, batch)
        if request.fields.get("sha256") != row.sha256:
            raise UsageError(
                f"what {row.registered_by} registered as {row.name} has the hash {row.sha256}",
                hint=f"look at it: relay automation info {row.name} --source",
            )
        source = automation_rows.source(self._ledger, row.id, row.version)

        def store(definition: Definition, batch: Batch) -> AutomationAnswer:
            now = automation_rows.by_id(self._ledger, row.id)
            if now is None or (now.version, now.status) != (row.version, row.status):
                raise RelayError(f"{row.name} was changed meanwhile", hint="look at it again")
            self._check_free(row, definition)
            self._ledger.begin()
            told = definition.to_json()
            automation_rows.set_definition(self._ledger, row, told)
            automation_rows.rename(self._ledger, row.id, definition.name)
            return self._switch(row, AutomationStatus.ACTIVE, None, batch)

        self._later.answer(request, batch, partial(self._runner.load, row.path, source), store)
        return None

    def disable(
        self, request: ClientRequest[AutomationDisableQuery], batch: Batch
    ) -> AutomationAnswer:
        """Have one run no more until it is enabled."""
        who = self._directory.check_person(request, "disable automations")
        row = automation_rows.find(self._ledger, request.fields["name"])
        why = request.fields.get("reason")
        if why and len(why) > _REASON_MAX:
            raise UsageError(f"a reason is a text of at most {_REASON_MAX} characters")
        reason = f"{visible(why)} ({who})" if why else f"by {who}"
        return self._switch(row, AutomationStatus.DISABLED, reason, batch)

    def delete(
        self, request: ClientRequest[AutomationDeleteQuery], batch: Batch
    ) -> AutomationAnswer:
        """Have one run no more, under a name that is free again. Its rows stay."""
        who = self._directory.check_person(request, "delete automations")
        row = automation_rows.find(self._ledger, request.fields["name"])
        return self._switch(row, AutomationStatus.DELETED, f"by {who}", batch)

    def _switch(
        self, row: AutomationRow, status: AutomationStatus, reason: str | None, batch: Batch
    ) -> AutomationAnswer:
        self._ledger.begin()
        automation_rows.set_status(self._ledger, row.id, status, reason, batch.now_ms)
        return self._done(row.id, batch)

    # -- what all of them do

    def _with_unknown(self, answer: AutomationAnswer, agents: list[str]) -> AutomationAnswer:
        """The answer, with those of the agents that nobody is called now, or is configured as."""
        config = self._runs.config_of(answer["automation"]["folder"])
        answer["unknown"] = [
            name
            for name in agents
            if not self._personas.is_there(name) and self._personas.find(name, config) is None
        ]
        return answer

    def _done(self, id_: str, batch: Batch) -> AutomationAnswer:
        batch.after.append(partial(self._look_again, id_))
        row = automation_rows.by_id(self._ledger, id_)
        assert row is not None
        return {"automation": shown(row, batch.now_ms)}

    def _look_again(self, id_: str) -> None:
        """One of them has changed."""
        self._automations.changed(id_)
        self._clock.look()

    def _check_room(self) -> None:
        if sum(automation_rows.counts(self._ledger).values()) >= AUTOMATIONS_MAX:
            raise RelayError(
                f"there are {AUTOMATIONS_MAX} automations already",
                hint="delete some: relay automation delete NAME",
                code="busy",
            )

    def _known(self, name: str, given: _GivenFile, batch: Batch) -> AutomationAnswer | None:
        """The answer where this very text is registered already, as by a client that asks again.
        Raises UsageError where another one of this name is."""
        taken = automation_rows.named(self._ledger, name)
        if taken is None:
            return None
        if (taken.path, taken.sha256) != (given.path, given.sha256):
            raise _taken(taken)
        return {"automation": shown(taken, batch.now_ms), "unchanged": True}

    def _seen(self, row: AutomationRow) -> AutomationRow:
        """The row, unless the person has not looked at it. Raises UsageError then."""
        if row.definition is None:
            raise UsageError(
                f"{row.name} is of {row.registered_by}, and was never loaded",
                hint=f"relay automation info {row.name} --source shows it; then enable it",
            )
        return row

    def _check_free(self, row: AutomationRow, definition: Definition) -> None:
        taken = automation_rows.named(self._ledger, definition.name)
        if taken is not None and taken.id != row.id:
            raise _taken(taken)

    # -- shown

    def listed(self, request: ClientRequest[AutomationsQuery], batch: Batch) -> AutomationsAnswer:
        """All of one ``status``, or all that are not deleted; ``by``: who registered them."""
        status, by = request.fields.get("status"), request.fields.get("by")
        wanted = list(AutomationStatus)[:-1]  # those that are not deleted
        if status is not None:
            if status not in tuple(AutomationStatus):
                known = ", ".join(AutomationStatus)
                raise UsageError(f"no automation is {status!r}", hint=f"one of {known}")
            wanted = [AutomationStatus(status)]
        found = automation_rows.by_status(self._ledger, *wanted)
        if by is not None:
            found = [one for one in found if by.lower() in one.registered_by.lower()]
        rows, cut = fitting([self._shown(one, batch) for one in found])
        return {"rows": rows, "more": cut}

    def info(
        self, request: ClientRequest[AutomationInfoQuery], batch: Batch
    ) -> AutomationInfoAnswer:
        """One of them, with its health and its versions; with ``source`` its text, too."""
        row = automation_rows.find(self._ledger, request.fields["name"])
        about: Json = {
            **self._shown(row, batch),
            "health": automation_rows.health(self._ledger, row.id, batch.now_ms),
            "versions": automation_rows.versions(self._ledger, row.id, _VERSIONS_SHOWN),
            "config": (row.definition or {}).get("config", {}),
        }
        if request.fields.get("source"):
            about["source"] = automation_rows.source(self._ledger, row.id, row.version)
        return {"automation": cast(AutomationDetails, about)}

    def runs(
        self, request: ClientRequest[AutomationRunsQuery], batch: Batch
    ) -> AutomationRunsAnswer:
        """The newest runs of one, the newest first."""
        self._directory.check_person(request, "see what automations did")
        row = automation_rows.find(self._ledger, request.fields["name"])
        limit = request.fields.get("limit", 50)
        if not 0 < limit <= ROWS_MAX:
            raise UsageError(f"a limit is a number up to {ROWS_MAX}")
        errors_only = request.fields.get("errors_only", False)
        found = automation_rows.runs(self._ledger, row.id, limit + 1, errors_only=errors_only)
        for run, waiting in found:
            run["waits"] = waiting and self._personas.why_absent(*waiting)
        rows, cut = fitting([run for run, _ in found[:limit]])
        running = self._runs.under_way(row.id)
        return {"rows": rows, "more": cut or len(found) > limit, "running": running}

    def _shown(self, row: AutomationRow, batch: Batch) -> ShownAutomation:
        return shown(row, batch.now_ms, self._runs.registry.problems.get(row.id))

    # -- tried out: not by agents, a handler may do all that the person may

    def test(self, request: ClientRequest[AutomationTestQuery], batch: Batch) -> None:
        """Run one for a stored event (``id``), or for one that did not happen: ``event``, else a
        tick of its clock."""
        self._directory.check_person(request, "try automations out")
        row = automation_rows.find(self._ledger, request.fields["name"])
        if row.definition is None:
            raise UsageError(
                f"{row.name} was never loaded, and a test would run it",
                hint=f"look at it: relay automation info {row.name} --source; then enable it",
            )
        one = ActiveAutomation(row, Definition.of(row.definition))
        if (id_ := request.fields.get("id")) is not None:
            event = self._stored(id_)
        else:
            given = request.fields.get("event")
            event = self._made(_tick(one, batch.now_ms) if given is None else given, batch.now_ms)
        seen = self._automations.seen.see(event)
        question = self._automations.seen.question(one, seen, dry=True)
        question["source"] = automation_rows.source(self._ledger, row.id, row.version)
        work = partial(self._runner.run, question)
        self._later.answer(request, batch, work, partial(self._told, one, seen))

    def _told(
        self, one: ActiveAutomation, seen: SeenEvent, answer: RunAnswer, batch: Batch
    ) -> AutomationTestAnswer:
        result, dispatch, triggers = answer.result, None, one.definition.triggers
        if result is not None and result.fire:
            planned = self._runs.planned(one, seen, result, {})
            config = self._runs.config_of(one.row.folder)
            waits = self._personas.why_absent(planned.persona, config)
            dispatch = _shown_dispatch(planned, waits)
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

    def _stored(self, wanted: str) -> Event:
        id_ = one_id(self._ledger, wanted)
        return evaluation.event_of(self._ledger, self._home, queries.seq_of(self._ledger, id_))

    def _made(self, fields: Json, now_ms: int) -> Event:
        given = read_event(fields)
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


def _given(fields: AutomationRegisterQuery) -> _GivenFile:
    path, source = fields["path"], fields["source"]
    if not os.path.isabs(path) or len(path) > _PATH_MAX:
        raise UsageError(f"an automation's file is named by its whole path, not {path!r:.100}")
    if os.path.normpath(path) != path or not is_visible(path):
        raise UsageError(f"an automation's file cannot be {path!r:.100}")
    check_size(path, source)
    return _GivenFile(path, source, hashlib.sha256(source.encode()).hexdigest())


def _taken(row: AutomationRow) -> UsageError:
    update = f"relay automation update {row.name}"
    hint = update if row.definition is not None else f"relay automation enable {row.name}"
    return UsageError(f"there is an automation {row.name} already", hint=f"{hint}, or delete it")


def folder_of(path: str, home: Home) -> str | None:
    """The project that a file belongs to, whose agents' events it is run for; None: all events."""
    folder = os.path.dirname(path)
    if folder == os.path.join(os.path.realpath(home.root), "automations") or not folder.endswith(
        f"/{_FOLDER}"
    ):
        return None
    return folder.removesuffix(f"/{_FOLDER}") or "/"


def shown(row: AutomationRow, now_ms: int, problem: str | None = None) -> ShownAutomation:
    """One automation as the ops show it; ``problem``: why it is not run although it is active."""
    told = row.definition or {}
    circuit = Circuit(row.errors, row.opened_ms).state(now_ms)
    return {
        "id": row.id,
        "name": row.name,
        "version": row.version,
        "status": row.status.value,
        "reason": problem or row.reason,
        "description": told.get("description"),
        "triggers": told.get("triggers"),
        "schedule": told.get("schedule"),
        "blocking": told.get("blocking"),
        "priority": told.get("priority"),
        "deadline": told.get("deadline"),
        "folder": row.folder,
        "path": row.path,
        "sha256": row.sha256,
        "loaded": row.definition is not None,
        "registered_by": row.registered_by,
        "created_ms": row.created_ms,
        "updated_ms": row.updated_ms,
        "circuit": circuit.value,
        "errors": row.errors,
        "opened_ms": row.opened_ms,
        "skipped": row.skipped,
        "last_fired_ms": row.last_fired_ms,
        "next_tick_ms": row.next_tick_ms,
        "over": row.next_tick_ms is None and _is_over(told.get("schedule") or {}, now_ms),
    }


def _is_over(schedule: Json, now_ms: int) -> bool:
    """Whether the one time of a schedule is past."""
    with suppress(UsageError):  # its time zone is not known any more, say
        if "at" in schedule:
            return Schedule.of(schedule).next_after(now_ms, local_zone()) is None
    return False


def _tick(one: ActiveAutomation, now_ms: int) -> Json:
    """What comes to it by the clock. Raises UsageError where nothing does."""
    triggers = one.definition.triggers
    name = one.row.name
    if one.definition.schedule is None:
        if triggers is None or TICK_KIND not in (triggers.types or ()):
            raise UsageError(
                f"{name} needs an event to be tried with",
                hint='--event \'{"content": "hello"}\', or --event ID of a stored one',
            )
        name = MINUTE
    return {
        "channel": TIMER_CHANNEL,
        "kind": TICK_KIND,
        "sender": name,
        "sender_type": PersonType.SYSTEM,
        "metadata": {"schedule": name, "due_ms": now_ms, "missed": 0},
    }


def _shown_dispatch(one: BrokerDispatch, waits: str | None) -> TestedDispatch:
    return {
        "persona": one.persona,
        "session": one.session,
        "queue_mode": one.queue_mode.value,
        "priority": one.priority,
        "prompt": one.system_prompt,
        "extracted": None if one.extracted is None else dict(one.extracted),
        "permissions": one.permissions.to_json(),
        "answer_to": one.delivery_context.to_json(),
        "waits": waits,
    }
