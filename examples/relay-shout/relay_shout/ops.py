"""The ops ``shout`` and ``shout_counts``."""

from __future__ import annotations

from relay.protocol.messages import MessageSent
from relay.protocol.op import Op, Record, Request


class Shout(Request):
    """Send a message in capitals."""

    to: str
    body: str


class ShoutCount(Record):
    """How often an agent, or the person, has shouted."""

    name: str
    shouts: int


class ShoutCounts(Record):
    """Who has shouted how often."""

    rows: list[ShoutCount]


SHOUT = Op("shout", Shout, MessageSent)
SHOUT_COUNTS = Op("shout_counts", Request, ShoutCounts)
