"""The line source: a program's lines without a terminal emulator, and nothing that it draws.

The fallback where ``pyghostty`` has no wheel. It understands newlines, carriage returns,
backspaces and erasing within a line, and skips every other control sequence. Of a program that
draws (full-screen, with a hidden cursor, or it moves the cursor up) nothing is heard.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sys
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from relay.core.source_events import SourceEvent
from relay.protocol import frames
from relay.screen import checkpoint, emulator_library
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.concealed import ConcealedText, whole_sequences
from relay.screen.inputbox import CURSOR_SHOWN
from relay.screen.line_events import PERSON_WAIT, LineEmitter
from relay.screen.terminal_modes import ModeScanner

if TYPE_CHECKING:
    from relay.screen.source import ScreenSource

#: The form of a checkpoint; one of another form is refused.
_KIND = "lines 4"
#: A line longer than this many bytes is read without its rest.
LINE_MAX = 4 * 1024 * 1024
_STRING_MAX = 256 * 1024
_CHECKPOINT_LINE = 96 * 1024
_CHECKPOINT_HELD = 32 * 1024

# A complete escape sequence, or what the next one breaks off; strings (OSC, DCS, APC) run to BEL
# or ST.
_SEQUENCE = re.compile(
    rb"\x1b(?:\[[\x00-\x17\x19\x1c-\x1f0-?\x7f]*[ -/]*(?:[^\x00-\x17\x19-?\x7f]|(?=\x1b))"
    rb"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|(?=\x1b[^\\]))"
    rb"|[ -/]*(?:[^ -/\[\]PX^_\x1b]|(?=\x1b)))"
)
# What may begin to draw: modes, a reset of them, the cursor up, to a place or back to one.
_SWITCH = re.compile(rb"\x1b(?:\[\?[0-9;]{1,64}[hl]|c|\[!p|\[[0-9;]*[AFHfu]|[M8])")
_MOVES = b"AFHfuM8"
#: A program that has moved the cursor up draws until this many seconds have gone.
_DRAWS = 1.0
_STRINGS = tuple(b"\x1b" + opener for opener in (b"]", b"P", b"X", b"^", b"_"))
_TOKEN = re.compile(
    r"\x1b\[(?P<args>[0-?]*)[ -/]*(?P<final>[@-~])"
    r"|\x1b\[[0-?]*[ -/]*(?=\x1b)"
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"
    r"|\x1b[ -/]*[0-~]?"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
    r"|[\x00-\x1f\x7f]",
    re.DOTALL,
)
_PLAIN = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")


def _incomplete(data: bytes) -> int:
    """Where the escape sequence starts that ``data`` ends within; its length when there is none."""
    # Only a string can hold an ESC that starts nothing: without one the last ESC decides.
    strings = any(opener in data for opener in _STRINGS)
    at = data.find(b"\x1b") if strings else data.rfind(b"\x1b")
    while at >= 0:
        found = _SEQUENCE.match(data, at)
        if not found:
            return at
        at = data.find(b"\x1b", found.end())
    return len(data) - data.endswith(b"\xc2")  # which may begin a sequence, too


def render(raw: bytes) -> str:
    """What a terminal would show of one line: ``raw`` without its newline.

    Trailing blanks are left out; tabs are expanded, every character counts as one column.
    """
    raw = raw.removesuffix(b"\r")
    if _PLAIN.fullmatch(raw):
        return raw.decode("utf-8", "replace").expandtabs(8).rstrip()
    cells: list[str] = []
    column = 0
    for token in _TOKEN.finditer(raw.decode("utf-8", "replace")):
        if (text := token["text"]) is not None:
            if len(cells) < column:
                cells.extend(" " * (column - len(cells)))
            cells[column : column + len(text)] = text
            column += len(text)
        elif token["final"]:
            column = _control(cells, column, token["args"], token["final"])
        elif token[0] == "\r":
            column = 0
        elif token[0] == "\b":
            column = max(0, column - 1)
        elif token[0] == "\t":
            column += 8 - column % 8
    return "".join(cells).rstrip()


def _control(cells: list[str], column: int, args: str, final: str) -> int:
    """Apply one CSI sequence that stays within the line; the new column."""
    first = args.split(";")[0]
    if first and not first.isdecimal():
        return column
    number = min(int(first or 0), 4096)
    if final == "K":
        if number == 0:
            del cells[column:]
        else:
            end = len(cells) if number == 2 else min(column + 1, len(cells))
            cells[:end] = " " * end
    elif final == "C":
        column += max(1, number)
    elif final == "D":
        column = max(0, column - max(1, number))
    elif final == "G":
        column = max(1, number) - 1
    elif final == "P":
        del cells[column : column + max(1, number)]
    return column


class LineSource:
    """Takes a terminal's bytes and the time, and returns events; see ScreenSource."""

    def __init__(self, cols: int, rows: int, *, now: float = 0.0) -> None:
        self._cols, self._rows = cols, rows
        self._now = now
        self._out = LineEmitter()
        self._modes = ModeScanner()
        self._concealed = ConcealedText()
        self._line = bytearray()  # of the line being written, escape sequences and all
        self._held = b""  # an escape sequence that is not complete
        self._told = False
        self.changed_at = now  # when anything was written
        self._draws_until = now
        # Where on the line being written the person's own typing starts, and since when.
        self._person: int | None = None
        self._person_at = now
        self._entered = False

    # -- in ------------------------------------------------------------------------------------

    def feed(self, data: bytes, now: float) -> list[SourceEvent]:
        """Take what the program wrote; return Line, Pause, Proof and Degraded events."""
        self._now = self.changed_at = now
        self._out.tick(now)
        data = whole_sequences(self._held + data)
        cut = _incomplete(data)
        if len(data) - cut > _STRING_MAX:
            cut = len(data)  # no terminal waits for ever: what is shown then is garbage anyway
        self._held, data = data[cut:], data[:cut]
        self._text(self._concealed.blank(data), now)
        return self._out.take()

    def _text(self, data: bytes, now: float) -> None:
        """Read what is appended to the main screen; the line that is left there waits."""
        start = at = 0
        for found in (*_SWITCH.finditer(data), None):
            drew, end = self._draws(now), found.end() if found else len(data)
            self._modes.scan(data[at:end])
            if found and data[end - 1] in _MOVES:
                self._draws_until = now + _DRAWS
            at = end
            draws = self._draws(now)
            if drew == draws and found:
                continue
            if not drew:
                self._lines(data[start:end], now)
            start = end
            if draws and not self._told:
                self._told = True
                self._out.degraded("a program that draws cannot be heard without the emulator")
            if self._draws_until > now:
                self._line.clear()  # nobody knows which line the cursor is on

    def _draws(self, now: float) -> bool:
        """Whether what comes is drawn: full-screen, at a hidden cursor, or over what stands."""
        return self._modes.alt or CURSOR_SHOWN in self._modes.off or now < self._draws_until

    def _lines(self, data: bytes, now: float) -> None:
        pieces = data.split(b"\n")
        self._append(pieces[0])
        if len(pieces) == 1:
            return
        self._settle(now)
        self._out.lines([render(piece) for piece in pieces[1:-1]], now)
        self._append(pieces[-1])
        if self._line:
            self._out.delay(now)

    def _append(self, piece: bytes) -> None:
        self._line += piece[: max(0, LINE_MAX - len(self._line))]

    def _settle(self, now: float) -> None:
        """Emit the line being written, which has ended."""
        raw = bytes(self._line)
        self._line.clear()
        if self._person is not None and self._entered:
            text, words = render(raw[: self._person]), render(raw[self._person :])
            self._person, self._entered = None, False
            if text:
                self._out.line(text, now, plain=True)
            if words:
                self._out.end()  # what is left open ends with the person's next words
            return
        # A newline before Enter is the program's own: no way to tell whose the line was.
        self._person = None
        text = render(raw)
        edge = self._cols - 1 <= len(text) <= self._cols
        self._out.line(text, now, plain=not edge)

    def tick(self, now: float) -> list[SourceEvent]:
        """Return the events that are due by ``now``."""
        self._now = now
        self._forget_person(now)
        self._out.tick(now)
        return self._out.take()

    def next_deadline(self) -> float | None:
        """Return when ``tick`` should be called, or None."""
        return self._out.deadline

    def resize(self, cols: int, rows: int, now: float) -> list[SourceEvent]:
        """Give the terminal a new size."""
        self._cols, self._rows = cols, rows
        return []

    def activity(self, kind: bytes, now: float) -> list[SourceEvent]:
        """Note that the person pressed keys: frames.TYPED, ENTERED or CLEARED."""
        self._forget_person(now)
        if self._modes.alt:
            return []  # typed into a program of which nothing is read
        if kind == frames.CLEARED:
            self._person, self._entered = None, False
            return []
        if self._person is None:
            self._person = len(self._line)
        self._person_at = now
        self._entered = self._entered or kind == frames.ENTERED
        return []

    def _forget_person(self, now: float) -> None:
        if self._person is None or now - self._person_at <= PERSON_WAIT:
            return
        if self._person >= len(self._line):
            # No echo came: the program reads keys by itself, and the line is its own.
            self._person, self._entered = None, False

    def expect_echo(self, text: str, now: float) -> None:
        """Expect the echo of ``text``, which relay is about to type: it is not speech."""
        self._out.echo.expect(text, now)

    def finish(self, now: float) -> list[SourceEvent]:
        """Settle everything: the program has exited."""
        self._held = b""
        if self._line:
            self._settle(now)
        self._out.pause()
        self._out.end()
        return self._out.take()

    # -- what is known of the terminal ---------------------------------------------------------

    @property
    def bracketed_paste(self) -> bool:
        return self._modes.bracketed_paste

    @property
    def alt_screen(self) -> bool:
        return self._modes.alt

    @property
    def cursor(self) -> tuple[int, int]:
        """(x, y): only x is known."""
        return len(render(bytes(self._line))), 0

    @property
    def cursor_shown(self) -> bool:
        return True

    @property
    def title(self) -> str:
        return self._modes.title

    @property
    def columns(self) -> int:
        return self._cols

    def visible(self, *, styled: bool = False) -> list[str]:
        """The rows on the screen: only the line being written is known, and no style."""
        return [render(bytes(self._line))]

    def reset_sequences(self) -> bytes:
        """What undoes the modes that the program has set."""
        return self._modes.reset_sequences()

    # -- checkpoint ----------------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """Return the state as JSON, at most 256 KiB; of the line 96 KiB are kept."""
        line = bytes(self._line[:_CHECKPOINT_LINE])
        return json.dumps(
            {
                "kind": _KIND,
                "saved_at": self._now,
                "line": base64.b64encode(line).decode(),
                "held": base64.b64encode(self._held[:_CHECKPOINT_HELD]).decode(),
                "modes": self._modes.save(),
                "draws_until": self._draws_until,
                "concealed": self._concealed.save(),
                "person": [self._person, self._entered],
                "out": self._out.save(),
            }
        ).encode()

    @classmethod
    def restore(cls, data: bytes, cols: int, rows: int, now: float) -> LineSource:
        """Make a source that goes on from ``checkpoint``. Raises ValueError when it cannot."""
        try:
            state = json.loads(data)
            if state["kind"] != _KIND:
                raise ValueError("it is of another version of relay, or another kind of source")
            source = cls(cols, rows, now=now)
            source._line += base64.b64decode(state["line"])
            source._held = base64.b64decode(state["held"])
            source._modes.load(state["modes"])
            source._draws_until = state["draws_until"] + now - state["saved_at"]
            source._concealed.load(state["concealed"])
            source._person, source._entered = state["person"]
            source._out.load(checkpoint.moved_in_time(state["out"], now - state["saved_at"]))
        except (KeyError, TypeError) as problem:
            raise ValueError(f"not a checkpoint: {problem!r}") from problem
        return source


def make_source(
    cols: int,
    rows: int,
    now: float,
    *,
    saved: bytes = b"",
    cache: str | None = None,
    namespaces: Collection[str],
    style: AgentStyle = UNKNOWN,
) -> ScreenSource | LineSource:
    """Return the best source that this machine offers, which goes on from the checkpoint ``saved``.

    ``cache`` is a directory of the user's own for what makes the next start faster; ``namespaces``
    are those for which there are handlers; ``style`` says how the program draws. A checkpoint that
    cannot be used is told of on stderr, which is the session's log.
    """
    make: Callable[..., ScreenSource | LineSource] = LineSource
    restore: Callable[..., ScreenSource | LineSource] = LineSource.restore
    with contextlib.suppress(ImportError, OSError):
        emulator_library.load(cache)
        from relay.screen.source import ScreenSource

        make = partial(ScreenSource, namespaces=namespaces, style=style)
        restore = partial(ScreenSource.restore, namespaces=namespaces, style=style)
    if saved:
        try:
            return restore(saved, cols, rows, now)
        except ValueError as problem:
            print(
                f"relay: what stood on the screen is not known any more: {problem}", file=sys.stderr
            )
    return make(cols, rows, now=now)
