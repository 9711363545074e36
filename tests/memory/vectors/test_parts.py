"""Payloads, words, the lexicon, and what a server is called."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.memory.local.duplicates import near_key
from relay.memory.records import Memory, Place, Scope, to_json
from relay.memory.vectors import payload, words
from relay.memory.vectors.qdrant_opening import server_name
from relay.memory.vectors.words import Lexicon

MEMORY = Memory(
    "abc12345",
    "The tests need Redis",
    Place(Scope.PROJECT, "/src/my shop"),
    "ada",
    None,
    1_795_000_000_000,
    1_795_000_000_001,
    "abc00000",
    {"a": [1, {"b": None}], "ü": "x"},
)

# -- payloads


def test_a_memory_survives_its_payload() -> None:
    for memory in (MEMORY, replace(MEMORY, agent=None, session="run-1", supersedes=None, meta={})):
        fields = payload.to_payload(memory)
        assert all(isinstance(value, str | int) for value in fields.values())
        assert payload.from_payload(json.loads(json.dumps(fields))) == memory
        assert not any(char.isspace() for char in str(fields[payload.PLACE]))


def test_a_text_that_was_changed_with_mem0_is_the_text() -> None:
    changed = {**payload.to_payload(MEMORY), payload.TEXT: " another\n"}
    assert payload.from_payload(changed) == replace(MEMORY, text="another")


@pytest.mark.parametrize(
    "fields",
    [
        None,
        {},
        {"data": "somebody's", "user_id": "ann"},
        {payload.OURS: "999"},
        {payload.RECORD: "{"},
        {payload.RECORD: "[]"},
        {payload.RECORD: '{"id": "x"}'},
        {payload.RECORD: json.dumps({**to_json(MEMORY), "agent": 7})},
        {payload.RECORD: json.dumps({**to_json(MEMORY), "updated_ms": "now"})},
        {payload.RECORD: json.dumps({**to_json(MEMORY), "meta": [1]})},
        {payload.RECORD: json.dumps({**to_json(MEMORY), "scope": "moon"})},
        {payload.RECORD: json.dumps({**to_json(MEMORY), "id": 5})},
        {payload.TEXT: ""},
        {payload.TEXT: 7},
        {payload.TEXT: "x" * 20_000},
    ],
)
def test_what_is_not_of_relay_is_none(fields: Any) -> None:
    whole = {**payload.to_payload(MEMORY), **fields} if fields else fields
    if fields and payload.TEXT in fields and "user_id" in fields:
        whole = fields
    assert payload.from_payload(whole) is None


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60))
def test_a_place_survives_its_name(owner: str) -> None:
    for place in (Place(Scope.PROJECT, f"/{owner}"), Place(Scope.USER)):
        name = payload.place_name(place)
        assert payload.place_of(name) == place
        assert not any(char.isspace() for char in name)


@pytest.mark.parametrize("name", ["ann", "relay:", "relay:nobody:x", "relay:project:x", None, 3])
def test_other_names_are_no_places(name: object) -> None:
    assert payload.place_of(name) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_near_duplicates_have_one_key(one: str, other: str) -> None:
    if one.isprintable() and other.isprintable():
        same = near_key(one) == near_key(other)
        assert (payload.near(one) == payload.near(other)) == same


# -- words


def test_forms_of_a_word_are_one() -> None:
    assert words.stems("Rounding the INVOICES") == words.stems("rounds invoice")
    assert words.held(["rounded", "taxes", "6379"], "We round tax up on 6379.") == 3
    assert words.held(["redis"], "the rediscovery") == 0


def test_other_languages_and_stop_words_alone_are_kept() -> None:
    assert words.stems("日本語 müssen") == ["日本語", "müssen"]
    assert words.stems("to be or not to be") and words.stems("'") == []


def test_a_vector_is_sorted_and_counts() -> None:
    numbers, weights = words.of_text("redis redis port")
    assert numbers == sorted(set(numbers)) and len(numbers) == len(weights) == 2
    assert max(weights) > min(weights) > 0
    assert words.of_query(["redis", "port", "Redis"])[0] == numbers or len(numbers) == 2
    assert words.of_text("") == ([], [])


def test_a_word_says_less_in_a_long_text() -> None:
    short, long = words.of_text("redis"), words.of_text("redis " + "filler " * 60)
    at = long[0].index(short[0][0])
    assert long[1][at] < short[1][0]


# -- the lexicon


def bm25(texts: dict[str, str], query: list[str]) -> dict[str, float]:
    """Written anew, from the formula."""
    wanted = {words.stem(word) for word in query}
    found: dict[str, float] = {}
    for key, text in texts.items():
        counts = Counter(words.stems(text))
        for word in wanted & set(counts):
            frequency = sum(word in words.stems(other) for other in texts.values())
            rarity = math.log(1 + (len(texts) - frequency + 0.5) / (frequency + 0.5))
            length = counts.total() / words.MEAN_LENGTH
            weight = counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * length))
            found[key] = found.get(key, 0.0) + rarity * weight
    return found


def test_the_lexicon_is_bm25_whatever_was_put_and_dropped() -> None:
    rng = random.Random(0)
    vocabulary = [f"word{number}" for number in range(40)]
    lexicon, texts = Lexicon(), dict[str, str]()
    for _ in range(400):
        key = f"k{rng.randrange(150)}"
        if rng.random() < 0.4:
            lexicon.drop(key)
            texts.pop(key, None)
        else:
            texts[key] = " ".join(rng.choices(vocabulary, k=rng.randrange(1, 12)))
            lexicon.put(key, f"id-{key}", words.weights(texts[key]))
    for _ in range(20):
        query = rng.choices([*vocabulary, "unknown"], k=3)
        expected = bm25(texts, query)
        numbers = words.of_query(query)[0]
        assert lexicon.search(numbers, 1000) == pytest.approx(expected, rel=1e-5)
        best = lexicon.search(numbers, 3)
        assert sorted(best.values()) == pytest.approx(sorted(expected.values())[-3:], rel=1e-5)


def test_an_empty_lexicon_finds_nothing() -> None:
    assert Lexicon().search([1, 2], 5) == {}


# -- the name of a server


@pytest.mark.parametrize(
    ("store", "name"),
    [
        ({}, ""),
        ({"path": "/x"}, ""),
        ({"url": "https://ann:secret@db:6333/base"}, "https://db:6333/base"),
    ],
)
def test_the_name_of_a_qdrant_server(store: dict[str, Any], name: str) -> None:
    assert server_name(store) == name
