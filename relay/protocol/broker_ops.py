"""The ops about the broker as a whole: its life, its stream, its ledgers. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.agent_ops import AgentRow
from relay.protocol.op import Any, NotRequired, Op, Record, Request


class Hello(Record):
    """Who answers, and how it sees who asks."""

    protocol: int
    version: str  # see relay.core.build
    program: list[str]  # what starts such a broker: the interpreter, the package's folder
    pid: int
    person: bool  # whether the person asks, not an agent


class BrokerStatus(Record):
    """How the broker is. Features add keys of their own."""

    running: bool
    pid: int
    socket: str
    home: str
    version: str
    uptime_s: float
    connections: int
    counts: dict[str, int]  # deliveries by their state, and how many events there are
    agents: list[AgentRow]
    parked: int  # messages that are held for the person
    inbox: int  # messages to the person that were not seen yet
    automations: NotRequired[dict[str, int]]
    problems: NotRequired[dict[str, str]]  # why configurations evaluate nothing, by path
    dispatches: NotRequired[dict[str, int]]
    answers: NotRequired[dict[str, int]]
    needs: NotRequired[list[str]]  # why personas take no turn before the person has done something
    evaluations: NotRequired[dict[str, int]]  # of the last day


class Stop(Record):
    """The broker ends, once everything that was asked is stored."""

    stopping: bool
    pid: int


class Watch(Request):
    """Follow what happens: rows are pushed from now on.

    An agent sees the rows of agents, and of messages, deliveries, turns and obligations that are
    its own or for it, and a feature's where it is named; with the right ``watch`` those of others,
    too. The person sees all.
    """

    kinds: NotRequired[list[str] | None]  # WATCHED, and the features' own
    agents: NotRequired[list[str] | None]  # names
    after: NotRequired[int | None]  # the ``seq`` of the last row that was had
    epoch: NotRequired[str | None]  # what ``watch`` answered then


class Watched(Record):
    """From where on rows are pushed."""

    epoch: str
    seq: int


class WatchPush(Record):
    """What has happened, for who follows. Each row has seq, at_ms and ``what``, and by that:

    - ``message``: id, from, from_kind, to [names], body, mode, thread, channel, cut? (true: of the
      body it is the beginning)
    - ``delivery``: id, from, to, state, reason, proof; not for one that is simply queued
    - ``agent``: the fields of an AgentRow, was (the state before; null: it is new); not where only
      unread and the times have changed
    - ``turn``: agent, ids (the messages that it answers), text, state, usage {input, output,
      cached} or null, model, started_ms, ended_ms, cut?
    - ``item``: item, open; with ``open`` false also answer, by; again where an open one that was
      told before has new words
    - ``obligation``: id, from, to, why (unanswered, gone)
    - ``gap``: lost (how many rows at most; -1: unknown, it was another broker)
    - what features add
    """

    push: str  # watch
    epoch: str
    rows: list[dict[str, Any]]


class Reindex(Request):
    """One step of making the search index anew."""

    begin: NotRequired[bool]


class Reindexed(Record):
    """How far the index is."""

    indexed: int  # texts
    more: bool


class Compact(Request):
    """One step of compacting the agent ledger: of turns that ended before then, but for the newest
    of each session, only the beginning of what was said stays."""

    before_ms: int
    after: NotRequired[int]  # what the step before it gave
    really: NotRequired[bool]  # without it the turns are only counted


class Compacted(Record):
    """What was, or would be, compacted."""

    turns: int
    characters: int
    after: int | None  # null: that was all


HELLO = Op("hello", Request, Hello)
STATUS = Op("status", Request, BrokerStatus)
STOP = Op("stop", Request, Stop)
WATCH = Op("watch", Watch, Watched)
REINDEX = Op("reindex", Reindex, Reindexed)
COMPACT = Op("compact", Compact, Compacted)
