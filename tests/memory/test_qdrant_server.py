"""The test server of qdrant's API, asked by qdrant's REST client and by mem0."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from qdrant_client import QdrantClient
from qdrant_client import models as m
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from tests.memory.qdrant_process import QdrantProcess

UUIDS = [f"00000000-0000-4000-8000-{number:012x}" for number in range(1, 9)]


@pytest.fixture(scope="module")
def server() -> Iterator[QdrantProcess]:
    with QdrantProcess() as process:
        yield process


@contextlib.contextmanager
def connected(server: QdrantProcess) -> Iterator[QdrantClient]:
    # The client's own check of the version runs in a thread that outlives it.
    client = QdrantClient(url=server.url, timeout=20, check_compatibility=False)
    yield client
    client.close()


@pytest.fixture
def client(server: QdrantProcess) -> Iterator[QdrantClient]:
    with connected(server) as client:
        for one in client.get_collections().collections:
            client.delete_collection(one.name)
        yield client


def create(client: QdrantClient, name: str = "c") -> None:
    client.create_collection(
        name,
        vectors_config=m.VectorParams(size=3, distance=m.Distance.COSINE),
        sparse_vectors_config={"bm25": m.SparseVectorParams(modifier=m.Modifier.IDF)},
    )


def point(number: int, **payload: Any) -> m.PointStruct:
    """The point ``number`` of 0 to 7, whose dense vector leans to the axis ``number % 3``."""
    dense = [0.1, 0.1, 0.1]
    dense[number % 3] = 1.0
    words = m.SparseVector(indices=[number, 100], values=[1.0, 1.0])
    return m.PointStruct(
        id=UUIDS[number], vector={"": dense, "bm25": words}, payload={"n": number, **payload}
    )


def filled(client: QdrantClient, many: int = 8) -> None:
    create(client)
    client.upsert("c", [point(number, owner="ab"[number % 2]) for number in range(many)])


def owner(name: str) -> m.Filter:
    return m.Filter(must=[m.FieldCondition(key="owner", match=m.MatchValue(value=name))])


def numbers(points: Any) -> list[int]:
    return [one.payload["n"] for one in points]


# -- collections


def test_it_says_what_it_is_and_that_it_has_the_version_of_the_client(
    client: QdrantClient,
) -> None:
    info = client.info()
    assert "test server" in info.title
    assert info.version == importlib.metadata.version("qdrant-client")


def test_collections_are_made_told_and_dropped(client: QdrantClient) -> None:
    assert not client.collection_exists("c")
    create(client)
    create(client, "with space")
    assert {one.name for one in client.get_collections().collections} == {"c", "with space"}
    params = client.get_collection("c").config.params
    assert isinstance(params.vectors, m.VectorParams) and params.vectors.size == 3
    assert params.sparse_vectors and params.sparse_vectors["bm25"].modifier == m.Modifier.IDF
    assert client.delete_collection("c") and not client.delete_collection("c")
    assert not client.collection_exists("c")


def test_payload_indexes_are_told_and_dropped(client: QdrantClient) -> None:
    filled(client)
    client.create_payload_index("c", "owner", field_schema=m.PayloadSchemaType.KEYWORD)
    client.create_payload_index("c", "n", field_schema=m.PayloadSchemaType.INTEGER)
    schema = client.get_collection("c").payload_schema
    assert {name: index.data_type.value for name, index in schema.items()} == {
        "owner": "keyword",
        "n": "integer",
    }
    assert schema["owner"].points == 8
    client.delete_payload_index("c", "n")
    assert set(client.get_collection("c").payload_schema) == {"owner"}


# -- points


def test_points_are_found_by_both_kinds_of_vectors_and_by_filters(client: QdrantClient) -> None:
    filled(client)
    dense = client.query_points("c", query=[1.0, 0.1, 0.1], limit=3).points
    assert sorted(numbers(dense)) == [0, 3, 6] and dense[0].score == pytest.approx(1.0)
    of_a = client.query_points("c", query=[1.0, 0.1, 0.1], limit=2, query_filter=owner("a"))
    assert sorted(numbers(of_a.points)) == [0, 6]
    words = m.SparseVector(indices=[5, 100], values=[1.0, 1.0])
    sparse = client.query_points("c", query=words, using="bm25", limit=8).points
    assert numbers(sparse)[0] == 5 and sparse[0].score > sparse[1].score > 0
    batch = client.query_batch_points(
        "c", [m.QueryRequest(query=[1.0, 0.1, 0.1], limit=1), m.QueryRequest(query=UUIDS[1])]
    )
    assert len(batch[0].points) == 1 and batch[0].points[0].payload is None
    assert UUIDS[1] not in {one.id for one in batch[1].points}


def test_all_points_are_read_in_pages(client: QdrantClient) -> None:
    filled(client)
    read: list[int] = []
    following: Any = None
    while True:
        page, following = client.scroll("c", limit=3, offset=following)
        read += numbers(page)
        if following is None:
            break
    assert read == list(range(8))
    some, _ = client.scroll("c", scroll_filter=owner("b"), with_payload=["n"], limit=10)
    assert [one.payload for one in some] == [{"n": number} for number in (1, 3, 5, 7)]
    assert client.count("c", count_filter=owner("b")).count == 4
    upper = m.Filter(must=[m.FieldCondition(key="n", range=m.Range(gte=6))])
    assert client.count("c", count_filter=upper).count == 2


def test_points_are_read_by_id_with_their_vectors(client: QdrantClient) -> None:
    filled(client)
    asked = [UUIDS[3], "99999999-0000-4000-8000-000000000000"]
    (one,) = client.retrieve("c", ids=asked, with_vectors=True)
    assert one.id == UUIDS[3] and isinstance(one.vector, dict)
    assert one.vector["bm25"] == m.SparseVector(indices=[3, 100], values=[1.0, 1.0])
    assert client.retrieve("c", ids=[UUIDS[3]])[0].vector is None


def test_payloads_and_vectors_are_changed(client: QdrantClient) -> None:
    filled(client, 2)
    client.set_payload("c", {"owner": "z"}, points=[UUIDS[0]])
    client.overwrite_payload("c", {"n": 7}, points=[UUIDS[1]])
    client.update_vectors("c", [m.PointVectors(id=UUIDS[0], vector=[0.0, 0.0, 1.0])])
    points = {one.id: one.payload for one in client.retrieve("c", ids=UUIDS[:2])}
    assert points == {UUIDS[0]: {"n": 0, "owner": "z"}, UUIDS[1]: {"n": 7}}
    assert numbers(client.query_points("c", query=[0.0, 0.0, 1.0], limit=1).points) == [0]
    client.delete_payload("c", keys=["owner"], points=owner("z"))
    client.clear_payload("c", points_selector=[UUIDS[1]])
    assert [one.payload for one in client.retrieve("c", ids=UUIDS[:2])] == [{"n": 0}, {}]


def test_several_changes_are_one_request(client: QdrantClient) -> None:
    filled(client, 3)
    done = client.batch_update_points(
        "c",
        [
            m.UpsertOperation(upsert=m.PointsList(points=[point(3)])),
            m.DeleteOperation(delete=m.PointIdsList(points=[UUIDS[0]])),
        ],
    )
    assert [one.status for one in done] == [m.UpdateStatus.COMPLETED] * 2
    assert numbers(client.scroll("c")[0]) == [1, 2, 3]
    client.delete_vectors("c", vectors=["bm25"], points=[UUIDS[1]])
    (one,) = client.retrieve("c", ids=[UUIDS[1]], with_vectors=True)
    assert isinstance(one.vector, list)  # the one without a name is left


def test_points_are_replaced_and_deleted(client: QdrantClient) -> None:
    filled(client)
    client.upsert("c", [point(0, owner="new")])
    assert client.count("c").count == 8
    client.delete("c", points_selector=[UUIDS[0], UUIDS[1]])
    client.delete("c", points_selector=m.FilterSelector(filter=owner("b")))
    assert numbers(client.scroll("c")[0]) == [2, 4, 6]


def test_several_clients_write_at_once(server: QdrantProcess, client: QdrantClient) -> None:
    create(client)

    def write(first: int) -> None:
        with connected(server) as mine:
            for number in range(first, first + 20):
                vector: dict[str, Any] = {"": [1.0, 0.5, number / 100]}
                mine.upsert("c", [m.PointStruct(id=number, vector=vector, payload={})])

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 100, 200)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert client.count("c").count == 60


# -- what is refused

AXIS = [1.0, 0.0, 0.0]
NEW = {"id": UUIDS[0], "vector": [1, 0, 0], "payload": {}}


@pytest.mark.parametrize(
    ("ask", "status", "said"),
    [
        (lambda client: client.get_collection("none"), 404, "`none` doesn't exist"),
        (lambda client: client.upsert("none", [point(0)]), 404, "`none` doesn't exist"),
        (create, 409, "already exists"),
        (lambda client: client.upsert("c", [m.PointStruct(id="x", vector=AXIS)]), 400, ""),
        (lambda client: client.retrieve("c", ids=["x"]), 400, "not a valid point ID"),
        (lambda client: client.retrieve("c", ids=[-1]), 400, "not a valid point ID"),
        (lambda client: client.upsert("c", [m.PointStruct(id=1, vector=AXIS[:2])]), 400, "dim: 3"),
        (lambda client: client.query_points("c", query=[1.0, 0.0]), 400, ""),
        (lambda client: client.query_points("c", query=[1.0], using="no"), 400, "no is not"),
        (lambda client: client.scroll("c", limit=0), 422, "limit value 0"),
        (lambda client: client.scroll("c", order_by="n"), 400, "No range index"),
        (lambda client: client.facet("c", "n"), 400, "No appropriate index"),
        (lambda client: client.set_payload("c", {"a": 1}, points=[UUIDS[7]]), 404, "No point"),
        (
            lambda client: client.update_vectors("c", [m.PointVectors(id=UUIDS[7], vector=AXIS)]),
            404,
            "No point",
        ),
    ],
)
def test_what_is_wrong_is_refused(
    client: QdrantClient, ask: Callable[[QdrantClient], object], status: int, said: str
) -> None:
    create(client)
    with pytest.raises(UnexpectedResponse) as caught:
        ask(client)
    assert caught.value.status_code == status
    assert said in caught.value.structured()["status"]["error"]
    assert client.count("c").count == 0


@pytest.mark.parametrize(
    "body",
    [
        {"points": [{**NEW, "more": 1}]},
        {"points": [{**NEW, "vector": {"": [1, 0, 0], "none": [1]}}]},
        {"points": [{**NEW, "vector": {"bm25": {"indices": [1], "values": [1, 2]}}}]},
        {"points": [{**NEW, "vector": ["a"]}]},
        {"pointz": [NEW]},
        [],
        None,
    ],
)
def test_a_body_of_another_form_changes_nothing(
    server: QdrantProcess, client: QdrantClient, body: Any
) -> None:
    create(client)
    answer = httpx.put(f"{server.url}/collections/c/points?wait=true", json=body)
    assert answer.status_code in (400, 422) and answer.json()["status"]["error"]
    assert client.count("c").count == 0
    fine = httpx.put(f"{server.url}/collections/c/points?wait=true", json={"points": [NEW]})
    assert fine.json()["result"]["status"] == "completed"


def test_what_is_not_spoken_here_says_so(server: QdrantProcess) -> None:
    answer = httpx.get(f"{server.url}/collections/c/snapshots")
    assert answer.status_code == 404 and "test server" in answer.json()["status"]["error"]


def test_an_order_needs_an_index_over_a_range(client: QdrantClient) -> None:
    filled(client)
    client.create_payload_index("c", "n", field_schema=m.PayloadSchemaType.INTEGER)
    order = m.OrderBy(key="n", direction=m.Direction.DESC)
    assert numbers(client.scroll("c", order_by=order, limit=2)[0]) == [7, 6]


def test_values_are_counted_with_an_index(client: QdrantClient) -> None:
    filled(client, 5)
    client.create_payload_index("c", "owner", field_schema=m.PayloadSchemaType.KEYWORD)
    hits = client.facet("c", "owner", exact=True).hits
    assert [(hit.value, hit.count) for hit in hits] == [("a", 3), ("b", 2)]


# -- the process


def test_it_keeps_its_data_and_its_key_over_every_end(tmp_path: Path) -> None:
    server = QdrantProcess(tmp_path / "data", api_key="right").start()
    try:
        with _with_key(server, "right") as client:
            filled(client)
            client.create_payload_index("c", "owner", field_schema=m.PayloadSchemaType.KEYWORD)
            for key in ("wrong", None):
                with _with_key(server, key) as other, pytest.raises(UnexpectedResponse) as caught:
                    other.get_collections()
                assert caught.value.status_code == 401
            port = server.port
            assert server.stop() == 0
            with pytest.raises(ResponseHandlingException):
                client.count("c")
            server.start()
            assert server.port == port
            assert client.count("c").count == 8
            client.upsert("c", [point(0, owner="late")])
            assert server.kill() < 0
            server.start()
            assert client.retrieve("c", ids=[UUIDS[0]])[0].payload == {"n": 0, "owner": "late"}
            assert set(client.get_collection("c").payload_schema) == {"owner"}
        assert server.leave() == 0
    finally:
        server.kill()


@contextlib.contextmanager
def _with_key(server: QdrantProcess, key: str | None) -> Iterator[QdrantClient]:
    with pytest.warns(UserWarning, match="insecure") if key else contextlib.nullcontext():
        client = QdrantClient(url=server.url, api_key=key, timeout=20, check_compatibility=False)
    yield client
    client.close()


# -- mem0

FACTS = ("The tests need Redis on port 6379", "Deploy with make ship", "Invoices are rounded")


def test_mem0_works_with_it(server: QdrantProcess, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "MEM0_DIR": str(tmp_path / "mem0"), "MEM0_TELEMETRY": "False"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.memory.mem0_on_qdrant", server.url, *FACTS],
        env={**os.environ, **home},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path) == ["mem0"]
    answer = json.loads(done.stdout)
    assert answer == {
        "slot": True,
        "found": [FACTS[0], *answer["found"][1:]],
        "other": [],
        "numbered": sorted(FACTS[1:]),
        "changed": ["The tests need Valkey", 7],
        "left": sorted(["The tests need Valkey", FACTS[2]]),
    }
    with connected(server) as client:
        assert {"user_id", "agent_id"} <= set(client.get_collection("mem0").payload_schema)
