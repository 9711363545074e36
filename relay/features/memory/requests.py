"""What the memory service is asked for: fields are checked, places found, answers made.

An agent's project is where its run was registered, whatever folder it says that it works in; a
person's is that of the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict, TypeVar

from relay.core.errors import NotFound, RelayError, StorageError, UsageError, did_you_mean
from relay.core.paths import repository_of
from relay.directive import redact
from relay.features.memory import rules
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.ops import (
    MEMORY_EXPORT,
    MEMORY_FORGET,
    MEMORY_GET,
    MEMORY_IMPORT,
    MEMORY_LIST,
    MEMORY_SAVE,
    MEMORY_SEARCH,
    MEMORY_STATS,
    LastExported,
    MemoryHit,
    MemoryHits,
    MemoryImported,
    MemoryPage,
    MemoryRow,
    MemoryRows,
    MemorySaved,
    OneMemory,
    StoreStats,
)
from relay.features.memory.records import (
    ORIGIN,
    Memory,
    Outcome,
    Place,
    Scope,
    from_json,
    may_replace,
    origin,
    to_json,
)
from relay.features.memory.rules import (
    LIMIT_MAX,
    Secrets,
    check_limit,
    clean_meta,
    clean_text,
    new_id,
)
from relay.features.memory.store_access import StoreAccess

Json = dict[str, Any]

#: How many memories an answer has when the request does not say.
LIMIT = 10


class MemoryRequest:
    """One request. Its fields are of the types that its op describes; their values are checked as
    they are asked for: UsageError says what is wrong."""

    def __init__(
        self,
        fields: Json,
        agent: str | None,
        run: str | None,
        now_ms: int,
        project: str | None = None,
    ) -> None:
        """``project``: of the agent that asks, where it has one; its root."""
        self.fields = fields
        self.agent = agent
        self.run = run
        self.now_ms = now_ms
        self.own_project = project

    def new_id(self) -> str | None:
        """The id for what is saved, from ``save_token``: the same when the request is repeated."""
        token = self.fields.get("save_token")
        return None if token is None else new_id(bytes.fromhex(token))

    def after(self) -> tuple[Place, str] | None:
        """Where a page of an export begins: the ``after`` of the one before it."""
        after: LastExported | None = self.fields.get("after")
        if after is None:
            return None
        try:
            return Place(Scope(after["scope"]), after["owner"]), after["id"]
        except ValueError:
            raise UsageError("'after' must be what the previous page gave") from None

    def limit(self) -> int:
        """How many memories are wanted."""
        limit = self.fields.get("limit")
        return LIMIT if limit is None else check_limit(limit)

    def meta(self) -> dict[str, Any] | None:
        """What else is to be kept, or None. Where it comes from is written here, and nowhere else:
        what a saver gives under that name is left out."""
        meta: dict[str, Any] | None = self.fields.get("meta")
        if self.agent is None:
            return meta and {key: value for key, value in meta.items() if key != ORIGIN}
        return {**(meta or {}), ORIGIN: origin(self.own_project)}

    def secrets(self) -> Secrets:
        """What is done with secrets in the text."""
        word = self.fields.get("secrets") or Secrets.REDACT
        try:
            return Secrets(word)
        except ValueError:
            raise UsageError(
                f"secrets are not {word!r}",
                hint=f"give one of {', '.join(Secrets)}",
            ) from None

    def place(self) -> Place:
        """Where a save goes: the project unless it says otherwise."""
        return self._place(self._scope() or Scope.PROJECT)

    def places(self) -> Sequence[Place]:
        """Where to look: all that apply, or the one scope that is asked for; ``all``: anywhere
        that this one may look."""
        scope = self._scope()
        if scope is not None:
            return [self._place(scope)]
        return applying(self._whose(), self._project())

    def may_read(self, place: Place) -> bool:
        """Whether its searches look there, too."""
        if self.agent is None or place.scope is Scope.USER:
            return True
        own = self.own_project if place.scope is Scope.PROJECT else self.agent.lower()
        return place.owner == own

    def check_change(self, memory: Memory) -> None:
        """Raises RelayError when the agent may not forget or replace ``memory``, which it can read:
        it is everybody's, and this agent has not saved it here."""
        if self.agent is not None and not may_replace(memory, self.agent, origin(self.own_project)):
            raise RelayError(
                "that memory is for every project, and this agent has not saved it here",
                hint="save what is true of this project for the project, or ask the person",
                code="forbidden",
            )

    def only_person(self, what: str, how: str) -> None:
        """Raises RelayError inside of an agent."""
        if self.agent is not None:
            raise RelayError(
                f"an agent may not {what}: memories are others' too",
                hint=f"the person does that: relay memory {how}",
                code="forbidden",
            )

    def _whose(self) -> str | None:
        """Whose own memories are meant: the agent's that asks, or those that a person names."""
        named: str | None = self.fields.get("agent")
        if self.agent is not None and named and named.lower() != self.agent.lower():
            raise RelayError(
                f"{self.agent} cannot see or change what is {named[:80]}'s own",
                hint=f"ask {named[:80]}, or the person",
                code="forbidden",
            )
        return named or self.agent

    def _scope(self) -> Scope | None:
        word: str | None = self.fields.get("scope")
        if word is None:
            return None
        try:
            return Scope(word.lower())
        except ValueError:
            raise UsageError(
                f"there is no scope {word[:40]!r}",
                hint=did_you_mean(word[:40], [scope.value for scope in Scope]),
            ) from None

    def _place(self, scope: Scope) -> Place:
        if scope is Scope.USER:
            return Place(scope)
        if scope is Scope.AGENT:
            name = self._whose()
            if name is None:
                raise UsageError("whose own memories? no agent is named", hint="give --agent NAME")
            return Place(scope, name)
        project = self._project()
        if project is None:
            raise UsageError(
                "there is no project here: the folder's name is missing, or no Unicode",
                hint="give the scope user",
            )
        return Place(scope, project)

    def _project(self) -> str | None:
        if self.agent is not None:
            return self.own_project
        cwd: str | None = self.fields.get("cwd")
        if cwd is not None and (not os.path.isabs(cwd) or "\0" in cwd):
            raise UsageError(f"{cwd[:80]!r} is not an absolute path")
        return None if cwd is None else repository_of(cwd)


def applying(agent: str | None, project: str | None) -> list[Place]:
    """The places in which a search looks, the most specific first: agent, project, user."""
    places = [] if agent is None else [Place(Scope.AGENT, agent)]
    if project is not None:
        places.append(Place(Scope.PROJECT, project))
    return [*places, Place(Scope.USER)]


T = TypeVar("T")
Row = TypeVar("Row", MemoryRow, MemoryHit)

#: Characters of JSON of all memories in one answer: a line of the protocol holds them.
PAGE_MAX = 3 * 1024 * 1024
#: Memories of one page of an import.
IMPORT_MAX = 500


class MemoryOps:
    """Answers for the store in ``folder``, as ``spec`` (a StoreSpec without its secrets) says."""

    def __init__(self, access: StoreAccess, spec: Json, folder: str) -> None:
        self._access = access
        self._spec = spec
        # For people to read; a folder's name may be no Unicode.
        self._folder = folder.encode(errors="replace").decode()
        self._ops: dict[str, Callable[[MemoryRequest], Mapping[str, object]]] = {
            MEMORY_SAVE: self._save,
            MEMORY_SEARCH: self._search,
            MEMORY_GET: self._get,
            MEMORY_LIST: self._list,
            MEMORY_FORGET: self._forget,
            MEMORY_STATS: self._stats,
            MEMORY_EXPORT: self._exported,
            MEMORY_IMPORT: self._import,
        }

    def answer(self, ask: MemoryRequest) -> Mapping[str, object]:
        """The answer. Raises RelayError."""
        return self._ops[ask.fields["op"]](ask)

    # -- the ops

    def _save(self, ask: MemoryRequest) -> MemorySaved:
        text: str = ask.fields["text"]
        place, policy = ask.place(), ask.secrets()
        supersedes: str | None = ask.fields.get("supersedes")
        store = self._access.opened(None if supersedes is None else ask.places())
        if supersedes is not None:
            old = _got(store, ask, supersedes)
            ask.check_change(old)
            supersedes = old.id
        new_id = ask.new_id()
        saved = store.save(
            clean_text(text, policy),
            place,
            agent=ask.agent,
            session=ask.run,
            supersedes=supersedes,
            meta=clean_meta(ask.meta(), policy),
            now_ms=ask.now_ms,
            new_id=new_id,
        )
        self._access.added(1)
        kinds = {kind for _, _, kind in redact.find(text)} if policy is Secrets.REDACT else ()
        again = saved.outcome is Outcome.SAME and saved.memory.id == new_id
        answer: MemorySaved = {
            "memory": to_json(saved.memory),
            # With this very id it was saved by this request, in a service that has died since.
            "outcome": Outcome.NEW.value if again else saved.outcome.value,
            "redacted": sorted(kinds),
        }
        if saved.outcome is Outcome.UPDATED:
            answer["former"] = saved.former
        return answer

    def _search(self, ask: MemoryRequest) -> MemoryHits:
        query, limit, places = ask.fields["query"], ask.limit(), ask.places()
        store = self._access.opened(places)
        found, problem = _in_each(places, lambda some: store.search(query, some, limit))
        rows: list[MemoryHit] = [
            {**to_json(hit.memory), "score": round(hit.score, 4), "tier": hit.tier.value}
            for hit in found
        ]
        return {"memories": _fitting(rows), **problem}

    def _get(self, ask: MemoryRequest) -> OneMemory:
        memory = _got(self._access.opened(ask.places()), ask, ask.fields["id"])
        return {"memory": to_json(memory)}

    def _list(self, ask: MemoryRequest) -> MemoryRows:
        before_ms, before_id = ask.fields.get("before_ms"), ask.fields.get("before_id") or ""
        places, limit = ask.places(), ask.limit()
        store = self._access.opened(places)
        found, problem = _in_each(
            places,
            lambda some: store.list(some, limit, before_ms=before_ms, before_id=before_id),
        )
        rows = _fitting([to_json(memory) for memory in found])
        more = len(rows) < len(found)
        if len(found) == limit:
            last = found[-1]
            after, _ = _in_each(
                places,
                lambda some: store.list(some, 1, before_ms=last.updated_ms, before_id=last.id),
            )
            more |= bool(after)
        return {"memories": rows, "more": more, **problem}

    def _forget(self, ask: MemoryRequest) -> OneMemory:
        store = self._access.opened(ask.places())
        memory = _got(store, ask, ask.fields["id"])
        ask.check_change(memory)
        return {"memory": to_json(store.forget(memory.id))}

    def _stats(self, ask: MemoryRequest) -> StoreStats:
        store = self._access.opened(ask.places())
        stats = store.stats()
        index = self._access.index
        counts = {place: count for place, count in stats.counts.items() if ask.may_read(place)}
        return {
            "backend": self._spec["backend"],
            "tier": stats.tier.value,
            "embedder": stats.embedder,
            "problem": self._access.problem or stats.problem or None,
            "pending": stats.pending,
            "index": None if index is None else index.filled_of(store),
            "size": stats.size,
            "store": self._spec,
            "folder": self._folder,
            "count": sum(counts.values()),
            "places": [
                {"scope": place.scope.value, "owner": place.owner, "count": count}
                for place, count in counts.items()
            ],
        }

    def _exported(self, ask: MemoryRequest) -> MemoryPage:
        """One page: nothing is kept for the next, so that others may save and forget meanwhile."""
        ask.only_person("export memories", "export")
        store = self._access.opened(ask.places())
        rows: list[MemoryRow] = []
        size = 0
        for memory in islice(store.export(after=ask.after()), LIMIT_MAX):
            rows.append(to_json(memory))
            size += len(memory.text)
            if size > PAGE_MAX // 8:  # as JSON it may be longer, six times at most
                break
        after: LastExported | None = None
        if rows:
            last = rows[-1]
            after = {"scope": last["scope"], "owner": last["owner"], "id": last["id"]}
        return {"memories": rows, "after": after, "more": bool(rows)}

    def _import(self, ask: MemoryRequest) -> MemoryImported:
        ask.only_person("import memories", "import FILE")
        rows = ask.fields["memories"]
        if len(rows) > IMPORT_MAX:
            raise UsageError(f"an import is a list of at most {IMPORT_MAX} memories")
        memories = [from_json(row) for row in rows]
        counts = self._access.opened().restore(memories)
        self._access.added(counts.new)
        return {"new": counts.new, "same": counts.same, "conflicting": counts.conflicting}


def _got(store: LocalStore, ask: MemoryRequest, id_: str) -> Memory:
    """The memory that is meant by the beginning of an id: an agent's words mean none of others', of
    which it learns nothing."""
    memory: Memory | None
    try:
        memory = store.get(id_)
    except NotFound as error:
        raise error if ask.agent is None else _unknown(id_) from None
    except UsageError as error:
        matches = error.details.get("matches")
        if ask.agent is None or not isinstance(matches, list):
            raise
        own = [one for one in map(from_json, matches) if ask.may_read(one.place)]
        if len(own) > 1:
            raise rules.ambiguous(id_, own) from None
        memory = own[0] if own else None
    if memory is None or not ask.may_read(memory.place):
        raise _unknown(id_)
    return memory


def _unknown(id_: str) -> NotFound:
    return NotFound(f"there is no memory {id_[:80]!r} here", hint="@memory:list shows those here")


class _Problem(TypedDict, total=False):
    problem: str


def _in_each(
    places: Sequence[Place], ask: Callable[[Sequence[Place]], list[T]]
) -> tuple[list[T], _Problem]:
    """What ``ask`` finds in ``places``. A damaged one does not hide what the others hold: then
    ``problem`` says what is wrong."""
    try:
        return ask(places), {}
    except StorageError as error:
        readable = [place for place in places if _readable(place, ask)]
        if not readable:
            raise
        return ask(readable), {"problem": error.message}


def _readable(place: Place, ask: Callable[[Sequence[Place]], list[T]]) -> bool:
    try:
        ask([place])
    except StorageError:
        return False
    return True


def _fitting(rows: list[Row]) -> list[Row]:
    """As many of the rows, from the first, as one answer holds."""
    size = 0
    for index, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > PAGE_MAX and index:
            return rows[:index]
    return rows
