"""Names of files, ids, and the order of what is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import UsageError
from relay.features.memory import rules as ids
from relay.features.memory.local import database as naming
from relay.features.memory.local import search
from relay.features.memory.records import Hit, Memory, Place, Scope, Tier


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
def test_file_names_show_nothing_odd(path: str) -> None:
    name = naming.file_name(Place(Scope.PROJECT, "/" + path))
    assert naming.is_ours(name) and len(name) < 80
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-.")


def test_every_place_has_its_own_file() -> None:
    places = [
        Place(Scope.USER),
        Place(Scope.PROJECT, "/src/shop"),
        Place(Scope.PROJECT, "/old/shop"),
        Place(Scope.AGENT, "shop"),
    ]
    names = {naming.file_name(place) for place in places}
    assert len(names) == 4 and "user.db" in names
    assert any(name.startswith("project-shop-") for name in names)
    assert naming.file_name(Place(Scope.AGENT, "SHOP")) == naming.file_name(places[3])
    assert not naming.is_ours("user.db-wal") and not naming.is_ours("other.db")


def test_ids_have_eight_characters_of_crockfords_alphabet() -> None:
    assert ids.new_id(b"\0" * 5) == "00000000"
    assert ids.new_id(b"\xff" * 5) == "zzzzzzzz"
    many = {ids.new_id() for _ in range(1000)}
    assert len(many) == 1000
    assert all(len(id_) == 8 and set(id_) <= set(ids.ID_ALPHABET) for id_ in many)


def test_an_id_is_read_as_it_was_meant() -> None:
    assert ids.readings(" OIL5 ") == ["oil5", "0115"]
    assert ids.readings("abc") == ["abc"]
    assert ids.readings("\ud800abc") == ["?abc"]
    with pytest.raises(UsageError):
        ids.readings("ab")


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
