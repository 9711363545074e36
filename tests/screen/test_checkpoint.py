"""A checkpoint is bounded, whatever was printed and typed, and a session goes on from it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from relay.screen import checkpoint
from relay.screen.checkpoint import beginning, fitting, moved_in_time, size_of
from relay.screen.emulator import Emulator
from relay.screen.source import CHECKPOINT_MAX, ScreenSource, make_source
from relay.screen.terminal_modes import BRACKETED_PASTE
from tests.screen.screens import texts, until

_FAMILY = ("\u200d👩" * 9000).encode()


def _colours(rows: int) -> bytes:
    rng = random.Random(1)
    return b"".join(
        b"\x1b[%d;1H" % row
        + b"".join(
            b"\x1b[38;2;%d;%d;%dm%c" % (*rng.randbytes(3), 33 + row % 90) for _ in range(400)
        )
        for row in range(1, rows + 1)
    )


def _accents(rows: int) -> bytes:
    """Cells that hold many characters each."""
    rng = random.Random(2)
    cell = [
        chr(0x4E00 + n) + "".join(map(chr, rng.choices(range(0x300, 0x370), k=12)))
        for n in range(999)
    ]
    return "".join(
        f"\x1b[{row};1H" + "".join(rng.choices(cell, k=200)) for row in range(1, rows + 1)
    ).encode()


HOSTILE = {
    "a line of astral characters": b"a" + _FAMILY * 5,
    "a line of marks that JSON escapes": b'"\\' * 400_000,
    "rows of wide characters": b"".join("世界".encode() * 90 + b"%d\r\n" % n for n in range(1500)),
    "a painted screen of colours": b"\x1b[?1049h\x1b[?2026h" + _colours(150) + b"\x1b[?2026l",
    "a painted screen of accents": b"\x1b[?1049h\x1b[?2026h" + _accents(60) + b"\x1b[?2026l",
    "painted lines of wide characters": b"\x1b[?2026h\x1b[?2026l"
    + b"".join("● 世界".encode() * 40 + b"%d\r\n\r\n" % n for n in range(1500)),
    "a title": b"\x1b]0;" + "👩".encode() * 200 + b"\x07",
    "a string without an end": b"\x1bPq" + b"\x80" * 200_000,
}
TYPED = {
    "nothing": "",
    "long lines": "\n".join("👩" * 4000 + str(n) for n in range(50)),
    "many lines": "\n".join(f"line {n} of what was typed" for n in range(5000)),
}


@pytest.mark.parametrize("typed", TYPED)
@pytest.mark.parametrize("what", HOSTILE)
def test_a_checkpoint_is_bounded_whatever_is_in_it(what: str, typed: str) -> None:
    source = ScreenSource(500, 300)
    for _ in range(8):
        source.expect_echo(TYPED[typed], 0.0)
    data = HOSTILE[what]
    for at in range(0, len(data), 65536):
        source.feed(data[at : at + 65536], at / 1e6)
    now = len(data) / 1e6 + 0.05
    source.tick(now)
    saved = source.checkpoint()
    assert len(saved) <= CHECKPOINT_MAX
    again = ScreenSource.restore(saved, 500, 300, now)
    assert again.alt_screen == source.alt_screen
    again.feed(b"\x1b\\\x1b[0m" + b"\x1b[?1049l" * again.alt_screen + b"\r\n\r\n", now)
    until(again, now + 9)
    events = again.feed(b"goes on\r\n", now + 9) + until(again, now + 18)
    assert "goes on" in texts(events)


def test_what_is_typed_last_is_known_again_and_echoed_first() -> None:
    source = ScreenSource(80, 24)
    source.expect_echo("first words of many\n" + "👩" * 4000, 0.0)
    source.expect_echo("last words of many", 0.0)
    again = ScreenSource.restore(source.checkpoint(), 80, 24, 0.0)
    assert not texts(again.feed(b"first words of many\r\n", 0.1))
    assert not texts(again.feed(b"last words of many\r\n", 0.1))


@pytest.mark.parametrize("text", ["", "a", "a" * 99, "👩" * 30, 'a"\\\x01👩' * 9])
@pytest.mark.parametrize("most", [0, 4, 5, 17, 30, 100, 1000])
def test_the_beginning_of_a_text_is_as_much_as_fits(text: str, most: int) -> None:
    kept = beginning(text, most)
    assert text.startswith(kept)
    assert not kept or size_of(kept) <= most
    assert kept == text or size_of(text[: len(kept) + 1]) > most


def test_what_does_not_fit_is_left_out_and_what_comes_behind_it_may() -> None:
    assert fitting(["aaa", "b" * 50, "cc"], 20) == ["aaa", "cc"]


def test_times_are_moved_to_the_clock_of_the_session_that_goes_on() -> None:
    state = {"seen_at": 1.0, "rows": [{"at": 2.0, "size": 3.0}], "late_at": None}
    assert moved_in_time(state, 10.0) == {
        "seen_at": 11.0, "rows": [{"at": 12.0, "size": 3.0}], "late_at": None,
    }  # fmt: skip


# -- the picture -------------------------------------------------------------------------------


def full() -> Emulator:
    """Rows of random letters, more than fit on the screen, in colours of their own."""
    emulator = Emulator(80, 24, history=1000)
    rng = random.Random(1)
    emulator.feed(b"\x1b[?2004h")
    for number in range(1000):
        colour = b"\x1b[38;2;%d;%d;%dm" % tuple(rng.randbytes(3))
        emulator.feed(colour + b"%x" % rng.getrandbits(200) + b" %d\r\n" % number)
    return emulator


def restored(state: dict[str, Any]) -> Emulator:
    snapshot, drawn = checkpoint.picture_of(state)
    emulator = Emulator(80, 24, history=1000, snapshot=snapshot)
    emulator.feed(drawn)
    return emulator


def test_what_does_not_fit_is_left_out_scrollback_first() -> None:
    emulator = full()
    assert emulator.history_rows > 900
    limit, kept = 10_000_000, []
    while True:
        try:
            data = checkpoint.with_picture({"x": 1}, emulator, limit)
        except StopIteration:
            break
        assert len(data) <= limit
        state = json.loads(data)
        assert state["x"] == 1
        again = restored(state)
        assert again.mode(BRACKETED_PASTE)
        kept.append(
            (
                again.history_rows > 900,
                again.style(0, again.history_rows) == emulator.style(0, emulator.history_rows),
                again.visible() == emulator.visible(),
            )
        )
        limit = len(data) - 1
    assert kept == [
        (True, True, True),
        (False, True, True),
        (False, False, True),
        (False, False, False),
    ]


@pytest.mark.parametrize(
    "state", [{}, {"drawn": None}, {"emulator": 3}, {"drawn": "abc"}, {"emulator": "YWJj"}]
)
def test_what_is_no_picture_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        checkpoint.picture_of(state)


def test_a_checkpoint_is_bounded_and_survives_another_size() -> None:
    screen = ScreenSource(200, 60)
    rng = random.Random(1)
    for number in range(3000):
        colour = b"\x1b[38;2;%d;%d;%dm" % tuple(rng.randbytes(3))
        screen.feed(colour + b"%x" % rng.getrandbits(700) + b" %d\r\n" % number, number / 100)
    saved = screen.checkpoint()
    assert len(saved) <= CHECKPOINT_MAX
    again = ScreenSource.restore(saved, 80, 24, 0.0)
    assert texts(again.feed(b"\x1b[0mnext\r\n", 0.0)) == ["next"]


def test_a_checkpoint_of_half_a_wide_character_draws_the_screen_again() -> None:
    screen = ScreenSource(53, 6)
    screen.feed(b"\x1b[?1049h\x1b[?2004h\t" + "世界👩‍👩‍👧".encode(), 0.0)
    screen.resize(13, 11, 0.1)
    again = ScreenSource.restore(screen.checkpoint(), 13, 11, 0.2)
    assert again.alt_screen and again.bracketed_paste
    assert "世界" in again.visible()[0]
    assert again.cursor == screen.cursor


def test_a_checkpoint_is_used_when_it_fits() -> None:
    first = make_source(80, 24, 0.0, namespaces=())
    first.feed(b"@relay:Bob ha", 0.0)
    again = make_source(80, 24, 5.0, saved=first.checkpoint(), namespaces=())
    assert texts(again.feed(b"lf\r\n", 5.0) + until(again, 9.0)) == ["@relay:Bob half"]


@pytest.mark.parametrize("saved", [b"no JSON", b'{"kind": "screen", "size": [80, 24]}', b"{}"])
def test_a_checkpoint_of_another_version_is_refused_in_the_log(
    saved: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_source(80, 24, 5.0, saved=saved, namespaces=())
    assert "what stood on the screen is not known any more" in capsys.readouterr().err
    assert texts(source.feed(b"@relay:Bob hi\r\n", 5.0) + until(source, 9.0)) == ["@relay:Bob hi"]
