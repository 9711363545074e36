"""How much of what a program writes goes to the emulator at once. Pure."""

from __future__ import annotations

#: At most this many rows are written between two looks, so that none leaves the scrollback unread.
SLICE_ROWS = 600
SLICE_BYTES = 64 * 1024

_ROWS_BY_ESCAPE = (b"\x1bD", b"\x1bE")
_NO_ROWS = bytes(set(range(256)) - set(b"\n\x0b\x0c\x1bDE"))


def slice_rows(data: bytes, at: int, cols: int) -> bytes:
    """What comes next of ``data``, few enough rows that none leaves the scrollback unread."""
    # Half of them for the newlines.
    piece = data[at : at + min(SLICE_BYTES, SLICE_ROWS * cols // 2)]
    while len(piece) > 256 and _rows_in(piece, cols) > SLICE_ROWS:
        piece = piece[: len(piece) // 2]
    return piece


def _rows_in(piece: bytes, cols: int) -> int:
    few = piece.translate(None, _NO_ROWS)  # one pass instead of five
    rows = sum(few.count(end) for end in (b"\n", b"\x0b", b"\x0c")) + len(piece) // cols
    if any(sequence in few for sequence in _ROWS_BY_ESCAPE):
        rows += sum(piece.count(sequence) for sequence in _ROWS_BY_ESCAPE)
    return rows
