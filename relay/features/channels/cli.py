"""What channels add to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

from relay.broker.client import connect
from relay.core.paths import Home
from relay.features.channels.ops import CHANNELS


def _channels() -> list[str]:
    with connect(Home.from_env(), start=False) as client:
        return [one["channel"][1:] for one in client.request(CHANNELS)["rows"]]


NAMES = {"channels": _channels}
