"""What automations say in ``relay status``: see relay.cli.door."""

from __future__ import annotations

import os

from relay.broker.client import connect
from relay.broker.start import NONE_RUNS
from relay.core.errors import BrokerUnavailable, RelayError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.core.paths import Home

_ACTIVE = "SELECT count(*), count(next_tick_ms) FROM automations WHERE status='active'"


def status_lines(home: Home, cwd: str) -> list[tuple[str, str, str]]:
    """How many automations stand still because no broker runs. A broker counts them itself."""
    try:
        connect(home, start=False).close()
        return []
    except BrokerUnavailable as error:
        if error.code != NONE_RUNS or not os.path.exists(home.ledger):
            return []
    from relay.ledger.reading import query  # which imports much

    try:
        [(active, waiting)] = query(home.ledger, _ACTIVE, 1).rows
    except RelayError:  # of a version that knows none
        return []
    if not active:
        return []
    clock = f", {waiting} of them with a schedule" if waiting else ""
    stand = "stands" if active == 1 else "stand"
    text = f"no broker runs, so {active} {stand} still{clock}"
    return [
        ("bad", text, "relay automation list starts it; relay broker install keeps one running")
    ]
