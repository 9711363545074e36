"""Plain lines in a flood: a terminal that is shown only their end looks as if it had seen all.

Pure. Nobody reads these lines, so an emulator need not interpret each of them.
"""

from __future__ import annotations

import re
from functools import cache

# What text is made of. A backspace stays on its line, as a carriage return does.
_TEXT = bytes((*b"\b\t\n\r", *range(0x20, 0x7F), *range(0x80, 0x100)))
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*+m")
_NEITHER_COLOUR_NOR_ERASING = re.compile(rb"\x1b(?!\[[0-9;:]*+[mK])")
_RESETS = (b"\x1b[0m", b"\x1b[m")


@cache
def _plain(marks: tuple[bytes, ...]) -> bytes:
    """Text without the characters with which ``marks`` begin."""
    return _TEXT.translate(None, b"".join(mark[:1] for mark in marks))


def last_lines(data: bytes, lines: int, marks: tuple[bytes, ...]) -> tuple[bytes, int] | None:
    """(what leaves a terminal of less than ``lines`` rows as ``data`` would, lines left out).

    Only the scrollback differs. None when one of ``marks`` stands in ``data``, or when it is not
    more than ``lines`` lines of text, coloured or not: anything else may outlast its line.
    """
    cut = len(data)
    for _ in range(lines + 1):
        cut = data.rfind(b"\r\n", 0, cut)
        if cut < 0:
            return None
    # One pass tells most floods: nothing but text and none of the marks.
    odd = data.translate(None, _plain(marks))
    if not odd:
        return data[cut:], data.count(b"\n", 0, cut)
    if any(mark in data for mark in marks):
        return None
    controls = odd.translate(None, _TEXT)
    if controls.strip(b"\x1b") or (controls and _NEITHER_COLOUR_NOR_ERASING.search(data)):
        return None
    # What a colour before the end was set to still holds there.
    since = max(0, *(data.rfind(reset, 0, cut) for reset in _RESETS))
    colours = b"".join(_COLOUR.findall(data, since, cut)) if controls else b""
    return colours + data[cut:], data.count(b"\n", 0, cut)
