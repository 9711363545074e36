"""What is printed for a person steers no terminal and fires nothing."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.visible import is_visible, visible, visible_lines
from relay.directive.grammar import Scanner

TEXTS = st.text(
    st.one_of(
        st.characters(codec=None), st.sampled_from("@relay:Bob\\ \t\n\x1b\x9b\u202e\u200b-*>")
    )
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢字 🙂", "plain é 漢字 🙂"),
        ("\x1b[2J", "^[[2J"),
        ("a\x00b\r\n", "a^@b^M^J"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202eabc\u200b", "\\u202eabc\\u200b"),
        ("\u3164\ufe01\U000e0041", "\\u3164\\ufe01\\ue0041"),
        ("@relay:Bob hi", "@relay\\:Bob hi"),
        ("so @deploy:x, x@relay:y", "so @deploy\\:x, x@relay\\:y"),
        ("git@host:path, http://***@far:6333, @types/node, a @ b: c", None),
        ("@relay\\:Bob", None),
    ],
    ids=lambda text: "" if text is None else ascii(text)[:12],
)
def test_what_is_shown(text: str, shown: str | None) -> None:
    assert visible(text) == (text if shown is None else shown)


def test_lines_and_tabs_stay() -> None:
    assert visible_lines("a\tb\nc\x07") == "a\tb\nc^G"


@given(TEXTS)
def test_nothing_hidden_stays_and_twice_is_once(text: str) -> None:
    shown = visible(text)
    assert is_visible(shown) and visible(shown) == shown
    assert all(unicodedata.category(c)[0] != "C" and unicodedata.category(c) != "Zl" for c in shown)


@given(TEXTS, st.integers(0, 20), st.sampled_from(["relay", "memory", "broadcast"]))
def test_no_window_on_what_is_shown_holds_a_pattern(text: str, cut: int, name: str) -> None:
    for line in visible_lines(f"{text}@{name}:Bob hi\n@deploy:x now").split("\n"):
        for row in (line, line[cut:], f"- {line}", f"   {line}"):
            scanner = Scanner(("relay", "memory", "deploy"))
            assert scanner.line(row) == [] and not scanner.open, row
