"""Events that the screen source makes of settled lines: lines, pauses and echoes. Pure.

``LineEmitter`` turns settled lines into events. It decides when the stream rests, and keeps back
lines that are the echo of what relay typed.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import Any

from relay.core.source_events import (
    Degraded,
    End,
    Entered,
    GoesOn,
    Line,
    Pause,
    Proof,
    SourceEvent,
)
from relay.screen.checkpoint import fitting

STREAM = "screen"
#: The rest after a line that plainly ended, and after one that may go on, in seconds.
PAUSE_SOON = 0.020
PAUSE_LATE = 0.300
#: After this rest, in seconds, an echo ends what was being said; before, the program may go on.
SAID_REST = 1.0
#: How long the person's echo may take to show; without one, what comes is the program's.
PERSON_WAIT = 1.0

_LINE = partial(Line, STREAM)
_ECHO_AGE = 30.0
_ECHO_LINES = 8192  # about one message of the largest size; older ones are forgotten
_ECHO_TEXTS = 32
_ECHO_KEPT = 16 * 1024  # bytes of each in a checkpoint
_PROMPTS = 4
_PROMPT_MAX = 80  # characters
_PROMPT = re.compile(r"[^@]*[>$#%❯›»➜λ:?]\s*")
#: So many first characters of a typed text hold its marker, which nobody else can know.
_ECHO_HEAD = 30
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
        self._alone: deque[str] = deque(maxlen=_ECHO_TEXTS)  # since the person's last key
        self._prompts: deque[str] = deque(maxlen=_PROMPTS)  # what stood before them
        self._prompt = ""  # ... before the last one
        self._proven = ""  # ... before the last two, between which the person pressed no key
        self._fresh = False  # nothing of the text that was typed last has been seen

    def expect(self, text: str, now: float, prompt: str = "") -> None:
        """``text`` is about to be typed behind ``prompt``."""
        for line in text.splitlines():
            if squeezed := squeeze(line):
                self._lines.append((squeezed, now))
        typed, before = solid(text), solid(prompt)
        if before and typed not in self._texts:
            self._alone.append(typed)
        self._texts.append(typed)
        if 0 < len(before) <= _PROMPT_MAX and before not in self._prompts:
            self._prompts.append(before)
        if before:
            same = prompt == self._prompt and _PROMPT.fullmatch(prompt)
            self._prompt, self._proven = prompt, prompt if same else ""
        self._fresh = True

    def keyed(self) -> None:
        """The person pressed a key: it may have gone behind what was typed, or a prompt."""
        self._alone.clear()
        self._prompt = self._proven = ""

    def answer(self, line: str) -> str:
        """What the line says behind a prompt at which nobody types; empty: nothing, or no prompt.

        A program that was at work reads what was typed meanwhile as soon as it shows its prompt.
        """
        said = line.removeprefix(self._proven)
        return said if said != line else ""

    def prompted(self, lines: list[str]) -> bool:
        """Whether one of the lines has such a prompt."""
        return self._proven != "" and any(map(self.answer, lines))

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

    def begins(self) -> bool:
        """Whether the echo that was just matched is the first of what was typed last."""
        begins, self._fresh = self._fresh, False
        return begins

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

    def begun(self, row: str) -> str:
        """What of a typed text the row, without its whitespace, shows behind its prompt."""
        for prompt in self._prompts:
            shown = row[len(prompt) :] if row.startswith(prompt) else ""
            if len(shown) >= _ECHO_HEAD and any(t.startswith(shown) for t in self._texts):
                return shown
        return ""

    def is_end(self, solid_text: str) -> bool:
        """Whether that is the end of a typed text, to which the person cannot have added."""
        return len(solid_text) >= _ECHO_HEAD and any(t.endswith(solid_text) for t in self._alone)

    def rest(self, rows: Iterable[str]) -> int:
        """How many of the first rows are the end of a typed text that begins above them."""
        shown = ""
        for count, row in enumerate(rows, 1):
            shown += row
            if self.is_end(shown):
                return count
            if not self.part_of_text(shown):
                break
        return 0

    def save(self) -> dict[str, Any]:
        """Return as JSON values the lines that are due first and the latest texts that fit."""
        return {
            "lines": fitting(
                ({"text": t, "at": at} for t, at in islice(self._lines, 200)), _ECHO_KEPT
            ),
            "texts": fitting(list(self._texts)[:-9:-1], _ECHO_KEPT)[::-1],
            "prompts": list(self._prompts),
            "fresh": self._fresh,
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from ``save``."""
        self._lines.extend((line["text"], line["at"]) for line in saved["lines"])
        self._texts.extend(saved["texts"])
        self._prompts.extend(saved.get("prompts", ()))
        self._fresh = saved.get("fresh", False)


class LineEmitter:
    """Collects the events of one ``feed`` or ``tick`` of a source."""

    def __init__(self) -> None:
        self.echo = EchoMask()
        self._events: list[SourceEvent] = []
        self._pause_at: float | None = None
        self._appended_at = 0.0  # when a line was emitted that is no echo
        self.rested = False  # nothing was emitted since the last pause

    # -- lines ---------------------------------------------------------------------------------

    def line(self, text: str, now: float, *, plain: bool) -> None:
        """Emit one settled line. ``plain``: it ended before the right edge of the screen."""
        if self.echo.waiting:
            before = self.echo.match(text, now)
            if before is not None:
                if self.echo.begins() and now - self._appended_at >= SAID_REST:
                    self.end()  # what was being said is over, a block that is open too
                self.proof(text)
                if before:
                    self._emit(before)
                return
            if text:
                self.proof(text)
        while answer := self.echo.answer(text):
            self.end()  # a turn is over where the prompt is shown
            text = answer
        self._appended_at = now if text else self._appended_at
        self._emit(text)
        self.rest(now, plain=plain)

    def lines(self, texts: list[str], now: float) -> None:
        """Emit several settled lines that ended before the right edge."""
        if self.echo.waiting or self.echo.prompted(texts):
            for text in texts:
                self.line(text, now, plain=True)
        elif texts:
            self.rested = False
            self._events.extend(map(_LINE, texts))
            self._appended_at = now if any(texts) else self._appended_at
            self.rest(now, plain=True)

    def speak(self, text: str) -> None:
        """Emit a line of a program that draws: no echo, and the caller says when it rests."""
        if text and self.echo.typed_anything:
            self.proof(text)
        self._pause_at = None
        self._emit(text)

    def entered(self, text: str) -> None:
        """Tell what the person has entered."""
        self._events.append(Entered(text))

    def gap(self, now: float) -> None:
        """Emit a blank line: what comes next does not continue what came before."""
        self._emit("")
        self.rest(now, plain=True)

    def proof(self, text: str) -> None:
        """Tell that ``text`` stands on the screen."""
        if text.strip():
            self._events.append(Proof(text, "screen"))

    def degraded(self, reason: str, told: str = "") -> None:
        """Tell that something cannot be read; ``told`` is for the agent."""
        self._events.append(Degraded(reason, told))

    def goes_on(self, text: str) -> None:
        """Tell that the line ``text``, which comes next, goes on with what rested."""
        self._events.append(GoesOn(STREAM, text))

    def _emit(self, text: str) -> None:
        self.rested = False
        self._events.append(Line(STREAM, text))

    # -- time ----------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When the next pause is due."""
        return self._pause_at

    def rest(self, now: float, *, plain: bool) -> None:
        """Let a pause follow this moment."""
        self._pause_at = now + (PAUSE_SOON if plain else PAUSE_LATE)

    def delay(self, now: float, rest: float = PAUSE_LATE) -> None:
        """Let the pause come late, since the last line may go on after all."""
        if self._pause_at is not None:
            self._pause_at = max(self._pause_at, now + rest)

    def tick(self, now: float) -> None:
        """Emit the pause if it is due."""
        if self._pause_at is not None and now >= self._pause_at:
            self.pause()

    def pause(self) -> None:
        """Emit a pause now."""
        self._pause_at, self.rested = None, True
        self._events.append(Pause(STREAM))

    def end(self) -> None:
        """Emit the end of what was being said."""
        self._pause_at = None
        self._events.append(End(STREAM))

    def take(self) -> list[SourceEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    # -- checkpoint ----------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"pause_at": self._pause_at, "echo": self.echo.save()}

    def load(self, saved: dict[str, Any]) -> None:
        """Go on from ``save``."""
        self._pause_at = saved["pause_at"]
        self.echo.load(saved["echo"])
