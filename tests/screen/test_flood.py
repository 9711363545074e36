"""A terminal that sees only the end of a flood looks as if it had seen all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pyghostty.core import Terminal

from relay.screen.emulator import Emulator
from relay.screen.flood import FloodFilter, last_lines
from relay.screen.line_events import NAMESPACES
from relay.screen.source import ScreenSource
from tests.screen.screens import texts, until

ROWS = 4
_PIECES = ["log ", "\t", "x" * 30, "ä", "\x1b[31m", "\x1b[1;4m", "\x1b[m", "\x1b[0m", "\x1b[K"]
_LINE = st.lists(st.sampled_from([*_PIECES, "half\r", "\b"]), max_size=5).map("".join)


@given(st.lists(_LINE, min_size=2 * ROWS + 2, max_size=30), _LINE, _LINE)
def test_the_screen_is_the_same(lines: list[str], before: str, after: str) -> None:
    data = ("\r\n".join(lines) + "\r\n" + after).encode()
    last = last_lines(data, 2 * ROWS)
    assert last is not None
    end, left_out = last
    assert left_out + end.count(b"\n") == data.count(b"\n")
    whole, part = Emulator(20, ROWS), Emulator(20, ROWS)
    whole.feed(before.encode() + data)
    part.feed(before.encode() + end)
    assert (part.visible(), part.cursor) == (whole.visible(), whole.cursor)


def test_colours_last_as_if_all_had_been_seen() -> None:
    flood = b"\x1b[7mold\x1b[0m\r\n\x1b[1mbold\r\n\x1b[4munderlined\r\n" + b"more\r\n" * 20
    last = last_lines(flood, 10)
    assert last is not None
    styles = []
    for data in (flood, last[0]):
        terminal = Terminal(20, ROWS)
        terminal.feed(data + b"X")
        styles.append(terminal.style(0, ROWS - 1))
    assert styles[0] == styles[1]
    assert styles[0]["bold"] and styles[0]["underline"] and not styles[0]["inverse"]


def test_too_few_lines_are_shown_whole() -> None:
    plain = b"a line of text\r\n" * 20
    assert last_lines(plain, 10) is not None
    assert last_lines(plain, 20) is None
    assert last_lines(plain.replace(b"\r\n", b"\n"), 10) is None  # they do not begin at the edge


SIEVE = FloodFilter(NAMESPACES)


def test_only_text_may_be_left_out() -> None:
    plain = b"a line of text\r\n" * 20
    assert SIEVE.clean(plain) == len(plain)
    for lasting in (b"\x1b[4h", b"\x1b]2;title\x07", b"\x0e", b"\x1b(0", b"\x1b[5;9r", b"\x1bP"):
        assert SIEVE.clean(lasting + plain) == 0
        assert SIEVE.clean(plain + b"x" + lasting + plain) == len(plain)


def test_words_are_heard_after_a_flood_that_was_passed_over() -> None:
    screen = ScreenSource(80, 24)
    events = screen.feed(b"", 0.0)
    for _ in range(40):
        events += screen.feed(b"2026-01-01 INFO nothing to see here\r\n" * 1800, 0.0)
    events += screen.feed(b"half a line, @relay:Carol no\r\n@relay:Bob yes\r\n", 0.0)
    events += until(screen, 1.0)
    assert texts(events)[-1] == "@relay:Bob yes"
    assert not any("@relay:Carol" in text for text in texts(events))
    assert screen.visible()[-3:] == ["half a line, @relay:Carol no", "@relay:Bob yes", ""]
