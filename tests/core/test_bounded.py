"""Containers that forget what is oldest."""

from __future__ import annotations

from relay.core.bounded import BoundedDict, RecentSet


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
