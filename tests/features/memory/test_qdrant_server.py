"""What the test server of qdrant's API refuses and keeps; that stores of memories work with it is
shown in tests.features.memory.vectors.test_server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from qdrant_client import QdrantClient
from qdrant_client import models as m
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from tests.features.memory.qdrant_process import QdrantProcess

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


def numbers(points: Any) -> list[int]:
    return [one.payload["n"] for one in points]


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
        (lambda client: client.overwrite_payload("c", {"a": 1}, [UUIDS[7]]), 404, "No point"),
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
