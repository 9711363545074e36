"""Cleaned text obeys no terminal and hides nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.directive.escape import clean


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\tand\nlines", "plain\tand\nlines"),
        ("a\r\nb\rc\r\r\n", "a\nb\nc\n\n"),
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("\x1b[201~rm\r", "␛[201~rm\n"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1bP1$q\x1b\\ \x1b_x\x1b\\ \x1bOA", "␛P1$q␛\\ ␛_x␛\\ ␛OA"),
        ("\x9b201~", "<U+009B>201~"),
        ("\x85", "<U+0085>"),
        ("\x00\x03\x04\x7f", "␀␃␄␡"),
        ("\ud800x\udfff", "\ufffdx\ufffd"),
        ("a\u202eb\u2066c\u200bd\ufeff", "a<U+202E>b<U+2066>c<U+200B>d<U+FEFF>"),
        ("a\u2028b", "a<U+2028>b"),
        ("\U000e0041", "<U+E0041>"),
        ("👩\u200d🔬 ❤\ufe0f नि\u200c", "👩\u200d🔬 ❤\ufe0f नि\u200c"),
        ("é 日本語 😀 \xa0", "é 日本語 😀 \xa0"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


TEXTS = st.text(
    st.one_of(
        st.characters(codec=None), st.sampled_from("\x1b\r\n\t\x00\x7f\x9b[201~\u202e\u200b\ud800")
    )
)


@given(TEXTS)
def test_no_control_survives(text: str) -> None:
    result = clean(text)
    for char in result:
        assert char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp"), char
        assert unicodedata.bidirectional(char) not in (
            *("LRE", "RLE", "LRO", "RLO", "PDF"),
            *("LRI", "RLI", "FSI", "PDI"),
        )
    result.encode()


@given(TEXTS)
def test_cleaning_twice_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_stays(text: str) -> None:
    assert clean(text) == text
