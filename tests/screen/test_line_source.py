"""The source without an emulator: lines only."""

from __future__ import annotations

import itertools
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.core.source_events import Degraded
from relay.protocol import frames
from relay.screen import emulator_library
from relay.screen.line_source import LineSource, make_source, render
from relay.screen.source import ScreenSource
from tests.screen.screens import cut, hear, proofs, spoken, texts, until


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"plain", "plain"),
        (b"trailing  ", "trailing"),
        (b"10%\r100%", "100%"),
        (b"longer\rabc", "abcger"),
        (b"ab\b\bxy", "xy"),
        (b"a\tb", "a       b"),
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"work\r\x1b[Kdone", "done"),
        (b"work\x1b[2K\rdone", "done"),
        (b"abc\x1b[2D\x1b[Kx", "ax"),
        (b"\x1b[5Gx", "    x"),
        (b"\x1b]0;title\x07text", "text"),
        (b"\x1bP1;2q\x1b[31mpayload\x1b\\text", "text"),
        (b"\xff\xe4\xb8", "\ufffd\ufffd"),
        ("é 世界".encode(), "é 世界"),
    ],
)
def test_what_a_line_shows(raw: bytes, shown: str) -> None:
    assert render(raw) == shown


@pytest.mark.parametrize("chunk", [7, 65536])
def test_a_burst_is_heard_whole_and_in_order(chunk: int) -> None:
    lines = [f"@relay:Bob message number {number}" for number in range(5000)]
    data = "".join(line + "\r\n" for line in lines).encode()
    assert hear(LineSource(80, 24), data, chunk) == lines


_PIECES = st.one_of(
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(
        [b"\n", b"\r\n", b"\x1b[31m", b"\x1b[K", b"\x1b]0;a\x07", b"\x1b]8;;x\x1b\\", b"\xff"]
        + [b"\x1bP1q\x1b[\x1b\\", b"\x1b(B", b"\x1b=", "世".encode(), b"@relay:Bob hi\n"]
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_PIECES, max_size=30).map(b"".join), st.lists(st.integers(1, 5), min_size=1))
def test_where_a_stream_is_cut_does_not_matter(data: bytes, sizes: list[int]) -> None:
    source = LineSource(80, 24)
    events = [
        event for piece in cut(data, itertools.cycle(sizes)) for event in source.feed(piece, 0.0)
    ]
    events += until(source, 5.0) + source.finish(5.0)
    assert texts(events) == hear(LineSource(80, 24), data)


def test_pauses_and_the_end() -> None:
    source = LineSource(80, 24)
    events = source.feed(b"@relay:Bob hi\npart", 0.0) + until(source, 1.0) + source.finish(1.0)
    assert spoken(events) == ["@relay:Bob hi", "(pause)", "part", "(pause)", "(end)"]


def test_the_persons_typing_and_the_injected_are_not_speech() -> None:
    source = LineSource(80, 24)
    events = source.feed(b"> ", 0.0) + source.activity(frames.TYPED, 0.0)
    events += source.feed(b"@relay:Bob mine", 0.0) + source.activity(frames.ENTERED, 0.1)
    source.expect_echo("[id1] hello there", 0.2)
    events += source.feed(b"\r\n[id1] hello there\r\n@relay:Bob theirs\r\n", 0.2)
    assert texts(events) == [">", "@relay:Bob theirs"]
    assert "[id1] hello there" in proofs(events)


def test_a_full_screen_program_is_not_heard_and_that_is_said_once() -> None:
    source = LineSource(80, 24)
    events = source.feed(b"\x1b[?1049h\x1b[?2004h@relay:Bob drawn\r\n", 0.0)
    events += source.feed(b"@relay:Bob drawn\r\n", 0.1)
    assert source.alt_screen and source.bracketed_paste
    assert source.reset_sequences().startswith(b"\x1b[?2004l\x1b[?1049l")
    assert [type(event) for event in events] == [Degraded]
    assert texts(source.feed(b"\x1b[?1049l", 0.2) + source.feed(b"text\r\n", 0.2)) == ["text"]


def test_a_restored_source_goes_on() -> None:
    source = LineSource(80, 24)
    source.feed(b"\x1b[?2004h@relay:Bob ha\x1b[3", 0.0)
    again = LineSource.restore(source.checkpoint(), 80, 24, 100.0)
    assert again.bracketed_paste
    assert texts(again.feed(b"1mlf\r\n", 100.0)) == ["@relay:Bob half"]
    with pytest.raises(ValueError):
        LineSource.restore(b'{"kind": "screen"}', 80, 24, 0.0)


def test_the_emulator_is_used_where_there_is_one() -> None:
    assert isinstance(make_source(80, 24, 0.0, namespaces=()), ScreenSource)


def test_without_the_emulator_lines_take_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(cache: str | None) -> NoReturn:
        raise ImportError("pyghostty")

    monkeypatch.setattr(emulator_library, "load", missing)
    source = make_source(80, 24, 0.0, namespaces=())
    assert isinstance(source, LineSource)


def test_what_comes_before_and_after_another_screen_is_heard_however_it_is_cut() -> None:
    data = b"@relay:Bob hi\r\nunfin\x1b[?1049h\x1b[2Jdrawn\r\n\x1b[?12;1049lished\r\nlast\r\n"
    for size in (1, 3, 9, len(data)):
        source = LineSource(80, 24)
        events = [e for piece in cut(data, itertools.repeat(size)) for e in source.feed(piece, 0.0)]
        assert texts(events) == ["@relay:Bob hi", "unfinished", "last"]
        assert sum(isinstance(event, Degraded) for event in events) == 1


@pytest.mark.parametrize("broken", [b"\x1b", b"\x1b[1", b"\x1b]0;title", b"\x1b("])
def test_a_sequence_that_another_breaks_off_hides_no_switch(broken: bytes) -> None:
    data = b"one\r\n" + broken + b"\x1b[?1049hdrawn\r\n" + broken + b"\x1bc\r\ntwo\r\n"
    for size in (1, len(data)):
        source = LineSource(80, 24)
        events = [e for piece in cut(data, itertools.repeat(size)) for e in source.feed(piece, 0.0)]
        assert texts(events) == ["one", "", "two"]


def test_what_is_typed_into_a_full_screen_program_is_not_of_the_line_below_it() -> None:
    source = LineSource(80, 24)
    source.feed(b"\x1b[?1049h", 0.0)
    source.activity(frames.ENTERED, 0.1)
    assert texts(source.feed(b"\x1b[?1049l@relay:Bob hi\r\n", 0.2)) == ["@relay:Bob hi"]


def test_a_checkpoint_is_used_when_it_fits() -> None:
    first = make_source(80, 24, 0.0, namespaces=())
    first.feed(b"@relay:Bob ha", 0.0)
    again = make_source(80, 24, 5.0, saved=first.checkpoint(), namespaces=())
    assert texts(again.feed(b"lf\r\n", 5.0)) == ["@relay:Bob half"]


@pytest.mark.parametrize("saved", [b"no JSON", b'{"kind": "screen", "size": [80, 24]}', b"{}"])
def test_a_checkpoint_of_another_version_is_refused_in_the_log(
    saved: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_source(80, 24, 5.0, saved=saved, namespaces=())
    assert "what stood on the screen is not known any more" in capsys.readouterr().err
    assert texts(source.feed(b"@relay:Bob hi\r\n", 5.0)) == ["@relay:Bob hi"]


@pytest.mark.parametrize("begin", ["\x1b[?25l", "\x1b[1A\r", "\x1b[1;1H", "\x1bM\r"])
def test_of_what_is_drawn_nothing_is_heard_and_that_is_said_once(begin: str) -> None:
    source = LineSource(80, 24)
    events = source.feed(b"@relay:Bob before\r\n", 0.0)
    for number in range(4):
        frame = f"{begin}@relay:Bob part {'of' * number}\r\n"
        events += source.feed(frame.encode(), 0.5 + number / 4)
    events += source.feed(b"\x1b[?25h", 1.4) + source.feed(b"@relay:Bob after\r\n", 3.0)
    assert texts(events) == ["@relay:Bob before", "@relay:Bob after"]
    assert sum(isinstance(event, Degraded) for event in events) == 1
