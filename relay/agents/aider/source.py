"""What aider says and does: its words by its LLM history, its state by its terminal. Pure.

An answer is heard when it is complete: aider logs it then. Thinking, files, commands and their
output, the questions that aider asks and what was said before this run are not heard; neither is
the model that turns an architect's plan into edits.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from relay.agents.aider.history import (
    KNOWN_BY,
    LINE_HEAD,
    Answered,
    Asked,
    Carried,
    Foreign,
    History,
    Said,
)
from relay.agents.aider.screen import (
    answered,
    broken_off,
    composer_state,
    ended,
    error,
    question,
)
from relay.agents.base import SourceState, StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, Line, Proof, SourceEvent, StateChange

#: Seconds without another line after which an answer is taken as complete.
SETTLE = 0.1
#: … when the screen does not show that it has ended, or been broken off: it may lag behind.
LAG = 2.0
#: Messages whose arrival is remembered.
PROVEN_MAX = 256
#: How often the file and the terminal are worth a look: while an answer settles, busy, at rest.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.05, 0.1, 0.5
#: After an error of the API the next try is worth it after so many seconds; after a limit, so many.
ERROR_RETRY, LIMIT_RETRY = 30.0, 300.0

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


class AiderSource(StructuredSource):
    """One aider, as it is heard. ``hears``: whether it was told to log its conversation. ``mark``:
    what tells its requests from those of others in the same file."""

    def __init__(self, *, hears: bool = True, mark: str = "") -> None:
        super().__init__(SourceState())
        self.saved.failed = not hears
        self._shared = False  # another aider's words stand in its file
        self._history = History(mark)
        self._reason = ""
        self._count = 0  # answers so far: the streams' names
        self._answer: list[str] | None = None  # an answer that may not be complete yet
        self._ignored = False  # … and is not for us
        self._joining = False  # … and goes on in the middle of a line
        self._since = 0.0  # when its last line came
        self._asked = 0  # requests so far
        self._trouble = False  # the last answer was empty: an error, or Ctrl-C
        self._proven: deque[str] = deque(maxlen=PROVEN_MAX)
        self._prompting = False
        self._rows: list[str] = []

    # -- what the session asks ----------------------------------------------------------------

    def seen(self, marker: str) -> bool:
        """Whether a text with ``marker`` in its first line has demonstrably reached the model."""
        return any(marker in text for text in self._proven)

    @property
    def resting(self) -> bool:
        """Whether aider waits at its prompt and everything that it said was heard."""
        return self._prompting and self._answer is None

    def poll_interval(self) -> float:
        """In how many seconds the history and the terminal should be looked at again."""
        if self._answer is not None:
            return POLL_URGENT
        return POLL_IDLE if self.saved.state in (AgentState.IDLE, AgentState.LIMITED) else POLL_BUSY

    def failed(self, reason: str) -> list[SourceEvent]:
        """Nothing can be heard here: the screen stands in."""
        if self.saved.failed:
            return []
        self.saved.failed = True
        return [Degraded(reason)]

    # -- the history --------------------------------------------------------------------------

    def lines(self, lines: list[str], now: float) -> list[SourceEvent]:
        """The lines of the LLM history that were read in one piece."""
        events: list[SourceEvent] = []
        for record in self._history.feed(lines):
            self._since = now
            if isinstance(record, Said):
                self._said(record.text)
            elif isinstance(record, Carried):
                events += self._carried(record.text)
            elif isinstance(record, Asked):
                events += self._request()
            elif isinstance(record, Foreign):
                self._shared = True
                events += self.failed(
                    "another aider writes into the same LLM history: its screen is read"
                )
            else:
                events += self._begin(record)
        return events

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """One line of the LLM history."""
        return self.lines([line], now)

    def _said(self, text: str) -> None:
        if self._answer is None:
            return
        if self._joining and self._answer:
            # It was cut in the middle of a line.
            self._answer[-1] += text
        else:
            self._answer.append(text)
        self._joining = False

    def _request(self) -> list[SourceEvent]:
        self.saved.failed = self._shared  # it is written after all
        self._asked += 1
        said = "\n".join(_without_thoughts(self._answer or [])).strip().split("\n")
        if self._answer is not None:
            self._history.last = [line.rstrip()[:LINE_HEAD] for line in said[:KNOWN_BY]]
        # While the model does not answer aider asks it again and again.
        return [] if self.saved.state is AgentState.LIMITED else self._change(AgentState.BUSY)

    def _carried(self, text: str) -> list[SourceEvent]:
        if text in self._proven:
            return []  # each request holds the whole conversation
        self._proven.append(text)
        return [Proof(text, "transcript")]

    def _begin(self, record: Answered) -> list[SourceEvent]:
        self._joining = record.continues and bool(self._answer)
        if self._joining:
            return []
        events = self._complete(aborted=not record.whole)
        self._answer, self._ignored = [], record.for_editor
        return events

    def _complete(self, *, aborted: bool) -> list[SourceEvent]:
        """The answer is over: its words, and where they end."""
        if self._answer is None:
            return []
        lines, self._answer = _without_thoughts(self._answer), None
        self._trouble = not lines
        said = "\n".join(lines).strip().split("\n")
        self._history.last = [line.rstrip()[:LINE_HEAD] for line in said[:KNOWN_BY]]
        if not lines:
            return []
        limited = self.saved.state is AgentState.LIMITED
        events: list[SourceEvent] = self._change(AgentState.BUSY) if limited else []
        if self._ignored:
            return events
        self._count += 1
        stream = f"aider:{self._count}"
        return [*events, *(Line(stream, line) for line in lines), End(stream, aborted)]

    # -- the terminal -------------------------------------------------------------------------

    def terminal(self, away: bool, rows: list[str], now: float) -> list[SourceEvent]:
        """How the terminal is now, after the history was read.

        ``away``: aider does not read what is typed.
        """
        state = "busy" if away else composer_state(rows)
        self._rows, self._prompting = rows, state in ("empty", "draft")
        events: list[SourceEvent] = []
        # The terminal's mode and the history are ahead of the screen, which alone tells of Ctrl-C.
        shown = ended(rows, prompting=self._prompting)
        if self._answer is not None and now - self._since >= (SETTLE if shown else LAG):
            events += self._complete(aborted=self._broken())
            if self._trouble:
                events += self._error()
        if state == "dialog":
            return events + self._change(AgentState.BLOCKED, f"aider asks: {question(rows)}")
        if state == "busy":
            resting = self.saved.state in (AgentState.STARTING, AgentState.LIMITED)
            return events if resting else events + self._change(AgentState.BUSY)
        events += self._deaf()
        if self.saved.state is not AgentState.LIMITED and self._answer is None:
            events += self._change(AgentState.IDLE)
        return events

    def _broken(self) -> bool:
        return broken_off(self._rows, prompting=self._prompting)

    def _error(self) -> list[SourceEvent]:
        """The request brought nothing: why, as far as the screen tells."""
        self._trouble = False
        name = error(self._rows, prompting=self._prompting)
        if not name or name in _THIS_TURN_ONLY:
            return []
        reason = _LIMITS.get(name) or f"the API answers with an error ({name})"
        self.saved.state, self._reason = AgentState.LIMITED, reason
        retry = LIMIT_RETRY if name in _LIMITS else ERROR_RETRY
        return [StateChange(AgentState.LIMITED, reason, retry)]

    def _deaf(self) -> list[SourceEvent]:
        if self._asked or self.saved.failed or not answered(self._rows):
            return []
        return self.failed(
            "aider does not write the LLM history that it was given: its screen is read"
        )

    # -- what is not needed here --------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """aider has no hooks."""
        return []

    def tick(self, now: float) -> list[SourceEvent]:
        """Time passes in :meth:`terminal`."""
        return []

    def next_deadline(self) -> float | None:
        return None

    # -- the end, and a restart ---------------------------------------------------------------

    def finish(self, now: float) -> list[SourceEvent]:
        """aider has ended: nothing more will come."""
        return [*self._complete(aborted=self._broken()), *self._change(AgentState.GONE)]

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "failed": self.saved.failed,
            "shared": self._shared,
            "history": self._history.state(),
            "state": self.saved.state.value,
            "count": self._count,
            "answer": self._answer,
            "ignored": self._ignored,
            "joining": self._joining,
            "asked": self._asked,
            "proven": list(self._proven),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.saved.failed, self._shared = state["failed"], state["shared"]
        self._history.restore(state["history"])
        self.saved.state = AgentState(state["state"])
        self._count, self._answer = state["count"], state["answer"]
        self._ignored, self._joining = state["ignored"], state["joining"]
        self._asked = state["asked"]
        self._proven.extend(state["proven"])

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
