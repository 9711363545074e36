"""What of a flood may matter, told from its bytes, and what no terminal need be shown of the rest.

Pure. Under a flood only the first line of a message and code fences matter while no message is
open. Nobody reads the other lines, so no emulator need interpret each of them: a terminal that is
shown only the end of such lines looks as if it had seen all.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from relay.directive.line_parser import BULLETS

#: One of these characters stands in whatever may matter.
MARKS = (b"@", b"`", b"~")

# What text is made of. A backspace stays on its line, as a carriage return does.
_TEXT = bytes((*b"\b\t\n\r", *range(0x20, 0x7F), *range(0x80, 0x100)))
_PRINTED = _TEXT.translate(None, b"\b\t")
_UNMARKED = _TEXT.translate(None, b"".join(MARKS))
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*+m")
_ODD = re.compile(rb"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")
# Control sequences that do more than colour their line or erase some of it; or its end.
_OTHER = re.compile(rb"\x1b(?!\[[0-9;:]*+[mK])")
_MORE = re.compile(rb"\x1b(?!\[(?:[0-9;:]*+m|0?K))")
_COLOUR_OR_END = re.compile(rb"\x1b\[(?:[0-9;:]*+m|0?K)")
_BLANK_END = re.compile(r" +$", re.MULTILINE)
# Characters beyond ASCII that every terminal shows one by one: letters, bullets, frames, arrows.
_UNSURE = re.compile("[^\n -~¡-¬®-ʯΑ-Ͽ–-‧€←-⇿─-◿✁-✧]")
# The cursor goes back on its line.
_BACK = re.compile(rb"\x08|\r(?![\r\n])")
_RESETS = (b"\x1b[0m", b"\x1b[m")
# Between the characters of a word there may be colours, and what is shown nowhere: the
# emulator leaves out some characters beyond ASCII.
_UNSEEN = rb"(?:[\x80-\xff]|\x1b\[[0-9;:]*+[mK])*+"
_INDENT = rb"(?:[ \t\x80-\xff]|\x1b\[[0-9;:]*+[mK])*+"
_MARKER = rb"(?:[-*+]|(?:[0-9]" + _UNSEEN + rb")+[.)])"


def _spread(text: str) -> bytes:
    """A pattern of ``text`` with anything unseen between its characters."""
    return _UNSEEN.join(re.escape(character.encode()) for character in text)


class FloodFilter:
    """Tells which lines may begin a message for one of ``namespaces``, or a code fence.

    It may take a line for one that matters though it does not, never the other way round.
    """

    def __init__(self, namespaces: Collection[str]) -> None:
        names = sorted({*namespaces, "broadcast"})
        # Of a name beyond ASCII the characters may be unseen ones: any name may be it.
        spread = b"|".join(_spread(name) if name.isascii() else b"" for name in names)
        self._raw = re.compile(
            rb"\n%b(?:%b%b)?(?:@%b(?:%b)%b%b|%b|%b)"
            % (
                *(_INDENT, _MARKER, _INDENT, _UNSEEN, spread, _UNSEEN),
                b":" if all(map(str.isascii, names)) else b"",
                *(_spread("```"), _spread("~~~")),
            )
        )
        self._closing = re.compile(_spread(">>>"))
        named = "|".join(map(re.escape, names))
        marker = rf"(?:[-*+]|[0-9]{{1,9}}[.)]|[{BULLETS}])"
        self._line = re.compile(
            rf" {{0,3}}(?:{marker} {{1,4}})?@(?:{named}):|\s*(?:{marker}\s+)?(?:```|~~~)"
        )
        # A message begins behind whatever frames its row; the row may end within the name.
        framed = r"\n[^\w\n@`~]*+(?:[0-9]{1,9}[.)][^\w\n@`~]*+)?"
        self._painted = re.compile(
            rf"{framed}(?:@(?:(?:{named}):|[^\s:@\\]{{0,64}}$)|```|~~~)", re.MULTILINE
        )
        self._next = re.compile(rf"\n(?:{self._line.pattern})")

    def line(self, text: str) -> bool:
        """Whether ``text``, a line as it is shown, may matter."""
        return self._line.match(text) is not None

    def next_line(self, lines: str, at: int, *, block: bool = False) -> int:
        """The newline at or after ``at`` before the next line that may matter; -1 for none.

        ``block``: the end of a block does too.
        """
        found = self._next.search(lines, at)
        places = [found.start()] if found else []
        if block and (closing := lines.find(">>>", at)) >= 0:
            places.append(lines.rfind("\n", 0, closing))
        return min(places, default=-1)

    def painted(self, rows: str, *, block: bool = False) -> int | None:
        """Where in ``rows`` the first row stands that may matter, however it is framed.

        ``block``: the end of a block does too.
        """
        found = self._painted.search("\n" + rows)
        places = [found.start()] if found else []
        if block and (closing := rows.find(">>>")) >= 0:
            places.append(closing)
        return min(places, default=None)

    def clean(self, lines: bytes, *, block: bool = False) -> int:
        """How many bytes of ``lines`` are whole lines of plain or coloured text without matter.

        ``lines`` begins where a line begins; what comes after its last newline counts as a line.
        ``block``: the end of a block matters too.
        """
        if block and (closing := self._closing.search(lines)):
            lines = lines[: lines.rfind(b"\n", 0, closing.start()) + 1]
        odd = lines.translate(None, _UNMARKED)
        if not odd:
            return len(lines)
        controls = odd.translate(None, b"".join(MARKS))
        marked = len(controls) < len(odd)
        if controls:
            if controls.translate(None, b"\x1b"):
                lines = _above(lines, _ODD)
            lines = _above(lines, _MORE if marked else _OTHER)
        if marked:
            if b"\b" in lines or lines.count(b"\r") != lines.count(b"\r\n"):
                lines = _above(lines, _BACK)
            places = [lines.find(mark) for mark in MARKS]
            first = min((place for place in places if place >= 0), default=len(lines))
            begin = lines.rfind(b"\n", 0, first) + 1  # above there is no mark at all
            if matter := self._raw.search(b"\n" + lines, begin):
                return matter.start()
        return len(lines)


def _above(lines: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """The lines above the first in which ``pattern`` is found."""
    found = pattern.search(lines)
    return lines[: lines.rfind(b"\n", 0, found.start()) + 1] if found else lines


def shown(lines: bytes) -> str | None:
    """What a terminal shows of whole ``lines``, each behind a newline; None when that is not sure.

    ``lines`` begins at the left edge. Colours are left out, and what is blank at a line's end.
    """
    odd = lines.translate(None, _PRINTED)
    if odd:
        if odd.strip(b"\x1b") or _MORE.search(lines):
            return None
        lines = _COLOUR_OR_END.sub(b"", lines)
    ends = lines.count(b"\r\n")
    if not lines.endswith(b"\r\n") or lines.count(b"\n") != ends or lines.count(b"\r") != ends:
        return None
    try:
        text = "\n" + lines[:-2].decode().replace("\r", "")
    except UnicodeDecodeError:
        return None
    if not text.isascii() and _UNSURE.search(text):
        return None
    return _BLANK_END.sub("", text) if " \n" in text or text.endswith(" ") else text


def last_lines(data: bytes, lines: int) -> tuple[bytes, int] | None:
    """(what leaves a terminal of less than ``lines`` rows as ``data`` would, lines left out).

    ``data`` is plain or coloured text: anything else may outlast its line. Only the scrollback
    differs. None when it is not more than ``lines`` lines that begin at the left edge.
    """
    cut = len(data)
    for _ in range(lines + 1):
        cut = data.rfind(b"\r\n", 0, cut)
        if cut < 0:
            return None
    colours = b""
    if b"\x1b" in data:
        # What a colour before the end was set to still holds there.
        since = max(0, *(data.rfind(reset, 0, cut) for reset in _RESETS))
        colours = b"".join(_COLOUR.findall(data, since, cut))
    return colours + data[cut:], data.count(b"\n", 0, cut)


class FloodPace:
    """In how large pieces a flood is sifted, and read where it may matter.

    Beside what matters the pieces are small, so that little else is read; where much matters
    they grow, because each has its price.
    """

    _SIFTED = 8 * 1024
    _READ = 256
    _MOST = 64 * 1024

    def __init__(self) -> None:
        self._sift = self._MOST
        self._read = self._READ

    def sifted(self, data: bytes, at: int) -> int:
        """The end of the whole lines to sift from ``at`` on; ``at`` when there is none."""
        return max(at, data.rfind(b"\n", at, at + self._sift) + 1)

    def passed(self, size: int) -> bool:
        """Of what was sifted last ``size`` bytes held no matter; whether that is much."""
        much = size >= self._SIFTED // 2
        self._sift = min(4 * self._sift, 4 * self._MOST) if much else self._SIFTED
        if much:
            self._read = self._READ
        return much

    def read(self, data: bytes, at: int) -> int:
        """The end of what is to be read from ``at`` on, after a newline if there is one."""
        newline = data.find(b"\n", at + self._read, at + 2 * self._MOST)
        self._read = min(2 * self._read, self._MOST)
        if newline < 0:
            newline = data.rfind(b"\n", at, at + 2 * self._MOST)
        return newline + 1 if newline >= 0 else min(len(data), at + self._MOST)
