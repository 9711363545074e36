"""What channels add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from relay.broker.client import connect
from relay.core.paths import Home


def _channels() -> list[str]:
    with connect(Home.from_env(), start=False) as client:
        return [one["channel"][1:] for one in client.request("channels")["rows"]]


NAMES = {"channels": _channels}
