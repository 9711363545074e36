"""The op about what agents cost. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import NotRequired, Op, Record, Request


class Usage(Request):
    """The tokens that were used since a time. Not for agents."""

    since_ms: NotRequired[int]


class UsageRow(Record):
    """What an agent has used of a model on a day, for one task."""

    agent: str
    day: str
    task: str  # the id of the message that it was at work on
    about: str | None  # the beginning of that message
    model: str
    input: int
    output: int
    cached: int
    written: int


class UsageAnswer(Record):
    """The newest day first."""

    rows: list[UsageRow]
    more: bool
    caps: dict[str, float]  # US dollars a day, by names of agents


USAGE = Op("usage", Usage, UsageAnswer)
