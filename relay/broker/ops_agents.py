"""Agents come and go: the ops ``register`` and ``agent_state``, and lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.broker.batch import Batch, Handler
from relay.broker.delivery_window import Pushing
from relay.broker.directory import Directory, Member, token_hash
from relay.core.errors import NameTaken, RelayError, UsageError
from relay.core.message import AgentState, valid_name
from relay.ledger import queries
from relay.ledger.schema import AgentRecord
from relay.ledger.store import Ledger
from relay.protocol.broker import PROTOCOL, Json

if TYPE_CHECKING:
    from relay.broker.connection import Connection

#: How long an agent without a connection still counts as being there. Seconds.
GRACE = 3.0
_NOTES_MAX = 20
_TEXT_MAX = 4096


class Registering:
    """Binds connections to agents."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        pushing: Pushing,
        submit: Callable[[Handler, Connection | None, Json], None],
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._pushing = pushing
        self._submit = submit
        self.graces = 0  # how many agents are in their grace

    def restore(self) -> None:
        """After a start: agents that were there have their grace to reconnect."""
        for record in self._ledger.agents():
            member = self._directory.put(record)
            if not record.person and record.state != AgentState.GONE.value:
                member.live = True
                self._begin_grace(member)

    # -- register

    def register(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """Bind the connection to an agent."""
        assert connection is not None
        name, run, token = (_text(request, key) for key in ("name", "run", "token"))
        if not name or not run or not token:
            raise UsageError("to register takes a name, a run and a token")
        if not valid_name(name):
            raise UsageError(
                f"{name!r} cannot be an agent's name",
                hint="letters, digits, _ . - (at most 64), and none of relay's own words",
            )
        if connection.member is not None and connection.member.name.lower() != name.lower():
            raise UsageError(f"this connection is {connection.member.name}'s already")
        known = self._directory.get(name)
        hashed = token_hash(token)
        if known is not None:
            self._check_claim(known, run, hashed, connection)
        record = self._record(request, batch.now_ms, hashed, known)
        self._ledger.begin()
        self._ledger.save_agent(record)
        released = self._ledger.release_held(name, batch.now_ms)
        batch.cut = True
        batch.after.append(partial(self._registered, connection, record, released))
        return {
            "name": name,
            "waiting": queries.unread(self._ledger, name),
            "protocol": PROTOCOL,
        }

    def _check_claim(self, known: Member, run: str, hashed: str, connection: Connection) -> None:
        if known.person and known.record.kind == "owner":
            raise NameTaken(
                f"{known.name} is the name of the person here", hint="choose another with --name"
            )
        same = known.record.run == run and known.record.token_hash == hashed
        if known.record.run == run and not same:
            raise RelayError("the token of this run is another one", code="forbidden")
        if known.connection is not None and known.connection is not connection and not same:
            raise NameTaken(
                f"another agent called {known.name} is running",
                hint="choose another name with --name",
            )

    def _record(self, request: Json, now_ms: int, hashed: str, known: Member | None) -> AgentRecord:
        name, run = _text(request, "name"), _text(request, "run")
        state, since = AgentState.STARTING.value, now_ms
        if request.get("resume") and known is not None and known.live and known.record.run == run:
            state, since = known.record.state, known.record.since_ms
        pid = request.get("pid")
        command = request.get("command")
        if isinstance(command, list):
            command = " ".join(str(word) for word in command)
        return AgentRecord(
            name=name,
            person=False,
            kind=_text(request, "kind") or "unknown",
            state=state,
            since_ms=since,
            last_seen_ms=now_ms,
            run=run,
            token_hash=hashed,
            pid=pid if isinstance(pid, int) else None,
            cwd=_text(request, "cwd") or None,
            command=str(command)[:_TEXT_MAX] if command else None,
        )

    def _registered(
        self, connection: Connection, record: AgentRecord, released: list[tuple[str, str]]
    ) -> None:
        if connection.closed:
            # It went while its registration was being stored: that is a lost connection too.
            member = self._directory.put(record)
            member.live = True
            self._begin_grace(member)
            return
        member = self._directory.put(record)
        before = member.connection
        if before is not None and before is not connection:
            before.member = None
            before.close()
        self._end_grace(member)
        member.connection = connection
        member.live = True
        connection.member = member
        member.window.clear()
        self._pushing.released(member)
        for id_, sender in released:
            self._pushing.receipt(sender, id_, member.name, "queued", None)

    # -- state

    def agent_state(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """The session says what its agent is doing."""
        member = connection.member if connection is not None else None
        if connection is None or member is None:
            raise UsageError("only a registered session can report its agent's state")
        try:
            state = AgentState(str(request.get("state")))
        except ValueError as error:
            raise UsageError(f"there is no state {request.get('state')!r}") from error
        record = member.record
        now_ms = batch.now_ms
        new = replace(
            record,
            state=state.value,
            reason=_text(request, "reason") or None,
            since_ms=record.since_ms if record.state == state.value else now_ms,
            last_seen_ms=now_ms,
        )
        if (new.state, new.reason) != (record.state, record.reason):
            self._ledger.begin()
            self._ledger.save_agent(new)
        batch.after.append(partial(self._reported, connection, member, new, request))
        return {"state": state.value}

    def _reported(
        self, connection: Connection, member: Member, record: AgentRecord, request: Json
    ) -> None:
        if member.record.run != record.run:
            return
        member.update(record)
        if "source" in request:
            member.source = _text(request, "source")
        notes = request.get("notes")
        if isinstance(notes, list):
            member.notes = [str(note)[:_TEXT_MAX] for note in notes[:_NOTES_MAX]]
        if record.state == AgentState.GONE.value and member.connection is connection:
            member.live = False
            member.connection = None
            connection.member = None

    # -- gone

    def lost(self, member: Member) -> None:
        """The connection of an agent closed: it has a moment to come back."""
        member.connection = None
        member.window.clear()
        self._begin_grace(member)

    def forget_graces(self) -> None:
        """The broker stops: who comes back will find the next one."""
        for member in self._directory.members.values():
            self._end_grace(member)

    def _begin_grace(self, member: Member) -> None:
        self._end_grace(member)
        self.graces += 1
        loop = asyncio.get_running_loop()
        member.grace = loop.call_later(GRACE, self._grace_over, member)

    def _end_grace(self, member: Member) -> None:
        if member.grace is not None:
            member.grace.cancel()
            member.grace = None
            self.graces -= 1

    def _grace_over(self, member: Member) -> None:
        self._end_grace(member)
        if member.connection is None:
            self._submit(self._gone, None, {"n": 0, "member": member})

    def _gone(self, _: Connection | None, request: Json, batch: Batch) -> None:
        member: Member = request["member"]
        if member.connection is not None:
            return
        now_ms = batch.now_ms
        record = replace(
            member.record,
            state=AgentState.GONE.value,
            reason=None,
            since_ms=now_ms,
            last_seen_ms=now_ms,
        )

        def leave() -> None:
            if member.connection is None:
                member.live = False
                member.update(record)

        self._ledger.begin()
        self._ledger.save_agent(record)
        batch.after.append(leave)
        # Whether or not it can be written down, the agent is not there.
        batch.on_failure.append(leave)


def _text(request: Json, key: str) -> str:
    value: Any = request.get(key)
    return value[:_TEXT_MAX] if isinstance(value, str) else ""
