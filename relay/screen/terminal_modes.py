"""The terminal modes that a program may leave set, and the bytes that undo them."""

from __future__ import annotations

from collections.abc import Collection

BRACKETED_PASTE = 2004
ALT_SCREEN = (47, 1047, 1049)
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
