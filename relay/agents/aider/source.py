"""What aider says and does: its words by its LLM history, its state by its terminal. Pure.

An answer comes out when it is complete: aider logs it then. Thinking, files, commands and their
output, the questions that aider asks and what was said before this run never do; neither do the
words of the model that turns an architect's plan into edits.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from relay.agents.aider import screen
from relay.agents.aider.history import (
    KNOWN_BY,
    LINE_HEAD,
    Answered,
    Carried,
    Foreign,
    History,
    Requested,
    Said,
)
from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import End, Line, Proof, SourceEvent, StateChange

#: Seconds without another line after which an answer is taken as complete.
SETTLE = 0.1
#: Seconds when the screen does not show that it has ended, or been broken off: it may lag behind.
LAG = 2.0
#: Messages whose arrival is remembered.
PROVEN_MAX = 256
#: Seconds between two looks at file and terminal: while an answer settles, busy, at rest.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.05, 0.1, 0.5

_LIMITS = {
    "RateLimitError": "a usage limit is reached",
    "RouterRateLimitError": "a usage limit is reached",
    "BudgetExceededError": "the budget is used up",
    "AuthenticationError": "the API key is refused",
    "PermissionDeniedError": "the API key is refused",
    "NotFoundError": "there is no such model",
}
#: Errors that say something of one request, not of the next.
_THIS_TURN_ONLY = frozenset(
    {
        "BadRequestError",
        "ContentPolicyViolationError",
        "ContextWindowExceededError",
        "ImageFetchError",
        "InvalidRequestError",
        "JSONSchemaValidationError",
        "UnprocessableEntityError",
        "UnsupportedParamsError",
    }
)
_TAG = r"(?:thinking-content-[0-9a-f]{32}|think(?:ing)?|thought|reason(?:ing)?)"
_THOUGHT = re.compile(rf"\s*<{_TAG}>.*?(?:</{_TAG}>|\Z)", re.DOTALL)
_CLOSED = re.compile(rf"\A.*?^\s*</{_TAG}>[ \t]*$", re.DOTALL | re.MULTILINE)


@dataclass(slots=True)
class AiderState(SourceState):
    """What aider's checkpoint holds."""

    history: History = field(default_factory=History)
    shared: bool = False  # another aider's words stand in its file
    count: int = 0  # answers so far: the streams' names
    answer: list[str] | None = None  # an answer that may not be complete yet
    ignored: bool = False  # … and is not for us
    joining: bool = False  # … and goes on in the middle of a line
    asked: int = 0  # requests so far
    #: First lines of messages whose arrival is remembered.
    proven: deque[str] = field(default_factory=lambda: deque(maxlen=PROVEN_MAX))


class AiderSource(StructuredSource):
    """Makes events of one aider's log and screen."""

    saved: AiderState
    infers_turns = True

    def __init__(self, *, hears: bool = True, mark: str = "") -> None:
        """``hears``: it was told to log its conversation; ``mark`` as in ``History``."""
        super().__init__(AiderState(failed=not hears, history=History(mark)))
        self._mark = mark
        self._reason = ""
        self._since = 0.0  # when the last line of the answer came
        self._trouble = False  # the last answer was empty: an error, or Ctrl-C
        self._prompting = False
        self._rows: list[str] = []

    # -- what the session asks ----------------------------------------------------------------

    def seen(self, marker: str) -> bool:
        return any(marker in text for text in self.saved.proven)

    @property
    def resting(self) -> bool:
        """Whether aider waits at its prompt and everything that it said was heard."""
        return self._prompting and self.saved.answer is None

    def poll_interval(self) -> float:
        if self.saved.answer is not None:
            return POLL_URGENT
        return POLL_IDLE if self.saved.state in (AgentState.IDLE, AgentState.LIMITED) else POLL_BUSY

    # -- the history --------------------------------------------------------------------------

    def lines(self, lines: list[str], now: float) -> list[SourceEvent]:
        """Take the lines of the LLM history that were read in one piece."""
        events: list[SourceEvent] = []
        for record in self.saved.history.feed(lines):
            self._since = now
            if isinstance(record, Said):
                self._said(record.text)
            elif isinstance(record, Carried):
                events += self._carried(record.text)
            elif isinstance(record, Requested):
                events += self._request()
            elif isinstance(record, Foreign):
                self.saved.shared = True
                events += self.failed(
                    "another aider writes into the same LLM history: its screen is read"
                )
            else:
                events += self._begin(record)
        return events

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """Take one line of the LLM history."""
        return self.lines([line], now)

    def _said(self, text: str) -> None:
        if self.saved.answer is None:
            return
        if self.saved.joining and self.saved.answer:
            # It was cut in the middle of a line.
            self.saved.answer[-1] += text
        else:
            self.saved.answer.append(text)
        self.saved.joining = False

    def _request(self) -> list[SourceEvent]:
        self.saved.failed = self.saved.shared  # it is written after all
        self.saved.asked += 1
        said = "\n".join(_without_thoughts(self.saved.answer or [])).strip().split("\n")
        if self.saved.answer is not None:
            self.saved.history.last = [line.rstrip()[:LINE_HEAD] for line in said[:KNOWN_BY]]
        # While the model does not answer aider asks it again and again.
        return [] if self.saved.state is AgentState.LIMITED else self._change(AgentState.BUSY)

    def _carried(self, text: str) -> list[SourceEvent]:
        if text in self.saved.proven:
            return []  # each request holds the whole conversation
        self.saved.proven.append(text)
        return [Proof(text, "transcript")]

    def _begin(self, record: Answered) -> list[SourceEvent]:
        self.saved.joining = record.continues and bool(self.saved.answer)
        if self.saved.joining:
            return []
        events = self._complete(aborted=not record.whole)
        self.saved.answer, self.saved.ignored = [], record.for_editor
        return events

    def _complete(self, *, aborted: bool) -> list[SourceEvent]:
        """End the answer: give its words, and where they end."""
        if self.saved.answer is None:
            return []
        lines, self.saved.answer = _without_thoughts(self.saved.answer), None
        self._trouble = not lines
        said = "\n".join(lines).strip().split("\n")
        self.saved.history.last = [line.rstrip()[:LINE_HEAD] for line in said[:KNOWN_BY]]
        if not lines:
            return []
        limited = self.saved.state is AgentState.LIMITED
        events: list[SourceEvent] = self._change(AgentState.BUSY) if limited else []
        if self.saved.ignored:
            return events
        self.saved.count += 1
        stream = f"aider:{self.saved.count}"
        return [*events, *(Line(stream, line) for line in lines), End(stream, aborted)]

    # -- the terminal -------------------------------------------------------------------------

    def terminal(self, away: bool, rows: list[str], now: float) -> list[SourceEvent]:
        """Take the state of the terminal, after the history was read.

        ``away``: aider does not read what is typed.
        """
        state = "busy" if away else screen.composer_state(rows)
        self._rows, self._prompting = rows, state in ("empty", "draft")
        events: list[SourceEvent] = []
        # The terminal's mode and the history are ahead of the screen, which alone tells of Ctrl-C.
        shown = screen.ended(rows, prompting=self._prompting)
        if self.saved.answer is not None and now - self._since >= (SETTLE if shown else LAG):
            events += self._complete(aborted=self._broken())
            if self._trouble:
                events += self._error()
        if state == "dialog":
            return events + self._change(AgentState.BLOCKED, f"aider asks: {screen.question(rows)}")
        if state == "busy":
            resting = self.saved.state in (AgentState.STARTING, AgentState.LIMITED)
            return events if resting else events + self._change(AgentState.BUSY)
        events += self._deaf()
        if self.saved.state is not AgentState.LIMITED and self.saved.answer is None:
            events += self._change(AgentState.IDLE)
        return events

    def _broken(self) -> bool:
        return screen.broken_off(self._rows, prompting=self._prompting)

    def _error(self) -> list[SourceEvent]:
        """Tell why a request brought nothing, as far as the screen shows it."""
        self._trouble = False
        name = screen.error(self._rows, prompting=self._prompting)
        if not name or name in _THIS_TURN_ONLY:
            return []
        self._reason = ""
        return self._limited(_LIMITS.get(name), name)

    def _deaf(self) -> list[SourceEvent]:
        if self.saved.asked or self.saved.failed or not screen.answered(self._rows):
            return []
        return self.failed(
            "aider does not write the LLM history that it was given: its screen is read"
        )

    # -- the end, and a restart ---------------------------------------------------------------

    def finish(self, now: float) -> list[SourceEvent]:
        return [*self._complete(aborted=self._broken()), *self._change(AgentState.GONE)]

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.saved.history.mark = self._mark

    def _change(
        self, state: AgentState, reason: str = "", retry: float | None = None
    ) -> list[SourceEvent]:
        if state is self.saved.state and reason == self._reason:
            return []
        self.saved.state, self._reason = state, reason
        return [StateChange(state, reason, retry)]


def _without_thoughts(lines: list[str]) -> list[str]:
    """The answer without what the model thought; empty when there is nothing else in it."""
    text = "\n".join(lines)
    if "<" in text:
        text = _CLOSED.sub("", _THOUGHT.sub("", text, count=1) if _THOUGHT.match(text) else text)
    return text.split("\n") if text.strip() else []
