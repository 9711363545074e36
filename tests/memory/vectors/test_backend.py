"""What the contract leaves open: any order of calls, other people's memories, a great many."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import NotFound, UsageError
from relay.memory.backend import Backend, StoreUnavailable
from relay.memory.local.local_store import LocalStore
from relay.memory.records import Memory, Outcome, Restored
from relay.memory.vectors import merging, payload
from relay.memory.vectors.mem0_points import Mem0Points
from relay.memory.vectors.qdrant_points import QdrantReader
from relay.memory.vectors.vector_backend import VectorBackend
from relay.testing.memory_contract import AGENT, FACTS, NOW, OTHER, PROJECT, USER, save, texts
from tests.memory.vectors.cheap import Cheap
from tests.memory.vectors.test_disk import OPENERS, kinds, opened

PLACES = [PROJECT, USER, OTHER, AGENT]


def points_of(backend: Backend) -> QdrantReader:
    assert isinstance(backend, VectorBackend) and isinstance(backend._points, QdrantReader)
    return backend._points


def said(backend: Backend, call: str, *args: Any, **named: Any) -> object:
    """What a call answers, or which error it is."""
    try:
        answer = getattr(backend, call)(*args, **named)
    except (NotFound, UsageError) as error:
        return type(error), error.code, error.message
    return list(answer) if call == "export" else answer


def by_name(memories: Sequence[Memory]) -> list[Memory]:
    return sorted(memories, key=lambda one: (payload.place_name(one.place), one.id))


@pytest.mark.parametrize("alone", [True, False], ids=["catalogue", "asked"])
@pytest.mark.parametrize("seed", range(3))
def test_it_does_what_the_local_store_does(tmp_path: Path, seed: int, alone: bool) -> None:
    rng = random.Random(seed)
    local = LocalStore(str(tmp_path / "local"))
    points = points_of(opened("qdrant", tmp_path / "vectors"))
    points.alone = alone
    backend = VectorBackend(points)  # type: ignore[arg-type]
    known: list[str] = []
    for step in range(150):
        now, place = NOW + 7 * (step * 61 % 150), rng.choice(PLACES)
        kind = rng.randrange(10)
        if kind < 6:
            text = rng.choice(["The port is {}", "the port is {}.", "Note that the port is {}"])
            text = text.format(rng.randrange(6))
            how = {
                "agent": "ada",
                "session": None,
                "supersedes": rng.choice(known) if known and rng.random() < 0.3 else None,
                "meta": {"n": 1} if rng.random() < 0.2 else None,
                "now_ms": now,
                "new_id": f"id{seed}{step:05}",
            }
            both = [said(one, "save", text, place, **how) for one in (local, backend)]
            known.append(f"id{seed}{step:05}")
        elif kind < 8 and known:
            id_ = rng.choice(known)
            both = [said(one, "forget", id_) for one in (local, backend)]
        else:
            asked = rng.sample(PLACES, rng.randrange(1, 4))
            before = {"before_ms": now, "before_id": rng.choice([*known, ""])}
            both = [said(one, "list", asked, 7, **before) for one in (local, backend)]
        assert both[0] == both[1]
    everything = by_name(list(local.export()))
    assert list(backend.export()) == everything
    assert {place: count for place, count in local.stats().counts.items() if count} == (
        backend.stats().counts
    )
    for memory in everything:
        for place in PLACES:
            found = [
                {hit.memory.id for hit in one.search(memory.text, [place], 1000, now_ms=0)}
                for one in (local, backend)
            ]
            assert found[0] == found[1]
    local.close()
    backend.close()
    # What was written down follows from what lies on the disk, not from what was remembered.
    again = opened("qdrant", tmp_path / "vectors")
    assert list(again.export()) == everything
    again.close()


@kinds
def test_memories_of_others_stay_out_of_sight_and_as_they_are(kind: str, tmp_path: Path) -> None:
    backend = opened(kind, tmp_path)
    mine = save(backend, FACTS[0]).memory
    backend.close()

    from qdrant_client import QdrantClient
    from qdrant_client import models as m

    client = QdrantClient(path=str(tmp_path / "qdrant"))
    rows: list[dict[str, Any]] = [
        {"data": "Redis, says Ann", "user_id": "ann", "hash": "x"},
        {"data": "Redis, says nobody", "user_id": payload.place_name(PROJECT)},
        {**payload.to_payload(replace(mine, id="spoilt01")), payload.RECORD: "{"},
        {},
    ]
    vector: dict[str, Any] = {"": [1.0] * 64}
    client.upsert(
        "relay", [m.PointStruct(id=n, vector=vector, payload=row) for n, row in enumerate(rows)]
    )
    client.close()

    again = opened(kind, tmp_path)
    assert texts(again, "redis") == [FACTS[0]]
    assert again.list([PROJECT], 9) == [mine] == list(again.export())
    assert save(again, FACTS[0], now=NOW + 1).outcome is Outcome.SAME
    again.forget(mine.id)
    records, _ = points_of(again)._client.scroll("relay", limit=99)
    assert [record.payload for record in records] == rows
    again.close()


def test_mem0_itself_finds_and_changes_what_relay_saved(tmp_path: Path) -> None:
    backend = opened("mem0", tmp_path)
    mine = save(backend, FACTS[0], meta={"a": 1}).memory
    points = points_of(backend)
    assert isinstance(points, Mem0Points)
    mem0 = points._memory
    filters = {"user_id": payload.place_name(PROJECT)}
    (found,) = mem0.search("redis port", filters=filters)["results"]
    assert found["memory"] == FACTS[0] and found["metadata"][payload.ID] == mine.id
    assert found["created_at"].startswith("2026-11-18")
    assert mem0.history(found["id"]) == []
    mem0.update(found["id"], text="The tests need Valkey")
    assert backend.get(mine.id) == replace(mine, text="The tests need Valkey")
    assert {one.name for one in points._client.get_collections().collections} == {"relay"}
    backend.close()


@kinds
def test_a_forget_that_was_cut_off_can_be_called_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = opened(kind, tmp_path)
    first = save(backend, "Redis is on port 1").memory
    second = save(backend, "Redis is on port 2", supersedes=first.id).memory
    third = save(backend, "Redis is on port 3", supersedes=second.id).memory
    points = points_of(backend)

    def fail(_: str) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(points, "remove", fail)
        with pytest.raises(StoreUnavailable):
            backend.forget(second.id)
    assert backend.forget(second.id).id == second.id
    assert backend.get(third.id).supersedes == first.id
    assert texts(backend, "redis port") == [third.text]
    backend.close()


@kinds
def test_the_best_are_found_among_those_of_a_larger_place(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nearest of all are of another place, in which many say nearly the same."""
    monkeypatch.setattr(merging, "_CANDIDATES", 5)
    backend = opened(kind, tmp_path)
    backend.restore(
        Memory(f"m{number:05}", f"redis {number}", OTHER, None, None, NOW, NOW)
        for number in range(100)
    )
    for number in range(20):
        save(backend, f"kestrel {number} and redis in a text of many other words {number}")
    looks: list[int] = []
    query = points_of(backend)._client.query_points

    def look(*args: Any, **how: Any) -> Any:
        looks.append(how["limit"])
        return query(*args, **how)

    monkeypatch.setattr(points_of(backend)._client, "query_points", look)
    hits = backend.search("redis", [PROJECT], 3, now_ms=NOW)
    assert len(hits) == 3 and {hit.memory.place for hit in hits} == {PROJECT}
    assert len(looks) > 1 and looks[0] < 120
    backend.close()


def test_rarity_counts_within_a_place(tmp_path: Path) -> None:
    """“deploy” is in every memory of this project, and says nothing there."""
    backend = opened("qdrant", tmp_path)
    for number in range(12):
        save(backend, f"deploy step {number} uses make", PROJECT)
        save(backend, f"kestrel {number} sings", OTHER)
    save(backend, "deploy kestrel here", PROJECT)
    assert texts(backend, "deploy kestrel")[0] == "deploy kestrel here"
    backend.close()


def test_a_server_that_knows_no_rarity_by_place_is_asked_without(tmp_path: Path) -> None:
    from httpx import Headers
    from qdrant_client.http.exceptions import UnexpectedResponse

    backend = opened("qdrant", tmp_path)
    save(backend, FACTS[0])
    points = points_of(backend)
    asked: list[bool] = []
    query = points._client.query_points

    def older(*args: Any, **how: Any) -> Any:
        asked.append("search_params" in how)
        if asked[-1]:
            raise UnexpectedResponse(400, "Bad Request", b"unknown field `idf`", Headers())
        return query(*args, **how)

    points._client.query_points = older
    points.alone = False
    other = VectorBackend(points)  # type: ignore[arg-type]
    assert texts(other, "redis port") == texts(other, "redis port") == [FACTS[0]]
    assert asked.count(True) == 1
    del points._client.query_points
    other.close()


@kinds
def test_a_restore_is_bounded_and_can_go_on(kind: str, tmp_path: Path) -> None:
    embedder = Cheap()
    backend = OPENERS[kind]({}, str(tmp_path), embedder)
    memories = [
        Memory(f"m{number:05}", f"fact {number}", USER, None, None, NOW, NOW + number)
        for number in range(250)
    ]

    def until() -> Any:
        for number, memory in enumerate(memories):
            if number == 150:
                embedder.problem = "asleep"
            yield memory

    with pytest.raises(StoreUnavailable):
        backend.restore(until())
    embedder.problem = ""
    counts = backend.restore(memories)
    assert counts == Restored(new=counts.new, same=250 - counts.new) and counts.same >= 100
    assert list(backend.export()) == memories
    assert backend.list([USER], 3) == memories[:-4:-1]
    backend.close()


@pytest.mark.parametrize("alone", [True, False], ids=["folder", "server"])
@kinds
def test_a_collection_of_an_older_mem0_has_no_words(kind: str, alone: bool, tmp_path: Path) -> None:
    from qdrant_client import QdrantClient
    from qdrant_client import models as m

    client = QdrantClient(path=str(tmp_path / "qdrant"))
    client.create_collection("relay", m.VectorParams(size=64, distance=m.Distance.COSINE))
    client.close()
    points = points_of(opened(kind, tmp_path))
    points.alone = alone
    backend = VectorBackend(points)  # type: ignore[arg-type]
    for text in FACTS:
        save(backend, text)
    assert texts(backend, "which port does redis use?")[0] == FACTS[0]
    assert save(backend, f"{FACTS[0]}.", now=NOW + 1).outcome is Outcome.UPDATED
    assert backend.search("redis port", [PROJECT], 1, now_ms=NOW)[0].score > 0
    assert not points._opened.words
    assert "meaning alone" in replace(points._opened, server="http://db").problem
    backend.close()
