"""Text that is safe to type into a terminal and honest to read.

What cannot be typed or seen is shown, never silently dropped: a control becomes its picture
(ESC is ``␛``), an invisible character becomes its number (``<U+202E>``).
"""

from __future__ import annotations

import re

# C0 but \t and \n, DEL, C1; then what has no width or reorders its neighbours, and so can hide
# text from a reader. Kept: the two joiners and the two emoji variation selectors, without which
# ordinary emoji and several scripts fall apart.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0d\ufeff"
    "\ufff0-\ufffb\ud800-\udfff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_LINE_END = re.compile("\r\n?")


def clean(text: str) -> str:
    """``text`` without anything that a terminal obeys. Idempotent.

    The result holds no control but ``\\n`` and ``\\t``: no ESC, so no sequence of any kind and no
    end of a bracketed paste; no NUL, DEL, C1. Line ends become ``\\n``; lone surrogates become
    U+FFFD; controls for direction and characters without width are shown as ``<U+202E>``.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_shown, _LINE_END.sub("\n", text))


def code_point(char: str) -> str:
    """``char`` as its number: ``<U+202E>``."""
    return f"<U+{ord(char):04X}>"


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return code_point(char)
