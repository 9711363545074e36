"""A repainted block is one utterance, however a program repaints it."""

from __future__ import annotations

import textwrap

import pytest

from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.repaints import listen
from tests.screen.screens import CASTS, cast, until

BOB = "@relay:Bob hello there"
SAID = Found("Bob", "hello there")
#: How a program goes back over two lines, and what it erases.
BACK = {
    "up": "\x1b[2A\x1b[J",
    "previous-line": "\x1b[2F\x1b[J",
    "each-line": "\x1b[1A\x1b[2K\x1b[1A\x1b[2K\r",
    "reverse-index": "\x1bM\x1bM\x1b[J",
    "rows": "\x1b[1;1H\x1b[J",
    "over": "\x1b[2A",
    "delete": "\x1b[2A\x1b[2M",
    "characters": "\x1b[2A\x1b[80X",
    "clear": "\x1b[2J\x1b[H",
    "clear-from-home": "\x1b[H\x1b[2J",
    "erase-from-home": "\x1b[H\x1b[J",
    "scrollback-too": "\x1b[2J\x1b[3J\x1b[H",
    "reset": "\x1bc",
}


def heard(frames: list[tuple[float, str]], source: ScreenSource | None = None) -> list[Found]:
    """The messages in what is written at these moments."""
    source = source or ScreenSource(80, 24)
    events = []
    for at, text in frames:
        events += until(source, at) + source.feed(text.encode(), at)
    last = frames[-1][0]
    return finds(events + until(source, last + 3) + source.finish(last + 3))


@pytest.mark.parametrize("gap", [0.03, 0.5, 2.0], ids=str)
@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_frames_are_one_utterance(back: str, gap: float) -> None:
    lines = f"⠋ working\r\n{BOB}\r\n"
    frames = [(number * gap, back * bool(number) + lines) for number in range(12)]
    assert heard(frames) == [SAID]


@pytest.mark.parametrize("back", ["\x1b[2J\x1b[H", "\x1b[H\x1b[J"], ids=["clear", "erase"])
def test_the_same_words_after_a_screen_was_cleared_later_are_said_again(back: str) -> None:
    assert heard([(0.0, f"{BOB}\r\n"), (3.0, f"{back}{BOB}\r\n")]) == [SAID, SAID]


@pytest.mark.parametrize(
    "clear", ["\x1b[H\x1b[2J", "\x1b[H\x1b[J", "\x1bc"], ids=["2J", "J", "reset"]
)
def test_a_picture_higher_than_the_screen_is_drawn_anew_after_a_rest(clear: str) -> None:
    notes = "".join(f"note {number}\r\n" for number in range(9))
    whole = f"{BOB}\r\n\r\n{notes}\r\n{BOB}\r\n\r\none\r\ntwo\r\nthree\r\n"
    frames = [(number * 3.0, f"{clear}\x1b[?25l{whole}") for number in range(4)]
    assert heard(frames, ScreenSource(80, 6)) == [SAID, SAID]


def test_an_answer_that_is_said_again_beside_itself_is_not_said_by_a_resize() -> None:
    words = "please check the parser and report which of the tests fail before noon with care"
    block = textwrap.wrap(f"@relay:Bob {words}", 38)
    wider = textwrap.wrap(f"@relay:Bob {words}", 58)
    source = ScreenSource(40, 24)
    events = []
    up = 0
    for number in range(6):  # each turn of the spinner stands below one more of what was said
        rows = [*([*block, ""] * (1 + number // 2)), f"{'⠋⠙⠹⠸⠼⠴'[number]} thinking", ""]
        picture = (f"\x1b[{up}A\x1b[J" if up else "") + "\r\n".join(rows)
        up = len(rows) - 1
        events += until(source, number * 3.0) + source.feed(picture.encode(), number * 3.0)
    events += until(source, 18.0) + source.resize(60, 24, 18.0)
    rows = [*([*wider, ""] * 3), "⠋ thinking", ""]
    picture = "\x1b[2J\x1b[3J\x1b[H" + "\r\n".join(rows)
    events += source.feed(picture.encode(), 18.0) + until(source, 22.0) + source.finish(22.0)
    assert [" ".join((one.body or "").split()) for one in finds(events)] == [words] * 3


def test_the_same_words_said_again_soon_after_a_resize_are_heard_again() -> None:
    source = ScreenSource(40, 12)
    line = f"{BOB} and please check the parser again before noon\r\n\r\n"
    events = source.feed(f"\x1b[?25l{line}".encode(), 0.0) + until(source, 3.0)
    events += source.resize(30, 8, 3.0) + until(source, 3.4)
    for number in range(3):  # the last of them push the first off the screen
        at = 3.4 + number * 0.4
        events += source.feed(line.encode(), at) + until(source, at + 0.4)
    assert len(finds(events + source.finish(8.0))) == 4


@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_a_growing_answer_is_heard_once_and_whole(back: str) -> None:
    parts = ["@relay:Bob", "one", "two", "three", "four", "five", "six", "seven"]
    frames = [(0.0, "\x1b[?25l")]
    for number in range(1, len(parts) + 1):
        shown = " ".join(parts[:number])
        frames.append((number * 0.1, back * (number > 1) + f"⠋ working\r\n{shown}\r\n"))
    assert heard(frames) == [Found("Bob", "one two three four five six seven")]


@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_what_is_wiped_and_printed_again_at_the_end_is_not_said_again(back: str) -> None:
    frames = [(number * 0.1, back * bool(number) + f"⠋\r\n{BOB}\r\n") for number in range(9)]
    assert heard([*frames, (2.0, f"{back}{BOB}\r\nDone.\r\n")]) == [SAID]


@pytest.mark.parametrize("back", BACK.values(), ids=BACK)
def test_the_same_words_below_are_said_again(back: str) -> None:
    frames = [(number * 0.1, back * bool(number) + f"⠋\r\n{BOB}\r\n") for number in range(9)]
    assert heard([*frames, (2.0, f"{back}{BOB}\x1b[K\r\n\x1b[K\r\n{BOB}\x1b[K\r\n")]) == [
        SAID,
        SAID,
    ]


def test_random_conversations_drawn_in_random_ways_are_heard_as_they_were_said() -> None:
    for number in range(50):  # bench/repaint.py goes on from there
        outcome = listen(number)
        assert not outcome.wrong, (number, outcome)


@pytest.mark.parametrize(
    "number",
    [8312637, 8313062, 8313624, 8312802, 8310354],
    ids=["broken-anew", "broken-anew-at-once", "region", "region-restored", "last-line-restored"],
)
def test_what_was_heard_wrongly_once(number: int) -> None:
    assert not listen(number).wrong


#: What the programs of tests/casts/renderers say: a long message, one that is said twice in a turn
#: and once more in a later one, and a block.
RENDERED = [
    "m1 please check the parser and report which of the tests fail before noon with care and then "
    "look at the lexer as well because the build of module seven fails again and again",
    "m2 short one",
    "m2 short one",
    "m3 first line of the block\n\nsecond line here",
    "m2 short one",
]
RENDERERS = sorted(path.name.removesuffix(".cast.xz") for path in CASTS.glob("renderers/*.cast.xz"))


@pytest.mark.parametrize("name", RENDERERS)
def test_what_a_renderer_draws_is_heard_as_it_was_said(name: str) -> None:
    cols, rows = map(int, name.rpartition("-")[2].split("x"))
    source = ScreenSource(cols, rows)
    events = []
    at = 0.0
    for at, _, data in cast(f"renderers/{name}"):
        events += until(source, at) + source.feed(data.encode(), at)
    events += until(source, at + 3) + source.finish(at + 3)
    assert [found.body for found in finds(events)] == RENDERED
