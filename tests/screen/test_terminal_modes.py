"""The modes that a program leaves behind."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from relay.screen.emulator import Emulator
from relay.screen.source import ScreenSource
from relay.screen.terminal_modes import ALT, PictureFilter, TerminalPicture


@pytest.mark.parametrize(
    ("data", "undo"),
    [
        (b"\x1b[?2004h", b"\x1b[?2004l"),
        (b"\x1b[?1002;1006h", b"\x1b[?1002l\x1b[?1006l"),
        (b"\x1b[?25l", b"\x1b[?25h"),
        (b"\x1b=", b"\x1b>"),
        (b"\x1b[>5u", b"\x1b[<99u"),
        (b"\x1b[?1049h", b"\x1b[?1049l"),
    ],
)
def test_what_is_set_is_undone(data: bytes, undo: bytes) -> None:
    modes = ScreenSource(80, 24)
    modes.feed(data, 0.0)
    assert undo in modes.reset_sequences()
    modes.feed(modes.reset_sequences(), 0.0)
    assert modes.reset_sequences() == b""


@pytest.mark.parametrize(
    "data", [b"plain", b"\x1b[31m", b"\x1b[?2004h\x1b[?2004l", b"\x1b[?1h\x1bc"]
)
def test_nothing_set_nothing_undone(data: bytes) -> None:
    modes = ScreenSource(80, 24)
    modes.feed(data, 0.0)
    assert modes.reset_sequences() == b""


def test_a_held_picture_is_let_go_first() -> None:
    modes = ScreenSource(80, 24)
    modes.feed(b"\x1b[?1000h\x1b[?2026h\x1b]0;busy\x07", 0.0)
    assert modes.reset_sequences().startswith(b"\x1b[?2026l")
    assert modes.title == "busy"


FIRST = TerminalPicture(
    (b"one", b"\x1b[0m\x1b[31mred\x1b[0m", b""), cursor=(3, 1), history=7, title="vim", kitty=1
)


def shown(*pictures: TerminalPicture, size: tuple[int, int] = (20, 5)) -> Emulator:
    terminal = Emulator(*size)
    terminal.feed(b"what stood here\r\nand here, too long to be a row of it\r\n")
    before = None
    for picture in pictures:
        drawn = picture.drawn_over(before)
        # As a viewer gets it, in pieces of any length: all of it is let through.
        for length in (1, 7, len(drawn)):
            passing = PictureFilter()
            pieces = [passing.feed(drawn[at : at + length]) for at in range(0, len(drawn), length)]
            assert b"".join(pieces) == drawn
        terminal.feed(drawn)
        before = picture
    return terminal


def test_a_picture_replaces_what_stood_there_and_a_later_one_is_told_by_its_changes() -> None:
    terminal = shown(FIRST)
    assert terminal.visible() == ["one", "red", "", "", ""]
    assert (terminal.cursor, terminal.title, terminal.kitty_flags) == ((3, 1), "vim", 1)
    later = replace(FIRST, rows=(b"one", b"blue", b"three"), cursor=(0, 2), shows_cursor=False)
    assert b"one" not in later.drawn_over(FIRST)
    terminal = shown(FIRST, later)
    assert terminal.visible()[:3] == ["one", "blue", "three"]
    assert not terminal.mode(25)


def test_the_screens_and_keys_that_the_program_wants_are_those_of_the_viewer() -> None:
    full = replace(FIRST, modes=frozenset((ALT, 1, 2004, 1002, 1000)))
    terminal = shown(FIRST, full)
    assert terminal.alt_screen
    assert all(map(terminal.mode, (1, 2004, 1002)))
    terminal = shown(FIRST, full, FIRST)
    assert not terminal.alt_screen
    assert not any(map(terminal.mode, (1, 2004, 1002)))
    assert terminal.visible()[:2] == ["one", "red"]


def test_rows_that_scroll_out_are_kept_where_the_viewer_scrolls_back() -> None:
    scrolled = replace(FIRST, rows=(b"red", b"", b"four"), history=9, above=(b"zero", b"one"))
    terminal = shown(FIRST, scrolled)
    assert terminal.visible()[:3] == ["red", "", "four"]
    kept = [terminal.row_text(y) for y in range(terminal.history_rows)]
    assert kept[-2:] == ["zero", "one"]


#: What a terminal would obey or answer: its clipboard, its reset, reports, strings, windows, a mode
#: that no picture has, the 8-bit forms, and one that begins in an earlier piece.
HOSTILE = [
    *(b"\x1b]52;c;cm0=\a", b"\x1b]52;c;cm0=\x1b\\", b"\x1bc", b"\x1b[c", b"\x1b[6n", b"\x1b[21t"),
    *(
        b"\x1bP$qm\x1b\\",
        b"\x1b_G\x1b\\",
        b"\x1b^x\x1b\\",
        b"\x1b[?3h",
        b"\x1b[?99999h",
        b"\x1b[5i",
    ),
    *(b"\xc2\x9b6n", b"\xc2\x9d52;c;cm0=\xc2\x9c", b"\x9b6n", b"\x05", b"\a", b"\x0e", b"\x7f"),
    *(b"\x1b]2;a\x1b[6n\a", b"\x1b]2;" + b"a" * 5000 + b"\a", b"\x1b[" + b"1" * 5000 + b"n"),
    *(
        b"\x1b]0;x\a",
        b"\x1b]8;;http://x\a",
        b"\x1b[4h",
        b"\x1b[>c",
        b"\x1b[>q",
        b"\x1b[?u",
        b"\x1b#8",
    ),
]


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_of_what_a_liar_sends_nothing_is_obeyed(hostile: bytes, size: int) -> None:
    passing = PictureFilter()
    sent = b"one\r\n" + hostile + b"two"
    got = b"".join(passing.feed(sent[at : at + size]) for at in range(0, len(sent), size))
    assert got.startswith(b"one\r\n") and got.endswith(b"two")
    assert not re.search(rb"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|(?<!\xbf)\x9b", got)
