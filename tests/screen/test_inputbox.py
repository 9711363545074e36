"""Where the input line is when the hidden cursor is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from relay.screen.inputbox import InputBox
from relay.screen.source import ScreenSource
from tests.screen.screens import texts, until

COLS, ROWS = 60, 14
FIRST = "@relay:Bob said in one size and in another and in another"
SECOND = "and in another too"


def screen(log: Sequence[str], cols: int, rows: int, draft: str = "", box: int = 3) -> list[str]:
    """A log, the state, and an input line of ``box`` rows between two rules."""
    above = [*log, *[""] * (rows - box - 3 - len(log)), "ready"]
    return [*above, "─" * cols, draft, *[""] * (box - 1), "─" * cols]


def frame(rows: Sequence[str], cursor: tuple[int, int]) -> bytes:
    """One update of a program that hides its cursor and leaves it at ``cursor``, from (1, 1)."""
    column, row = cursor
    drawn = "".join(f"\x1b[{n};1H{text}\x1b[K" for n, text in enumerate(rows, 1))
    return f"\x1b[?2026h{drawn}\x1b[{row};{column}H\x1b[?2026l".encode()


def started(log: Sequence[str], draft: str = "", box: int = 3) -> ScreenSource:
    """The program with the cursor in its input line; what the log says was heard."""
    source = ScreenSource(COLS, ROWS)
    source.feed(b"\x1b[?1049h\x1b[?25l", 0.0)
    source.feed(frame(screen(log, COLS, ROWS, draft, box), (2, ROWS - box)), 0.1)
    until(source, 3.0)
    return source


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("blanks", range(6, 11))
def test_a_message_in_the_row_where_the_cursor_was_before_a_resize_is_heard_whole(
    blanks: int, restored: bool
) -> None:
    source = started(["Hello."])
    if restored:
        source = ScreenSource.restore(source.checkpoint(), COLS, ROWS, 3.0)
    events = source.resize(COLS + 4, ROWS + 6, 3.0)
    events += until(source, 3.1)  # nothing is drawn yet for the new size
    log = ["Hello.", *[""] * blanks, FIRST, SECOND, "", "Over."]
    events += source.feed(frame(screen(log, COLS + 4, ROWS + 6), (2, 11)), 3.1)
    events += until(source, 9.0)
    assert f"{FIRST} {SECOND}" in texts(events)
    assert "Over." in texts(events)


@pytest.mark.parametrize("rows", [ROWS - 5, ROWS, ROWS + 6])
def test_a_draft_that_a_resize_has_moved_away_from_the_cursor_is_not_heard(rows: int) -> None:
    source = started(["Hello."], "@relay:Bob half a dra")
    events = source.resize(COLS + 4, rows, 3.0)
    events += until(source, 3.5)
    new = screen(["Hello."], COLS + 4, rows, "@relay:Bob half a dra")
    events += source.feed(frame(new, (22, min(11, rows))), 3.5)
    events += until(source, 9.0)
    assert texts(events) == []


def test_an_input_line_that_shrinks_below_the_cursor_takes_no_row_from_the_agent() -> None:
    source = started(["Hello."], box=5)
    log = ["Hello.", *[""] * 7, "@relay:Bob done", ""]
    events = source.feed(frame(screen(log, COLS, ROWS, box=1), (2, ROWS - 5)), 3.0)
    events += until(source, 9.0)
    assert "@relay:Bob done" in texts(events)


def test_a_cursor_that_moves_away_is_followed() -> None:
    box = InputBox()
    rows = ["", "text", "", "", "─" * 20, "", "─" * 20]
    assert box.line(rows, 5, 5, 20, 7) == 5
    assert box.line(rows, 1, 1, 20, 7) == 1
    assert box.line(["─" * 20, "", "─" * 20, "", "text", "", ""], 4, 4, 20, 7) == 4


def test_a_blank_row_in_no_box_is_no_input_line() -> None:
    assert InputBox().line(["text", "", "more", "─" * 20, "", "─" * 20], 1, 1, 20, 6) == -1


def test_the_box_stays_known_while_nothing_is_drawn_for_the_new_width() -> None:
    box = InputBox()
    old = ["text", "─" * 20, "", "─" * 20]
    box.line(old, 2, 2, 20, 4)
    assert box.line([*old, "", ""], 2, 2, 30, 6) == 2
    assert box.line(["text", "", "here", "─" * 30, "", "─" * 30], 2, 2, 30, 6) == 4


def test_rules_of_the_text_are_no_box() -> None:
    box = InputBox()
    box.line(["text", "─" * 20, "", "─" * 20], 2, 2, 20, 4)
    assert box.line(["text", "─" * 12, "here", "─" * 12], 2, 2, 20, 4) == 2


def test_a_rule_with_a_mode_before_its_last_sign_is_the_boxs_edge() -> None:
    box = InputBox()
    edge = "─" * 20 + " accept edits ─"
    box.line(["text", "─" * 34, "", edge, "> draft", "more", "─" * 35], 4, 4, 35, 7)
    said = ["─" * 34, "@relay:Bob hi", "─" * 34 + "▄"]
    assert box.line([*said, edge, "> ", "", "─" * 35], 4, 4, 35, 7) == 4


def test_a_cursor_that_is_shown_stands_where_it_is() -> None:
    box = InputBox()
    box.line(["─" * 20, "", "─" * 20, "", ""], 1, 1, 20, 5)
    box.forget()
    assert box.line(["", "text", "─" * 20, "", "─" * 20], 1, 1, 20, 5) == 1
