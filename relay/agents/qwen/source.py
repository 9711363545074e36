"""What Qwen Code says and does, from its event file. No I/O, no clock.

Lines of the file go in; lines of the assistant's own text, changes of state and proofs come out.
Thinking, tool calls, their output, subagents and the user's words never do, and the file tells
nothing of what a resumed session said earlier.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from relay.agents.profile import Profile
from relay.agents.qwen.block import Block, DoubtedBlocks
from relay.agents.qwen.event_file import Record, parse
from relay.agents.structured_source import (
    ERROR_RETRY,
    LIMIT_RETRY,
    SourceState,
    StructuredSource,
    markers_in,
)
from relay.core.message import AgentState
from relay.core.source_events import Degraded, Proof, SourceEvent, StateChange
from relay.core.state import from_json, to_json

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
            return self._change(AgentState.LIMITED, "a usage limit is reached", LIMIT_RETRY)
        if status in (401, 402, 403) or _REFUSED.search(error):
            return self._change(AgentState.LIMITED, "the API refuses the account", LIMIT_RETRY)
        return self._change(AgentState.LIMITED, "the API answers with an error", ERROR_RETRY)

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
        return self.failed("Qwen Code writes no more events: it is heard by its screen")

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

    def _change(
        self, state: AgentState, reason: str = "", retry: float | None = None
    ) -> list[SourceEvent]:
        if state is self.saved.state:
            return []
        if state is not AgentState.BLOCKED:
            self.saved.asked.clear()
        self.saved.state = state
        return [StateChange(state, reason, retry)]


def was_cancelled(rows: list[str], profile: Profile) -> bool:
    """Whether the last thing that the screen shows is that the person stopped the turn."""
    above = profile.input.above_it(rows) if profile.input else rows
    last = next((bare for row in reversed(above) if (bare := _SCROLL_BAR.sub("", row))), "")
    return bool(_CANCELLED.search(last))
