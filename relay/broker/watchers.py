"""The ``watch`` op: pushes rows to followers as things happen.

All followers share one ring of rows, and each has a place in it. So a slow reader costs the others
nothing, and one that is too slow is told how many rows it has missed.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, cast

from relay.broker.agent_rights import Reader, Rights
from relay.broker.batch import (
    Accepted,
    Batch,
    Client,
    ClientRequest,
    Served,
    serve,
)
from relay.broker.directory import Directory, Member
from relay.core.bounded import BoundedDict
from relay.core.errors import StorageError, UsageError
from relay.core.ids import new_ulid
from relay.core.message import State
from relay.ledger import queries
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AgentRow
from relay.protocol.broker import WATCHED, Json, decode, encode
from relay.protocol.broker_ops import WATCH, Watch, Watched
from relay.protocol.item_ops import Item
from relay.protocol.turns import TurnResult

#: Rows that are kept, and characters of their texts; beyond it the oldest are dropped.
RING_MAX, RING_TEXT_MAX = 10_000, 16 * 1024 * 1024
#: Characters of a body or another text in a row; a longer one is cut, and marked as ``cut``.
TEXT_MAX = 16 * 1024
#: Rows in one push, and bytes after which a push gets no more rows.
PUSH_ROWS, PUSH_BYTES = 500, 256 * 1024
#: Names that one follower may filter by.
NAMES_MAX = 1000
#: Agents whose last row is remembered.
AGENTS_MAX = 10_000
#: Fields of an agent that change all the time, and make no row.
_NO_NEWS = ("unread", "since_ms", "last_seen_ms")


class _MessageRow(NamedTuple):
    """What the row of a message is made of."""

    names: Sequence[str]  # the sender, then the receivers
    body: str
    cut: bool
    id: str
    origin: str
    mode: str | None
    thread: str | None
    channel: str | None

    def fields(self, ledger: Ledger) -> Json:
        fields: Json = {
            "id": self.id,
            "from": self.names[0],
            "from_kind": self.origin,
            "to": list(self.names[1:]),
            "body": ledger.shown(self.body),
            "mode": self.mode,
            "thread": self.thread,
            "channel": self.channel,
        }
        return {**fields, "cut": True} if self.cut else fields


class _Kept:
    """One row in the ring, with the names that it is about. It is made when somebody reads it:
    mostly nobody does."""

    __slots__ = ("seq", "at_ms", "what", "names", "size", "_fields", "_line")

    def __init__(
        self,
        seq: int,
        at_ms: int,
        what: str,
        names: Sequence[str],
        size: int,
        fields: Json | _MessageRow,
    ) -> None:
        self.seq = seq
        self.at_ms = at_ms
        self.what = what
        self.names = names
        self.size = size
        self._fields: Json | _MessageRow | None = fields
        self._line = b""  # once a follower has been told, in the place of the fields

    def encoded(self, ledger: Ledger) -> bytes:
        if not self._line:
            self._line, self._fields = encode(self.row(ledger))[:-1], None
        return self._line

    def row(self, ledger: Ledger) -> Json:
        fields = self._fields
        if fields is None:
            return decode(self._line)
        if isinstance(fields, _MessageRow):
            fields = self._fields = fields.fields(ledger)
        return {"seq": self.seq, "at_ms": self.at_ms, "what": self.what, **fields}


class _Follower:
    """A client that follows."""

    __slots__ = ("client", "reader", "kinds", "agents", "next", "due")

    def __init__(
        self, client: Client, reader: Reader, kinds: frozenset[str], agents: frozenset[str]
    ) -> None:
        self.client = client
        self.reader = reader
        self.kinds = kinds
        self.agents = agents
        self.next = 0  # the sequence number of the row to look at next
        self.due = False  # a push to it is scheduled

    def wants(self, one: _Kept) -> bool:
        if one.what not in self.kinds:
            return False
        if self.agents and self.agents.isdisjoint(name.lower() for name in one.names):
            return False
        return one.what == "agent" or self.reader.reads(*one.names)


class Watchers:
    """Keeps the newest rows, and pushes them to followers. Belongs to the broker's loop."""

    def __init__(
        self, ledger: Ledger, directory: Directory, rights: Rights, now_ms: Callable[[], int]
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._rights = rights
        self._now_ms = now_ms
        self._loop = asyncio.get_running_loop()
        self._epoch = new_ulid(now_ms())
        self._ring: deque[_Kept] = deque()
        self._size = 0
        self._next = 1  # the sequence number of the next row
        self._more = asyncio.Event()  # set when a row was added, for ``after``
        self._followers: dict[Client, _Follower] = {}
        self._told: BoundedDict[str, AgentRow] = BoundedDict(AGENTS_MAX)  # by lower-case name
        #: The kinds of rows; those of features are added.
        self.kinds = WATCHED

    def ops(self) -> list[Served]:
        return [serve(WATCH, self.watch)]

    # -- the op

    def watch(self, request: ClientRequest[Watch], batch: Batch) -> Watched:
        """Make the client a follower, from now on or from its last row; a second ``watch`` replaces
        the first."""
        reader = self._rights.reader(request)
        fields = request.fields
        kinds = frozenset(fields.get("kinds") or ()) or self.kinds
        if unknown := kinds - self.kinds:
            raise UsageError(
                f"there is no kind {', '.join(sorted(unknown))}",
                hint=f"the kinds are: {', '.join(sorted(self.kinds))}",
            )
        agents = frozenset(name.lower() for name in fields.get("agents") or ())
        if self._directory.speaker(request) is not None:
            kinds -= {"item"}  # items are only for the person
        one = _Follower(request.client, reader, kinds, agents)
        after = fields.get("after")
        lost = 0
        one.next = self._next
        if after is not None:
            if fields.get("epoch") != self._epoch or not 0 <= after < self._next:
                # The follower of an earlier broker gets every row of this one.
                lost, one.next = -1, self._next - len(self._ring)
            else:
                one.next = after + 1
        batch.after.append(partial(self._follow, one, lost))
        return {"epoch": self._epoch, "seq": one.next - 1}

    def _follow(self, one: _Follower, lost: int) -> None:
        if one.client.closed:
            return
        self._followers[one.client] = one
        if lost:
            self._push(one, [self._gap(one, lost)])
        self._wake(one)

    def gone(self, client: Client) -> None:
        self._followers.pop(client, None)

    def writable(self, client: Client) -> None:
        if one := self._followers.get(client):
            self._wake(one)

    async def after(self, place: int, kinds: Collection[str]) -> tuple[int, list[Json]]:
        """For parts of the broker: wait for rows after number ``place`` (0: all that are kept).

        Returns the number of the last row, and the rows of these kinds.
        """
        while place >= self._next - 1:
            self._more.clear()
            await self._more.wait()
        # From its newer end: to skip thousands of rows for each new one would take long.
        new = list(islice(reversed(self._ring), self._next - 1 - place))
        rows = [kept.row(self._ledger) for kept in reversed(new) if kept.what in kinds]
        return self._next - 1, rows

    # -- pushing

    def _wake(self, one: _Follower) -> None:
        if not one.due:
            one.due = True
            self._loop.call_soon(self._tell, one)

    def _tell(self, one: _Follower) -> None:
        """Push the rows that it wants and does not have, as long as it reads."""
        one.due = False
        if self._followers.get(one.client) is not one or one.client.paused:
            return
        rows: list[bytes] = []
        size = 0
        first = self._next - len(self._ring)
        if one.next < first:
            lost, one.next = first - one.next, first
            rows.append(self._gap(one, lost))
        while one.next < self._next:
            kept = self._ring[one.next - first]
            one.next += 1
            if one.wants(kept):
                rows.append(line := kept.encoded(self._ledger))
                size += len(line)
                if len(rows) >= PUSH_ROWS or size >= PUSH_BYTES:
                    break
        if rows:
            self._push(one, rows)
        if one.next < self._next:
            self._wake(one)  # after the flush, which shows whether it reads

    def _gap(self, one: _Follower, lost: int) -> bytes:
        row: Json = {"seq": one.next - 1, "at_ms": self._now_ms(), "what": "gap", "lost": lost}
        return encode(row)[:-1]

    def _push(self, one: _Follower, rows: list[bytes]) -> None:
        head = b'{"push": "watch", "epoch": "%s", "rows": [' % self._epoch.encode()
        one.client.send(head + b", ".join(rows) + b"]}\n")

    def _add(
        self,
        what: str,
        names: Sequence[str],
        fields: Json | _MessageRow,
        size: int = 0,
    ) -> None:
        ring = self._ring
        ring.append(_Kept(self._next, self._now_ms(), what, names, size, fields))
        self._next += 1
        self._size += size
        while len(ring) > RING_MAX or self._size > RING_TEXT_MAX:
            self._size -= ring.popleft().size
        self._more.set()
        for one in self._followers.values():
            if not one.due:
                self._wake(one)

    # -- what happens

    def message(self, message: Accepted) -> None:
        routing = message.routing
        if message.kind != "message" or routing is None:
            return
        names = (message.sender, *[one.to for one in routing.routes])
        body, cut = message.body or "", False
        if len(body) > TEXT_MAX:  # masked first: half of a secret may not look like one
            body, cut = self._ledger.shown(body)[:TEXT_MAX], True
        row = _MessageRow(
            names,
            body,
            cut,
            message.id,
            message.origin,
            message.mode,
            message.thread,
            _channel(message.meta),
        )
        self._add("message", names, row, len(body))
        for one in routing.routes:
            if one.reason is not None or one.state is not State.QUEUED:
                self.delivery(message.id, message.sender, one.to, one.state.value, one.reason, None)

    def delivery(
        self, id_: str, sender: str, to: str, state: str, reason: str | None, proof: str | None
    ) -> None:
        fields: Json = {"id": id_, "from": sender, "to": to, "state": state}
        fields["reason"], fields["proof"] = reason, proof
        self._add("delivery", (sender, to), fields)

    def agent(self, member: Member) -> None:
        """Add a row for an agent, if it has changed."""
        if member.person:
            return
        key = member.name.lower()
        before = self._told.get(key)
        try:
            unread = queries.unread(self._ledger, member.name)
        except StorageError:
            unread = 0 if before is None else before["unread"]
        fields = member.fields(unread)
        self._told[key] = fields
        if before is None or any(
            cast(Json, before)[name] != value
            for name, value in fields.items()
            if name not in _NO_NEWS
        ):
            was = None if before is None else before["state"]
            self._add("agent", (member.name,), {**fields, "was": was})

    def known(self, member: Member) -> None:
        """Remember an agent that is known from an earlier broker, without a row."""
        if not member.person:
            state = member.record.state
            self._told[member.name.lower()] = {**member.fields(0), "state": state}

    def turn(
        self, agent: str, ids: list[str], askers: set[str], ended: TurnResult, started_ms: int
    ) -> None:
        """Add a row for a turn that has ended and answers the messages ``ids`` of ``askers``."""
        text, cut = _short(self._ledger.shown(ended.text))
        fields: Json = {
            "agent": agent,
            "ids": ids,
            "text": text,
            "state": ended.state.value,
            "usage": _usage(ended),
            "model": ended.model,
            "started_ms": started_ms,
            "ended_ms": ended.ended_ms or self._now_ms(),
        }
        self._add("turn", (agent, *askers), fields | cut, len(text))

    def item(
        self,
        item: Item,
        *,
        open_: bool,
        again: bool = False,
        answer: str | None = None,
        by: str = "",
    ) -> None:
        """Add a row for an item that waits for the person, or no longer does. ``again``: only its
        words are new."""
        over: Json = {"again": True} if again else {} if open_ else {"answer": answer, "by": by}
        size = len(str(item.get("what") or ""))
        self._add("item", (str(item["agent"]),), {"item": item, "open": open_, **over}, size)

    def obligation(self, id_: str, sender: str, to: str, why: str) -> None:
        """Add a row: ``to`` will not answer a message for whose answer ``sender`` has asked."""
        self._add("obligation", (sender, to), {"id": id_, "from": sender, "to": to, "why": why})

    def tell(self, what: str, names: Iterable[str], fields: Json) -> None:
        """For features: a row of one of their kinds. ``names``: the agents whose row it is; only
        they, and who may follow what happens to others, get it. Raises ValueError."""
        if what not in self.kinds - WATCHED:
            raise ValueError(f"{what} is not a kind of row that a feature can have")
        shown: Json = {"names": list(names)}
        for name, value in fields.items():
            shown[name] = self._ledger.shown(value) if isinstance(value, str) else value
        size = len(encode(shown))
        if size > TEXT_MAX:
            raise ValueError(f"a row has at most {TEXT_MAX} bytes, not {size}")
        self._add(what, shown["names"], shown, size)


def _channel(meta: str | None) -> str | None:
    """The #channel that a message was sent to."""
    if meta is None or '"channel"' not in meta:
        return None
    channel = (json.loads(meta).get("attributes") or {}).get("channel")
    return channel if isinstance(channel, str) else None


def _usage(ended: TurnResult) -> Json | None:
    if ended.tokens_in is None and ended.tokens_out is None:
        return None
    return {"input": ended.tokens_in, "output": ended.tokens_out, "cached": None}


def _short(text: str) -> tuple[str, Json]:
    return (text, {}) if len(text) <= TEXT_MAX else (text[:TEXT_MAX], {"cut": True})
