"""A terminal as another one has to take it over: the modes that are set, and its picture.

A program may leave modes set; reset_bytes undoes them. TerminalPicture draws one terminal's picture
in another that shows an earlier one. Only what the emulator has understood is drawn, so no sequence
of the program's reaches the other terminal, and none of it is ever cut. Pure.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection
from dataclasses import dataclass

BRACKETED_PASTE = 2004
#: DEC private modes that are off in a fresh terminal and disturb a shell when left on.
DISTURBING = (
    1, 5, 6, 9, 66, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031, 2048,
)  # fmt: skip
#: ... and the ones that are on in a fresh terminal: autowrap and the cursor's visibility.
EXPECTED = (7, 25)


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


#: The modes that say which keys and reports a program wants, and how its screen is shown. Those
#: that say how bytes are drawn (origin, wrap, insert) are not: rows are drawn one by one.
MODES = (1, 5, 66, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004)
#: The mode of the alternate screen; and the cursor is shown, unless the other is off.
ALT, _CURSOR = 1049, 25
# Between these two a terminal that can do so shows nothing yet.
_BEGIN, _END = b"\x1b[?2026h", b"\x1b[?2026l"


#: What pictures are made of: places, colours, erasing, modes, the keyboard, a title, and text. The
#: numbers of a mode are looked at apart.
_DRAWN = re.compile(
    r"\x1b\[[0-9;:]*[HJKmr]|\x1b\[\?([0-9]{1,5})[hl]|\x1b\[4l|\x1b\[=[0-9]+(?:;1)?u|\x1b\[<99u"
    r"|\x1b\[>4;[0-9]m|\x1b[=>78]|\x1b\]2;[^\x00-\x1f\x7f-\x9f]{0,1024}\a"
    r"|\r\n|[^\x00-\x1f\x7f-\x9f]+"
)
#: A sequence of these that is not whole yet.
_BEGUN = re.compile(
    r"\x1b(?:\[[<=>?]?[0-9;:]{0,256}|\]|\]2|\]2;[^\x00-\x1f\x7f-\x9f]{0,1024})?\Z|\r\Z"
)


class PictureFilter:
    """Lets through only what pictures are made of: for who shows what another process has drawn.
    Nothing else of what it is sent is obeyed by a terminal, nor asks it anything."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._modes = {*MODES, *DISTURBING, *EXPECTED, ALT}

    def feed(self, data: bytes) -> bytes:
        """What a terminal may be sent of the next piece of it."""
        text = self._rest + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._rest = begun[0] if begun else ""
        text = text[: len(text) - len(self._rest)]
        drawn = (
            found[0]
            for found in _DRAWN.finditer(text)
            if found[1] is None or int(found[1]) in self._modes
        )
        return "".join(drawn).encode()


@dataclass(frozen=True, slots=True)
class TerminalPicture:
    """What one terminal shows: each of ``rows`` begins and ends in the plain style.

    ``history`` counts the rows that have scrolled out at the top, ``above`` are the last of them.
    """

    rows: tuple[bytes, ...]
    cursor: tuple[int, int] = (0, 0)
    shows_cursor: bool = True
    modes: frozenset[int] = frozenset()
    #: The flags of the kitty keyboard protocol, and of xterm's modifyOtherKeys.
    kitty: int = 0
    other_keys: int = 0
    title: str = ""
    history: int = 0
    above: tuple[bytes, ...] = ()

    def drawn_over(self, before: TerminalPicture | None) -> bytes:
        """What to write to a terminal that shows ``before``; None: nothing that is known."""
        parts = [_BEGIN]
        known: tuple[bytes, ...] = ()
        if before is None or self._switches() != before._switches():
            parts += [END_OF_PICTURE if before is None else before.undone(), self._switched()]
        else:
            known = before.rows
        size = len(self.rows)
        grown = self.history - before.history if before is not None and known else 0
        if self.above and grown > 0 and ALT not in self.modes:
            # Rows that leave a region at the top of the screen go where the terminal keeps such.
            lines = [*self.above[-grown:], *self.rows]
            parts += [b"\x1b[1;%dr\x1b[H" % size, b"\r\n".join(row + b"\x1b[K" for row in lines)]
            parts += [b"\x1b[r"]
        else:
            for y, row in enumerate(self.rows):
                if y >= len(known) or known[y] != row:
                    parts.append(b"\x1b[%d;1H%s\x1b[K" % (y + 1, row))
        if not known:  # a larger terminal shows nothing below it
            parts.append(b"\x1b[%d;1H\x1b[J" % (size + 1) if size else b"")
        if self.title and (before is None or before.title != self.title):
            parts.append(b"\x1b]2;" + self.title.encode() + b"\a")
        x, y = self.cursor
        parts.append(b"\x1b[%d;%dH\x1b[?25%c" % (y + 1, x + 1, b"lh"[self.shows_cursor]))
        return b"".join(parts) + _END

    def undone(self) -> bytes:
        """What makes a fresh terminal of one that shows this."""
        on = [mode for mode in self.modes if mode != ALT]
        off = [] if self.shows_cursor else [_CURSOR]
        return reset_bytes(
            on, off, kitty=bool(self.kitty or self.other_keys), alt=ALT in self.modes
        )

    def _switches(self) -> tuple[Collection[int], int, int, int]:
        return self.modes, self.kitty, self.other_keys, len(self.rows)

    def _switched(self) -> bytes:
        modes = sorted(self.modes, key=lambda mode: (mode != ALT, mode))  # it has its own keyboard
        parts = [b"\x1b=" if mode == 66 else b"\x1b[?%dh" % mode for mode in modes]
        if self.kitty:
            parts.append(b"\x1b[=%d;1u" % self.kitty)
        if self.other_keys:
            parts.append(b"\x1b[>4;%dm" % self.other_keys)
        return b"".join(parts)


#: What makes a fresh terminal of one that shows any picture. The cursor is on its last row then.
END_OF_PICTURE = reset_bytes(DISTURBING, EXPECTED, kitty=False, alt=False, insert=True)
