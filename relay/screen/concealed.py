"""Blanks what a program conceals (SGR 8): a person cannot read it, so nobody says it. Pure.

It is done to the bytes, before either source sees them: concealed characters become spaces, which
take the same room. What is only hard to read (the colour of the ground, a faint grey) is text.
"""

from __future__ import annotations

import re
from typing import Any

# A rendition with a parameter 8 that is not the number of a colour.
_CONCEALS = re.compile(
    rb"\x1b\[(?:(?>[345]8;(?:5;[0-9]*|2(?:;[0-9]*){3})|[0-9:]*);)*?0*8(?:;[0-9;:]*)?m"
)
_TOKEN = re.compile(
    rb"\x1b\[(?P<args>[0-?]*)(?P<final>[ -/]*[@-~])"
    rb"|\x1b(?P<string>[\]PX^_])"
    rb"|\x1b(?P<other>[ -/]*[0-~])"
    rb"|(?P<text>[ -~\x80-\xff]+)"
    rb"|."
    rb"|\n",
)
_STRING_ENDS = re.compile(rb"\x07|\x1b\\|[\x18\x1a]|(?=\x1b[^\\])")
_COLOURS = (b"38", b"48", b"58")
_SAVES = (b"?1048", b"?1049")
# A control sequence with control characters inside: terminals obey those first, then the sequence.
_CONTROLS = rb"\x00-\x17\x19\x1c-\x1f\x7f"
_BROKEN_UP = re.compile(rb"\x1b\[[ -?]*+[%b][ -?%b]*+[@-~]" % (_CONTROLS, _CONTROLS))
_INSIDE = re.compile(rb"[%b]+" % _CONTROLS)
#: Renditions that a program has put aside and may take back; terminals keep ten.
_STACK_MAX = 10


def whole_sequences(data: bytes) -> bytes:
    """Return ``data`` with each control sequence in the one spelling that is looked for."""
    if b"\xc2\x9b" in data:
        data = data.replace(b"\xc2\x9b", b"\x1b[")
    return _BROKEN_UP.sub(_mended, data)


def _mended(found: re.Match[bytes]) -> bytes:
    obeyed = b"".join(_INSIDE.findall(found[0])).replace(b"\x7f", b"")
    return obeyed + _INSIDE.sub(b"", found[0])


class ConcealedText:
    """Follows the rendition through a terminal's bytes."""

    def __init__(self) -> None:
        self._on = False
        self._saved = False  # with the cursor
        self._stack: list[bool] = []
        self._string = False  # within a title or another string, which is not shown

    def blank(self, data: bytes) -> bytes:
        """Return ``data`` with spaces for what is concealed. It ends within no control sequence."""
        if not (self._on or self._saved or self._stack or self._string or _CONCEALS.search(data)):
            return data
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._string:
                end = _STRING_ENDS.search(data, at)
                self._string = end is None
                stop = len(data) if end is None else end.end()
                parts.append(data[at:stop])
                at = stop
                continue
            token = _TOKEN.match(data, at)
            if token is None:  # half of an escape sequence
                parts.append(data[at:])
                break
            at = token.end()
            text = token["text"]
            parts.append(_spaces(text) if text and self._on else token[0])
            self._string = token["string"] is not None
            if token["final"]:
                self._control(token["args"], token["final"])
            elif token["other"]:
                self._escape(token["other"])
        return b"".join(parts)

    def _control(self, args: bytes, final: bytes) -> None:
        if final == b"m" and args[:1] not in (b"?", b">", b"<", b"="):
            self._on = _rendition(args, self._on)
        elif final == b"s" and not args:
            self._saved = self._on
        elif (final == b"u" and not args) or (final == b"l" and args in _SAVES):
            self._on = self._saved
        elif final == b"h" and args in _SAVES:
            self._saved = self._on
        elif final == b"!p":
            self._on = False
        elif final in (b"#{", b"#p"):
            self._stack = [*self._stack, self._on][-_STACK_MAX:]
        elif final in (b"#}", b"#q") and self._stack:
            self._on = self._stack.pop()

    def _escape(self, name: bytes) -> None:
        if name == b"7":
            self._saved = self._on
        elif name == b"8":
            self._on = self._saved
        elif name == b"c":
            self._on = self._saved = False
            self._stack.clear()

    def save(self) -> Any:
        """Return the state as JSON values."""
        return [self._on, self._saved, self._string, self._stack]

    def load(self, saved: Any) -> None:
        """Go on from ``save``."""
        self._on, self._saved, self._string = saved[:3]
        self._stack = [*saved[3]] if len(saved) > 3 else []


def _rendition(args: bytes, on: bool) -> bool:
    """Whether text is concealed after a rendition with these parameters."""
    numbers = [number.lstrip(b"0") for number in args.split(b";")]
    at = 0
    while at < len(numbers):
        number = numbers[at]
        if number in _COLOURS:
            kind = numbers[at + 1] if at + 1 < len(numbers) else b""
            at += {b"5": 2, b"2": 4}.get(kind, 0)
        elif number == b"8":
            on = True
        elif number in (b"28", b""):
            on = False
        at += 1
    return on


def _spaces(text: bytes) -> bytes:
    """As many spaces as ``text``, in UTF-8 and perhaps cut within a character, takes columns."""
    # The rest of a character takes none; what begins it tells wide ones from others well enough.
    wide = sum(byte >= 0xE3 for byte in text)
    return b" " * (sum(byte & 0xC0 != 0x80 for byte in text) + wide)
