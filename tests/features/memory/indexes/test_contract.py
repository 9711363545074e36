"""What every index does behind the store: one suite, against each with its real library.

The server is the one of tests.features.memory.qdrant_server, which is not the real one: see there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Tier
from tests.features.memory.indexes.opening import Cheap, Clock, index_of, opened
from tests.features.memory.local.test_store import (
    AGENT,
    FACTS,
    NOW,
    OTHER,
    PROJECT,
    USER,
    save,
    texts,
)
from tests.features.memory.qdrant_server import QdrantProcess

KEY = "right-key-of-the-test"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantProcess]:
    with QdrantProcess(tmp_path_factory.mktemp("qdrant"), KEY) as process:
        yield process


class Opening:
    """How the index of one test is opened: again and again the same one."""

    def __init__(self, kind: str, folder: Path, where: dict[str, Any]) -> None:
        self.kind, self.folder, self.where = kind, folder, where
        self.clock = Clock()

    def __call__(self, embedder: Cheap | None = None, **more: Any) -> LocalStore:
        where = {**self.where, **more}
        return opened(self.kind, self.folder, embedder, clock=self.clock, **where)


@pytest.fixture(params=["sqlite", "qdrant", "mem0", "qdrant server", "mem0 server"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Opening:
    kind, _, on_server = request.param.partition(" ")
    where: dict[str, Any] = {}
    if on_server:
        process: QdrantProcess = request.getfixturevalue("server")
        name = hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]
        where = {"url": process.url, "api_key": KEY, "collection_name": name}
    return Opening(kind, tmp_path, where)


def filled(store: LocalStore) -> LocalStore:
    """With all that the store has."""
    while store.catch_up(16):
        pass
    assert store.stats().pending == 0
    return store


def by_meaning(store: LocalStore, query: str, *places: Any) -> list[str]:
    """Texts that are found although they hold no word of the query: by what both embed to."""
    assert store.meaning is not None and store.meaning.begin(query)
    found = []
    for place in places or (PROJECT,):
        database = store.database(place)
        rows = store.meaning.near(database, 10, [])
        found += [memory.text for memory in database.rows(list(rows)).values()]
    return found


def test_what_is_saved_is_filled_in_and_found(opening: Opening) -> None:
    store = opening()
    for place in (PROJECT, USER, OTHER, AGENT):
        save(store, FACTS[0], place)
    assert store.stats().pending == 4 and store.stats().tier is Tier.HYBRID
    filled(store)
    assert by_meaning(store, "redis port", PROJECT, AGENT) == [FACTS[0], FACTS[0]]
    hits = store.search("redis port", [PROJECT, USER], 5)
    assert [hit.memory.place for hit in hits] == [PROJECT, USER]
    assert {hit.tier for hit in hits} == {Tier.HYBRID} and all(0 < hit.score <= 1 for hit in hits)
    store.close()


def test_a_search_finds_what_was_saved_just_before(opening: Opening) -> None:
    store = opening()
    save(store, FACTS[0])
    assert texts(store, "redis port") == [FACTS[0]]
    assert store.stats().pending == 0 and by_meaning(store, "redis port") == [FACTS[0]]
    store.close()


def test_what_is_forgotten_never_comes_back(opening: Opening) -> None:
    store = opening()
    gone = save(store, FACTS[0]).memory
    save(store, FACTS[1])
    filled(store)
    store.forget(gone.id)
    assert by_meaning(store, "redis port") in ([], [FACTS[1]])  # before the index knows
    filled(store)
    assert FACTS[0] not in by_meaning(store, "redis port")
    store.close()
    again = filled(opening())
    assert FACTS[0] not in by_meaning(again, "redis port")
    assert by_meaning(again, "deploy main branch") == [FACTS[1]]
    again.close()


def test_a_text_that_changes_is_found_by_what_it_says_now(opening: Opening) -> None:
    store = opening()
    first = save(store, "please remember that Redis is on port 6379").memory
    filled(store)
    again = save(store, "Redis is on port 6379.", now=NOW + 1).memory
    assert again.id == first.id and store.stats().pending >= 1
    filled(store)
    assert by_meaning(store, "redis port") == ["Redis is on port 6379."]
    store.close()


def test_what_is_superseded_is_not_found(opening: Opening) -> None:
    store = opening()
    old = save(store, FACTS[0]).memory
    new = save(store, "Redis moved to port 7000", supersedes=old.id).memory
    filled(store)
    assert texts(store, "redis port") == [new.text]
    store.close()


def test_what_others_save_and_forget_is_filled_in_too(opening: Opening) -> None:
    store = opening()
    gone = save(store, FACTS[0]).memory
    filled(store)
    other = LocalStore(str(opening.folder))
    other.forget(gone.id)
    save(other, FACTS[1])
    other.close()
    filled(store)
    assert by_meaning(store, "deploy main branch") == [FACTS[1]]
    assert FACTS[0] not in by_meaning(store, "redis port")
    store.close()


def test_an_embedder_that_is_away_costs_the_meaning_only(opening: Opening) -> None:
    embedder = Cheap()
    store = opening(embedder)
    save(store, FACTS[0])
    filled(store)
    embedder.problem = "nobody listens on port 11434"
    save(store, FACTS[1])
    assert store.catch_up(16) > 0
    hits = store.search("redis port", [PROJECT], 5)
    assert [hit.memory.text for hit in hits] == [FACTS[0]] and hits[0].tier is Tier.WORDS
    assert "nobody listens on port 11434" in store.stats().problem
    embedder.problem = ""
    opening.clock.now += 1000
    filled(store)
    assert texts(store, "deploy from main")[0] == FACTS[1] and store.stats().problem == ""
    store.close()


# -- an index that is away, refuses, or is another


@pytest.mark.parametrize("opening", ["qdrant server", "mem0 server"], indirect=True)
def test_a_server_that_goes_away_is_filled_when_it_is_back(
    opening: Opening, server: QdrantProcess
) -> None:
    store = opening()
    gone = save(store, FACTS[0]).memory
    filled(store)
    server.kill()
    try:
        save(store, FACTS[1])
        store.forget(gone.id)
        assert texts(store, "deploy from main") == [FACTS[1]]
        assert store.stats().tier is Tier.WORDS
        problem = store.stats().problem
        assert "refused" in problem.lower() and KEY not in problem
        pending = store.stats().pending
        assert pending == 2
        opening.clock.now += 4  # it is left alone for a while
        assert store.catch_up(16) == 2
    finally:
        server.start()
    opening.clock.now += 1000
    filled(store)
    assert by_meaning(store, "deploy main branch") == [FACTS[1]] and store.stats().problem == ""
    store.close()


@pytest.mark.parametrize("opening", ["qdrant server", "mem0 server"], indirect=True)
def test_a_wrong_key_is_said_and_costs_no_memory(opening: Opening) -> None:
    store = opening(api_key="key-of-another")
    save(store, FACTS[0])
    assert texts(store, "redis port") == [FACTS[0]]
    assert "API key" in store.stats().problem and "key-of-another" not in store.stats().problem
    store.close()


@pytest.mark.parametrize("opening", ["qdrant", "mem0"], indirect=True)
def test_vectors_of_another_length_are_said(opening: Opening) -> None:
    first = opening()
    save(first, FACTS[0])
    filled(first).close()
    store = opening(Cheap(dims=32))
    assert "64" in store.stats().problem and "32" in store.stats().problem
    assert texts(store, "redis port") == [FACTS[0]]
    store.close()


@pytest.mark.parametrize("opening", ["qdrant", "mem0"], indirect=True)
def test_a_new_collection_is_filled_anew(opening: Opening) -> None:
    first = opening()
    save(first, FACTS[0])
    filled(first).close()
    store = opening(Cheap(dims=32), collection_name="another")
    filled(store)
    assert by_meaning(store, "redis port") == [FACTS[0]]
    store.close()


@pytest.mark.parametrize("opening", ["qdrant", "mem0"], indirect=True)
def test_a_folder_that_another_has_open_costs_the_meaning_only(opening: Opening) -> None:
    first, second = opening(), opening()
    save(second, FACTS[0])
    assert texts(second, "redis port") == [FACTS[0]]
    assert "another program has" in second.stats().problem
    first.close()
    opening.clock.now += 1000
    index_of(second).open(second)
    filled(second)
    assert second.stats().problem == ""
    second.close()


@pytest.mark.parametrize("opening", ["qdrant", "mem0"], indirect=True)
def test_a_first_opening_that_was_cut_off(opening: Opening) -> None:
    folder = opening.folder / opening.kind / "qdrant"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_bytes(b"")
    store = opening()
    assert store.stats().problem == ""
    store.close()
