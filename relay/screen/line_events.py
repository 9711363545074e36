"""What the screen and line sources share: events out, pauses, echoes, and floods.

``LineEmitter`` turns settled lines into events. It decides when the stream rests, keeps back lines
that are the echo of what was typed, and under a flood lets through only lines that can matter.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection
from functools import partial
from itertools import islice
from typing import Any

from relay.core.source_events import Degraded, End, Line, Pause, Proof, SourceEvent
from relay.screen.encoded import fitting
from relay.screen.flood import FloodFilter
from relay.screen.grammar_state import GrammarState

STREAM = "screen"
#: The rest after a line that plainly ended, and after one that may go on, in seconds.
PAUSE_SOON = 0.020
PAUSE_LATE = 0.300
#: How long the person's echo may take to show; without one, what comes is the program's.
PERSON_WAIT = 1.0
#: Lines a second, and in one burst, that are passed on whatever they say.
FLOOD_RATE = 4000.0
FLOOD_BURST = 40_000.0
#: A row that has to be looked at because it leaves the screen counts for so many lines.
LEAVING_COSTS = 4.0
#: The namespaces of relay's own: what is heard where nobody says which are registered.
NAMESPACES = ("relay", "memory")
_OPENERS = ("@", "```", "~~~")

_LINE = partial(Line, STREAM)
_ECHO_AGE = 30.0
_ECHO_LINES = 8192  # about one message of the largest size; older ones are forgotten
_ECHO_TEXTS = 32
_ECHO_KEPT = 16 * 1024  # bytes of each in a checkpoint
_SPACE = re.compile(r"\s+")
_PASTE = re.compile(r"\^\[\[20[01]~")


def squeeze(text: str) -> str:
    """``text`` with runs of whitespace made one space, and none at the ends."""
    return _SPACE.sub(" ", text).strip()


def solid(text: str) -> str:
    """``text`` without any whitespace: what stays the same however it is wrapped."""
    return "".join(text.split())


class EchoMask:
    """The texts that relay typed: their echo is proof, not speech."""

    def __init__(self) -> None:
        self._lines: deque[tuple[str, float]] = deque(maxlen=_ECHO_LINES)
        self._texts: deque[str] = deque(maxlen=_ECHO_TEXTS)

    def expect(self, text: str, now: float) -> None:
        """``text`` is about to be typed."""
        for line in text.splitlines():
            if squeezed := squeeze(line):
                self._lines.append((squeezed, now))
        self._texts.append(solid(text))

    @property
    def waiting(self) -> bool:
        """Whether anything was typed of which no echo has been seen."""
        return bool(self._lines)

    @property
    def typed_anything(self) -> bool:
        return bool(self._texts)

    def match(self, line: str, now: float) -> str | None:
        """The program's text before the echo on this line; None when the line is no echo.

        An echo is used up by matching: the same words said again are the program's own.
        """
        while self._lines and now - self._lines[0][1] > _ECHO_AGE:
            self._lines.popleft()
        if not self._lines:
            return None
        text = squeeze(_PASTE.sub("", line))
        if not text:
            return None
        for index, (expected, _) in enumerate(self._lines):
            before = self._before(text, expected)
            if before is not None:
                for _ in range(index + 1):
                    self._lines.popleft()
                return before
            if index >= 200:
                break
        return None

    @staticmethod
    def _before(text: str, expected: str) -> str | None:
        if text == expected:
            return ""
        # A prompt stands before the echo. A short word at the end of a line proves nothing.
        if len(expected) >= 6 and text.endswith(expected):
            return text[: -len(expected)].rstrip()
        return None

    def part_of_text(self, solid_text: str) -> bool:
        """Whether a text, without its whitespace, stands in anything that was typed lately."""
        return any(solid_text in text for text in self._texts)

    def state(self) -> dict[str, Any]:
        """As JSON: of the lines those that are due first, of the texts the latest that fit."""
        return {
            "lines": fitting(map(list, islice(self._lines, 200)), _ECHO_KEPT),
            "texts": fitting(list(self._texts)[:-9:-1], _ECHO_KEPT)[::-1],
        }

    def load(self, state: dict[str, Any]) -> None:
        self._lines.extend((str(text), float(at)) for text, at in state["lines"])
        self._texts.extend(str(text) for text in state["texts"])


class LineEmitter:
    """Collects the events of one ``feed`` or ``tick``; in a flood only what may matter.

    ``namespaces`` are those for which there are handlers.
    """

    def __init__(self, now: float, namespaces: Collection[str] = NAMESPACES) -> None:
        self.echo = EchoMask()
        self._sieve = FloodFilter(namespaces)
        self._events: list[SourceEvent] = []
        self._pause_at: float | None = None
        self._budget = FLOOD_BURST
        self._budget_at = now
        self._gist = GrammarState(
            namespaces
        )  # reads along, so that nothing is left out of a message

    # -- lines ---------------------------------------------------------------------------------

    def line(self, text: str, now: float, *, plain: bool) -> None:
        """One settled line. ``plain``: it plainly ended, it did not reach the right edge."""
        if self.echo.waiting:
            before = self.echo.match(text, now)
            if before is not None:
                self.proof(text)
                if before:
                    self._emit(before)
                return
            if text:
                self.proof(text)
        self._emit(text)
        self.rest(now, plain=plain)

    def speak(self, text: str) -> None:
        """One line that a program drew, no echo; the caller knows when the stream rests."""
        if text and self.echo.typed_anything:
            self.proof(text)
        if not text or self._budget > 0 or self._matters(text):
            self._emit(text)

    def spend(self, lines: float) -> None:
        """As much as so many lines cost was done."""
        self._budget = max(self._budget - lines, -FLOOD_RATE)

    def lines(self, texts: list[str], now: float) -> None:
        """Many settled lines at once, filtered when there is a flood of them."""
        if not texts:
            return
        self._refill(now)
        self._budget -= len(texts)
        if self.echo.waiting:
            for text in texts:
                self.line(text, now, plain=True)
        elif self._budget > 0:
            self._all(texts)
            self.rest(now, plain=True)
        else:
            self._budget = max(self._budget, -FLOOD_RATE)
            self.sift("\n" + "\n".join(texts), now)

    def sift(self, lines: str, now: float) -> None:
        """Pass on of a flood what may matter. Each line stands behind its newline."""
        at = 0
        while at < len(lines):
            start = self._next_matter(lines, at)
            if start != at:
                self.skip(now)
            if start < 0:
                return
            if not self._gist.fence and (past := self._gist.past_fence(lines, start)) >= 0:
                at = past
                continue
            end = lines.find("\n", start + 1)
            at = end if end >= 0 else len(lines)
            self.line(lines[start + 1 : at], now, plain=True)

    def _next_matter(self, lines: str, at: int) -> int:
        """The newline before the next line that may not be left out; -1 for none."""
        gist = self._gist
        if fence := gist.fence:
            place = lines.find(fence, at)
            return lines.rfind("\n", 0, place) if place >= 0 else -1
        if gist.open and not gist.lost:
            return at
        return self._sieve.next_line(lines, at, block=gist.block)

    def _matters(self, text: str) -> bool:
        """Whether a line may not be left out of a flood."""
        return self._next_matter("\n" + text, 0) == 0

    def _all(self, texts: list[str]) -> None:
        """Lines with nothing left out; what most lines are is told at once."""
        self._events.extend(map(_LINE, texts))
        if self._gist.open or any(opener in text for text in texts for opener in _OPENERS):
            for text in texts:
                self._gist.line(text)

    def clean(self, lines: bytes) -> int:
        """See ``FloodFilter.clean``."""
        return self._sieve.clean(lines, block=self._gist.block)

    def awaited(self, rows: str) -> int | None:
        """See ``FloodFilter.painted``."""
        return self._sieve.painted(rows, block=self._gist.block)

    @property
    def in_block(self) -> bool:
        """Whether what comes next belongs to a message that ends at ``>>>`` only."""
        return self._gist.block

    def turn(self) -> None:
        """The person's words begin: what was being said is over, a block that is open too."""
        if self._gist.open or self._gist.fence:
            self.end()

    @property
    def open(self) -> bool:
        """Whether what comes next belongs to a message that is not too long."""
        return self._gist.open and not self._gist.lost

    def pressed(self, now: float) -> bool:
        """Whether more is said than is passed on whatever it says, and no echo is waited for."""
        self._refill(now)
        return self._budget <= 0 and not self.echo.waiting

    def flooded(self, now: float) -> bool:
        """Whether lines for which the sieve has no use need not even be read now."""
        return self.pressed(now) and (not self._gist.open or self._gist.lost)

    def skip(self, now: float, lines: int = 0) -> None:
        """Lines were left out: what comes next does not continue what came before."""
        self.spend(lines)
        if self._gist.open:
            self.gap(now)

    def gap(self, now: float) -> None:
        """What comes next does not continue what came before."""
        self._emit("")
        self.rest(now, plain=True)

    def proof(self, text: str) -> None:
        """``text`` is on the screen."""
        if text.strip():
            self._events.append(Proof(text, "screen"))

    def degraded(self, reason: str) -> None:
        """Something cannot be heard."""
        self._events.append(Degraded(reason))

    def rest(self, now: float, *, plain: bool) -> None:
        """A pause is due after this moment."""
        self._pause_at = now + (PAUSE_SOON if plain else PAUSE_LATE)

    def delay(self, now: float) -> None:
        """What was heard last may go on after all: let the pause come late."""
        if self._pause_at is not None:
            self._pause_at = max(self._pause_at, now + PAUSE_LATE)

    def _emit(self, text: str) -> None:
        self._events.append(Line(STREAM, text))
        self._gist.line(text)

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._budget_at)
        self._budget_at = now
        self._budget = min(FLOOD_BURST, self._budget + passed * FLOOD_RATE)

    # -- time ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        if self._pause_at is not None and now >= self._pause_at:
            self.pause()

    def pause(self) -> None:
        self._pause_at = None
        self._gist.pause()
        self._events.append(Pause(STREAM))

    def end(self) -> None:
        self._pause_at = None
        self._gist.end()
        self._events.append(End(STREAM))

    @property
    def deadline(self) -> float | None:
        return self._pause_at

    def take(self) -> list[SourceEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    # -- checkpoint ----------------------------------------------------------------------------

    def state(self, now: float) -> dict[str, Any]:
        """As JSON; times become distances from ``now``, because clocks do not survive."""
        return {
            "pause_in": None if self._pause_at is None else self._pause_at - now,
            "gist": self._gist.state(),
            "echo": self.echo.state(),
            "at": now,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        pause = state["pause_in"]
        self._pause_at = None if pause is None else now + float(pause)
        self._gist.load(state["gist"])
        echo = state["echo"]
        shift = now - float(state["at"])
        echo["lines"] = [[text, at + shift] for text, at in echo["lines"]]
        self.echo.load(echo)
