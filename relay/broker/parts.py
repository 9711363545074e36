"""The parts of the broker that features get, and how features are opened: see relay.broker.door."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.ops_hooks import HookRuns, SessionRequests
from relay.broker.ops_messages import MessageOps
from relay.core.errors import RelayError, StorageError
from relay.core.features import Feature, module_of, modules
from relay.ledger.feature_tables import migrate
from relay.ledger.store import Ledger

Opened = TypeVar("Opened", bound=BrokerFeature)


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of the broker that features may call. All of it belongs to the broker's loop."""

    kernel: Kernel
    #: Stores and routes messages.
    messages: MessageOps
    #: Changes the states of deliveries.
    deliveries: DeliveryOps
    #: Messages that wait for the person's decision.
    held: HeldMessages
    #: Sends requests to sessions.
    sessions: SessionRequests
    #: The log of hooks.
    hook_runs: HookRuns
    #: The features that were opened before.
    features: list[BrokerFeature] = field(default_factory=list)

    def find(self, kind: type[Opened]) -> Opened:
        """The feature of a class, for one that is built on it. Raises LookupError."""
        for feature in self.features:
            if isinstance(feature, kind):
                return feature
        raise LookupError(f"the feature {kind.__name__} is not there")


def open_features(parts: BrokerParts) -> list[BrokerFeature]:
    """Open the installed features. One that fails is named in the log, and left out.

    A feature's module ``tables`` has ``MIGRATIONS`` of tables of its own in the ledger.
    A module that says ``AFTER = (NAME, …)`` is built on those features, and comes later. Raises
    StorageError."""
    log = parts.kernel.log
    every = sorted(
        modules("broker"), key=lambda one: (not one.feature.is_own, hasattr(one.module, "AFTER"))
    )
    for module in every:  # relay's own first: nobody takes an op of theirs
        if module.module is None:
            log.write(f"{module.problem}\n{module.trace}")
            continue
        try:
            _make_tables(module.feature, parts.kernel.ledger)
            parts.features.append(module.module.feature(parts))
        except StorageError:
            raise
        except Exception as error:
            log.fault()
            log.write(f"the feature {module.feature.name} could not be opened: {error}")
    return parts.features


def _make_tables(feature: Feature, ledger: Ledger) -> None:
    tables = module_of(feature, "tables")
    if tables is None:
        return
    if tables.module is None:
        raise RelayError(tables.problem)
    migrate(ledger, feature.name, tables.module.MIGRATIONS)
