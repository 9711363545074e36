"""What programs print, for measurements: endless noise of four kinds, and messages planted in it.

Everything is made from a seed, so that each run reads the same bytes.
"""

from __future__ import annotations

import json
import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

COLS, ROWS = 80, 24
NAMES = ("plain", "coloured", "tui", "adversarial")
_CASTS = Path(__file__).parent.parent / "tests" / "casts"


class Words(NamedTuple):
    """A message that must be heard exactly so, once."""

    target: str
    body: str


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that belong together, and the message that they hold, if any."""

    data: bytes
    words: Words | None = None


# -- noise -------------------------------------------------------------------------------------


def plain(number: int) -> bytes:
    """A line of a log."""
    return b"2026-01-01 12:00:00 INFO worker %d finished its part of the job\r\n" % number


def coloured(number: int) -> bytes:
    """The same in colours."""
    return (
        b"\x1b[32m2026-01-01\x1b[0m \x1b[1;34mINFO\x1b[0m \x1b[38;5;208mworker\x1b[0m "
        b"%d \x1b[2mfinished its part\x1b[22m\r\n" % number
    )


_NEARLY = (
    b"mail bob%d@example.com, ann@example.org and @relay:Bob as well\r\n",
    b"@everything:that can look like one %d\r\n",
    b"    @relay:Bob number %d is code by its indentation\r\n",
    b"@property  # %d\r\n",
    b"> @relay:Bob quoted %d\r\n",
    b"\\@relay:Bob escaped %d\r\n",
    b"@relay without a colon %d, @relay: without a target, `@relay:Bob` as code\r\n",
    b"\x1b[33m@media\x1b[0m:print %d \x1b[1m@relay:Bob\x1b[0m in the middle\r\n",
    b"```\r\n@relay:Bob number %d in a fence\r\n@relay:Ann <<<\r\n```\r\n",
    b"user%d@host:~/src$ git log --author=@relay:Bob\r\n",
    b"@@ -%d,7 +1,7 @@ def relay(target):\r\n",
    b"- @types/node: %d packages, ~~ and `` and @\r\n",
)


def adversarial(number: int) -> bytes:
    """A line, or a few, that nearly are messages; none is."""
    return _NEARLY[number * 7919 % len(_NEARLY)] % number


def cast() -> bytes:
    """A recording of an agent that draws."""
    lines = (_CASTS / "claude-classic-80x24.cast").read_text().splitlines()[1:]
    events = [json.loads(line) for line in lines]
    return "".join(event[2] for event in events if event[1] == "o").encode()


# -- messages ----------------------------------------------------------------------------------


def _message(rng: random.Random, number: int) -> tuple[str, list[str], Words]:
    """(shape, the lines as they are printed, what must be heard)."""
    target = rng.choice(("Bob", "Ann", "*", "#ops", "Bob,Ann"))
    text = f"message {number} " + " ".join(rng.choices(_WORDS, k=rng.randint(1, 5)))
    shape = rng.choice(_SHAPES)
    head = f"@relay:{target}"
    if shape == "attributes":
        return shape, [f"{head} [thread:t{number}] [mode:steer] {text}"], Words(target, text)
    if shape == "paragraph":
        more = " ".join(rng.choices(_WORDS, k=5))  # no row near the edge, where rows are joined
        return (
            shape,
            [f"{head} {text}", more, "the end."],
            Words(target, f"{text}\n{more}\nthe end."),
        )
    if shape == "block":
        body = [text, "", f"    if x: @relay:Eve {number}", "```"]
        body += [f"@memory:save no {number}", "```", "", f"end of {number}"]
        return shape, [f"{head} <<<", *body, ">>>"], Words(target, "\n".join(body))
    if shape == "long":
        text += " " + " ".join(rng.choices(_WORDS, k=120))
        return shape, [f"{head} {text}"], Words(target, text)
    if shape == "everyone":
        return shape, [f"@broadcast: {text}"], Words("*", text)
    if shape in ("item", "glyph", "number"):
        marker = {"item": "- ", "glyph": "● ", "number": "12. "}[shape]
        return shape, [f"{marker}{head} {text}"], Words(target, text)
    return shape, [f"{head} {text}"], Words(target, text)


_WORDS = tuple(
    re.findall("[a-z]+", "please look at the tests of module seven and tell me whether they pass")
)
_SHAPES = (
    *("line", "line", "attributes", "paragraph", "block", "long", "everyone", "item", "glyph"),
    *("number", "coloured", "indented"),
)


def printed(rng: random.Random, number: int) -> Piece:
    """A message as a line program prints it, with the blank line that ends it."""
    shape, lines, words = _message(rng, number)
    data = "\r\n".join(lines)
    if shape == "coloured":
        data = data.replace("@", "\x1b[1;36m@").replace("lay:", "\x1b[0;36mlay:\x1b[K", 1)
        data = data.replace(" message", "\x1b[0m message")
    elif shape == "indented":
        data = "   " + data
    return Piece(f"{data}\r\n\r\n".encode(), words)


# -- a program that draws ----------------------------------------------------------------------


class Drawing:
    """Frames of a program that keeps an input box below what it says, as agents do."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._frame = 0

    def noise(self, number: int) -> Piece:
        """A frame: what the program says goes on, or only the spinner turns."""
        rng = self._rng
        rows = [_said(rng, number) for _ in range(rng.choice((0, 0, 1, 2, 4)))]
        return Piece(self._draw(rows))

    def message(self, rng: random.Random, number: int) -> Piece:
        """A frame with a message in it, wrapped at the width as such programs do."""
        _, lines, words = _message(rng, number)
        lines[0] = lines[0].removeprefix("● ")
        # Every line: a wider row would tell the reader that the program wraps there.
        wrapped = [row for line in lines for row in textwrap.wrap(line, COLS - 4) or [""]]
        rows = ["", f"\x1b[97m●\x1b[39m {wrapped[0]}", *("  " + row for row in wrapped[1:]), ""]
        rows.append("\x1b[97m●\x1b[39m That was said.")
        return Piece(self._draw([*rows, ""]), words)

    def _draw(self, rows: list[str]) -> bytes:
        self._frame += 1
        rule = "\x1b[38;2;136;136;136m" + "─" * COLS + "\x1b[39m"
        spinner = "✻✽✶✢"[self._frame % 4] + f" Thinking… ({self._frame} s · esc to interrupt)"
        box = [f"\x1b[38;2;215;119;87m{spinner}\x1b[39m", "", rule, "❯\xa0", rule]
        up = f"\r\x1b[{len(box) - 1}A\x1b[J" if self._frame > 1 else "\x1b[?2004h"
        status = "\x1b[2m  ? for shortcuts\x1b[22m"
        text = "\r\n".join([*rows, *box[:-1], box[-1]])
        return f"\x1b[?2026h\x1b[?25l{up}{text}\r\n{status}\x1b[A\x1b[?2026l\x1b[?25h".encode()


def _said(rng: random.Random, number: int) -> str:
    words = rng.choices(_WORDS, k=rng.randint(3, 11))
    if rng.random() < 0.1:
        words.insert(
            2, rng.choice(("@relay:Bob", "ann@example.org", "@everything:x", "`@relay:Bob`"))
        )
    text = f"{words[0]} \x1b[1m{words[1]}\x1b[22m \x1b[{12 + len(words[0])}G{number} "
    return "  " + text + " ".join(words[2:])[: COLS - 30]


# -- both together -----------------------------------------------------------------------------


def noise(name: str, size: int) -> bytes:
    """About ``size`` bytes of one kind; ``cast`` is the recording, again and again."""
    if name == "cast":
        recording = cast()
        return recording * max(1, size // len(recording))
    return b"".join(piece.data for piece in planted(name, size, messages=0))


def planted(name: str, size: int, messages: int, seed: int = 1) -> Iterator[Piece]:
    """About ``size`` bytes of noise with so many messages at random places."""
    rng = random.Random(seed)
    drawing = Drawing(rng)
    lines: dict[str, Callable[[int], bytes]] = {
        "plain": plain, "coloured": coloured, "adversarial": adversarial,
    }  # fmt: skip
    places = sorted(rng.randrange(size) for _ in range(messages))
    total = number = said = 0
    while total < size:
        if said < len(places) and total >= places[said]:
            said += 1
            piece = drawing.message(rng, said) if name == "tui" else printed(rng, said)
        elif name == "tui":
            piece = drawing.noise(number)
        else:
            piece = Piece(lines[name](number))
        number += 1
        total += len(piece.data)
        yield piece
