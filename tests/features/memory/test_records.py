"""The records: what a place may be, and the way through JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.agent_names import valid_name
from relay.core.errors import UsageError
from relay.features.memory.records import TIME_MAX, Memory, Place, Scope, from_json, to_json

PLACES = [Place(Scope.USER), Place(Scope.PROJECT, "/src/a b"), Place(Scope.AGENT, "ada")]
words = st.text(st.characters(exclude_categories=["Cs", "Zs", "Cc"]), min_size=1, max_size=50)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)


def test_a_place_is_the_same_however_it_is_written() -> None:
    assert Place(Scope.AGENT, "Ada") == PLACES[2]
    assert Place(Scope.PROJECT, "//src/./x/../a b/") == PLACES[1]
    assert [str(place) for place in PLACES] == ["user", "project /src/a b", "agent ada"]


@pytest.mark.parametrize(
    ("scope", "owner"),
    [
        (Scope.USER, "me"),
        (Scope.PROJECT, ""),
        (Scope.PROJECT, "src"),
        (Scope.PROJECT, "/a\0b"),
        (Scope.PROJECT, "/\udcff"),
        (Scope.PROJECT, "/" + "x" * 5000),
        (Scope.AGENT, ""),
        (Scope.AGENT, "a b"),
        (Scope.AGENT, "memory"),
    ],
)
def test_what_cannot_be_an_owner_is_refused(scope: Scope, owner: str) -> None:
    with pytest.raises(UsageError) as caught:
        Place(scope, owner)
    assert caught.value.hint


@given(
    st.builds(
        Memory,
        id=st.just("abc12345"),
        text=words,
        place=st.sampled_from(PLACES),
        agent=st.none()
        | st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,63}", fullmatch=True).filter(valid_name),
        session=st.none() | st.from_regex(r"[!-~]{1,64}", fullmatch=True),
        created_ms=st.integers(0, TIME_MAX),
        updated_ms=st.integers(0, TIME_MAX),
        supersedes=st.none() | st.just("zzz"),
        meta=st.dictionaries(words, values, max_size=3),
    )
)
def test_json_loses_nothing(memory: Memory) -> None:
    assert from_json(json.loads(json.dumps(to_json(memory)))) == memory


GOOD = to_json(Memory("abc12345", "x", PLACES[1], "ada", None, 1, 2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": "A B"},
        {"id": None},
        {"text": ""},
        {"text": " x"},
        {"scope": "world"},
        {"owner": "src"},
        {"agent": 3},
        {"agent": "x" * 65},
        {"agent": "Ada\n@relay:Bob x"},
        {"agent": ""},
        {"session": "x" * 65},
        {"session": "a b"},
        {"session": "\x1b[2J"},
        {"created_ms": TIME_MAX + 1},
        {"updated_ms": 2**53 - 1},
        {"created_ms": "now"},
        {"created_ms": -1},
        {"updated_ms": True},
        {"supersedes": "?"},
        {"meta": [1]},
    ],
)
def test_what_is_no_memory_is_refused(wrong: dict[str, Any]) -> None:
    assert from_json(GOOD).text == "x"
    with pytest.raises(UsageError) as caught:
        from_json({**GOOD, **wrong})
    assert caught.value.hint
