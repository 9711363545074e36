"""Sources of one agent side by side, and the choice of the one that is believed.

The screen is always read (delivery needs it, and it stands in when nothing better speaks). A
structured source, where the agent has one, is believed instead of the screen for as long as it
works; should it fail, the screen takes over from there, and the reason is kept for ``status``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from typing import Any, Protocol

from relay.agents.base import StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, Line, Pause, Proof, SourceEvent, StateChange
from relay.session.detector import Detection, DirectiveDetector

#: A screen does not know turns: a block is given up as unclosed after so many seconds of silence.
UNCLOSED_PATIENCE = 10.0
#: Notes that are kept for ``relay status``; older ones give way.
NOTES_MAX = 20
#: Seconds after a change of the screen in which a source that goes by it, too, is shown it.
LOOK_AFTER = 0.1
#: The stream of everything that is heard on the screen.
SCREEN = "screen"


class ScreenLike(Protocol):
    """What the session asks of the screen source."""

    def feed(self, data: bytes, now: float) -> list[SourceEvent]: ...
    def tick(self, now: float) -> list[SourceEvent]: ...
    def next_deadline(self) -> float | None: ...
    def resize(self, cols: int, rows: int, now: float) -> list[SourceEvent]: ...
    def activity(self, kind: bytes, now: float) -> list[SourceEvent]: ...
    def finish(self, now: float) -> list[SourceEvent]: ...
    def checkpoint(self) -> bytes: ...
    def visible(self) -> list[str]: ...
    @property
    def title(self) -> str: ...
    @property
    def bracketed_paste(self) -> bool: ...


class SourceSelector:
    """All that is heard of one agent, as finds with ids; the rest is passed on by callbacks.

    ``on_text`` gets the lines that the agent said, whatever they hold, in order.
    """

    def __init__(
        self,
        hearing: DirectiveDetector,
        screen: ScreenLike,
        structured: StructuredSource | None,
        *,
        on_heard: Callable[[Detection], None],
        on_text: Callable[[list[str]], None],
        on_state: Callable[[StateChange], None],
        on_proof: Callable[[Proof], None],
    ) -> None:
        self._hearing = hearing
        self._screen = screen
        self._structured = structured
        self._on_heard = on_heard
        self._on_text = on_text
        self._on_state = on_state
        self._on_proof = on_proof
        self._last_output: float | None = None
        self._believed = self.source
        self._looks = structured is not None and structured.reads_screen
        self._look_at: float | None = None
        self.notes: list[str] = []

    @property
    def source(self) -> str:
        """Which source is believed: ``structured`` or ``screen``."""
        trusted = self._structured is not None and self._structured.trusted
        return "structured" if trusted else "screen"

    @property
    def agent_state(self) -> AgentState:
        """What the structured source knows of the agent; idle where there is none."""
        return self._structured.agent_state if self._structured else AgentState.IDLE

    def output(self, data: bytes, now: float) -> None:
        """The agent wrote ``data``."""
        self._last_output = now
        if self._looks and self._look_at is None:
            self._look_at = now + LOOK_AFTER
        self._take(self._screen.feed(data, now), "screen")

    def resize(self, cols: int, rows: int, now: float) -> None:
        """The terminal has another size."""
        self._take(self._screen.resize(cols, rows, now), "screen")

    def activity(self, kind: bytes, now: float) -> None:
        """The person pressed keys."""
        self._take(self._screen.activity(kind, now), "screen")

    def hook(self, event: dict[str, Any], now: float) -> None:
        """The agent's own hook reports."""
        if self._structured is not None:
            self._take(self._structured.hook(event, now), "structured")

    def transcript(self, line: str, now: float) -> None:
        """A line of the agent's own transcript."""
        if self._structured is not None:
            self._take(self._structured.transcript(line, now), "structured")

    def reported(self, events: list[SourceEvent]) -> None:
        """The structured source was fed elsewhere, and this came of it."""
        self._take(events, "structured")

    def visible(self) -> list[str]:
        """The screen's rows."""
        return self._screen.visible()

    @property
    def pastes(self) -> bool:
        """Whether the program takes pastes now."""
        return self._screen.bracketed_paste

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._take(self._screen.tick(now), "screen")
        silent = self._silence_ends()
        if silent is not None and now >= silent:
            self._hear(End(SCREEN))
        structured = self._structured
        if structured is not None:
            self._take(structured.tick(now), "structured")
            due = self._look_at is not None and now >= self._look_at
            if due or (structured.agent_state is AgentState.BLOCKED and not self._looks):
                self._look_at = None
                seen = structured.look(self._screen.visible(), self._screen.title, now)
                self._take(seen, "structured")

    def next_deadline(self) -> float | None:
        """When :meth:`tick` is due."""
        deadlines = [self._screen.next_deadline(), self._silence_ends(), self._look_at]
        if self._structured is not None:
            deadlines.append(self._structured.next_deadline())
        return min((d for d in deadlines if d is not None), default=None)

    def finish(self, now: float) -> None:
        """The agent is gone: everything settles and ends."""
        if self._structured is not None:
            self._take(self._structured.finish(now), "structured")
        self._take(self._screen.finish(now), "screen")
        for heard in self._hearing.close():
            self._on_heard(heard)

    def checkpoint(self, extra: dict[str, Any]) -> bytes:
        """Everything that a next session needs to go on, with what the caller adds."""
        record = {
            "screen": self._screen.checkpoint().decode("utf-8", "surrogateescape"),
            "hearing": self._hearing.state(),
            "structured": self._structured.state() if self._structured else None,
            "notes": self.notes,
            **extra,
        }
        return json.dumps(record, separators=(",", ":")).encode()

    def give_up(self, reason: str) -> None:
        """The structured source cannot hear: the screen stands in from now on."""
        if self._structured is not None:
            self._take(self._structured.failed(reason), "structured")

    def note(self, reason: str) -> None:
        """Keep a remark for ``relay status``."""
        if reason not in self.notes:
            self.notes = [*self.notes, reason][-NOTES_MAX:]

    def _silence_ends(self) -> float | None:
        """When an open block of the screen's is given up."""
        if self._last_output is None or not self._hearing.is_open(SCREEN):
            return None
        return self._last_output + UNCLOSED_PATIENCE

    def _take(self, events: list[SourceEvent], origin: str) -> None:
        if self._believed != self.source:
            # What the one began to hear the other does not end: half a message is none.
            self._believed = self.source
            self._hearing.abandon()
        for stream, group in groupby(events, _stream_of_line):
            if stream is None:
                for event in group:
                    self._take_one(event, origin)
            elif origin == self.source:
                self._hear_lines(stream, [event.text for event in group if isinstance(event, Line)])

    def _take_one(self, event: SourceEvent, origin: str) -> None:
        if isinstance(event, Pause | End):
            if origin == self.source:
                self._hear(event)
        elif isinstance(event, StateChange):
            self._on_state(event)
        elif isinstance(event, Proof):
            self._on_proof(event)
        elif isinstance(event, Degraded):
            self.note(event.reason)

    def _hear_lines(self, stream: str, texts: list[str]) -> None:
        """Lines are passed on together, but no find before the lines that led to it."""
        passed = 0
        for number, heard in self._hearing.lines(stream, texts):
            if number > passed:
                self._on_text(texts[passed:number])
                passed = number
            self._on_heard(heard)
        if passed < len(texts):
            self._on_text(texts[passed:])

    def _hear(self, event: Pause | End) -> None:
        for heard in self._hearing.feed(event):
            self._on_heard(heard)


def _stream_of_line(event: SourceEvent) -> str | None:
    return event.stream if isinstance(event, Line) else None
