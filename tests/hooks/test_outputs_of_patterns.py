from __future__ import annotations

from typing import Any

import pytest

from relay.core.message import BODY_MAX
from relay.hooks.output_keys import HandlerError
from relay.hooks.outputs import Result, read_pattern_value


class _Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Result()),
        ("", Result()),
        ("text", Result(("text",))),
        ({}, Result()),
        ({"inject": "text"}, Result(("text",))),
        ({"inject": ["one", "", " \n", "two"]}, Result(("one", "two"))),
        ({"inject": ("one",)}, Result(("one",))),
        ({"inject": None, "stop": None}, Result()),
        ({"stop": True}, Result(stop=True)),
        ({"Inject": "text", "STOP": True}, Result(("text",), True)),
    ],
)
def test_what_is_allowed(value: object, expected: Result) -> None:
    assert read_pattern_value(value, "h") == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        False,
        b"bytes",
        ["list"],
        object(),
        _Unprintable(),
        {"inject": 3},
        {"inject": ["one", 2]},
        {"inject": {"a": 1}},
        {"stop": "yes"},
        {"stop": 1},
        {"injct": "text"},
        {3: "text"},
        "x" * (BODY_MAX + 1),
        {"inject": ["x" * BODY_MAX, "y"]},
    ],
)
def test_nonsense_is_an_error_that_names_the_handler(value: Any) -> None:
    with pytest.raises(HandlerError) as caught:
        read_pattern_value(value, "@deploy:* deploy")
    assert caught.value.message.startswith("@deploy:* deploy returned")
    assert caught.value.hint
    assert len(caught.value.message) < 300


def test_a_misspelt_key_names_the_right_one() -> None:
    with pytest.raises(HandlerError) as caught:
        read_pattern_value({"injct": "text"}, "h")
    assert "did you mean 'inject'?" in caught.value.hint
