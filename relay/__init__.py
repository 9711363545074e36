"""relay: wrap the command-line programs of coding agents so that they can talk to each other.

``from relay import Relay`` is the programmatic door. It is resolved on first use, because
``relay wrap`` starts through this package and must not pay for what it does not use.

Everything of relay begins with this file, also under a Python that is too old for the rest: so it
is written in what Python 2.7 can read.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older one meets first
    sys.exit(
        "relay: Python 3.11 or newer is needed, and this is %s (%s). Run the same line with a newer"
        " one, for example python3.12" % (sys.version.split()[0], sys.executable)
    )

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401 - for a comment that says a type

    from relay.app.relay import Relay as Relay
    from relay.core.dispatch import AddedContext as AddedContext
    from relay.core.dispatch import DeliveryContext as DeliveryContext
    from relay.core.dispatch import Event as Event
    from relay.core.dispatch import HookResult as HookResult
    from relay.core.dispatch import HookRouting as HookRouting
    from relay.core.dispatch import PermissionSet as PermissionSet
    from relay.core.message import QueueMode as QueueMode

#: The kernel's. A feature has its names in ``PUBLIC`` of its package; ``from relay import *`` gets
#: those of relay's own features, too.
_NAMES = [
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


def __getattr__(name):
    # type: (str) -> Any
    if name == "Relay":
        from relay.app.relay import Relay

        return Relay
    if name == "QueueMode":
        from relay.core.message import QueueMode

        return QueueMode
    if name in _NAMES:
        from relay.core import dispatch

        return getattr(dispatch, name)
    if name == "__all__":
        from relay.core.features import modules

        own = [one.module for one in modules("") if one.feature.is_own]
        return _NAMES + [added for module in own for added in getattr(module, "PUBLIC", {})]
    if not name.startswith("_"):
        from relay.core.features import named

        given = named("PUBLIC", name)
        if given is not None:
            return given
    raise AttributeError("module 'relay' has no attribute %r" % name)
