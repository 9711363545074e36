"""Reading memories out of a collection of qdrant's, whoever wrote them there: relay or mem0."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from relay.memory.model import Memory, Place
from relay.memory.vectors import payload, words
from relay.memory.vectors.embedding import Embedding
from relay.memory.vectors.faults import mapped
from relay.memory.vectors.port import Answer, Found
from relay.memory.vectors.qdrant_opening import WORDS, Opened

_PAGE = 256
#: Of those found by a word only, so many are asked how near their meaning is.
_COSINES_MAX = 64
_PLACES_MAX = 100_000


class QdrantReader:
    """What ``Points`` reads. ``alone``: nobody else writes."""

    def __init__(self, opened: Opened, embedding: Embedding) -> None:
        from qdrant_client import models

        self._models = models
        self._opened = opened
        self._client, self._collection = opened.client, opened.collection
        self._embedding = embedding
        self.alone = not opened.server

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

    def scan(
        self, fields: Mapping[str, str | int], names: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, object]]]:
        """In pages; of a folder in one, because there each page is a look at everything."""
        limit, offset = 1 << 30 if self.alone else _PAGE * 4, None
        while True:
            with mapped(self._opened.server):
                records, offset = self._client.scroll(
                    self._collection,
                    scroll_filter=self._filter(fields),
                    limit=limit,
                    offset=offset,
                    with_payload=list(names),
                )
            for record in records:
                yield str(record.id), record.payload or {}
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
        """By vectors and, where the collection has words, by these."""
        vector = self._embedding.vectors([query])[0]
        only = self._filter({payload.PLACE: payload.place_name(place)})
        with mapped(self._opened.server):
            near = self._query(vector, only, count)
            held = self._by_words(wanted, only, count)
            scores = {str(point.id): float(point.score) for point in near}
            missing = [str(point.id) for point in held if str(point.id) not in scores]
            scores |= self._cosines(vector, missing[:_COSINES_MAX])
        ids = {str(one.id): str((one.payload or {}).get(payload.ID)) for one in (*near, *held)}
        return Answer({str(point.id): float(point.score) for point in held}, scores, ids)

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

    def _query(self, query: Any, only: Any, count: int, **how: Any) -> list[Any]:
        answer = self._client.query_points(
            self._collection,
            query=query,
            query_filter=only,
            limit=count,
            with_payload=[payload.ID],
            **how,
        )
        return list(answer.points)

    def _by_words(self, wanted: Sequence[str], only: Any, count: int) -> list[Any]:
        if not wanted or not self._opened.words:
            return []
        numbers, weights = words.of_query(wanted)
        query = self._models.SparseVector(indices=numbers, values=weights)
        return [one for one in self._query(query, only, count, using=WORDS) if one.score > 0]

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
