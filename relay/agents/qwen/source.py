"""What Qwen Code says and does, from its event file and its record of the chat. No I/O, no clock.

Lines of the files go in; lines of the assistant's own text, changes of state and proofs come out.
Thinking, tool calls, their output, subagents and the user's words never do, and the file reports
nothing of what a resumed session said earlier.

Qwen Code asks the model again when an answer breaks off in the middle. The new answer is added to
the same block without a warning, from its beginning; only the record of the chat has what each
answer held. :class:`Block` drops the lines that come a second time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from relay.agents.profile import Profile
from relay.agents.structured_source import (
    SourceState,
    StructuredSource,
    Tokens,
    markers_in,
    object_in,
    seconds_of,
    table,
    text_in,
)
from relay.core.message import AgentState
from relay.core.source_events import (
    Degraded,
    End,
    LimitCause,
    Line,
    Proof,
    SourceEvent,
)
from relay.core.state import from_json, to_json

Kind = Literal[
    "session",  # this process has begun to tell; id is the session's
    "prompt",  # text that goes to the model as a user's; text
    "begin",  # the model begins to answer; text is its name
    "open",  # a block of text begins; id
    "text",  # the block goes on; text, id is that of this event
    "error",  # the API's error, in the place of text; text
    "other",  # something that is not text begins: a block of thinking, a tool call (its id)
    "close",  # the block is complete, or was broken off
    "said",  # the assistant's message is complete; text is "tools" when it holds calls; number
    "stop",  # the answer is over
    "asks",  # a dialog asks for permission; id, text is the tool
    "answered",  # … and was answered; id
    "ran",  # a tool has run or was refused
    "recorded",  # (chat) text that goes to the model as a user's; text
    "response",  # (chat) the API's answer has ended, whole or not; text is what it held
    "refused",  # (chat) the API answered with an error, and may be asked again; number, text
]

#: How the error of an API is worded, which Qwen Code puts where the model's words stand.
_ERROR = re.compile(
    r"\[API Error: .*\](?:\s*\S[^\n]*(?:quota|limit|wait)[^\n]*)?\s*"
    r"|Qwen OAuth (?:quota exceeded:|free tier has been discontinued).*",
    re.DOTALL | re.IGNORECASE,
)

#: The lines of the chat's record that matter, which may be long and many.
_OF_CHAT = re.compile(r'"type":"user"|"subtype":"ui_telemetry"')
#: A turn's own requests to the API, not those for titles, memories and the like.
_TURN = re.compile(r"########\d+")


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a line tells. ``time`` (of the chat only) is in seconds since the epoch;
    ``number`` is how many tokens the API counted for a message (0: it did not get to that), or the
    status of its error."""

    kind: Kind
    text: str = ""
    id: str = ""
    number: int = 0
    time: float = 0.0
    #: See relay.agents.structured_source.
    tokens: Tokens = ()


def parse(line: str) -> Record | None:
    """What one line says; None for a line of no concern, of a subagent, or that is damaged."""
    if not line.startswith('{"type"') and not _OF_CHAT.search(line, 0, 1000):
        return None
    raw = object_in(line)
    if raw is None:
        return None
    if "sessionId" in raw:
        return _chat(raw)
    kind = raw.get("type")
    if kind == "control_request":
        return _asks(raw)
    if kind == "control_response":
        return Record("answered", id=str(table(raw.get("response")).get("request_id")))
    if raw.get("parent_tool_use_id") is not None:
        return None
    if kind == "stream_event":
        return _stream(table(raw.get("event")), str(raw.get("uuid")))
    if kind == "assistant":
        return _assistant(table(raw.get("message")))
    if kind == "user":
        return _user(table(raw.get("message")).get("content"))
    if kind == "system" and raw.get("subtype") == "session_start":
        return Record("session", id=str(raw.get("session_id") or ""))
    return None


def _stream(event: dict[str, Any], uuid: str) -> Record | None:
    kind = event.get("type")
    if kind == "content_block_delta":
        delta = table(event.get("delta"))
        if delta.get("type") != "text_delta":
            return None
        text = str(delta.get("text", ""))
        return Record("error" if _ERROR.fullmatch(text) else "text", text, uuid)
    if kind == "content_block_start":
        block = table(event.get("content_block"))
        if block.get("type") == "text":
            return Record("open", id=uuid)
        return Record("other", id=str(block.get("id") or ""))
    if kind == "content_block_stop":
        return Record("close")
    if kind == "message_start":
        return Record("begin", str(table(event.get("message")).get("model") or ""))
    return Record("stop") if kind == "message_stop" else None


def _assistant(message: dict[str, Any]) -> Record:
    blocks = message.get("content")
    calls = isinstance(blocks, list) and any(table(one).get("type") == "tool_use" for one in blocks)
    usage = table(message.get("usage"))
    counted = sum(usage.get(name) or 0 for name in ("input_tokens", "output_tokens"))
    into, cached = usage.get("input_tokens"), usage.get("cache_read_input_tokens")
    if type(into) is int and type(cached) is int:
        into -= cached
    tokens = (into, usage.get("output_tokens"), cached, 0)
    said, id_ = "tools" if calls else "", str(message.get("id") or "")
    return Record("said", said, id_, number=counted, tokens=tokens if counted else ())


def _user(content: object) -> Record | None:
    blocks = content if isinstance(content, list) else []
    if any(table(block).get("type") == "tool_result" for block in blocks):
        return Record("ran")
    return Record("prompt", text_in(content))


def _asks(raw: dict[str, Any]) -> Record | None:
    request = table(raw.get("request"))
    if request.get("subtype") != "can_use_tool":
        return None
    return Record("asks", str(request.get("tool_name") or ""), str(raw.get("request_id")))


def _chat(raw: dict[str, Any]) -> Record | None:
    """A line of the record that Qwen Code keeps of the chat, which its event file leaves out."""
    time = seconds_of(raw.get("timestamp"))
    if not time:
        return None
    if raw.get("type") == "user":
        return Record("recorded", text_in(table(raw.get("message")).get("parts")), time=time)
    event = table(table(raw.get("systemPayload")).get("uiEvent"))
    if event.get("subagent_id") or not _TURN.search(str(event.get("prompt_id"))):
        return None
    if event.get("event.name") == "qwen-code.api_response":
        return Record("response", str(event.get("response_text") or ""), time=time)
    if event.get("event.name") == "qwen-code.api_error":
        status = event.get("status_code")
        number = status if isinstance(status, int) else 0
        return Record("refused", str(event.get("error_message")), number=number, time=time)
    return None


#: Characters of a block that are remembered; of a longer one a second answer is not recognised.
TEXT_MAX = 256 * 1024
#: Blocks that are in doubt at a time; the oldest is then taken as broken off.
DOUBTED_MAX = 8
#: How Qwen Code ends an answer of which it records the beginning only.
_CUT = "...[truncated]"


@dataclass(slots=True)
class Block:
    """The block that is open, or none. Its fields are its checkpoint."""

    stream: str | None = None  # named after the first of its events
    closed: bool = False  # nothing more comes, but whether it is whole is not known yet
    text: str = ""  # of the present answer
    partial: str = ""  # its last line, as far as it goes
    again: list[str] = field(default_factory=list)  # lines of the answer before that may come again

    def _clear(self) -> None:
        self.stream, self.closed, self.text, self.partial, self.again = None, False, "", "", []

    @property
    def open(self) -> bool:
        """Whether a block has begun of which it is not known that it is whole."""
        return self.stream is not None

    @property
    def writing(self) -> bool:
        """Whether the block is neither complete nor broken off."""
        return self.stream is not None and not self.closed

    def begin(self, stream: str) -> None:
        """Begin a block; the one before it must have ended."""
        self.stream = stream

    def close(self) -> None:
        """Note that nothing more comes: the block is complete, or was broken off."""
        self.closed = self.stream is not None

    def is_said_again(self, response: str, text: str) -> bool:
        """Whether an answer that held just this block has ended, and ``text`` begins another."""
        if not self.text:
            return False
        if response.endswith(_CUT):
            start = response.removesuffix(_CUT)
            return self.text.startswith(start) and start.startswith(text)
        return self.text == response

    def is_whole(self, response: str) -> bool:
        """Whether an answer with the text ``response`` ends with this block."""
        if not self.text:
            return False
        if response.endswith(_CUT):
            return self.text.startswith(response.removesuffix(_CUT))
        return response.endswith(self.text)

    def start_again(self) -> None:
        """Expect another answer in the place of the one that is there."""
        self.again = self.text.split("\n")[:-1] + self.again
        self.text = self.partial = ""

    def add(self, text: str, stream: str) -> list[SourceEvent]:
        """Add text to the block, or begin it as ``stream``."""
        if self.stream is None:
            self.begin(stream)
        if len(self.text) < TEXT_MAX:
            self.text += text
        *whole, self.partial = (self.partial + text).split("\n")
        events: list[SourceEvent] = []
        for line in whole:
            events += self._line(line, stream)
        return events

    def complete(self) -> list[SourceEvent]:
        """End the block, if there is one, as whole."""
        events = self._line(self.partial, f"{self.stream}.end") if self.partial else []
        if self.stream is not None:
            # The rest of an answer that is not to be is missing in the one that is.
            events.append(End(self.stream, aborted=bool(self.again)))
        self._clear()
        return events

    def break_off(self) -> list[SourceEvent]:
        """End the block, if there is one, as not written to its end."""
        events: list[SourceEvent] = []
        if self.stream is not None:
            events.append(End(self.stream, aborted=True))
        self._clear()
        return events

    def _line(self, line: str, stream: str) -> list[SourceEvent]:
        line = line.removesuffix("\r")
        events: list[SourceEvent] = []
        if self.again:
            if self.again.pop(0).removesuffix("\r") == line:
                return []
            # The new answer goes another way.
            self.again = []
            if self.stream is not None:
                events.append(End(self.stream, aborted=True))
            self.stream = stream
        assert self.stream is not None
        return [*events, Line(self.stream, line)]


class DoubtedBlocks:
    """Blocks of which it is not known yet whether they are whole, while the next ones begin.

    A turn that the person stops ends like one whose API counts no tokens. The record of the chat
    holds whole answers only, but it is written a moment later than the events: by then the person
    may have asked something else.
    """

    def __init__(self, blocks: Iterable[Block] = ()) -> None:
        #: The oldest first, each with the time since when (None: not known).
        self._blocks: deque[tuple[float | None, Block]] = deque((None, one) for one in blocks)

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def put(self, block: Block, since: float | None) -> list[SourceEvent]:
        """Keep ``block``, to which nothing is added any more, and when its doubt began."""
        self._blocks.append((since, block))
        return self._first().break_off() if len(self._blocks) > DOUBTED_MAX else []

    def recorded(self, answer: str) -> list[SourceEvent] | None:
        """End the block that the record of the chat holds as ``answer``; None when none is meant.

        Answers are recorded in order: what came before this one was stopped.
        """
        if not any(block.is_whole(answer) for _, block in self._blocks):
            return None
        events: list[SourceEvent] = []
        while not (block := self._first()).is_whole(answer):
            events += block.break_off()
        return events + block.complete()

    def late(self, now: float, patience: float) -> list[SourceEvent]:
        """End those that are not recorded after ``patience`` seconds: they were stopped."""
        known = ((now if since is None else since, block) for since, block in self._blocks)
        self._blocks = deque(known)
        events: list[SourceEvent] = []
        while self._blocks and now - (self._blocks[0][0] or 0.0) >= patience:
            events += self._first().break_off()
        return events

    def break_off(self) -> list[SourceEvent]:
        """End all: no answer is recorded any more."""
        events: list[SourceEvent] = []
        while self._blocks:
            events += self._first().break_off()
        return events

    def blocks(self) -> list[Block]:
        """Return the blocks for a checkpoint, in order; the next session has another clock."""
        return [block for _, block in self._blocks]

    def _first(self) -> Block:
        return self._blocks.popleft()[1]


#: Messages whose arrival is remembered.
ACCEPTED_MAX = 1024
#: Tool calls that are remembered.
CALLS_MAX = 256
#: Seconds between two looks at the files: while a block is open, while Qwen Code works, at rest.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.05, 0.1, 0.25
#: Seconds between two looks at the screen.
LOOK = 0.5
#: Seconds after which a message that ended without a count of tokens was stopped, unless the record
#: of the chat has all of it by then. Where there is no such record, the screen says if it was.
VERDICT = 2.0
#: Seconds of a screen at rest after which the turn is over, whatever the file has told.
REST = 1.5
#: Seconds that the file may lack an answer that stands in the record of the chat, or the rest of a
#: message in a turn that is over by the screen. Qwen Code writes no more events, ever, once it
#: could not get rid of a megabyte of them; on a busy machine it writes them some seconds late.
LACKING = 15.0
#: Seconds that the screen may show a turn of which the file knows nothing.
SILENCE = 30.0
#: Blocks that are remembered, to be looked for in the record, and characters of each.
TOLD_MAX, TOLD_HEAD = 8, 2000

_LIMIT = re.compile(r"\b429\b|quota|rate.?limit|usage limit|insufficient|billing|credit", re.I)
_REFUSED = re.compile(r"\b(?:401|403)\b|api key|unauthorized|forbidden|invalid.{0,10}token", re.I)
_THIS_TURN_ONLY = re.compile(r"^\[API Error: 4(?:00|13|22)\b")
#: In English whatever the language.
_CANCELLED = re.compile(r"● Request cancelled\.\s*$")
_SCROLL_BAR = re.compile(r"\s*[│█]?\s*$")


def _last(limit: int) -> Any:
    return field(default_factory=lambda: deque(maxlen=limit))


@dataclass(slots=True)
class QwenState(SourceState):
    """What Qwen Code's checkpoint holds, beside what is in doubt."""

    session: str = ""
    block: Block = field(default_factory=Block)
    whole: str | None = None  # all the text of the API's last answer
    recorded: bool = False  # the record of the chat is written
    told: deque[str] = _last(TOLD_MAX)  # beginnings of blocks
    turn: bool = False  # a turn runs
    tools: bool = False  # the answer calls tools
    asked: deque[str] = _last(64)  # requests for consent that are open
    error: str = ""  # of the API
    accepted: deque[str] = _last(ACCEPTED_MAX)  # markers of messages that arrived
    calls: deque[str] = _last(CALLS_MAX)  # ids of tool calls, of no subagent's
    count: int = 0  # how often the model has begun to answer
    prompts: deque[int] = _last(CALLS_MAX)  # … before each prompt


class QwenSource(StructuredSource):
    """Makes events of one Qwen Code's files and screen."""

    saved: QwenState

    def __init__(
        self, started: float, *, events: bool = True, profile: Profile | None = None
    ) -> None:
        """``started``: seconds since the epoch; what the record of the chat holds from before is
        history. ``events``: it was started with an event file."""
        super().__init__(QwenState(failed=not events), profile)
        self._started = int(started * 1000) / 1000
        self._doubt: float | None = None  # nothing more comes since, and is the block whole?
        self._doubted = DoubtedBlocks()  # blocks before it of which that is not known either
        self._lacking: float | None = None  # an answer is missing in the file since
        self._rest_since: float | None = None  # the screen has shown no turn since
        self._busy_since: float | None = None  # … a turn of which the file knows nothing

    # -- what the session asks ----------------------------------------------------------------

    @property
    def conversation(self) -> str:
        """The id of Qwen Code's session; empty before its event file tells it."""
        return self.saved.session

    @property
    def answers(self) -> int:
        """How often the model has begun to answer."""
        return self.saved.count

    @property
    def in_doubt(self) -> bool:
        """Whether the screen has to say how a message ended."""
        return self._doubt is not None or bool(self._doubted)

    @property
    def telling(self) -> bool:
        """Whether the event file has begun to tell, and the input line has been seen."""
        return bool(self.saved.session) and self.saved.state is not AgentState.STARTING

    @property
    def in_turn(self) -> bool:
        """Whether a turn runs, be it that the API does not answer at present."""
        return self.saved.turn

    def called(self, call: str) -> bool:
        """Whether the agent itself, and no subagent, has called a tool under this id."""
        return call in self.saved.calls

    def went_on(self, count: int) -> bool:
        """Whether the model began another answer after the first ``count``, in the same turn."""
        return self.saved.count > count and count not in self.saved.prompts

    def seen(self, marker: str) -> bool:
        return marker in self.saved.accepted

    def poll_interval(self) -> float:
        if self.saved.block.open:
            return POLL_URGENT
        return POLL_IDLE if self.saved.state is AgentState.IDLE else POLL_BUSY

    def failed(self, reason: str) -> list[SourceEvent]:
        if self.saved.failed:
            return []
        self.saved.failed = True
        self.saved.turn = False
        rest = [] if self.saved.state is AgentState.GONE else self._change(AgentState.IDLE)
        return [*self._doubted.break_off(), *self._break_off(), *rest, Degraded(reason)]

    # -- the files ----------------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """Take a complete line of the event file or of the chat's record, in the file's order."""
        record = parse(line)
        if record is None:
            return []
        if record.time:
            return self._chat(record, now) if record.time >= self._started else []
        self.saved.failed = False
        self._rest_since = self._busy_since = self._lacking = None
        if record.kind in ("open", "text", "error", "other", "close", "said"):
            return self._written(record)
        if record.kind == "stop":
            return self._stop(now)
        if record.kind in ("asks", "answered"):
            return self._consent(record)
        return self._begun(record)

    def _begun(self, record: Record) -> list[SourceEvent]:
        """Begin a process, a turn, an answer or the next request."""
        events = self._put_aside() if self.saved.recorded else self._complete()
        if record.kind == "session":
            self.saved.session = record.id  # it may be another process than before
            return events
        if record.kind == "prompt":
            self.saved.prompts.append(self.saved.count)
            events += self._accept(record.text)
        elif record.kind == "begin":
            self.saved.tools, self.saved.error = False, ""
            self.saved.model = record.text or self.saved.model
            self.saved.count += 1
        self.saved.turn = True
        return [*events, *self._change(AgentState.BUSY)]

    def _written(self, record: Record) -> list[SourceEvent]:
        kind, block = record.kind, self.saved.block
        if kind == "text":
            # A piece that comes after its block was closed is another answer's.
            events = self._complete() if block.closed else []
            self.saved.turn = True
            events += self._change(AgentState.BUSY)
            if self.saved.whole is not None and block.is_said_again(self.saved.whole, record.text):
                block.start_again()
            self.saved.whole = None
            return events + block.add(record.text, record.id)
        if kind == "open":
            events = self._complete()
            block.begin(record.id)
            return events
        if kind == "error":
            # What came before it is whole only when it had been closed.
            self.saved.error = record.text
            return self._complete() if block.closed else self._break_off()
        if kind == "other":
            if record.id:
                self.saved.calls.append(record.id)
            return self._complete()
        if kind == "close":
            block.close()
            return []
        answer = record.id or f"{self.saved.session} {self.saved.count}"
        self.saved.usage.add(answer, self.saved.model, record.tokens)
        self.saved.tools |= record.text == "tools"
        return self._complete() if record.number or self.saved.tools else []

    def _stop(self, now: float) -> list[SourceEvent]:
        if self.saved.block.open and not (
            self.saved.whole and self.saved.block.is_whole(self.saved.whole)
        ):
            self._doubt = now  # no count of tokens: stopped, or an API that does not count
            return []
        return [*self._complete(), *self._after_turn()]

    def _after_turn(self) -> list[SourceEvent]:
        if self.saved.tools and not self.saved.error:
            return []  # they run now
        self.saved.turn = False
        return (
            self._refused(self.saved.error, 0)
            if self.saved.error
            else self._change(AgentState.IDLE)
        )

    def _refused(self, error: str, status: int) -> list[SourceEvent]:
        if not self.saved.turn and _THIS_TURN_ONLY.search(error):
            return self._change(AgentState.IDLE)
        if status == 429 or _LIMIT.search(error):
            return self._limited(LimitCause.USAGE, "a usage limit is reached")
        if status in (401, 402, 403) or _REFUSED.search(error):
            return self._limited(LimitCause.REFUSED, "the API refuses the account")
        return self._limited(LimitCause.ERROR, "the API answers with an error")

    def _consent(self, record: Record) -> list[SourceEvent]:
        if record.kind == "asks":
            self.saved.asked.append(record.id)
            reason = f"asks to use {record.text or 'a tool'}"
            return self._change(AgentState.BLOCKED, reason)
        if record.id in self.saved.asked:
            self.saved.asked.remove(record.id)
        return [] if self.saved.asked else self._change(AgentState.BUSY)

    def _chat(self, record: Record, now: float) -> list[SourceEvent]:
        """Take what only the record of the chat tells."""
        if record.kind == "refused":
            return self._refused(record.text, record.number) if self.saved.turn else []
        self.saved.recorded = True
        if record.kind == "recorded":
            # Within a turn, and when the events have ended, it is told nowhere else.
            return [] if self._known(record.text) else self._accept(record.text)
        told = self._doubted.recorded(record.text)
        if told is not None:
            return told
        self.saved.whole = record.text
        if self._doubt is None or not self.saved.block.is_whole(record.text):
            if record.text and not self._has_told(record.text):
                self._lacking = now
            return []
        return [*self._complete(), *self._after_turn()]

    def _has_told(self, answer: str) -> bool:
        return any(
            told in answer for told in (*self.saved.told, self.saved.block.text[:TOLD_HEAD]) if told
        )

    def _complete(self) -> list[SourceEvent]:
        self._settle()
        return self.saved.block.complete()

    def _break_off(self) -> list[SourceEvent]:
        self._settle()
        return self.saved.block.break_off()

    def _put_aside(self) -> list[SourceEvent]:
        """Put the block in doubt aside where the record will tell if it is whole."""
        if self._doubt is None:
            return self._complete()
        since, block = self._doubt, self.saved.block
        self._settle()
        self.saved.block = Block()
        return self._doubted.put(block, since)

    def _settle(self) -> None:
        self._doubt = None
        if self.saved.block.text:
            self.saved.told.append(self.saved.block.text[:TOLD_HEAD])

    # -- the screen and time -------------------------------------------------------------------

    def glance(self, rows: list[str], now: float) -> list[SourceEvent]:
        """Take what the screen adds: that the input line has come, that a dialog has gone, that the
        person stopped the turn, and that a turn is over of which the file does not tell."""
        return self._doubted.late(now, VERDICT) + self._glance(rows, now)

    def _glance(self, rows: list[str], now: float) -> list[SourceEvent]:
        composer = self.profile.composer(rows)
        busy = self.profile.shows_turn(rows, "")
        if self._doubt is not None:
            if was_cancelled(rows, self.profile):
                return [*self._break_off(), *self._over()]
            if now - self._doubt < VERDICT:
                return []
            if self.saved.recorded:
                return [*self._break_off(), *self._over()]
            return [*self._complete(), *self._after_turn()]
        if self._lacking is not None and now - self._lacking >= LACKING:
            return self._dead()
        at_rest = composer in ("empty", "draft") and not busy
        if self.saved.turn:
            return self._rested(now) if at_rest else self._at_work()
        if composer == "dialog" and self.saved.state is not AgentState.BLOCKED:
            return self._change(AgentState.BLOCKED, "a dialog waits for the person")
        if self.saved.state in (AgentState.STARTING, AgentState.BLOCKED):
            # Where its input line is never seen nothing else will show that it rests.
            unseen = self.profile.input is None and composer == "unknown" and not busy
            ready = (at_rest or unseen) and self.saved.session
            return self._change(AgentState.IDLE) if ready else []
        return self._silent(now) if busy else self._at_work()

    def _rested(self, now: float) -> list[SourceEvent]:
        """Judge a turn that runs by the file while the screen shows none."""
        if self._rest_since is None:
            self._rest_since = now
        writing = self.saved.block.writing
        if now - self._rest_since < (LACKING if writing else REST):
            return []
        if self.saved.block.closed:
            self._doubt = now  # how it ended has yet to be told: a busy machine is late with it
            return []
        return self._dead() if writing else self._over()

    def _over(self) -> list[SourceEvent]:
        self.saved.turn = False
        limited = self.saved.state is AgentState.LIMITED
        return [] if limited else self._change(AgentState.IDLE)

    def _silent(self, now: float) -> list[SourceEvent]:
        """Judge a turn that the screen shows and of which the file tells nothing."""
        if self._busy_since is None:
            self._busy_since = now
        if now - self._busy_since < SILENCE:
            return []
        return self._dead()

    def _dead(self) -> list[SourceEvent]:
        self._lacking = None
        return self.failed("Qwen Code writes no more events: relay reads its screen instead")

    def _at_work(self) -> list[SourceEvent]:
        self._rest_since = self._busy_since = None
        return []

    def finish(self, now: float) -> list[SourceEvent]:
        stopped = self._doubt is not None and self.saved.recorded
        whole = self.saved.block.closed and not stopped
        events = self._doubted.break_off()
        events += self._complete() if whole else self._break_off()
        return [*events, *self._change(AgentState.GONE)]

    # -- for a restart -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        doubted = [to_json(block) for block in self._doubted.blocks()]
        return {**super().state(), "doubt": self._doubt is not None, "doubted": doubted}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._doubt = 0.0 if state["doubt"] else None
        self._doubted = DoubtedBlocks(from_json(Block, one) for one in state.get("doubted", []))

    # -- helpers -------------------------------------------------------------------------------

    def _known(self, text: str) -> bool:
        return all(self.seen(marker) for marker in markers_in(text))

    def _accept(self, text: str) -> list[SourceEvent]:
        if not text:
            return []
        self.saved.accepted.extend(markers_in(text))
        return [Proof(text, "transcript")]

    def _change(self, state: AgentState, reason: str = "") -> list[SourceEvent]:
        if state not in (self.saved.state, AgentState.BLOCKED):
            self.saved.asked.clear()
        return super()._change(state, reason)


def was_cancelled(rows: list[str], profile: Profile) -> bool:
    """Whether the last thing that the screen shows is that the person stopped the turn."""
    above = profile.input.above_it(rows) if profile.input else rows
    last = next((bare for row in reversed(above) if (bare := _SCROLL_BAR.sub("", row))), "")
    return bool(_CANCELLED.search(last))
