"""Offering deliveries to the sessions of their recipients, a bounded window at a time.

A new message goes straight from memory to its recipient's connection while nothing older waits
there. Otherwise the member is *behind*: the ledger is the queue, and it is read on from the
member's cursor whenever the window or the connection's buffer has room again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from relay.broker.batch import Batch, Handler
from relay.broker.directory import Directory, Member
from relay.broker.insert_messages import Accepted, pushed
from relay.core.message import State
from relay.ledger.schema import Row
from relay.ledger.store import Ledger
from relay.protocol.broker import WINDOW, Json, encode

if TYPE_CHECKING:
    from relay.broker.connection import Connection

#: Bodies read from the ledger at once.
_REFILL_BYTES = 1024 * 1024


class Pushing:
    """Pushes to sessions and to those who follow an inbox."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        submit: Callable[[Handler, Connection | None, Json], None],
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._submit = submit
        self.followers: dict[str, set[Connection]] = {}

    def stored(self, message: Accepted) -> None:
        """A message is on the disk: offer it to whoever is there."""
        if message.routing is None:
            return
        members = self._directory.members
        for index, one in enumerate(message.routing.routes):
            key = one.to.lower()
            member = members.get(key)
            if member is not None and member.connection is not None and not one.parked:
                if self._has_room(member) and not member.behind:
                    self._push(member, message.seq, pushed(message, index))
                else:
                    member.behind = True
                    member.missed = True
            if key in self.followers:
                self._notify(key)

    def released(self, member: Member) -> None:
        """Older deliveries became open for this member: begin again from its oldest."""
        member.cursor = 0
        member.behind = True
        self.more(member)

    def settled(self, member: Member, id_: str, state: State) -> None:
        """A session reported: ``submitted`` and the final states make room for more."""
        if state.final or state is State.SUBMITTED:
            member.window.discard(id_)
            # In larger steps than one, so that a long queue is not read row by row.
            if member.behind and len(member.window) <= WINDOW // 2:
                self.more(member)

    def more(self, member: Member) -> None:
        """Read on in the ledger if there is room and need."""
        if member.behind and not member.refilling and self._has_room(member):
            member.refilling = True
            self._submit(self._refill, None, {"n": 0, "member": member})

    def _has_room(self, member: Member) -> bool:
        connection = member.connection
        return connection is not None and not connection.paused and len(member.window) < WINDOW

    def _refill(self, _: Connection | None, request: Json, batch: Batch) -> None:
        member: Member = request["member"]
        connection = member.connection

        def failed() -> None:
            member.refilling = False

        if connection is None:
            failed()
            return
        batch.on_failure.append(failed)
        member.missed = False
        after = member.cursor
        rows, left = self._ledger.open_deliveries(
            member.name, after, WINDOW - len(member.window), _REFILL_BYTES
        )
        batch.after.append(lambda: self._refilled(member, connection, after, rows, left))

    def _refilled(
        self,
        member: Member,
        connection: Connection,
        after: int,
        rows: list[tuple[int, Row]],
        left: bool,
    ) -> None:
        member.refilling = False
        if member.connection is not connection or member.cursor < after:
            # Another connection took over meanwhile, or older ones became open: it starts from
            # the beginning.
            self.more(member)
            return
        for event, row in rows:
            if event > member.cursor and row["id"] not in member.window:
                self._push(member, event, row)
        member.behind = left or member.missed
        self.more(member)

    def _push(self, member: Member, event: int, row: Row) -> None:
        assert member.connection is not None
        member.cursor = event
        member.window.add(row["id"])
        member.connection.send(encode({"push": "deliver", **row, "attempt": row["attempts"]}))

    # -- followers

    def follow(self, connection: Connection, name: str) -> None:
        """``connection`` wants to know when something comes into the inbox of ``name``."""
        self.unfollow(connection)
        connection.follows = name.lower()
        connection.notified = False
        self.followers.setdefault(name.lower(), set()).add(connection)

    def unfollow(self, connection: Connection) -> None:
        """Undo ``follow``."""
        if connection.follows is None:
            return
        group = self.followers.get(connection.follows)
        if group is not None:
            group.discard(connection)
            if not group:
                del self.followers[connection.follows]
        connection.follows = None

    def _notify(self, key: str) -> None:
        # Once until the client looks: one flag instead of a queue that could grow.
        for connection in self.followers[key]:
            if not connection.notified:
                connection.notified = True
                connection.send(encode({"push": "inbox"}))

    def receipt(self, sender: str, id_: str, to: str, state: str, reason: str | None) -> None:
        """Tell the sender's session that a delivery of its message changed."""
        member = self._directory.get(sender)
        if member is not None and member.connection is not None:
            member.connection.send(
                encode({"push": "receipt", "id": id_, "to": to, "state": state, "reason": reason})
            )
