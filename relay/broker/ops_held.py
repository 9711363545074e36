"""Messages that wait for the person: the loop guard at work, and the ops that let them go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from relay.broker.batch import Batch
from relay.broker.delivery_states import advance
from relay.broker.delivery_window import Pushing
from relay.broker.directory import Directory, Member
from relay.broker.insert_messages import Accepted
from relay.broker.loop_guard import LoopGuard, Pair, pair_of
from relay.broker.ops_query import fitting
from relay.broker.routing import Route, Routing
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.message import AgentState, Mode, State
from relay.ledger import queries
from relay.ledger.schema import Row
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

if TYPE_CHECKING:
    from relay.broker.connection import Connection

#: Parked messages that are listed or decided on at a time; the rest follows with the next call.
PARKED_MAX = 1000
#: The thread in which the person is told.
THREAD = "held"
_DROPPED = "the person refused it"


class Parking:
    """Keeps account of what made whom speak, and parks what has gone on without a person."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        pushing: Pushing,
        owner: str,
        authenticated: Callable[[Connection | None, Json], Member | None],
        guard: LoopGuard,
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._pushing = pushing
        self._owner = owner
        self._authenticated = authenticated
        self._guard = guard
        self._told: set[Pair] = set()  # the person has been told of these, and not yet decided

    def restore(self) -> None:
        """After a start: what was parked for its number stays so, with all that follows it."""
        for row in queries.parked(self._ledger, PARKED_MAX):
            self._told.add(pair_of(row["from"], row["to"]))
            if row["reason"] and not row["reason"][:1].isdigit():
                self._guard.close(row["from"], row["to"], row["reason"])

    # -- what leads to what

    def reached(self, member: Member, sender: str, id_: str, state: State) -> None:
        """A delivery has come this far: from when it is what its recipient speaks of?"""
        busy = member.record.state == AgentState.BUSY.value
        if sender == "relay" or (state is State.SUBMITTED and busy):
            return  # a notice of ours changes nothing; what is queued is not yet read
        if state is State.SEEN or state is State.SUBMITTED:
            member.cause, member.hops = id_, self._ledger.hops(id_, member.name)

    def person(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """The session says that the person has spoken to its agent."""
        member = connection.member if connection is not None else None
        if member is None:
            raise UsageError("only a registered session can report its person")
        member.cause, member.hops = "", 0
        return {}

    def admit(self, message: Accepted, member: Member | None, batch: Batch) -> None:
        """Count one message's hops, and park it where the guard says so."""
        message.hops = 0
        if member is None or message.routing is None:
            return
        message.hops = member.hops + 1
        routes = tuple(self._admitted(message, one, batch) for one in message.routing.routes)
        if any(one.parked for one in routes):
            message.routing = replace(message.routing, routes=routes)

    def _admitted(self, message: Accepted, one: Route, batch: Batch) -> Route:
        to = self._directory.get(one.to)
        if one.state is not State.QUEUED or to is None or to.person:
            return one
        reason = self._guard.check(message.sender, one.to, message.hops, batch.now_ms)
        if reason is None:
            # One that cannot be stored now comes again, perhaps every second.
            uncount = partial(self._guard.uncount, message.sender, one.to, batch.now_ms)
            batch.on_failure.append(uncount)
            return one
        pair = pair_of(message.sender, one.to)
        if pair not in self._told:
            self._told.add(pair)
            batch.on_failure.append(partial(self._told.discard, pair))
            batch.sends.append(self._notice(message, one.to, reason, batch.now_ms))
        return Route(one.to, State.HELD, reason, parked=True)

    def _notice(self, message: Accepted, to: str, reason: str, now_ms: int) -> Accepted:
        notice = Accepted()
        notice.connection, notice.n, notice.given = None, 0, False
        notice.id = new_ulid(now_ms)
        notice.kind, notice.sender, notice.origin = "message", "relay", "relay"
        notice.mode, notice.thread, notice.meta = Mode.FOLLOWUP.value, THREAD, None
        notice.hops = 0
        notice.body = (
            f"{message.sender} and {to}: {reason}. What they write to each other is held until you"
            " decide. See it with: relay held. Let it go on with: relay allow ID (or --all)."
            " Refuse it with: relay refuse ID (or --all)."
        )
        notice.routing = Routing((Route(self._owner),))
        return notice

    # -- the ops

    def held(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """What waits for the person."""
        rows, more = fitting(queries.parked(self._ledger, PARKED_MAX))
        return {"rows": rows, "more": more}

    def decide(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """Let parked messages go on, or refuse them."""
        if self._authenticated(connection, request) is not None:
            raise RelayError(
                "only the person can decide on held messages, not an agent",
                hint="run it in a terminal that is not an agent's",
                code="forbidden",
            )
        rows = self._chosen(request)
        state = State.FAILED if request.get("refuse") else State.QUEUED
        reason = _DROPPED if state is State.FAILED else None
        for row in rows:
            found = self._ledger.delivery(row["id"], row["to"])
            if found is None:
                continue
            event, sender, delivery = found
            new = advance(delivery, state, batch.now_ms, reason=reason)
            self._ledger.begin()
            self._ledger.unpark(event, row["to"], new)
            batch.changed.add(row["id"])
            receipt = partial(
                self._pushing.receipt, sender, row["id"], row["to"], state.value, reason
            )
            batch.after.append(receipt)
        batch.after.append(partial(self._decided, rows))
        names = ("id", "from", "to")
        return {"rows": [{name: row[name] for name in names} for row in rows]}

    def _chosen(self, request: Json) -> list[Row]:
        rows = queries.parked(self._ledger, PARKED_MAX)
        wanted = request.get("which")
        if wanted is None:
            return rows
        if not isinstance(wanted, list) or not all(isinstance(one, str) for one in wanted):
            raise UsageError("which is a list of ids or names")
        chosen = []
        for part in wanted:
            found = [row for row in rows if _is_meant(row, part)]
            if not found:
                raise NotFound(
                    f"no held message has the id or the agent {part}", hint="see: relay held"
                )
            chosen += [row for row in found if row not in chosen]
        return chosen

    def _decided(self, rows: list[Row]) -> None:
        for row in rows:
            self._guard.reopen(row["from"], row["to"])
            self._told.discard(pair_of(row["from"], row["to"]))
            member = self._directory.get(row["to"])
            if member is not None and member.connection is not None:
                self._pushing.released(member)


def _is_meant(row: Row, part: str) -> bool:
    upper = part.upper()
    whole = row["id"]
    if len(part) >= 4 and (whole.startswith(upper) or whole.endswith(upper)):
        return True
    return part.lower() in (row["from"].lower(), row["to"].lower())
