"""What Qwen Code says and does, from its event file. No I/O, no clock.

The session feeds lines of the file; lines of the assistant's own text, changes of state and proofs
come out. Thinking, tool calls, their output, subagents and the user's words are never heard, and
the file tells nothing of what a resumed session said earlier.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any

from relay.agents.base import SourceState, StructuredSource
from relay.agents.qwen.block import Block
from relay.agents.qwen.doubted import Doubted
from relay.agents.qwen.events import Record, parse
from relay.agents.qwen.screen import composer_state, is_busy, was_cancelled
from relay.core.message import AgentState
from relay.core.source_events import Degraded, Proof, SourceEvent, StateChange

#: Messages whose arrival is remembered.
ACCEPTED_MAX = 1024
#: Tool calls that are remembered.
CALLS_MAX = 256
#: How often the files are worth a look, in seconds.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.05, 0.1, 0.25
#: How often the screen is worth a look while it may tell more than the file.
LOOK = 0.5
#: A message that ends without a count of tokens was stopped, unless the record of the chat has all
#: of it by then. Where there is no such record, it was stopped if the screen says so.
VERDICT = 2.0
#: A screen at rest for so long means that the turn is over, whatever the file has told.
REST = 1.5
#: Qwen Code writes no more events, ever, once it could not get rid of a megabyte of them. That is
#: so when after so many seconds the file lacks an answer that stands in the record of the chat, or
#: the rest of a message in a turn that is over by the screen, … (On a machine that is busy with
#: much else it has been seen to write them some seconds after it had shown them.)
LACKING = 15.0
#: … or when the screen is busy for so long with a turn that the file knows nothing of.
SILENCE = 30.0
#: Blocks that are remembered, by so many characters each, to be looked for in the record.
TOLD_MAX, TOLD_HEAD = 8, 2000
#: After an error of the API the next try is worth it after so many seconds; after a limit, so many.
ERROR_RETRY, LIMIT_RETRY = 30.0, 300.0

# Several messages that were queued reach the model as one text.
_MARKER = re.compile(r"Relay (?:message|notice) (\[[^\[\]\s]+\])")
_LIMIT = re.compile(r"\b429\b|quota|rate.?limit|usage limit|insufficient|billing|credit", re.I)
_REFUSED = re.compile(r"\b(?:401|403)\b|api key|unauthorized|forbidden|invalid.{0,10}token", re.I)
_THIS_TURN_ONLY = re.compile(r"^\[API Error: 4(?:00|13|22)\b")


class QwenSource(StructuredSource):
    """One Qwen Code, as it is heard. ``events``: whether it was started with an event file.

    ``started`` is when, in seconds since the epoch: what its record of the chat holds from before
    is history.
    """

    def __init__(self, started: float, *, events: bool = True) -> None:
        super().__init__(SourceState())
        self._started = int(started * 1000) / 1000
        self.saved.failed = not events
        self.session = ""
        self._block = Block()
        self._doubt: float | None = None  # nothing more comes since, and is the block whole?
        self._doubted = Doubted()  # blocks before it of which that is not known either
        self._whole: str | None = None  # all the text of the API's last answer
        self._recorded = False
        self._told: deque[str] = deque(maxlen=TOLD_MAX)  # beginnings of blocks
        self._lacking: float | None = None  # an answer is missing in the file since
        self._turn = False  # a turn runs
        self._tools = False
        self._asked: deque[str] = deque(maxlen=64)  # requests for consent that are open
        self._error = ""
        self._accepted: deque[str] = deque(maxlen=ACCEPTED_MAX)
        self._calls: deque[str] = deque(maxlen=CALLS_MAX)  # ids of tool calls, of no subagent's
        #: How often the model has begun to answer.
        self.asked = 0
        self._prompts: deque[int] = deque(maxlen=CALLS_MAX)  # … before each prompt
        self._rest_since: float | None = None  # the screen has shown no turn since
        self._busy_since: float | None = None

    # -- what the session asks ----------------------------------------------------------------

    @property
    def in_doubt(self) -> bool:
        """Whether the screen has to say how a message ended."""
        return self._doubt is not None or bool(self._doubted)

    @property
    def telling(self) -> bool:
        """Whether the event file has begun to tell, and the input line has been seen."""
        return bool(self.session) and self.saved.state is not AgentState.STARTING

    @property
    def in_turn(self) -> bool:
        """Whether a turn runs, be it that the API does not answer at present."""
        return self._turn

    def called(self, call: str) -> bool:
        """Whether the agent itself, and no subagent, has called a tool under this id."""
        return call in self._calls

    def went_on(self, count: int) -> bool:
        """Whether the model began another answer after so many, in the same turn."""
        return self.asked > count and count not in self._prompts

    def seen(self, marker: str) -> bool:
        """Whether a text with ``marker`` has demonstrably reached the model."""
        return marker in self._accepted

    def poll_interval(self) -> float:
        """In how many seconds the files should be looked at again."""
        if self._block.open:
            return POLL_URGENT
        return POLL_IDLE if self.saved.state is AgentState.IDLE else POLL_BUSY

    def failed(self, reason: str) -> list[SourceEvent]:
        """Nothing can be heard here: the screen stands in."""
        if self.saved.failed:
            return []
        self.saved.failed = True
        self._turn = False
        rest = [] if self.saved.state is AgentState.GONE else self._change(AgentState.IDLE)
        return [*self._doubted.break_off(), *self._break_off(), *rest, Degraded(reason)]

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """Qwen Code is started without hooks."""
        return []

    # -- the files ----------------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """One complete line of the event file or of the chat's record, in the file's order."""
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
        """A process, a turn, an answer or the next request begins."""
        events = self._put_aside() if self._recorded else self._complete()
        if record.kind == "session":
            self.session = record.id  # it may be another process than before
            return events
        if record.kind == "prompt":
            self._prompts.append(self.asked)
            events += self._accept(record.text)
        elif record.kind == "begin":
            self._tools, self._error = False, ""
            self.asked += 1
        self._turn = True
        return [*events, *self._change(AgentState.BUSY)]

    def _written(self, record: Record) -> list[SourceEvent]:
        kind, block = record.kind, self._block
        if kind == "text":
            # A piece that comes after its block was closed is another answer's.
            events = self._complete() if block.closed else []
            self._turn = True
            events += self._change(AgentState.BUSY)
            if self._whole is not None and block.is_said_again(self._whole, record.text):
                block.start_again()
            self._whole = None
            return events + block.add(record.text, record.id)
        if kind == "open":
            events = self._complete()
            block.begin(record.id)
            return events
        if kind == "error":
            # What came before it is whole only when it had been closed.
            self._error = record.text
            return self._complete() if block.closed else self._break_off()
        if kind == "other":
            if record.id:
                self._calls.append(record.id)
            return self._complete()
        if kind == "close":
            block.close()
            return []
        self._tools |= record.text == "tools"
        return self._complete() if record.number or self._tools else []

    def _stop(self, now: float) -> list[SourceEvent]:
        if self._block.open and not (self._whole and self._block.is_whole(self._whole)):
            self._doubt = now  # no count of tokens: stopped, or an API that does not count
            return []
        return [*self._complete(), *self._after_turn()]

    def _after_turn(self) -> list[SourceEvent]:
        if self._tools and not self._error:
            return []  # they run now
        self._turn = False
        return self._refused(self._error, 0) if self._error else self._change(AgentState.IDLE)

    def _refused(self, error: str, status: int) -> list[SourceEvent]:
        if not self._turn and _THIS_TURN_ONLY.search(error):
            return self._change(AgentState.IDLE)
        if status == 429 or _LIMIT.search(error):
            return self._change(AgentState.LIMITED, "a usage limit is reached", LIMIT_RETRY)
        if status in (401, 402, 403) or _REFUSED.search(error):
            return self._change(AgentState.LIMITED, "the API refuses the account", LIMIT_RETRY)
        return self._change(AgentState.LIMITED, "the API answers with an error", ERROR_RETRY)

    def _consent(self, record: Record) -> list[SourceEvent]:
        if record.kind == "asks":
            self._asked.append(record.id)
            reason = f"asks to use {record.text or 'a tool'}"
            return self._change(AgentState.BLOCKED, reason)
        if record.id in self._asked:
            self._asked.remove(record.id)
        return [] if self._asked else self._change(AgentState.BUSY)

    def _chat(self, record: Record, now: float) -> list[SourceEvent]:
        """What only the record of the chat tells."""
        if record.kind == "refused":
            return self._refused(record.text, record.number) if self._turn else []
        self._recorded = True
        if record.kind == "recorded":
            # Within a turn, and when the events have ended, it is told nowhere else.
            return [] if self._known(record.text) else self._accept(record.text)
        told = self._doubted.recorded(record.text)
        if told is not None:
            return told
        self._whole = record.text
        if self._doubt is None or not self._block.is_whole(record.text):
            if record.text and not self._has_told(record.text):
                self._lacking = now
            return []
        return [*self._complete(), *self._after_turn()]

    def _has_told(self, answer: str) -> bool:
        return any(told in answer for told in (*self._told, self._block.text[:TOLD_HEAD]) if told)

    def _complete(self) -> list[SourceEvent]:
        self._settle()
        return self._block.complete()

    def _break_off(self) -> list[SourceEvent]:
        self._settle()
        return self._block.break_off()

    def _put_aside(self) -> list[SourceEvent]:
        """Where the record will tell whether the block is whole, what is next does not wait."""
        if self._doubt is None:
            return self._complete()
        since, block = self._doubt, self._block
        self._settle()
        self._block = Block()
        return self._doubted.put(block, since)

    def _settle(self) -> None:
        self._doubt = None
        if self._block.text:
            self._told.append(self._block.text[:TOLD_HEAD])

    # -- the screen and time -------------------------------------------------------------------

    def glance(self, rows: list[str], now: float) -> list[SourceEvent]:
        """What the screen adds: that the input line has come, that a dialog has gone, that the
        person stopped the turn, and that a turn is over of which the file does not tell."""
        return self._doubted.late(now, VERDICT) + self._glance(rows, now)

    def _glance(self, rows: list[str], now: float) -> list[SourceEvent]:
        composer = composer_state(rows)
        if self._doubt is not None:
            if was_cancelled(rows):
                return [*self._break_off(), *self._over()]
            if now - self._doubt < VERDICT:
                return []
            if self._recorded:
                return [*self._break_off(), *self._over()]
            return [*self._complete(), *self._after_turn()]
        if self._lacking is not None and now - self._lacking >= LACKING:
            return self._dead()
        at_rest = composer in ("empty", "draft") and not is_busy(rows)
        if self._turn:
            return self._rested(now) if at_rest else self._at_work()
        if composer == "dialog" and self.saved.state is not AgentState.BLOCKED:
            return self._change(AgentState.BLOCKED, "a dialog waits for the person")
        if self.saved.state in (AgentState.STARTING, AgentState.BLOCKED):
            return self._change(AgentState.IDLE) if at_rest and self.session else []
        return self._silent(now) if is_busy(rows) else self._at_work()

    def _rested(self, now: float) -> list[SourceEvent]:
        """A turn runs as far as the file tells, but the screen shows none."""
        if self._rest_since is None:
            self._rest_since = now
        writing = self._block.writing
        if now - self._rest_since < (LACKING if writing else REST):
            return []
        if self._block.closed:
            self._doubt = now  # how it ended has yet to be told: a busy machine is late with it
            return []
        return self._dead() if writing else self._over()

    def _over(self) -> list[SourceEvent]:
        self._turn = False
        limited = self.saved.state is AgentState.LIMITED
        return [] if limited else self._change(AgentState.IDLE)

    def _silent(self, now: float) -> list[SourceEvent]:
        """The screen shows a turn of which the file tells nothing."""
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

    def tick(self, now: float) -> list[SourceEvent]:
        """Time has passed; what time decides here, the screen decides with it."""
        return []

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        return None

    def finish(self, now: float) -> list[SourceEvent]:
        """Qwen Code has ended: nothing more will come."""
        stopped = self._doubt is not None and self._recorded
        whole = self._block.closed and not stopped
        events = self._doubted.break_off()
        events += self._complete() if whole else self._break_off()
        return [*events, *self._change(AgentState.GONE)]

    # -- for a restart -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "state": self.saved.state.value,
            "session": self.session,
            "block": self._block.state(),
            "whole": self._whole,
            "recorded": self._recorded,
            "told": list(self._told),
            "doubt": self._doubt is not None,
            "doubted": self._doubted.state(),
            "turn": self._turn,
            "tools": self._tools,
            "asked": list(self._asked),
            "error": self._error,
            "accepted": list(self._accepted),
            "calls": list(self._calls),
            "count": self.asked,
            "prompts": list(self._prompts),
            "failed": self.saved.failed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.saved.state = AgentState(state["state"])
        self.session, self._whole = state["session"], state["whole"]
        self._recorded = state["recorded"]
        self._told.extend(state["told"])
        self._block.restore(state["block"])
        self._doubt = 0.0 if state["doubt"] else None
        self._doubted.restore(state.get("doubted", []))
        self._turn = state["turn"]
        self._tools, self._error = state["tools"], state["error"]
        self._asked.extend(state["asked"])
        self._accepted.extend(state["accepted"])
        self._calls.extend(state.get("calls", []))
        self.asked = state.get("count", 0)
        self._prompts.extend(state.get("prompts", []))
        self.saved.failed = state["failed"]

    # -- helpers -------------------------------------------------------------------------------

    def _known(self, text: str) -> bool:
        return all(self.seen(marker) for marker in _MARKER.findall(text))

    def _accept(self, text: str) -> list[SourceEvent]:
        if not text:
            return []
        self._accepted.extend(_MARKER.findall(text))
        return [Proof(text, "transcript")]

    def _change(
        self, state: AgentState, reason: str = "", retry: float | None = None
    ) -> list[SourceEvent]:
        if state is self.saved.state:
            return []
        if state is not AgentState.BLOCKED:
            self._asked.clear()
        self.saved.state = state
        return [StateChange(state, reason, retry)]
