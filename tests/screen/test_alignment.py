"""Aligning looks at a screen with what was seen before."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.screen.alignment import KEEP, ScreenAlignment, match


def new(transcript: ScreenAlignment, rows: list[str], now: float) -> list[str]:
    """The rows of a look that were not heard before; all are heard afterwards."""
    aligned = transcript.align(rows, now, now - 1)
    fresh = [entry.key for entry in aligned.entries if not entry.emitted]
    for entry in aligned.entries:
        entry.emitted = True
    return fresh


def test_the_same_row_twice_is_two_rows() -> None:
    transcript = ScreenAlignment()
    assert new(transcript, ["a", "same"], 1.0) == ["a", "same"]
    assert new(transcript, ["a", "same", "same"], 2.0) == ["same"]
    assert new(transcript, ["same", "b", "same"], 3.0) == ["b"]
    assert new(transcript, ["same", "b", "same", "b", "same"], 4.0) == ["b", "same"]


def test_a_picture_drawn_anew_may_begin_lower_where_that_explains_more_of_it() -> None:
    transcript = ScreenAlignment()
    twice = ["@relay:Bob <<<", "some words", ">>>"] * 2
    stood = transcript.align(
        [*twice, "a line that is longer than the words above it", "> "], 1.0, 0.0
    ).entries
    for entry in stood:
        entry.emitted = True
    keys = [*twice[:3], "a line that is longer than the words above it", *twice[:2], "some", "> "]
    aligned = transcript.align(keys, 2.0, 1.0, stood=stood, anew=True)
    assert [entry.emitted for entry in aligned.entries] == [True] * 4 + [False] * 3 + [True]


def test_an_old_turn_of_a_spinner_does_not_move_a_picture_drawn_anew() -> None:
    transcript = ScreenAlignment()
    rows = ["> go", "@relay:Carol hi", "⠼ thinking", "@relay:Bob hello", "⠼ thinking"]
    for entry in transcript.align(rows, 1.0, 0.0).entries:
        entry.emitted = True
    rows = ["> go", "@relay:Carol hi", "@relay:Bob hello", "@relay:Bob hello", "⠸ thinking"]
    stood = transcript.align(rows, 2.0, 1.0).entries
    for entry in stood[:4]:
        entry.emitted = True
    aligned = transcript.align([*rows[:4], "⠼ thinking"], 3.0, 2.0, stood=stood, anew=True)
    assert [entry.emitted for entry in aligned.entries[:4]] == [True] * 4


def test_a_row_that_is_wrapped_anew_before_it_settled_was_not_wiped() -> None:
    transcript = ScreenAlignment()
    for entry in transcript.align(["> go", "one turn of a spinner"], 0.0, 0.0).entries:
        entry.emitted = True
    transcript.align(["> go", "@relay:Bob one two three", "its next turn"], 1.0, 0.0)
    rows = ["> go", "@relay:Bob one", " two three", "one turn of a spinner"]
    aligned = transcript.align(rows, 2.0, 1.0, resized=True, anew=True)
    assert [entry.emitted for entry in aligned.entries] == [True, False, False, True]
    assert "@relay:Bob one two three" not in [entry.key for entry in aligned.gone]


def test_a_row_is_drawn_over_only_where_it_stands() -> None:
    transcript = ScreenAlignment()
    first = ["the chat", "@relay:Bob what was said first", "keys: Esc"]
    notice = ["the chat", "@relay:Bob what a notice", "keys: Esc"]
    assert new(transcript, first, 1.0) == first
    assert new(transcript, notice, 2.0) == new(transcript, notice, 3.0) == []
    assert new(transcript, ["another page", "keys: Esc"], 4.0) == ["another page"]
    second = ["the chat", "@relay:Bob what was said second", "keys: Esc"]
    assert new(transcript, second, 5.0) == [second[1]]


ONCE = ["> go", "@relay:Bob onetwo", "threefour", "> again", "same words"]


@pytest.mark.parametrize(
    "rewrapped",
    [
        ["> go", "@relay:Bob onetwothree", "four", "> again", "same words"],
        ["> go", "@relay:Bob", "onetwo", "three", "four", "> again", "same words"],
        ["> go", "@relay:Bob onetwothreefour", "> again", "same words"],
        ["> go", "@relay:Bob onetwothree", "four> again", "same words"],
        ["Bob onetwothree", "four", "> again", "same words"],
    ],
)
def test_the_same_words_below_what_was_wrapped_anew_are_new(rewrapped: list[str]) -> None:
    transcript = ScreenAlignment()
    said = ["> again", "same words"]
    new(transcript, [*said, *ONCE], 1.0)
    assert new(transcript, rewrapped, 2.0) == []
    assert new(transcript, [*rewrapped, *said], 3.0) == said
    assert new(transcript, [*said, *ONCE, *said], 4.0) == []
    assert new(transcript, [*ONCE, *said, *said], 5.0) == said


def test_after_a_resize_older_lines_that_are_as_wide_are_not_what_is_in_view() -> None:
    transcript = ScreenAlignment()
    older = [">1", "Bob1", "thesamewords", "inbothofthem", "Ready."]
    view = [">2", "Bob2the", "samewordsin", "bothofthem", "Ready."]
    new(transcript, older, 1.0)
    new(transcript, [*older, *view], 1.5)
    new(transcript, view, 2.0)
    rows = [">2", "Bob2", "thesamewords", "inbothofthem", "Ready."]
    aligned = transcript.align(rows, 3.0, 2.0, resized=True)
    assert [entry.key for entry in aligned.entries if not entry.emitted] == []


def test_of_two_lines_alike_the_one_below_is_wrapped_anew() -> None:
    transcript = ScreenAlignment()
    new(transcript, ["say", "onetwo", "three", "done", "say", "onetwo", "three", "done"], 1.0)
    assert new(transcript, ["say", "one", "twothree", "done"], 2.0) == []
    said = ["say", "one", "twothree", "done"]
    assert new(transcript, [*said, *said], 3.0) == []
    assert new(transcript, [*said, *said, *said], 4.0) == said


def test_a_row_that_changes_before_it_settles_keeps_its_birth() -> None:
    transcript = ScreenAlignment()
    transcript.align(["head", "grow"], 1.0, 0.0)
    entry = transcript.align(["head", "growing"], 2.0, 1.0).entries[1]
    assert (entry.born_at, entry.changed_at, entry.emitted) == (1.0, 2.0, False)
    assert [e.key for e in transcript.entries] == ["head", "growing"]


def test_what_scrolls_away_before_it_settles_is_told() -> None:
    transcript = ScreenAlignment()
    transcript.align(["a", "b", "c"], 1.0, 0.0)
    aligned = transcript.align(["c", "d"], 2.0, 1.0)
    assert [entry.key for entry in aligned.gone] == ["a", "b"]


def test_the_memory_is_bounded() -> None:
    transcript = ScreenAlignment()
    for number in range(100):
        transcript.add_emitted([f"{number} {row}" for row in range(100)], 1.0)
    assert len(transcript.entries) <= KEEP + 200


@pytest.mark.parametrize(
    ("old", "fresh", "pairs"),
    [
        ([], ["a"], []),
        (["a"], [], []),
        (["a", "b"], ["b"], [(1, 0)]),
        (["x", "x"], ["x", "x"], [(0, 0), (1, 1)]),
        (["a", "long row here", "b"], ["b", "long row here"], [(1, 1)]),
    ],
)
def test_the_heaviest_sequence(
    old: list[str], fresh: list[str], pairs: list[tuple[int, int]]
) -> None:
    assert match(old, fresh) == pairs


@given(st.lists(st.sampled_from("abcdef")), st.lists(st.sampled_from("abcdef")))
def test_matches_are_equal_and_increase(old: list[str], fresh: list[str]) -> None:
    pairs = match(old, fresh)
    assert all(old[o] == fresh[n] for o, n in pairs)
    assert all(a < c and b < d for (a, b), (c, d) in zip(pairs, pairs[1:], strict=False))


@given(st.integers(0, 10_000))
def test_any_window_of_what_was_seen_says_nothing_new(seed: int) -> None:
    rng = random.Random(seed)
    transcript = ScreenAlignment()
    rows = [rng.choice(["ok", "}", f"text {number}", "@relay:Bob go"]) for number in range(60)]
    rows = [f"{number}" if number % 5 == 0 else row for number, row in enumerate(rows)]
    heard: list[str] = []
    for start in range(0, 41, 4):
        heard += new(transcript, rows[start : start + 20], float(start))
    assert heard == rows
    for moment in range(10):
        start = rng.randrange(40)
        assert new(transcript, rows[start : start + 20], 100.0 + moment) == []
