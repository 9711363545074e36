"""Sources of one agent side by side, and the choice of the one that is believed.

The screen is always read (delivery needs it, and it stands in when nothing better speaks). A
structured source, where the agent has one, is believed instead of the screen for as long as it
works; should it fail, the screen takes over from there, and the reason is kept for ``status``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from relay.agents.structured_source import LIMIT_RETRY, StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import (
    Degraded,
    End,
    Entered,
    GoesOn,
    Line,
    Pause,
    Proof,
    SourceEvent,
    StateChange,
)
from relay.protocol.nested_wrap import NestedOutput
from relay.session.detector import SCREEN, AgentSaid, DirectiveDetector, ForAgent, Heard
from relay.session.pager_watch import PagerWatch
from relay.session.question_watch import QuestionWatch, ScreenQuestion

#: A screen does not know turns: a block is given up as unclosed when for so many seconds no row has
#: changed.
UNCLOSED_PATIENCE = 10.0
#: ... or this many after its last line, where a clock is drawn again and again.
LINE_PATIENCE = 60.0
#: Notes that are kept for ``relay status``; older ones give way.
NOTES_MAX = 20
#: Seconds after a change of the screen in which a source that goes by it, too, is shown it.
LOOK_AFTER = 0.1
#: Seconds after which everything that was drawn on a screen has been heard.
SETTLED = 1.0
#: Seconds that the output of an inner wrap may go on after that has lost the terminal: its last
#: words are still read. Then it was killed or stopped, and what comes is the agent's own again.
LAST_WORDS = 1.0


#: Why a model does not answer that will again at a time that is known to somebody.
_LIMIT = re.compile(r"\blimit|quota", re.IGNORECASE)


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
    def changed_at(self) -> float: ...
    @property
    def title(self) -> str: ...
    @property
    def bracketed_paste(self) -> bool: ...


class SourceSelector:
    """Chooses which source of one agent is believed; each method returns what was heard by it."""

    def __init__(
        self,
        detector: DirectiveDetector,
        screen: ScreenLike,
        structured: StructuredSource | None,
        notes: Iterable[str] = (),  # remarks for ``relay status`` that there are already
        nested: NestedOutput | None = None,
        in_front: Callable[[int], bool | None] = lambda pid: None,
        pager: PagerWatch | None = None,
        questions: QuestionWatch | None = None,
        *,
        deaf: bool = False,
    ) -> None:
        """``nested`` finds what a wrap inside this one hears itself; ``in_front`` tells whether
        a process has its terminal to itself. ``deaf``: nothing that the screen shows is said, as
        in a shell that the person has not asked relay to hear."""
        self._detector = detector
        self._screen = screen
        self._structured = structured
        self._nested = nested
        self._in_front = in_front
        self._deaf = deaf
        self._pager = pager or PagerWatch()
        self._questions = questions
        self._paged = False  # what comes now is a pager's
        self.told = 0  # how often the structured source has said something
        self._inner = nested.pid if nested else 0  # the inner wrap that hears what comes now
        self._inner_lost: float | None = None  # since when that has not had the terminal
        self._last_line = screen.changed_at  # when a line was heard on the screen
        self._believed = self.source
        self._looks = structured is not None and structured.reads_screen
        self._look_at: float | None = None
        self.notes: list[str] = []
        for note in notes:
            self.note(note)

    @property
    def source(self) -> str:
        """Which source is believed: ``structured`` or ``screen``."""
        trusted = self._structured is not None and self._structured.trusted
        return "structured" if trusted else "screen"

    @property
    def screen_only(self) -> bool:
        """Whether nothing but the screen tells what the agent says."""
        return self.source == "screen"

    @property
    def infers_turns(self) -> bool:
        """Whether the end of a turn is inferred from what the screen shows."""
        return self._structured is None or self._structured.infers_turns

    @property
    def conversation(self) -> str:
        """The agent's own id of the conversation in front; empty where it is not known."""
        return "" if self._structured is None else self._structured.conversation

    @property
    def model(self) -> str:
        """The model that spoke last, as the agent calls it; empty where it does not say."""
        return "" if self._structured is None else self._structured.saved.model

    @property
    def usage(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The tokens that this run has used, by the model (see TokenCounts)."""
        used = {} if self._structured is None else self._structured.saved.usage.by_model
        return tuple((model, tuple(counts)) for model, counts in used.items())

    @property
    def transcript_path(self) -> str | None:
        """The agent's own transcript, where it is known."""
        return None if self._structured is None else self._structured.transcript_path

    @property
    def agent_state(self) -> AgentState:
        """What the structured source knows of the agent; idle where there is none."""
        return self._structured.agent_state if self._structured else AgentState.IDLE

    @property
    def question(self) -> ScreenQuestion | None:
        """What the agent asks its person on its screen."""
        return None if self._questions is None else self._questions.question

    def shown(self, change: StateChange) -> StateChange:
        """What others are told that the agent does: one that asks something on its screen waits."""
        if self.question is None or change.state not in (AgentState.IDLE, AgentState.BUSY):
            return change
        asked = self.question.dialog.text.rpartition("\n")[2]
        return StateChange(AgentState.BLOCKED, f"asks: {asked[:100]}")

    def state_changed(self, change: StateChange, now: float) -> StateChange:
        """The agent does something else now: it may ask something, or no more. Returns the change
        with what its screen says of it: when a usage limit ends."""
        if self._questions is None:
            return change
        self._questions.changed(change, now)
        known = change.retry not in (None, LIMIT_RETRY)  # the agent's own records say it
        if change.state is not AgentState.LIMITED or known or not _LIMIT.search(change.reason):
            return change
        reset = self._questions.reset(change.reason)
        return change if reset is None else replace(change, retry=reset)

    def output(self, data: bytes, now: float) -> list[Heard]:
        """Read what the agent wrote."""
        if self._questions is not None:
            self._questions.drawn(now)
        if self._looks and self._look_at is None:
            self._look_at = now + LOOK_AFTER
        if self._pager.there(now) == self._paged:
            return self._feed(data, now)
        # What comes together with a pager's end is its own, as its first page is.
        heard = self._turn(now) if not self._paged else self._feed(data, now) + self._turn(now)
        self._paged = not self._paged
        return heard + self._feed(data, now) if self._paged else heard

    def _turn(self, now: float) -> list[Heard]:
        """Take what was written up to here for the words of who has written until now."""
        heard = self._take(self._screen.tick(now + SETTLED), "screen", now)
        return [*heard, *self._detector.feed(End(SCREEN))]

    def _feed(self, data: bytes, now: float) -> list[Heard]:
        if self._nested is None:
            return self._take(self._screen.feed(data, now), "screen", now)
        heard: list[Heard] = []
        for part, inner in self._nested.split(data):
            if inner != self._inner:
                # What was drawn until here belongs to the one before.
                heard += self._take(self._screen.tick(now + SETTLED), "screen", now)
                self._detector.abandon()
                self._inner, self._inner_lost = inner, None
            heard += self._take(self._screen.feed(part, now), "screen", now)
        return heard

    def resize(self, cols: int, rows: int, now: float) -> list[Heard]:
        """Take the terminal's new size."""
        return self._take(self._screen.resize(cols, rows, now), "screen", now)

    def activity(self, kind: bytes, now: float) -> list[Heard]:
        """Take note that the person pressed keys."""
        if self._pager.takes_key(now):
            return []
        if self._questions is not None:
            self._questions.keyed(now)
        return self._take(self._screen.activity(kind, now), "screen", now)

    def hook(self, event: dict[str, Any], now: float) -> list[Heard]:
        """Read a report of the agent's own hook."""
        if self._structured is None:
            return []
        return self._take(self._structured.hook(event, now), "structured")

    def transcript(self, line: str, now: float) -> list[Heard]:
        """Read a line of the agent's own transcript."""
        if self._structured is None:
            return []
        return self._take(self._structured.transcript(line, now), "structured")

    def reported(self, events: list[SourceEvent]) -> list[Heard]:
        """Take what came of records that the adapter has read itself."""
        return self._take(events, "structured")

    def visible(self) -> list[str]:
        """Return the screen's rows."""
        return self._screen.visible()

    @property
    def pastes(self) -> bool:
        """Whether the program takes pastes now."""
        return self._screen.bracketed_paste

    def tick(self, now: float) -> list[Heard]:
        """Look again: time has passed."""
        heard: list[Heard] = []
        if self._questions is not None:
            self._questions.tick(now)
        due = self._screen.next_deadline()
        if self._paged or (due is not None and now >= due):
            there = self._pager.there(now, gap=0.0)
            if there != self._paged:
                self._paged = True  # what nobody has heard yet came with it
                heard += self._turn(now)
                self._paged = there
        heard += self._take(self._screen.tick(now), "screen", now)
        silent = self._silence_ends()
        if silent is not None and now >= silent:
            heard += self._detector.feed(End(SCREEN))
        structured = self._structured
        if structured is not None:
            heard += self._take(structured.tick(now), "structured")
            shown = self._look_at is not None and now >= self._look_at
            if shown or (structured.agent_state is AgentState.BLOCKED and not self._looks):
                self._look_at = None
                seen = structured.look(self._screen.visible(), self._screen.title, now)
                heard += self._take(seen, "structured")
        return heard

    def next_deadline(self) -> float | None:
        """When :meth:`tick` is due."""
        deadlines = [self._screen.next_deadline(), self._silence_ends(), self._look_at]
        deadlines.append(self._pager.deadline() if self._paged else None)
        deadlines.append(self._questions.deadline if self._questions is not None else None)
        if self._structured is not None:
            deadlines.append(self._structured.next_deadline())
        return min((d for d in deadlines if d is not None), default=None)

    def finish(self, now: float) -> list[Heard]:
        """Settle and end everything: the agent is gone."""
        heard: list[Heard] = []
        if self._structured is not None:
            heard += self._take(self._structured.finish(now), "structured")
        heard += self._take(self._screen.finish(now), "screen", now)
        return [*heard, *self._detector.close()]

    def checkpoint(self, extra: dict[str, Any]) -> bytes:
        """Everything that a next session needs to go on, with what the caller adds."""
        record = {
            "screen": self._screen.checkpoint().decode("utf-8", "surrogateescape"),
            "hearing": self._detector.state(),
            "structured": self._structured.state() if self._structured else None,
            "notes": self.notes,
            "inner": self._inner,
            **extra,
        }
        return json.dumps(record, separators=(",", ":")).encode()

    def give_up(self, reason: str) -> list[Heard]:
        """Let the screen stand in from now on: the structured source cannot hear."""
        if self._structured is None:
            return []
        return self._take(self._structured.failed(reason), "structured")

    def note(self, reason: str) -> None:
        """Keep a remark for ``relay status``."""
        if reason not in self.notes:
            self.notes = [*self.notes, reason][-NOTES_MAX:]

    def forget(self, reason: str) -> None:
        """Take such a remark back."""
        self.notes = [one for one in self.notes if one != reason]

    def _silence_ends(self) -> float | None:
        """When an open block of the screen's is given up."""
        if not self._detector.is_open(SCREEN):
            return None
        return min(self._screen.changed_at + UNCLOSED_PATIENCE, self._last_line + LINE_PATIENCE)

    def _heard_inside(self, now: float) -> bool:
        """Whether a wrap inside this one hears what is on the screen now."""
        if not self._inner:
            return False
        if self._in_front(self._inner):
            self._inner_lost = None
            return True
        self._inner_lost = now if self._inner_lost is None else self._inner_lost
        return now - self._inner_lost < LAST_WORDS

    def _take(self, events: list[SourceEvent], origin: str, now: float = 0.0) -> list[Heard]:
        self.told += origin == "structured" and bool(events)
        if self._believed != self.source:
            # What the one began to hear the other does not end: half a message is none.
            self._believed = self.source
            self._detector.abandon()
        silent = self._deaf or self._paged or (events and self._heard_inside(now))
        if origin == "screen" and silent:
            events = [
                event for event in events if isinstance(event, StateChange | Proof | Degraded)
            ]
        heard: list[Heard] = []
        for stream, group in groupby(events, _stream_of_line):
            if stream is None:
                for event in group:
                    heard += self._take_one(event, origin)
            elif origin == self.source:
                texts = [event.text for event in group if isinstance(event, Line)]
                self._last_line = now if origin == "screen" else self._last_line
                heard += self._hear_lines(stream, texts)
        return heard

    def _take_one(self, event: SourceEvent, origin: str) -> Iterable[Heard]:
        if isinstance(event, Pause | GoesOn | End):
            return self._detector.feed(event) if origin == self.source else ()
        if isinstance(event, StateChange | Proof):
            return (event,)
        if isinstance(event, Degraded):
            self.note(event.reason)
            return (ForAgent(event.told),) if event.told and origin == self.source else ()
        if isinstance(event, Entered) and event.text.strip():
            # What is left open ends with the person's next words, before anything answers them.
            return self._detector.feed(End(SCREEN))
        return ()

    def _hear_lines(self, stream: str, texts: list[str]) -> list[Heard]:
        """Lines are passed on together, but no find before the lines that led to it."""
        heard: list[Heard] = []
        passed = 0
        for number, detection in self._detector.lines(stream, texts, self.source == "structured"):
            if number > passed:
                heard.append(AgentSaid(texts[passed:number]))
                passed = number
            heard.append(detection)
        if passed < len(texts):
            heard.append(AgentSaid(texts[passed:]))
        return heard


def _stream_of_line(event: SourceEvent) -> str | None:
    return event.stream if isinstance(event, Line) else None
