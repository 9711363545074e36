"""Whatever somebody searches for, FTS5 takes it as words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.memory.local.search import WORDS_MAX, expression, words


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
