"""The store keeps its contract, by words alone and with an index behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import NotFound, RelayError, UsageError
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import (
    META_MAX,
    TEXT_MAX,
    Memory,
    Outcome,
    Place,
    Restored,
    Saved,
    Scope,
)
from tests.features.memory.indexes.opening import opened

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
    hits = store.search(query, places or (PROJECT,), limit, now_ms=NOW)
    return [hit.memory.text for hit in hits]


class StoreContract:
    """The tests. ``make`` opens the store in a folder."""

    def make(self, folder: Path) -> LocalStore:
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[LocalStore]:
        """A new store, closed at the end."""
        store = self.make(tmp_path)
        yield store
        store.close()

    # -- saving

    def test_a_save_answers_with_all_that_is_known(self, store: LocalStore) -> None:
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

    def test_what_is_there_gets_a_new_time_only(self, store: LocalStore) -> None:
        first = save(store, FACTS[0], meta={"a": 1}).memory
        again = save(store, FACTS[0], now=NOW + 5, agent="bob")
        assert again.outcome is Outcome.SAME and again.former is None
        assert again.memory == replace(first, updated_ms=NOW + 5)
        assert store.list([PROJECT], 10) == [again.memory]

    def test_what_is_nearly_there_is_replaced_and_told(self, store: LocalStore) -> None:
        first = save(store, FACTS[0]).memory
        again = save(store, "the tests need redis on port 6379.", now=NOW + 5, agent="bob")
        assert (again.outcome, again.former) == (Outcome.UPDATED, FACTS[0])
        assert (again.memory.id, again.memory.created_ms) == (first.id, NOW)
        assert (again.memory.updated_ms, again.memory.agent) == (NOW + 5, "bob")
        assert texts(store, "redis") == ["the tests need redis on port 6379."]

    @pytest.mark.parametrize("rest", ["need Redis on port 1", "need Valkey on port 6379"])
    def test_another_fact_is_another_memory(self, store: LocalStore, rest: str) -> None:
        save(store, FACTS[0])
        for other in (f"The tests {rest}", "The tests do not need Redis on port 6379"):
            assert save(store, other).outcome is Outcome.NEW
        assert len(store.list([PROJECT], 10)) == 3
        assert save(store, FACTS[0], OTHER).outcome is Outcome.NEW

    def test_what_was_kept_for_a_while_has_the_id_that_was_told(self, store: LocalStore) -> None:
        assert save(store, FACTS[0], new_id="kept0001").memory.id == "kept0001"
        assert save(store, FACTS[0], new_id="kept0001").outcome is Outcome.SAME
        assert save(store, FACTS[0], new_id="kept0002").memory.id == "kept0001"
        with pytest.raises(RelayError):
            save(store, FACTS[1], new_id="kept0001")
        assert [memory.id for memory in store.list([PROJECT], 5)] == ["kept0001"]

    def test_new_meta_replaces_the_old(self, store: LocalStore) -> None:
        first = save(store, FACTS[0], meta={"a": 1}).memory
        assert save(store, FACTS[0], meta={"a": 2}).outcome is Outcome.UPDATED
        assert store.get(first.id).meta == {"a": 2}

    @pytest.mark.parametrize(
        "text",
        ["", "  \n", "a\0b", "\ud800", "x" * (TEXT_MAX + 1)],
        ids=["empty", "blank", "NUL", "surrogate", "long"],
    )
    def test_what_cannot_be_a_text_is_refused(self, store: LocalStore, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            save(store, text)
        assert caught.value.hint
        assert store.list([PROJECT], 10) == []

    @pytest.mark.parametrize(
        "meta",
        [{"a": "x" * META_MAX}, {"a": object()}, {"a": float("nan")}, {"a": (1,)}, {1: 2}],
        ids=["large", "object", "nan", "tuple", "number"],
    )
    def test_what_cannot_be_meta_is_refused(self, store: LocalStore, meta: Any) -> None:
        with pytest.raises(UsageError):
            save(store, FACTS[0], meta=meta)
        assert store.list([PROJECT], 10) == []

    def test_what_was_saved_is_there_after_opening_again(self, tmp_path: Path) -> None:
        first = self.make(tmp_path)
        memory = save(first, FACTS[0], AGENT).memory
        longest = save(first, ("schön " * TEXT_MAX)[: TEXT_MAX * 6 // 7].strip()).memory
        first.close()
        second = self.make(tmp_path)
        assert second.get(memory.id) == memory and second.get(longest.id) == longest
        assert texts(second, "redis port", AGENT) == [FACTS[0]]
        second.close()

    # -- superseding

    def test_what_is_superseded_is_kept_but_not_found(self, store: LocalStore) -> None:
        old = save(store, FACTS[0]).memory
        new = save(store, "Redis moved to port 7000", supersedes=old.id[:5]).memory
        assert new.supersedes == old.id
        assert texts(store, "redis port") == [new.text]
        assert store.get(old.id) == old
        assert {memory.id for memory in store.list([PROJECT], 10)} == {new.id, old.id}

    def test_what_was_superseded_can_become_true_again(self, store: LocalStore) -> None:
        old = save(store, FACTS[0]).memory
        new = save(store, "Redis moved to port 7000", supersedes=old.id).memory
        again = save(store, "Redis moved to port 7000", supersedes=old.id)
        assert again.outcome is Outcome.SAME
        back = save(store, FACTS[0], supersedes=new.id)
        assert back.outcome is Outcome.NEW
        assert texts(store, "redis port") == [FACTS[0]]

    def test_superseding_the_unknown_saves_nothing(self, store: LocalStore) -> None:
        with pytest.raises(NotFound):
            save(store, FACTS[0], supersedes="zzzzzzzz")
        assert store.list([PROJECT], 10) == []

    def test_a_project_may_supersede_what_the_user_said(self, store: LocalStore) -> None:
        general = save(store, "Indent with four spaces", USER).memory
        save(store, "Indent with tabs here", PROJECT, supersedes=general.id)
        assert texts(store, "indent", PROJECT, USER) == ["Indent with tabs here"]
        assert texts(store, "indent", USER) == ["Indent with four spaces"]

    def test_forgetting_the_middle_does_not_revive_the_first(self, store: LocalStore) -> None:
        first = save(store, "Redis is on port 1").memory
        second = save(store, "Redis is on port 2", supersedes=first.id).memory
        third = save(store, "Redis is on port 3", supersedes=second.id).memory
        store.forget(second.id)
        assert texts(store, "redis port") == [third.text]
        assert store.get(third.id).supersedes == first.id

    # -- searching

    def test_the_best_comes_first(self, store: LocalStore) -> None:
        for text in FACTS:
            save(store, text)
        for query, best in [
            ("which port does redis use?", FACTS[0]),
            ("deploy from main", FACTS[1]),
            ("rounding of invoices", FACTS[2]),
            ("when is the staging database wiped", FACTS[3]),
        ]:
            assert texts(store, query)[0] == best

    def test_scores_fall_and_stay_within_bounds(self, store: LocalStore) -> None:
        for text in FACTS:
            save(store, text)
        hits = store.search("redis database port tests", [PROJECT], 5, now_ms=NOW)
        assert all(0 < hit.score <= 1 for hit in hits) and len(hits) >= 2
        assert hits == sorted(hits, key=lambda hit: -hit.score)

    def test_only_the_given_places_are_searched(self, store: LocalStore) -> None:
        for place in (USER, PROJECT, OTHER, AGENT):
            save(store, f"Redis of {place}", place)
        assert texts(store, "redis", AGENT) == ["Redis of agent ada"]
        assert "Redis of project /src/blog" not in texts(store, "redis", PROJECT, USER)
        assert store.search("redis", [], 5, now_ms=NOW) == []

    def test_of_equally_good_ones_the_most_specific_comes_first(self, store: LocalStore) -> None:
        for place in (USER, AGENT, PROJECT):
            save(store, FACTS[0], place)
        for order in ([AGENT, PROJECT, USER], [USER, PROJECT, AGENT]):
            hits = store.search("redis port", order, 5, now_ms=NOW)
            assert [hit.memory.place for hit in hits] == order

    def test_a_better_one_of_a_wider_place_comes_first(self, store: LocalStore) -> None:
        save(store, "The tests run in parallel", PROJECT)
        save(store, FACTS[0], USER)
        chatter = " ".join(f"chatter{number}" for number in range(50))
        for query in ("redis port of the tests", f"redis port of the tests {chatter}"):
            assert texts(store, query, PROJECT, USER)[0] == FACTS[0]

    def test_the_limit_holds(self, store: LocalStore) -> None:
        for number in range(8):
            save(store, f"Redis shard {number}")
        assert len(texts(store, "redis", limit=3)) == 3
        for query, bad in (("redis", 0), ("redis", -1), ("", 1), ("  \n", 1)):
            with pytest.raises(UsageError):
                store.search(query, [PROJECT], bad, now_ms=NOW)

    # -- ids

    def test_a_unique_beginning_is_enough(self, store: LocalStore) -> None:
        memory = save(store, FACTS[0]).memory
        assert store.get(memory.id[:3]) == memory
        assert store.get(f" {memory.id.upper()} ") == memory
        with pytest.raises(UsageError):
            store.get(memory.id[:2])

    def test_an_unknown_id_says_what_is_near(self, store: LocalStore) -> None:
        memory = save(store, FACTS[0]).memory
        wrong = memory.id[:-1] + ("0" if memory.id[-1] != "0" else "1")
        for ask in (store.get, store.forget):
            with pytest.raises(NotFound) as caught:
                ask(wrong)
            assert memory.id in caught.value.hint

    def test_an_ambiguous_beginning_lists_what_matches(self, store: LocalStore) -> None:
        memory = save(store, FACTS[0]).memory
        twins = [replace(memory, id=f"abc{tail}") for tail in ("00000", "11111", "22222")]
        twins[1] = replace(twins[1], place=USER)
        store.restore(twins)
        for ask in (store.get, store.forget):
            with pytest.raises(UsageError) as caught:
                ask("abc")
            assert caught.value.code == "ambiguous"
            matches: Any = caught.value.details["matches"]
            assert {match["id"] for match in matches} == {twin.id for twin in twins}
            assert all(match["text"] == memory.text for match in matches)
        assert store.get("abc1") == twins[1]

    # -- forgetting and listing

    def test_forgetting_answers_with_what_was_there(self, store: LocalStore) -> None:
        memory = save(store, FACTS[0]).memory
        kept = save(store, FACTS[1]).memory
        assert store.forget(memory.id[:6]) == memory
        assert store.list([PROJECT], 10) == [kept]
        assert FACTS[0] not in texts(store, "redis port")
        with pytest.raises(NotFound):
            store.forget(memory.id)

    def test_the_list_has_the_newest_first_and_pages(self, store: LocalStore) -> None:
        saved = [
            save(store, text, place, now=NOW + number).memory
            for number, (text, place) in enumerate(
                zip(FACTS, (USER, PROJECT, AGENT, USER), strict=True)
            )
        ]
        places = [PROJECT, AGENT, USER]
        assert store.list(places, 10) == saved[::-1]
        assert store.list([USER], 10) == [saved[3], saved[0]]
        page = store.list(places, 2)
        assert page == [saved[3], saved[2]]
        assert store.list(places, 2, before_ms=page[-1].updated_ms) == [saved[1], saved[0]]
        assert store.list([OTHER], 10) == []

    def test_a_list_pages_through_memories_of_one_time(self, store: LocalStore) -> None:
        places = (USER, PROJECT, AGENT, USER)
        saved = [save(store, *one, now=NOW).memory for one in zip(FACTS, places, strict=True)]
        paged: list[Memory] = []
        while page := store.list(
            [PROJECT, AGENT, USER],
            1,
            before_ms=paged[-1].updated_ms if paged else None,
            before_id=paged[-1].id if paged else "",
        ):
            paged += page
        assert paged == sorted(saved, key=lambda memory: memory.id, reverse=True)

    # -- moving

    def test_export_and_restore_lose_nothing(self, store: LocalStore, tmp_path: Path) -> None:
        self.fill(store)
        everything = list(store.export())
        assert len(everything) == 5
        other = self.make(tmp_path / "other")
        assert other.restore(everything) == Restored(new=5)
        assert _by_id(other.export()) == _by_id(everything)
        found = texts(other, "redis port")
        assert found[0] == "Redis moved to port 7000" and FACTS[0] not in found
        assert other.restore(everything) == Restored(same=5)
        other.close()

    def test_a_restore_that_was_cut_can_be_run_again(
        self, store: LocalStore, tmp_path: Path
    ) -> None:
        self.fill(store)
        everything = list(store.export())

        def cut() -> Iterator[Memory]:
            yield from everything[:3]
            raise ConnectionError("cut")

        other = self.make(tmp_path / "other")
        with pytest.raises((ConnectionError, RelayError)):
            other.restore(cut())
        counts = other.restore(everything)
        assert counts.new + counts.same == 5 and counts.conflicting == 0
        assert _by_id(other.export()) == _by_id(everything)
        other.close()

    def test_what_is_there_wins_over_what_is_restored(self, store: LocalStore) -> None:
        memory = save(store, FACTS[0]).memory
        others = [replace(memory, text="another"), replace(memory, place=USER)]
        for other in others:
            assert store.restore([other]) == Restored(conflicting=1)
        assert list(store.export()) == [memory]

    def test_an_export_goes_on_behind_any_memory_whatever_is_saved_and_forgotten(
        self, store: LocalStore
    ) -> None:
        self.fill(store)
        everything = list(store.export())
        for number, memory in enumerate(everything):
            behind = store.export(after=(memory.place, memory.id))
            assert list(behind) == everything[number + 1 :]
        for memory in everything[:3]:
            store.forget(memory.id)
        save(store, "a fact that is new", everything[0].place)
        rest = list(store.export(after=(everything[2].place, everything[2].id)))
        assert [one for one in rest if one.text != "a fact that is new"] == [
            replace(one, supersedes=store.get(one.id).supersedes) for one in everything[3:]
        ]
        some = list(store.export([USER], after=(everything[0].place, everything[0].id)))
        assert {memory.place for memory in some} <= {USER}

    def test_stats_count_by_place(self, store: LocalStore) -> None:
        self.fill(store)
        assert {memory.place for memory in store.export([USER])} == {USER}
        assert list(store.export([OTHER])) == []
        stats = store.stats()
        assert {place: count for place, count in stats.counts.items() if count} == {
            PROJECT: 3,
            USER: 1,
            AGENT: 1,
        }
        assert stats.size > 0

    def fill(self, store: LocalStore) -> None:
        """Five memories in three places, one superseded."""
        old = save(store, FACTS[0], meta={"a": [1, {"b": None}]}).memory
        save(store, "Redis moved to port 7000", now=NOW + 1, supersedes=old.id)
        save(store, FACTS[1], now=NOW + 2, agent=None, session=None)
        save(store, "Antworte kurz, 日本語も 🙂", USER, now=NOW + 3)
        save(store, FACTS[2], AGENT, now=NOW + 4)


def _by_id(memories: Any) -> dict[str, Memory]:
    return {memory.id: memory for memory in memories}


class TestWords(StoreContract):
    def make(self, folder: Path) -> LocalStore:
        return LocalStore(str(folder))


class TestQdrant(StoreContract):
    def make(self, folder: Path) -> LocalStore:
        return opened("qdrant", folder)
