"""The rules of a text: secrets in it, what it nearly repeats, and the ids of memories."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.errors import UsageError
from relay.features.memory import rules
from relay.features.memory.rules import Secrets, clean_meta, clean_text, near_key

TOKEN = "ghp_" + "Ab3dE5gH" * 4 + "1jK2"


def test_a_secret_is_masked_in_the_text_and_anywhere_in_the_meta() -> None:
    text = clean_text(f"The token is {TOKEN}, for CI", Secrets.REDACT)
    assert text.startswith("The token is ghp_****") and text.endswith("*, for CI")
    meta = clean_meta({"deep": [{"a": TOKEN}], "plain": 3, TOKEN: None}, Secrets.REDACT)
    assert meta is not None and meta["plain"] == 3 and TOKEN not in repr(meta)
    assert clean_meta(None, Secrets.REDACT) is None


def test_a_secret_is_refused_without_being_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        clean_text(f"The token is {TOKEN}", Secrets.REFUSE)
    assert caught.value.code == "secret" and TOKEN not in str(caught.value)
    with pytest.raises(UsageError):
        clean_meta({TOKEN: 1}, Secrets.REFUSE)
    assert clean_text("The token is in the vault", Secrets.REFUSE) == "The token is in the vault"


def test_a_secret_that_is_to_be_kept_stays() -> None:
    assert TOKEN in clean_text(f"The token is {TOKEN}", Secrets.KEEP)


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


def test_ids_have_eight_characters_of_crockfords_alphabet() -> None:
    assert rules.new_id(b"\0" * 5) == "00000000"
    assert rules.new_id(b"\xff" * 5) == "zzzzzzzz"
    many = {rules.new_id() for _ in range(1000)}
    assert len(many) == 1000
    assert all(len(id_) == 8 and set(id_) <= set(rules.ID_ALPHABET) for id_ in many)


def test_an_id_is_read_as_it_was_meant() -> None:
    assert rules.readings(" OIL5 ") == ["oil5", "0115"]
    assert rules.readings("abc") == ["abc"]
    assert rules.readings("\ud800abc") == ["?abc"]
    with pytest.raises(UsageError):
        rules.readings("ab")
