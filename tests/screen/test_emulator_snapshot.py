"""The picture in a checkpoint: as much of it as there is room for."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from relay.screen import emulator_snapshot
from relay.screen.emulator import Emulator
from relay.screen.source import CHECKPOINT_MAX, ScreenSource
from relay.screen.terminal_modes import BRACKETED_PASTE
from tests.screen.screens import texts


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
    snapshot, drawn = emulator_snapshot.found(state)
    emulator = Emulator(80, 24, history=1000, snapshot=snapshot)
    emulator.feed(drawn)
    return emulator


def test_what_does_not_fit_is_left_out_scrollback_first() -> None:
    emulator = full()
    assert emulator.history_rows > 900
    limit, kept = 10_000_000, []
    while True:
        try:
            data = emulator_snapshot.added({"x": 1}, emulator, limit)
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
        emulator_snapshot.found(state)


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
