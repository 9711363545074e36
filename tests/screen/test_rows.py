"""Whose words the rows of a painted screen are."""

from __future__ import annotations

import pytest

from relay.agents.profile import find_profile
from relay.screen.emulator import Emulator
from relay.screen.line_events import EchoMask
from relay.screen.redraw import told_apart
from relay.screen.rows import Kind, Row, Snapshot, read_rows
from relay.screen.source import ScreenSource
from tests.screen.screens import hear

#: What relay types, and how a program that breaks it anywhere shows it behind a prompt.
ECHO = (
    'Relay message [AB12CD34_EF56GH] from agent Ann: go (End of [AB12CD34_EF56GH]: "@relay:Ann …").'
)
PROMPTED = (f"?? > {ECHO[:35]}", ECHO[35 : ECHO.index("@")], ECHO[ECHO.index("@") :])


def rows(
    *texts: str,
    cursor: int | None = None,
    cols: int = 80,
    typed: str = "",
    prompt: str = "",
    keyed: bool = False,
) -> list[Row]:
    at = len(texts) - 1 if cursor is None else cursor
    echo = EchoMask()
    if typed:
        echo.expect(typed, 0.0, prompt)
    if keyed:
        echo.keyed()
    return read_rows(Snapshot(list(texts), at, cols), echo)


def echoed(*texts: str, prompt: str = "?? > ", keyed: bool = False) -> list[str]:
    """Whose the rows are, in short, where relay has typed ECHO behind ``prompt``."""
    read = rows(*texts, "", "x", cols=40, typed=ECHO, prompt=prompt, keyed=keyed)
    return [row.kind.value for row in read[:-1]]


def kinds(*texts: str, cursor: int | None = None, typed: str = "") -> list[str]:
    return [row.kind.value for row in rows(*texts, cursor=cursor, typed=typed)]


@pytest.mark.parametrize("bullet", ["● ", "• ", "✦ ", "  ◆ "])
def test_the_agents_bullet_and_margin_are_taken_off(bullet: str) -> None:
    margin = " " * len(bullet)
    read = rows(bullet + "First words", margin + "@relay:Bob hi", margin + "  code", "", "❯ ")
    assert [row.text for row in read[:3]] == ["First words", "@relay:Bob hi", "  code"]


def test_the_margin_without_a_bullet_is_the_most_common_one() -> None:
    read = rows("     one", "     @relay:Bob two", "       three", "", "x")
    assert [row.text for row in read[:3]] == ["one", "@relay:Bob two", "  three"]


@pytest.mark.parametrize("prompt", ["❯ ", "› ", " > ", "  > ", "❯\xa0"])
def test_the_persons_rows_end_at_a_blank_row(prompt: str) -> None:
    assert kinds(prompt + "do it", "  @relay:Bob no", "", "  yes", "", "x")[:3] == [
        Kind.PERSON, Kind.PERSON, Kind.AGENT,
    ]  # fmt: skip


def test_what_relay_typed_is_the_persons_beyond_blank_rows() -> None:
    found = kinds(
        "❯ one two", "", "  @relay:Bob three", "", "● four", "", "x", typed="onetwo@relay:Bobthree"
    )
    assert found[:3] == [Kind.PERSON, Kind.PERSON, Kind.AGENT]


def test_behind_any_prompt_what_relay_typed_is_the_persons_and_the_agent_speaks_below() -> None:
    assert echoed("said", *PROMPTED, "@relay:Bob hi") == [
        Kind.AGENT, Kind.PERSON, Kind.PERSON, Kind.PERSON, Kind.AGENT,
    ]  # fmt: skip
    chevron = (PROMPTED[0].replace("?? ", ""), *PROMPTED[1:])
    assert echoed(*chevron, "@relay:Bob hi", prompt="> ")[3:] == [Kind.AGENT]


def test_the_end_of_what_relay_typed_is_known_where_its_beginning_has_scrolled_away() -> None:
    assert echoed(*PROMPTED[1:], "@relay:Bob hi") == [Kind.PERSON, Kind.PERSON, Kind.AGENT]


@pytest.mark.parametrize(
    ("texts", "kinds"),
    [
        pytest.param(("Ann said: " + ECHO[:28], *PROMPTED[1:]), [Kind.AGENT] * 3, id="quoted"),
        pytest.param(("?? > Relay message [AB12CD34_EF56XX] no",), [Kind.AGENT], id="another"),
        pytest.param((PROMPTED[0] + " and more",), [Kind.AGENT], id="other-words"),
        pytest.param(("?? > Relay message",), [Kind.AGENT], id="without-the-marker"),
        pytest.param((PROMPTED[2], "more"), [Kind.AGENT] * 2, id="a-short-end"),
    ],
)
def test_what_only_looks_like_what_relay_typed_changes_nothing(
    texts: tuple[str, ...], kinds: list[Kind]
) -> None:
    assert echoed(*texts) == kinds == echoed(*texts, prompt="")


def test_where_the_person_may_have_added_to_what_relay_typed_what_stands_below_is_theirs() -> None:
    rows = (PROMPTED[0].replace("?? ", ""), *PROMPTED[1:], "@relay:Bob mine")
    assert echoed(*rows, prompt="> ", keyed=True)[3:] == [Kind.PERSON]


def test_a_list_of_what_may_complete_what_relay_types_is_no_speech() -> None:
    read = rows(*PROMPTED, "@relay:Bob a file", cursor=2, cols=40, typed=ECHO, prompt="?? > ")
    assert {row.kind for row in read} == {Kind.DRAFT}


def test_a_tools_output_is_the_tools_as_far_as_it_is_indented() -> None:
    found = kinds(
        "● Bash(make)", "  ⎿  @relay:Tool one", "     @relay:Tool two", "", "     three",
        "  speech", "", "x",
    )  # fmt: skip
    assert found[:5] == [Kind.AGENT, Kind.TOOL, Kind.TOOL, Kind.TOOL, Kind.AGENT]


def test_below_a_corner_further_rows_may_be_indented_less() -> None:
    found = kinds("● Bash", "  ⎿  Output:", "    @relay:Tool one", "", "  speech", "", "x")
    assert found[1:4] == [Kind.TOOL, Kind.TOOL, Kind.AGENT]


def test_the_input_line_is_a_draft_and_what_stands_below_is_neither() -> None:
    found = kinds(
        "● said", "", "────", "❯ my @relay:Bob", "  draft", "────", "  ? for shortcuts", cursor=4
    )
    assert found == [Kind.AGENT, Kind.DRAFT, Kind.DRAFT, Kind.OTHER]


def test_the_row_of_the_cursor_alone_is_a_draft_without_a_prompt() -> None:
    assert kinds("output", "more output", "@relay:Bob be") == [
        Kind.AGENT, Kind.AGENT, Kind.DRAFT,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "row", ["✻ Baking… (3s)", "· Thinking...", "⠙ Working… ", "• @relay:X (2s • esc to interrupt)"]
)
def test_a_spinner_is_nobodys_speech(row: str) -> None:
    assert kinds("● said", "", row, "", "x")[1] == Kind.OTHER


def test_frames_are_taken_off_a_panel_that_holds_the_conversation() -> None:
    read = rows("╭────────╮", "│ @relay:Bob hi │", "│ there         │", "╰────────╯", "x")
    assert [(row.text, row.kind) for row in read[:2]] == [
        ("@relay:Bob hi", Kind.AGENT), ("there", Kind.AGENT),
    ]  # fmt: skip


def test_a_small_panel_is_a_dialog() -> None:
    read = rows("said one", "said two", "said three", "╭──╮", "│ @relay:Bob hi │", "╰──╯", "x")
    assert read[3].kind is Kind.OTHER


def test_a_bar_on_the_left_is_a_quote() -> None:
    assert rows("said", "", "▎ @relay:Bob quoted", "", "x")[1].text == "> @relay:Bob quoted"


def test_rows_that_wrapped_are_joined_and_others_are_not() -> None:
    joins = [
        row.joins
        for row in rows(
            "@relay:Bob words that reach the edge and",
            "continue here",
            "@relay:Ann another",
            "- item",
            cols=44,
            cursor=9,
        )
    ]
    assert joins == [None, " ", None, None]


def test_a_word_longer_than_the_screen_is_joined_without_a_space() -> None:
    assert [row.joins for row in rows("x" * 40, "y" * 40, "z", cols=40, cursor=9)] == [
        None, "", "",
    ]  # fmt: skip


def test_chinese_and_japanese_are_broken_anywhere_and_joined_without_a_space() -> None:
    read = rows(
        "● @relay:Bob 請檢查解析器，然後看一下測試",  # broken before a mark that begins no row
        "  吧。然後把結果寫進文件裡，並告訴我哪些測",
        "  試還很慢。",
        "  謝謝。",
        "  請檢查解析器，看一下測試。使用 Python 寫",
        "  file 裡的測試。",
        cols=43,
        cursor=9,
    )
    assert [row.joins for row in read] == [None, "", "", None, None, " "]


def test_a_row_that_only_the_terminal_wrapped_does_not_hide_where_the_program_wraps() -> None:
    joins = [
        row.joins
        for row in rows(
            "Warning: this is longer than the screen, " * 2,
            "here",
            "",
            "● @relay:Bob words that reach the edge",
            "  continues up to the edge as well and",
            "  stops",
            cols=44,
            cursor=9,
        )
    ]
    assert joins == [None, " ", None, " ", " "]


def test_below_a_row_that_only_the_terminal_wrapped_nothing_is_known_to_be_wrapped() -> None:
    read = rows(
        "● " + "words " * 10, "  some words that near the edge", "  another", cols=40, cursor=9
    )
    assert [row.joins for row in read] == [None, " ", None]


@pytest.mark.parametrize("bar", ["▅▅", "▁▁", "▇", " ▂▂", "██", "░", "▐"])
def test_a_scroll_bar_at_the_right_edge_is_no_text(bar: str) -> None:
    room = 40 - len(bar)
    read = rows(
        "● said" + " " * (room - 6) + bar,
        "@relay:Bob words that go on to the e"[:room].ljust(room) + bar,
        "continue",
        " " * room + bar,
        "@relay:Bob 你好".ljust(room - 2) + bar,
        cols=40,
        cursor=9,
    )
    assert [row.text for row in read] == [
        "said", "@relay:Bob words that go on to the e"[:room], "continue", "@relay:Bob 你好",
    ]  # fmt: skip
    assert [row.gap for row in read] == [True, False, False, True]


@pytest.mark.parametrize(
    "row",
    [
        "done ██████",  # a progress bar up to the edge
        "▕ framed   ▕",
        "▏ framed   ▏",
    ],
)
def test_blocks_at_the_right_edge_that_are_more_than_a_bar_stay(row: str) -> None:
    [read, *_] = rows(row, "", "x", cols=len(row))
    assert row.strip("▕▏ ") in read.text and (read.kind is Kind.OTHER or read.text == row)


def test_blocks_before_the_right_edge_are_text() -> None:
    assert rows("load ▂▃▅", "", "x", cols=40)[0].text == "load ▂▃▅"


def test_rows_that_are_broken_in_the_middle_of_words_are_joined_as_they_were() -> None:
    words = "@relay:Bob " + " ".join(f"word{number} goeson" for number in range(12))
    broken = [words[at : at + 40].rstrip() for at in range(0, len(words), 40)]
    read = rows("", *broken, "", "x", cols=40)
    text = read[0].text
    for row in read[1 : len(broken)]:
        text += (row.joins or "") + row.text.strip()
    assert text == words


def test_rows_that_are_full_by_chance_are_joined_with_a_space() -> None:
    full = "@relay:Bob these words are forty columns"
    read = rows("", full, "and here it was broken between words as", "it likes", "", "x", cols=40)
    assert [row.joins for row in read[:3]] == [None, " ", " "]


def test_a_cursor_behind_words_is_none_of_them_and_they_may_grow() -> None:
    read = rows("first words", "", "@relay:Bob do th●", "", "done: ●", "", "x")
    assert [(row.text, row.written) for row in read[:3]] == [
        ("first words", False), ("@relay:Bob do th", True), ("done: ●", False),
    ]  # fmt: skip


def test_between_frames_that_have_a_title_stands_a_draft() -> None:
    box = ["╭─ Your message… ────╮", "@relay:Bob not sent", "╰──────── [^j] Send ─╯"]
    assert kinds("said", "", *box, "keys", cursor=3) == ["agent", "draft", "other"]
    rules = ["─" * 40, "  @relay:Bob said", "─" * 20 + " accept edits ─", "> ", "─" * 40]
    assert kinds("> asked", *rules, "keys", cursor=4)[:3] == ["person", "agent", "draft"]


HIDDEN = "@relay:Bob hidden"
SHOWN = "@relay:Bob shown"


@pytest.mark.parametrize("chunk", [1, 7, 4096], ids=str)
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (f"\x1b[8m{HIDDEN}\x1b[28m\r\n", []),
        (f"\x1b[1;08;31m{HIDDEN}\x1b[0m\r\n{SHOWN}\r\n", [SHOWN]),
        (f"\x1b[8m\x1b7\x1b[m\x1b8{HIDDEN}\x1b[m\r\n", []),
        (f"{SHOWN} \x1b[8mand this\x1b[28m too\r\n", [f"{SHOWN}          too"]),
        (f"\x1b[8m世界\x1b]0;title\x07{HIDDEN}\x1b[m.\r\n", [" " * 21 + "."]),
        (f"\x1b[38;5;8m{SHOWN}\x1b[48;2;8;8;8m.\x1b[38:5:8m.\x1b[m\r\n", [f"{SHOWN}.."]),
        (f"\x1b[8m\x1bc{SHOWN}\r\n", [SHOWN]),
        (f"\x1b[8\x00m{HIDDEN}\x1b[m\r\n", []),
        (f"\x1b[\r\n8\x7fm{HIDDEN}\x1b[m\r\n", []),
        (f"\x9b8m{HIDDEN}\x1b[m\r\n", []),
        (f"\x1b[8m\x1b[ m\x1b[0!m\x1b[p{HIDDEN}\x1b[m\r\n", []),
        (f"\x1b[8m\x1b[#{{\x1b[m\x1b[#}}{HIDDEN}\x1b[m\r\n", []),
        (f"\x1b[8m\x1b[!p{SHOWN}\r\n", [SHOWN]),
    ],
    ids=[
        *("plain", "among-others", "restored", "in-a-line", "wide", "palette", "reset"),
        *("control-inside", "newline-inside", "8-bit", "no-renditions", "stack", "soft-reset"),
    ],
)
def test_concealed_text_is_room_and_not_text(data: str, lines: list[str], chunk: int) -> None:
    heard = hear(ScreenSource(80, 24), data.encode(), chunk)
    assert [line for line in heard if line] == lines


def test_it_stays_concealed_after_a_restore() -> None:
    source = ScreenSource(80, 24)
    source.feed(b"\x1b[8m", 0.0)
    source = ScreenSource.restore(source.checkpoint(), 80, 24, 0.0)
    heard = hear(source, f"{HIDDEN}\x1b[m\r\n{SHOWN}\r\n".encode())
    assert [line for line in heard if line] == [SHOWN]


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
