"""The broker's door: what a feature can add to the broker, and how the broker asks its features.

A feature's module ``broker`` has ``feature(parts) -> BrokerFeature`` (``parts``: see
relay.broker.parts). All of it is called in the broker's loop, and must not wait for anything.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, TypeVar

from relay.broker.batch import Accepted, AnyRequest, Batch, Client, ClientRequest, Served
from relay.broker.directory import Member
from relay.broker.routing import Route
from relay.core.errors import RelayError
from relay.core.log import Log
from relay.ledger.schema import AgentRecord, Delivery
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AgentElsewhere, AgentStateReport, Register
from relay.protocol.broker import WATCHED, Json
from relay.protocol.decoding import resolve
from relay.protocol.item_ops import Item, ItemChoice
from relay.protocol.message_ops import MessageSent, Send, StoreEvent, WaitResult
from relay.protocol.turns import TurnResult

T = TypeVar("T")

#: Rows of the stream that only the kernel, or who reads it, puts there.
NOT_OF_FEATURES = WATCHED | {"gap", "connection"}
_ROW_KIND = re.compile("[a-z][a-z0-9_]{0,63}")
#: The choices of what is allowed or refused.
YES_NO: list[ItemChoice] = [{"key": "yes", "label": "Yes"}, {"key": "no", "label": "No"}]


class BrokerFeature:
    """One feature in the broker. Each method does nothing; override what the feature needs.

    Whatever gets a ``batch`` may write to the ledger, in the transaction of that batch, and may
    refuse the request by a RelayError.
    """

    def ops(self) -> Sequence[Served]:
        """The feature's ops, each with what carries it out: see relay.protocol.op."""
        return ()

    def item_kinds(self) -> Mapping[str, ItemKind]:
        """What waits for the person's answer, by the names of its kinds."""
        return {}

    def row_kinds(self) -> Collection[str]:
        """The kinds of rows that it puts into the stream (``Watchers.tell``). How each looks stands
        in ``ROWS`` of its module ``view``: see relay.ui.row_view."""
        return ()

    # -- the broker's life

    def restore(self, now_ms: int) -> None:
        """The broker begins, and knows its agents again. Raises StorageError."""

    def start(self) -> None:
        """The broker serves from now on: go on with what an earlier one has left."""

    async def stop(self) -> None:
        """The broker ends: begin nothing more. What is asked until this returns is still stored."""

    async def close(self) -> None:
        """End what still runs."""

    @property
    def busy(self) -> bool:
        """Whether something goes on for which the broker must stay, though no client waits."""
        return False

    def status(self, now_ms: int) -> Json:
        """What the op ``status`` shows of the feature, by keys of its own."""
        return {}

    # -- agents and clients

    def registering(self, name: str, fields: Register, is_new: bool, batch: Batch) -> None:
        """An agent registers, as ``fields`` of the op ``register`` say; ``is_new``: a new run. What
        the feature does after the commit (``batch.after``) finds it in the directory."""

    def came(self, member: Member) -> None:
        """An agent is there."""

    def gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended."""

    def reported(
        self, member: Member, now: AgentRecord, fields: AgentStateReport, batch: Batch
    ) -> None:
        """A session tells that its agent is as ``now``, in ``fields`` of the op ``agent_state``;
        ``member`` still has what was before."""

    def wants(self, member: Member) -> Sequence[str]:
        """The kinds of events that this agent's session is to tell of for the feature's sake."""
        return ()

    def news(self, member: Member) -> str:
        """What this agent is told with its next message, in a few words; "" for nothing."""
        return ""

    def lost(self, client: Client) -> None:
        """A connection has closed."""

    # -- messages and events

    def addressed(
        self, request: ClientRequest[Send], sender: str, thread: str | None, batch: Batch
    ) -> MessageSent | None:
        """The answer to a message of the person's that the feature takes in the place of an agent
        that is not here; None: it is not for the feature."""
        return None

    def outside(self, request: ClientRequest[StoreEvent], batch: Batch) -> bool:
        """Take an event of another channel than relay's own; False: the feature takes none."""
        return False

    def why_held(self, name: str, now_ms: int) -> str:
        """Why a message to this agent waits for the person's decision; "" where it may go on."""
        return ""

    def decided(self, seq: int, batch: Batch) -> None:
        """The person has decided on a delivery of the event ``seq`` that was held."""

    def stored(self, messages: Sequence[Accepted], batch: Batch) -> None:
        """These messages and events are written, and will be committed with the batch."""

    def delays(self, seq: int) -> Callable[[], Awaitable[object]] | None:
        """What an agent waits for before the message ``seq`` is handed over to it. That must have a
        deadline of some seconds, as the message waits as long. None: for nothing."""
        return None

    def context(self, seq: int) -> str:
        """What is added to the message ``seq``, which is handed over to an agent now: JSON in one
        line; "" for nothing."""
        return ""

    def elsewhere(self, to: str, fields: Send) -> Sequence[Route]:
        """Where a message to ``to`` goes that nobody here is called, and further places for a
        #channel or ``*``; the feature finds it again in ``stored``. May refuse it."""
        return ()

    def agents_elsewhere(self) -> Sequence[AgentElsewhere]:
        """The agents of other machines, as ``relay agents`` shows them."""
        return ()

    def moved(self, id_: str, sender: str, to: str, new: Delivery, batch: Batch) -> None:
        """The delivery of a message to ``to`` is in a new state."""

    def turn_ended(
        self, ids: list[str], ended: TurnResult, started_ms: int, batch: Batch
    ) -> tuple[set[str], bool]:
        """A turn is over that was to answer these messages. Returns those that were the feature's,
        and whether it hears of this turn for the first time."""
        return set(), False

    def progress(self, id_: str, answer: bool) -> WaitResult | None:
        """How far that is which the feature does for the event ``id_``, as the op ``wait`` tells
        it; ``answer``: it waits for answers, too. None: nothing is done for it."""
        return None

    def shown(self, id_: str, seq: int) -> Json:
        """What the op ``show`` tells of an event beside the event itself, by keys of its own."""
        return {}

    def origin(self, part: str) -> str | None:
        """The id of the event from which that follows which has this id, or this end of one."""
        return None


class _Contained:
    """``Features.contained``."""

    __slots__ = ("_log", "_parts")

    def __init__(self, log: Log, parts: Sequence[AbstractContextManager[None]]) -> None:
        self._log = log
        self._parts = parts

    def __enter__(self) -> None:
        for part in self._parts:
            part.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        for part in reversed(self._parts):
            part.__exit__(kind, error, trace)
        if kind is None or not issubclass(kind, Exception) or issubclass(kind, RelayError):
            return False
        self._log.fault()
        return True


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """What the person has chosen."""

    index: int
    key: str
    label: str
    note: str
    by: str  # who said so, and at which terminal

    @property
    def yes(self) -> bool:
        """Whether something is allowed: of items with the choices ``YES_NO``."""
        return self.key == "yes"


class ItemKind(Protocol):
    """One kind of what waits for the person: see relay.protocol.item_ops."""

    def waiting(self) -> Iterable[Item]:
        """The items that wait now."""

    def answered(
        self, items: Sequence[Item], answer: ItemAnswer, request: AnyRequest, batch: Batch
    ) -> bool:
        """Do what follows from this answer to these of its items; False where the request is
        answered later. Raises RelayError."""


class Features(BrokerFeature):
    """All of them, as one: the broker asks nothing else. Empty until ``use``."""

    def __init__(self, ledger: Ledger, log: Log) -> None:
        self._ledger = ledger
        self._log = log
        self.opened: list[BrokerFeature] = []
        # Those that want to know of each message: most do not, and there are many messages.
        self._addressed: list[BrokerFeature] = []
        self._holding: list[BrokerFeature] = []
        self._storing: list[BrokerFeature] = []
        self._adding: list[BrokerFeature] = []
        self._elsewhere: list[BrokerFeature] = []
        self._moving: list[BrokerFeature] = []

    def use(self, features: list[BrokerFeature]) -> None:
        """Ask these from now on."""
        base = BrokerFeature
        self.opened = features
        self._addressed = [one for one in features if type(one).addressed is not base.addressed]
        self._holding = [one for one in features if type(one).why_held is not base.why_held]
        self._storing = [one for one in features if type(one).stored is not base.stored]
        self._adding = [one for one in features if type(one).context is not base.context]
        self._elsewhere = [one for one in features if type(one).elsewhere is not base.elsewhere]
        self._moving = [one for one in features if type(one).moved is not base.moved]

    def contained(self, batch: Batch | None = None) -> _Contained:
        """One feature's fault is logged, and harms no other, and no message: what the feature has
        added to ``batch`` is taken back."""
        parts = () if batch is None else (self._ledger.part(), batch.part())
        return _Contained(self._log, parts)

    def _from_each(self, ask: Callable[[BrokerFeature], T], batch: Batch | None = None) -> list[T]:
        """What each of them answers; one that fails answers nothing: see ``contained``."""
        answers: list[T] = []
        for feature in self.opened:
            with self.contained(batch):
                answers.append(ask(feature))
        return answers

    def ops(self) -> list[Served]:
        def checked(feature: BrokerFeature) -> Sequence[Served]:
            ops = feature.ops()
            for one in ops:
                resolve(one.op)
            return ops

        return [one for ops in self._from_each(checked) for one in ops]

    def item_kinds(self) -> Mapping[str, ItemKind]:
        table: dict[str, ItemKind] = {}
        for kinds in reversed(self._from_each(lambda one: one.item_kinds())):
            table |= kinds  # of two of one name the first counts
        return table

    def row_kinds(self) -> Collection[str]:
        kinds = {kind for some in self._from_each(lambda one: one.row_kinds()) for kind in some}
        return {kind for kind in kinds if _ROW_KIND.fullmatch(kind)} - NOT_OF_FEATURES

    def restore(self, now_ms: int) -> None:
        self._from_each(lambda one: one.restore(now_ms))

    def start(self) -> None:
        self._from_each(lambda one: one.start())

    async def stop(self) -> None:
        for feature in reversed(self.opened):
            with self.contained():
                await feature.stop()

    async def close(self) -> None:
        for feature in reversed(self.opened):
            with self.contained():
                await feature.close()

    @property
    def busy(self) -> bool:
        return any(self._from_each(lambda one: one.busy))

    def status(self, now_ms: int) -> Json:
        shown: Json = {}
        for part in self._from_each(lambda one: one.status(now_ms)):
            shown |= part
        return shown

    def registering(self, name: str, fields: Register, is_new: bool, batch: Batch) -> None:
        self._from_each(lambda one: one.registering(name, fields, is_new, batch), batch)

    def came(self, member: Member) -> None:
        self._from_each(lambda one: one.came(member))

    def gone(self, member: Member, batch: Batch) -> None:
        self._from_each(lambda one: one.gone(member, batch), batch)

    def reported(
        self, member: Member, now: AgentRecord, fields: AgentStateReport, batch: Batch
    ) -> None:
        self._from_each(lambda one: one.reported(member, now, fields, batch), batch)

    def wants(self, member: Member) -> Sequence[str]:
        return sorted(
            {kind for some in self._from_each(lambda one: one.wants(member)) for kind in some}
        )

    def news(self, member: Member) -> str:
        return ", ".join(filter(None, self._from_each(lambda one: one.news(member))))

    def lost(self, client: Client) -> None:
        self._from_each(lambda one: one.lost(client))

    def addressed(
        self, request: ClientRequest[Send], sender: str, thread: str | None, batch: Batch
    ) -> MessageSent | None:
        for feature in self._addressed:
            answer = feature.addressed(request, sender, thread, batch)
            if answer is not None:
                return answer
        return None

    def outside(self, request: ClientRequest[StoreEvent], batch: Batch) -> bool:
        return any(feature.outside(request, batch) for feature in self.opened)

    def why_held(self, name: str, now_ms: int) -> str:
        for feature in self._holding:
            if why := feature.why_held(name, now_ms):
                return why
        return ""

    def delays(self, seq: int) -> Callable[[], Awaitable[object]] | None:
        for feature in self._adding:
            with self.contained():
                if (work := feature.delays(seq)) is not None:
                    return work
        return None

    def context(self, seq: int) -> str:
        for feature in self._adding:
            with self.contained():
                if context := feature.context(seq):
                    return context
        return ""

    def decided(self, seq: int, batch: Batch) -> None:
        self._from_each(lambda one: one.decided(seq, batch), batch)

    def stored(self, messages: Sequence[Accepted], batch: Batch) -> None:
        for feature in self._storing:
            with self.contained(batch):
                feature.stored(messages, batch)

    def elsewhere(self, to: str, fields: Send) -> Sequence[Route]:
        return [one for feature in self._elsewhere for one in feature.elsewhere(to, fields)]

    def agents_elsewhere(self) -> list[AgentElsewhere]:
        found: list[AgentElsewhere] = []
        for feature in self._elsewhere:
            with self.contained():
                found += feature.agents_elsewhere()
        return found

    def moved(self, id_: str, sender: str, to: str, new: Delivery, batch: Batch) -> None:
        for feature in self._moving:
            with self.contained(batch):
                feature.moved(id_, sender, to, new, batch)

    def turn_ended(
        self, ids: list[str], ended: TurnResult, started_ms: int, batch: Batch
    ) -> tuple[set[str], bool]:
        theirs: set[str] = set()
        fresh = False
        for feature in self.opened:
            some, first = feature.turn_ended(ids, ended, started_ms, batch)
            theirs |= some
            fresh |= first
        return theirs, fresh

    def progress(self, id_: str, answer: bool) -> WaitResult | None:
        told = (feature.progress(id_, answer) for feature in self.opened)
        return next((one for one in told if one is not None), None)

    def shown(self, id_: str, seq: int) -> Json:
        shown: Json = {}
        for feature in self.opened:
            shown |= feature.shown(id_, seq)
        return shown

    def origin(self, part: str) -> str | None:
        ids = (feature.origin(part) for feature in self.opened)
        return next((one for one in ids if one is not None), None)
