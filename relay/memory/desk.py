"""From a request to the backend, and back to an answer: in the broker's thread, or in a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeVar

from relay.core.errors import RelayError, StorageError, UsageError
from relay.directive import redact
from relay.memory.asked import LIMIT_MAX, Asked, Json
from relay.memory.backend import StoreUnavailable
from relay.memory.policy import Guarded, Secrets
from relay.memory.records import Outcome, Place, from_json, to_json
from relay.memory.sources import Source

T = TypeVar("T")

#: Characters of JSON of all memories in one answer: a line of the protocol holds them.
PAGE_MAX = 3 * 1024 * 1024
#: Memories of one page of an import.
IMPORT_MAX = 500


class Desk:
    """Answers for one store. ``store`` is what the store is called, without its secrets, and
    ``folder`` where it is, if it is on this disk."""

    def __init__(self, source: Source, store: Json, folder: str | None) -> None:
        self._source = source
        self._store = store
        # For people to read; a folder's name may be no Unicode.
        self._folder = folder and folder.encode(errors="replace").decode()
        self._ops: dict[str, Callable[[Asked], Json]] = {
            "memory_save": self._save,
            "memory_search": self._search,
            "memory_get": self._get,
            "memory_list": self._list,
            "memory_forget": self._forget,
            "memory_stats": self._stats,
            "memory_export": self._exported,
            "memory_import": self._import,
        }

    def answer(self, request: Json, agent: str | None, run: str | None, now_ms: int) -> Json:
        """The answer's fields. Raises RelayError."""
        return self._ops[request["op"]](Asked(request, agent, run, now_ms))

    def caught_up(self, now_ms: int) -> bool:
        """Do some of what can be done while nobody asks; whether there is nothing more to do."""
        return self._source.caught_up(now_ms)

    def close(self) -> None:
        """Close the store, if it is open."""
        self._source.close()

    def kill(self) -> None:
        """Nothing: what runs in this process ends with it."""

    # -- the ops

    def _save(self, ask: Asked) -> Json:
        store = self._source.opened()
        text, place, policy = ask.text("text"), ask.place(), ask.secrets()
        supersedes = ask.optional("supersedes")
        if supersedes is not None:
            try:
                old = store.get(supersedes)
            except StoreUnavailable:
                pass  # the save is kept, and then its id and whose that is are looked at
            else:
                ask.may_write(old.place)
                supersedes = old.id
        saved = Guarded(store, policy).save(
            text,
            place,
            agent=ask.agent,
            session=ask.run,
            supersedes=supersedes,
            meta=ask.meta(),
            now_ms=ask.now_ms,
        )
        self._source.added(1)
        kinds = {kind for _, _, kind in redact.find(text)} if policy is Secrets.REDACT else ()
        fields: Json = {
            "memory": to_json(saved.memory),
            "outcome": saved.outcome.value,
            "redacted": sorted(kinds),
        }
        if saved.outcome is Outcome.KEPT:
            fields["problem"] = saved.problem
        return fields | ({"former": saved.former} if saved.outcome is Outcome.UPDATED else {})

    def _search(self, ask: Asked) -> Json:
        store, query, limit = self._source.opened(), ask.text("query"), ask.limit()
        found, problem = _in_each(
            ask.places(), lambda places: store.search(query, places, limit, now_ms=ask.now_ms)
        )
        rows = [
            {**to_json(hit.memory), "score": round(hit.score, 4), "tier": hit.tier.value}
            for hit in found
        ]
        return {"memories": _fitting(rows), **problem}

    def _get(self, ask: Asked) -> Json:
        memory = self._source.opened().get(ask.text("id"))
        ask.may_read(memory.place)
        return {"memory": to_json(memory)}

    def _list(self, ask: Asked) -> Json:
        before_ms, before_id = ask.number("before_ms"), ask.optional("before_id") or ""
        store, places, limit = self._source.opened(), ask.places(), ask.limit()
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

    def _forget(self, ask: Asked) -> Json:
        store = self._source.opened()
        memory = store.get(ask.text("id"))
        ask.may_write(memory.place)
        return {"memory": to_json(store.forget(memory.id))}

    def _stats(self, ask: Asked) -> Json:
        stats = self._source.opened().stats()
        return {
            "backend": stats.backend,
            "tier": stats.tier.value,
            "embedder": stats.embedder,
            "problem": self._source.problem or stats.problem or None,
            "pending": stats.pending,
            "kept": stats.kept,
            "refused": stats.refused,
            "size": stats.size,
            "store": self._store,
            "folder": self._folder,
            "count": sum(stats.counts.values()),
            "places": [
                {"scope": place.scope.value, "owner": place.owner, "count": count}
                for place, count in stats.counts.items()
            ],
        }

    def _exported(self, ask: Asked) -> Json:
        """One page: nothing is kept for the next, so that others may save and forget meanwhile."""
        rows: list[Json] = []
        size = 0
        for memory in islice(self._source.opened().export(after=ask.after()), LIMIT_MAX):
            rows.append(to_json(memory))
            size += len(memory.text)
            if size > PAGE_MAX // 8:  # as JSON it may be longer, six times at most
                break
        last = {key: rows[-1][key] for key in ("scope", "owner", "id")} if rows else None
        return {"memories": rows, "after": last, "more": bool(rows)}

    def _import(self, ask: Asked) -> Json:
        if ask.agent is not None:
            raise RelayError(
                "an agent may not import memories: they are others' too",
                hint="the person does that: relay memory import FILE",
                code="forbidden",
            )
        rows = ask.fields.get("memories")
        if not isinstance(rows, list) or len(rows) > IMPORT_MAX:
            raise UsageError(f"an import is a list of at most {IMPORT_MAX} memories")
        memories = [from_json(row) for row in rows]
        counts = self._source.opened().restore(memories)
        self._source.added(counts.new)
        return {"new": counts.new, "same": counts.same, "conflicting": counts.conflicting}


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
