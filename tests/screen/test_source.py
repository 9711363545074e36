"""The screen source on line programs and on programs that draw, all synthetic."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.agents.profile import find_profile
from relay.core.source_events import Entered, Line, Pause
from relay.protocol import frames
from relay.screen.line_events import PAUSE_LATE, PAUSE_SOON, STREAM
from relay.screen.source import ScreenSource
from tests.screen.conversation import finds
from tests.screen.screens import hear, proofs, spoken, texts, until

BOB = "@relay:Bob hello there"


def source(cols: int = 80, rows: int = 24) -> ScreenSource:
    return ScreenSource(cols, rows)


# -- line programs -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_lines_are_heard_once_with_their_blank_lines(chunk: int) -> None:
    data = b"one\r\n\r\n\r\n@relay:Bob hi\r\n\r\nlast without newline"
    assert hear(source(), data, chunk) == [
        "one", "", "", "@relay:Bob hi", "", "last without newline",
    ]  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 4096])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"10%\r50%\r100%\r\n", ["100%"]),
        (b"working\r\x1b[2K\r@relay:Bob done\r\n", ["@relay:Bob done"]),
        (b"\x1b[31m@relay:\x1b[1mBob\x1b[0m hi\x1b[K\r\n", ["@relay:Bob hi"]),
        (b"@relay:Bpb\b\bob hi\r\n", ["@relay:Bob hi"]),
        (b"a\tb\r\n", ["a       b"]),
        ("世界 ✳️ 👩‍👩‍👧 é\r\n".encode(), ["世界 ✳️ 👩‍👩‍👧 é"]),
        (b"\xff@relay:Bob\r\n", ["\ufffd@relay:Bob"]),
        (b"\x1b]0;@relay:Bob in a title\x07text\r\n", ["text"]),
        (b"before\r\n\x1b[H\x1b[2J\x1b[3Jafter\r\n", ["before", "", "after"]),
    ],
)
def test_what_a_terminal_shows_is_heard(data: bytes, lines: list[str], chunk: int) -> None:
    assert hear(source(), data, chunk) == lines


@pytest.mark.parametrize(("cols", "chunk"), [(20, 7), (80, 65536), (300, 4096)])
def test_a_line_of_200000_characters_is_one_line(cols: int, chunk: int) -> None:
    line = "@relay:Bob " + "word " * 40_000 + "end"
    heard = hear(source(cols, 10), line.encode() + b"\r\nnext\r\n", chunk)
    assert heard == [line, "next"]


def test_a_soft_wrapped_line_is_one_line_after_a_resize_in_its_middle() -> None:
    screen = source(40, 10)
    line = "@relay:Bob " + "x" * 100
    events = screen.feed(line[:60].encode(), 0.0)
    events += screen.resize(25, 10, 0.1)
    events += screen.feed(line[60:].encode() + b"\r\nnext\r\n", 0.2)
    assert texts(events) == [line, "next"]


def test_scrolled_lines_are_not_heard_again_after_resizes() -> None:
    screen = source()
    data = "".join(f"@relay:Bob {'wide ' * 12}{number}\r\n" for number in range(100))
    events = screen.feed(data.encode(), 0.0)
    for moment, cols in enumerate((40, 120, 33, 80), 1):
        events += screen.resize(cols, 20 + moment, float(moment))
        events += until(screen, moment + 0.9)
    events += screen.feed(b"end\r\n", 9.0)
    assert len(texts(events)) == 101


def test_a_plain_line_rests_soon_and_one_that_may_go_on_late() -> None:
    screen = source(40, 10)
    assert texts(screen.feed(b"hello\r\n", 1.0)) == ["hello"]
    assert screen.next_deadline() == pytest.approx(1.0 + PAUSE_SOON)
    assert spoken(until(screen, 2.0)) == ["(pause)"]
    screen.feed(b"x" * 40 + b"\r\n", 3.0)
    assert screen.next_deadline() == pytest.approx(3.0 + PAUSE_LATE)
    until(screen, 4.0)
    screen.feed(b"one\r\nand", 5.0)
    assert screen.next_deadline() == pytest.approx(5.0 + PAUSE_LATE)


def test_a_line_being_written_is_no_line() -> None:
    screen = source()
    assert not screen.feed(b"@relay:Bob not yet", 0.0)
    assert not until(screen, 100.0)
    assert texts(screen.feed(b" now\r\n", 101.0)) == ["@relay:Bob not yet now"]


def test_the_end_settles_and_closes() -> None:
    screen = source()
    screen.feed(b"@relay:Bob bye", 0.0)
    assert spoken(screen.finish(0.0)) == ["@relay:Bob bye", "(pause)", "(end)"]


def test_of_a_flood_every_line_is_heard() -> None:
    noise = b"".join(b"noise %d\r\n" % number for number in range(60_000))
    heard = hear(source(), noise + b"@relay:Bob <<<\r\nbody\r\n\r\n>>>\r\n```\r\n" + noise, 65536)
    at = heard.index("@relay:Bob <<<")
    assert heard[at : at + 5] == ["@relay:Bob <<<", "body", "", ">>>", "```"]
    assert len(heard) == 120_005


def test_of_a_flood_below_a_drawn_line_every_line_is_heard() -> None:
    noise = b"".join(b"noise %d\r\n" % number for number in range(10_000))
    drawn = b"one\r\ntwo\r\n\x1b[2A\x1b[Jthree\r\n"
    data = drawn + noise + b"@relay:Bob hi\r\n\r\n" + noise
    heard = hear(source(), data, 65536)
    assert heard.count("@relay:Bob hi") == 1
    assert len(heard) == 20_005


# -- the person and relay's own typing ---------------------------------------------------------


def test_the_persons_echo_is_not_heard_but_the_prompt_before_it_is() -> None:
    screen = source()
    events = screen.feed(b"name? ", 0.0)
    events += screen.activity(frames.TYPED, 1.0)
    events += screen.feed(b"@relay:Bob mine", 1.0)
    events += screen.activity(frames.ENTERED, 1.2)
    events += screen.feed(b"\r\n@relay:Bob the program's\r\n", 1.2)
    assert texts(events) == ["name?", "@relay:Bob the program's"]


def test_a_prompt_at_which_something_is_entered_at_once_ends_what_was_said() -> None:
    screen = source()
    events = screen.feed(b"@relay:Bob hi\r\n$ ", 0.0) + screen.activity(frames.ENTERED, 0.0)
    events += screen.feed(b"ls\r\n", 0.0)
    assert events == [
        Line("screen", "@relay:Bob hi"),
        Pause("screen"),
        Line("screen", "$"),
        Entered("ls"),
    ]


@pytest.mark.parametrize("cols", [10, 16, 80])
def test_a_persons_line_that_wraps_is_theirs_to_its_end(cols: int) -> None:
    screen = source(cols, 10)
    events = screen.activity(frames.TYPED, 0.0)
    events += screen.feed(b"@relay:Bob this is typed by hand", 0.0)
    events += screen.activity(frames.ENTERED, 0.1)
    events += screen.feed(b"\r\nok\r\n", 0.1)
    assert texts(events) == ["ok"]


def test_keys_without_an_echo_take_nothing_from_the_program() -> None:
    screen = source()
    events = screen.activity(frames.TYPED, 0.0)
    events += screen.feed(b"@relay:Bob unprompted\r\n", 5.0)
    assert texts(events) == ["@relay:Bob unprompted"]


def test_an_injected_text_is_proof_and_the_same_words_again_are_speech() -> None:
    screen = source()
    screen.expect_echo("Message from Alice [id1]: do it\nsecond line", 0.0)
    events = screen.feed(b"Message from Alice [id1]: do it\r\nsecond line\r\n", 0.1)
    assert texts(events) == []
    assert "[id1]" in "\n".join(proofs(events))
    again = screen.feed(b"Message from Alice [id1]: do it\r\n", 0.2)
    assert texts(again) == ["Message from Alice [id1]: do it"]


def test_an_echo_behind_a_prompt_leaves_the_prompt() -> None:
    screen = source()
    screen.expect_echo("Message from Alice", 0.0)
    assert texts(screen.feed(b"Bob> Message from Alice\r\n", 0.1)) == ["Bob>"]


def test_what_was_typed_while_it_worked_is_answered_on_the_prompts_own_row() -> None:
    screen = source()
    events = screen.feed(b"ask me: ", 0.0)
    for number, shown in enumerate(["one\r\nask me: ", "", "two\r\nask me: "]):
        echo = f"Relay message [{number}] from agent Ann"
        screen.expect_echo(echo, 1.0)
        events += screen.feed(f"{echo}\r\n{shown}".encode(), 1.0)
    events += screen.feed(BOB.encode() + b"\r\nask me: ", 1.1)
    assert [line for line in texts(events) if line != "ask me:"] == ["one", "two", BOB]


# -- any stream, cut anywhere ------------------------------------------------------------------

_PIECES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=30).map(
        str.encode
    ),
    st.sampled_from(
        [b"\r\n", b"\r\n\r\n", b"\r", b"\b", b"\t", b"\x1b[31m", b"\x1b[0m", b"\x1b[K", b"\x1b[2K"]
        + [b"\x1b]0;title\x07", b"\xff", b"\xe4\xb8", "世界".encode(), "✳️".encode(), b"x" * 70]
        + ["👩‍👩‍👧".encode(), b"@relay:Bob hi\r\n", b"\x1b[H\x1b[2J", b"\x1b[3D", b"\x1b[38;5;20m"]
        + [b"\x1b[A", b"\x1b[2A\x1b[J", b"\x1b[?2026h", b"\x1b[?2026l", b"\x1b[?25l"]
    ),
)
_STREAMS = st.lists(_PIECES, max_size=40).map(b"".join)


@settings(max_examples=80, deadline=None)
@given(_STREAMS, st.data())
def test_a_restored_source_goes_on_at_any_byte(data: bytes, draw: st.DataObject) -> None:
    at = draw.draw(st.integers(0, len(data)))
    whole, first = source(30, 6), source(30, 6)
    expected = whole.feed(data[:at], 0.0) + whole.feed(data[at:], 0.0)
    events = first.feed(data[:at], 0.0)
    second = ScreenSource.restore(first.checkpoint(), 30, 6, 0.0)
    events += second.feed(data[at:], 0.0)
    for screen, seen in ((whole, expected), (second, events)):
        seen += until(screen, 9.0) + screen.finish(9.0)
    assert events == expected


# -- programs that draw ------------------------------------------------------------------------


def frame(*rows: str, alt: bool = True) -> bytes:
    """A whole picture in one synchronised update, the cursor in the last row."""
    drawn = "\x1b[H\x1b[2J" + "\r\n".join(rows)
    return ("\x1b[?1049h" * alt + "\x1b[?2026h" + drawn + "\x1b[?2026l").encode()


def show(screen: ScreenSource, now: float, *rows: str) -> list[str]:
    """Draw, let it settle, and give back what was heard."""
    return texts(screen.feed(frame(*rows), now) + until(screen, now + 3))


BOX = ["", "────────", "❯ "]


def test_the_same_words_below_new_context_are_heard_again() -> None:
    screen = source()
    show(screen, 0.0, "● start", "", "  " + BOB, *BOX)
    heard = show(screen, 5.0, "● start", "", "  " + BOB, "", "● " + BOB, *BOX)
    assert heard.count(BOB) == 1


def test_scrolling_away_and_back_says_nothing_new() -> None:
    screen = source(80, 12)
    lines = [f"  @relay:Bob task {number}" for number in range(30)]
    heard: list[str] = []
    for step in range(0, 20, 2):
        heard += show(screen, step * 5.0, *lines[step : step + 8], *BOX)
    for number, step in enumerate([14, 6, 0, 3, 18]):
        assert not show(screen, 200.0 + number * 5, *lines[step : step + 8], *BOX)
    assert heard == [line.strip() for line in lines[:26]]


def test_a_redraw_at_another_width_says_nothing_new() -> None:
    words = BOB + " " + " ".join(f"word{number}" for number in range(30))

    def wrapped(cols: int) -> list[str]:
        return ["● start", "", *("  " + row for row in textwrap.wrap(words, cols - 4)), "", "  end"]

    screen = source(80, 24)
    heard = show(screen, 0.0, *wrapped(80), *BOX)
    assert words in heard
    for moment, cols in enumerate((60, 100, 40, 80), 1):
        screen.resize(cols, 24, moment * 5.0)
        again = show(screen, moment * 5.0, *wrapped(cols), *BOX)
        assert not [line for line in again if "word" in line or "@" in line]


def chat(screen: ScreenSource, now: float, words: list[str], cols: int, bar: str) -> list[str]:
    """The last rows of a chat at this width, its input line below, and what was heard."""
    room = cols - len(bar)
    laid = [row for text in words for row in [*textwrap.wrap(text, room), ""]]
    drawn = [row.ljust(room) + bar * (at == 3) for at, row in enumerate(laid[-12:])]
    rows = [row + "\x1b[0m" for row in drawn]
    data = frame(*rows, "ready", "─" * cols, " draft")
    return texts(screen.feed(data, now) + until(screen, now + 3))


@pytest.mark.parametrize("bar", ["", "▅▅"])
@pytest.mark.parametrize("wider", [range(60, 120, 3), [97, 71, 97, 71], [60, 100, 80]])
def test_after_a_resize_a_message_in_view_is_not_new_and_the_same_words_again_are(
    bar: str, wider: Iterable[int]
) -> None:
    screen = source(80, 24)
    long = "@relay:Bob said in one size " + "and in another " * 12 + "too"
    short = "@relay:Bob the same words"
    words = ["> say again", short, "Ready.", "> say again", short, "Ready."]
    heard = chat(screen, 0.0, words, 80, bar)
    words += ["> say size", long, "Ready."]
    heard += chat(screen, 5.0, words, 80, bar)
    expected = [short, short, long]
    for number, cols in enumerate(wider):
        moment = 10.0 + 10 * number
        screen.resize(cols, 24, moment)
        heard += chat(screen, moment, words, cols, bar)
        words += ["> say again", short, "Ready."] if number == 0 else []
        expected += [short] if number == 0 else []
        heard += chat(screen, moment + 5, words, cols, bar)
    assert [line for line in heard if "@" in line or "another" in line] == expected


@pytest.mark.parametrize("bar", ["", "▅▅"])
@pytest.mark.parametrize("cols", [96, 97, 98, 99, 100])
def test_a_message_with_a_row_as_wide_as_the_new_screen_is_whole(cols: int, bar: str) -> None:
    screen = source(80, 24)
    long = "@relay:Bob said in one size " + "and in another " * 12 + "too"
    words = ["> say", "@relay:Bob the same words", "Ready."]
    chat(screen, 0.0, words, 80, bar)
    screen.resize(cols, 24, 5.0)
    heard = chat(screen, 5.0, words, cols, bar)
    heard += chat(screen, 10.0, [*words, "> say size", long, "Ready."], cols, bar)
    assert [line for line in heard if "@" in line or "another" in line] == [long]


def test_a_message_that_scrolls_away_row_by_row_while_more_comes_is_whole() -> None:
    screen = source(40, 12)
    long = "@relay:Bob " + " ".join(f"word{number}" for number in range(30))
    rows = [*textwrap.wrap(long, 38), "", *(f"more {number}" for number in range(20))]
    heard: list[str] = []
    for last in range(len(rows)):
        data = frame(*rows[max(0, last - 8) : last + 1], "", "─" * 40, " draft")
        heard += texts(screen.feed(data, last * 0.05) + until(screen, last * 0.05 + 0.04))
    assert [line for line in heard + texts(until(screen, 9.0)) if "word" in line] == [long]


def test_text_that_still_grows_is_heard_when_it_has_grown() -> None:
    screen = source()
    heard: list[str] = []
    for length in range(1, len(BOB) + 1):
        data = frame("● start", "", "  " + BOB[:length], "", f"✻ Working… {length}", *BOX)
        heard += texts(screen.feed(data, length * 0.2) + until(screen, length * 0.2 + 0.19))
    heard += texts(until(screen, 60.0))
    assert [line for line in heard if "@" in line] == [BOB]


def test_a_draft_is_never_heard_and_what_was_submitted_is_proof() -> None:
    screen = source()
    assert not show(screen, 0.0, "● ready", "", "────────", "❯ @relay:Bob my draft")[1:]
    events = screen.feed(frame("● ready", "", "❯ @relay:Bob my draft", "", *BOX), 5.0)
    events += until(screen, 9.0)
    assert not [line for line in texts(events) if "@" in line]
    assert "my draft" in "\n".join(proofs(events))


def test_what_relay_types_behind_a_prompt_of_no_known_form_ends_a_block_and_is_not_heard() -> None:
    screen = source()
    begin = b"\x1b[2K\x1b[1Aone\r\n@relay:Bob <<<\r\nnever closed\r\n\r\n ?? > "
    events = screen.feed(begin, 0.0) + until(screen, 5.0)
    typed = "Relay message [AB12CD34_EF56GH] from agent Ann: go (To answer: a line "
    screen.expect_echo(f'{typed}"@relay:Ann …").', 5.0)
    screen = ScreenSource.restore(screen.checkpoint(), 80, 24, 5.0)
    drawn = f'\r\x1b[J ?? > {typed}"\r\n@relay:Ann …").\x1b[?25h'.encode()
    events += screen.feed(b"\x1b[?25l" + drawn, 5.1) + until(screen, 6.0)
    entered = b"\x1b[?25l\x1b[1A" + drawn + b"\r\n"
    events += screen.feed(entered + BOB.encode() + b"\r\n\r\n ?? > ", 6.0)
    heard = [line for line in spoken(events + until(screen, 12.0)) if line]
    assert [line for line in heard if line not in ("(other)", "(pause)")] == [
        "one", "@relay:Bob <<<", "never closed", "(end)", BOB, " ?? >",
    ]  # fmt: skip


def test_no_look_in_the_middle_of_a_frame() -> None:
    screen = source()
    screen.feed(frame("● start", *BOX), 0.0)
    until(screen, 2.0)
    screen.feed(b"\x1b[?2026h\x1b[H\x1b[2J\xe2\x97\x8f @relay:Nobone: torn", 3.0)
    heard = texts(until(screen, 3.5))
    heard += texts(screen.feed(b"\r\x1b[2K\xe2\x97\x8f " + BOB.encode() + b"\x1b[?2026l", 3.6))
    screen.feed(b"\r\n\r\n", 3.7)
    heard += texts(until(screen, 9.0))
    assert "torn" not in "".join(heard)
    assert BOB in heard


@pytest.mark.parametrize("wait", [0.0, 0.01, 0.2, 2.0])
def test_at_the_end_the_picture_before_a_torn_update_is_settled(wait: float) -> None:
    screen = source()
    screen.feed(frame("● start", *BOX), 0.0)
    until(screen, 2.0)
    torn = b"\x1b[?2026h\x1b[H\x1b[2J\xe2\x97\x8f @relay:Nobone: torn"
    # The whole frame comes too soon after the first for a look of its own.
    events = screen.feed(frame("● start", "", "● more", *BOX), 3.0)
    events += screen.feed(frame("● start", "", "● more", "", "● " + BOB, *BOX) + torn, 3.01)
    screen = ScreenSource.restore(screen.checkpoint(), 80, 24, 3.01)
    events += until(screen, 3.01 + wait) + screen.finish(3.01 + wait)
    heard = [line for line in texts(events) if line]
    assert heard == ["more", BOB]


def test_an_update_that_is_never_ended_is_heard() -> None:
    screen = source()
    screen.feed(b"\x1b[?2026h\x1b[H\x1b[2J\xe2\x97\x8f " + BOB.encode() + b"\r\n\r\n", 0.0)
    assert BOB in texts(until(screen, 9.0))


def test_saving_the_cursor_does_not_draw() -> None:
    screen = source()
    screen.feed(b"step one\r\n\x1b[1Astep two\r\n", 0.0)
    until(screen, 0.9)
    screen.feed(b"\x1b7", 0.9)
    until(screen, 1.5)
    assert texts(screen.feed(b"@relay:Ann afterwards\r\n", 1.5)) == ["@relay:Ann afterwards"]


def test_a_spinner_above_a_line_program_is_drawn_over_and_lines_go_on() -> None:
    screen = source()
    events = screen.feed(b"step one\r\n", 0.0)
    for tick in range(40):
        events += screen.feed(b"\x1b[1Astep one %d\x1b[K\r\n" % tick, 0.1 + tick * 0.05)
    events += screen.feed(BOB.encode() + b"\r\n\r\n", 2.5)
    events += until(screen, 8.0)
    events += screen.feed(b"@relay:Ann afterwards\r\n", 8.0)
    heard = texts(events)
    assert heard.count(BOB) == heard.count("@relay:Ann afterwards") == 1


def test_a_message_above_a_prompt_whose_words_were_typed_before_is_over() -> None:
    screen = source()
    events = screen.feed(b"one\r\n\x1b[2K\x1b[1Atwo\r\n>>> ", 0.0)
    events += until(screen, 1.5)
    question = "end your block with >>> please"
    screen.expect_echo(question, 1.5)
    events += screen.feed(question.encode(), 1.5)
    events += screen.feed(b"\r\n\x1b[?25l", 1.6)
    events += screen.feed(b"\r\x1b[2K" + BOB.encode() + b"\r\n\x1b[?25h>>> ", 1.7)
    events += until(screen, 8.0)
    heard = [event for event in events if isinstance(event, Line | Pause)]
    assert Pause(STREAM) in heard[heard.index(Line(STREAM, BOB)) :]


def test_leaving_the_full_screen_settles_and_repeats_nothing() -> None:
    screen = source()
    events = screen.feed(frame("● " + BOB, *BOX), 0.0)
    events += screen.feed(b"\x1b[?1049l" + BOB.encode() + b"\r\n", 0.1)
    events += until(screen, 5.0)
    assert texts(events + screen.finish(5.0)).count(BOB) == 1


def test_what_the_person_typed_is_not_heard_after_a_full_screen_program_either() -> None:
    screen = source()
    screen.feed(b"$ ", 0.0)
    events = screen.activity(frames.TYPED, 0.1)
    events += screen.feed(b"@relay:Bob mine", 0.1)
    events += screen.activity(frames.ENTERED, 0.2)
    events += screen.feed(b"\r\n", 0.2) + screen.feed(b"\x1b[?1049h\x1b[Hpager", 1.0)
    events += until(screen, 3.0) + screen.feed(b"\x1b[?1049l", 3.0) + until(screen, 9.0)
    assert not [line for line in texts(events) if "@" in line]


# -- what is known of the terminal -------------------------------------------------------------


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "qwen", "opencode"])
@pytest.mark.parametrize(
    ("drawn", "heard"),
    [
        ("@relay:Bob plain", True),
        ("\x1b[32m@relay:Bob all in one colour\x1b[39m", True),
        ("\x1b[1m@relay:Bob\x1b[22m in bold", False),
        ("\x1b[35m@relay:Bob\x1b[39m as code", False),
        ("\x1b[48;5;240m@relay:Bob\x1b[49m on a ground", False),
    ],
)
def test_code_and_bold_are_told_by_their_style(agent: str, drawn: str, heard: bool) -> None:
    source = ScreenSource(80, 24, style=find_profile(agent)[0].screen)
    source.expect_echo("anything", 0.0)
    shown = f"\x1b[?2026h\x1b[H\x1b[5B\x1b[6G{drawn}\x1b[2B\x1b[6GDone.\x1b[?2026l"
    events = source.feed(shown.encode(), 0.0)
    events += until(source, 9.0)
    assert bool(finds(events)) == heard, texts(events)


def test_a_block_that_begins_above_what_is_drawn_is_closed_by_its_blank_rows() -> None:
    source = ScreenSource(80, 24, style=find_profile("claude")[0].screen)
    source.expect_echo("a question", 0.0)
    rule = "─" * 80
    rows = f"  second\r\n\r\n\r\n  more words\r\n\r\n{rule}\r\n❯ \r\n{rule}"
    events = source.feed("● @relay:Bob <<<\r\n  first\r\n".encode(), 0.0)
    events += source.feed(f"\x1b[?2026h{rows}\x1b[2A\x1b[?2026l".encode(), 0.01)
    events += until(source, 3.0)
    assert ">>>" in texts(events)
