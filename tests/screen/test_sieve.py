"""A flood is heard as slow output is: the same messages, whole, once, wherever it is cut."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.core.source_events import End, Line, Pause, SourceEvent
from relay.directive.grammar import Found, Match, Scanner
from relay.directive.line_parser import Reader
from relay.screen import flood
from relay.screen.flood import FloodFilter, shown
from relay.screen.grammar_state import GrammarState
from relay.screen.line_events import FLOOD_BURST, NAMESPACES
from relay.screen.source import ScreenSource
from tests.screen import corpora
from tests.screen.screens import cut, until

COLS, ROWS = 60, 10
LONG = "@relay:Bob " + "word " * 60 + "end"
#: What may stand in a flood; ``#`` is made a number, so that no two are the same.
PIECES = [
    "@relay:Bob one #\r\n\r\n",
    "@relay:Bob two #\r\nand more\r\nend\r\n\r\n",
    "@relay:Bob first #\r\n@relay:Ann second #\r\n\r\n",
    "@relay:Ann <<<\r\nfirst #\r\n\r\n@relay:Eve <<<\r\nno\r\n>>>\r\n```\r\n>>>\r\n",
    "   - @memory:save three #\r\n\r\n",
    "● @relay:Bob [mode:steer] four #\r\n\r\n",
    LONG + " #\r\n\r\n",
    "\x1b[1;31m@re\x1b[0mlay:\x1b[4mBob\x1b[m five #\x1b[K\r\n\r\n",
    "x\r@relay:Bob six #\r\n\r\n",
    "@relay:Bpb\b\bob seven #\r\n\r\n",
    "@broadcast: eight #\r\n\r\n",
    "é @relay:Bob no #\r\n",
    "\u200b@relay:Bob behind what is not seen #\r\n\r\n",
    "```python\r\n@relay:Eve no #\r\n@relay:Eve <<<\r\n```\r\n",
    "~~~\r\n```\r\n@relay:Eve no #\r\n~~~\r\n",
    "mail bob@example.com, see @relay:Bob or `@relay:Bob` #\r\n",
    "\\@relay:Bob no #\r\n    @relay:Bob no #\r\n> @relay:Bob no #\r\n",
    "@unknown:Bob no #\r\n@relay Bob no\r\n@relay:\r\n",
    "\x1b]0;@relay:Bob a title #\x07\x1b[33mcolour\x1b[0m\ttab\r\n",
    "10%\r50%\r100% @ #\r\n",
]
_NOISE = ["plain text #\r\n", "\x1b[32mgreen\x1b[0m text \x1b[1m#\x1b[0m\r\n", "wide 世界 ✓ #\r\n"]
_STREAM = st.lists(
    st.one_of(
        st.sampled_from(PIECES),
        st.tuples(st.sampled_from(_NOISE), st.integers(1, 120)).map(lambda n: n[0] * n[1]),
    ),
    max_size=12,
)


def found(
    pieces: list[tuple[bytes, float]], *, flooded: bool, cols: int = COLS, rows: int = ROWS
) -> list[Found]:
    """What the grammar finds in the pieces, each with its moment; in a flood or at leisure."""
    screen, scanner = ScreenSource(cols, rows), Scanner(NAMESPACES)
    if flooded:
        screen._out.spend(2 * FLOOD_BURST)
    result: list[Found] = []

    def take(events: list[SourceEvent]) -> None:
        for event in events:
            if isinstance(event, Line):
                result.extend(scanner.line(event.text))
            elif isinstance(event, Pause):
                result.extend(scanner.pause())
            elif isinstance(event, End):
                result.extend(scanner.end())

    now = 0.0
    for data, now in pieces:
        take(screen.feed(data, now))
    take(until(screen, now + 5))
    take(screen.finish(now + 5))
    return result


def numbered(pieces: list[str]) -> bytes:
    number = itertools.count()
    return "".join(
        "".join(part + str(next(number)) for part in piece.split("#")[:-1]) + piece.split("#")[-1]
        for piece in pieces
    ).encode()


@settings(max_examples=120, deadline=None)
@given(_STREAM, st.lists(st.integers(1, 3000), min_size=1, max_size=6))
def test_a_flood_is_heard_as_slow_output_is(pieces: list[str], sizes: list[int]) -> None:
    data = numbered(pieces)
    slow = found([(data, 0.0)], flooded=False)
    fast = [(piece, 0.0) for piece in cut(data, itertools.cycle(sizes))]
    assert found(fast, flooded=True) == slow
    assert found([(data, 0.0)], flooded=True) == slow


@pytest.mark.parametrize("noise", _NOISE)
def test_a_message_at_the_cut_of_a_large_piece_is_heard(noise: str) -> None:
    data = numbered([noise * 3000, *PIECES[:11], noise * 3000])
    slow = found([(data, 0.0)], flooded=False)
    assert len(slow) == 12
    at = data.index(b"@relay")
    for place in range(at - 3, at + 40, 7):
        pieces = [(data[:place], 0.0), (data[place:], 0.0)]
        assert found(pieces, flooded=True) == slow


@pytest.mark.parametrize("corpus", ["plain", "coloured", "adversarial", "tui"])
def test_planted_messages_are_heard_in_a_flood(corpus: str) -> None:
    pieces = list(corpora.planted(corpus, 400_000, messages=60, seed=7))
    data = b"".join(piece.data for piece in pieces)
    rng = random.Random(3)
    sizes = iter(lambda: rng.choice((5, 700, 5000, 66_000)), None)
    moments: list[tuple[bytes, float]] = []
    at = 0
    for piece in cut(data, sizes):
        at += len(piece)
        moments.append((piece, at / 50e6))
    heard = found(moments, flooded=True, cols=corpora.COLS, rows=corpora.ROWS)
    meant = [piece.words for piece in pieces if piece.words is not None]
    assert [(item.target, item.body) for item in heard if isinstance(item, Match)] == meant
    assert len(heard) == len(meant)


def test_a_block_that_is_too_long_is_left_where_it_ends() -> None:
    noise = b"a line of the block\r\n" * 120_000
    data = b"@relay:Bob <<<\r\n" + noise + b">>>\r\n@relay:Ann hello\r\n\r\n" + noise
    heard = found([(data, 0.0)], flooded=True)
    assert [type(item).__name__ for item in heard] == ["TooLong", "Match"]


# -- the parts ---------------------------------------------------------------------------------

_LINES = st.sampled_from(
    [piece.rstrip("\r\n") for piece in PIECES if "\x1b" not in piece and "\r\n" not in piece[:-4]]
    + ["", "text", "```", "~~~~", "  ```", ">>>", "@relay:Bob <<<", "@relay:Bob ```", "> x", "- x"]
)


@given(st.lists(st.one_of(_LINES, st.just(None)), max_size=30))
def test_the_gist_is_open_whenever_the_grammar_is(lines: list[str | None]) -> None:
    scanner, gist = Scanner(NAMESPACES), GrammarState(NAMESPACES)
    for line in lines:
        if line is None:
            scanner.pause()
            gist.pause()
        else:
            scanner.line(line)
            gist.line(line)
        state = scanner.state()
        assert gist.open or not scanner.open
        assert gist.block == bool(state["message"] and state["message"]["block"])
        fence = state["fence"]
        assert gist.fence == (fence["char"] * fence["length"] if fence else "")
        again = GrammarState(NAMESPACES)
        again.load(gist.state())
        assert again.state() == gist.state()


_ODD = st.text(st.sampled_from("@relay:Bob`~->1.) \t●•é\u200b"), max_size=24)


@given(st.lists(st.one_of(_ODD, _LINES), max_size=8), st.booleans())
def test_no_line_that_matters_falls_through_the_sieve(lines: list[str], coloured: bool) -> None:
    sieve, reader = FloodFilter(NAMESPACES), Reader(NAMESPACES)
    text = "".join(line + "\r\n" for line in lines)
    if coloured:
        text = text.replace("e", "e\x1b[31m").replace("`", "\x1b[1m`")
    size = sieve.clean(text.encode())
    clean = text.encode()[:size].decode().split("\r\n")[:-1]
    for line in lines[: len(clean)]:
        visible = line.replace("\u200b", "")
        assert reader.head(visible) is None and reader.fence(visible) is None
    for line in lines:
        if reader.head(line) is not None or reader.fence(line) is not None:
            assert sieve.line(line)
            assert sieve.painted(f"│ {line}") is not None


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=90), max_size=6))
def test_what_is_shown_is_what_the_emulator_shows(lines: list[str]) -> None:
    data = "".join(line + "\x1b[1m\r\n" for line in lines).encode()
    text = shown(data) if lines else None
    if text is not None:
        screen = ScreenSource(COLS, 200)
        events = screen.feed(data, 0.0)
        assert text.split("\n")[1:] == [e.text for e in events if isinstance(e, Line)]


def test_a_namespace_beyond_ascii_is_not_missed() -> None:
    line = "@größe:x hallo\r\n".encode()
    assert FloodFilter(["größe"]).clean(line) == 0
    assert FloodFilter(NAMESPACES).clean(line) == len(line)


def test_the_pace_grows_where_much_is_clean() -> None:
    pace = flood.FloodPace()
    data = b"a line\n" * 100_000
    first = pace.sifted(data, 0)
    assert pace.passed(first)
    assert pace.sifted(data, 0) > first
    assert not pace.passed(0)
    assert pace.sifted(data, 0) < first
    ends = [pace.read(data, 0) for _ in range(12)]
    assert ends == sorted(ends) and all(data[end - 1 : end] == b"\n" for end in ends)
