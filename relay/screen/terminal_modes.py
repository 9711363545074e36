"""The terminal modes that a program may leave set, and the bytes that undo them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

BRACKETED_PASTE = 2004
ALT_SCREEN = (47, 1047, 1049)
#: DEC private modes that are off in a fresh terminal and disturb a shell when left on.
DISTURBING = (
    1, 5, 6, 9, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031, 2048,
)  # fmt: skip
#: ... and the ones that are on in a fresh terminal: autowrap and the cursor's visibility.
EXPECTED = (7, 25)

_MODE = re.compile(
    rb"\x1b\[\?([0-9;]{1,64})([hl])|\x1b([=>c])|\x1b\[([<>=])([0-9;]{0,16})u|\x1b\[!p"
)
_STARTS = tuple(
    b"\x1b" + start for start in (b"[?", b"[>", b"[<", b"[=", b"[!", b"=", b">", b"c", b"]")
)
_TITLE = re.compile(rb"\x1b\][02];([^\x07\x1b]{0,1024})(?:\x07|\x1b\\)")


def reset_bytes(
    on: Collection[int], off: Collection[int], *, kitty: bool, alt: bool, insert: bool = False
) -> bytes:
    """What to write to a terminal so that the modes ``on`` and ``off`` are as in a fresh one.

    ``on`` are set modes of DISTURBING, ``off`` modes of EXPECTED that are not set. The answer is
    empty when nothing was changed. The alternate screen is left last but for the cursor, because
    the keyboard protocol is kept for each screen.
    """
    parts: list[bytes] = []
    if kitty:
        # The flags of this screen, however many were pushed, and xterm's modifyOtherKeys.
        parts += [b"\x1b[<99u", b"\x1b[=0u", b"\x1b[>4;0m"]
    # Synchronised update first: a terminal that holds its picture would show nothing of the rest.
    for number in sorted(on, key=lambda mode: (mode != 2026, mode)):
        parts.append(b"\x1b>" if number == 66 else b"\x1b[?%dl" % number)
    if insert:
        parts.append(b"\x1b[4l")
    if alt:
        parts.append(b"\x1b[?1049l")
        if kitty:
            parts += [b"\x1b[<99u", b"\x1b[=0u"]
    parts += [b"\x1b[?%dh" % number for number in off]
    if parts:
        # The scrolling region has no query; resetting it moves the cursor, so that is kept.
        parts.append(b"\x1b7\x1b[r\x1b8")
    return b"".join(parts) + b"\x1b[0m" if parts else b""


class ModeScanner:
    """Follows the modes in a byte stream that no emulator interprets."""

    def __init__(self) -> None:
        self.on: set[int] = set()
        self.off: set[int] = set()
        self.kitty = False
        self.title = ""

    @property
    def alt(self) -> bool:
        return any(mode in self.on for mode in ALT_SCREEN)

    @property
    def bracketed_paste(self) -> bool:
        return BRACKETED_PASTE in self.on

    def scan(self, data: bytes) -> None:
        """Note the modes that ``data`` sets; it must not end inside of an escape sequence."""
        if not any(start in data for start in _STARTS):
            return  # colours only: the usual case
        for found in _MODE.finditer(data):
            numbers, switch, single, kitty, flags = found.groups()
            if numbers:
                for number in numbers.split(b";"):
                    if number:
                        self._set(int(number), switch == b"h")
            elif kitty:
                self.kitty = kitty != b"<" and flags.split(b";")[0] not in (b"", b"0")
            elif single in (b"=", b">"):
                self._set(66, single == b"=")
            else:
                self.on.clear()
                self.off.clear()
                self.kitty = False
        for title in _TITLE.finditer(data):
            self.title = title[1].decode("utf-8", "replace")

    def _set(self, number: int, value: bool) -> None:
        if number in EXPECTED:
            (self.off.discard if value else self.off.add)(number)
        elif number in DISTURBING or number in ALT_SCREEN:
            (self.on.add if value else self.on.discard)(number)

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        on, off = sorted(self.on), sorted(self.off)
        return {"on": on, "off": off, "kitty": self.kitty, "title": self.title}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from ``save``."""
        self.on, self.off = set(saved["on"]), set(saved["off"])
        self.kitty, self.title = saved["kitty"], saved["title"]

    def reset_sequences(self) -> bytes:
        """Return the bytes that undo all that is set."""
        on = {mode for mode in self.on if mode not in ALT_SCREEN}
        return reset_bytes(on, self.off, kitty=self.kitty, alt=self.alt)
