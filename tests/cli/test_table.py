"""What is printed fits the terminal: tables, times, the bar; a pipe gets everything."""

from __future__ import annotations

import io
import time
from typing import Any, cast

import pytest

from relay.cli import output, table
from relay.cli.progress import EVERY, Bar
from relay.cli.verbs import help_text
from relay.core.visible import columns_of
from relay.protocol.message_ops import HistoryRow

ID = "01M80A3SJCBYEWEDVSTKKKPE1S"
REASON = "the program takes neither lines nor pastes now"


def row(**changes: Any) -> HistoryRow:
    made = {
        "id": ID,
        "from": "Alice",
        "to": "Bob",
        "state": "queued",
        "reason": REASON,
        "body": "please run the tests\x1b[2J\n" + "and again " * 20,
        "created_ms": 1_795_304_542_028,
    }
    return cast(HistoryRow, {**made, **changes})


def test_a_pipe_gets_the_whole_rows(capsys: pytest.CaptureFixture[str]) -> None:
    table.messages({"rows": [row()], "more": True}, False, "nothing")
    printed = capsys.readouterr()
    assert f"2026-11-21T23:42:22.028Z  {ID}  Alice  Bob  queued ({REASON})  please" in printed.out
    assert "--limit N shows more" in printed.err


def test_a_table_of_wide_characters_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    table.table(("A", "B"), [("漢字", 1), ("x", None)])
    assert capsys.readouterr().out == "A     B\n漢字  1\nx     -\n"


def test_a_terminal_has_colours_and_ages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "coloured", lambda: True)
    table.table(("STATE", "TEXT"), [("blocked (asks)", "idle"), ("own", "")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert head == "\x1b[1mSTATE         \x1b[0m\x1b[1m  TEXT\x1b[0m"
    assert (first, second) == ("\x1b[1;31mblocked (asks)\x1b[0m  idle", "own")
    now_ms = time.time_ns() // 1_000_000
    assert str(table.since(now_ms)).endswith("Z")
    monkeypatch.setattr(table, "columns", lambda: 80)
    assert table.since(now_ms - 13 * 60_000 - 5000) == "13m"


@pytest.mark.parametrize("width", [12, 20, 40, 80])
def test_no_line_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(table, "columns", lambda: width)
    names = {"from": "A" * 64, "to": "漢字" * 20}
    rows = [row(), row(state="seen", reason=None, body="short"), row(**names)]
    table.messages({"rows": rows, "more": False}, False, "nothing")
    lines = capsys.readouterr().out.splitlines()
    assert max(columns_of(line) for line in lines) <= max(width, 22), lines
    text = " ".join(" ".join(lines).split())
    assert text.count(ID[-8:]) == 3 and "Alice" in text and "short" in text
    assert f"({REASON})" in text


def test_forty_columns_hold_a_row_in_two_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "columns", lambda: 40)
    table.messages({"rows": [row(reason=None)], "more": False}, False, "nothing")
    assert capsys.readouterr().out.splitlines() == [
        f"2026-11-21 23:42  {ID[-8:]}  Alice  Bob",
        "  queued",
        "  please run the tests^[[2J and again a…",
    ]


def test_no_word_of_the_help_is_folded_by_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "columns", lambda: 40)
    table.prose(help_text())
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 40
    assert shown.split() == help_text().split()


def test_a_persons_time_is_local_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    now_ms = 1_795_304_542_028
    try:
        assert output.clock(now_ms - 1000, now_ms) == "01:42:21"
        assert output.clock(now_ms - 86_400_000, now_ms) == "2026-11-21 01:42"
        assert output.clock(now_ms + 60_000, now_ms) == "2026-11-22 01:43"
    finally:
        monkeypatch.undo()
        time.tzset()


class Terminal(io.StringIO):
    """Knows what a terminal would show."""

    def shown(self) -> str:
        cells: list[str] = []
        for part in self.getvalue().split("\r"):
            cells[: len(part)] = part
        return "".join(cells).rstrip()


def bar_on(terminal: io.StringIO, times: list[float], wanted: bool = True) -> Bar:
    clock = iter(times)
    return Bar(terminal, wanted=wanted, clock=lambda: next(clock))


def test_it_is_drawn_ten_times_a_second_at_most() -> None:
    terminal = Terminal()
    with bar_on(terminal, [n * EVERY / 100 for n in range(1000)]) as bar:
        for done in range(1000):
            bar.show(f"{done} of 1000")
        drawn = terminal.getvalue().count("\r")
        assert 9 <= drawn <= 11
        assert " of 1000" in terminal.shown()
    assert terminal.shown() == ""


def test_a_shorter_line_covers_a_longer_one_and_none_reaches_the_last_column() -> None:
    terminal = Terminal()
    with bar_on(terminal, [0, 1, 2]) as bar:
        bar.show("x" * 100)
        assert terminal.shown() == "x" * 79
        bar.show("short")
        assert terminal.shown() == "short"
    assert terminal.shown() == ""


def test_a_terminal_that_has_gone_ends_the_bar_and_nothing_else() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    with bar_on(Gone(), [0]) as bar:
        bar.show("one")
        bar.show("two")
    assert not bar.wanted
