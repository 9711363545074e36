"""Concealed text is not said."""

from __future__ import annotations

import pytest

from relay.screen.source import ScreenSource
from tests.screen.screens import hear

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
