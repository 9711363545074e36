"""relay: wrap the command-line programs of coding agents so that they can talk to each other.

``from relay import Relay`` is the programmatic door. It is resolved on first use, because
``relay wrap`` starts through this package and must not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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

#: What features add is not here: each has its names in ``PUBLIC`` of its package.
__all__ = [
    "AddedContext",
    "DeliveryContext",
    "Event",
    "HookResult",
    "HookRouting",
    "PermissionSet",
    "QueueMode",
    "Relay",
    "__version__",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Relay":
        from relay.app.relay import Relay

        return Relay
    if name == "QueueMode":
        from relay.core.message import QueueMode

        return QueueMode
    if name in __all__:
        from relay.core import dispatch

        return getattr(dispatch, name)
    if not name.startswith("_"):
        from relay.core.features import named

        if (given := named("PUBLIC", name)) is not None:
            return given
    raise AttributeError(f"module 'relay' has no attribute {name!r}")
