"""The feature in a session: the pattern ``@shout:NAME``."""

from __future__ import annotations

from typing import Any

from relay.hooks.context import Context
from relay.hooks.registry import Registry


def register(registry: Registry, facts: Any) -> None:
    """Add the pattern, as a configuration of the person's would."""
    registry.add_pattern("shout", "*", shout)


def shout(target: str, message: str, ctx: Context) -> None:
    """``@shout:Bob hello`` sends HELLO to Bob, as this agent."""
    ctx.send(target, message.upper())
