"""Random conversations, drawn in random ways, and what of them is heard.

A *transcript* is what a program says, in paragraphs. It is told bit by bit, and a *painter* draws
what has been told so far, frame after frame, in one of the ways that programs have: the cursor up
and erase, a full clear, the alternate screen, a scroll region, or lines at the end only. What was
heard is compared with what was said. Everything follows from one number.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from relay.core.source_events import SourceEvent
from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.screens import until

_WORDS = (
    "please", "check", "the", "tests", "build", "again", "and", "report", "what", "fails", "in",
    "module", "seven", "parser", "lexer", "now", "because", "review", "of", "this", "file",
    "before", "noon", "with", "care", "thanks", "plan", "done", "ready",
)  # fmt: skip
_NAMES = ("Bob", "Ann", "Carol")
_SPINNER = "⠋⠙⠹⠸⠼⠴"
LARGE = ((80, 24), (60, 20), (100, 30))
SIZES = ((80, 24), (60, 16), (40, 12), (100, 30), (30, 8))


@dataclass(slots=True)
class Paragraph:
    """Some lines that are said together, and the messages in them."""

    lines: list[str]
    said: list[Found] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Step:
    """A moment at which something is drawn: how much has been told by then, and the size."""

    at: float
    told: list[str]
    size: tuple[int, int]
    clock: int
    ended: bool  # the last line is whole


# -- what is said ------------------------------------------------------------------------------


def words(random: Random, least: int, most: int) -> str:
    return " ".join(random.choice(_WORDS) for _ in range(random.randint(least, most)))


def paragraph(random: Random, number: int) -> Paragraph:
    """A paragraph of any kind; ``number`` tells its message from all others."""
    name = random.choice(_NAMES)
    kind = random.choice(("text", "short", "short", "long", "lines", "block", "inert"))
    if kind == "text":
        return Paragraph(
            [f"Note {number}: {words(random, 1, 30)}" for _ in range(random.randint(1, 3))]
        )
    if kind == "short":
        text = f"m{number} {words(random, 1, 4)}"
        return Paragraph([f"@relay:{name} {text}"], [Found(name, text)])
    if kind == "long":
        text = f"m{number} {words(random, 12, 40)}"
        return Paragraph([f"@relay:{name} {text}"], [Found(name, text)])
    if kind == "lines":
        lines = [f"m{number} {words(random, 1, 5)}"]
        lines += [words(random, 1, 5) for _ in range(random.randint(1, 3))]
        return Paragraph([f"@relay:{name} {lines[0]}", *lines[1:]], [Found(name, "\n".join(lines))])
    if kind == "block":
        lines = [f"m{number} {words(random, 1, 8)}", words(random, 1, 8)]
        if random.random() < 0.4:
            lines.insert(1, "")
        shown = [f"@relay:{name} <<<", *lines, ">>>"]
        return Paragraph(shown, [Found(name, "\n".join(lines))])
    text = f"@relay:{name} not meant {number} {words(random, 1, 5)}"
    inert = random.choice(
        (["\\" + text], ["see " + text], ["```", text, "```"], ["> " + text], ["`" + text + "`"])
    )
    return Paragraph(inert)


def transcript(random: Random) -> list[Paragraph]:
    """Some paragraphs; some are said once more."""
    said: list[Paragraph] = []
    for number in range(random.randint(2, 7)):
        messages = [one for one in said if one.said]
        if messages and random.random() < 0.2:
            said.append(random.choice(messages))
        else:
            said.append(paragraph(random, number))
    return said


def tell(
    random: Random, said: list[Paragraph], size: tuple[int, int], *, known: bool, clips: bool
) -> Iterator[Step]:
    """The moments at which it is drawn: whole paragraphs, or words as they are found.

    ``known``: the first of them grows too, since the program shows in time that it will draw it
    again. ``clips``: of what does not fit only the end is shown.
    """
    at = 0.1
    clock = 0
    done: list[str] = []
    pace = random.choice((0.016, 0.033, 0.08, 0.12))
    streams = random.random() < 0.6
    resizes = random.random() < 0.25
    yield Step(at, [], size, clock, ended=False)
    for number, one in enumerate(said):
        forms = [*_grown(random, one.lines)] if streams and (number or known) else [one.lines]
        for lines in forms:
            at += pace * random.uniform(0.7, 1.3)
            clock += 1
            yield Step(at, done + lines, size, clock, ended=lines is forms[-1])
        done = [*done, *one.lines, ""]
        told = done[:-1]
        rest = random.choice((0.0, 0.1, 0.6, 1.5, 2.6, 6.0)) if number + 1 < len(said) else 1.0
        if clips:  # it may be gone soon: a person needs a moment to read it
            rest = max(rest, 0.6)
        ticks = random.random() < 0.6
        for _ in range(random.randint(1, 5)):
            at += max(pace, rest / 5 if ticks else 0.1)
            clock += 1
            if resizes and random.random() < 0.3:
                size = random.choice(LARGE if clips else SIZES)
            yield Step(at, told, size, clock, ended=True)
        at += rest


def _grown(random: Random, lines: list[str]) -> Iterator[list[str]]:
    """The lines as they grow; a line never ends before the next has begun."""
    shown: list[str] = []
    for number, line in enumerate(lines):
        parts = line.split(" ")
        at = 0
        while at < len(parts):
            at += random.randint(1, 6)
            last = at >= len(parts)
            if not last or number + 1 == len(lines):
                yield [*shown, " ".join(parts[:at])]
        shown.append(line)


# -- how it is drawn ---------------------------------------------------------------------------


class Painter:
    """Draws steps: what it returns is written to the terminal."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.hides = random.random() < 0.5
        self.updates = random.random() < 0.25
        self.wraps = random.random() < 0.5
        self.status = random.choice(("none", "line", "box", "open"))
        self.cols, self.rows = 80, 24

    @property
    def clips(self) -> bool:
        """Whether of what does not fit only the end is shown."""
        return False

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        return LARGE if self.clips else SIZES

    @property
    def known(self) -> bool:
        """Whether it shows in time that it will draw again what it draws."""
        return self.hides or self.updates or self.status != "none"

    def name(self) -> list[str]:
        """How it draws, in words for a report."""
        return [type(self).__name__]

    def begin(self) -> str:
        return "\x1b[?25l" * self.hides

    def frame(self, step: Step) -> str:
        old, (self.cols, self.rows) = (self.cols, self.rows), step.size
        drawn = self.draw(step, resized=step.clock > 0 and old != step.size)
        return f"\x1b[?2026h{drawn}\x1b[?2026l" if self.updates else drawn

    def draw(self, step: Step, *, resized: bool) -> str:
        raise NotImplementedError

    def end(self, step: Step) -> str:
        return "\x1b[?25h" * self.hides

    # -- shared ----------------------------------------------------------------------------

    def broken(self, lines: list[str]) -> list[str]:
        """The lines in rows as this program breaks them; longer ones are the terminal's to wrap."""
        if not self.wraps:
            return lines
        wide = self.cols - 2
        return [row for line in lines for row in (textwrap.wrap(line, wide) or [""])]

    def footer(self, step: Step) -> list[str]:
        """What stands below the text."""
        spin = _SPINNER[step.clock % len(_SPINNER)]
        if self.status == "line":
            return ["", f"{spin} Working… {step.clock}s"]
        if self.status == "box":
            rule = "─" * (self.cols - 1)
            return ["", rule, "> ", rule]
        return ["", f"{spin} thinking"] if self.status == "open" else []

    def height(self, rows: list[str]) -> int:
        """How many rows of the terminal these take."""
        return sum(max(1, -(-len(row) // self.cols)) for row in rows)

    def tail(self, rows: list[str], room: int) -> list[str]:
        """The last rows that fit, whole ones."""
        kept: list[str] = []
        for row in reversed(rows):
            if self.height([row, *kept]) > room:
                break
            kept.insert(0, row)
        return kept


class Appending(Painter):
    """Writes at the end; a spinner turns on its last line."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.updates = False
        self.text = ""

    def draw(self, step: Step, *, resized: bool) -> str:
        text = "\r\n".join(step.told) + "\r\n" * step.ended
        new, self.text = text[len(self.text) :], text
        return new

    def end(self, step: Step) -> str:
        return "\r\n" + super().end(step)


class Rewriting(Painter):
    """Moves up over what it drew last, erases it and draws it again, as log-update does."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.up = random.choice(("cuu", "cpl", "each", "ri", "cup", "save"))
        self.erase = random.choice(("below", "lines", "chars", "delete", "over", "after"))
        # Of a line without an end nobody knows that it is whole.
        self.newline = random.random() < 0.7 or not self.known
        self.settles = random.random() < 0.5  # what is complete is printed above, once
        self.overflow = random.choice(("clear", "clip"))
        self.ending = random.choice(("stay", "again", "wipe"))
        self.printed = 0
        self.before: list[str] = []  # the rows drawn last
        self.row = 0  # of the screen, where the cursor stands
        self.top = 0  # ... where the block begins

    def name(self) -> list[str]:
        return [*Painter.name(self), self.up, self.erase]

    @property
    def clips(self) -> bool:
        return self.settles or self.overflow == "clip"

    def draw(self, step: Step, *, resized: bool) -> str:
        done = 0
        if self.settles:
            texts = [
                n for n, line in enumerate(step.told) if not line and not _in_block(step.told, n)
            ]
            done = texts[-1] + 1 if texts else 0
        live = self.broken(step.told[done:]) + self.footer(step)
        if resized:
            return self._all(step.told[:done], live, done)
        above = self.broken(step.told[self.printed : done])
        if self.height(live) >= self.rows:
            if self.overflow == "clear" and not self.settles:
                return self._all(step.told[:done], live, done)
            live = self.tail(live, self.rows - 1)
        gone = self._gone()
        self.printed = done
        return gone + self._write(above, live)

    def _gone(self) -> str:
        """What takes the block away that was drawn last."""
        rows = self.height(self.before) - 1 + self.newline if self.before else 0
        start = self.row - rows
        if not self.before:
            return ""
        out = "\r"
        if self.erase == "lines" and self.up == "each":
            out += "\x1b[2K" + "\x1b[1A\x1b[2K" * rows + "\x1b[G"
        elif self.up == "each":
            out += "\x1b[1A" * rows
        elif self.up == "cpl":
            out += f"\x1b[{rows}F" if rows else ""
        elif self.up == "ri":
            out += "\x1bM" * rows
        elif self.up == "cup":
            out += f"\x1b[{start + 1};1H"
        elif self.up == "save":
            out += "\x1b8" if start == self.top else f"\x1b[{rows}A" if rows else ""
        else:
            out += f"\x1b[{rows}A" if rows else ""
        self.row = start
        if self.erase == "below":
            out += "\x1b[J"
        elif self.erase == "delete":
            out += f"\x1b[{rows + 1}M"
        elif self.erase in ("lines", "chars") and self.up != "each":
            wipe = "\x1b[2K" if self.erase == "lines" else f"\x1b[{self.cols}X"
            out += wipe + f"\x1b[B{wipe}" * rows + (f"\x1b[{rows}A" if rows else "")
        return out

    def _write(self, above: list[str], live: list[str]) -> str:
        over = self.erase in ("over", "after", "chars") or (self.erase == "lines")
        clear = "\x1b[K" if over else ""
        out = ""
        for row in above:
            out += self._row(row, clear) + "\r\n"
            self._down(row, 1)
        self.top = self.row
        if self.up == "save":
            # Room first, so that the place stays where it is.
            room = self.height(live) - 1 + self.newline
            out += "\n" * room + (f"\x1b[{room}A" if room else "") + "\x1b7"
            self._down("", room)
            self.row -= room
            self.top = self.row
        out += "\r\n".join(self._row(row, clear) for row in live) + "\r\n" * self.newline
        for row in live[:-1]:
            self._down(row, 1)
        if live:
            self._down(live[-1], int(self.newline))
        self.before = live
        return out + "\x1b[J" * over

    def _row(self, row: str, clear: str) -> str:
        # A row that fills the screen leaves the cursor on its last cell.
        return row + clear if not row or len(row) % self.cols else row

    def _down(self, row: str, newlines: int) -> None:
        self.row = min(self.rows - 1, self.row + self.height([row]) - 1 + newlines)

    def _all(self, told: list[str], live: list[str], done: int) -> str:
        """Everything anew on a cleared terminal."""
        self.row = self.top = 0
        self.printed = done
        if self.height(live) >= self.rows and (self.settles or self.overflow == "clip"):
            live = self.tail(live, self.rows - 1)
        return "\x1b[2J\x1b[3J\x1b[H" + self._write(self.broken(told), live)

    def end(self, step: Step) -> str:
        out = ""
        if self.ending != "stay" and self.height(self.before) < self.rows - 1:
            out = self._gone() + "\x1b[J"
            if self.ending == "again":
                out += self._write([], self.broken(step.told[self.printed :]))
        return out + "\r\n" + super().end(step)


def _in_block(lines: list[str], at: int) -> bool:
    opened = [line for line in lines[:at] if line.endswith("<<<") or line == ">>>"]
    return bool(opened) and opened[-1] != ">>>"


class Clearing(Painter):
    """Clears the screen and draws everything again."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.clear = random.choice(
            (
                "\x1b[2J\x1b[H", "\x1b[H\x1b[2J", "\x1b[H\x1b[J", "\x1b[2J\x1b[3J\x1b[H",
                "\x1b[H\x1b[2J\x1b[3J", "\x1bc", "\x1b[3J\x1b[2J\x1b[1;1H", "\x1b[H",
            )
        )  # fmt: skip
        self.whole = random.random() < 0.5 and self.clear != "\x1b[H"
        self.newline = random.random() < 0.5 or not self.known

    def name(self) -> list[str]:
        return [*Painter.name(self), repr(self.clear), "whole" if self.whole else "tail"]

    @property
    def clips(self) -> bool:
        return not self.whole

    def draw(self, step: Step, *, resized: bool) -> str:
        rows = self.broken(step.told) + self.footer(step)
        if not self.whole:
            rows = self.tail(rows, self.rows - 1)
        if self.clear != "\x1b[H" or resized:
            clear = "\x1b[2J\x1b[H" if self.clear == "\x1b[H" else self.clear
            return clear + "\r\n".join(rows) + "\r\n" * self.newline
        each = "\r\n".join(row + "\x1b[K" * bool(not row or len(row) % self.cols) for row in rows)
        return self.clear + each + "\r\n" * self.newline + "\x1b[J"

    def end(self, step: Step) -> str:
        return "\r\n" + super().end(step)


class FullScreen(Painter):
    """Draws on the alternate screen, and may print what was said when it leaves."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.switch = random.choice((1049, 1047, 47))
        self.style = random.choice(("rows", "clear", "home"))
        self.again = random.random() < 0.4

    @property
    def clips(self) -> bool:
        return True

    def begin(self) -> str:
        return f"\x1b[?{self.switch}h" + super().begin()

    def draw(self, step: Step, *, resized: bool) -> str:
        footer = self.footer(step)
        rows = self.tail(self.broken(step.told), self.rows - 1 - len(footer)) + footer
        if self.style == "clear" or resized:
            return "\x1b[H\x1b[2J" + "\r\n".join(rows)
        if self.style == "rows" and self.wraps:
            placed = "".join(f"\x1b[{y};1H\x1b[2K{row}" for y, row in enumerate(rows, 1))
            return placed + "\x1b[J"
        each = "\r\n".join(row + "\x1b[K" * bool(not row or len(row) % self.cols) for row in rows)
        return "\x1b[H" + each + "\x1b[J"

    def end(self, step: Step) -> str:
        out = f"\x1b[?{self.switch}l"
        if self.again:
            out += "\r\n".join(self.broken(step.told)) + "\r\n"
        return out + super().end(step)


class Scrolling(Painter):
    """Keeps its last rows in place and scrolls the text above them in a region."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.wraps = True
        self.drawn: list[str] = []

    @property
    def clips(self) -> bool:
        return True

    def draw(self, step: Step, *, resized: bool) -> str:
        footer = self.footer(step) or ["", "ready"]
        room = self.rows - len(footer)
        rows = self.broken(step.told)
        out = ""
        if resized or step.clock == 0:
            out, self.drawn = "\x1b[r\x1b[2J\x1b[H", []
        same = 0
        while same < min(len(rows), len(self.drawn)) and rows[same] == self.drawn[same]:
            same += 1
        # Rows that were drawn last are written anew, those that are new scroll in.
        out += f"\x1b[1;{room}r"
        first = len(self.drawn)
        for at in range(max(same, first - room), first):
            out += f"\x1b[{room - (first - 1 - at)};1H\x1b[2K{rows[at] if at < len(rows) else ''}"
        for row in rows[first:]:
            out += f"\x1b[{room};1H\r\n{row}"
        self.drawn = rows
        out += "\x1b[r"
        return out + "".join(f"\x1b[{room + y};1H\x1b[2K{row}" for y, row in enumerate(footer, 1))

    def end(self, step: Step) -> str:
        return f"\x1b[r\x1b[{self.rows};1H\r\n" + super().end(step)


PAINTERS = (Appending, Rewriting, Rewriting, Rewriting, Clearing, FullScreen, Scrolling)


# -- what is heard -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """One conversation: how it was drawn, what was said, what was heard."""

    name: str
    said: list[Found]
    heard: list[Found]

    @property
    def wrong(self) -> dict[str, list[Found]]:
        """What is missed, doubled, cut (or otherwise altered) and invented."""
        said, heard = Counter(self.said), Counter(self.heard)
        missed, more = list((said - heard).elements()), list((heard - said).elements())
        kinds: dict[str, list[Found]] = {}
        for one in more:
            kind = "doubled" if one in said else "altered" if _like(one, self.said) else "invented"
            kinds.setdefault(kind, []).append(one)
        if missed:
            kinds["missed"] = missed
        if not kinds and self.said != self.heard:
            kinds["disordered"] = self.heard
        return kinds


def _like(one: Found, said: list[Found]) -> bool:
    number = (one.body or "").split(" ")[0]
    return any((other.body or "").split(" ")[0] == number for other in said)


def _squeezed(found: Found) -> Found:
    return Found(found.target, " ".join((found.body or "(open)").split()))


class Event(NamedTuple):
    """What happens to the source: a size, bytes, and perhaps that it goes on from a checkpoint."""

    at: float
    data: bytes
    size: tuple[int, int]
    restored: bool = False


def play(number: int) -> tuple[str, list[Found], list[Event]]:
    """The conversation ``number``: how it is drawn, what is said, and what is written when."""
    random = Random(number)
    said = transcript(random)
    painter = random.choice(PAINTERS)(random)
    size = painter.cols, painter.rows = random.choice(painter.sizes)
    steps = [*tell(random, said, size, known=painter.known, clips=painter.clips)]
    frames = [Event(step.at, painter.frame(step).encode(), step.size) for step in steps]
    frames[0] = frames[0]._replace(data=painter.begin().encode() + frames[0].data)
    frames.append(Event(steps[-1].at + 0.6, painter.end(steps[-1]).encode(), steps[-1].size))
    name = " ".join(painter.name() + ["resized"] * (len({step.size for step in steps}) > 1))
    restores = random.random() < 0.2
    return (
        name + " restored" * restores,
        [found for one in said for found in one.said],
        [*_pieces(random, frames, restores)],
    )


def _pieces(random: Random, frames: list[Event], restores: bool) -> Iterator[Event]:
    """The frames as they are read: some in several pieces, a moment apart."""
    now = 0.0
    for frame in frames:
        now = max(now, frame.at)
        data, parts = frame.data, random.choice((1, 1, 3))
        while data:
            at = max(1, len(frame.data) // parts + random.randint(0, 9))
            restored = restores and random.random() < 0.05
            yield Event(now, data[:at], frame.size, restored)
            data = data[at:]
            now += random.choice((0.0, 0.0, 0.002))


def listen(number: int, log: Callable[[Event | SourceEvent], object] | None = None) -> Outcome:
    """Draw the conversation ``number`` and hear it. ``log`` is told all that happens."""
    name, said, played = play(number)
    tell_of = log or (lambda one: None)
    size = played[0].size
    source = ScreenSource(*size)
    events: list[SourceEvent] = []
    for event in played:
        heard = until(source, event.at)
        if event.size != size:
            size = event.size
            heard += source.resize(*size, event.at)
        if event.restored:
            source = ScreenSource.restore(source.checkpoint(), *size, event.at)
        for one in (*heard, event):
            tell_of(one)
        heard += source.feed(event.data, event.at)
        events += heard
    last = played[-1].at + 3
    heard = until(source, last) + source.finish(last)
    for one in heard:
        tell_of(one)
    found = [_squeezed(found) for found in finds(events + heard)]
    return Outcome(name, [_squeezed(found) for found in said], found)
