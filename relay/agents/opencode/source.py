"""What opencode says and does, from its server's events. No I/O, no clock.

The assistant's own words come out as lines, one stream for each text part. Reasoning, tools,
subagents (sessions with a parent), summaries of a compaction, copies in a forked session and what
was said before this run are never heard.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from relay.agents.base import SourceState, StructuredSource
from relay.agents.opencode.conversations import Conversations
from relay.agents.opencode.parts import Parts
from relay.agents.opencode.records import moment, table, word
from relay.core.bounded import BoundedDict
from relay.core.message import AgentState
from relay.core.source_events import Degraded, Proof, SourceEvent, StateChange

#: Messages that are remembered; the oldest are forgotten first.
MESSAGES_MAX = 256
#: Sessions that are asked for because something came that is about something unknown.
MISSING_MAX = 8
#: Of what the user said, its beginning is kept: an envelope's first lines.
HEAD = 400
#: Parts that only the model's own answer has.
_OF_THE_MODEL = frozenset({"step-start", "text", "reasoning", "step-finish"})
#: The event that the session makes of what it asked the server for when the stream began.
SNAPSHOT = "relay.snapshot"


@dataclass(slots=True)
class Said:
    """One message. ``live``: the assistant's own words of this run. ``parent`` is what an answer
    answers. ``head`` is how a user's message begins; ``reached``: the model has it (of an answer:
    it has begun); ``left``: the turn ended that should have taken it along."""

    session: str
    role: str
    live: bool = False
    parent: str = ""
    head: str = ""
    reached: bool = False
    left: bool = False


class OpencodeSource(StructuredSource):
    """One opencode process, as it is heard. ``started_ms``: what was said before it is history."""

    def __init__(self, started_ms: int, session: str = "") -> None:
        super().__init__(SourceState())
        self._started = float(started_ms)
        self._connected = False
        self._told: StateChange | None = None
        self._parts = Parts()
        self._conversations = Conversations(session)
        self._said: BoundedDict[str, Said] = BoundedDict(MESSAGES_MAX)
        self._forgotten = ""  # the newest message that was forgotten: none before it is new
        self._manner: dict[str, Any] = {}
        self._missing: dict[str, None] = {}

    # -- what the session asks ----------------------------------------------------------------

    @property
    def started(self) -> float:
        """What was said before is history. In milliseconds since the epoch."""
        return self._started

    @property
    def session(self) -> str:
        """opencode's session that the person is in; empty where there is none yet."""
        return self._conversations.current

    @property
    def connected(self) -> bool:
        """Whether the server's events come in, and what was missed of them has been made up for."""
        return self._connected

    @property
    def missing(self) -> list[str]:
        """Sessions of which something was told that is not known: another snapshot is needed."""
        return list(self._missing)

    @property
    def manner(self) -> dict[str, Any]:
        """With which agent and model the person last said something, as a prompt's fields."""
        return dict(self._manner)

    def accepted(self, marker: str) -> bool:
        """Whether a text with ``marker`` at its beginning stands in a conversation already."""
        return any(marker in said.head for said in self._said.values())

    def seen(self, marker: str) -> bool:
        """Whether such a text has demonstrably reached the model."""
        return any(marker in said.head and said.reached for said in self._said.values())

    def stranded(self) -> list[tuple[str, str, str]]:
        """(session, message, beginning) of what waits in a conversation that has come to rest.

        opencode keeps what is queued when the person stops a turn or refuses a tool, but begins no
        turn for it.
        """
        return [
            (said.session, message, said.head)
            for message, said in self._said.items()
            if self._waits(said) and said.left and self._conversations.at_rest(said.session)
        ]

    def failed(self, reason: str) -> list[SourceEvent]:
        """Nothing can be heard here: the screen stands in."""
        if self.saved.failed:
            return []
        self.saved.failed = True
        self._parts.drop()
        return [Degraded(reason)]

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        """opencode has no file to follow."""
        return []

    # -- events -------------------------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """One event of the server's, or a snapshot."""
        handler = self._EVENTS.get(word(event.get("type")))
        if handler is None:
            return []
        return handler(self, table(event.get("properties")), now) + self._look()

    def interrupted(self) -> None:
        """The stream of events has broken off."""
        self._connected = False
        self._parts.missed()

    def _snapshot(self, found: dict[str, Any], now: float) -> list[SourceEvent]:
        """How things stand: ``sessions, status, asks, messages`` as the server answers, ``at``
        when, ``session`` the one that is gone on with."""
        if self.saved.failed:
            # The screen was heard meanwhile: what was said until now must not be heard twice.
            self.saved.failed, self._started = False, float(found.get("at") or self._started)
            for said in self._said.values():
                said.live = False
        for info in found.get("sessions") or []:
            self._conversations.learn(table(info))
        self._conversations.standing(table(found.get("status")), found.get("asks") or [])
        events: list[SourceEvent] = []
        for message in found.get("messages") or []:
            info = table(table(message).get("info"))
            self._message(info)
            for part in table(message).get("parts") or []:
                events += self._part(table(part), now, gap=True)
            events += self._message(info)
        self._connected = True
        self._missing.clear()
        for said in self._said.values():
            said.left = self._waits(said) and self._conversations.at_rest(said.session)
        if not self.session:
            self._conversations.current = word(found.get("session"))
        return events

    def _session_created(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        self._conversations.created(table(event.get("info")))
        return []

    def _session_updated(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        self._conversations.learn(table(event.get("info")))
        return []

    def _session_deleted(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        name = word(table(event.get("info")).get("id")) or word(event.get("sessionID"))
        self._conversations.deleted(name)
        events: list[SourceEvent] = []
        for message in [m for m, said in self._said.items() if said.session == name]:
            del self._said[message]
            events += self._parts.abort(message)
        return events

    def _status(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        name, status = word(event.get("sessionID")), table(event.get("status"))
        self._conversations.status(name, status)
        for said in self._said.values():
            if said.session == name:
                said.left = self._waits(said) and status.get("type") == "idle"
        return []

    @staticmethod
    def _waits(said: Said) -> bool:
        return bool(said.head) and not said.reached

    def _error(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """A turn has ended with an error, or the person has stopped it."""
        name = word(event.get("sessionID"))
        self._conversations.failed(name, event.get("error"))
        events: list[SourceEvent] = []
        for message in self._parts.open_messages():
            said = self._said.get(message)
            if said is not None and said.session == name:
                events += self._parts.abort(message)
        return events

    def _asked(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        self._conversations.asked(event)
        return []

    def _answered(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        self._conversations.answered(event)
        return []

    # -- messages -----------------------------------------------------------------------------

    def _message_updated(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        return self._message(table(event.get("info")))

    def _message(self, info: dict[str, Any]) -> list[SourceEvent]:
        message, session = word(info.get("id")), word(info.get("sessionID"))
        if not message or not session:
            return []
        said = self._said.get(message)
        if said is None:
            if message <= self._forgotten:
                return []
            if self._conversations.get(session) is None:
                self._miss(session)
                return []
            said = self._new(info, session)
            if (oldest := self._said.put(message, said)) is not None:
                self._forgotten = max(self._forgotten, oldest[0])
        if not said.live:
            return []
        if info.get("error"):
            return self._parts.abort(message)
        if info.get("finish") or moment(info.get("time"), "completed") is not None:
            return self._parts.confirm(message)
        return []

    def _new(self, info: dict[str, Any], session: str) -> Said:
        role = word(info.get("role"))
        conversation = self._conversations.get(session)
        assert conversation is not None
        # What is older than its session was copied there (it was forked).
        since = max(self._started, conversation.since)
        own = not conversation.parent and (moment(info.get("time"), "created") or 0.0) >= since
        if role == "user" and own:
            self._conversations.current = session
            self._remember_manner(info)
        live = own and role == "assistant" and not info.get("summary")
        return Said(session, role, live, word(info.get("parentID")))

    def _miss(self, session: str) -> None:
        if session and len(self._missing) < MISSING_MAX:
            self._missing[session] = None

    def _remember_manner(self, info: dict[str, Any]) -> None:
        model = table(info.get("model"))
        self._manner = {}
        if word(info.get("agent")):
            self._manner["agent"] = word(info["agent"])
        if word(model.get("providerID")) and word(model.get("modelID")):
            chosen = {"providerID": model["providerID"], "modelID": model["modelID"]}
            self._manner["model"] = chosen
        variant = word(model.get("variant")) or word(info.get("variant"))
        if variant:
            self._manner["variant"] = variant

    def _message_removed(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        message = word(event.get("messageID"))
        self._said.pop(message, None)
        return self._parts.abort(message)

    def _part_updated(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        return self._part(table(event.get("part")), now, gap=False)

    def _part(self, part: dict[str, Any], now: float, *, gap: bool) -> list[SourceEvent]:
        """The state of one part. ``gap``: its deltas until now may have been missed."""
        message, part_id = word(part.get("messageID")), word(part.get("id"))
        said = self._said.get(message)
        if said is None:
            if message > self._forgotten:
                self._miss(word(part.get("sessionID")))
            return []
        kind, text = word(part.get("type")), word(part.get("text"))
        if said.role == "user":
            if kind == "text" and not part.get("synthetic") and not said.head:
                said.head = text[:HEAD]
            return []
        # A command that the person runs with "!" is a tool's part in an answer that no model gave.
        events = self._reached(said) if kind in _OF_THE_MODEL else []
        if not said.live:
            return events
        events += self._parts.confirm(message, part_id)
        if kind != "text" or part.get("synthetic") or part.get("ignored"):
            return events
        if moment(part.get("time"), "end") is not None:
            return events + self._parts.finish(part_id, message, text, now)
        unknown = not self._parts.knows(part_id)
        return events + self._parts.begin(part_id, message, text, gap=gap and unknown)

    def _reached(self, answer: Said) -> list[SourceEvent]:
        """The model has begun to answer: it has what was said up to there."""
        events: list[SourceEvent] = []
        if answer.reached:
            return events
        answer.reached = True
        for message, said in self._said.items():
            before = said.session == answer.session and message <= answer.parent
            if before and said.head and not said.reached:
                said.reached = True
                events.append(Proof(said.head, "transcript"))
        return events

    def _delta(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        if event.get("field") != "text":
            return []
        return self._parts.delta(word(event.get("partID")), word(event.get("delta")))

    _EVENTS = {
        SNAPSHOT: _snapshot,
        "session.created": _session_created,
        "session.updated": _session_updated,
        "session.deleted": _session_deleted,
        "session.status": _status,
        "session.error": _error,
        "permission.asked": _asked,
        "permission.replied": _answered,
        "question.asked": _asked,
        "question.replied": _answered,
        "question.rejected": _answered,
        "message.updated": _message_updated,
        "message.removed": _message_removed,
        "message.part.updated": _part_updated,
        "message.part.delta": _delta,
    }

    def _look(self) -> list[SourceEvent]:
        """The agent's state, if it has changed."""
        if not self._connected:
            return []
        change = self._conversations.now()
        if change == self._told:
            return []
        self.saved.state, self._told = change.state, change
        return [change]

    # -- time, restart ------------------------------------------------------------------------

    def tick(self, now: float) -> list[SourceEvent]:
        """What is due by ``now``."""
        return self._parts.settle(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        return self._parts.next_deadline()

    def finish(self, now: float) -> list[SourceEvent]:
        """opencode has ended: nothing more will come."""
        self.saved.state = AgentState.GONE
        return [*self._parts.all_over(), StateChange(AgentState.GONE)]

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "parts": self._parts.state(),
            "conversations": self._conversations.state(),
            "said": {name: asdict(one) for name, one in self._said.items()},
            "forgotten": self._forgotten,
            "manner": self._manner,
            "started": self._started,
            "failed": self.saved.failed,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken; how things stand now, the next snapshot tells."""
        self._parts.restore(state["parts"])
        self._parts.missed()
        self._conversations.restore(state["conversations"])
        for name, one in state["said"].items():
            self._said[name] = Said(**one)
        self._forgotten, self._manner = state["forgotten"], state["manner"]
        self._started, self.saved.failed = state["started"], state["failed"]
