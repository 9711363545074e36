"""Whatever a renderer draws around an answer, its messages are heard as they were said."""

from __future__ import annotations

import pytest

from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.renderings import CLOSINGS, listen
from tests.screen.screens import until


def heard(rows: list[str], cols: int = 60) -> list[Found]:
    """What is heard of these rows on a full screen with an input line below."""
    picture = "".join(f"\x1b[{y};1H{row}" for y, row in enumerate([*rows, "", "> "], 1))
    source = ScreenSource(cols, 24)
    events = source.feed(f"\x1b[?1049h{picture}".encode(), 0.0)
    return finds(events + until(source, 3.0) + source.finish(3.0))


def test_an_answer_is_heard_as_it_was_said_or_reported_however_it_is_rendered() -> None:
    for number in range(1000, 1150):
        outcome = listen(number)
        assert not outcome.wrong, (number, outcome)


@pytest.mark.parametrize("closing", CLOSINGS)
def test_the_end_of_a_block_is_seen_however_it_is_drawn(closing: str) -> None:
    rows = ["@relay:Bob <<<", "", "one", "", *CLOSINGS[closing], "", "@relay:Ann two"]
    block = Found("Bob", None if closing == "nothing" else "one")
    assert heard(rows) == [block, Found("Ann", "two")]


def test_a_quotation_in_a_block_stays_one() -> None:
    rows = ["@relay:Bob <<<", "", "▌ one", "▌", "▌ ▌ two", "", ">>>", "", "Done."]
    assert heard(rows) == [Found("Bob", "> one\n>\n> ▌ two")]


def test_the_marks_of_a_list_stay() -> None:
    rows = ["@relay:Bob <<<", "", " • one", "   • two", "", ">>>", "", "Done."]
    assert heard(rows) == [Found("Bob", "- one\n- two")]


def test_lines_that_a_renderer_joins_to_the_opening_are_in_the_block() -> None:
    rows = ["@relay:Bob <<< one two", "", "three", "", ">>>", "", "@relay:Ann <<< four >>>"]
    assert heard(rows) == [Found("Bob", "one two\n\nthree"), Found("Ann", "four")]


def test_the_frame_of_an_input_line_goes_on_with_nothing() -> None:
    rows = ["@relay:Bob hello", "▊" + "▔" * 58 + "▎", "▊" + " " * 58 + "▎", "▊" + "▁" * 58 + "▎"]
    assert heard(rows) == [Found("Bob", "hello")]
