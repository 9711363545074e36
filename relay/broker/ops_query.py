"""The ops that read: agents, inbox, sent, show, history, status; and ``read``, which marks."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from relay.broker.batch import Batch, Handler
from relay.broker.delivery_states import advance
from relay.broker.delivery_window import Pushing
from relay.broker.directory import Directory, Member, agent_fields
from relay.broker.ops_messages import Sending
from relay.broker.routing import suggestions
from relay.core.errors import NotFound, UsageError
from relay.core.message import State
from relay.ledger import queries
from relay.ledger.queries import Filter
from relay.ledger.schema import Row
from relay.ledger.store import Ledger
from relay.protocol.broker import LINE_MAX, ROWS_MAX, Json

if TYPE_CHECKING:
    from relay.broker.connection import Connection

#: What the rows of one answer may take of its line.
_ROWS_BYTES = LINE_MAX - 64 * 1024


class Reading:
    """Answers questions about what the ledger holds."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        sending: Sending,
        pushing: Pushing,
        owner: str,
        submit: Callable[[Handler, Connection | None, Json], None],
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._sending = sending
        self._pushing = pushing
        self._owner = owner
        self._submit = submit

    def agents(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """All known agents, those that are there first."""
        return {"agents": self.agent_list(), "persons": self._directory.persons()}

    def agent_list(self) -> list[Json]:
        """What ``agents`` and ``status`` show of the agents."""
        return [
            agent_fields(member, queries.unread(self._ledger, member.name))
            for member in self._directory.agents()
        ]

    def inbox(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """What waits in somebody's inbox; nothing is marked."""
        member = self._whose(connection, request)
        after = request.get("after")
        rows = queries.inbox(
            self._ledger,
            member.name,
            everything=bool(request.get("all")),
            after=after if isinstance(after, int) else 0,
            limit=_limit(request, 1000),
        )
        if connection is not None and request.get("follow"):
            self._pushing.follow(connection, member.name)
        rows, more = fitting(rows)
        kind = "person" if member.person else "agent"
        return {"name": member.name, "kind": kind, "rows": rows, "more": more}

    def read(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """A person has seen these messages."""
        member = self._whose(connection, request)
        ids = request.get("ids")
        if not isinstance(ids, list) or len(ids) > ROWS_MAX:
            raise UsageError("to mark messages as read takes a list of ids")
        if not member.person or self._sending.authenticated(connection, request) is not None:
            raise UsageError(
                f"only a person can read for {member.name}"
                if member.person
                else f"{member.name} is an agent: its messages are seen when it sees them"
            )
        count = 0
        now_ms = batch.now_ms
        for id_ in ids:
            found = self._ledger.delivery(str(id_), member.name)
            if found is None or found[2].state.final:
                continue
            event, sender, delivery = found
            new = advance(delivery, State.SEEN, now_ms, proof="inbox")
            self._ledger.begin()
            self._ledger.update_delivery(event, member.name, new)
            count += 1
            batch.changed.add(str(id_))
            batch.after.append(
                partial(self._pushing.receipt, sender, str(id_), member.name, "seen", None)
            )
        return {"read": count}

    def show(self, connection: Connection | None, request: Json, batch: Batch) -> Json:
        """One message with all its deliveries."""
        wanted = str(request.get("id") or "").upper()
        if len(wanted) < 4:
            raise UsageError("an id needs at least 4 characters", hint="relay sent lists the ids")
        found = queries.matching_ids(self._ledger, wanted)
        if not found:
            raise NotFound(f"there is no message {wanted}", hint="relay history lists the ids")
        if len(found) > 1:
            raise UsageError(
                f"{wanted} could be {', '.join(found[:5])}", hint="give more of the id"
            )
        message = queries.message(self._ledger, found[0])
        if message is None:
            raise NotFound(f"there is no message {wanted}", hint="relay history lists the ids")
        return {"message": message}

    # -- what may take several steps

    def sent(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        """The newest messages from somebody."""
        member = self._whose(connection, request)
        wanted = Filter(sender=member.name)
        self._scan(connection, request, batch, wanted, {"name": member.name})

    def history(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        """The newest events that match."""
        since = request.get("since_ms")
        if since is not None and not isinstance(since, int):
            raise UsageError("since_ms is a number of milliseconds")
        texts: dict[str, str | None] = {}
        for key in ("agent", "thread", "grep", "kind"):
            value = request.get(key)
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{key} is a text")
            texts[key] = value
        kind = texts["kind"] or "message"
        wanted = Filter(
            kind=None if kind == "*" else kind,
            agent=texts["agent"],
            thread=texts["thread"],
            since_ms=since,
            grep=texts["grep"] or None,
        )
        self._scan(connection, request, batch, wanted, {})

    def _scan(
        self,
        connection: Connection | None,
        request: Json,
        batch: Batch,
        wanted: Filter,
        fields: Json,
    ) -> None:
        if connection is None:
            return
        scan = _Scan(wanted, _limit(request, 1000), fields)
        connection.defer()
        first = {"n": request["n"], "top": queries.last_event(self._ledger)}
        self._step(connection, first, batch, scan)

    def _step(
        self, connection: Connection | None, request: Json, batch: Batch, scan: _Scan
    ) -> None:
        if connection is None or connection.closed:
            return
        batch.on_failure.append(connection.undefer)
        room = scan.limit + 1 - len(scan.rows)
        rows, top = queries.slice_of(self._ledger, request["top"], scan.wanted, room)
        scan.rows += rows
        if top > 0 and len(scan.rows) <= scan.limit and not scan.full():
            again = partial(self._step, scan=scan)
            following = {"n": request["n"], "top": top}
            batch.after.append(partial(self._submit, again, connection, following))
            return
        kept, more = fitting(scan.rows[: scan.limit])
        kept.reverse()
        more = more or len(scan.rows) > scan.limit
        batch.after.append(connection.undefer)
        batch.answer(connection, request["n"], {**scan.fields, "rows": kept, "more": more})

    def _whose(self, connection: Connection | None, request: Json) -> Member:
        name: Any = request.get("name")
        if name is None:
            own = self._sending.authenticated(connection, request)
            name = own.name if own is not None else self._owner
        member = self._directory.get(str(name))
        if member is None:
            guesses = suggestions([str(name)], self._directory.members)
            raise NotFound(
                f"nobody is called {name}",
                hint=f"did you mean {' or '.join(guesses)}?" if guesses else "relay agents",
                details={"did_you_mean": guesses},
            )
        return member


class _Scan:
    """One search through the events, newest first."""

    def __init__(self, wanted: Filter, limit: int, fields: Json) -> None:
        self.wanted = wanted
        self.limit = limit
        self.rows: list[Row] = []
        self.fields = fields

    def full(self) -> bool:
        """Whether the answer's line cannot hold more anyway."""
        return sum(len(row["body"] or "") for row in self.rows) > _ROWS_BYTES


def fitting(rows: list[Row]) -> tuple[list[Row], bool]:
    """As many of the rows, from the first, as one answer holds; and whether any were left out."""
    size = 0
    for index, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > _ROWS_BYTES and index:
            return rows[:index], True
    return list(rows), False


def _limit(request: Json, default: int) -> int:
    limit = request.get("limit")
    if limit is None:
        return default
    if not isinstance(limit, int) or limit < 1:
        raise UsageError("a limit is a number from 1 on")
    return min(limit, ROWS_MAX)
