"""The loop guard: agents that only answer each other stop and wait for the person.

Two agents that thank each other can run up a bill overnight. Every message of an agent's is one hop
further than the message that made it speak; a person's word starts again at 0. Messages of a chain
that is too long, or of a pair that exchanges too many, are *parked*: stored, shown to the person,
and offered to nobody before the person allows it. relay's own notices about an agent's words count
as a hop too, and stop at the same limits. Hops and counts come from the ledger, so they survive the
broker. ``LoopGuard`` decides (pure), ``HeldMessages`` carries it out, with the op ``person``.
Parked messages are items for the person (relay.broker.open_items).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from relay.broker.batch import Accepted, AnyRequest, Batch, Client, ClientRequest, Served, serve
from relay.broker.delivery_states import advance
from relay.broker.directory import Member
from relay.broker.door import ItemAnswer
from relay.broker.kernel import Kernel
from relay.broker.ops_delivery import DeliveryOps, caused_by
from relay.broker.routing import Route
from relay.core.bounded import BoundedDict, RecentSet
from relay.core.errors import RelayError, UsageError
from relay.core.message import HeldFor, State
from relay.ledger import queries
from relay.ledger.queries import ParkedPair
from relay.protocol.agent_ops import PERSON
from relay.protocol.item_ops import Item, ItemChoice
from relay.protocol.message_ops import CANCEL, Cancel, Cancelled
from relay.protocol.op import Done

#: The longest chain of messages that follow from one another without a person.
HOPS_MAX = 20
#: Messages between two agents, in both directions together, within ``RATE_WINDOW_MS``.
RATE_MAX = 60
RATE_WINDOW_MS = 60_000
#: Pairs whose messages are counted; the pair that was silent longest is forgotten first.
PAIRS_MAX = 4096
#: Messages of the last minute that are counted again at a start.
RESTORED_MAX = 100_000
#: Pairs that one call lists, and messages that one commit decides on: the rest follows.
PARKED_MAX = 200
#: How often watchers are told how many messages are held. Seconds.
_COUNTED_EVERY = 1.0
_CHOICES: list[ItemChoice] = [
    {"key": "yes", "label": "deliver"},
    {"key": "no", "label": "refuse all"},
]
#: The thread of the notices to the person.
THREAD = "held"
_DAY_MS = 86_400_000
_DECIDE = (
    "relay items shows it; relay answer ID yes delivers it (--held yes: all held messages), no"
    " refuses it."
)
_DROPPED = "the person refused it"

Pair = tuple[str, str]


def pair_of(one: str, other: str) -> Pair:
    """The same key for both directions."""
    a, b = one.lower(), other.lower()
    return (a, b) if a <= b else (b, a)


class LoopGuard:
    """Decides which messages between agents are parked. Times in milliseconds.

    ``hops_max`` and ``rate_max`` are the limits; 0 for none.
    """

    def __init__(self, hops_max: int = HOPS_MAX, rate_max: int = RATE_MAX) -> None:
        self._hops_max = hops_max
        self._rate_max = rate_max
        self._times: BoundedDict[Pair, deque[int]] = BoundedDict(PAIRS_MAX)
        self._closed: BoundedDict[Pair, str] = BoundedDict(PAIRS_MAX)

    def check(self, sender: str, to: str, hops: int, now_ms: int) -> tuple[HeldFor, str] | None:
        """Why this message must wait for the person: the cause and its sentence. None when it may
        go; then it is counted."""
        pair = pair_of(sender, to)
        if pair in self._closed:
            return HeldFor.RATE, self._closed[pair]
        if self._hops_max and hops > self._hops_max:
            reason = f"{hops} messages followed from one another without a person"
            return HeldFor.HOPS, reason
        if not self._rate_max:
            return None
        if self._is_full(pair, now_ms):
            reason = f"more than {self._rate_max} messages a minute between the two"
            self.close(sender, to, reason)
            return HeldFor.RATE, reason
        self.count(sender, to, now_ms)
        return None

    def check_notice(self, to: str, hops: int, now_ms: int) -> str | None:
        """Why relay sends this agent no notice now. None when it may; then it is counted."""
        if self._hops_max and hops > self._hops_max:
            return f"{hops} messages and notices followed from one another without a person"
        if self._rate_max and self._is_full(pair_of("relay", to), now_ms):
            return f"relay has told {to} {self._rate_max} things within a minute"
        self.count("relay", to, now_ms)
        return None

    def _is_full(self, pair: Pair, now_ms: int) -> bool:
        times = self._times.get(pair)
        return (
            times is not None
            and len(times) == self._rate_max
            # A clock that was put back tells of no minute.
            and 0 <= now_ms - times[0] < RATE_WINDOW_MS
        )

    def count(self, sender: str, to: str, now_ms: int) -> None:
        if self._rate_max:
            pair = pair_of(sender, to)
            times = self._times.get(pair) or deque(maxlen=self._rate_max)
            self._times[pair] = times
            times.append(now_ms)

    def uncount(self, sender: str, to: str, now_ms: int) -> None:
        """Take back the count of a message of ``now_ms`` that was not stored."""
        times = self._times.get(pair_of(sender, to))
        if times and times[-1] == now_ms:
            times.pop()

    def close(self, one: str, other: str, reason: str) -> None:
        """Park everything between these two from now on."""
        self._closed[pair_of(one, other)] = reason

    def reopen(self, one: str, other: str) -> None:
        """The person lets these two go on: their count starts at 0."""
        pair = pair_of(one, other)
        self._closed.pop(pair, None)
        self._times.pop(pair, None)


class HeldMessages:
    """Counts the hops of each agent's words, and parks chains that go on without a person."""

    def __init__(
        self,
        kernel: Kernel,
        deliveries: DeliveryOps,
        guard: LoopGuard,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._deliveries = deliveries
        self._guard = guard
        self._watchers = kernel.watchers
        self._features = kernel.features
        self._committer = kernel.committer
        self._items: dict[str, Item] = {}  # that watchers know, by their ids
        #: Up to which message the person's decision is being carried out, by sender and receivers.
        self._deciding: dict[tuple[str, ...], str] = {}
        self._counting: asyncio.TimerHandle | None = None
        #: Pairs of which the person was told and on which they have not decided yet.
        self._told: RecentSet[Pair] = RecentSet(PAIRS_MAX)

    def ops(self) -> list[Served]:
        return [serve(PERSON, self.person), serve(CANCEL, self.cancel)]

    def restore(self, now_ms: int) -> None:
        """After a start: count the messages of the last minute again. Pairs that were parked for
        their number of messages stay parked."""
        since_ms = now_ms - RATE_WINDOW_MS
        for sender, to, at_ms in queries.exchanged_since(self._ledger, since_ms, RESTORED_MAX):
            known = self._directory.get(to)
            if known is not None and not known.person:
                self._guard.count(sender, to, at_ms)
        for pair in queries.parked_pairs(self._ledger, PARKED_MAX):
            for to in pair.to:
                self._told.add(pair_of(pair.sender, to))
                if pair.rate:
                    self._guard.close(pair.sender, to, pair.last["reason"] or "")
        self._items = {item["id"]: item for item in self.waiting()}

    def person(self, request: AnyRequest, batch: Batch) -> Done:
        """The session says that the person has spoken to its agent."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only a registered session can report its person")
        caused_by(self._ledger, member, "", 0)
        return {}

    def cancel(self, request: ClientRequest[Cancel], batch: Batch) -> Cancelled:
        """A message is withdrawn, which may be a held one."""
        cancelled = self._deliveries.cancel(request, batch)
        if cancelled["withdrawn"] and self._items:
            batch.after.append(self._count)
        return cancelled

    # -- parking

    def admit_notice(self, message: Accepted, member: Member, batch: Batch) -> None:
        """Count a notice to an agent about its own words. Raises RelayError where the guard refuses
        it, because the agent would answer the notice too."""
        message.hops = member.hops + 1
        reason = self._guard.check_notice(member.name, message.hops, batch.now_ms)
        if reason is not None:
            raise RelayError(reason, code="loop")
        batch.on_failure.append(partial(self._guard.uncount, "relay", member.name, batch.now_ms))

    def admit(
        self,
        message: Accepted,
        member: Member,
        client: Client,
        batch: Batch,
    ) -> None:
        """Count the hops of a message from ``member``, which speaks over ``client``, and park it if
        the guard says so.

        The words of an agent that was started inside another one count as that one's.
        """
        around = self._directory.around(member, client)
        message.hops = max(one.hops for one in around) + 1
        if message.routing is None:
            return
        counts = message.sender if len(around) == 1 else around[-1].name
        routes = tuple(
            self._admitted(message, one, counts, batch) for one in message.routing.routes
        )
        if any(one.parked for one in routes):
            message.routing = replace(message.routing, routes=routes)
            batch.after.append(self._count)

    def admit_followed(self, message: Accepted, hops: int, batch: Batch) -> None:
        """Count a question to a persona, or its answer, after a chain of ``hops``; park it if the
        guard says so."""
        assert message.routing is not None
        message.hops = hops
        routes = message.routing.routes
        admitted = tuple(self._admitted(message, one, message.sender, batch) for one in routes)
        message.routing = replace(message.routing, routes=admitted)
        if message.parked:
            batch.after.append(self._count)

    def hold_over_cap(self, message: Accepted, batch: Batch) -> None:
        """Park a message to each agent for which a feature has a reason, such as a cap."""
        held: dict[str, str] = {}
        for one in message.routing.routes if message.routing is not None else ():
            to = self._directory.get(one.to) if one.state is State.QUEUED else None
            if to is None or to.person:
                continue
            if why := self._features.why_held(one.to, batch.now_ms):
                held[one.to] = why
        if not held or message.routing is None:
            return
        for name, why in held.items():
            text = f"{why}. What is written to {name} is held until you decide. {_DECIDE}"
            self._tell((f"cap {batch.now_ms // _DAY_MS}", name.lower()), text, batch)
        kept = (
            Route(one.to, State.HELD, held[one.to], HeldFor.CAP) if one.to in held else one
            for one in message.routing.routes
        )
        message.routing = replace(message.routing, routes=tuple(kept))
        batch.after.append(self._count)

    def why_held(self, sender: str, to: str, hops: int, batch: Batch) -> str | None:
        """Why a persona that is no agent here must wait for the person's decision. None when it
        may go on; then this is counted."""
        held = self._guard.check(sender, to, hops, batch.now_ms)
        if held is None:
            batch.on_failure.append(partial(self._guard.uncount, sender, to, batch.now_ms))
            return None
        _, reason = held
        text = (
            f"{sender} and {to}: {reason}. What {sender} asks {to} is not done until you"
            f" decide: relay broker retry {to} releases it."
        )
        self._tell(pair_of(sender, to), text, batch)
        return reason

    def reopen(self, one: str, other: str) -> None:
        """The person lets these two go on."""
        self._guard.reopen(one, other)
        self._told.discard(pair_of(one, other))

    def _admitted(self, message: Accepted, one: Route, counts: str, batch: Batch) -> Route:
        to = self._directory.get(one.to)
        if one.state is not State.QUEUED or to is None or to.person:
            return one
        held = self._guard.check(counts, one.to, message.hops, batch.now_ms)
        if held is None:
            # A message that cannot be stored now is sent again, perhaps every second.
            uncount = partial(self._guard.uncount, counts, one.to, batch.now_ms)
            batch.on_failure.append(uncount)
            return one
        cause, reason = held
        text = (
            f"{message.sender} and {one.to}: {reason}. What they write to each other is held until"
            f" you decide. {_DECIDE}"
        )
        self._tell(pair_of(message.sender, one.to), text, batch)
        return Route(one.to, State.HELD, reason, cause)

    def _count(self) -> None:
        """Tell watchers how many messages are held: now, and again once a second at most."""
        if self._counting is None:
            later = partial(self._committer.submit_job, self._counted)
            self._counting = asyncio.get_running_loop().call_later(_COUNTED_EVERY, later)
            self._committer.submit_job(self._tell_items)

    def _counted(self, batch: Batch) -> None:
        self._counting = None
        self._tell_items(batch)

    def _tell_items(self, batch: Batch) -> None:
        """Tell watchers which items are new, have another count, or are over."""
        before, self._items = self._items, {item["id"]: item for item in self.waiting()}
        for id_, item in before.items():
            if id_ not in self._items:
                self._watchers.item(item, open_=False)
        for id_, item in self._items.items():
            if item != before.get(id_):
                self._watchers.item(item, open_=True, again=id_ in before)

    def _tell(self, pair: Pair, text: str, batch: Batch) -> None:
        """Tell the person, once until they have decided about this pair."""
        if self._told.add(pair):
            batch.on_failure.append(partial(self._told.discard, pair))
            notice = Accepted.notice(self._directory.owner, text, THREAD, batch.now_ms)
            self._windows.collect(notice, batch)

    # -- for the person

    def waiting(self) -> list[Item]:
        """The held messages as items: one for a sender and those to whom it wrote."""
        return [
            _item_of(pair)
            for pair in queries.parked_pairs(self._ledger, PARKED_MAX)
            if pair.last["id"] > self._deciding.get((pair.sender, *pair.to), "")
        ]

    def answered(
        self, items: Sequence[Item], answer: ItemAnswer, request: AnyRequest, batch: Batch
    ) -> bool:
        """Let go on, or fail, what is held between these now."""
        for item in items:
            batch.after.append(partial(self._decided, item, answer))
            batch.after.append(partial(self._reopened, item))
            self._decide(item, answer, batch)
        return True

    def _decide(self, item: Item, answer: ItemAnswer, batch: Batch) -> None:
        """Decide on so many messages of an item; others follow with the next commit."""
        to, last = item["details"]["to"], item["details"]["last"]
        pair = (item["agent"], *to)
        self._deciding[pair] = last
        batch.on_failure.append(partial(self._deciding.pop, pair, None))
        ids = queries.parked_messages(self._ledger, item["agent"], to, last, PARKED_MAX)
        state = State.QUEUED if answer.yes else State.FAILED
        reason = None if answer.yes else _DROPPED
        word = "allowed" if answer.yes else "refused"
        for id_ in ids:
            for name in to:
                found = self._ledger.delivery(id_, name)
                if found is None:
                    continue
                event, sender, delivery = found
                new = advance(delivery, state, batch.now_ms, reason=reason)
                self._ledger.begin()
                self._ledger.unpark(event, name, new, f"{word} by {answer.by}")
                self._features.decided(event, batch)
                self._deliveries.changed(batch, id_, sender, name, new)
        if len(ids) == PARKED_MAX:
            more = partial(self._decide, item, answer)
            batch.after.append(partial(self._committer.submit_job, more))
        else:
            batch.after.append(partial(self._deciding.pop, pair, None))
        for one in to:
            batch.after.append(partial(self._windows.released, one))

    def _decided(self, item: Item, answer: ItemAnswer) -> None:
        self._items.pop(item["id"], None)
        self._watchers.item(item, open_=False, answer=answer.label, by=answer.by)

    def _reopened(self, item: Item) -> None:
        sender = self._directory.get(item["agent"])
        around = {item["agent"]}
        if sender is not None and sender.client is not None:
            around |= {one.name for one in self._directory.around(sender, sender.client)}
        for to in item["details"]["to"]:
            for name in around:
                self.reopen(name, to)


def _item_of(pair: ParkedPair) -> Item:
    to, reason = ", ".join(pair.to), pair.last["reason"] or ""
    about = [reason]
    if pair.count > 1:
        about = [
            f"{pair.sender} → {to}: {pair.count:,} messages are held: {reason}",
            f"The newest is shown; relay inbox {pair.to[0]} lists them. An answer is for all.",
        ]
    return {
        "id": pair.first["id"],
        "agent": pair.sender,
        "kind": "held",
        "what": f"to {to}: {pair.last['body']}",
        "about": about,
        "details": {
            "to": list(pair.to),
            "reason": reason,
            "thread": pair.last["thread"],
            "count": pair.count,
            "last": pair.last["id"],
        },
        "choices": _CHOICES,
        "chosen": None,
        "since_ms": pair.first["created_ms"],
        "until_ms": None,
    }
