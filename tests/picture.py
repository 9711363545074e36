"""Makes the README's picture, a recorded terminal as an animated SVG: ``python -m tests.picture``.

The cast is that of a console beside two small wrapped agents, which is made here; ``--cast FILE``
draws another one.
"""

from __future__ import annotations

import argparse
import json
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

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "console.svg"
COLS, ROWS = 96, 14
#: Pixels of a cell, and around all of them.
WIDTH, HEIGHT, EDGE = 8.4, 18, 14
#: Screens that stand for less than this are left out, and the last one stays that long. Seconds.
SHORT, LAST = 0.25, 5.0
FOREGROUND, BACKGROUND = "#d8dee9", "#1b1f27"
PALETTE = (
    *("#4c566a", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9"),
    *("#7b8494", "#ff8b94", "#b5e890", "#ffd787", "#82c4ff", "#e29bf0", "#7fd5df", "#ffffff"),
)

#: Two agents that know each other, and what each says to what it reads.
AGENTS = {
    "Alice": {
        "begin": "@relay:Bob the parser is done on branch parse: please run the tests",
        "2 fail": "@relay:Bob mended in 3f2c1a: once more, please",
        "passed": "@relay:Bob thank you, I merge it",
    },
    "Bob": {
        "please run": "@relay:Alice 2 fail: test_crlf, test_empty_line",
        "once more": "@relay:Alice 412 passed",
    },
}
_AGENT = """
import json, sys, time
says = json.loads(sys.argv[1])
for line in sys.stdin:
    for heard, said in says.items():
        if heard in line:
            time.sleep(0.8)
            print(said + "\\n", flush=True)
"""


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

    def shows(self, text: str) -> bool:
        """Whether ``text`` has been shown."""
        return text.encode() in b"".join(data for _, data in self.pieces)

    def wait(self, check: Callable[[], bool], seconds: float = 30.0) -> None:
        """Until ``check`` holds."""
        end = time.monotonic() + seconds
        while not check():
            if time.monotonic() > end:
                raise SystemExit(f"in vain: {self.pieces[-3:]}")
            time.sleep(0.05)

    def close(self) -> None:
        """Hang up."""
        self._process.close(force=True)
        self._thread.join(10)


def cast_of_console() -> list[str]:
    """The lines of a cast: two agents talk, and their person watches."""
    relay = [sys.executable, "-m", "relay"]
    owner = owner_name()
    person = "Mary".ljust(len(owner))[: len(owner)]  # as wide, and nobody's login name
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(HOME=folder, RELAY_HOME=f"{folder}/relay", TERM="xterm-256color")
        os.makedirs(f"{folder}/shop")
        os.chdir(f"{folder}/shop")
        running = []
        try:
            for name, says in AGENTS.items():
                program = [sys.executable, "-u", "-c", _AGENT, json.dumps(says)]
                running.append(Recorded([*relay, "wrap", "--name", name, "--", *program]))
            console = Recorded([*relay, "console"])
            running.append(console)
            console.wait(lambda: console.shows("Alice") and console.shows("Bob"))
            time.sleep(1.0)
            for key in "@Alice please begin":
                console.type(key)
                time.sleep(0.07)
            console.type("\r")
            console.wait(lambda: console.shows("I merge"))
            time.sleep(1.5)
            pieces = list(console.pieces)  # before it gives the terminal back
        finally:
            for one in reversed(running):
                one.close()
    began = pieces[0][0]
    lines = [header_line({"version": 2, "width": COLS, "height": ROWS}).rstrip("\n")]
    for at, data in pieces:
        shown = data.decode("utf-8", "replace").replace(owner, person)
        lines.append(event_line(CastEvent(at - began, OUTPUT, shown)).rstrip("\n"))
    return lines


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
    style = ["text{white-space:pre}g.s{visibility:hidden}"]
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
        body.append(f'<g class="s" id="s{number}">{rows_drawn}</g>')
    # Who asked for less motion sees the last screen.
    still = f"@media(prefers-reduced-motion){{g.s{{animation:none!important}}#s{len(screens) - 1}"
    style.append(still + "{visibility:visible}}")
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
