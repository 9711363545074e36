"""The ops of memory: from a request to the store, and back to an answer's fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from relay.core.errors import NotFound, StorageError, UsageError
from relay.directive import redact
from relay.features.memory import backend_rules
from relay.features.memory.backend_rules import LIMIT_MAX
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.memory_requests import Json, MemoryRequest
from relay.features.memory.policy import Secrets, clean_meta, clean_text
from relay.features.memory.records import Memory, Outcome, Place, from_json, to_json
from relay.features.memory.store_access import StoreAccess

T = TypeVar("T")

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
        self._ops: dict[str, Callable[[MemoryRequest], Json]] = {
            "memory_save": self._save,
            "memory_search": self._search,
            "memory_get": self._get,
            "memory_list": self._list,
            "memory_forget": self._forget,
            "memory_stats": self._stats,
            "memory_export": self._exported,
            "memory_import": self._import,
        }

    def answer(self, ask: MemoryRequest) -> Json:
        """The answer's fields. Raises RelayError."""
        return self._ops[ask.fields["op"]](ask)

    def caught_up(self) -> bool:
        """Do some of what can be done while nobody asks; whether there is nothing more to do."""
        return self._access.caught_up()

    def close(self) -> None:
        """Close the store, if it is open."""
        self._access.close()

    # -- the ops

    def _save(self, ask: MemoryRequest) -> Json:
        text, place, policy = ask.text("text"), ask.place(), ask.secrets()
        supersedes = ask.optional("supersedes")
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
        fields: Json = {
            "memory": to_json(saved.memory),
            # With this very id it was saved by this request, in a service that has died since.
            "outcome": Outcome.NEW.value if again else saved.outcome.value,
            "redacted": sorted(kinds),
        }
        return fields | ({"former": saved.former} if saved.outcome is Outcome.UPDATED else {})

    def _search(self, ask: MemoryRequest) -> Json:
        query, limit, places = ask.text("query"), ask.limit(), ask.places()
        store = self._access.opened(places)
        found, problem = _in_each(
            places, lambda some: store.search(query, some, limit, now_ms=ask.now_ms)
        )
        rows = [
            {**to_json(hit.memory), "score": round(hit.score, 4), "tier": hit.tier.value}
            for hit in found
        ]
        return {"memories": _fitting(rows), **problem}

    def _get(self, ask: MemoryRequest) -> Json:
        memory = _got(self._access.opened(ask.places()), ask, ask.text("id"))
        return {"memory": to_json(memory)}

    def _list(self, ask: MemoryRequest) -> Json:
        before_ms, before_id = ask.number("before_ms"), ask.optional("before_id") or ""
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

    def _forget(self, ask: MemoryRequest) -> Json:
        store = self._access.opened(ask.places())
        memory = _got(store, ask, ask.text("id"))
        ask.check_change(memory)
        return {"memory": to_json(store.forget(memory.id))}

    def _stats(self, ask: MemoryRequest) -> Json:
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
            "index": None if index is None else {"title": index.title, **index.filled_of(store)},
            "size": stats.size,
            "store": self._spec,
            "folder": self._folder,
            "count": sum(counts.values()),
            "places": [
                {"scope": place.scope.value, "owner": place.owner, "count": count}
                for place, count in counts.items()
            ],
        }

    def _exported(self, ask: MemoryRequest) -> Json:
        """One page: nothing is kept for the next, so that others may save and forget meanwhile."""
        ask.only_person("export memories", "export")
        store = self._access.opened(ask.places())
        rows: list[Json] = []
        size = 0
        for memory in islice(store.export(after=ask.after()), LIMIT_MAX):
            rows.append(to_json(memory))
            size += len(memory.text)
            if size > PAGE_MAX // 8:  # as JSON it may be longer, six times at most
                break
        last = {key: rows[-1][key] for key in ("scope", "owner", "id")} if rows else None
        return {"memories": rows, "after": last, "more": bool(rows)}

    def _import(self, ask: MemoryRequest) -> Json:
        ask.only_person("import memories", "import FILE")
        rows = ask.fields.get("memories")
        if not isinstance(rows, list) or len(rows) > IMPORT_MAX:
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
            raise backend_rules.ambiguous(id_, own) from None
        memory = own[0] if own else None
    if memory is None or not ask.may_read(memory.place):
        raise _unknown(id_)
    return memory


def _unknown(id_: str) -> NotFound:
    return NotFound(f"there is no memory {id_[:80]!r} here", hint="@memory:list shows those here")


def _in_each(
    places: Sequence[Place], ask: Callable[[Sequence[Place]], list[T]]
) -> tuple[list[T], Json]:
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


def _fitting(rows: list[Json]) -> list[Json]:
    """As many of the rows, from the first, as one answer holds."""
    size = 0
    for index, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > PAGE_MAX and index:
            return rows[:index]
    return rows
