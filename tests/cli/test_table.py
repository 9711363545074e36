"""Messages are listed within the terminal's width; a pipe gets everything."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from relay.cli import output, table
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


def test_a_terminal_gets_lines_that_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "columns", lambda: 80)
    rows = [row(), row(state="seen", reason=None, body="short")]
    table.messages({"rows": rows, "more": False}, False, "nothing")
    head, first, reason, second = capsys.readouterr().out.splitlines()
    assert max(map(len, (head, first, reason, second))) <= 80
    assert ID[-8:] in first and ID not in first and first.endswith("…")
    assert "please run the tests^[[2J and" in first
    assert reason.strip() == f"({REASON})"
    assert second.split()[-2:] == ["seen", "short"]


def test_nothing_is_said_to_be_there(capsys: pytest.CaptureFixture[str]) -> None:
    table.messages({"rows": [], "more": False}, False, "no messages")
    assert capsys.readouterr() == ("", "no messages\n")


def test_a_table_of_wide_characters_lines_up(capsys: pytest.CaptureFixture[str]) -> None:
    table.table(("A", "B"), [("漢字", 1), ("x", None)])
    assert capsys.readouterr().out == "A     B\n漢字  1\nx     -\n"


def test_a_table_keeps_to_thecolumns_of(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("x", "漢字" * 10), ("y", "short")]
    table.table(("A", "B"), rows, width=20, remarks=["why x is so", None])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["A  B", "x  漢字漢字漢字漢字…", "   why x is so", "y  short"]


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
