"""``@relay:``: makes the request to the broker of what an agent said."""

from __future__ import annotations

import re
from typing import Any

from relay.core.message import QueueMode
from relay.directive.grammar import Match
from relay.hooks.context import Context
from relay.hooks.registry import BUILTIN, Registry

_AWAIT = re.compile(r"(\d{1,5})(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600, None: 1}
#: The longest time that ``[await:…]`` may wait for an answer, in seconds.
AWAIT_MAX = 24 * 3600


#: Commands of agents to relay itself, and the broker's op for each.
COMMANDS = {"join": "channel_join", "leave": "channel_leave", "presence": "presence"}


def register(registry: Registry) -> None:
    """Add relay's own handler; what the user's configuration overrides does not run."""
    registry.add_pattern("relay", "*", relay, source=BUILTIN)


def relay(target: str, message: str, ctx: Context) -> None:
    """Send ``message``, in its place among the user's handlers of the same match."""
    ctx.relay.send(target, message)


def is_command(match: Match) -> bool:
    """Whether it is a command to relay itself, no message: ``@relay:join #build``."""
    return match.target.lower() in COMMANDS


def send_fields(match: Match, message_id: str) -> dict[str, Any]:
    """The broker's ``send`` for what an agent said, with its attributes; or an op to ``ask``."""
    if is_command(match):
        words = match.body.replace(",", " ").split()
        off = words[:1] == ["off"]
        about = {"channel": match.body, "who": words[off:], "off": off}
        op = COMMANDS[match.target.lower()]
        return {"id": message_id, "to": [match.target], "body": match.body, "ask": op, **about}
    return {
        "id": message_id,
        "to": [name for name in match.target.split(",") if name],
        "body": match.body,
        # The broker knows the modes, and refuses any other.
        "mode": match.attributes.get("mode", QueueMode.FOLLOWUP.value).lower(),
        "thread": match.attributes.get("thread"),
        "re": match.attributes.get("re"),
        **({"await": True} if await_seconds(match) is not None else {}),
    }


def await_seconds(match: Match) -> float | None:
    """``[await:30s]`` -> 30.0; None without it, or when it is no duration."""
    text = match.attributes.get("await", "")
    parsed = _AWAIT.fullmatch(text)
    if parsed is None:
        return None
    return float(min(int(parsed[1]) * _UNITS[parsed[2]], AWAIT_MAX))
