from __future__ import annotations

import json
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.plain import DEPTH_MAX, NotPlain, plain


class Word(StrEnum):
    ONE = "one"


class Number(IntEnum):
    ONE = 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**1000), 2**1000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
def test_what_json_can_say_stays_what_it_is(value: Any) -> None:
    copy = plain(value)
    assert copy == value
    json.dumps(copy, allow_nan=False).encode()


def test_a_copy_shares_nothing() -> None:
    value: dict[str, Any] = {"a": [{"b": 1}]}
    copy = plain(value)
    value["a"][0]["b"] = 2
    assert copy == {"a": [{"b": 1}]}


def test_relatives_of_the_plain_types_become_them() -> None:
    copy = plain(MappingProxyType({Word.ONE: (Word.ONE, Number.ONE, True)}))
    assert copy == {"one": ["one", 1, True]}
    assert [type(item) for item in copy["one"]] == [str, int, bool]
    assert type(next(iter(copy))) is str


def test_lone_surrogates_can_be_encoded() -> None:
    assert plain({"\udc80": "a\ud800b"}) == {"\ufffd": "a\ufffdb"}


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def wide() -> list[Any]:
    many: list[Any] = ["x"] * 10
    for _level in range(30):
        many = [many, many]
    return many


def deep() -> list[Any]:
    nested: list[Any] = []
    for _level in range(DEPTH_MAX + 1):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    "value",
    [
        Path("/"),
        {"a": {1, 2}},
        [b"bytes"],
        {1: "x"},
        float("nan"),
        [float("inf")],
        10**10_000,
        object(),
        itself(),
        wide(),
        deep(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_say_is_refused(value: object) -> None:
    with pytest.raises(NotPlain) as caught:
        plain(value)
    assert str(caught.value)
