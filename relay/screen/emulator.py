"""A terminal emulator (libghostty-vt through ``pyghostty``) as the screen source needs it.

Rows are counted in *screen coordinates*: row 0 is the oldest line of the kept scrollback, the
active area is at the end. Importing this module is cheap; the first ``Emulator`` loads the library
(see ``relay.screen.emulator_library``), and raises ImportError or OSError where there is none.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from relay.screen import emulator_library
from relay.screen.terminal_modes import DISTURBING, EXPECTED, reset_bytes

# libghostty drops scrollback by whole pages, and a page holds about this many cells.
_PAGE_CELLS = 60_000
_SCROLLBACK_BYTES = 64 * 1024 * 1024
_CONTINUATION_MAX = 64 * 1024


#: At most this many rows are written between two looks, so that none leaves the scrollback unread.
SLICE_ROWS = 600
SLICE_BYTES = 64 * 1024

_ROWS_BY_ESCAPE = (b"\x1bD", b"\x1bE")
_NO_ROWS = bytes(set(range(256)) - set(b"\n\x0b\x0c\x1bDE"))


class EmulatorError(Exception):
    """The library refused: a broken snapshot, or no memory."""


#: Where the numbers of colours begin that are none of the palette's.
_RGB = 1024
#: So far apart are the levels of red, green and blue in what counts as grey; themes tint it.
GREY = 48


class Style(NamedTuple):
    """How a cell is drawn. Colours are numbers that differ when they do; 0 is the default."""

    bold: bool
    faint: bool
    colour: int
    background: int

    @property
    def is_grey(self) -> bool:
        """Whether its letters have the usual colour, or one that may be mixed of the terminal's own
        colours, which programs ask for: a grey."""
        if self.colour < _RGB:
            return self.colour == 0
        levels = (self.colour - _RGB).to_bytes(4, "big")[:3]
        return max(levels) - min(levels) <= GREY


class Mark:
    """A cell that is followed through scrolling and reflow."""

    def __init__(self, emulator: Emulator, x: int, y: int) -> None:
        self._emulator = emulator
        ref = emulator.new_ref(x, y)
        self._ref = ref
        # Freed with the mark, and before the terminal: the mark keeps the emulator alive.
        self._free = weakref.finalize(self, emulator.free_ref, ref)

    def position(self) -> tuple[int, int] | None:
        """(x, y) in screen coordinates, or None when the cell has left the scrollback."""
        return self._emulator.ref_position(self._ref)

    def close(self) -> None:
        """Stop following the cell. Idempotent."""
        self._free()


class Emulator:
    """One terminal of ``cols`` x ``rows`` cells that keeps at least ``history`` rows above them."""

    def __init__(
        self, cols: int, rows: int, *, history: int = 1200, snapshot: bytes | None = None
    ) -> None:
        loaded = emulator_library.load()
        self._ffi, self._lib = loaded.ffi, loaded.lib
        if snapshot is None:
            holder = self._ffi.new("GhosttyTerminal*")
            self._check(self._lib.ghostty_terminal_new(self._ffi.NULL, holder, cols, rows), "new")
        else:
            holder = self._decode(snapshot)
        self._holder = holder
        self._terminal = holder[0]
        weakref.finalize(self, self._lib.ghostty_terminal_free, self._terminal)
        self._history = history
        self._point = self._ffi.new("GhosttyPointS*")
        self._coordinate = self._ffi.new("GhosttyPointCoordinate*")
        self._size = self._ffi.new("size_t*")
        self._u16 = self._ffi.new("uint16_t*")
        self._flag = self._ffi.new("bool*")
        self._row = self._ffi.new("GhosttyRow*")
        self._refs = [loaded.sized("GhosttyGridRef"), loaded.sized("GhosttyGridRef")]
        self._style = loaded.sized("GhosttyStyle")
        self._selection = loaded.sized("GhosttySelection")
        self._options = loaded.sized("GhosttyTerminalSelectionFormatOptions")
        self._buffer = self._ffi.new("uint8_t[]", 65536)
        self._grid_ref = loaded.function(
            "ghostty_terminal_grid_ref",
            "GhosttyResult(*)(GhosttyTerminal, GhosttyPointS, GhosttyGridRef*)",
        )
        self._track = loaded.function(
            "ghostty_terminal_grid_ref_track",
            "GhosttyResult(*)(GhosttyTerminal, GhosttyPointS, GhosttyTrackedGridRef*)",
        )
        # Looked up now: the first use of a function takes a lock of cffi's, and a mark is freed
        # when garbage is collected, which may be in the middle of cffi's work.
        self._free_tracked = self._lib.ghostty_tracked_grid_ref_free
        self.cols, self.rows = cols, rows
        if snapshot is not None:
            self.cols, self.rows = self._get16("COLS"), self._get16("ROWS")
        self._set_size("CONTINUATION_MAX_BYTES", _CONTINUATION_MAX)
        self._set_size("SCROLLBACK_MAX_BYTES", _SCROLLBACK_BYTES)
        self._limit_history()

    # -- bytes in ------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Interpret ``data``; a sequence or a character may be cut anywhere."""
        self._lib.ghostty_terminal_vt_write(self._terminal, data, len(data))

    def resize(self, cols: int, rows: int) -> None:
        """Change the size; the primary screen is reflowed, marks follow."""
        self._check(self._lib.ghostty_terminal_resize(self._terminal, cols, rows, 8, 16), "resize")
        self.cols, self.rows = cols, rows
        self._limit_history()

    # -- state ---------------------------------------------------------------------------------

    @property
    def cursor(self) -> tuple[int, int]:
        """(x, y) in the active area."""
        return self._get16("CURSOR_X"), self._get16("CURSOR_Y")

    @property
    def pending_wrap(self) -> bool:
        """Whether the next character goes to the next row, though the cursor stands on this one."""
        self._get(self._lib.GHOSTTY_TERMINAL_DATA_CURSOR_PENDING_WRAP, self._flag)
        return bool(self._flag[0])

    @property
    def history_rows(self) -> int:
        """The rows of scrollback kept now: the screen row at which the active area starts."""
        self._get(self._lib.GHOSTTY_TERMINAL_DATA_SCROLLBACK_ROWS, self._size)
        return int(self._size[0])

    @property
    def total_rows(self) -> int:
        self._get(self._lib.GHOSTTY_TERMINAL_DATA_TOTAL_ROWS, self._size)
        return int(self._size[0])

    @property
    def alt_screen(self) -> bool:
        out = self._ffi.new("GhosttyTerminalScreen*")
        self._get(self._lib.GHOSTTY_TERMINAL_DATA_ACTIVE_SCREEN, out)
        return bool(out[0] == self._lib.GHOSTTY_TERMINAL_SCREEN_ALTERNATE)

    @property
    def title(self) -> str:
        out = self._ffi.new("GhosttyString*")
        self._get(self._lib.GHOSTTY_TERMINAL_DATA_TITLE, out)
        if not out.len:
            return ""
        return bytes(self._ffi.buffer(out.ptr, out.len)[:]).decode("utf-8", "replace")

    @property
    def kitty_flags(self) -> int:
        out = self._ffi.new("uint8_t*")
        self._get(self._lib.GHOSTTY_TERMINAL_DATA_KITTY_KEYBOARD_FLAGS, out)
        return int(out[0])

    def mode(self, number: int, *, ansi: bool = False) -> bool:
        """Whether a DEC private mode (or with ``ansi`` an ANSI mode) is set."""
        config = self._ffi.new("GhosttyTerminalModeConfig*")
        config.mode = (number & 0x7FFF) | (ansi << 15)
        result = self._lib.ghostty_terminal_get(
            self._terminal, self._lib.GHOSTTY_TERMINAL_DATA_MODE, config
        )
        return result == 0 and bool(config.value)

    def reset_sequences(self) -> bytes:
        """What to write to a terminal to undo the modes that are set in this one."""
        return reset_bytes(
            [mode for mode in DISTURBING if self.mode(mode)],
            [mode for mode in EXPECTED if not self.mode(mode)],
            kitty=bool(self.kitty_flags),
            alt=self.alt_screen,
            insert=self.mode(4, ansi=True),
        )

    # -- text ----------------------------------------------------------------------------------

    def text(
        self,
        start: tuple[int, int],
        end: tuple[int, int],
        *,
        unwrap: bool = True,
        trim: bool = True,
        styled: bool = False,
    ) -> str:
        """The text from cell ``start`` to cell ``end`` (both included, screen coordinates).

        Rows are separated by newlines, soft-wrapped ones joined with ``unwrap``; ``trim`` takes
        off what is blank at the end of lines. Blank rows at the very end are left out.
        ``styled``: with escape sequences (relay.screen.styled_rows reads them).
        """
        self._point_at(*start)
        self._check(self._grid_ref(self._terminal, self._point[0], self._refs[0]), "start")
        self._point_at(*end)
        self._check(self._grid_ref(self._terminal, self._point[0], self._refs[1]), "end")
        self._selection.start, self._selection.end = self._refs[0][0], self._refs[1][0]
        options = self._options
        form = "VT" if styled else "PLAIN"
        options.emit = getattr(self._lib, f"GHOSTTY_FORMATTER_FORMAT_{form}")
        options.unwrap, options.trim, options.selection = unwrap, trim, self._selection
        for _ in range(2):
            result = self._lib.ghostty_terminal_selection_format_buf(
                self._terminal, options[0], self._buffer, len(self._buffer), self._size
            )
            if result != self._lib.GHOSTTY_OUT_OF_SPACE:
                break
            self._buffer = self._ffi.new("uint8_t[]", self._size[0])
        self._check(result, "format")
        return bytes(self._ffi.buffer(self._buffer, self._size[0])[:]).decode("utf-8", "replace")

    def visible(self, *, styled: bool = False) -> list[str]:
        """The rows of the active area, top to bottom, without what is blank at their ends."""
        top = self.history_rows
        end = self.cols - 1, top + self.rows - 1
        text = self.text((0, top), end, unwrap=False, styled=styled)
        rows = text.split("\n")
        return rows + [""] * (self.rows - len(rows))

    def row_text(self, y: int) -> str:
        """The text of one row, in screen coordinates, without what is blank at its end."""
        return self.text((0, y), (self.cols - 1, y), unwrap=False)

    def style(self, x: int, y: int) -> Style:
        """How the cell at (x, y), in screen coordinates, is drawn."""
        self._point_at(x, y)
        ref, style = self._refs[0], self._style
        self._check(self._grid_ref(self._terminal, self._point[0], ref), "cell")
        self._check(self._lib.ghostty_grid_ref_style(ref, style), "style")
        colours = self._colour(style.fg_color), self._colour(style.bg_color)
        return Style(style.bold, style.faint, *colours)

    def _colour(self, colour: Any) -> int:
        if colour.tag == self._lib.GHOSTTY_STYLE_COLOR_PALETTE:
            return 1 + int(colour.value.palette)
        if colour.tag == self._lib.GHOSTTY_STYLE_COLOR_RGB:
            rgb = colour.value.rgb
            return int(rgb.r << 24 | rgb.g << 16 | rgb.b << 8) + _RGB
        return 0

    def continues(self, y: int) -> bool:
        """Whether row ``y`` continues the row above it by a soft wrap."""
        self._point_at(0, y)
        ref = self._refs[0]
        if self._grid_ref(self._terminal, self._point[0], ref):
            return False
        if self._lib.ghostty_grid_ref_row(ref, self._row):
            return False
        key = self._lib.GHOSTTY_ROW_DATA_WRAP_CONTINUATION
        self._check(self._lib.ghostty_row_get(self._row[0], key, self._flag), "row")
        return bool(self._flag[0])

    def line_start(self, y: int, lowest: int = 0) -> int:
        """The first row, not above ``lowest``, of the logical line that row ``y`` belongs to."""
        while y > lowest and self.continues(y):
            y -= 1
        return y

    # -- snapshots -----------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The whole state, the parser's unfinished sequence included."""
        size = self._ffi.new("size_t*")
        encode = self._lib.ghostty_snapshot_encode_buf
        encode(self._terminal, self._ffi.NULL, 0, size)
        buffer = self._ffi.new("uint8_t[]", max(1, size[0]))
        self._check(encode(self._terminal, buffer, len(buffer), size), "snapshot")
        return bytes(self._ffi.buffer(buffer, size[0])[:])

    def redrawing(self, *, text: bool = True) -> bytes:
        """What draws the visible text in a fresh terminal, with the modes; colours are lost."""
        rows = self.visible() if text else []
        modes = [mode for mode in (*DISTURBING, *EXPECTED) if mode != 2026]
        parts = [b"\x1b[?1049h" if self.alt_screen else b""]
        parts += [b"\x1b[?%d%c" % (mode, b"lh"[self.mode(mode)]) for mode in modes]
        parts += [b"\x1b[%d;1H%s" % (y, row.encode()) for y, row in enumerate(rows, 1)]
        x, y = self.cursor
        return b"".join(parts) + b"\x1b[%d;%dH" % (y + 1, x + 1)

    def forget_history(self) -> None:
        """Drop the scrollback, for a smaller snapshot."""
        self._set_size("SCROLLBACK_MAX_LINES", 0)

    def _decode(self, snapshot: bytes) -> Any:
        decoder = self._ffi.new("GhosttySnapshotDecoder*")
        data = self._ffi.new("uint8_t[]", snapshot)
        new = self._lib.ghostty_snapshot_decoder_new_buf
        self._check(new(self._ffi.NULL, decoder, data, len(snapshot)), "snapshot")
        try:
            keep = self._ffi.new("bool*", True)
            option = self._lib.GHOSTTY_SNAPSHOT_DECODER_OPT_RETAIN_CONTINUATION
            self._lib.ghostty_snapshot_decoder_set(decoder[0], option, keep)
            holder = self._ffi.new("GhosttyTerminal*")
            self._check(self._lib.ghostty_snapshot_decoder_decode(decoder[0], holder), "snapshot")
            return holder
        finally:
            self._lib.ghostty_snapshot_decoder_free(decoder[0])

    # -- marks ---------------------------------------------------------------------------------

    def mark(self, x: int, y: int) -> Mark:
        """Follow the cell at (x, y), screen coordinates of the screen that is active now."""
        return Mark(self, x, y)

    def from_bottom(self, mark: Mark | None) -> list[int] | None:
        """A mark as a checkpoint keeps it: [x, rows above the last one]; None when it is gone."""
        position = mark.position() if mark else None
        return [position[0], self.total_rows - 1 - position[1]] if position else None

    def mark_from_bottom(self, kept: list[int] | None) -> Mark | None:
        """The mark that ``from_bottom`` described."""
        return self.mark(kept[0], self.total_rows - 1 - kept[1]) if kept else None

    def new_ref(self, x: int, y: int) -> Any:
        ref = self._ffi.new("GhosttyTrackedGridRef*")
        # A kept position may lie outside of a terminal that was restored with less history.
        self._point_at(min(x, self.cols - 1), max(0, min(y, self.total_rows - 1)))
        self._check(self._track(self._terminal, self._point[0], ref), "track")
        return ref

    def free_ref(self, ref: Any) -> None:
        self._free_tracked(ref[0])

    def ref_position(self, ref: Any) -> tuple[int, int] | None:
        result = self._lib.ghostty_tracked_grid_ref_point(
            ref[0], self._lib.GHOSTTY_POINT_TAG_SCREEN, self._coordinate
        )
        if result or not self._lib.ghostty_tracked_grid_ref_has_value(ref[0]):
            return None
        return int(self._coordinate.x), int(self._coordinate.y)

    # -- plumbing ------------------------------------------------------------------------------

    def _limit_history(self) -> None:
        self._set_size("SCROLLBACK_MAX_LINES", self._history + _PAGE_CELLS // max(1, self.cols))

    def _point_at(self, x: int, y: int) -> None:
        self._point.tag = self._lib.GHOSTTY_POINT_TAG_SCREEN
        self._point.value.x, self._point.value.y = x, y

    def _get(self, key: int, out: Any) -> None:
        self._check(self._lib.ghostty_terminal_get(self._terminal, key, out), "get")

    def _get16(self, name: str) -> int:
        self._get(getattr(self._lib, f"GHOSTTY_TERMINAL_DATA_{name}"), self._u16)
        return int(self._u16[0])

    def _set_size(self, name: str, value: int) -> None:
        option = getattr(self._lib, f"GHOSTTY_TERMINAL_OPT_{name}")
        size = self._ffi.new("size_t*", value)
        self._check(self._lib.ghostty_terminal_set(self._terminal, option, size), name)

    @staticmethod
    def _check(result: int, what: str) -> None:
        if result:
            raise EmulatorError(f"libghostty: {what} failed ({result})")


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
