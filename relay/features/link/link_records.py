"""What travels between the brokers of linked machines, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class FarMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message on its way. ``before``: the number of the one before it; 0: all are stored."""

    n: int
    before: int
    id: str
    sender: str
    to: list[str]
    body: str
    mode: str | None = None
    thread: str | None = None
    hops: int = 0
    person: bool = False


class FarState(msgspec.Struct):
    """The state of a message at its receiver."""

    id: str
    to: str
    state: str
    reason: str | None = None


class Receipts(msgspec.Struct):
    """Receipts: ids that are ``stored``, states of deliveries, and ids that are asked about."""

    stored: list[str] = []
    rows: list[FarState] = []
    asked: list[str] = []


class Presence(msgspec.Struct):
    """The agents of a machine, and its clock (seconds since the epoch, perhaps wrong).
    ``machines``: all machines of the link, said by its host alone."""

    agents: list[str] = []
    clock: float = 0.0
    machines: list[str] | None = None


class LiveRequest(msgspec.Struct):
    """A request that is never stored. ``until``: by the clock of the machine that is asked, which
    drops it later than that. Seconds since the epoch. ``person``: who asks, as the machine that
    asks says."""

    op: str
    fields: dict[str, Any]
    until: float
    person: str = ""


class LiveAnswer(msgspec.Struct):
    """The answer of that machine's broker, or the fields of its error."""

    answer: dict[str, Any] = {}
    error: dict[str, Any] | None = None
