"""The records: what a place may be, and the way through JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.agent_names import valid_name
from relay.core.errors import UsageError
from relay.features.memory.records import TIME_MAX, Memory, Place, Scope, from_json, to_json
from relay.features.memory.rules import Secrets, clean_meta, clean_text, near_key

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


# -- The rules of a text: secrets in it, what it nearly repeats, and the ids of memories.

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
SOME_WORDS = st.lists(st.sampled_from(SOME.split()), min_size=1, max_size=8)


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


@given(SOME_WORDS, st.data())
def test_another_word_anywhere_is_another_fact(any_words: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(any_words) - 1))
    new = data.draw(st.sampled_from(["not", "never", "no", "8081", "Eve", "v1.3", "--none"]))
    text = " ".join(any_words)
    if any_words[at] != new:
        assert near_key(" ".join([*any_words[:at], new, *any_words[at + 1 :]])) != near_key(text)
    assert near_key(" ".join([*any_words[:at], new, *any_words[at:]])) != near_key(text)


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
