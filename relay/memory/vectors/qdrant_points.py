"""Memories in qdrant, in a folder or on a server: those of relay and of mem0 are read."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from relay.memory.backend import Backend
from relay.memory.embedding import Embedder
from relay.memory.records import Memory, Place
from relay.memory.vectors import payload, words
from relay.memory.vectors.embedding import Embedding, needed
from relay.memory.vectors.faults import mapped
from relay.memory.vectors.merging import spoken
from relay.memory.vectors.port import Answer, Found
from relay.memory.vectors.qdrant_opening import WORDS, Opened, open_client
from relay.memory.vectors.vector_backend import VectorBackend
from relay.memory.vectors.words import Lexicon

_PAGE = 256
#: Memories found by a word only that are asked how near their meaning is.
_COSINES_MAX = 64
_PLACES_MAX = 100_000
#: What is searched by its words.
_SPOKEN = (payload.PLACE, payload.ID, payload.TEXT, payload.UPDATED)
#: A memory's key is made of its id, so that one that is written twice is there once.
_NAMESPACE = uuid.UUID("5f5c5f0e-0d0b-5c0a-9c0c-72656c617921")


class QdrantReader:
    """What ``Points`` reads. ``alone``: nobody else writes."""

    def __init__(self, opened: Opened, embedding: Embedding) -> None:
        from qdrant_client import models

        self._models = models
        self._opened = opened
        self._client, self._collection = opened.client, opened.collection
        self._embedding = embedding
        self.alone = not opened.server
        self._lexicons: dict[str, Lexicon] | None = None
        self._by_place = True

    @property
    def embedder(self) -> str:
        """The embedder's name."""
        return self._embedding.name

    def fetch(self, keys: Sequence[str]) -> list[Found]:
        """By their keys."""
        found: list[Found] = []
        with mapped(self._opened.server):
            for start in range(0, len(keys), _PAGE):
                found += _memories(
                    self._client.retrieve(
                        self._collection, list(keys[start : start + _PAGE]), with_payload=True
                    )
                )
        return found

    def match(self, fields: Mapping[str, str | int], limit: int) -> list[Found]:
        """By fields."""
        with mapped(self._opened.server):
            records, _ = self._client.scroll(
                self._collection, scroll_filter=self._filter(fields), limit=limit
            )
        return _memories(records)

    def with_ids(self, ids: Sequence[str]) -> list[Found]:
        """In one look. An id that mem0 was given twice at the same time is there twice."""
        only = self._filter({})
        only.must.append(
            self._models.FieldCondition(key=payload.ID, match=self._models.MatchAny(any=list(ids)))
        )
        with mapped(self._opened.server):
            records, _ = self._client.scroll(
                self._collection, scroll_filter=only, limit=2 * len(ids)
            )
        return _memories(records)

    def scan(
        self, fields: Mapping[str, str | int], names: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """In pages; of a folder in one, because there each page is a look at everything."""
        limit, offset = 1 << 30 if self.alone else _PAGE * 4, None
        # A filter of qdrant-client's takes as long as all the rest of the look.
        only = None if self.alone and not fields else self._filter(fields)
        while True:
            with mapped(self._opened.server):
                records, offset = self._client.scroll(
                    self._collection,
                    scroll_filter=only,
                    limit=limit,
                    offset=offset,
                    with_payload=[*names, payload.OURS],
                )
            for record in records:
                found = record.payload or {}
                if found.get(payload.OURS) == payload.VERSION:
                    yield str(record.id), found
            if offset is None:
                return

    def newest(
        self, places: Sequence[Place], limit: int, before: tuple[int, str] | None
    ) -> list[Memory]:
        """qdrant orders by a number only: those of one time are read whole and put in order."""
        found: list[Memory] = []
        if before is not None:
            found += [one for one in self._of_time(places, before[0]) if one.id < before[1]]
        with mapped(self._opened.server):
            records, _ = self._client.scroll(
                self._collection,
                scroll_filter=self._filter({}, places),
                limit=limit,
                order_by=self._models.OrderBy(
                    key=payload.UPDATED,
                    direction=self._models.Direction.DESC,
                    start_from=None if before is None else before[0] - 1,
                ),
            )
        older = [one.memory for one in _memories(records)]
        if len(records) == limit and older:
            # The page may have been cut within a time.
            last = older[-1].updated_ms
            older = [one for one in older if one.updated_ms != last]
            older += self._of_time(places, last)
        found += older
        return sorted(found, key=lambda one: (one.updated_ms, one.id), reverse=True)[:limit]

    def counts(self) -> dict[Place, int]:
        """Asked of the store by the places' names."""
        with mapped(self._opened.server):
            answer = self._client.facet(
                self._collection,
                key=payload.PLACE,
                facet_filter=self._filter({}),
                limit=_PLACES_MAX,
                exact=True,
            )
        named = ((payload.place_of(hit.value), int(hit.count)) for hit in answer.hits)
        return {place: count for place, count in named if place is not None}

    def find(self, query: str, wanted: Sequence[str], place: Place, count: int) -> Answer:
        """By vectors, and by words where the collection has such."""
        vector = self._embedding.of_query(query)
        with mapped(self._opened.server):
            ask = self._in_folder if self.alone else self._on_server
            held, scores, ids = ask(vector, wanted, place, count)
            missing = [key for key in held if key not in scores]
            missing = sorted(missing, key=lambda key: -held[key])[:_COSINES_MAX]
            scores |= self._cosines(vector, missing)
        return Answer(held, scores, ids)

    def _on_server(
        self, vector: list[float], wanted: Sequence[str], place: Place, count: int
    ) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
        """What qdrant finds by words and by vectors, and the ids."""
        only = self._filter({payload.PLACE: payload.place_name(place)})
        how = {"query_filter": only, "limit": count, "with_payload": [payload.ID]}
        near = self._query(vector, **how)
        held = []
        if wanted and self._opened.words:
            numbers, weights = words.of_query(wanted)
            sparse = self._models.SparseVector(indices=numbers, values=weights)
            held = self._query_words(sparse, only, how)
        return (
            {str(one.id): float(one.score) for one in held if one.score > 0},
            {str(one.id): float(one.score) for one in near},
            {str(one.id): str((one.payload or {}).get(payload.ID)) for one in (*near, *held)},
        )

    def _in_folder(
        self, vector: list[float], wanted: Sequence[str], place: Place, count: int
    ) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
        """The same without a filter, which qdrant-client would apply to all memories one by one:
        of all the nearest those are taken that are in the place."""
        lexicons = self._by_name()
        lexicon = lexicons.get(payload.place_name(place))
        if not lexicon:
            return {}, {}, {}
        total = sum(len(one) for one in lexicons.values())
        limit = 2 * count * total // len(lexicon)
        while True:
            near = self._query(vector, limit=limit, with_payload=False)
            scores = {str(one.id): float(one.score) for one in near if str(one.id) in lexicon}
            if len(near) < limit or len(scores) >= min(count, len(lexicon)):
                break
            limit *= 4
        held = lexicon.search(words.of_query(wanted)[0], count)
        return held, scores, {key: lexicon.id_of(key) for key in (*scores, *held)}

    def size(self) -> int:
        """Of all files in the folder."""
        total = 0
        for folder, _, names in os.walk(self._opened.path) if self._opened.path else ():
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue
        return total

    def close(self) -> None:
        """Close the client and the embedder."""
        with mapped(self._opened.server):
            self._client.close()
        self._embedding.close()

    # -- parts of the above

    def _filter(self, fields: Mapping[str, str | int], places: Sequence[Place] = ()) -> Any:
        models = self._models
        must = [
            models.FieldCondition(key=key, match=models.MatchValue(value=value))
            for key, value in {payload.OURS: payload.VERSION, **fields}.items()
        ]
        if places:
            names = [payload.place_name(place) for place in places]
            must.append(models.FieldCondition(key=payload.PLACE, match=models.MatchAny(any=names)))
        return models.Filter(must=must)

    def _of_time(self, places: Sequence[Place], ms: int) -> list[Memory]:
        found: list[Memory] = []
        offset = None
        while True:
            with mapped(self._opened.server):
                records, offset = self._client.scroll(
                    self._collection,
                    scroll_filter=self._filter({payload.UPDATED: ms}, places),
                    limit=_PAGE * 4,
                    offset=offset,
                )
            found += [one.memory for one in _memories(records)]
            if offset is None:
                return found

    def _query(self, query: Any, **how: Any) -> list[Any]:
        return list(self._client.query_points(self._collection, query=query, **how).points)

    def _query_words(self, sparse: Any, only: Any, how: dict[str, Any]) -> list[Any]:
        """By how rare a word is in the place, where the server can tell; else in all of them."""
        corpus = getattr(self._models, "IdfCorpusParams", None)
        if corpus is not None and self._by_place:
            params = self._models.SearchParams(idf=corpus(corpus=only))
            try:
                return self._query(sparse, using=WORDS, search_params=params, **how)
            except Exception as error:
                if getattr(error, "status_code", None) not in (400, 422):
                    raise
                self._by_place = False
        return self._query(sparse, using=WORDS, **how)

    def _by_name(self) -> dict[str, Lexicon]:
        """The words of each place, by its name; read once."""
        if self._lexicons is None:
            found: dict[str, Lexicon] = {}
            for key, fields in self.scan({}, _SPOKEN):
                sparse = words.weights(spoken(str(fields.get(payload.TEXT)), _ms(fields)))
                lexicon = found.setdefault(str(fields.get(payload.PLACE)), Lexicon())
                lexicon.put(key, str(fields.get(payload.ID)), sparse)
            self._lexicons = found
        return self._lexicons

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Around whatever writes: after a failure what is there is no longer known."""
        try:
            with mapped(self._opened.server):
                yield
        except BaseException:
            self._lexicons = None
            raise

    def _written(self, key: str, memory: Memory) -> None:
        if self._lexicons is not None:
            name = payload.place_name(memory.place)
            lexicon = self._lexicons.setdefault(name, Lexicon())
            lexicon.put(key, memory.id, words.weights(spoken(memory.text, memory.updated_ms)))

    def _removed(self, key: str) -> None:
        for lexicon in (self._lexicons or {}).values():
            lexicon.drop(key)

    def _cosines(self, vector: Sequence[float], keys: Sequence[str]) -> dict[str, float]:
        if not keys:
            return {}
        records = self._client.retrieve(
            self._collection, list(keys), with_payload=False, with_vectors=True
        )
        found: dict[str, float] = {}
        for record in records:
            dense = record.vector.get("") if isinstance(record.vector, dict) else record.vector
            if dense:
                # A collection of cosines keeps its vectors at length 1, as the embedder's are.
                found[str(record.id)] = sum(a * b for a, b in zip(vector, dense, strict=True))
        return found


def _memories(records: Sequence[Any]) -> list[Found]:
    """Those of the records that are relay's."""
    read = ((str(record.id), payload.from_payload(record.payload)) for record in records)
    return [Found(key, memory) for key, memory in read if memory is not None]


def _ms(fields: Mapping[str, object]) -> int:
    updated = fields.get(payload.UPDATED)
    return updated if isinstance(updated, int) else 0


def open_qdrant(config: Mapping[str, Any], folder: str, embedder: Embedder | None) -> Backend:
    """The backend. ``config``: of a resolved StoreSpec; without ``url`` the memories are
    in ``folder``, or in its ``path``.

    Raises ConfigError, StoreUnavailable, StorageError; then the embedder stays the caller's.
    """
    embedding = Embedding(needed(embedder))
    store = config.get("vector_store") or {}
    path = os.path.join(folder, "qdrant")
    opened = open_client(store, path, embedding.dims, embedding.name)
    return VectorBackend(QdrantPoints(opened, embedding), opened.problem)


class QdrantPoints(QdrantReader):
    """The port (see relay.memory.vectors.port) on a collection that relay writes itself."""

    name = "qdrant"

    def insert(self, memories: Sequence[Memory]) -> list[str]:
        """All of them, or none, for a server; a folder takes one after the other."""
        keys = [str(uuid.uuid5(_NAMESPACE, memory.id)) for memory in memories]
        self._write(keys, memories)
        return keys

    def replace(self, key: str, memory: Memory, *, text_changed: bool) -> None:
        """A new time alone needs no new vectors: on a server its words are of the former day."""
        if text_changed:
            self._write([key], [memory])
            return
        with self._changing():
            self._client.overwrite_payload(
                self._collection, payload.to_payload(memory), points=[key], wait=True
            )
        self._written(key, memory)

    def remove(self, key: str) -> None:
        """By its key."""
        selector = self._models.PointIdsList(points=[key])
        with self._changing():
            self._client.delete(self._collection, points_selector=selector, wait=True)
        self._removed(key)

    def _write(self, keys: Sequence[str], memories: Sequence[Memory]) -> None:
        made = self._embedding.vectors([memory.text for memory in memories])
        points = [
            self._models.PointStruct(
                id=key, vector=self._vectors(memory, dense), payload=payload.to_payload(memory)
            )
            for key, memory, dense in zip(keys, memories, made, strict=True)
        ]
        with self._changing():
            self._client.upsert(self._collection, points, wait=True)
        for key, memory in zip(keys, memories, strict=True):
            self._written(key, memory)

    def _vectors(self, memory: Memory, dense: list[float]) -> dict[str, Any]:
        if not self._opened.words:
            return {"": dense}
        numbers, weights = words.of_text(spoken(memory.text, memory.updated_ms))
        return {"": dense, WORDS: self._models.SparseVector(indices=numbers, values=weights)}
