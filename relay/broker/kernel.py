"""What the parts of the broker share. The server makes it first."""

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
from relay.core.log import Log
from relay.core.paths import Home
from relay.ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class Kernel:
    """All of it belongs to the broker's loop."""

    home: Home
    ledger: Ledger
    #: Commits requests and the broker's own jobs in groups.
    committer: Committer
    #: Agents, persons, and the identity of clients.
    directory: Directory
    #: The configurations that the person trusts.
    configs: TrustedConfigs
    #: The rights of agents.
    rights: Rights
    #: Offers deliveries to the sessions of their receivers.
    windows: DeliveryWindows
    #: The followers of the stream of rows.
    watchers: Watchers
    #: What the installed features add.
    features: Features
    log: Log
    #: Milliseconds since the epoch.
    now_ms: Callable[[], int]
    #: Ends the broker in an orderly way.
    stop: Callable[[], None]
