"""Makes the README's picture, a recorded terminal as an animated SVG: ``python -m tests.picture``.

The cast is that of a console beside Claude Code and Codex, which is made here; ``--cast FILE``
draws another one. ``RELAY_REAL_AGENTS`` names the folder of the installed agents.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

from ptyprocess import PtyProcess

from relay.core.agent_names import owner_name
from relay.core.asciicast import OUTPUT, CastEvent, event_line, header_line, read
from relay.screen.emulator import Emulator
from relay.screen.styled_rows import Span, styled_rows
from tests.real_agents.install import binary
from tests.real_agents.model import Say, ScriptedModel, Shell
from tests.real_agents.wrapped import room

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "console.svg"
COLS, ROWS = 96, 16
#: Pixels of a cell, and around all of them.
WIDTH, HEIGHT, EDGE = 8.4, 18, 14
#: Screens that stand for less than this are left out, and the last one stays that long. Seconds.
SHORT, LAST = 0.25, 5.0
FOREGROUND, BACKGROUND = "#d8dee9", "#1b1f27"
PALETTE = (
    *("#4c566a", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"),
    *("#7b8494", "#ff8b94", "#b5e890", "#ffd787", "#82c4ff", "#e29bf0", "#7fd5df", "#ffffff"),
)

#: What is said in the picture: Mary asks Alice, who asks Bob; his program asks Mary.
BEGIN = "fix the parser, and ask Bob to test it"
DONE = "@relay:Bob the parser is fixed: please run the tests"
TESTS = "make test"
FAILS = "@relay:Alice 1 of 412 tests fails: test_crlf"
AGAIN = "@relay:me all 412 tests pass now: shall I merge?"
SAID = (DONE, FAILS, AGAIN)


class Recorded:
    """A program in a terminal, and what it shows with the time of each piece."""

    def __init__(self, argv: list[str], cols: int = COLS, rows: int = ROWS) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self._process = PtyProcess.spawn(argv, dimensions=(rows, cols), env=dict(os.environ))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._process.fd, 65536)
            except OSError:  # Linux reports the end as EIO
                return
            if not data:
                return
            self.pieces.append((time.monotonic(), data))

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._process.fd, keys.encode())

    def keys(self, line: str) -> None:
        """Press the keys of a line one by one, and Enter."""
        for key in line:
            self.type(key)
            time.sleep(0.07)
        time.sleep(1.2)  # to be read
        self.type("\r")

    def shows(self, text: str) -> bool:
        """Whether ``text`` stands on the screen."""
        return any(text in row for row in self.screen())

    def screen(self) -> list[str]:
        """The rows of text that are shown now."""
        emulator = Emulator(COLS, ROWS)
        emulator.feed(b"".join(data for _, data in self.pieces))
        shown = styled_rows(emulator.visible(styled=True))
        return ["".join(text for text, _ in spans) for spans in shown]

    def wait(self, check: Callable[[], bool], seconds: float = 30.0) -> None:
        """Until ``check`` holds."""
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end:
                raise SystemExit("in vain:\n" + "\n".join(self.screen()))
            time.sleep(0.1)

    def close(self) -> None:
        """Hang up."""
        self._process.close(force=True)
        self._thread.join(10)


def cast_of_console() -> list[str]:
    """The lines of a cast: Claude Code and Codex talk, one asks, and their person answers. What
    their models say is scripted (tests/real_agents)."""
    relay = [sys.executable, "-m", "relay"]
    owner = owner_name()
    person = "Mary".ljust(len(owner))[: len(owner)]  # as wide, and nobody's login name
    model = ScriptedModel()
    model.when("fix the parser", Say(DONE, pause=4.0), by="Alice")
    model.when("please run the tests", Say("I run them."), Shell(TESTS), by="Bob")
    model.when_tool(Say(FAILS, pause=3.0), by="Bob")
    model.when("1 of 412", Say(AGAIN, pause=4.0), by="Alice")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HOME=folder, RELAY_HOME=f"{folder}/relay", TERM="xterm-256color")
        model.start()
        try:
            with room(Path(folder), model) as agents:
                bob = agents.start("Bob", "codex", binary("codex"), cols=100)
                agents.start("Alice", "claude", binary("claude"), cols=100)
                makefile = bob.recipe.cwd / "Makefile"
                makefile.write_text("test:\n\t@echo 1 of 412 tests fails: test_crlf\n")
                console = Recorded([*relay, "console"])
                try:
                    pieces = _played(console)
                finally:
                    console.close()
        finally:
            model.close()
    began = pieces[0][0]
    lines = [header_line({"version": 2, "width": COLS, "height": ROWS}).rstrip("\n")]
    for at, data in pieces:
        shown = data.decode("utf-8", "replace").replace(owner, person)
        lines.append(event_line(CastEvent(at - began, OUTPUT, shown)).rstrip("\n"))
    return lines


def _played(console: Recorded) -> list[tuple[float, bytes]]:
    """What the console shows while its person works in it."""
    console.wait(lambda: console.shows("Alice") and console.shows("Bob"))
    time.sleep(0.6)
    console.keys(f"@Alice {BEGIN}")
    console.wait(lambda: console.shows("Bob asks"), 40.0)
    time.sleep(2.0)
    console.type("\x12")  # ^R shows it in full
    console.wait(lambda: console.shows("$ make test"))
    time.sleep(3.0)
    console.keys("1")
    console.wait(lambda: console.shows("shall I merge"), 40.0)
    time.sleep(1.5)
    return list(console.pieces)  # before it gives the terminal back


def frames(played: list[CastEvent], cols: int, rows: int) -> list[tuple[float, list[list[Span]]]]:
    """(seconds that it stands, rows) of each screen that is to be seen."""
    emulator = Emulator(cols, rows)
    found: list[tuple[float, list[list[Span]]]] = []
    for number, event in enumerate(played):
        emulator.feed(event.data.encode())
        last = number + 1 == len(played)
        stands = LAST if last else played[number + 1].at - event.at
        if stands >= SHORT or last:
            found.append((stands, styled_rows(emulator.visible(styled=True))))
    return found


def drawn(screens: list[tuple[float, list[list[Span]]]], cols: int, rows: int) -> str:
    """The SVG: every screen as a group that is shown while it stands."""
    width, height = cols * WIDTH + 2 * EDGE, rows * HEIGHT + 2 * EDGE
    total = sum(stands for stands, _ in screens)
    style = ["text{white-space:pre}"]
    body = []
    at = 0.0
    for number, (stands, shown) in enumerate(screens):
        begin, end = 100 * at / total, 100 * (at + stands) / total
        at += stands
        style.append(
            f"@keyframes k{number}{{0%{{visibility:hidden}}{begin:.2f}%{{visibility:visible}}"
            f"{end:.2f}%{{visibility:hidden}}}}"
            f"#s{number}{{animation:k{number} {total:.1f}s step-end infinite}}"
        )
        rows_drawn = "".join(_row(spans, line) for line, spans in enumerate(shown))
        # Where nothing is animated, or less motion was asked for, the last screen is seen.
        hidden = "" if number + 1 == len(screens) else ' visibility="hidden"'
        body.append(f'<g class="s" id="s{number}"{hidden}>{rows_drawn}</g>')
    style.append("@media(prefers-reduced-motion){g.s{animation:none!important}}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}"'
        f' font-family="ui-monospace,Menlo,Consolas,DejaVu Sans Mono,monospace" font-size="14">'
        f"<style>{''.join(style)}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>{"".join(body)}</svg>\n'
    )


def _row(spans: list[Span], line: int) -> str:
    parts, x = [], 0
    y = EDGE + line * HEIGHT
    for text, style in spans:
        fg = _colour(style.get("fg"), FOREGROUND)
        bg = _colour(style.get("bg"), "")
        if style.get("reverse"):
            fg, bg = bg or BACKGROUND, fg
        left, wide = EDGE + x * WIDTH, len(text) * WIDTH
        x += len(text)
        if bg:
            parts.append(
                f'<rect x="{left:.1f}" y="{y}" width="{wide:.1f}" height="{HEIGHT}" fill="{bg}"/>'
            )
        if text.strip():
            more = ' font-weight="bold"' if style.get("bold") else ""
            more += ' opacity="0.6"' if style.get("faint") else ""
            parts.append(
                f'<text x="{left:.1f}" y="{y + 13}" textLength="{wide:.1f}" fill="{fg}"{more}>'
                f"{escape(text)}</text>"
            )
    return "".join(parts)


def _colour(value: object, otherwise: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, int):
        return otherwise
    if value < 16:
        return PALETTE[value]
    if value >= 232:
        return "#" + f"{8 + 10 * (value - 232):02x}" * 3
    parts = ((value - 16) // 36, (value - 16) // 6 % 6, (value - 16) % 6)
    return "#" + "".join(f"{part and 55 + 40 * part:02x}" for part in parts)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cast", type=Path, help="draw this recording instead")
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    out = options.out.resolve()
    lines = options.cast.read_text().splitlines() if options.cast else cast_of_console()
    header, told = read(lines)
    played = [one for one in told if one.code == OUTPUT]
    out.write_text(drawn(frames(played, header.cols, header.rows), header.cols, header.rows))


if __name__ == "__main__":
    main()
