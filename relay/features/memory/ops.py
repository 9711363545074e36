"""The ops about memories. See relay.protocol.op.

An agent's memories, its project and its store are those of its registration: what it says of
``store``, ``cwd`` and ``secrets`` is dropped.
"""

from __future__ import annotations

from relay.protocol.op import Any, NotRequired, Op, Record, Request


class StoreRequest(Request):
    """What every request about memories may have."""

    store: NotRequired[dict[str, Any]]  # what finds by meaning; left out: the default store


class Where(Record):
    """Where memories are; a save without ``scope`` is for the project."""

    scope: NotRequired[str | None]  # user, project, agent; left out: all that apply
    agent: NotRequired[str | None]  # whose own memories are meant
    cwd: NotRequired[str | None]  # an absolute path; its repository is the project


class MemoryRow(Record):
    """A memory."""

    id: str
    text: str
    scope: str  # of relay.features.memory.records.Scope
    owner: str  # the repository, the agent; "" for the user
    agent: str | None  # who saved it; null: a person
    session: str | None  # the run in which that was
    created_ms: int
    updated_ms: int
    supersedes: str | None  # the id of the memory that this one replaces
    meta: dict[str, Any]


class OneMemory(Record):
    """The memory that is meant."""

    memory: MemoryRow


# -- save, search, list


class MemorySave(StoreRequest, Where):
    """Save a memory."""

    text: str
    supersedes: NotRequired[str | None]  # what it replaces: an id, or its beginning
    secrets: NotRequired[str | None]  # redact, refuse, keep
    meta: NotRequired[dict[str, Any]]


class MemorySaved(OneMemory):
    """The memory as it is then."""

    outcome: str  # of relay.features.memory.records.Outcome
    redacted: list[str]  # the kinds of secrets that were left out
    former: NotRequired[str | None]  # the text that an update replaced


class MemorySearch(StoreRequest, Where):
    """Find memories."""

    query: str
    limit: NotRequired[int]


class MemoryHit(MemoryRow):
    """A memory that was found."""

    score: float  # from 0 to 1
    tier: str  # how it was found: words, hybrid


class MemoryHits(Record):
    """The best first."""

    memories: list[MemoryHit]
    problem: NotRequired[str]  # why not all could be read


class MemoryQuery(StoreRequest, Where):
    """The newest memories, or those before one of an earlier page."""

    limit: NotRequired[int]
    before_ms: NotRequired[int | None]  # its ``updated_ms``
    before_id: NotRequired[str | None]


class MemoryRows(Record):
    """The newest first."""

    memories: list[MemoryRow]
    more: bool
    problem: NotRequired[str]  # why not all could be read


# -- get, forget


class MemoryGet(StoreRequest):
    """One memory."""

    id: str  # or its beginning


class MemoryForget(StoreRequest):
    """Remove a memory for good."""

    id: str  # or its beginning


# -- stats


class MemoryStatsQuery(StoreRequest):
    """How many there are, where, and how they are searched."""


class IndexFilled(Record):
    """The index behind the store."""

    title: str
    filled: int | None  # how many memories it has; null: relay does not fill it
    total: int | None  # … of so many


class PlaceCount(Record):
    """The memories of one place."""

    scope: str
    owner: str
    count: int


class Extractions(Record):
    """The last words of sessions, of which a model says what is worth keeping."""

    waiting: int
    failed: int
    last_error: str | None


class StoreStats(Record):
    """What a store holds; for an agent, in the places that it may see."""

    backend: str
    tier: str
    embedder: str | None
    problem: str | None  # why the tier is not what it could be
    pending: int  # memories that are not found by meaning yet
    index: IndexFilled | None
    size: int  # bytes on the disk
    store: dict[str, Any]  # without its secrets
    folder: str
    count: int
    places: list[PlaceCount]


class MemoryStats(StoreStats):
    """What the store holds, and what waits for a model."""

    extractions: Extractions


# -- export, import


class LastExported(Record):
    """The last memory of a page."""

    scope: str
    owner: str
    id: str


class MemoryExport(StoreRequest):
    """A page of all memories. Not for agents."""

    after: NotRequired[LastExported | None]  # of the page before it; null: the first page


class MemoryPage(Record):
    """Ordered by place and id."""

    memories: list[MemoryRow]
    after: LastExported | None
    more: bool  # there may be; a page that is empty is the end


class MemoryImport(StoreRequest):
    """Store memories of an export. Not for agents."""

    memories: list[dict[str, Any]]


class MemoryImported(Record):
    """What became of them."""

    new: int
    same: int  # they were there
    conflicting: int  # they are there with another content, which stays


# -- extract


class MemoryExtract(StoreRequest):
    """Let a model say what of an agent's last words is worth keeping. For a session."""

    text: str
    llm: dict[str, str]  # the model; with ``api_key``, which is not stored


class MemoryExtracted(Extractions):
    """It is on the disk."""

    duplicate: bool  # it was there, or done, already


MEMORY_SAVE = Op("memory_save", MemorySave, MemorySaved)
MEMORY_SEARCH = Op("memory_search", MemorySearch, MemoryHits)
MEMORY_GET = Op("memory_get", MemoryGet, OneMemory)
MEMORY_LIST = Op("memory_list", MemoryQuery, MemoryRows)
MEMORY_FORGET = Op("memory_forget", MemoryForget, OneMemory)
MEMORY_STATS = Op("memory_stats", MemoryStatsQuery, MemoryStats)
MEMORY_EXPORT = Op("memory_export", MemoryExport, MemoryPage)
MEMORY_IMPORT = Op("memory_import", MemoryImport, MemoryImported)
MEMORY_EXTRACT = Op("memory_extract", MemoryExtract, MemoryExtracted)

OPS = (
    *(MEMORY_SAVE, MEMORY_SEARCH, MEMORY_GET, MEMORY_LIST, MEMORY_FORGET),
    *(MEMORY_STATS, MEMORY_EXPORT, MEMORY_IMPORT, MEMORY_EXTRACT),
)
