"""Directives that are drawn as code or in bold: the marks around them are gone, the style is not.

The style is only compared with that of the words behind it, because colours are the theme's.
"""

from __future__ import annotations

import re

from relay.screen.agent_styles import Dialect
from relay.screen.emulator import Emulator

# Indentation, a bullet or list mark: all of them one cell wide.
_HEAD = re.compile(r"[\s│┃●⏺•✦◆*+-]*(?:\d{1,3}[.)]? +)?(?=@[\w*-]+:)")
_WORD = re.compile(r"\S+\s*")


def told_apart(emulator: Emulator, rows: list[str], first: int, dialect: Dialect) -> list[str]:
    """``rows``, with a backslash before each directive that is not drawn like plain text.

    The first of them begins at screen row ``first``; rows that the terminal wrapped are one.
    """
    if not dialect.styled or not any("@" in row for row in rows):
        return rows
    told: list[str] = []
    y = first
    for row in rows:
        told.append(_told(emulator, row, y, dialect))
        y += 1
        while y < emulator.total_rows and len(row) > emulator.cols and emulator.continues(y):
            y += 1
    return told


def _told(emulator: Emulator, row: str, y: int, dialect: Dialect) -> str:
    head = _HEAD.match(row)
    if head is None or head.end() >= emulator.cols:
        return row
    at = head.end()
    style = emulator.style(at, y)
    word = _WORD.match(row, at)
    after = word.end() if word else len(row)
    code = dialect.lit_code and style.background
    if after < min(len(row), emulator.cols):
        other = emulator.style(after, y)
        code = code or (style.colour, style.background) != (other.colour, other.background)
    return f"{row[:at]}\\{row[at:]}" if code or style.bold else row
