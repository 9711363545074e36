"""Rows of a terminal as texts with styles."""

from __future__ import annotations

from relay.screen.emulator import Emulator
from relay.screen.styled_rows import sgr, styled_rows


def test_what_a_terminal_shows_becomes_texts_with_styles() -> None:
    emulator = Emulator(40, 4)
    link = b"\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\"
    emulator.feed(b"a \x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3;48;5;200mrgb\x1b[m " + link)
    emulator.feed(b"\r\n\x1b[7;3mbutton\r\n\x1b[0mend")
    first, second, third, fourth = styled_rows(emulator.visible(styled=True))
    coloured = {"fg": "#010203", "bg": 200}
    red = {"bold": True, "fg": 1}
    assert first == [("a ", {}), ("red", red), (" ", {}), ("rgb", coloured), (" link", {})]
    assert second == [("button", {"reverse": True, "italic": True})]
    assert (third, fourth) == ([("end", {})], [])
    assert sgr(coloured) == "\x1b[38;2;1;2;3;48;5;200m" and sgr({}) == ""
    assert sgr({"fg": "#\x1b[2J", "bold": True}) == "\x1b[1m"
