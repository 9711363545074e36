"""What a feature of the broker is made of: see relay.broker.door."""

from __future__ import annotations

from dataclasses import dataclass

from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.ops_hooks import HookRuns, SessionRequests
from relay.broker.ops_messages import MessageOps


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The parts of the broker that features may call. All of it belongs to the broker's loop."""

    kernel: Kernel
    #: Stores and routes messages.
    messages: MessageOps
    #: Moves deliveries on, and tells those who wait for them.
    deliveries: DeliveryOps
    #: What waits for the person's decision.
    held: HeldMessages
    #: Asks sessions.
    sessions: SessionRequests
    #: How hooks ran.
    hook_runs: HookRuns
