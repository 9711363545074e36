"""Saves while the store is away: kept, applied in order, once, under the id that was told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.core.errors import ConfigError, NotFound, RelayError, UsageError
from relay.memory.backend import Backend, StoreUnavailable
from relay.memory.kept_saves import KeptSaves, waiting_in
from relay.memory.records import Memory, Outcome, Place, Saved, Scope
from relay.memory.write_queue import TRIES_MAX, TRY_AFTER, WriteQueue
from relay.testing.memory_contract import BackendContract
from tests.memory.flaky import Flaky, saying

NOW = 1_795_000_000_000
USER = Place(Scope.USER)
SHOP, BLOG = Place(Scope.PROJECT, "/src/shop"), Place(Scope.PROJECT, "/src/blog")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Rig:
    """A WriteQueue around a Flaky in ``folder``, which can be killed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.at = NOW
        self.kept = self._made()

    def _made(self) -> WriteQueue:
        outbox = KeptSaves(str(self.folder / "kept" / "key.db"))
        return WriteQueue(lambda: Flaky(self.folder), outbox, name="flaky", clock=self.clock)

    def reopened(self) -> WriteQueue:
        self.kept.close()
        self.kept = self._made()
        return self.kept

    def says(self, **what: str | None) -> None:
        saying(self.folder, **what)

    def save(self, text: str, place: Place = USER, **more: Any) -> Saved:
        self.at += 1
        fields = {"agent": None, "session": None, "now_ms": self.at, **more}
        return self.kept.save(text, place, **fields)

    def listed(self) -> list[Memory]:
        """What the store has, oldest first."""
        return self.kept.list([USER, SHOP, BLOG, Place(Scope.AGENT, "ada")], 1000)[::-1]

    def texts(self) -> list[str]:
        return [memory.text for memory in self.listed()]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.kept.close()


class TestContract(BackendContract):
    """Around a store that is there it is like that store."""

    def make(self, folder: Path) -> Backend:
        folder.mkdir(exist_ok=True)
        outbox = KeptSaves(str(folder / "kept.db"))
        return WriteQueue(lambda: Flaky(folder), outbox)


@pytest.mark.parametrize("opened_before", [True, False])
def test_a_save_is_kept_and_stored_once_the_store_is_back(rig: Rig, opened_before: bool) -> None:
    if opened_before:
        rig.save("the first")
    rig.says(away="nobody listens on port 6333")
    kept = rig.save("the tests need Redis", meta={"a": 1})
    assert (kept.outcome, kept.problem) == (Outcome.KEPT, "nobody listens on port 6333")
    assert rig.save("the port is 6379").outcome is Outcome.KEPT
    assert rig.kept.get(kept.memory.id[:5]) == kept.memory
    rig.says(away=None)
    assert rig.save("the last").outcome is Outcome.NEW
    first = ["the first"] if opened_before else []
    assert rig.texts() == [*first, "the tests need Redis", "the port is 6379", "the last"]
    assert rig.kept.get(kept.memory.id) == kept.memory
    assert rig.kept.waiting() == 0


def test_what_reads_says_why_and_how_many_wait(rig: Rig) -> None:
    rig.says(away="nobody listens on port 6333")
    rig.save("one")
    reads: list[Any] = [
        lambda: rig.kept.search("one", [USER], 5, now_ms=NOW),
        lambda: rig.kept.list([USER], 5),
        lambda: list(rig.kept.export()),
        lambda: rig.kept.restore([]),
        lambda: rig.kept.get("zzzzzz"),
        lambda: rig.kept.forget("zzzzzz"),
    ]
    for read in reads:
        with pytest.raises(StoreUnavailable) as away:
            read()
        assert away.value.message == "nobody listens on port 6333; 1 save is kept until then"
        assert away.value.hint == "start it"


def test_stats_of_a_store_that_is_away_say_why(rig: Rig) -> None:
    rig.says(away="nobody listens on port 6333")
    rig.save("one")
    stats = rig.kept.stats()
    assert (stats.backend, stats.kept, stats.refused, dict(stats.counts)) == ("flaky", 1, 0, {})
    assert stats.problem == "nobody listens on port 6333"
    rig.says(away=None)
    stats = rig.kept.stats()
    assert (stats.kept, stats.problem, stats.counts[USER]) == (0, "", 1)


def test_kept_saves_outlive_the_process(rig: Rig, tmp_path: Path) -> None:
    rig.says(away="")
    told = [rig.save(f"fact {number}").memory.id for number in range(5)]
    rig.reopened()
    assert waiting_in(str(tmp_path)) == {"key": (5, 0)}
    rig.says(away=None)
    assert [memory.id for memory in rig.listed()] == told
    assert waiting_in(str(tmp_path)) == {}


def test_what_waits_for_the_others_to_be_stored_is_kept_behind_them(rig: Rig) -> None:
    rig.says(away="")
    for number in range(3):
        rig.save(f"fact {number}")
    rig.says(away=None)
    kept = rig.kept

    def slow() -> float:
        rig.clock.now += 3.0
        return rig.clock.now

    kept._clock = slow  # each save takes so long that not all fit
    newer = rig.save("newer")
    assert newer.outcome is Outcome.KEPT and "being stored" in newer.problem
    while kept.catch_up(1.0):
        pass
    assert rig.texts() == ["fact 0", "fact 1", "fact 2", "newer"]


def test_a_kept_one_can_be_superseded(rig: Rig) -> None:
    rig.says(away="")
    old = rig.save("Redis is on port 6379").memory
    new = rig.save("Redis moved to port 7000", supersedes=rig.kept.get(old.id[:4]).id).memory
    assert new.supersedes == old.id
    rig.says(away=None)
    hits = rig.kept.search("redis port", [USER], 5, now_ms=NOW)
    assert [hit.memory for hit in hits] == [new]
    last = rig.save("Redis is gone", supersedes=new.id).memory
    assert last.supersedes == new.id


def test_what_turns_out_to_be_there_is_known_by_the_id_that_was_told(rig: Rig) -> None:
    there = rig.save("The tests need Redis").memory
    rig.says(away="")
    told = rig.save("the tests need redis.").memory
    newer = rig.save("Valkey took its place", supersedes=told.id).memory
    rig.says(away=None)
    assert told.id != there.id
    assert rig.kept.get(told.id).id == there.id
    assert rig.kept.get(newer.id).supersedes == there.id
    rig.reopened()
    assert rig.kept.get(told.id.upper()).id == there.id
    assert rig.kept.forget(told.id).id == there.id
    assert rig.texts() == ["Valkey took its place"]


def test_a_kept_one_can_be_forgotten_and_leaves_nothing(rig: Rig, tmp_path: Path) -> None:
    rig.says(away="")
    first = rig.save("the word is xyzzy").memory
    second = rig.save("another", supersedes=first.id).memory
    assert rig.kept.forget(first.id) == first
    with pytest.raises(StoreUnavailable):
        rig.kept.get(first.id)
    assert not any(b"xyzzy" in path.read_bytes() for path in (tmp_path / "kept").iterdir())
    rig.says(away=None)
    assert rig.texts() == ["another"] and rig.kept.get(second.id).supersedes is None


def test_nothing_of_what_was_stored_is_left_in_the_outbox(rig: Rig, tmp_path: Path) -> None:
    rig.says(away="")
    rig.save("the word is xyzzy")
    assert any(b"xyzzy" in path.read_bytes() for path in (tmp_path / "kept").iterdir())
    rig.says(away=None)
    rig.kept.list([USER], 1)
    assert not any(b"xyzzy" in path.read_bytes() for path in (tmp_path / "kept").iterdir())


def test_what_the_store_refuses_stays_and_blocks_nothing(rig: Rig) -> None:
    rig.says(away="", refuse="nonsense")
    bad = rig.save("this is nonsense").memory
    good = rig.save("this is sense", supersedes=bad.id).memory
    rig.says(away=None)
    assert [memory.id for memory in rig.listed()] == [good.id]
    for _ in range(3):
        rig.kept.list([USER], 1)
    stats = rig.kept.stats()
    assert (stats.kept, stats.refused) == (0, 1)
    assert "the store takes no such text" in stats.problem and bad.id in stats.problem
    calls = (rig.folder / "calls").read_text().splitlines()
    assert calls.count("this is nonsense") == 1
    assert rig.kept.get(bad.id) == bad
    rig.reopened()
    assert rig.kept.forget(bad.id[:6]) == bad
    assert rig.kept.stats().problem == ""


def test_a_store_that_goes_on_failing_at_one_is_not_asked_for_ever(rig: Rig) -> None:
    rig.says(away="", broken="")
    bad = rig.save("one").memory
    rig.says(away=None)
    for tried in range(1, TRIES_MAX + 1):
        for _ in range(3):
            assert rig.texts() == []
            behind = rig.kept.stats()
        calls = (rig.folder / "calls").read_text().splitlines()
        assert calls.count("one") == tried
        assert "the disk of the server is full" in behind.problem
        assert behind.refused == (tried == TRIES_MAX)
        rig.clock.now += TRY_AFTER
    assert rig.kept.get(bad.id) == bad
    rig.says(broken=None)
    assert rig.save("two").outcome is Outcome.NEW


def test_a_store_that_fails_for_a_while_gets_all_in_order(rig: Rig) -> None:
    rig.says(away="", broken="")
    rig.save("one")
    rig.says(away=None)
    kept = rig.save("two")
    assert (kept.outcome, kept.problem) == (Outcome.KEPT, "the disk of the server is full")
    rig.says(broken=None)
    assert rig.save("three").outcome is Outcome.KEPT
    rig.clock.now += TRY_AFTER
    assert rig.save("four").outcome is Outcome.NEW
    assert rig.texts() == ["one", "two", "three", "four"]


def test_an_agent_cannot_replace_what_it_could_not_be_shown(rig: Rig) -> None:
    hidden = rig.save("Bob's own", Place(Scope.AGENT, "bob")).memory
    other = rig.save("of the blog", BLOG).memory
    mine = rig.save("of the shop", SHOP).memory
    rig.says(away="")
    for old in (hidden, other, mine):
        rig.save(f"instead of {old.text}", SHOP, agent="ada", supersedes=old.id)
    rig.says(away=None)
    assert "instead of of the shop" in rig.texts()
    stats = rig.kept.stats()
    assert stats.refused == 2 and "may not replace a memory of project /src/blog" in stats.problem
    assert rig.kept.get(hidden.id) == hidden


def test_a_full_outbox_refuses_clearly(tmp_path: Path) -> None:
    saying(tmp_path, away="")
    each: list[dict[str, Any]] = [{"saves_max": 2}, {"size_max": 20}]
    for bounds in each:
        outbox = KeptSaves(str(tmp_path / f"{len(bounds)}{[*bounds][0]}.db"), **bounds)
        kept = WriteQueue(lambda: Flaky(tmp_path), outbox)
        fields: Any = {"agent": None, "session": None, "now_ms": NOW}
        told = [kept.save(f"fact {number}  ", USER, **fields).memory for number in range(2)]
        with pytest.raises(RelayError) as full:
            kept.save("a fact too many", USER, **fields)
        assert full.value.code == "full" and "this one was not saved" in full.value.message
        assert kept.waiting() == 2
        kept.forget(told[0].id)
        if "saves_max" in bounds:
            kept.save("a fact that fits", USER, **fields)
            assert kept.waiting() == 2
        kept.close()


def test_what_cannot_be_saved_is_not_kept(rig: Rig) -> None:
    rig.says(away="")
    wrong: list[dict[str, Any]] = [
        {"text": " "},
        {"text": "x", "meta": {"a": object()}},
        {"text": "x", "supersedes": "no id"},
    ]
    for fields in wrong:
        with pytest.raises(UsageError):
            rig.save(**fields)
    assert rig.kept.waiting() == 0


def test_a_store_that_is_misconfigured_is_no_store_that_is_away(rig: Rig) -> None:
    rig.says(misconfigured="the vectors have 384 numbers, not 768")
    for _ in range(2):
        with pytest.raises(ConfigError, match="384"):
            rig.save("one")
        with pytest.raises(ConfigError, match="384"):
            rig.kept.stats()
    assert rig.kept.waiting() == 0
    rig.says(misconfigured=None)
    assert rig.save("one").outcome is Outcome.NEW


def test_a_store_that_turns_out_misconfigured_costs_no_kept_save(rig: Rig) -> None:
    rig.says(away="")
    rig.save("one")
    rig.says(away=None, unusable="the vectors have 384 numbers, not 768")
    for _ in range(2 * TRIES_MAX):
        with pytest.raises(ConfigError, match="384"):
            rig.save("two")
        rig.clock.now += TRY_AFTER
    rig.says(unusable=None)
    assert rig.save("three").outcome is Outcome.NEW
    assert rig.texts() == ["one", "three"]


def test_an_outage_however_long_is_no_fault_of_a_save(rig: Rig) -> None:
    rig.save("zero")
    rig.says(away="")
    for number in range(2 * TRIES_MAX):
        assert rig.save(f"fact {number}").outcome is Outcome.KEPT
        rig.clock.now += TRY_AFTER
    rig.says(away=None)
    assert rig.kept.stats().refused == 0
    assert rig.texts() == ["zero", *(f"fact {number}" for number in range(2 * TRIES_MAX))]


def test_what_takes_long_to_open_is_not_tried_by_everybody(rig: Rig) -> None:
    opened = 0

    def slow() -> Backend:
        nonlocal opened
        opened += 1
        rig.clock.now += 3.0
        raise StoreUnavailable("no answer in 3 s")

    rig.kept._open_backend = slow
    for _ in range(10):
        assert rig.save("one").outcome is Outcome.KEPT
    assert opened == 2  # the first time had to import what the store needs
    rig.clock.now += 3.1
    with pytest.raises(StoreUnavailable):
        rig.kept.list([USER], 1)
    assert opened == 3


def test_ids_of_kept_and_stored_ones_are_told_apart(rig: Rig) -> None:
    stored = rig.save("stored", new_id="abc00001").memory
    rig.says(away="", refuse="nonsense")
    kept = rig.save("nonsense", new_id="abc00002").memory
    rig.says(away=None)
    assert rig.kept.get("abc00001") == stored and rig.kept.get("abc00002") == kept
    with pytest.raises(UsageError) as ambiguous:
        rig.kept.get("abc0")
    assert ambiguous.value.code == "ambiguous"
    matches: Any = ambiguous.value.details["matches"]
    assert {match["id"] for match in matches} == {"abc00001", "abc00002"}
    with pytest.raises(NotFound):
        rig.kept.get("zzz")


def test_what_was_kept_twice_is_forgotten_at_once(rig: Rig) -> None:
    """A save that was not answered is done again, and then there are two of it."""
    rig.says(away="")
    first, other = rig.save("the key").memory, rig.save("the key", Place(Scope.AGENT, "ada"))
    again = rig.save("the key").memory
    after = rig.save("what follows", supersedes=first.id).memory
    assert rig.kept.forget(again.id).text == "the key"
    assert rig.kept.get(first.id) == first  # it was replaced: what was said anew is another one
    rig.kept.forget(after.id)
    again = rig.save("the key").memory
    rig.kept.forget(again.id)
    with pytest.raises((NotFound, StoreUnavailable)):
        rig.kept.get(first.id)
    rig.says(away=None)
    assert [memory.id for memory in rig.listed()] == [other.memory.id]
