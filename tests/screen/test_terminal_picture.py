"""What is drawn over an earlier picture makes a real terminal show the later one."""

from __future__ import annotations

from dataclasses import replace

from relay.screen.emulator import Emulator
from relay.screen.terminal_picture import ALT, TerminalPicture

FIRST = TerminalPicture(
    (b"one", b"\x1b[0m\x1b[31mred\x1b[0m", b""), cursor=(3, 1), history=7, title="vim", kitty=1
)


def shown(*pictures: TerminalPicture, size: tuple[int, int] = (20, 5)) -> Emulator:
    terminal = Emulator(*size)
    terminal.feed(b"what stood here\r\nand here, too long to be a row of it\r\n")
    before = None
    for picture in pictures:
        terminal.feed(picture.drawn_over(before))
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
