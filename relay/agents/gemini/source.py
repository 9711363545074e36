"""The structured source of Gemini CLI: session file, title and screen. No I/O, no clock.

The session file has each of the model's messages when it is complete, the prompts that went to the
model, and why a turn failed. It does not say when a turn is over or a dialog is open: the terminal
title does, and where that is turned off, the screen. Thinking, tool calls, tool output, what the
program itself says and what was said before this run never come out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from relay.agents.gemini.screen import Doing, doing, prompts, question
from relay.agents.gemini.session_file import SessionRecord, parse
from relay.agents.profile import Profile
from relay.agents.structured_source import (
    ERROR_RETRY,
    LIMIT_RETRY,
    SourceState,
    StructuredSource,
    markers_in,
)
from relay.core.bounded import RecentSet
from relay.core.message import AgentState
from relay.core.source_events import End, Line, Proof, SourceEvent, StateChange

#: Records whose words were told, by their ids. A conversation that is read anew has all of them.
SAID_MAX = 4096
#: Prompts that are remembered by the markers in them.
MARKERS_MAX = 1024
#: Prompts that are remembered as they were shown, or as they went to the model.
SHOWN_MAX = 64
PROMPT_HEAD = 200
#: How often the session file is worth a look, in seconds: while a message may end, and at rest.
POLL_BUSY, POLL_IDLE = 0.1, 1.0
#: So many looks after the end of a turn are as quick as before it.
QUICK_LOOKS = 20
#: Turns without any record in the session file after which it is no longer believed.
SILENT_TURNS = 2
#: Characters of the API's own words in a reason.
REASON_MAX = 160

_API_ERROR = re.compile(r"^\[?API Error:?\s*(.*?)\]?(?:\n|\Z)")
_STATED = re.compile(r'"message":\s*"((?:[^"\\]|\\.)+)"')
_THIS_REQUEST_ONLY = re.compile(r"INVALID_ARGUMENT|\b400\b")
_LIMITED = re.compile(r"quota|usage limit|rate.?limit|RESOURCE_EXHAUSTED|\b429\b", re.IGNORECASE)
_REFUSED = re.compile(
    r"API key|UNAUTHENTICATED|PERMISSION_DENIED|\b40[13]\b|sign.?in", re.IGNORECASE
)


@dataclass(slots=True)
class GeminiState(SourceState):
    """The checkpoint of Gemini CLI's source."""

    #: Records whose words were told, by their ids.
    said: RecentSet[str] = field(default_factory=lambda: RecentSet(SAID_MAX))
    #: Markers of the messages that went to the model, and the beginnings of the last prompts.
    markers: RecentSet[str] = field(default_factory=lambda: RecentSet(MARKERS_MAX))
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_MAX))
    #: The first rows of prompts that were seen on this screen, without white space.
    shown: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_MAX))
    #: Records in the present turn, and turns in a row that had none.
    records: int = 0
    silent_turns: int = 0
    #: The session file, and the id that it gives.
    path: str | None = None
    session: str = ""
    #: Its input line has been seen: this screen is known.
    drawn: bool = False


class GeminiSource(StructuredSource):
    """One Gemini CLI process.

    ``started`` is when it was started, in seconds since the epoch: older records of a resumed
    conversation are history. ``wake`` is called when there may be something in the session file.
    """

    saved: GeminiState
    reads_screen = infers_turns = True

    def __init__(
        self, started: float, wake: Callable[[], None], profile: Profile | None = None
    ) -> None:
        super().__init__(GeminiState(), profile)
        self._wake = wake
        self._started = int(started * 1000) / 1000  # the session file counts in milliseconds
        self._quick = 0
        self._shows: Doing = "unknown"
        self._rested = True  # since the last error of the API
        #: When another prompt was seen on the screen.
        self.shown_at: float | None = None

    # -- what the session asks ----------------------------------------------------------------

    def seen(self, marker: str) -> bool:
        return marker in self.saved.markers

    def knows(self, prompt: str) -> bool:
        """Whether this prompt stands in the session file that is read already."""
        return prompt[:PROMPT_HEAD] in self.saved.recent

    @property
    def transcript_path(self) -> str | None:
        return self.saved.path

    @property
    def conversation(self) -> str:
        return self.saved.session

    def poll_interval(self) -> float:
        if self.saved.state is AgentState.BUSY:
            self._quick = QUICK_LOOKS
        elif self._quick:
            self._quick -= 1
        return POLL_BUSY if self._quick else POLL_IDLE

    # -- the session file ---------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        record = parse(line)
        if record is None or record.time < self._started:
            return []
        self.saved.records += 1
        self.saved.silent_turns = 0
        self.saved.usage.add(record.id, record.model, record.tokens)
        if record.kind == "said":
            return self._said(record)
        if record.kind == "prompt":
            return self._prompt(record)
        if record.kind == "note":
            return self._error(record)
        return []

    def _said(self, record: SessionRecord) -> list[SourceEvent]:
        if record.id in self.saved.said:
            return []
        self.saved.said.add(record.id)
        self.saved.model = record.model or self.saved.model
        lines = [Line(record.id, text.rstrip("\r")) for text in record.text.split("\n")]
        return [*self._answers(), *lines, End(record.id)]

    def _answers(self) -> list[SourceEvent]:
        """The model has spoken: what kept it from that is over."""
        if self.saved.state is not AgentState.LIMITED:
            return []
        return self._change(AgentState.BUSY if self._shows == "busy" else AgentState.IDLE)

    def _prompt(self, record: SessionRecord) -> list[SourceEvent]:
        if record.id in self.saved.said:
            return []
        self.saved.said.add(record.id)
        self.saved.recent.append(record.text[:PROMPT_HEAD])
        self._rested = True
        for marker in markers_in(record.text):
            self.saved.markers.add(marker)
        return [Proof(record.text, "transcript")]

    def _error(self, record: SessionRecord) -> list[SourceEvent]:
        """An error of the API ends a turn; its words say whether another try is any use."""
        error = _API_ERROR.search(record.text) if record.level == "error" else None
        if error is None:
            return []
        whole = error[1]
        stated = _STATED.search(whole)
        words = " ".join((stated[1] if stated else whole).split())[:REASON_MAX]
        if _LIMITED.search(whole):
            reason, retry = f"a usage limit is reached: {words}", LIMIT_RETRY
        elif _REFUSED.search(whole):
            reason, retry = f"the API refuses: {words}", LIMIT_RETRY
        elif _THIS_REQUEST_ONLY.search(whole):
            return []
        else:
            reason, retry = f"the API answers with an error: {words}", ERROR_RETRY
        self.saved.state, self._rested = AgentState.LIMITED, False
        return [StateChange(AgentState.LIMITED, reason, retry)]

    # -- the terminal -------------------------------------------------------------------------

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """Look what Gemini CLI does, and which prompts were sent."""
        for prompt in prompts(rows):
            if prompt not in self.saved.shown:
                self.saved.shown.append(prompt)
                self.shown_at = now
        found = self._shows = doing(title, rows, self.profile)
        self.saved.drawn = self.saved.drawn or self.profile.composer(rows) in ("empty", "draft")
        covered = found == "unknown" and self.saved.drawn and self.saved.state is AgentState.IDLE
        if found == "blocked" or covered:
            return self._change(AgentState.BLOCKED, question(rows))
        if found == "busy":
            if self.saved.state is AgentState.LIMITED and not self._rested:
                return []  # what is shown is older than the error
            if (
                self.saved.state is not AgentState.BUSY
                and self.saved.state is not AgentState.BLOCKED
            ):
                self.saved.records = 0
            return self._change(AgentState.BUSY)
        if found == "idle" and self.saved.state is AgentState.LIMITED:
            self._rested = True
        elif found == "idle":
            over = self._turn_over() if self.saved.state is AgentState.BUSY else []
            return over + self._change(AgentState.IDLE)
        return []

    def _turn_over(self) -> list[SourceEvent]:
        """A turn without a trace in the session file: is another one written?"""
        if self.saved.records or self.saved.path is None:
            return []
        self.saved.silent_turns += 1
        if self.saved.silent_turns < SILENT_TURNS:
            return []
        return self.failed(
            "Gemini CLI has stopped writing its session file: it is heard by its screen"
        )

    def _change(
        self, state: AgentState, reason: str = "", retry: float | None = None
    ) -> list[SourceEvent]:
        if state is not self.saved.state:
            self._wake()
        return super()._change(state, reason, retry)
