"""The base of what makes events of an agent's own records, hooks and screen. Pure.

Lines of JSON that agents write are read without trust: objects, times, texts.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from relay.agents.profile import Profile
from relay.core.bounded import RecentSet
from relay.core.message import AgentState
from relay.core.source_events import Degraded, LimitCause, SourceEvent, StateChange
from relay.core.state import from_json, to_json

#: Seconds after which a model is worth another try: after an error of the API, and at a limit.
ERROR_RETRY, LIMIT_RETRY = 30.0, 300.0
#: Characters of an accepted text that are remembered: its envelope's first lines hold the marker.
HEAD = 400
_MARKER = re.compile(r"Relay (?:message|notice) (\[[^\[\]\s]{1,16}\])")


def markers_in(text: str) -> list[str]:
    """Find the markers of all envelopes in ``text``: several messages may go over as one."""
    return _MARKER.findall(text)


def remembered(text: str) -> str:
    """What is kept of an accepted text: its beginning, and the markers of all envelopes in it."""
    return " ".join([text[:HEAD], *markers_in(text[HEAD - 100 :])])


def broken_off(events: list[SourceEvent]) -> list[SourceEvent]:
    """The same of a turn that was broken off."""
    return [replace(one, broken=True) if isinstance(one, StateChange) else one for one in events]


#: Models whose tokens are counted in one run, and tokens of one answer: more is no true number.
MODELS_MAX, TOKENS_MAX = 20, 10_000_000
#: Answers that are remembered as counted.
ANSWERS_MAX = 256
#: Tokens of an answer, as the agent's records have them: what the model was told beside what it had
#: cached, what it has said, what it had cached, and what it has cached for later.
Tokens = tuple[object, ...]


@dataclass(slots=True)
class TokenCounts:
    """What a run has used so far."""

    #: Four numbers, as Tokens has them, by the model.
    by_model: dict[str, list[int]] = field(default_factory=dict)
    counted: RecentSet[str] = field(default_factory=lambda: RecentSet(ANSWERS_MAX))

    def add(self, answer: str, model: str, tokens: Tokens) -> None:
        """Count the tokens of one answer of a model, which may be told several times."""
        if not tokens or not self.counted.add(answer):
            return
        model = model[:100]
        if model not in self.by_model and len(self.by_model) >= MODELS_MAX:
            model = next(iter(self.by_model))
        counts = self.by_model.setdefault(model, [0, 0, 0, 0])
        for number, one in enumerate(tokens[:4]):
            if type(one) is int and 0 < one <= TOKENS_MAX:
                counts[number] += one


@dataclass(slots=True)
class SourceState:
    """The checkpoint of a source; each agent's adds its own fields."""

    state: AgentState = AgentState.STARTING
    #: The source cannot tell what the agent says.
    failed: bool = False
    #: The model that spoke last, as the agent calls it; empty where it does not say.
    model: str = ""
    usage: TokenCounts = field(default_factory=TokenCounts)


class StructuredSource:
    """Makes events of an agent's own records, hooks and screen. No I/O, no clock.

    Methods that take something in return what came of it. ``now`` is monotonic, in seconds.
    """

    saved: SourceState

    #: Whether :meth:`look` is called soon after the agent has drawn; else only while it is blocked.
    reads_screen = False
    #: Whether the end of a turn is only inferred from what the screen shows.
    infers_turns = False

    def __init__(self, saved: SourceState, profile: Profile | None = None) -> None:
        self.saved = saved
        #: How its screen is read.
        self.profile = profile or Profile()

    @property
    def owes_words(self) -> bool:
        """Whether words of the turn that has ended are known to be still on their way."""
        return False

    @property
    def trusted(self) -> bool:
        """Whether this source has the agent's words; otherwise the screen stands in."""
        return not self.saved.failed

    @property
    def agent_state(self) -> AgentState:
        """What the agent is doing."""
        return self.saved.state

    @property
    def transcript_path(self) -> str | None:
        """The agent's own transcript, where it is known."""
        return None

    @property
    def conversation(self) -> str:
        """The agent's own id of the conversation in front; empty where it is not known."""
        return ""

    def accepted(self, marker: str) -> bool:
        """Whether the agent has taken a text that holds ``marker``, be it that it still waits."""
        return self.seen(marker)

    def seen(self, marker: str) -> bool:
        """Whether a text that holds ``marker`` has demonstrably reached the model."""
        return False

    def poll_interval(self) -> float:
        """Seconds after which the agent's records are worth another look."""
        return 1.0

    def failed(self, reason: str) -> list[SourceEvent]:
        """Stop: nothing can be read here. ``reason`` is empty where the person knows it."""
        if self.saved.failed:
            return []
        self.saved.failed = True
        return [Degraded(reason)] if reason else []

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """Take an event of the agent's own hooks or of its server."""
        return []

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """Take a complete line of the agent's own records, in the order of the file."""
        return []

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """Take the screen's rows and the terminal's title."""
        return []

    def tick(self, now: float) -> list[SourceEvent]:
        """Do what is due by ``now``."""
        return []

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to do."""
        return None

    def finish(self, now: float) -> list[SourceEvent]:
        """The agent has ended: nothing more will come."""
        return self._change(AgentState.GONE)

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        made: dict[str, Any] = to_json(self.saved)
        return made

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.saved = from_json(type(self.saved), state)

    def _change(self, state: AgentState, reason: str = "") -> list[SourceEvent]:
        """Note what the agent does now; an event only where that is something else."""
        if state is self.saved.state:
            return []
        self.saved.state = state
        return [StateChange(state, reason)]

    def _limited(
        self, cause: LimitCause, reason: str, retry: float | None = None
    ) -> list[SourceEvent]:
        """Note that the model does not answer; an event only where that is news."""
        return [limited(cause, reason, retry)] if self._change(AgentState.LIMITED, reason) else []


def limited(cause: LimitCause, reason: str, retry: float | None = None) -> StateChange:
    """The model does not answer; ``retry`` where it is known how long."""
    if retry is None:
        retry = ERROR_RETRY if cause is LimitCause.ERROR else LIMIT_RETRY
    return StateChange(AgentState.LIMITED, reason, retry, cause=cause)


def api_error(words: str) -> tuple[LimitCause, str]:
    """The cause and the reason where the API answers with an error."""
    return LimitCause.ERROR, f"the API answers with an error ({words})"


def object_in(line: str) -> dict[str, Any] | None:
    """Read the JSON object that is ``line``; None where it is damaged or something else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def table(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def seconds_of(value: object) -> float:
    """Read an ISO 8601 time as seconds since the epoch; 0.0 for anything else."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.fromisoformat(value).timestamp()
    return 0.0


def text_in(value: object, kind: str = "") -> str:
    """Read a text, or the texts of a list of blocks (of the type ``kind``), one below the other."""
    if isinstance(value, str):
        return value
    blocks = value if isinstance(value, list) else []
    texts = [
        block.get("text")
        for block in blocks
        if isinstance(block, dict) and kind in ("", block.get("type"))
    ]
    return "\n".join(text for text in texts if isinstance(text, str))
