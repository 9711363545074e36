"""Checkpoints as dataclasses with one JSON form, ids, and bounded containers."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from relay.core.bounded import BoundedDict, RecentSet
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import AgentState
from relay.core.state import from_json, to_json


@dataclass
class Part:
    text: str = ""
    pieces: dict[int, str] = field(default_factory=dict)


@dataclass
class Whole:
    state: AgentState = AgentState.STARTING
    due: float | None = None
    pair: tuple[str, ...] = ()
    parts: BoundedDict[str, Part] = field(default_factory=lambda: BoundedDict(2))
    waiting: list[Part] = field(default_factory=list)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=2))
    heard: RecentSet[str] = field(default_factory=lambda: RecentSet(2))
    counts: dict[str, list[int]] = field(default_factory=dict)


def filled() -> Whole:
    whole = Whole(AgentState.BUSY, 1.5, ("a", "b"), counts={"p": [1, 2]})
    whole.parts["one"] = Part("x", {3: "later"})
    whole.waiting.append(Part("y"))
    whole.last.append("z")
    whole.heard.add("w")
    return whole


def test_a_state_comes_back_from_json_with_the_types_that_it_had() -> None:
    read = from_json(Whole, json.loads(json.dumps(to_json(filled()))))
    assert to_json(read) == to_json(filled())
    assert read.state is AgentState.BUSY
    assert read.pair == ("a", "b")
    assert read.parts["one"].pieces == {3: "later"}


def test_containers_keep_their_limits() -> None:
    read = from_json(Whole, to_json(filled()))
    for name in "mno":
        read.parts[name] = Part()
        read.last.append(name)
        read.heard.add(name)
    for kept in (read.parts, read.last, read.heard):
        assert list(kept) == ["n", "o"]


def test_what_is_changed_later_does_not_change_a_checkpoint() -> None:
    whole = filled()
    taken = to_json(whole)
    whole.last.append("more")
    whole.counts["p"].append(3)
    assert taken == to_json(filled())


def test_an_older_checkpoint_lacks_fields_and_has_others() -> None:
    read = from_json(Whole, {"due": None, "forgotten": 1})
    assert to_json(read) == to_json(Whole())


ALPHABET = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_an_id_holds_its_time_and_its_randomness(now_ms: int, randomness: bytes) -> None:
    identifier = new_ulid(now_ms, randomness)
    assert len(identifier) == 26 and set(identifier) <= ALPHABET and identifier[0] <= "7"
    value = 0
    for char in identifier:
        value = value * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(char)
    assert value >> 80 == now_ms
    assert (value & (2**80 - 1)).to_bytes(10, "big") == randomness


def test_ids_sort_by_time_and_differ() -> None:
    assert new_ulid(1) < new_ulid(2) < new_ulid(10**12)
    assert new_ulid(5) != new_ulid(5)


def test_a_derived_id_depends_on_every_part_of_its_key() -> None:
    assert derived_ulid(1, "run", "words", "1") == derived_ulid(1, "run", "words", "1")
    others = [
        derived_ulid(2, "run", "words", "1"),
        derived_ulid(1, "run", "words", "2"),
        derived_ulid(1, "runwords", "", "1"),
        derived_ulid(1, "run", "words\ud800", "1"),
    ]
    assert len({*others, derived_ulid(1, "run", "words", "1")}) == 5


def test_the_oldest_key_is_forgotten_beyond_the_limit() -> None:
    store: BoundedDict[str, int] = BoundedDict(2)
    assert store.put("a", 1) is None
    store["b"] = 2
    assert store.put("c", 3) == ("a", 1)
    assert dict(store) == {"b": 2, "c": 3}


def test_a_key_that_is_written_again_becomes_the_newest() -> None:
    store = BoundedDict(2, {"a": 1, "b": 2})
    store["a"] = 3
    store.setdefault("c", 4)
    assert list(store.items()) == [("a", 3), ("c", 4)]


def test_what_is_restored_keeps_the_newest() -> None:
    assert list(BoundedDict(2, [("a", 1), ("b", 2), ("c", 3)])) == ["b", "c"]
    assert list(RecentSet(2, "abc")) == ["b", "c"]


def test_a_recent_set_says_what_is_new() -> None:
    seen: RecentSet[str] = RecentSet(2)
    assert seen.add("a") and seen.add("b") and not seen.add("a")
    assert seen.add("c")
    assert "b" not in seen and list(seen) == ["a", "c"]
    seen.discard("a")
    seen.discard("unknown")
    assert len(seen) == 1
    seen.clear()
    assert not seen
