"""Random answers in Markdown, rendered as programs render them, and what of them is heard.

Each renderer is a choice from what programs were seen to do: how they break lines, what they draw
for a list, for ``>>>`` and for a backslash, and what they draw around the text: a margin, a bullet,
a frame, a scroll bar once there is more than fits. What was heard is compared with what was said,
but for blanks and the marks of lists, which are the renderer's. Everything follows from one number.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from random import Random

from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.repaints import words
from tests.screen.screens import until

#: What is drawn for ``>>>``: the rows.
CLOSINGS = {
    "kept": [">>>"],
    "entity": ["&gt;>>"],
    "frame": ["│ >>"],
    "spaced": ["> > >"],
    "quoted": ["▌ ▌ ▌"],
    "nested": ["▌", "▌ ▌", "▌ ▌ ▌", "▌ ▌", "▌"],
    "guillemets": ["»>"],
    "nothing": [""],
}
#: The thumb and the track of scroll bars.
BARS = (("┃", "│"), ("█", " "), ("█", "░"), ("▐", " "), ("┃", " "), ("▅", "▁"))
SIZES = ((80, 24), (60, 16), (100, 30), (48, 20))


@dataclass(frozen=True, slots=True)
class Answer:
    """Paragraphs in Markdown, and the messages in them."""

    paragraphs: list[list[str]]
    said: list[Found]


@dataclass(frozen=True, slots=True)
class Renderer:
    """One way to draw an answer. ``bar`` and ``frame`` are around the text."""

    joins: bool  # the lines of a paragraph become one
    closing: str
    escapes: bool  # a backslash is Markdown's, and not drawn
    mark: str  # of lists
    margin: int
    bullet: bool
    frame: bool
    bar: tuple[str, str] | None
    footer: bool
    header: bool
    streams: bool

    def rows(self, answer: list[list[str]], cols: int) -> list[str]:
        """The rows of the text, without what stands around it."""
        rows: list[str] = []
        for lines in answer:
            shown = [" ".join(lines)] if self.joins and lines[0][:2] != "- " else lines
            rows += [""] * bool(rows)
            for line in shown:
                rows += self._line(line, cols)
        if self.bullet:
            return [("● " if not n else "  ") + row if row else "" for n, row in enumerate(rows)]
        return [" " * self.margin + row if row else "" for row in rows]

    def _line(self, line: str, cols: int) -> list[str]:
        room = cols - 2 - (2 if self.bullet else self.margin)
        if line == ">>>":
            return CLOSINGS[self.closing]
        if line[:2] == "> ":
            return [f"▌ {row}" for row in textwrap.wrap(line[2:], room)]
        if line[:2] == "- ":
            first, more = f" {self.mark} ", "   "
            return textwrap.wrap(line[2:], room, initial_indent=first, subsequent_indent=more)
        text = re.sub(r"\\([\\>@])", r"\1", line) if self.escapes else line
        return textwrap.wrap(text, room) or [""]

    def picture(self, answer: list[list[str]], cols: int, height: int) -> list[str]:
        """The rows of the screen that shows as much of the end as fits."""
        below = ["─" * cols, "> ", "─" * cols] if self.footer else []
        above = ["[Home]  Sessions  Issues", ""] if self.header else []
        room = height - len(above) - len(below) - 2 * self.frame - 1
        inner = cols - 4 * self.frame - 2
        rows = self.rows(answer, inner)
        hidden = max(0, len(rows) - room)
        rows = rows[hidden:]
        if self.bar and hidden:
            thumb, track = self.bar
            size = max(1, room * room // (room + hidden))
            rows = [row.ljust(inner + 1) for row in rows]
            rows = [row + (track if n < room - size else thumb) for n, row in enumerate(rows)]
        if self.frame:
            rows = [f"│ {row:{inner + 2}} │" for row in rows]
            rows = ["╭" + "─" * (cols - 2) + "╮", *rows, "╰" + "─" * (cols - 2) + "╯"]
        return above + rows + [""] + below


def renderer(random: Random) -> Renderer:
    frame = random.random() < 0.25
    return Renderer(
        joins=random.random() < 0.3,
        closing=random.choice([*CLOSINGS]),
        escapes=random.random() < 0.7,
        mark=random.choice("-•*"),
        margin=random.choice((0, 0, 1, 2)),
        bullet=not frame and random.random() < 0.3,
        frame=frame,
        bar=random.choice((None, *BARS)),
        footer=random.random() < 0.5,
        header=random.random() < 0.3,
        streams=random.random() < 0.4,
    )


def answer(random: Random) -> Answer:
    """Some paragraphs, as docs/screen.md advises to write them, or with a bare ``>>>``."""
    paragraphs: list[list[str]] = []
    said: list[Found] = []
    for number in range(random.randint(2, 7)):
        kind = random.choice(("text", "short", "long", "long", "block", "block", "list", "quote"))
        name, text = random.choice(("Bob", "Ann", "Carol")), f"m{number} {words(random, 2, 5)}"
        if kind == "text":
            paragraphs.append([f"Note {number}: {words(random, 1, 40)}"])
        elif kind == "quote":
            paragraphs.append([f"> @relay:{name} not meant {words(random, 1, 30)}"])
        elif kind == "block":
            parts = [[text]]
            for _ in range(random.randint(0, 3)):
                items = random.random() < 0.4
                lead = "- " if items else ""
                parts.append([f"{lead}{words(random, 2, 25)}" for _ in range(1 + 2 * items)])
            closing = random.choice((">>>", "\\>>>"))
            said.append(Found(name, "\n\n".join("\n".join(lines) for lines in parts)))
            paragraphs += [[f"@relay:{name} <<<"], *parts, [closing]]
        elif kind == "list":
            paragraphs.append([f"- @relay:{name} {text}", f"- {words(random, 2, 9)}"])
            said.append(Found(name, text))
        else:
            text += f" {words(random, 20, 60)}" * (kind == "long")
            paragraphs.append([f"@relay:{name} {text}"])
            said.append(Found(name, text))
    return Answer([["I will ask the others."], *paragraphs, ["That is all."]], said)


@dataclass(frozen=True, slots=True)
class Hearing:
    """One answer: how it was drawn, what was said, what was heard and reported."""

    drawn: Renderer
    size: tuple[int, int]
    said: list[Found]
    heard: list[Found]

    @property
    def wrong(self) -> list[tuple[Found | None, Found | None]]:
        """What was said beside what was heard instead.

        Where nothing is drawn for ``>>>``, a block is reported as one that was never closed.
        """
        pairs = zip_longest(self.said, self.heard)
        return [(said, heard) for said, heard in pairs if not self._fits(said, heard)]

    def _fits(self, said: Found | None, heard: Found | None) -> bool:
        if said is None or heard is None or self.drawn.closing != "nothing":
            return said == heard
        return heard in (said, Found(said.target, None))


def listen(number: int) -> Hearing:
    """Draw answer ``number``, paragraph by paragraph, and hear it."""
    random = Random(number)
    drawn, spoken, size = renderer(random), answer(random), random.choice(SIZES)
    cols, height = size
    source = ScreenSource(cols, height)
    events = source.feed(b"\x1b[?1049h\x1b[?25l", 0.0)
    at = 0.1
    for told in _told(random, spoken.paragraphs, streams=drawn.streams):
        rows = drawn.picture(told, cols, height)
        placed = "".join(f"\x1b[{y};1H\x1b[2K{row}" for y, row in enumerate(rows, 1))
        if drawn.footer:
            placed += f"\x1b[{len(rows) - 1};3H"
        events += until(source, at) + source.feed(f"{placed}\x1b[J".encode(), at)
        at += 0.1 if drawn.streams else 0.6
    events += until(source, at + 3) + source.finish(at + 3)
    heard = [_squeezed(one) for one in finds(events)]
    return Hearing(drawn, size, [_squeezed(one) for one in spoken.said], heard)


def _told(
    random: Random, paragraphs: list[list[str]], *, streams: bool
) -> Iterator[list[list[str]]]:
    """What has been told by each moment: whole paragraphs, or of the last one some words."""
    for number, lines in enumerate(paragraphs):
        before = paragraphs[:number]
        words_of_last = lines[-1].split(" ")
        for end in range(2, len(words_of_last), random.randint(3, 12)) if streams else ():
            yield [*before, [*lines[:-1], " ".join(words_of_last[:end])]]
        yield [*before, lines]


def _squeezed(found: Found) -> Found:
    if found.body is None:
        return found
    plain = re.sub(r"^\s*[-•*] ", "- ", found.body, flags=re.MULTILINE)
    return Found(found.target, " ".join(plain.split()))
