"""relay: wrap the command-line programs of coding agents so that they can talk to each other.

``from relay import Relay`` is the programmatic door. It is resolved on first use, because
``relay wrap`` starts through this package and must not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.app.relay import Relay
    from relay.core.dispatch import (
        AddedContext,
        DeliveryContext,
        Event,
        HookResult,
        HookRouting,
        PermissionSet,
    )
    from relay.core.message import QueueMode
    from relay.features.automations.definition import Automation, AutomationResult
    from relay.features.governance.own_tools import (
        GovernedTools,
        HookBlocked,
        end_turn,
        govern,
        governed,
        intent_rules,
        select_intent,
    )

__all__ = [
    "AddedContext",
    "Automation",
    "AutomationResult",
    "DeliveryContext",
    "Event",
    "GovernedTools",
    "HookBlocked",
    "HookResult",
    "HookRouting",
    "PermissionSet",
    "QueueMode",
    "Relay",
    "__version__",
    "end_turn",
    "govern",
    "governed",
    "intent_rules",
    "select_intent",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'relay' has no attribute {name!r}")
    if name == "Relay":
        from relay.app.relay import Relay

        return Relay
    if name == "QueueMode":
        from relay.core.message import QueueMode

        return QueueMode
    if name.startswith("Automation"):
        from relay.features.automations import definition

        return getattr(definition, name)
    if name in ("GovernedTools", "HookBlocked") or name.islower():
        from relay.features.governance import own_tools

        return getattr(own_tools, name)
    from relay.core import dispatch

    return getattr(dispatch, name)
