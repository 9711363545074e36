"""What the store answers: saves that are new, known or nearly known, successors, the best hits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import NotFound, UsageError
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import META_MAX, TEXT_MAX, Outcome, Place, Saved, Scope

USER = Place(Scope.USER)
PROJECT = Place(Scope.PROJECT, "/src/shop")
OTHER = Place(Scope.PROJECT, "/src/blog")
AGENT = Place(Scope.AGENT, "Ada")
NOW = 1_795_000_000_000
FACTS = (
    "The tests need Redis on port 6379",
    "Deploy with make ship from the main branch",
    "Invoices are rounded to whole cents before tax",
    "The staging database is wiped every Sunday night",
)


def save(
    store: LocalStore, text: str, place: Place = PROJECT, now: int = NOW, **more: Any
) -> Saved:
    """One save by ada."""
    return store.save(text, place, **{"agent": "ada", "session": "run-1", "now_ms": now, **more})


def texts(store: LocalStore, query: str, *places: Place, limit: int = 5) -> list[str]:
    """What a search finds, the best first."""
    hits = store.search(query, places or (PROJECT,), limit)
    return [hit.memory.text for hit in hits]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """A new store, closed at the end."""
    store = LocalStore(str(tmp_path))
    yield store
    store.close()


# -- saving


def test_a_save_answers_with_all_that_is_known(store: LocalStore) -> None:
    saved = save(store, f"  {FACTS[0]}\n", meta={"file": "Makefile", "lines": [1, 2]})
    assert saved.outcome is Outcome.NEW and saved.former is None
    memory = saved.memory
    assert (memory.text, memory.place) == (FACTS[0], PROJECT)
    assert (memory.agent, memory.session) == ("ada", "run-1")
    assert (memory.created_ms, memory.updated_ms, memory.supersedes) == (NOW, NOW, None)
    assert memory.meta == {"file": "Makefile", "lines": [1, 2]}
    assert store.get(memory.id) == memory
    persons = save(store, FACTS[0], USER, agent=None, session=None).memory
    assert store.get(persons.id) == persons and persons.agent is None


def test_what_is_there_gets_a_new_time_only(store: LocalStore) -> None:
    first = save(store, FACTS[0], meta={"a": 1}).memory
    again = save(store, FACTS[0], now=NOW + 5, agent="bob")
    assert again.outcome is Outcome.SAME and again.former is None
    assert again.memory == replace(first, updated_ms=NOW + 5)
    assert store.list([PROJECT], 10) == [again.memory]


def test_what_is_nearly_there_is_replaced_and_told(store: LocalStore) -> None:
    first = save(store, FACTS[0]).memory
    again = save(store, "the tests need redis on port 6379.", now=NOW + 5, agent="bob")
    assert (again.outcome, again.former) == (Outcome.UPDATED, FACTS[0])
    assert (again.memory.id, again.memory.created_ms) == (first.id, NOW)
    assert (again.memory.updated_ms, again.memory.agent) == (NOW + 5, "bob")
    assert texts(store, "redis") == ["the tests need redis on port 6379."]


@pytest.mark.parametrize("rest", ["need Redis on port 1", "need Valkey on port 6379"])
def test_another_fact_is_another_memory(store: LocalStore, rest: str) -> None:
    save(store, FACTS[0])
    for other in (f"The tests {rest}", "The tests do not need Redis on port 6379"):
        assert save(store, other).outcome is Outcome.NEW
    assert len(store.list([PROJECT], 10)) == 3
    assert save(store, FACTS[0], OTHER).outcome is Outcome.NEW


def test_new_meta_replaces_the_old(store: LocalStore) -> None:
    first = save(store, FACTS[0], meta={"a": 1}).memory
    assert save(store, FACTS[0], meta={"a": 2}).outcome is Outcome.UPDATED
    assert store.get(first.id).meta == {"a": 2}


@pytest.mark.parametrize(
    "text",
    ["", "  \n", "a\0b", "\ud800", "x" * (TEXT_MAX + 1)],
    ids=["empty", "blank", "NUL", "surrogate", "long"],
)
def test_what_cannot_be_a_text_is_refused(store: LocalStore, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        save(store, text)
    assert caught.value.hint
    assert store.list([PROJECT], 10) == []


@pytest.mark.parametrize(
    "meta",
    [{"a": "x" * META_MAX}, {"a": object()}, {"a": float("nan")}, {"a": (1,)}, {1: 2}],
    ids=["large", "object", "nan", "tuple", "number"],
)
def test_what_cannot_be_meta_is_refused(store: LocalStore, meta: Any) -> None:
    with pytest.raises(UsageError):
        save(store, FACTS[0], meta=meta)
    assert store.list([PROJECT], 10) == []


# -- superseding


def test_what_was_superseded_can_become_true_again(store: LocalStore) -> None:
    old = save(store, FACTS[0]).memory
    new = save(store, "Redis moved to port 7000", supersedes=old.id).memory
    again = save(store, "Redis moved to port 7000", supersedes=old.id)
    assert again.outcome is Outcome.SAME
    back = save(store, FACTS[0], supersedes=new.id)
    assert back.outcome is Outcome.NEW
    assert texts(store, "redis port") == [FACTS[0]]


def test_superseding_the_unknown_saves_nothing(store: LocalStore) -> None:
    with pytest.raises(NotFound):
        save(store, FACTS[0], supersedes="zzzzzzzz")
    assert store.list([PROJECT], 10) == []


def test_a_project_may_supersede_what_the_user_said(store: LocalStore) -> None:
    general = save(store, "Indent with four spaces", USER).memory
    save(store, "Indent with tabs here", PROJECT, supersedes=general.id)
    assert texts(store, "indent", PROJECT, USER) == ["Indent with tabs here"]
    assert texts(store, "indent", USER) == ["Indent with four spaces"]


def test_forgetting_the_middle_does_not_revive_the_first(store: LocalStore) -> None:
    first = save(store, "Redis is on port 1").memory
    second = save(store, "Redis is on port 2", supersedes=first.id).memory
    third = save(store, "Redis is on port 3", supersedes=second.id).memory
    store.forget(second.id)
    assert texts(store, "redis port") == [third.text]
    assert store.get(third.id).supersedes == first.id


# -- searching


def test_the_best_comes_first(store: LocalStore) -> None:
    for text in FACTS:
        save(store, text)
    for query, best in [
        ("which port does redis use?", FACTS[0]),
        ("deploy from main", FACTS[1]),
        ("rounding of invoices", FACTS[2]),
        ("when is the staging database wiped", FACTS[3]),
    ]:
        assert texts(store, query)[0] == best


def test_scores_fall_and_stay_within_bounds(store: LocalStore) -> None:
    for text in FACTS:
        save(store, text)
    hits = store.search("redis database port tests", [PROJECT], 5)
    assert all(0 < hit.score <= 1 for hit in hits) and len(hits) >= 2
    assert hits == sorted(hits, key=lambda hit: -hit.score)


def test_of_equally_good_ones_the_most_specific_comes_first(store: LocalStore) -> None:
    for place in (USER, AGENT, PROJECT):
        save(store, FACTS[0], place)
    for order in ([AGENT, PROJECT, USER], [USER, PROJECT, AGENT]):
        hits = store.search("redis port", order, 5)
        assert [hit.memory.place for hit in hits] == order


def test_a_better_one_of_a_wider_place_comes_first(store: LocalStore) -> None:
    save(store, "The tests run in parallel", PROJECT)
    save(store, FACTS[0], USER)
    chatter = " ".join(f"chatter{number}" for number in range(50))
    for query in ("redis port of the tests", f"redis port of the tests {chatter}"):
        assert texts(store, query, PROJECT, USER)[0] == FACTS[0]


def test_the_limit_holds(store: LocalStore) -> None:
    for number in range(8):
        save(store, f"Redis shard {number}")
    assert len(texts(store, "redis", limit=3)) == 3
    for query, bad in (("redis", 0), ("redis", -1), ("", 1), ("  \n", 1)):
        with pytest.raises(UsageError):
            store.search(query, [PROJECT], bad)


# -- ids


def test_a_unique_beginning_is_enough(store: LocalStore) -> None:
    memory = save(store, FACTS[0]).memory
    assert store.get(memory.id[:3]) == memory
    assert store.get(f" {memory.id.upper()} ") == memory
    with pytest.raises(UsageError):
        store.get(memory.id[:2])


# -- forgetting and listing


# -- moving
