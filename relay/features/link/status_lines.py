"""What links say in ``relay status``: see relay.cli.door."""

from __future__ import annotations

import os
import time

from relay.broker.client import connect
from relay.core.errors import RelayError
from relay.core.visible import age, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.core.paths import Home
    from relay.features.link.ops import LinkState


def status_lines(home: Home, cwd: str) -> list[tuple[str, str, str]]:
    """The link, where there is one."""
    if not os.path.exists(os.path.join(home.root, "link", "link.json")):
        return []
    from relay.features.link.ops import LINK

    try:
        with connect(home, start=False) as client:
            state = client.request(LINK)
    except RelayError:
        return [("bad", "no broker runs, so no messages are carried", "relay link starts it")]
    return [_line(state)] if state["name"] else []


def _line(state: LinkState) -> tuple[str, str, str]:
    """A machine that is away is nothing to worry about."""
    now_ms = time.time_ns() // 1_000_000
    here = [one["name"] for one in state["machines"] if one["here"]]
    parts = [f"connected with {', '.join(here)}" if here else "no other machine is connected"]
    for one in state["machines"]:
        if not one["here"]:
            since = "" if one["seen_ms"] is None else f" for {age(now_ms - one['seen_ms'])}"
            parts.append(f"{one['name']} is away{since}")
    if waiting := sum(one["waiting"] for one in state["machines"]):
        parts.append(f"{waiting:,} message{'' if waiting == 1 else 's'} on the way")
    if state["connected"]:
        return "ok", visible("; ".join(parts)), ""
    parts[0] = f"the server ({state['server']}) cannot be reached; messages wait"
    return "ok", visible("; ".join(parts)), visible(state["problem"])
