"""Automations in the broker: what is registered, what runs, and the clock that it runs by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from relay.broker.batch import Served
from relay.broker.door import BrokerFeature
from relay.broker.parts import BrokerParts
from relay.features.automations import automation_rows
from relay.features.automations.automations import Automations
from relay.features.automations.clock import Clock
from relay.features.automations.ops_automations import AutomationOps
from relay.features.personas.broker import PersonasFeature
from relay.protocol.broker import Json

#: It handles events before route functions do, and dispatches to personas.
AFTER = ("personas",)


def feature(parts: BrokerParts) -> AutomationsFeature:
    """The feature in the broker. Raises LookupError without personas."""
    return AutomationsFeature(parts, parts.find(PersonasFeature))


class AutomationsFeature(BrokerFeature):
    """Puts its parts together, and hands on to them."""

    def __init__(self, parts: BrokerParts, personas: PersonasFeature) -> None:
        self._kernel = parts.kernel
        kernel, evaluations = parts.kernel, personas.evaluations
        self._automations = Automations(kernel, evaluations, personas.engine, personas.workers)
        evaluations.others = self._automations
        registry = self._automations.runs.registry
        self._clock = Clock(kernel, registry, evaluations)
        self._ops = AutomationOps(kernel, self._automations, self._clock, personas.personas)

    def ops(self) -> list[Served]:
        """To register, switch, try and look at automations."""
        return self._ops.ops()

    def start(self) -> None:
        """Go on with what is due, and start the clock."""
        self._automations.start()
        self._clock.look()

    async def stop(self) -> None:
        """Stop the clock."""
        self._clock.close()

    async def close(self) -> None:
        """End what runs; the next broker runs it again."""
        await self._automations.close()

    @property
    def busy(self) -> bool:
        """Whether something runs, or a tick is waited for."""
        return self._automations.busy or self._clock.busy

    def delays(self, seq: int) -> Callable[[], Awaitable[object]] | None:
        """Blocking automations may still add something to a message."""
        return self._automations.delays(seq)

    def context(self, seq: int) -> str:
        """What automations have added to a message."""
        return self._automations.context(seq)

    def status(self, now_ms: int) -> Json:
        """How many automations there are, by their status."""
        unusable = self._automations.runs.registry.problems
        return {"automations": automation_rows.counts(self._kernel.ledger, unusable)}
