"""The ``turn`` op: a wrapped agent's session reports the end of a turn that somebody waits for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from relay.broker.batch import Batch, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.obligations import Obligations
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.ops_spawn import SpawnOps
from relay.core.dispatch import MAIN_SESSION
from relay.core.errors import NotFound, UsageError
from relay.core.ids import derived_ulid
from relay.ledger.agent_ledger import TurnPrompt, add_turn, answered, session_of
from relay.ledger.schema import SENDER
from relay.protocol.message_ops import TURN, TurnReport, TurnStored
from relay.protocol.turns import TurnResult

#: Messages that one turn can answer.
IDS_MAX = 1000


class TurnOps:
    """Stores the turns that sessions report, and answers the clients that wait for them."""

    def __init__(
        self,
        kernel: Kernel,
        deliveries: DeliveryOps,
        obligations: Obligations,
        spawns: SpawnOps,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._deliveries = deliveries
        self._features = kernel.features
        self._obligations = obligations
        self._watchers = kernel.watchers
        self._spawns = spawns

    def ops(self) -> list[Served]:
        """The op."""
        return [serve(TURN, self.turn)]

    def turn(self, request: ClientRequest[TurnReport], batch: Batch) -> TurnStored:
        """A turn is over. A repeated report, after a kill, changes nothing."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only an agent's registered session can report its turn")
        fields = request.fields
        ids, started_ms = fields["ids"], fields["started_ms"]
        if not 0 < len(ids) <= IDS_MAX:
            raise UsageError("a turn is reported with the ids of its messages")
        ended = TurnResult.from_json(fields)
        told = list(dict.fromkeys(ids))
        found = {id_: self._asked(id_, member.name) for id_ in told}
        asked = {id_: prompt for id_, (prompt, _) in found.items()}
        self._ledger.begin()
        dispatched, fresh = self._features.turn_ended(told, ended, started_ms, batch)
        plain = {one.event: one for id_, one in asked.items() if id_ not in dispatched}
        if plain:
            fresh |= self._answered(member.name, plain, ended, started_ms, batch.now_ms)
            self._obligations.turn_ended(member, plain, ended, batch)
        for id_ in told:
            batch.after.append(partial(self._deliveries.answered, id_))
        if fresh:
            askers = {sender for _, sender in found.values()}
            watched = partial(self._watchers.turn, member.name, told, askers, ended, started_ms)
            batch.after.append(watched)
        return {"duplicate": not fresh}

    def agent_gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended: settle the answers that it owes."""
        self._features.gone(member, batch)
        self._obligations.gone(member, batch)
        self._spawns.gone(member, batch)

    def _answered(
        self,
        name: str,
        asked: Mapping[int, TurnPrompt],
        ended: TurnResult,
        started_ms: int,
        now_ms: int,
    ) -> bool:
        """Store a turn that answers messages to an agent. False: it is stored already."""
        session = session_of(self._ledger, name, MAIN_SESSION, now_ms)
        done = answered(self._ledger, session, list(asked))
        fresh = [one for event, one in asked.items() if event not in done]
        if fresh:
            # Derived, so that a report that is repeated with other messages is no second turn.
            turn = derived_ulid(now_ms, "turn", session, str(fresh[0].event))
            add_turn(
                *(self._ledger, session, turn, fresh, ended),
                started_ms=started_ms,
                now_ms=now_ms,
            )
        return bool(fresh)

    def _asked(self, id_: str, recipient: str) -> tuple[TurnPrompt, str]:
        """The prompt of a turn, and who sent it."""
        row = self._ledger.row(
            f"SELECT e.seq, ifnull(e.body,''), e.created_ms, {SENDER} FROM events e"
            " JOIN deliveries d ON d.event=e.seq WHERE e.id=? AND d.recipient=?",
            (id_, recipient),
        )
        if row is None:
            raise NotFound(f"no message {id_} was sent to {recipient}")
        return TurnPrompt(*row[:3]), str(row[3])
