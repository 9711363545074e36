"""What the screen and line sources share: events out, pauses, echoes, and floods.

``Outlet`` turns settled lines into events. It decides when the stream rests, keeps back lines that
are the echo of what was typed, and under a flood lets lines through only where they can matter.
"""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from typing import Any

from relay.session.ports import Degraded, End, Line, Pause, Proof, SourceEvent

STREAM = "screen"
#: The rest after a line that plainly ended, and after one that may go on, in seconds.
PAUSE_SOON = 0.020
PAUSE_LATE = 0.300
#: How long the person's echo may take to show; without one, what comes is the program's.
PERSON_WAIT = 1.0
#: Lines a second, and in one burst, that are passed on whatever they say.
FLOOD_RATE = 4000.0
FLOOD_BURST = 40_000.0
#: What a line must hold to matter in a flood: a directive, a fence, the end of a block.
MARKS = (b"@", b"`", b"~~~", b">>>")
_TEXT_MARKS = tuple(mark.decode() for mark in MARKS)

_LINE = partial(Line, STREAM)
_ECHO_AGE = 30.0
_ECHO_LINES = 8192  # about one message of the largest size; older ones are forgotten
_ECHO_TEXTS = 32
_SPACE = re.compile(r"\s+")
_PASTE = re.compile(r"\^\[\[20[01]~")


def squeeze(text: str) -> str:
    """``text`` with runs of whitespace made one space, and none at the ends."""
    return _SPACE.sub(" ", text).strip()


def solid(text: str) -> str:
    """``text`` without any whitespace: what stays the same however it is wrapped."""
    return _SPACE.sub("", text)


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
        # The largest texts are left out: a checkpoint is bounded.
        return {
            "lines": [list(item) for item in list(self._lines)[:200] if len(item[0]) < 4096],
            "texts": [text for text in list(self._texts)[-8:] if len(text) < 8192],
        }

    def load(self, state: dict[str, Any]) -> None:
        self._lines.extend((str(text), float(at)) for text, at in state["lines"])
        self._texts.extend(str(text) for text in state["texts"])


class Outlet:
    """Collects the events of one ``feed`` or ``tick``."""

    def __init__(self, now: float) -> None:
        self.echo = EchoMask()
        self._events: list[SourceEvent] = []
        self._pause_at: float | None = None
        self._budget = FLOOD_BURST
        self._budget_at = now
        self._open = False  # a message may still go on
        self._block = False  # ... to its closing mark
        self._skipped = False

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
        """One line of which the caller knows that it is no echo, and when the stream rests."""
        if text and self.echo.typed_anything:
            self.proof(text)
        self._budget = max(self._budget - 1, -FLOOD_RATE)
        self._emit(text)

    def lines(self, texts: list[str], now: float) -> None:
        """Many settled lines at once, filtered when there is a flood of them."""
        if not texts:
            return
        self._refill(now)
        self._budget -= len(texts)
        if not self._block and not self.echo.waiting and not any("@" in text for text in texts):
            self._plain_lines(texts, now)
            return
        if self._budget > 0 or self.echo.waiting:
            for text in texts:
                self.line(text, now, plain=True)
            return
        self._budget = max(self._budget, -FLOOD_RATE)
        for text in texts:
            if self._open or any(mark in text for mark in _TEXT_MARKS):
                self.line(text, now, plain=True)
            else:
                self.skip(now)

    def _plain_lines(self, texts: list[str], now: float) -> None:
        """Lines that open nothing, without looking at each."""
        if self._budget <= 0 and not self._open and not any("`" in text for text in texts):
            self._budget = max(self._budget, -FLOOD_RATE)
            self.skip(now)
            return
        self._events.extend(map(_LINE, texts))
        self._open = self._open and all(text.strip() for text in texts)
        self._skipped = False
        self.rest(now, plain=True)

    def flooded(self, now: float) -> bool:
        """Whether lines that hold none of MARKS need not even be read now."""
        self._refill(now)
        return self._budget <= 0 and not self._open and not self.echo.waiting

    def skip(self, now: float, lines: int = 0) -> None:
        """Lines were left out: what comes next does not continue what came before."""
        self._budget = max(self._budget - lines, -FLOOD_RATE)
        if not self._skipped:
            self._emit("")
            self._skipped = True
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
        self._skipped = False
        if self._block:
            if text.strip() == ">>>":
                self._block = self._open = False
        elif not text.strip():
            self._open = False
        elif "@" in text:
            self._open = True
            self._block = text.rstrip().endswith("<<<")

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
        if not self._block:
            self._open = False
        self._events.append(Pause(STREAM))

    def end(self) -> None:
        self._pause_at = None
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
            "open": self._open,
            "block": self._block,
            "skipped": self._skipped,
            "echo": self.echo.state(),
            "at": now,
        }

    def load(self, state: dict[str, Any], now: float) -> None:
        pause = state["pause_in"]
        self._pause_at = None if pause is None else now + float(pause)
        self._open, self._block = bool(state["open"]), bool(state["block"])
        self._skipped = bool(state["skipped"])
        echo = state["echo"]
        shift = now - float(state["at"])
        echo["lines"] = [[text, at + shift] for text, at in echo["lines"]]
        self.echo.load(echo)
