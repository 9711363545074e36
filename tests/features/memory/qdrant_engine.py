"""The engine behind the test server: qdrant-client's own local mode, and what a server adds to it.

It is stricter than local mode where the real server is known to be: ids must be unsigned integers
or UUIDs wherever they are given. Payload indexes are remembered and told; they make nothing faster.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter, ValidationError
from qdrant_client import QdrantClient
from qdrant_client import models as m

_INDEXES = "payload_indexes.json"
_SCHEMA: TypeAdapter[Any] = TypeAdapter(m.PayloadFieldSchema)


class Refused(Exception):
    """A request that is not done: the HTTP status, and the message of the answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Engine:
    """All collections of one folder (None: of memory). Each method is one request.

    What changes points returns None; the answer to it is the same for all. Raises Refused; one
    request at a time is at work, as local mode is not made for several threads.
    """

    def __init__(self, folder: Path | None) -> None:
        self.lock = threading.Lock()
        location: dict[str, Any] = {"path": str(folder)} if folder else {"location": ":memory:"}
        self._client = QdrantClient(**location, force_disable_check_same_thread=True)
        self._file = folder / _INDEXES if folder else None
        self._indexes: dict[str, dict[str, Any]] = {}
        if self._file and self._file.exists():
            self._indexes = json.loads(self._file.read_text())

    def close(self) -> None:
        """Let go of the folder when what is being done is done."""
        with self.lock:
            self._client.close()

    # -- collections

    def list_collections(self) -> m.CollectionsResponse:
        return self._client.get_collections()

    def exists(self, name: str) -> m.CollectionExistence:
        return m.CollectionExistence(exists=self._client.collection_exists(name))

    def create(self, name: str, asked: m.CreateCollection) -> bool:
        if self._client.collection_exists(name):
            raise Refused(409, f"Wrong input: Collection `{name}` already exists!")
        return self._client.create_collection(
            name,
            vectors_config=asked.vectors if asked.vectors is not None else {},
            sparse_vectors_config=asked.sparse_vectors,
        )

    def collection(self, name: str) -> m.CollectionInfo:
        self._must_exist(name)
        info = self._client.get_collection(name)
        for field, schema in self._indexes.get(name, {}).items():
            info.payload_schema[field] = self._index_info(name, field, schema)
        return info

    def drop(self, name: str) -> bool:
        if self._indexes.pop(name, None) is not None:
            self._remember_indexes()
        return self._client.delete_collection(name)

    # -- payload indexes

    def create_index(self, name: str, asked: m.CreateFieldIndex) -> None:
        self._must_exist(name)
        if asked.field_schema is None:
            raise Refused(400, "Bad request: the type of the index is not given")
        schema = _SCHEMA.dump_python(asked.field_schema, mode="json", exclude_none=True)
        self._indexes.setdefault(name, {})[asked.field_name] = schema
        self._remember_indexes()

    def _index_info(self, name: str, field: str, schema: Any) -> m.PayloadIndexInfo:
        empty = m.IsEmptyCondition(is_empty=m.PayloadField(key=field))
        return m.PayloadIndexInfo(
            data_type=m.PayloadSchemaType(_kind(schema)),
            params=_SCHEMA.validate_python(schema) if isinstance(schema, dict) else None,
            points=self._client.count(name, count_filter=m.Filter(must_not=[empty])).count,
        )

    def _remember_indexes(self) -> None:
        if self._file:
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps(self._indexes))
            os.replace(new, self._file)

    # -- reading points

    def retrieve(self, name: str, asked: m.PointRequest) -> list[m.Record]:
        self._must_exist(name)
        return self._client.retrieve(
            name,
            _checked(asked.ids),
            with_payload=_unless_none(asked.with_payload, True),
            with_vectors=_unless_none(asked.with_vector, False),
        )

    def query(self, name: str, asked: m.QueryRequest) -> m.QueryResponse:
        self._must_exist(name)
        return self._client.query_points(
            name,
            query=asked.query,
            using=asked.using,
            prefetch=asked.prefetch,
            query_filter=asked.filter,
            search_params=asked.params,
            limit=_unless_none(asked.limit, 10),
            offset=asked.offset,
            with_payload=_unless_none(asked.with_payload, False),
            with_vectors=_unless_none(asked.with_vector, False),
            score_threshold=asked.score_threshold,
            lookup_from=asked.lookup_from,
        )

    def scroll(self, name: str, asked: m.ScrollRequest) -> m.ScrollResult:
        self._must_exist(name)
        points, following = self._client.scroll(
            name,
            scroll_filter=asked.filter,
            limit=_unless_none(asked.limit, 10),
            offset=asked.offset,
            with_payload=_unless_none(asked.with_payload, True),
            with_vectors=_unless_none(asked.with_vector, False),
        )
        return m.ScrollResult(points=points, next_page_offset=following)

    # -- changing points

    def upsert(self, name: str, asked: m.PointsList | m.PointsBatch) -> None:
        self._must_exist(name)
        points = asked.points if isinstance(asked, m.PointsList) else asked.batch
        self._client.upsert(
            name, points, update_filter=asked.update_filter, update_mode=asked.update_mode
        )

    def delete(self, name: str, asked: m.PointIdsList | m.FilterSelector) -> None:
        self._must_exist(name)
        if isinstance(asked, m.PointIdsList):
            _checked(asked.points)
        self._client.delete(name, points_selector=asked)

    # -- what is refused

    def _must_exist(self, name: str) -> None:
        if not self._client.collection_exists(name):
            raise Refused(404, f"Not found: Collection `{name}` doesn't exist!")


def _kind(schema: Any) -> str:
    """The type of an index as it was asked for; "" for none."""
    return str(schema.get("type", "")) if isinstance(schema, dict) else str(schema or "")


def _unless_none(value: Any, default: Any) -> Any:
    return default if value is None else value


def _canonical(id_: Any) -> str:
    """An id as text, each UUID in its one spelling. Raises ValueError: it is no id."""
    if isinstance(id_, int):
        if not 0 <= id_ < 1 << 64:
            raise ValueError
        return str(id_)
    return str(UUID(str(id_)))


def _checked(ids: Sequence[Any]) -> list[Any]:
    for id_ in ids:
        try:
            _canonical(id_)
        except ValueError:
            raise Refused(
                400,
                f"Format error in JSON body: value {id_} is not a valid point ID,"
                " valid values are either an unsigned integer or a UUID",
            ) from None
    return list(ids)


def refusal(error: Exception) -> Refused:
    """What the server answers to an error of validation, of the engine, or of ours."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Refused(400, f"Format error in JSON body: {where}: {first['msg']}")
    if isinstance(error, ValueError):
        said = str(error).removeprefix("Wrong input: ")
        outside = "is invalid. Must be" in said or "ndices" in said
        return (
            Refused(422, f"Validation error in JSON body: [{said}]")
            if outside
            else Refused(400, f"Wrong input: {said}")
        )
    return Refused(500, f"Service internal error: {type(error).__name__}: {error}")
