"""Whatever a renderer draws around an answer, its messages are heard as they were said."""

from __future__ import annotations

import re

import pytest

from relay.core.source_events import Degraded
from relay.protocol import frames
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.rows import HIDDEN, HIDDEN_AGENT
from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.renderings import CLOSINGS, listen
from tests.screen.screens import until


def heard(*pictures: list[str], style: AgentStyle = UNKNOWN, keys: bytes = b"") -> list[Found]:
    """What is heard of a full screen, second by second; ``keys`` are pressed before the last."""
    source = ScreenSource(60, 24, style=style)
    events = source.feed(b"\x1b[?1049h", 0.0)
    for at, rows in enumerate(pictures):
        if keys and at + 1 == len(pictures):
            events += source.activity(keys, at)
        placed = "".join(f"\x1b[{y};1H\x1b[2K{row}" for y, row in enumerate([*rows, "", "> "], 1))
        events += source.feed(placed.encode(), at) + until(source, at + 1)
    return finds(events + until(source, at + 9) + source.finish(at + 9))


def test_an_answer_is_heard_as_it_was_said_or_reported_however_it_is_rendered() -> None:
    for number in range(1000, 1030):
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


def test_what_is_faint_is_not_the_agents() -> None:
    rows = ["\x1b[2m@relay:Bob shall I write so?\x1b[22m", "", "@relay:Bob \x1b[2mhello\x1b[22m"]
    assert heard(rows) == [Found("Bob", "hello")]


def test_what_has_a_background_of_its_own_is_not_the_agents_where_its_profile_says_so() -> None:
    rows = ["\x1b[44m@relay:Bob typed\x1b[49m", "", "@relay:Bob hello"]
    assert heard(rows, style=AgentStyle(styled=True, plain=True)) == [Found("Bob", "hello")]
    assert len(heard(rows)) == 2


def test_a_border_that_a_profile_names_is_no_quotation() -> None:
    style = AgentStyle(border=re.compile(" ▌"))
    assert heard([" ▌ @relay:Bob hello", " ▌", " ▌ ▌ @relay:Bob no"], style=style) == [
        Found("Bob", "hello")
    ]


@pytest.mark.parametrize("row", ["▌ @relay:Bob hi", "│ @relay:Bob hi │"], ids=["bar", "frame"])
def test_a_message_in_a_frame_or_behind_a_bar_is_told_of_once(row: str) -> None:
    source = ScreenSource(40, 9)
    events = source.feed(f"\x1b[?25l\x1b[Hone\r\n\r\n{row}\r\n\r\ntwo\r\n\r\n".encode(), 0.0)
    events += until(source, 3.0) + source.feed(f"{row}\r\n".encode(), 3.0) + source.finish(6.0)
    assert finds(events) == []
    told = [one for one in events if isinstance(one, Degraded)]
    assert told == [Degraded(HIDDEN, HIDDEN_AGENT)]


def test_an_agent_that_is_heard_is_not_told_of_what_it_quotes() -> None:
    source = ScreenSource(40, 9)
    events = source.feed(b"\x1b[?1049h\x1b[H@relay:Bob hi\r\n\r\nSo:\r\n", 0.0) + until(source, 3.0)
    events += source.feed("\r\n▌ @relay:Bob hi\r\n".encode(), 3.0) + until(source, 6.0)
    assert [one for one in events if isinstance(one, Degraded)] == [Degraded(HIDDEN)]


def test_what_relay_typed_is_no_hidden_message() -> None:
    source = ScreenSource(60, 9)
    source.expect_echo("Relay message [X] from Ann:\n@relay:Bob hi\nEnd of [X]", 0.0)
    rows = "\x1b[?1049h\x1b[H┃ Relay message [X] from Ann:\r\n┃ @relay:Bob hi\r\n┃ End of [X]\r\n"
    events = source.feed(f"{rows}\r\n".encode(), 0.1) + until(source, 6.0)
    assert [one for one in events if isinstance(one, Degraded)] == []


def test_a_line_that_stops_growing_while_the_agent_says_that_it_works_is_heard_whole() -> None:
    busy = ["", "Thinking (3s, esc to interrupt)"]
    assert heard(["@relay:Bob one", *busy], ["@relay:Bob one two", *busy]) == [
        Found("Bob", "one two")
    ]


def test_a_line_in_a_block_that_begins_like_a_prompt_is_the_blocks() -> None:
    rows = ["@relay:Bob <<<", "", "> one", "> two", "", "three", "", ">>>", "", "Done."]
    assert heard(rows) == [Found("Bob", "> one\n> two\n\nthree")]


def test_an_unclosed_block_ends_with_the_persons_next_words() -> None:
    asked = ["@relay:Bob <<<", "", "one"]
    assert heard(asked, [*asked, "", "> go on", "", "@relay:Ann two"], keys=frames.ENTERED) == [
        Found("Bob", None),
        Found("Ann", "two"),
    ]


def test_how_a_program_breaks_words_is_remembered_where_one_row_alone_cannot_tell() -> None:
    first = "@relay:Bob please count the columns of the tables in every one of the files that I"
    first += " named below to you and say how many rows of them are empty or have one too many"
    second = "@relay:Bob and then please compare both of the two column names with one another"
    long = [first[:60], first[60:120], first[120:]]
    short = [second[:60], second[60:]]
    found = heard([*long, "", "Now."], [*long, "", "Now.", "", *short, "", "Done."])
    assert found == [Found("Bob", first[11:]), Found("Bob", second[11:])]
    assert heard([*short, "", "Done."])[0].body != second[11:]
