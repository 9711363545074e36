"""Near duplicates: spelling may differ, facts may not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.memory.rules import near_key

SOME = "run tests with redis port deploy main Ada Bob v1.2 8080 --all PATH"
WORDS = st.lists(
    st.sampled_from(SOME.split()),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize(
    "other",
    [
        "use pnpm in the web folder",
        "Use pnpm in web folder.",
        "Please remember that use pnpm in the web folder!",
        "- Use `pnpm` in the “web” folder",
        "Use  pnpm\n in the (web) folder",
    ],
)
def test_the_same_in_another_spelling(other: str) -> None:
    assert near_key(other) == near_key("Use pnpm in the web folder")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Port 8080", "Port 8081"),
        ("Timeout is 1.5 s", "Timeout is 15 s"),
        ("Timeout is -5", "Timeout is 5"),
        ("Ask Ada", "Ask Bob"),
        ("Use tabs", "Do not use tabs"),
        ("Use tabs", "Never use tabs"),
        ("Use tabs", "Use tabs?"),
        ("CI is broken", "CI was broken"),
        ("Run A before B", "Run B before A"),
        ("Pass -v", "Pass -V"),
        ("Set PATH", "Set path"),
        ("Import from a.b", "Import from ab"),
        ("x <= 3", "x >= 3"),
        ("Option A", "Option B"),
        ("It can run", "It can't run"),
    ],
)
def test_another_fact_is_another_key(one: str, other: str) -> None:
    assert near_key(one) != near_key(other)


@given(WORDS, st.data())
def test_another_word_anywhere_is_another_fact(words: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(words) - 1))
    new = data.draw(st.sampled_from(["not", "never", "no", "8081", "Eve", "v1.3", "--none"]))
    text = " ".join(words)
    if words[at] != new:
        assert near_key(" ".join([*words[:at], new, *words[at + 1 :]])) != near_key(text)
    assert near_key(" ".join([*words[:at], new, *words[at:]])) != near_key(text)


@given(st.text(max_size=200))
def test_no_digit_is_ever_dropped(text: str) -> None:
    def digits(of: str) -> list[str]:
        return re.findall(r"[0-9]", of)

    key = near_key(text)
    assert digits(key) == digits(text)
    assert bool(key) == bool(text.strip())


@given(st.text(max_size=200))
def test_white_space_is_nothing(text: str) -> None:
    assert near_key(f" {' '.join(text.split())}\n") == near_key(text)
