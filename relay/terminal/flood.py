"""Plain lines in a flood: a terminal that is shown only their end looks as if it had seen all.

Pure. Nobody reads these lines, so an emulator need not interpret each of them.
"""

from __future__ import annotations

import re

# What text is made of. A backspace stays on its line, as a carriage return does.
_TEXT = bytes((*b"\b\t\n\r", *range(0x20, 0x7F), *range(0x80, 0x100)))
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*+m")
_NEITHER_COLOUR_NOR_ERASING = re.compile(rb"\x1b(?!\[[0-9;:]*+[mK])")
_RESETS = (b"\x1b[0m", b"\x1b[m")


def last_lines(data: bytes, lines: int) -> tuple[bytes, int] | None:
    """(what leaves a terminal of less than ``lines`` rows as ``data`` would, lines left out).

    Only the scrollback differs. None when ``data`` is not more than ``lines`` lines of text,
    coloured or not: anything else may have an effect that outlasts its line.
    """
    cut = len(data)
    for _ in range(lines + 1):
        cut = data.rfind(b"\r\n", 0, cut)
        if cut < 0:
            return None
    controls = data.translate(None, _TEXT)
    if controls.strip(b"\x1b") or (controls and _NEITHER_COLOUR_NOR_ERASING.search(data)):
        return None
    if not controls:
        return data[cut:], data.count(b"\n", 0, cut)
    # What a colour before the end was set to still holds there.
    since = max(0, *(data.rfind(reset, 0, cut) for reset in _RESETS))
    colours = b"".join(_COLOUR.findall(data, since, cut))
    return colours + data[cut:], data.count(b"\n", 0, cut)
