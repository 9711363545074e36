"""Text to word pieces: by a small vocabulary here, by the real one in test_minilm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.memory.embedding.minilm import SPECIAL, WORD_MAX, WordPiece

PIECES = [*SPECIAL, "un", "##aff", "##able", "a", "##b", "c", "-", "#", "日", "naive", "σ", "i"]
WORDS = WordPiece(PIECES)


def pieces(text: str, limit: int = 100) -> list[str]:
    numbers = WORDS.encode(text, limit)
    assert (PIECES[numbers[0]], PIECES[numbers[-1]]) == ("[CLS]", "[SEP]")
    return [PIECES[number] for number in numbers[1:-1]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        (" \t\r\n\u00a0\u3000\u2028 ", []),
        ("unaffable", ["un", "##aff", "##able"]),
        ("UnAFFable", ["un", "##aff", "##able"]),
        ("unx", ["[UNK]"]),  # no part of a word stands for it
        ("a-c", ["a", "-", "c"]),
        ("a日c", ["a", "日", "c"]),
        ("na\u00efve NAI\u0308VE", ["naive", "naive"]),
        ("a\u200bb a\u0000b a\ufffdb", ["a", "##b"] * 3),  # control characters join
        ("\u03a3\u03a3 \u03a3", ["[UNK]", "σ"]),  # no other sigma at the end of a word
        ("\u0130", ["i"]),
        ("a[MASK]c", ["a", "[MASK]", "c"]),
        ("##b", ["#", "#", "[UNK]"]),
        ("a" + "b" * (WORD_MAX - 1), ["a", *["##b"] * (WORD_MAX - 1)]),
        ("a" + "b" * WORD_MAX, ["[UNK]"]),
    ],
)
def test_words_fall_into_the_longest_known_pieces(text: str, found: list[str]) -> None:
    assert pieces(text, 1000) == found


def test_the_end_of_a_long_text_is_dropped_also_inside_a_word() -> None:
    assert pieces("unaffable a c", limit=4) == ["un", "##aff"]
    assert pieces("unaffable a c", limit=5) == ["un", "##aff", "##able"]
    assert pieces("unaffable", limit=2) == []


@given(st.text(), st.integers(2, 20))
def test_any_text_has_numbers_within_the_limit(text: str, limit: int) -> None:
    numbers = WORDS.encode(text, limit)
    assert 2 <= len(numbers) <= limit
    assert numbers == [*WORDS.encode(text, 10_000)[:-1][: limit - 1], numbers[-1]]
    assert all(0 <= number < len(WORDS) for number in numbers)


@pytest.mark.parametrize(
    ("vocabulary", "reason"), [(["a"], "lacks"), ([*SPECIAL, "a", "a"], "twice")]
)
def test_a_wrong_vocabulary_is_refused(vocabulary: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        WordPiece(vocabulary)
