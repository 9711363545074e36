"""The ops about transcripts of other programs. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import Any, NotRequired, Op, Record, Request


class Ingested(Request):
    """How far a transcript was read. Not for agents."""

    path: str


class IngestedPlace(Record):
    """Where to go on."""

    offset: int | None  # null: it was never read
    inode: NotRequired[str]
    state: NotRequired[dict[str, Any]]  # what the reader must know to go on


class Ingest(Request):
    """Store what was read of a transcript.

    Refused as ``changed`` where the file was read on meanwhile. Not for agents.
    """

    path: str
    source: str  # of relay.protocol.past_turns.SOURCES
    known: int | None  # the offset that ``ingested`` answered
    inode: str
    offset: int
    state: dict[str, Any]
    rows: dict[str, Any]  # of relay.protocol.past_turns.PastTurns


class IngestAnswer(Record):
    """How many rows are new."""

    duplicate: bool
    turns: int
    messages: int
    calls: int


INGESTED = Op("ingested", Ingested, IngestedPlace)
INGEST = Op("ingest", Ingest, IngestAnswer)
