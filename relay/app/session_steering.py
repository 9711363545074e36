"""Steer mode in one session: what an agent can take into its running turn, and how it is known."""

from __future__ import annotations

from collections.abc import Callable

from relay.agents.injection_proof import InjectionProof
from relay.core.message import Message, State
from relay.core.source_events import Proof, StateChange
from relay.directive.envelope import envelope
from relay.session.delivery import DeliveryQueue
from relay.session.session import Session
from relay.session.steering import Steering


class Steered:
    """Stands between the sources and the session, and tells the steering what they say, too.

    ``steering`` is None for an agent that gets nothing with the answers to its hooks.
    """

    def __init__(
        self,
        session: Session,
        courier: DeliveryQueue,
        records: InjectionProof | None,
        namespaces: frozenset[str],
        clock: Callable[[], float],
    ) -> None:
        """``records``: see relay.session.steering; None where the agent has none."""
        self._session = session
        self.steering: Steering | None = None
        if records is not None:
            self.steering = Steering(
                courier,
                records,
                lambda message: envelope(message, style="paste", namespaces=namespaces),
                session.reports.delivery,
                session.spawn,
                clock,
            )

    def state_changed(self, change: StateChange) -> None:
        """See Session."""
        self._session.state_changed(change)
        if self.steering is not None:
            self.steering.rested(change.state)

    def proof(self, proof: Proof) -> None:
        """See Session."""
        self._session.proof(proof)
        if self.steering is not None and proof.by != "screen":
            self._seen(self.steering.proven(proof.text, proof.by))

    def heard_elsewhere(self) -> None:
        """See Session."""
        self._session.heard_elsewhere()
        if self.steering is not None:
            self._seen(self.steering.heard())

    def _seen(self, found: list[tuple[Message, str]]) -> None:
        for message, by in found:
            self._session.spawn(self._session.reports.delivery(message, State.SEEN, "", by))
