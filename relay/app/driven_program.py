"""A program in a terminal of its own that nobody sits at: its screen is read, its keys are typed.

It has a thread that reads, and handlers of signals.
"""

from __future__ import annotations

import os
import re
import select
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from ptyprocess import PtyProcess

from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.visible import is_visible
from relay.screen.emulator_library import import_pyghostty
from relay.screen.terminal_modes import ALT, MODES, TerminalPicture

#: Seconds that it may take to end after a hang-up, and after it was killed.
ENDING = 20.0
#: Seconds that it may leave typed keys unread.
_TYPING = 5.0
#: Rows that are kept of what has scrolled out of its screen, and characters of its title.
_KEPT, _TITLE_MAX = 1000, 256
#: By so many last characters a text is recognised.
_TAIL = 10
#: Seconds that its end may come after that of its terminal.
_REAPED = 2.0
_OTHER_KEYS = re.compile(r"\x1b\[>4;(\d)m")
#: The variables that say which terminal a program has: those of another one are not its.
_OF_A_TERMINAL = (
    *("TERM", "TERMCAP", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "TERM_SESSION_ID"),
    *("TMUX", "TMUX_PANE", "STY", "WINDOW", "WINDOWID", "VTE_VERSION", "KITTY_WINDOW_ID"),
    *("WT_SESSION", "ITERM_SESSION_ID", "WEZTERM_PANE", "ZELLIJ", "LINES", "COLUMNS"),
)
#: A usual terminal shows all colours, and answers which it draws with: some programs draw otherwise
#: then. What else it is asked (its attributes, modes, the cursor's place) the emulator answers.
_SHOWS = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
_TEXT, _GROUND = (0xD0, 0xD0, 0xD0), (0x10, 0x10, 0x10)


class DrivenProgram:
    """Runs ``argv`` in a terminal of ``cols`` by ``rows``. Close it, or use it in a ``with``.

    ``drew`` is called, in a thread of its own, when it has written something, and at its end.
    """

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        cols: int,
        rows: int,
        drew: Callable[[], None] | None = None,
        cwd: str | None = None,
    ) -> None:
        try:
            pyghostty = import_pyghostty(os.path.join(Home.from_env().root, "cache"))
        except (ImportError, OSError) as error:
            raise RelayError(
                "a terminal emulator is needed for this, and there is none here",
                hint="relay doctor says more",
            ) from error
        self._lock = threading.Lock()
        self._screen: Any = pyghostty.Terminal(cols, rows, _KEPT, _TEXT, _GROUND)
        self._screen.on_reply(self._write)
        self._drew = drew
        self._text = ""
        self._drawn = time.monotonic()
        env = {name: one for name, one in env.items() if name not in _OF_A_TERMINAL} | _SHOWS
        self._process: Any = PtyProcess.spawn(argv, env=env, cwd=cwd, dimensions=(rows, cols))
        self._ended = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def runs(self) -> bool:
        """Whether something still has its terminal."""
        return not self._ended

    @property
    def quiet(self) -> float:
        """Seconds since a row was seen to change; a cursor that blinks changes none."""
        self.rows()
        return time.monotonic() - self._drawn

    def rows(self) -> list[str]:
        """The rows of its screen, top to bottom."""
        with self._lock:
            if self._screen is not None and (text := self._screen.text()) != self._text:
                self._text, self._drawn = text, time.monotonic()
        return [row.rstrip() for row in self._text.split("\n")]

    def shows(self, text: str) -> bool:
        """Whether ``text`` stands on its screen, however that is divided into rows."""
        return _solid(text) in _solid("".join(self.rows()))

    def ends_at_cursor(self, text: str) -> bool:
        """Whether ``text`` ends where the cursor stands, as what is typed and not sent does."""
        rows = self.rows()
        with self._lock:
            (column, row), cols = self._screen.cursor, self._screen.size[0]
        column += column == cols - 1  # behind a whole row it stands on its last character
        before = _solid("".join([*rows[:row], rows[row][:column] if row < len(rows) else ""]))
        return before.endswith(_solid(text)[-_TAIL:])

    def type(self, keys: str | bytes) -> None:
        """Press keys, as a person would."""
        self._write(keys.encode() if isinstance(keys, str) else keys)

    @property
    def exit_status(self) -> int | None:
        """Its exit status once it has ended, -n for signal n; its terminal goes a moment before."""
        end = time.monotonic() + _REAPED
        while self._process.isalive():
            if self.runs or time.monotonic() > end:
                return None
            time.sleep(0.01)
        number: int | None = self._process.signalstatus
        return int(self._process.exitstatus or 0) if number is None else -number

    def resize(self, cols: int, rows: int) -> None:
        """Give its terminal another size."""
        with self._lock:
            self._screen.resize(cols, rows)
        self._process.setwinsize(rows, cols)

    @property
    def is_drawing(self) -> bool:
        """Whether it has said that its picture is not whole yet (synchronised update)."""
        with self._lock:
            return bool(self._screen.mode(2026))

    def picture(self, since: int) -> TerminalPicture:
        """What its terminal shows, with the rows that have scrolled out since there were ``since``
        of them."""
        with self._lock:
            screen = self._screen
            cols, rows = screen.size
            history = screen.get("scrollback_rows", "size_t")
            above = max(0, min(history - since, rows * 4))
            text = self._drawing(history - above, history + rows - 1)
            other = _OTHER_KEYS.search(text)
            lines = [row.encode() for row in _OTHER_KEYS.sub("", text).split("\r\n")]
            lines += [b""] * (above + rows - len(lines))
            title = screen.get("title", "GhosttyString")
            modes = {mode for mode in MODES if screen.mode(mode)}
            if screen.get("active_screen", "GhosttyTerminalScreen"):
                modes.add(ALT)  # by whichever of its three modes it was switched to
            return TerminalPicture(
                rows=tuple(lines[above : above + rows]),
                cursor=screen.cursor,
                shows_cursor=screen.mode(25),
                modes=frozenset(modes),
                kitty=screen.get("kitty_keyboard_flags", "uint8_t"),
                other_keys=int(other[1]) if other else 0,
                title=_shown(title),
                history=history,
                above=tuple(lines[:above]),
            )

    def _drawing(self, first: int, last: int) -> str:
        """The rows from ``first`` to ``last``, of all that are kept, as they are drawn."""
        from pyghostty import core

        ffi, lib = core.ffi, core.lib
        options = core.init_sized("GhosttyFormatterTerminalOptions")
        options.emit = lib.GHOSTTY_FORMATTER_FORMAT_VT
        options.extra.keyboard = True
        chosen = core.init_sized("GhosttySelection")
        chosen.start = self._screen.ref(0, first, "screen")[0]
        chosen.end = self._screen.ref(self._screen.size[0] - 1, last, "screen")[0]
        options.selection = chosen
        made = ffi.new("GhosttyFormatter*")
        terminal = self._screen._t[0]
        core.check(lib.ghostty_formatter_terminal_new(ffi.NULL, made, terminal, options[0]), "new")
        try:
            text: str = core.read_buf(
                lambda buffer, size, n: lib.ghostty_formatter_format_buf(made[0], buffer, size, n)
            )
        finally:
            lib.ghostty_formatter_free(made[0])
        return text

    def close(self) -> None:
        """Hang up, wait for its end, kill it when that does not come."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self._process.isalive():
                os.kill(self._process.pid, number)
            self._thread.join(ENDING)
            if not self._thread.is_alive():
                break
        self._process.close(force=True)
        self._thread.join(ENDING)
        self.rows()  # they can be read on
        if self._screen is not None:
            self._screen.close()
            self._screen = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        try:
            while data := self._output():
                with self._lock:
                    self._screen.feed(data)
                if self._drew is not None:
                    self._drew()
        finally:
            self._ended = True  # before the last call, behind which nobody looks again
            if self._drew is not None:
                self._drew()

    def _output(self) -> bytes:
        try:
            return os.read(self._process.fd, 65536)
        except OSError:  # Linux reports the end of a pseudo-terminal as EIO
            return b""

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            _, writable, _ = select.select([], [self._process.fd], [], _TYPING)
            if not writable:
                return
            try:
                view = view[os.write(self._process.fd, view) :]
            except OSError:
                return


def _shown(title: Any) -> str:
    """A title without what a terminal would obey."""
    from pyghostty import core

    text = core.ffi.buffer(title.ptr, title.len)[:].decode("utf-8", "replace") if title.len else ""
    return "".join(char for char in text if is_visible(char))[:_TITLE_MAX]


def _solid(text: str) -> str:
    """Text without what a terminal adds when it divides it: white space."""
    return "".join(text.split())
