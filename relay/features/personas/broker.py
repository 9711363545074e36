"""Personas in the broker: events of channels, route functions, dispatches, turns and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.broker.batch import Accepted, Batch, ClientRequest, Served
from relay.broker.directory import Member
from relay.broker.door import BrokerFeature, ItemKind
from relay.broker.parts import BrokerParts
from relay.core.message import State
from relay.features.personas import dispatch_rows, evaluation
from relay.features.personas.answers import AnswerDeliveries, followed
from relay.features.personas.channels import Channels
from relay.features.personas.dispatch_rows import DispatchEnds, DispatchState
from relay.features.personas.evaluation import Evaluations
from relay.features.personas.headless_turns import HeadlessTurns
from relay.features.personas.hook_observer import HookObserver
from relay.features.personas.known_personas import Personas
from relay.features.personas.ops_dispatches import DispatchOps
from relay.features.personas.ops_events import EventOps
from relay.features.personas.ops_persons import PersonOps
from relay.features.personas.ops_routes import RouteOps
from relay.features.personas.turn_engine import TurnEngine
from relay.features.personas.workers import WorkerPool
from relay.features.personas.wrapped_turns import WrappedTurns
from relay.ledger.agent_ledger import answers_to
from relay.ledger.schema import Delivery
from relay.protocol.broker import ROWS_MAX, Json
from relay.protocol.message_ops import DeliveryState, MessageSent, Send, StoreEvent, WaitResult
from relay.protocol.turns import TurnResult

_DAY_MS = 86_400_000
#: What the sender of a dispatch is told of it; else it has failed.
_AS_DELIVERED = {
    DispatchState.QUEUED: State.QUEUED,
    DispatchState.RUNNING: State.SEEN,
    DispatchState.DONE: State.SEEN,
}


def feature(parts: BrokerParts) -> PersonasFeature:
    """The feature in the broker."""
    return PersonasFeature(parts)


class PersonasFeature(BrokerFeature):
    """Puts its parts together, and hands on to them."""

    def __init__(self, parts: BrokerParts) -> None:
        kernel = parts.kernel
        self._kernel = kernel
        self.workers = WorkerPool(
            kernel.home, kernel.log, lambda key, said: self._channels.asked(key, said)
        )
        self._events = EventOps(kernel)
        self._channels = Channels(kernel, self.workers, self._events)
        self._answers = AnswerDeliveries(kernel, parts.held, self._channels)
        self.personas = Personas(kernel)
        ends = DispatchEnds(kernel, parts.held, parts.deliveries, self._answers)
        self._wrapped = WrappedTurns(kernel, parts.held, ends)
        carriers = self._wrapped, HeadlessTurns(kernel)
        self.engine = TurnEngine(kernel, self.personas, *carriers, ends)
        self.evaluations = Evaluations(kernel, self.workers, self.engine)
        self._dispatches = DispatchOps(
            kernel, self.engine, ends, self._answers, self.personas, self.evaluations
        )
        self._observer = HookObserver(kernel, self.evaluations, self.workers, parts.hook_runs)
        kernel.committer.observer = self._observer
        self._routes = RouteOps(kernel, self.evaluations)
        self._persons = PersonOps(kernel, self.engine)

    def ops(self) -> list[Served]:
        """The requests of all parts."""
        parts = (self._events, self._persons, self._dispatches, self._routes)
        return [served for part in parts for served in part.ops()]

    def item_kinds(self) -> Mapping[str, ItemKind]:
        """What the person has to do before a persona takes turns."""
        return {"persona": self._dispatches}

    # -- the broker's life

    def restore(self, now_ms: int) -> None:
        """Take up the lanes."""
        self.engine.restore()

    def start(self) -> None:
        """Go on with answers and evaluations, and connect the channels."""
        self._answers.wake()
        self.evaluations.start()
        self._channels.start()

    async def stop(self) -> None:
        """Take no more from channels, and begin no more evaluations."""
        self._channels.close()
        await self._answers.close()

    async def close(self) -> None:
        """End the workers and the headless turns."""
        await self.evaluations.close()
        self._observer.close()
        await self.workers.close()
        await self.engine.close()

    @property
    def busy(self) -> bool:
        """Whether something waits for a turn, a worker or a channel."""
        parts = (self._answers, self.evaluations, self.engine)
        return self._channels.connected or any(one.busy for one in parts)

    def status(self, now_ms: int) -> Json:
        """Channels, configurations that evaluate nothing, and how many dispatches there are."""
        ledger = self._kernel.ledger
        return {
            "channels": self._channels.described(),
            "problems": self.evaluations.problems(),
            "dispatches": dispatch_rows.counts(ledger),
            "needs": [one["details"]["why"] for one in self.personas.waiting()],
            "evaluations": evaluation.counts(ledger, now_ms - _DAY_MS),
        }

    # -- agents

    def came(self, member: Member) -> None:
        """A dispatch may have waited for an agent of this name."""
        self.personas.came(member.name)

    def gone(self, member: Member, batch: Batch) -> None:
        """What a wrapped persona had to do and has not done is settled."""
        self.engine.agent_gone(member.name, batch)

    def wants(self, member: Member) -> Sequence[str]:
        """What route functions and automations listen to."""
        return self.evaluations.wants(member)

    # -- messages and events

    def addressed(
        self, request: ClientRequest[Send], sender: str, thread: str | None, batch: Batch
    ) -> MessageSent | None:
        """A message of the person's to a persona that does not run is a dispatch."""
        return self._dispatches.sent(request, sender, thread, batch)

    def outside(self, request: ClientRequest[StoreEvent], batch: Batch) -> bool:
        """Check and store an event of another channel."""
        self._events.outside(request, batch)
        return True

    def stored(self, messages: Sequence[Accepted], batch: Batch) -> None:
        """What is to be evaluated is due from the commit of the event on."""
        self.evaluations.mark(messages, batch)

    def decided(self, seq: int, batch: Batch) -> None:
        """What the person lets go on is evaluated now."""
        self.evaluations.decided(seq, batch)

    def moved(self, id_: str, sender: str, to: str, new: Delivery, batch: Batch) -> None:
        """A message that carried a dispatch to a wrapped persona may not have arrived."""
        if new.state in (State.FAILED, State.CANCELLED):
            self._wrapped.delivery_ended(id_, new.reason, batch)

    def turn_ended(
        self, ids: list[str], ended: TurnResult, started_ms: int, batch: Batch
    ) -> tuple[set[str], bool]:
        """A wrapped persona has ended a turn."""
        return self._wrapped.reported(ids, ended, started_ms, batch)

    def shown(self, id_: str, seq: int) -> Json:
        """What has followed from an event, and what route functions said of it."""
        ledger = self._kernel.ledger
        return {
            "dispatches": followed(ledger, id_),
            "evaluations": evaluation.of_event(ledger, seq),
        }

    def origin(self, part: str) -> str | None:
        """What a dispatch follows from; by the end of its id only of what is listed."""
        ledger = self._kernel.ledger
        rows = dispatch_rows.rows_of(ledger, [part])
        for dead in (False, True):
            rows += dispatch_rows.listed(ledger, ROWS_MAX, dead=dead, part=part)
        return next((row.event_id for row in rows if row.id.endswith(part)), None)

    def progress(self, id_: str, answer: bool) -> WaitResult | None:
        """How far the dispatches are that follow from an event."""
        ledger = self._kernel.ledger
        dispatches = followed(ledger, id_)
        rows: list[DeliveryState] = []
        for one in dispatches:
            state = _AS_DELIVERED.get(one["state"], State.FAILED)
            rows.append({"to": one["persona"], "state": state.value, "reason": one["reason"]})
        if not answer:
            done = all(one["state"] != State.QUEUED for one in rows)
            return {"id": id_, "done": done, "deliveries": rows}
        done = all(
            one["state"] not in (DispatchState.QUEUED, DispatchState.RUNNING) for one in dispatches
        )
        tries = {one["from"]: one for one in answers_to(ledger, id_)}  # the last counts
        return {"id": id_, "done": done, "deliveries": rows, "answers": list(tries.values())}
