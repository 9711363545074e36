"""What automations add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from relay.broker.client import connect
from relay.core.paths import Home
from relay.features.automations.ops import AUTOMATIONS


def _automations() -> list[str]:
    with connect(Home.from_env(), start=False) as client:
        return [one["name"] for one in client.request(AUTOMATIONS)["rows"]]


NAMES = {"automations": _automations}
