"""The backend on a store of vectors: places, near duplicates, superseding, ids, order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice

from relay.core.errors import StorageError
from relay.memory import backend_rules
from relay.memory.backend import Hits, Memories
from relay.memory.backend_rules import new_id as random_id
from relay.memory.backend_rules import readings
from relay.memory.local import query as queries
from relay.memory.local import ranking
from relay.memory.records import (
    Memory,
    Outcome,
    Place,
    Restored,
    Saved,
    Stats,
    Tier,
    check_memory,
    check_meta,
    check_text,
)
from relay.memory.vectors import merging, payload
from relay.memory.vectors.index import Asked, Catalogue, Index
from relay.memory.vectors.port import Found, Points

_PAGE = 200
_BATCH = 100


class VectorBackend:
    """The backend (see relay.memory.backend) on a store of vectors. Called by one thread."""

    def __init__(self, points: Points, problem: str = "") -> None:
        """``problem``: why a search is not what it could be, or ""."""
        self._points = points
        self._problem = problem
        self._index: Index = Catalogue(points) if points.alone else Asked(points)

    # -- the protocol

    def save(
        self,
        text: str,
        place: Place,
        *,
        agent: str | None,
        session: str | None,
        supersedes: str | None = None,
        meta: Mapping[str, object] | None = None,
        now_ms: int,
        new_id: str | None = None,
    ) -> Saved:
        """Durable when it returns. Near duplicates: see relay.memory.local.duplicates."""
        text = check_text(text)
        check_meta(meta)
        old = self.get(supersedes).id if supersedes is not None else None
        fresh = check_memory(
            Memory(
                new_id or random_id(),
                text,
                place,
                agent,
                session,
                now_ms,
                now_ms,
                old,
                dict(meta or {}),
            )
        )
        there = self._alike(place, text, old)
        if there is not None:
            return self._update(there, fresh, meta is not None)
        while self._index.by_ids([fresh.id]):
            if new_id is not None:
                raise StorageError(f"another memory has the id {new_id}", hint="save it again")
            fresh = replace(fresh, id=random_id())
        self._insert([fresh])
        return Saved(fresh, Outcome.NEW)

    def search(self, query: str, places: Sequence[Place], limit: int, *, now_ms: int) -> Hits:
        """By words and by meaning: see relay.memory.vectors.merging."""
        limit = backend_rules.check_limit(limit)
        words = queries.words(backend_rules.check_query(query))
        places = list(dict.fromkeys(places))
        hidden: set[str] = set().union(*(self._index.superseded(place) for place in places))
        hits = []
        for rank, place in enumerate(places):
            count = merging.candidates(limit) + len(hidden)
            answer = self._points.find(query, words, place, count)
            best = merging.best(answer, hidden, limit)
            found = {one.key: one.memory for one in self._points.fetch(list(best))}
            fit = merging.fit(answer, best, words, found)
            hits += [
                (rank, merging.hit(found[key], score * fit))
                for key, score in best.items()
                if key in found and score * fit > 0
            ]
        return ranking.ordered(hits)[:limit]

    def get(self, id_: str) -> Memory:
        """By id or a unique prefix of one, in whatever place."""
        return self._get(id_).memory

    def forget(self, id_: str) -> Memory:
        """What replaced it replaces what it replaced itself, before it goes: so a forget that was
        cut off can be called again."""
        gone = self._get(id_)
        for follower in self._index.superseding(gone.memory.id):
            linked = replace(follower.memory, supersedes=gone.memory.supersedes)
            self._replace(follower.key, linked, text_changed=False)
        with self._writing():
            self._points.remove(gone.key)
        self._index.drop(gone)
        return gone.memory

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        """The newest first; at most LIMIT_MAX."""
        before = None if before_ms is None else (before_ms, before_id)
        limit = backend_rules.check_limit(limit)
        return self._index.newest(list(dict.fromkeys(places)), limit, before) if places else []

    def export(
        self, places: Sequence[Place] | None = None, *, after: tuple[Place, str] | None = None
    ) -> Iterator[Memory]:
        """Place after place by their names, in each by id."""
        wanted = self._index.counts() if places is None else dict.fromkeys(places)
        first, last_id = ("", "") if after is None else (payload.place_name(after[0]), after[1])
        for place in sorted(wanted, key=payload.place_name):
            name = payload.place_name(place)
            if name < first:
                continue
            ids = [one for one in self._index.ids(place) if name != first or one[0] > last_id]
            for start in range(0, len(ids), _PAGE):
                keys = [key for _, key in ids[start : start + _PAGE]]
                page = [found.memory for found in self._points.fetch(keys)]
                yield from sorted(page, key=lambda memory: memory.id)

    def restore(self, memories: Iterable[Memory]) -> Restored:
        """In batches, each of which is durable before the next one is read."""
        counts: Counter[str] = Counter()
        remaining = iter(memories)
        while batch := [check_memory(memory) for memory in islice(remaining, _BATCH)]:
            found = self._index.by_ids(memory.id for memory in batch)
            known = {id_: one.memory for id_, one in found.items()}
            if new := backend_rules.not_there(batch, known, counts):
                self._insert(new)
                counts["new"] += len(new)
        return Restored(**counts)

    def stats(self) -> Stats:
        """``size`` is 0 where the store is a server's."""
        return Stats(
            self._points.name,
            Tier.HYBRID,
            self._index.counts(),
            self._points.size(),
            self._points.embedder,
            0,
            self._problem,
        )

    def close(self) -> None:
        """Close the store, and the embedder."""
        self._points.close()

    # -- parts of the above

    def _get(self, id_: str) -> Found:
        for wanted in readings(id_):
            found = self._index.starting_with(wanted, backend_rules.MATCHES_MAX)
            exact = [one for one in found if one.memory.id == wanted]
            # On a server two clients may have given one id at the same time: any of them will do.
            if exact or len(found) == 1:
                return (exact or found)[0]
            if found:
                raise backend_rules.ambiguous(id_, [one.memory for one in found])
        near = self._index.newest(
            list(self._index.counts()), backend_rules.LIMIT_MAX, None
        )  # a typing error is made in what was seen lately
        raise backend_rules.unknown(id_, [memory.id for memory in near])

    def _alike(self, place: Place, text: str, old: str | None) -> Found | None:
        """The memory that says the same: the very text first, else the newest near one.

        Not one that is superseded. With ``old`` only that one counts, or one that supersedes it
        already: another that says the same keeps its own history.
        """
        near = [
            one
            for one in self._index.alike(place, payload.near(text))
            if one.memory.place == place
            and (old is None or old in (one.memory.id, one.memory.supersedes))
        ]
        near.sort(key=lambda one: (one.memory.text == text, one.memory.updated_ms), reverse=True)
        for one in near:
            followers = self._index.superseding(one.memory.id)
            if all(follower.memory.place != place for follower in followers):
                return one
        return None

    def _update(self, there: Found, fresh: Memory, with_meta: bool) -> Saved:
        saved = backend_rules.updated(there.memory, fresh, with_meta)
        text_changed = saved.memory.text != there.memory.text
        self._replace(there.key, saved.memory, text_changed=text_changed)
        return saved

    def _insert(self, memories: Sequence[Memory]) -> None:
        with self._writing():
            keys = self._points.insert(memories)
        for key, memory in zip(keys, memories, strict=True):
            self._index.put(Found(key, memory))

    def _replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        with self._writing():
            self._points.replace(key, memory, text_changed=text_changed)
        self._index.put(Found(key, memory))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._index.spoilt()
            raise
