"""Searching: any query is words for FTS5, and the order of what is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.memory.local import search
from relay.features.memory.local.search import WORDS_MAX, expression, words
from relay.features.memory.records import Hit, Memory, Place, Scope, Tier


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


def test_stop_words_are_left_out_unless_there_is_nothing_else() -> None:
    assert words("Which port is it on?") == ["port"]
    assert words("to be or not to be") == ["to", "be", "or", "not"]
    assert words("?!") == []


def test_identifiers_fall_into_their_words() -> None:
    assert words("relay.config_file --dry-run") == ["relay", "config", "file", "dry", "run"]


def test_a_long_query_is_judged_by_its_first_words() -> None:
    assert words(" ".join(f"w{n}" for n in range(500))) == [f"w{n}" for n in range(WORDS_MAX)]


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


def test_words_alone_are_relative_to_the_best() -> None:
    assert search.fuse({1: 4.0, 2: 1.0}, None) == {1: 1.0, 2: 0.25}
    assert search.fuse({}, None) == {}


def test_words_and_vectors_count_half_each() -> None:
    scores = search.fuse({1: 4.0, 2: 2.0}, {2: 0.8, 3: 0.4, 4: -0.5})
    assert scores == pytest.approx({1: 0.5, 2: 0.25 + 0.5, 3: 0.25, 4: 0.0})
    assert search.best(scores, 2) == [2, 1]
    assert search.fuse({1: 2.0}, {1: -0.5}) == {1: 0.5}


def test_the_fit_is_absolute() -> None:
    assert search.fit(1, 4, None) == 0.25
    assert search.fit(1, 4, 0.75) == 0.5
    assert search.fit(0, 0, 0.75) == 0.75
    assert search.fit(0, 2, -1.0) == 0.0


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
