"""The sources of one agent, and the choice of the one to believe.

The screen is always read, because delivery needs it, and it is the fallback. If the agent has a
structured source, that is believed as long as it works. If it fails, the screen takes over from
there, and ``relay status`` says why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from relay.agents.structured_source import LIMIT_RETRY, StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import (
    Degraded,
    End,
    Entered,
    GoesOn,
    LimitCause,
    Line,
    Pause,
    Proof,
    Screen,
    SourceEvent,
    StateChange,
)
from relay.protocol.nested_wrap import NestedOutput
from relay.session.agent_questions import QuestionWatch, ScreenQuestion
from relay.session.detector import SCREEN, AgentSaid, DirectiveDetector, ForAgent, Heard
from relay.session.typing_policy import PagerWatch

#: A screen does not show turns: a block counts as unclosed once no row has changed for so many
#: seconds.
UNCLOSED_PATIENCE = 10.0
#: … or so many seconds after its last line, where a clock is drawn again and again.
LINE_PATIENCE = 60.0
#: Notes for ``relay status``; the oldest are dropped.
NOTES_MAX = 20
#: Seconds after a change of the screen in which it is shown to a source that uses it, too.
LOOK_AFTER = 0.1
#: Seconds after which all text on a screen has been heard.
SETTLED = 1.0
#: Seconds in which an inner wrap that has lost the terminal still hears the output: its last words.
#: After that it was killed or stopped, and the output is the agent's own again.
LAST_WORDS = 1.0
#: States of an agent that are `blocked` for others while a question stands on its screen.
_ASKS = (AgentState.STARTING, AgentState.IDLE, AgentState.BUSY)


class ScreenLike(Screen, Protocol):
    """The part of the screen source that the session needs."""

    def feed(self, data: bytes, now: float) -> list[SourceEvent]: ...
    def tick(self, now: float) -> list[SourceEvent]: ...
    def next_deadline(self) -> float | None: ...
    def resize(self, cols: int, rows: int, now: float) -> list[SourceEvent]: ...
    def activity(self, kind: bytes, now: float) -> list[SourceEvent]: ...
    def finish(self, now: float) -> list[SourceEvent]: ...
    def checkpoint(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class OthersInFront:
    """Who else may have the agent's terminal for a while.

    ``nested`` finds output that a wrap inside this one hears itself; ``in_front`` tells whether a
    process is in front on the terminal.
    """

    pager: PagerWatch = field(default_factory=PagerWatch)
    nested: NestedOutput | None = None
    in_front: Callable[[int], bool | None] = lambda pid: None


class SourceSelector:
    """Chooses the source of one agent. Each method returns what was heard."""

    def __init__(
        self,
        detector: DirectiveDetector,
        screen: ScreenLike,
        structured: StructuredSource | None,
        others: OthersInFront | None = None,
        questions: QuestionWatch | None = None,
        *,
        deaf: bool = False,
    ) -> None:
        """``deaf``: the screen is not heard, as in a shell without ``--hear``."""
        others = others or OthersInFront()
        nested = others.nested
        self._detector = detector
        self._screen = screen
        self._structured = structured
        self._nested = nested
        self._in_front = others.in_front
        self._deaf = deaf
        self._pager = others.pager
        self._questions = questions
        self._paged = False  # the output is a pager's now
        self.told = 0  # how often the structured source has reported something
        self._inner = nested.pid if nested else 0  # the inner wrap that hears the output now
        self._inner_lost: float | None = None  # since when it has not had the terminal
        self._last_line = screen.changed_at  # when a line was heard on the screen
        self._believed = self.source
        self._looks = structured is not None and structured.reads_screen
        self._look_at: float | None = None
        self.notes: list[str] = []  # for ``relay status``

    @property
    def source(self) -> str:
        """The source in use: ``structured`` or ``screen``."""
        trusted = self._structured is not None and self._structured.trusted
        return "structured" if trusted else "screen"

    @property
    def screen_only(self) -> bool:
        """Whether the agent is heard by its screen alone."""
        return self.source == "screen"

    @property
    def infers_turns(self) -> bool:
        """Whether the end of a turn is inferred from the screen."""
        return self._structured is None or self._structured.infers_turns

    @property
    def owes_words(self) -> bool:
        """Whether words of the turn that has ended are known to be still on their way."""
        return self._structured is not None and self._structured.owes_words

    @property
    def conversation(self) -> str:
        """The agent's own id of its present conversation; empty if unknown."""
        return "" if self._structured is None else self._structured.conversation

    @property
    def model(self) -> str:
        """The model that answered last, as the agent calls it; empty if unknown."""
        return "" if self._structured is None else self._structured.saved.model

    @property
    def usage(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The tokens that this run has used, by the model (see TokenCounts)."""
        used = {} if self._structured is None else self._structured.saved.usage.by_model
        return tuple((model, tuple(counts)) for model, counts in used.items())

    @property
    def transcript_path(self) -> str | None:
        """The path of the agent's own transcript, if known."""
        return None if self._structured is None else self._structured.transcript_path

    @property
    def agent_state(self) -> AgentState:
        """The agent's state by the structured source; ``starting`` without one."""
        return self._structured.agent_state if self._structured else AgentState.STARTING

    @property
    def question(self) -> ScreenQuestion | None:
        """The question on the agent's screen."""
        return None if self._questions is None else self._questions.question

    def shown(self, change: StateChange) -> StateChange:
        """The agent's state for others: blocked while it asks something on its screen."""
        if self.question is None or change.state not in _ASKS:
            return change
        rows = self.question.dialog.text.split("\n")
        asked = next((row for row in rows if "?" in row), rows[-1]).strip()
        asked = asked if len(asked) <= 100 else f"{asked[:99]}…"
        return StateChange(AgentState.BLOCKED, f"asks: {asked}")

    def state_changed(self, change: StateChange, now: float) -> StateChange:
        """The agent's state has changed. Returns the change with the end of a usage limit, if the
        screen shows it."""
        if self._questions is None:
            return change
        self._questions.changed(change, now)
        known = change.retry not in (None, LIMIT_RETRY)  # the agent's own records give the time
        if change.cause is not LimitCause.USAGE or known:
            return change
        reset = self._questions.reset(change.reason)
        return change if reset is None else replace(change, retry=reset)

    def output(self, data: bytes, now: float) -> list[Heard]:
        """Read what the agent wrote."""
        if self._questions is not None:
            self._questions.drawn(now)
        if self._looks and self._look_at is None:
            self._look_at = now + LOOK_AFTER
        if self._pager.output(now) == self._paged:
            return self._feed(data, now)
        # Output in one piece with a pager's end is the pager's, as its first page is.
        heard = self._turn(now) if not self._paged else self._feed(data, now) + self._turn(now)
        self._paged = not self._paged
        return heard + self._feed(data, now) if self._paged else heard

    def _turn(self, now: float) -> list[Heard]:
        """Count the output until here as the words of the program that was in front."""
        heard = self._take(self._screen.tick(now + SETTLED), "screen", now)
        return [*heard, *self._detector.feed(End(SCREEN))]

    def _feed(self, data: bytes, now: float) -> list[Heard]:
        if self._nested is None:
            return self._take(self._screen.feed(data, now), "screen", now)
        heard: list[Heard] = []
        for part, inner in self._nested.split(data):
            if inner != self._inner:
                # The output until here belongs to the program before.
                heard += self._take(self._screen.tick(now + SETTLED), "screen", now)
                self._detector.abandon()
                self._inner, self._inner_lost = inner, None
            heard += self._take(self._screen.feed(part, now), "screen", now)
        return heard

    def resize(self, cols: int, rows: int, now: float) -> list[Heard]:
        """Take the terminal's new size."""
        return self._take(self._screen.resize(cols, rows, now), "screen", now)

    def activity(self, kind: bytes, now: float) -> list[Heard]:
        """The person pressed keys."""
        if self._pager.takes_key(kind, now):
            return []
        if self._questions is not None:
            self._questions.keyed(now)
        return self._take(self._screen.activity(kind, now), "screen", now)

    def hook(self, event: dict[str, Any], now: float) -> list[Heard]:
        """Read a report of the agent's own hook."""
        if self._structured is None:
            return []
        return self._take(self._structured.hook(event, now), "structured")

    def reported(self, events: list[SourceEvent]) -> list[Heard]:
        """Take events that the adapter has read from records itself."""
        return self._take(events, "structured")

    def visible(self) -> list[str]:
        """Return the screen's rows."""
        return self._screen.visible()

    @property
    def pastes(self) -> bool:
        """Whether the program takes pastes now."""
        return self._screen.bracketed_paste

    def tick(self, now: float) -> list[Heard]:
        """Time has passed."""
        heard: list[Heard] = []
        if self._questions is not None:
            self._questions.tick(now)
        due = self._screen.next_deadline()
        if self._paged or (due is not None and now >= due):
            there = self._pager.there(now, gap=0.0)
            if there != self._paged:
                self._paged = True  # text that was not heard yet came with it
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
        """The agent is gone: end all streams."""
        heard: list[Heard] = []
        if self._structured is not None:
            heard += self._take(self._structured.finish(now), "structured")
        heard += self._take(self._screen.finish(now), "screen", now)
        return [*heard, *self._detector.close()]

    def checkpoint(self, extra: dict[str, Any]) -> bytes:
        """The state for the checkpoint, with the caller's parts."""
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
        """The structured source has failed: use the screen from now on."""
        if self._structured is None:
            return []
        return self._take(self._structured.failed(reason), "structured")

    def note(self, reason: str) -> None:
        """Add a note for ``relay status``."""
        if reason not in self.notes:
            self.notes = [*self.notes, reason][-NOTES_MAX:]

    def forget(self, reason: str) -> None:
        """Remove a note, or all that begin so."""
        self.notes = [one for one in self.notes if not one.startswith(reason)]

    def _silence_ends(self) -> float | None:
        """When an open block on the screen counts as unclosed."""
        if not self._detector.is_open(SCREEN):
            return None
        return min(self._screen.changed_at + UNCLOSED_PATIENCE, self._last_line + LINE_PATIENCE)

    def _heard_inside(self, now: float) -> bool:
        """Whether a wrap inside this one hears the screen now."""
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
            # A message that one wrap began to hear the other does not end: it is dropped.
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
            # An open message ends with the person's next words, before anything answers them.
            return self._detector.feed(End(SCREEN))
        return ()

    def _hear_lines(self, stream: str, texts: list[str]) -> list[Heard]:
        """Lines are passed on together, but no detection before its own lines."""
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
