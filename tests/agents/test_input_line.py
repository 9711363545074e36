"""The input line as a profile describes it, in forms that none of the six agents draws.

How those draw theirs is tested on their screens, in each agent's folder.
"""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.agents.profile import ComposerState, Profile, find_profile, parse_profile, profile_names

FRAMED = r"""
input: {prompt: '\s*│ > ?', side: '\s*│', below: '\s*╰─', placeholder: [Type here]}
dialog: ['\[y/n\]']
busy: [Working]
busy_title: '[⠁-⣿]'
"""
BARE = "input: {prompt: '>>> '}\nbusy: [Generating]"
RULED = "input: {above: '─{8,}', below: '─{8,}', covered: '─{8,}'}"
RULE = "─" * 20
SHIPPED = profile_names("")
ROWS = [
    *("", " ", RULE, " " + RULE, "╭" + RULE, "╰" + RULE, "│ > a", "│   b", "> ", ">", "❯ 1. Yes"),
    *("  2. No", "›", "! ls", "┃", "  ┃  Build · x", "  ╹" + "▀" * 9, "esc to interrupt", "words"),
    *("? for shortcuts", "Enter to confirm", "User:", "[y/N]:"),
]


def framed(*text: str) -> list[str]:
    return ["│ > said before │", "╰──╯", "╭──╮", *(f"│{row:12}│" for row in text), "╰──╯", "gpt"]


@pytest.mark.parametrize(
    ("profile", "rows", "state"),
    [
        (FRAMED, framed(" > "), "empty"),
        (FRAMED, framed(" > Type here"), "empty"),
        (FRAMED, framed(" > one"), "draft"),
        (FRAMED, framed(" > ", "   two"), "draft"),
        (FRAMED, ["│ > cut off"], "busy"),
        (FRAMED, ["Run it? [y/n]"], "dialog"),
        (FRAMED, ["1. Yes", "2. No"], "dialog"),
        (FRAMED, ["Working (3s)", *framed(" > ")], "busy"),
        (FRAMED, ["Working (3s)", *framed(" > one")], "draft"),
        (FRAMED, [*framed(" > "), "Run it? [y/n]"], "dialog"),
        (FRAMED, [*framed(" > "), "", "❯ Allow once", "  Deny"], "dialog"),
        (FRAMED, [*framed(" > [y/n]"), ""], "draft"),
        (BARE, ["hello", ">>> "], "empty"),
        (BARE, ["hello", ">>>"], "empty"),
        (BARE, ["Shall I continue?", ">>> "], "empty"),
        (FRAMED, ["Shall I continue?", *framed(" > ")], "empty"),
        (BARE, [">>> ", "", "Continue? [y/N]"], "dialog"),
        (BARE, [">>> old", "an answer", "", ">>> "], "empty"),
        (BARE, [">>> 1. list", "", "2. other"], "dialog"),
        (BARE, ["nothing that is known"], "busy"),
        (RULED, [RULE, "", RULE, "footer"], "empty"),
        (RULED, [RULE, "words", RULE], "draft"),
        (RULED, ["words", RULE], "busy"),
        ("busy: [Working]", ["Working"], "busy"),
        ("busy: [Working]", ["words"], "unknown"),
        ("dialog_anywhere: [Sure]", ["Sure?"], "dialog"),
    ],
)
def test_the_state_of_an_input_line(profile: str, rows: list[str], state: str) -> None:
    assert made(profile).composer_at_rest(rows, "") == state


def test_without_a_box_it_is_where_the_cursor_is() -> None:
    rows = [">>> ", "", "an answer that is still written"]
    assert [made(BARE).composer_at_rest(rows, "", at) for at in (0, 2)] == ["empty", "busy"]
    assert made(FRAMED).composer_at_rest(framed(" > "), "", 23) == "empty"


@given(st.lists(st.sampled_from(ROWS), max_size=12), st.sampled_from(SHIPPED), st.integers(0, 12))
def test_whatever_stands_on_the_screen_each_profile_makes_something_of_it(
    rows: list[str], name: str, cursor: int
) -> None:
    state = find_profile(name)[0].composer_at_rest(rows, "", cursor)
    assert state in get_args(ComposerState)


@given(st.lists(st.sampled_from(ROWS), max_size=6), st.text("ab c1.", min_size=1))
def test_what_stands_in_the_input_line_is_never_taken_for_nothing(
    above: list[str], text: str
) -> None:
    rows = [*above, *framed(f" > {text}")]
    assert (made(FRAMED).composer(rows) == "empty") == (not text.strip())


def test_the_title_tells_that_a_turn_runs() -> None:
    assert made(FRAMED).composer_at_rest(framed(" > "), "⠋ thinking") == "busy"


def made(profile: str) -> Profile:
    return parse_profile(profile, "thing.yaml")
