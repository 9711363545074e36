"""The modes that a program leaves behind."""

from __future__ import annotations

import pytest

from relay.screen.source import ScreenSource


@pytest.mark.parametrize(
    ("data", "undo"),
    [
        (b"\x1b[?2004h", b"\x1b[?2004l"),
        (b"\x1b[?1002;1006h", b"\x1b[?1002l\x1b[?1006l"),
        (b"\x1b[?25l", b"\x1b[?25h"),
        (b"\x1b=", b"\x1b>"),
        (b"\x1b[>5u", b"\x1b[<99u"),
        (b"\x1b[?1049h", b"\x1b[?1049l"),
    ],
)
def test_what_is_set_is_undone(data: bytes, undo: bytes) -> None:
    modes = ScreenSource(80, 24)
    modes.feed(data, 0.0)
    assert undo in modes.reset_sequences()
    modes.feed(modes.reset_sequences(), 0.0)
    assert modes.reset_sequences() == b""


@pytest.mark.parametrize(
    "data", [b"plain", b"\x1b[31m", b"\x1b[?2004h\x1b[?2004l", b"\x1b[?1h\x1bc"]
)
def test_nothing_set_nothing_undone(data: bytes) -> None:
    modes = ScreenSource(80, 24)
    modes.feed(data, 0.0)
    assert modes.reset_sequences() == b""


def test_a_held_picture_is_let_go_first() -> None:
    modes = ScreenSource(80, 24)
    modes.feed(b"\x1b[?1000h\x1b[?2026h\x1b]0;busy\x07", 0.0)
    assert modes.reset_sequences().startswith(b"\x1b[?2026l")
    assert modes.title == "busy"
