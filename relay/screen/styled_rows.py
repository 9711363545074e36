"""Reads how text is drawn: rows with escape sequences in, texts with their styles out. Pure.

What is shown of an agent's screen elsewhere (``relay peek --color``, the console, the web page)
comes from here, as data: no byte of the agent's reaches another terminal. A style is a dictionary
with ``fg`` and ``bg`` (a number of the palette, or ``#rrggbb``) and true flags; what is not there
is as usual.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Style = dict[str, Any]
Span = tuple[str, Style]

_FLAGS = {
    **{1: "bold", 2: "faint", 3: "italic", 4: "underline"},
    **{7: "reverse", 9: "strike"},
}
_SEQUENCE = re.compile(
    r"\x1b\[([0-9;:]*)m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-?]*[ -/]*[@-~]"
)


def styled_rows(rows: Iterable[str]) -> list[list[Span]]:
    """The spans of each row, in which no escape sequence is left."""
    style: Style = {}
    found = []
    for row in rows:
        spans: list[Span] = []
        at = 0
        for sequence in _SEQUENCE.finditer(row):
            _add(spans, row[at : sequence.start()], style)
            at = sequence.end()
            if sequence[1] is not None:
                style = _changed(style, sequence[1])
        _add(spans, row[at:], style)
        found.append(spans)
    return found


def sgr(style: Style) -> str:
    """The sequence that a terminal draws ``style`` by; empty for the usual one."""
    codes = [str(code) for code, name in _FLAGS.items() if style.get(name)]
    for name, base in (("fg", 38), ("bg", 48)):
        colour = style.get(name)
        if isinstance(colour, int):
            codes.append(f"{base};5;{colour}")
        elif isinstance(colour, str) and re.fullmatch("#[0-9a-f]{6}", colour):
            parts = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
            codes.append(f"{base};2;" + ";".join(map(str, parts)))
    return f"\x1b[{';'.join(codes)}m" if codes else ""


def _add(spans: list[Span], text: str, style: Style) -> None:
    text = text.replace("\r", "")
    if spans and spans[-1][1] == style:
        spans[-1] = spans[-1][0] + text, style
    elif text:
        spans.append((text, style))


def _changed(style: Style, codes: str) -> Style:
    """``style`` after these codes. Unknown ones say nothing."""
    numbers = [int(code or 0) for code in re.split("[;:]", codes)]
    made = dict(style)
    while numbers:
        code = numbers.pop(0)
        if code == 0:
            made.clear()
        elif code in _FLAGS:
            made[_FLAGS[code]] = True
        elif 30 <= code <= 37 or 90 <= code <= 97:
            made["fg"] = code - 30 if code < 90 else code - 82
        elif 40 <= code <= 47 or 100 <= code <= 107:
            made["bg"] = code - 40 if code < 100 else code - 92
        elif code in (38, 48):
            name = "fg" if code == 38 else "bg"
            if numbers[:1] == [5] and len(numbers) > 1:
                made[name] = numbers[1] & 255
                del numbers[:2]
            elif numbers[:1] == [2] and len(numbers) > 3:
                made[name] = "#" + "".join(f"{one & 255:02x}" for one in numbers[1:4])
                del numbers[:4]
    return made
