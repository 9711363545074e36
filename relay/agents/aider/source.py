"""What aider says and does: its words by its LLM history, its state by its terminal. Pure.

The history, line by line::

    TO LLM 2026-01-31T12:00:00
    -------
    SYSTEM Act as an expert …
    -------
    USER the message
    LLM RESPONSE 2026-01-31T12:00:03
    ASSISTANT the answer

Each record is written in one go: the request before it is sent, the answer when it is over (also
when it was broken off). Every line of a message begins with its role, so that no word of it can be
taken for the head of a record. Only messages in parts (images, prompt caching) stand there as they
are: in such a request only a head that begins a new piece of the file is one.

The screen is never heard; it shows the prompt and how the turn before ended. Above each prompt
stands a rule (without colours: an empty row), and the files of the chat::

    ────────────────────────────
    Readonly: notes.md
    ask> what the person types

What was submitted stays where it stands, and what comes of it follows. So only a terminal in raw
mode, with a prompt as the last thing on its screen, waits for a message: a question that aider
asks (``(Y)es/(N)o [Yes]:``) is raw too, and Enter would answer it.

An answer comes out when it is complete: aider logs it then. Thinking, files, commands and their
output, the questions that aider asks and what was said before this run never do; neither do the
words of the model that turns an architect's plan into edits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from relay.agents.profile import ComposerState
from relay.agents.structured_source import SourceState, StructuredSource, api_error
from relay.core.message import AgentState
from relay.core.source_events import End, LimitCause, Line, Proof, SourceEvent, StateChange

_HEAD = re.compile(r"(TO LLM|LLM RESPONSE) \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
_PREFIXED = re.compile(r"(?:SYSTEM|USER|ASSISTANT|TOOL|FUNCTION|DEVELOPER)(?: |$)|-------$")
_PARTS = re.compile(r"(?:SYSTEM|USER|ASSISTANT) (?:type: |text: |Image_url URL: )")
_MESSAGE = re.compile(r"Relay (?:message|notice) \[")
_STOPPED = "^C KeyboardInterrupt"
#: Characters of one line of a request that are kept.
LINE_HEAD = 400
#: Lines by which a message is recognised when it comes back.
KNOWN_BY = 8
#: Lines of one answer; what is longer is cut off there.
ANSWER_MAX = 200_000


@dataclass(frozen=True, slots=True)
class Requested:
    """A request begins: whatever was answered before it is over."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """The request before was another aider's, which writes into the same file."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A line of a request, by its beginning, that carries a message of relay's."""

    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer begins."""

    continues: bool  # it goes on where the answer before was cut off: the model was asked to
    for_editor: bool  # another model turns the answer before into edits
    whole: bool  # the request shows that the answer before had come to its end


@dataclass(frozen=True, slots=True)
class Said:
    """A line of the answer, as the model wrote it."""

    text: str


Record = Requested | Foreign | Carried | Answered | Said


@dataclass(slots=True)
class History:
    """Takes the file's lines in the pieces in which they were read. Its fields are its checkpoint.

    ``last`` is the reader's to set: the first lines of what the model answered last.
    """

    mark: str = ""  # stands in each request of our own aider's; empty where no other writes
    marked: bool = False  # it stands in this request
    inside: str = ""  # "request", "answer" or nothing
    parts: bool = False  # this request holds lines that may look like anything
    role: str = ""  # of the last line of the request
    message: list[str] = field(default_factory=list)  # the first lines of its last message
    remembers: bool = False  # the request holds the last answer as the model's own
    stopped: bool = False  # … and that the person broke it off
    last: list[str] = field(default_factory=list)
    lines: int = 0  # of the answer

    def feed(self, lines: list[str]) -> Iterator[Record]:
        """Tell what these lines say, in their order; ``last`` is looked at again after each."""
        for at, line in enumerate(lines):
            head = _HEAD.fullmatch(line)
            if head and not (self.parts and at):
                if self.mark and self.inside == "request" and not self.marked:
                    yield Foreign()
                yield self._begin(head[1])
            elif self.inside == "request":
                yield from self._asked(line)
            elif self.inside == "answer" and line.startswith("ASSISTANT"):
                self.lines += 1
                if self.lines <= ANSWER_MAX:
                    yield Said(line.removeprefix("ASSISTANT").removeprefix(" "))

    def _begin(self, head: str) -> Record:
        if head == "TO LLM":
            self.inside, self.parts, self.role, self.message = "request", False, "", []
            self.remembers = self.stopped = self.marked = False
            return Requested()
        editor = self._repeats_last() and not self.remembers
        # In parts nothing can be recognised; the screen has been looked at long before.
        whole = editor or self.parts or (self.remembers and not self.stopped)
        self.inside, self.parts, self.lines = "answer", False, 0
        return Answered(self.role == "ASSISTANT", editor, whole)

    def _asked(self, line: str) -> Iterator[Record]:
        if line == "-------":
            self.remembers |= self.role == "ASSISTANT" and self._repeats_last()
            self.message = []
            return
        self.marked |= self.mark in line
        prefixed = _PREFIXED.match(line)
        if not prefixed or _PARTS.match(line):
            self.parts = True
        role, _, text = line.partition(" ")
        if prefixed:
            self.role = role
        if not self.message and self.remembers and text.startswith(_STOPPED):
            self.stopped = True
        if len(self.message) < KNOWN_BY:
            self.message.append(text.rstrip()[:LINE_HEAD])
        found = _MESSAGE.search(line) if self.role != "ASSISTANT" else None
        if found:
            yield Carried(line[found.start() :][:LINE_HEAD])

    def _repeats_last(self) -> bool:
        return bool(self.last) and self.message[: len(self.last)] == self.last


_FORMATS = (
    "architect|ask|code|context|diff-fenced|diff|editor-diff-fenced|editor-diff|editor-whole|func"
    "|help|patch|udiff-simple|udiff|whole"
)
_PROMPT = re.compile(rf"(?:{_FORMATS})?(?:(?:^| )multi)?>(?: |$)")
_MULTI = re.compile(rf"(?:(?:{_FORMATS}) )?multi>")
_RULE = re.compile(r"─{8,}$")
_QUESTION = re.compile(r"\(Y\)es/\(N\)o.{0,60}\[[^\[\]]{1,20}\]:")
#: A turn that was broken off, by the person or by the model's server, or cut at its end.
_BROKEN = re.compile(
    r"\^C (?:again to exit|KeyboardInterrupt)|[\s░█]*litellm\.\w+: |Model .+ has hit a token limit!"
)
#: What is left of the spinner stands before it.
_ERROR = re.compile(r"[\s░█]*litellm\.(\w+): ")
_ANSWERED = re.compile(r"^Tokens: \S+ sent\b.*\breceived\.")


def composer_state(rows: list[str]) -> ComposerState:
    """What stands where aider's prompt would be, on a screen whose terminal is in raw mode."""
    block = _block(rows)
    if question(rows):
        return "dialog"
    prompts = [at for at, row in enumerate(block) if _PROMPT.match(row)]
    if not prompts:
        return "busy"
    only = prompts[0] == len(block) - 1 and block[-1].rstrip().endswith(">")
    return "empty" if only and _PROMPT.fullmatch(block[-1].rstrip()) else "draft"


def multiline(rows: list[str]) -> bool:
    """Whether Enter begins a new line at this prompt, and Alt-Enter submits."""
    return any(_MULTI.match(row) for row in _block(rows))


def question(rows: list[str]) -> str:
    """The question that aider asks and waits for, or nothing."""
    shown = _shown(rows)[-4:]
    text = "".join(shown)
    found = list(_QUESTION.finditer(text))
    if not found or len(text) - found[-1].end() > 20:
        return ""
    end = found[-1].start()
    for row in shown:
        if end <= len(row):
            return row[:end].strip()
        end -= len(row)
    return ""


def broken_off(rows: list[str], *, prompting: bool) -> bool:
    """Whether the last turn on this screen did not come to its end."""
    return any(_BROKEN.match(row) for row in _turn(rows, prompting=prompting))


def ended(rows: list[str], *, prompting: bool) -> bool:
    """Whether the last turn shows what its answer has cost, or that it was broken off."""
    turn = _turn(rows, prompting=prompting)
    return any(_ANSWERED.match(row) or _BROKEN.match(row) for row in turn)


def error(rows: list[str], *, prompting: bool) -> str:
    """The last error of the model's server in the last turn: the name of its kind, or nothing."""
    names = [found[1] for row in _turn(rows, prompting=prompting) if (found := _ERROR.match(row))]
    return names[-1] if names else ""


def answered(rows: list[str]) -> bool:
    """Whether the screen shows that the model has answered."""
    return any(_ANSWERED.match(row) for row in rows)


def _shown(rows: list[str]) -> list[str]:
    shown = list(rows)
    while shown and not shown[-1].strip():
        shown.pop()
    return shown


def _block(rows: list[str]) -> list[str]:
    """The last rows that hang together: the prompt with what stands in it, if there is one."""
    shown = _shown(rows)
    for at in range(len(shown) - 1, -1, -1):
        if not shown[at].strip() or _RULE.match(shown[at].rstrip()):
            return shown[at + 1 :]
    return shown


def _turn(rows: list[str], *, prompting: bool) -> list[str]:
    """The rows of the last turn: below the last rule, or above it where the prompt is back.

    The rule is drawn a moment before the prompt.
    """
    parts: list[list[str]] = [[]]
    for row in _shown(rows)[: -len(_block(rows)) or None] if prompting else _shown(rows):
        if _RULE.match(row.rstrip()):
            parts.append([])
        else:
            parts[-1].append(row)
    while len(parts) > 1 and not any(_PROMPT.match(row) for row in parts[-1]):
        parts.pop()
    return parts[-1]


#: Seconds without another line after which an answer is taken as complete.
SETTLE = 0.1
#: Seconds when the screen does not show that it has ended, or been broken off: it may lag behind.
LAG = 2.0
#: Messages whose arrival is remembered.
PROVEN_MAX = 256
#: Seconds between two looks at file and terminal: while an answer settles, busy, at rest.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.05, 0.1, 0.5

_LIMITS = {
    "RateLimitError": (LimitCause.USAGE, "a usage limit is reached"),
    "RouterRateLimitError": (LimitCause.USAGE, "a usage limit is reached"),
    "BudgetExceededError": (LimitCause.REFUSED, "the budget is used up"),
    "AuthenticationError": (LimitCause.REFUSED, "the API key is refused"),
    "PermissionDeniedError": (LimitCause.REFUSED, "the API key is refused"),
    "NotFoundError": (LimitCause.REFUSED, "there is no such model"),
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

    def __init__(self, *, hears: bool = True, mark: str = "", chats: str = "") -> None:
        """``hears``: it was told to log its conversation; ``mark`` as in ``History``; ``chats``:
        the path of its chat history."""
        super().__init__(AiderState(failed=not hears, history=History(mark)))
        self._mark = mark
        self._chats = chats
        self._reason = ""
        self._since = 0.0  # when the last line of the answer came
        self._trouble = False  # the last answer was empty: an error, or Ctrl-C
        self._prompting = False
        self._rows: list[str] = []

    # -- what the session asks ----------------------------------------------------------------

    def seen(self, marker: str) -> bool:
        return any(marker in text for text in self.saved.proven)

    @property
    def transcript_path(self) -> str | None:
        return self._chats or None

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
        state = "busy" if away else composer_state(rows)
        self._rows, self._prompting = rows, state in ("empty", "draft")
        events: list[SourceEvent] = []
        # The terminal's mode and the history are ahead of the screen, which alone tells of Ctrl-C.
        shown = ended(rows, prompting=self._prompting)
        # Where it still works the screen may yet show that the answer was broken off.
        over = now - self._since >= (SETTLE if shown else LAG) and (shown or state != "busy")
        if self.saved.answer is not None and over:
            events += self._complete(aborted=self._broken())
            if self._trouble:
                events += self._error()
        if state == "dialog":
            return events + self._change(AgentState.BLOCKED, f"aider asks: {question(rows)}")
        if state == "busy":
            resting = self.saved.state in (AgentState.STARTING, AgentState.LIMITED)
            return events if resting else events + self._change(AgentState.BUSY)
        events += self._deaf()
        if self.saved.state is not AgentState.LIMITED and self.saved.answer is None:
            events += self._change(AgentState.IDLE)
        return events

    def _broken(self) -> bool:
        return broken_off(self._rows, prompting=self._prompting)

    def _error(self) -> list[SourceEvent]:
        """Tell why a request brought nothing, as far as the screen shows it."""
        self._trouble = False
        name = error(self._rows, prompting=self._prompting)
        if not name or name in _THIS_TURN_ONLY:
            return []
        self._reason = ""
        return self._limited(*(_LIMITS.get(name) or api_error(name)))

    def _deaf(self) -> list[SourceEvent]:
        if self.saved.asked or self.saved.failed or not answered(self._rows):
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

    def _change(self, state: AgentState, reason: str = "") -> list[SourceEvent]:
        if state is self.saved.state and reason == self._reason:
            return []
        self.saved.state, self._reason = state, reason
        return [StateChange(state, reason)]


def _without_thoughts(lines: list[str]) -> list[str]:
    """The answer without what the model thought; empty when there is nothing else in it."""
    text = "\n".join(lines)
    if "<" in text:
        text = _CLOSED.sub("", _THOUGHT.sub("", text, count=1) if _THOUGHT.match(text) else text)
    return text.split("\n") if text.strip() else []
