"""What Gemini CLI says and does, from its session file, its title and its screen. No I/O, no clock.

The session file has each of the model's messages when it is complete, the prompts that went to the
model, and why a turn failed. It does not say when a turn is over or a dialog is open: the terminal
title does, and where that is turned off, the screen. Thinking, tool calls, tool output, what the
program itself says and what was said before this run are never heard.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Any

from relay.agents.base import StructuredSource
from relay.agents.gemini.records import Record, parse
from relay.agents.gemini.screen import Doing, composer_state, doing, prompts, question
from relay.core.bounded import RecentSet
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, Line, Proof, SourceEvent, StateChange

#: Records whose words were heard, by their ids. A conversation that is read anew has all of them.
HEARD_MAX = 4096
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
#: After an error of the API the next try is worth it after so many seconds; after a limit, so many.
ERROR_RETRY, LIMIT_RETRY = 30.0, 300.0
#: Characters of the API's own words in a reason.
REASON_MAX = 160

_MARKER = re.compile(r"Relay (?:message|notice) (\[[^\[\]\s]{1,16}\])")
_API_ERROR = re.compile(r"^\[?API Error:?\s*(.*?)\]?(?:\n|\Z)")
_STATED = re.compile(r'"message":\s*"((?:[^"\\]|\\.)+)"')
_THIS_REQUEST_ONLY = re.compile(r"INVALID_ARGUMENT|\b400\b")
_LIMITED = re.compile(r"quota|usage limit|rate.?limit|RESOURCE_EXHAUSTED|\b429\b", re.IGNORECASE)
_REFUSED = re.compile(
    r"API key|UNAUTHENTICATED|PERMISSION_DENIED|\b40[13]\b|sign.?in", re.IGNORECASE
)


class GeminiSource(StructuredSource):
    """One Gemini CLI process, as it is heard.

    ``started`` is when it was started, in seconds since the epoch: older records of a resumed
    conversation are history.
    """

    reads_screen = True

    def __init__(self, started: float) -> None:
        super().__init__()
        self._started = int(started * 1000) / 1000  # the session file counts in milliseconds
        self._heard: RecentSet[str] = RecentSet(HEARD_MAX)
        self._markers: RecentSet[str] = RecentSet(MARKERS_MAX)
        self._recent: deque[str] = deque(maxlen=SHOWN_MAX)
        self._records = 0  # in the present turn
        self._silent_turns = 0
        self._quick = 0
        self._shows: Doing = "unknown"
        self.drawn = False  # its input line has been seen: this screen is known
        self._rested = True  # since the last error of the API
        #: Called when there may be something in the session file.
        self.wake: Callable[[], None] = lambda: None
        self.path: str | None = None
        #: The first rows of prompts that were seen on this screen, without white space.
        self.shown: deque[str] = deque(maxlen=SHOWN_MAX)
        self.shown_at: float | None = None

    # -- what the session asks ----------------------------------------------------------------

    def seen(self, marker: str) -> bool:
        """Whether a text that holds ``marker`` has demonstrably gone to the model."""
        return marker in self._markers

    def knows(self, prompt: str) -> bool:
        """Whether this prompt stands in the session file that is read already."""
        return prompt[:PROMPT_HEAD] in self._recent

    @property
    def transcript_path(self) -> str | None:
        return self.path

    def poll_interval(self) -> float:
        """In how many seconds the session file should be looked at again."""
        if self._state is AgentState.BUSY:
            self._quick = QUICK_LOOKS
        elif self._quick:
            self._quick -= 1
        return POLL_BUSY if self._quick else POLL_IDLE

    def failed(self, reason: str) -> list[SourceEvent]:
        """Nothing can be heard here (no session file): the screen stands in."""
        if self._failed:
            return []
        self._failed = True
        return [Degraded(reason)]

    # -- the session file ---------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """One complete line of the session file, in the order of the file."""
        record = parse(line)
        if record is None or record.time < self._started:
            return []
        self._records += 1
        self._silent_turns = 0
        if record.kind == "said":
            return self._said(record)
        if record.kind == "prompt":
            return self._prompt(record)
        if record.kind == "note":
            return self._note(record)
        return []

    def _said(self, record: Record) -> list[SourceEvent]:
        if record.id in self._heard:
            return []
        self._heard.add(record.id)
        lines = [Line(record.id, text.rstrip("\r")) for text in record.text.split("\n")]
        return [*self._answers(), *lines, End(record.id)]

    def _answers(self) -> list[SourceEvent]:
        """The model has spoken: what kept it from that is over."""
        if self._state is not AgentState.LIMITED:
            return []
        return self._change(AgentState.BUSY if self._shows == "busy" else AgentState.IDLE)

    def _prompt(self, record: Record) -> list[SourceEvent]:
        if record.id in self._heard:
            return []
        self._heard.add(record.id)
        self._recent.append(record.text[:PROMPT_HEAD])
        self._rested = True
        for marker in _MARKER.findall(record.text):
            self._markers.add(marker)
        return [Proof(record.text, "transcript")]

    def _note(self, record: Record) -> list[SourceEvent]:
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
        self._state, self._rested = AgentState.LIMITED, False
        return [StateChange(AgentState.LIMITED, reason, retry)]

    # -- the terminal -------------------------------------------------------------------------

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """The terminal shows these rows and this title now."""
        for prompt in prompts(rows):
            if prompt not in self.shown:
                self.shown.append(prompt)
                self.shown_at = now
        found = self._shows = doing(title, rows)
        self.drawn = self.drawn or composer_state(rows) in ("empty", "draft")
        covered = found == "unknown" and self.drawn and self._state is AgentState.IDLE
        if found == "blocked" or covered:
            return self._change(AgentState.BLOCKED, question(rows))
        if found == "busy":
            if self._state is AgentState.LIMITED and not self._rested:
                return []  # what is shown is older than the error
            if self._state is not AgentState.BUSY and self._state is not AgentState.BLOCKED:
                self._records = 0
            return self._change(AgentState.BUSY)
        if found == "idle" and self._state is AgentState.LIMITED:
            self._rested = True
        elif found == "idle":
            over = self._turn_over() if self._state is AgentState.BUSY else []
            return over + self._change(AgentState.IDLE)
        return []

    def _turn_over(self) -> list[SourceEvent]:
        """A turn without a trace in the session file: is another one written?"""
        if self._records or self.path is None:
            return []
        self._silent_turns += 1
        if self._silent_turns < SILENT_TURNS:
            return []
        return self.failed(
            "Gemini CLI has stopped writing its session file: it is heard by its screen"
        )

    # -- what it has not ----------------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """No hooks are put in."""
        return []

    def tick(self, now: float) -> list[SourceEvent]:
        """Nothing is due by time."""
        return []

    def next_deadline(self) -> float | None:
        """See :meth:`tick`."""
        return None

    def finish(self, now: float) -> list[SourceEvent]:
        """Gemini CLI has ended: nothing more will come."""
        return self._change(AgentState.GONE)

    # -- for a restart ------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "state": self._state.value,
            "failed": self._failed,
            "heard": list(self._heard),
            "markers": list(self._markers),
            "recent": list(self._recent),
            "shown": list(self.shown),
            "records": self._records,
            "silent": self._silent_turns,
            "path": self.path,
            "drawn": self.drawn,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._state, self._failed = AgentState(state["state"]), state["failed"]
        self._heard = RecentSet(HEARD_MAX, state["heard"])
        self._markers = RecentSet(MARKERS_MAX, state["markers"])
        self._recent.extend(state["recent"])
        self.shown.extend(state["shown"])
        self._records, self._silent_turns = state["records"], state["silent"]
        self.path, self.drawn = state["path"], state["drawn"]

    # -- helpers ------------------------------------------------------------------------------

    def _change(
        self, state: AgentState, reason: str = "", retry: float | None = None
    ) -> list[SourceEvent]:
        if state is self._state:
            return []
        self._state = state
        self.wake()
        return [StateChange(state, reason, retry)]
