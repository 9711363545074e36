"""What counts as plain text in a terminal of all colours."""

from __future__ import annotations

import pytest

from relay.agents.profile import find_profile
from relay.screen.emulator import Emulator
from relay.screen.redraw import told_apart


@pytest.mark.parametrize(
    ("colour", "heard"),
    [
        ("", True),
        ("38;2;184;184;184", True),  # GitHub Copilot's text, where the terminal tells its colours
        ("38;2;131;148;150", True),  # … in one with the theme Solarized
        ("38;2;165;214;255", False),  # a string in code
        ("38;2;184;184;184;48;2;20;27;34", False),  # the person's words
        ("36", False),
    ],
)
def test_a_grey_that_a_program_mixes_of_the_terminals_colours_is_plain(
    colour: str, heard: bool
) -> None:
    emulator = Emulator(60, 4)
    emulator.feed(f"\x1b[{colour}m● @relay:Bob hello\x1b[m".encode())
    rows = told_apart(emulator, ["● @relay:Bob hello"], 0, find_profile("copilot")[0].screen)
    assert rows == ["● @relay:Bob hello" if heard else "● \\@relay:Bob hello"]
