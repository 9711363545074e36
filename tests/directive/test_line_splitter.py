"""Chunks cut anywhere become lines, within bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.message import BODY_MAX
from relay.directive.grammar import LineSplitter, Scanner, TooLong
from relay.directive.line_splitter import LINE_MAX


def split(chunks: list[str], line_max: int = LINE_MAX) -> list[str]:
    splitter = LineSplitter(line_max)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.rest()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a\nb\n", ["a", "b"]),
        ("a\r\nb", ["a", "b"]),
        ("a\rb\n", ["a\rb"]),
        ("a\r\r\n", ["a\r"]),
        ("a\r", ["a\r"]),
        ("\n\n", ["", ""]),
        ("", []),
        ("a\x0bb\u2028c\x85d\n", ["a\x0bb\u2028c\x85d"]),
    ],
)
def test_line_ends(text: str, lines: list[str]) -> None:
    assert split([text]) == lines


def test_feed_returns_lines_as_soon_as_they_are_complete() -> None:
    splitter = LineSplitter()
    assert splitter.feed("@relay:B") == []
    assert splitter.feed("ob hi\r") == []
    assert splitter.feed("\nnext") == ["@relay:Bob hi"]
    assert splitter.rest() == ["next"]
    assert splitter.rest() == []


@given(st.lists(st.text(st.sampled_from("ab\r\n\x00é😀\ud800"), max_size=12)), st.integers(1, 8))
def test_cuts_do_not_matter(chunks: list[str], line_max: int) -> None:
    whole = "".join(chunks)
    assert split(chunks, line_max) == split([whole], line_max) == split(list(whole), line_max)


def test_a_line_beyond_the_limit_is_cut_counted_and_never_sent() -> None:
    splitter = LineSplitter()
    scanner = Scanner(("relay",))
    held = []
    for chunk in ["@relay:Bob ", *["x" * 65536] * 100, "\n@relay:Bob short\n"]:
        held += splitter.feed(chunk)
    assert splitter.dropped == len("@relay:Bob ") + 100 * 65536 - LINE_MAX
    assert [len(line) for line in held] == [LINE_MAX, len("@relay:Bob short")]
    (found,) = [x for line in held for x in scanner.line(line)]
    assert isinstance(found, TooLong)
    assert found.size > BODY_MAX


def test_a_long_line_in_one_chunk_is_cut_like_one_in_many() -> None:
    splitter = LineSplitter(4)
    assert splitter.feed("abcdef\nabcdef\nab") == ["abcd", "abcd"]
    assert splitter.dropped == 4
