"""What automations add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from relay.broker.client import connect
from relay.core.paths import Home


def _automations() -> list[str]:
    with connect(Home.from_env(), start=False) as client:
        return [one["name"] for one in client.request("automations")["rows"]]


NAMES = {"automations": _automations}
