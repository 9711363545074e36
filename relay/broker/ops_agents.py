"""Agents come and go: ``register``, ``agent_state``, ``person``, ``agents``; lost connections."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from functools import partial

from relay.broker.batch import AnyRequest, Batch, Client, ClientRequest, Served, serve
from relay.broker.directory import Member, token_hash
from relay.broker.kernel import Kernel
from relay.broker.obligations import TurnOps
from relay.broker.open_items import ScreenQuestions
from relay.config import names
from relay.core.agent_names import valid_name
from relay.core.dispatch import RELAY_CHANNEL, PersonType
from relay.core.errors import NameTaken, RelayError, UsageError
from relay.core.message import AgentState
from relay.core.processes import ancestry
from relay.core.visible import is_visible
from relay.ledger import persons, queries, spawn_rows
from relay.ledger.schema import AgentRecord
from relay.protocol.agent_ops import (
    AGENT_STATE,
    AGENTS,
    REGISTER,
    AgentRow,
    Agents,
    AgentStateKnown,
    AgentStateReport,
    Register,
    Registered,
)
from relay.protocol.broker import PROTOCOL, Json

#: How long an agent without a connection still counts as being there. Seconds.
GRACE = 3.0
_NOTES_MAX = 20
#: Roles of one agent.
ROLES_MAX = 10
_TEXT_MAX = 4096


class AgentOps:
    """Binds connections to agents. ``grace`` in seconds."""

    def __init__(
        self, kernel: Kernel, turns: TurnOps, questions: ScreenQuestions, grace: float
    ) -> None:
        self._home = kernel.home
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._watchers = kernel.watchers
        self._committer = kernel.committer
        self._features = kernel.features
        self._grace = grace
        self._turns = turns
        self._questions = questions
        self._graces: dict[str, asyncio.TimerHandle] = {}  # by lower-case name

    def ops(self) -> list[Served]:
        return [
            serve(REGISTER, self.register),
            serve(AGENT_STATE, self.agent_state),
            serve(AGENTS, self.agents),
        ]

    def restore(self, now_ms: int) -> None:
        """After a start: agents that ran before have their grace to reconnect, but for those whose
        name nobody holds any more. Raises StorageError when the person cannot be stored."""
        for record in self._ledger.agents():
            member = self._directory.put(record)
            self._watchers.known(member)
            if not record.person and record.state != AgentState.GONE.value:
                holder = names.run_of(self._home, member.name)
                self._begin_grace(member, self._grace if holder == record.run else 0.0)
        known = self._directory.get(self._directory.owner)
        try:
            if known is None or known.record.kind != "owner":
                owner = person_record(self._directory.owner, "owner", now_ms)
                self._ledger.begin()
                self._ledger.save_agent(owner)
                self._directory.put(owner)
            persons.ensure_members(
                self._ledger,
                [(one.name, _type_of(one.record)) for one in self._directory.members.values()],
                now_ms,
            )
            if self._ledger.in_transaction:
                self._ledger.commit()
        except RelayError:
            self._ledger.rollback()
            raise

    # -- agents

    def agents(self, request: AnyRequest, batch: Batch) -> Agents:
        return {
            "agents": self.agent_list(),
            "persons": self._directory.persons(),
            "elsewhere": self._features.agents_elsewhere(),
        }

    def agent_list(self) -> list[AgentRow]:
        return [
            member.fields(queries.unread(self._ledger, member.name))
            for member in self._directory.agents()
        ]

    # -- register

    def register(self, request: ClientRequest[Register], batch: Batch) -> Registered:
        """Bind the connection to an agent."""
        client, fields = request.client, request.fields
        name, run, token = fields["name"], fields["run"], fields["token"]
        if not name or not run or not token:
            raise UsageError("registering needs a name, a run and a token")
        if not valid_name(name):
            raise UsageError(
                f"{name!r} cannot be an agent's name",
                hint="letters, digits, _ . - (at most 64), and none of relay's own words",
            )
        if not is_visible(kind := fields.get("kind", "")):
            raise UsageError(f"the kind {kind!r} has characters that cannot be seen")
        bound = self._directory.member_of(client)
        if bound is not None and bound.name.lower() != name.lower():
            raise UsageError(f"this connection is {bound.name}'s already")
        known = self._directory.get(name)
        hashed = token_hash(token)
        if known is not None:
            _check_claim(known, run, hashed, client)
            self._check_heir(known, run, client)
        # A name belongs to the run that has claimed it, even while its session is away.
        if (holder := names.run_of(self._home, name)) and holder != run:
            raise _taken(known, name)
        pid = fields.get("pid")
        self._directory.runs.register(
            run,
            client.ancestors,
            ancestry(pid) if pid and pid > 0 else (),
            known=known is not None and known.record.run == run,
        )
        record = _record(fields, batch.now_ms, hashed, known)
        self._ledger.begin()
        self._ledger.save_agent(record)
        if known is None or known.record.run != run:
            self._ledger.save_hops(name, 0)  # see Directory.put
        persons.ensure(
            self._ledger,
            RELAY_CHANNEL,
            name,
            name=name,
            type_=PersonType.AGENT,
            now_ms=batch.now_ms,
        )
        released = self._ledger.release_waiting(name, batch.now_ms)
        for role in filter(None, record.roles.split(",")):
            released += self._ledger.readdress(role, name, batch.now_ms)
        batch.cut = True
        memory = fields.get("memory") or {}
        version = _build(fields.get("version", ""))
        batch.after.append(partial(self._put, record, memory, version))
        is_new = known is None or known.record.run != run
        self._features.registering(name, fields, is_new, batch)
        batch.after.append(partial(self._registered, client, name, released))
        return {
            "name": name,
            "waiting": queries.unread(self._ledger, name),
            "protocol": PROTOCOL,
        }

    def _check_heir(self, known: Member, run: str, client: Client) -> None:
        """An agent can read all messages that were ever sent to its name. So inside another agent
        only a helper of that agent may take a name over."""
        if known.record.run in (None, run) or self._directory.is_outside(client):
            return
        row = spawn_rows.find(self._ledger, known.name) or {"parent": ""}
        outer = self._directory.around(known, client)[1:]
        if row["parent"].lower() not in [one.name.lower() for one in outer]:
            raise NameTaken(
                f"{known.name} is the name of an agent that was not started in here",
                hint="choose another name with --name",
            )

    def _put(self, record: AgentRecord, memory: Json, version: str | None) -> None:
        member = self._directory.put(record)
        member.remember_with(memory)
        member.version = version

    def _registered(self, client: Client, name: str, released: list[tuple[str, str]]) -> None:
        member = self._directory.members[name.lower()]
        if client.closed:
            # The connection closed while its registration was being stored.
            self._begin_grace(member)
            return
        before = self._directory.bind(client, member)
        if before is not None:
            before.close()
        self._end_grace(member)
        self._windows.open(member.name, client)
        self._features.came(member)
        self._watchers.agent(member)
        for id_, sender in released:
            self._windows.receipt(sender, id_, member.name, "queued", None)

    # -- reports of the session

    def agent_state(
        self, request: ClientRequest[AgentStateReport], batch: Batch
    ) -> AgentStateKnown:
        """The session reports what its agent is doing."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only a registered session can report its agent's state")
        fields = request.fields
        try:
            state = AgentState(fields["state"])
        except ValueError as error:
            raise UsageError(f"there is no state {fields['state']!r}") from error
        record = member.record
        now_ms = batch.now_ms
        new = replace(
            record,
            state=state.value,
            reason=_short(fields.get("reason")) or None,
            since_ms=record.since_ms if record.state == state.value else now_ms,
            last_seen_ms=now_ms,
            conversation=_short(fields.get("conversation")) or record.conversation,
        )
        if _of(new) != _of(record):
            self._ledger.begin()
            self._ledger.save_agent(new)
            if state is AgentState.GONE:
                self._turns.agent_gone(member, batch)
        self._features.reported(member, new, fields, batch)
        batch.after.append(partial(self._reported, request.client, member, new, fields))
        return {"state": state.value, "wants": list(self._features.wants(member))}

    def _reported(
        self, client: Client, member: Member, record: AgentRecord, fields: AgentStateReport
    ) -> None:
        if member.record.run != record.run:
            return
        member.update(record)
        is_gone = record.state == AgentState.GONE.value
        # Its last screen may still show one, which nobody can answer any more.
        self._questions.asks(member.name, None if is_gone else fields.get("question"))
        # What the session does not tell stays as it was.
        member.source = _short(fields.get("source", member.source))
        member.notes = [_short(note) for note in fields.get("notes", member.notes)[:_NOTES_MAX]]
        member.remark = _short(fields.get("remark", member.remark))
        if is_gone and member.client is client:
            self._directory.unbind(client)
            self._windows.close(member.name)
            member.leave(record)
        self._watchers.agent(member)

    # -- gone

    @property
    def waits_for_agents(self) -> bool:
        """Whether some agent may come back."""
        return bool(self._graces)

    def lost(self, client: Client) -> None:
        """A connection closed: if it was an agent's, its session has a grace to reconnect."""
        member = self._directory.unbind(client)
        if member is not None:
            self._windows.close(member.name)
            self._begin_grace(member)

    def forget_graces(self) -> None:
        """The broker stops: sessions reconnect to the next one."""
        for timer in self._graces.values():
            timer.cancel()
        self._graces.clear()

    def _begin_grace(self, member: Member, seconds: float | None = None) -> None:
        self._end_grace(member)
        member.live = True
        grace = self._grace if seconds is None else seconds
        loop = asyncio.get_running_loop()
        self._graces[member.name.lower()] = loop.call_later(grace, self._grace_over, member)

    def _end_grace(self, member: Member) -> None:
        timer = self._graces.pop(member.name.lower(), None)
        if timer is not None:
            timer.cancel()

    def _grace_over(self, member: Member) -> None:
        self._end_grace(member)
        if member.client is not None:
            return
        if names.run_of(self._home, member.name) != member.record.run:
            self._committer.submit_job(partial(self._gone, member))
            return
        # Its name is held as long as it runs: its session is starting, or cannot start.
        self._begin_grace(member)
        if not member.deaf:
            member.deaf = True
            self._watchers.agent(member)

    def _gone(self, member: Member, batch: Batch) -> None:
        if member.client is not None:
            return
        now_ms = batch.now_ms
        record = replace(
            member.record,
            state=AgentState.GONE.value,
            reason=None,
            since_ms=now_ms,
            last_seen_ms=now_ms,
        )
        leave = partial(self._leave, member, record)
        self._ledger.begin()
        self._ledger.save_agent(record)
        self._turns.agent_gone(member, batch)
        batch.after.append(leave)
        # The agent has ended, whether or not that can be stored.
        batch.on_failure.append(leave)

    def _leave(self, member: Member, record: AgentRecord) -> None:
        member.leave(record)
        if not member.live:
            self._questions.asks(member.name, None)
        self._watchers.agent(member)


def person_record(name: str, kind: str, now_ms: int) -> AgentRecord:
    """A person who is seen for the first time; ``kind`` is ``owner`` or ``person``."""
    return AgentRecord(
        name=name,
        person=True,
        kind=kind,
        state=AgentState.IDLE.value,
        since_ms=now_ms,
        last_seen_ms=now_ms,
    )


def _type_of(record: AgentRecord) -> PersonType:
    if not record.person:
        return PersonType.AGENT
    return PersonType.OWNER if record.kind == "owner" else PersonType.KNOWN


def _check_claim(known: Member, run: str, hashed: str, client: Client) -> None:
    if known.person and known.record.kind == "owner":
        raise NameTaken(
            f"{known.name} is the name of the person here", hint="choose another with --name"
        )
    same = known.record.run == run and known.record.token_hash == hashed
    if known.record.run == run and not same:
        raise RelayError("the token of this run is another one", code="forbidden")
    if known.client is not None and known.client is not client and not same:
        raise _taken(known, known.name)


def _taken(known: Member | None, name: str) -> NameTaken:
    where = f": process {known.record.pid} in {known.record.cwd}" if known else ""
    return NameTaken(
        f"another agent called {name} is running{where}", hint="choose another name with --name"
    )


def _record(fields: Register, now_ms: int, hashed: str, known: Member | None) -> AgentRecord:
    run = fields["run"]
    state, since = AgentState.STARTING.value, now_ms
    before = known.record if known is not None and known.record.run == run else None
    if fields.get("resume") and before is not None and known is not None and known.live:
        state, since = before.state, before.since_ms
    command = fields.get("command")
    if isinstance(command, list):
        command = " ".join(command)
    roles = fields.get("roles", [])[:ROLES_MAX]
    return AgentRecord(
        name=fields["name"],
        person=False,
        roles=",".join(role.lower() for role in roles if valid_name(role)),
        kind=_short(fields.get("kind")) or "unknown",
        state=state,
        since_ms=since,
        last_seen_ms=now_ms,
        run=run,
        token_hash=hashed,
        pid=fields.get("pid"),
        cwd=_short(fields.get("cwd")) or None,
        command=_short(command) or None,
        conversation=before.conversation if before is not None else "",
    )


def _of(record: AgentRecord) -> tuple[str | None, ...]:
    """The fields that are stored when one of them changes."""
    return record.state, record.reason, record.conversation


def _build(version: str) -> str | None:
    """The build that a client names, if it has the form of relay.core.build."""
    return version if re.fullmatch(r"[\w.]{1,32}\+\d{14}", version) else None


def _short(text: str | None) -> str:
    return (text or "")[:_TEXT_MAX]
