"""What the parts of the broker share: the server makes it first, and each part takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relay.broker.agent_rights import Rights
from relay.broker.committer import Committer
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory
from relay.broker.door import Features
from relay.broker.trusted_configs import TrustedConfigs
from relay.broker.watchers import Watchers
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class Kernel:
    """All of it belongs to the broker's loop."""

    home: Home
    ledger: Ledger
    #: Commits requests and the broker's own jobs in groups.
    committer: Committer
    #: Who is known, and who asks.
    directory: Directory
    #: The configurations that the person trusts.
    configs: TrustedConfigs
    #: What agents may do.
    rights: Rights
    #: What each receiver is offered next.
    windows: DeliveryWindows
    #: Who follows the stream of rows.
    watchers: Watchers
    #: What the installed features add.
    features: Features
    #: Adds a line to the broker's log.
    log: Callable[[str], None]
    #: Logs the exception in flight, and returns what a client is told of it.
    fault: Callable[[], RelayError]
    #: Milliseconds since the epoch.
    now_ms: Callable[[], int]
    #: Ends the broker in an orderly way.
    stop: Callable[[], None]
