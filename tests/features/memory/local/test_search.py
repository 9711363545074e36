"""Searching: any query is words for FTS5, and the order of what is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from relay.features.memory.local import search, vectors
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.local.search import expression, words
from relay.features.memory.local.vectors import VectorMeaning
from relay.features.memory.records import Hit, Memory, Place, Scope, Tier
from tests.features.memory.indexes.opening import Cheap


@pytest.fixture(scope="module")
def index() -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize='porter unicode61')")
    db.execute("INSERT INTO texts VALUES ('redis on port 6379 for the tests')")
    yield db
    db.close()


def found(index: sqlite3.Connection, query: str) -> bool:
    asked = words(query)
    if not asked:
        return False
    rows = index.execute("SELECT 1 FROM texts WHERE texts MATCH ?", (expression(asked),))
    return rows.fetchone() is not None


def test_operators_are_words(index: sqlite3.Connection) -> None:
    for query in ("redis NOT port", "redis AND nothing", 'NEAR("redis" 2)', "text:redis*"):
        assert found(index, query), query
    assert not found(index, "NOT")


@given(st.text(max_size=80))
def test_no_text_is_a_syntax_error(index: sqlite3.Connection, text: str) -> None:
    found(index, text)


@given(st.text(max_size=40), st.text(alphabet="\"*^(){}:+-'\0\\ AND", max_size=20))
def test_signs_around_a_word_do_not_hide_it(
    index: sqlite3.Connection, text: str, signs: str
) -> None:
    assert found(index, f"{signs} redis {signs} {text}")


scores = st.floats(0.001, 1)


@given(scores, scores)
def test_a_step_decides_before_the_place(one: float, other: float) -> None:
    memory = Memory("abc", "x", Place(Scope.USER), None, None, 5, 5)
    specific, wide = (Hit(memory, score, Tier.WORDS) for score in (one, other))
    first, _ = search.ordered([(1, wide), (0, specific)])
    if other - one > search.STEP * 1.01 * other:
        assert first is wide
    if one >= other:
        assert first is specific


# -- Vectors beside the words: made when there is time, shared between processes, never in the
# way.

USER = Place(Scope.USER)
PROJECT = Place(Scope.PROJECT, "/src/shop")


@pytest.fixture
def embedder() -> Cheap:
    return Cheap()


@pytest.fixture
def store(tmp_path: Path, embedder: Cheap) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path), VectorMeaning(embedder))
    yield store
    store.close()
    assert embedder.closed >= 1


def save(store: LocalStore, text: str, place: Place = PROJECT) -> Memory:
    return store.save(text, place, agent=None, session=None, now_ms=1_795_000_000_000).memory


def find(store: LocalStore, query: str) -> list[Memory]:
    return [hit.memory for hit in store.search(query, [PROJECT, USER], 5)]


def test_a_save_does_not_wait_for_the_embedder(store: LocalStore, embedder: Cheap) -> None:
    save(store, "Tests need Redis")
    assert embedder.asked == [] and store.stats().pending == 1
    assert store.catch_up(10) == 0
    assert embedder.asked == ["Tests need Redis"]
    assert store.stats().pending == 0
    find(store, "redis")
    assert embedder.asked[1:] == ["redis"]


def test_catching_up_goes_in_steps(store: LocalStore) -> None:
    for number in range(70):
        save(store, f"fact {number}", PROJECT if number % 2 else USER)
    assert store.catch_up(0) == 70
    assert store.catch_up(50) == 20
    find(store, "fact")  # a search makes some itself
    assert store.stats().pending == 20 - search._FRESH
    assert store.catch_up(50) == 0


@pytest.mark.parametrize("answer", [RuntimeError("broken"), np.zeros((1, 3)), [[0.5]]])
def test_an_embedder_that_is_broken_costs_nothing_but_the_vectors(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    def broken(self: Cheap, texts: Sequence[str]) -> object:
        if isinstance(answer, Exception):
            raise answer
        return answer

    memory = save(store, "Tests need Redis")
    monkeypatch.setattr(Cheap, "embed", broken)
    assert find(store, "redis") == [memory]
    assert "the embedder cheap" in store.stats().problem and store.stats().pending == 1


def test_another_embedder_makes_them_anew(tmp_path: Path) -> None:
    old = LocalStore(str(tmp_path), VectorMeaning(Cheap()))
    memory = save(old, "Tests need Redis")
    assert find(old, "cache") == [memory]
    for other in (Cheap(name="others"), Cheap(32)):
        store = LocalStore(str(tmp_path), VectorMeaning(other))
        assert store.stats().pending == 1
        assert find(store, "cache") == [memory]
        assert store.stats().pending == 0
        store.close()
    old.close()


def test_a_vector_is_not_stored_for_a_text_that_changed(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, "Tests need Redis")
    other = LocalStore(str(tmp_path))
    embed = Cheap.embed

    def slow(self: Cheap, texts: Sequence[str]) -> NDArray[np.float32]:
        save(other, "tests need redis!")
        return embed(self, texts)

    monkeypatch.setattr(Cheap, "embed", slow)
    assert store.catch_up(1) == 1
    monkeypatch.undo()
    assert store.catch_up(1) == 0
    other.close()


def test_the_matrix_grows_and_keeps_its_rows(store: LocalStore) -> None:
    for size in (3, 100, 300):
        store.restore(
            Memory(f"{size}-{n:03}", f"fact{n} {size}", PROJECT, None, None, n, n)
            for n in range(size)
        )
        assert store.catch_up(1000) == 0
        assert find(store, f"fact{size - 1} {size}")[0].id == f"{size}-{size - 1:03}"


def test_memory_for_matrices_is_bounded(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "MATRICES_MAX", 1)
    places = [Place(Scope.PROJECT, f"/src/{number}") for number in range(3)]
    for place in places:
        save(store, "Tests need Redis", place)
    for _ in range(2):
        assert len(store.search("cache", places, 5)) == 3
        assert isinstance(store.meaning, VectorMeaning) and len(store.meaning._vectors) == 1


def test_a_query_without_a_word_is_for_the_vectors(store: LocalStore) -> None:
    memory = save(store, "Tests need Redis")
    assert find(store, "?!") == [memory]


def test_the_vector_of_what_is_forgotten_is_nobody_elses(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, "Tests need Redis")
    gone = save(store, "Release on Monday")
    assert find(store, "ship")[0] == gone
    other = LocalStore(str(tmp_path))
    other.forget(gone.id)
    new = save(other, "Prices are integers")  # SQLite gives it the row that has become free
    monkeypatch.setattr(search, "_FRESH", 0)
    assert new not in find(store, "ship")
    assert store.catch_up(5) == 0
    assert new in find(store, "prices")
    other.close()
