"""What opencode says and does, from its server's events. No I/O, no clock.

The assistant's own words come out as lines, one stream for each text part. Reasoning, tools,
subagents (sessions with a parent), summaries of a compaction, copies in a forked session and what
was said before this run never do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relay.agents.opencode.server_records import Conversations, TextParts, moment, table, word
from relay.agents.structured_source import SourceState, StructuredSource, remembered
from relay.core.bounded import BoundedDict
from relay.core.message import AgentState
from relay.core.source_events import Proof, SourceEvent, StateChange

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
class ConversationMessage:
    """One message of a conversation."""

    session: str
    role: str
    live: bool = False  # the assistant's own words of this run
    parent: str = ""  # what an answer answers
    head: str = ""  # how a user's message begins
    reached: bool = False  # the model has it (of an answer: it has begun)
    left: bool = False  # the turn ended that should have taken it along

    @property
    def waits(self) -> bool:
        """Whether it is a user's that the model does not have yet."""
        return bool(self.head) and not self.reached


@dataclass(slots=True)
class OpencodeState(SourceState):
    """What opencode's checkpoint holds."""

    #: What was said before is history. In milliseconds since the epoch.
    started: float = 0.0
    parts: TextParts = field(default_factory=TextParts)
    conversations: Conversations = field(default_factory=Conversations)
    #: Messages by their ids.
    said: BoundedDict[str, ConversationMessage] = field(
        default_factory=lambda: BoundedDict(MESSAGES_MAX)
    )
    forgotten: str = ""  # the newest message that was forgotten: none before it is new
    #: With which agent and model the person last said something, as a prompt's fields.
    manner: dict[str, Any] = field(default_factory=dict)


class OpencodeSource(StructuredSource):
    """Makes events of what one opencode's server tells."""

    saved: OpencodeState

    def __init__(self, started_ms: int, session: str = "") -> None:
        """``session``: the one that opencode was told to go on with."""
        kept = OpencodeState(started=float(started_ms), conversations=Conversations(session))
        super().__init__(kept)
        #: Whether the server's events come in, and what was missed of them has been made up for.
        self.connected = False
        self._told: StateChange | None = None
        self._missing: dict[str, None] = {}

    # -- what the session asks ----------------------------------------------------------------

    @property
    def conversation(self) -> str:
        """opencode's session that the person is in; empty where there is none yet."""
        return self.saved.conversations.current

    @property
    def missing(self) -> list[str]:
        """Sessions of which something was told that is not known: another snapshot is needed."""
        return list(self._missing)

    def accepted(self, marker: str) -> bool:
        """Whether a text with ``marker`` at its beginning stands in a conversation already."""
        return any(marker in said.head for said in self.saved.said.values())

    def seen(self, marker: str) -> bool:
        return any(marker in said.head and said.reached for said in self.saved.said.values())

    def stranded(self) -> list[tuple[str, str, str]]:
        """(session, message, beginning) of what waits in a conversation that has come to rest.

        opencode keeps what is queued when the person stops a turn or refuses a tool, but begins no
        turn for it.
        """
        return [
            (said.session, message, said.head)
            for message, said in self.saved.said.items()
            if said.waits and said.left and self.saved.conversations.at_rest(said.session)
        ]

    def failed(self, reason: str) -> list[SourceEvent]:
        if not self.saved.failed:
            self.saved.parts.drop()  # the screen has the rest of what is open
        return super().failed(reason)

    # -- events -------------------------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """Take one event of the server's, or a snapshot."""
        told = table(event.get("properties"))
        return self._take(word(event.get("type")), told, now) + self._look()

    def _take(self, kind: str, told: dict[str, Any], now: float) -> list[SourceEvent]:
        info = table(told.get("info"))
        match kind:
            case "message.part.delta" if told.get("field") == "text":
                return self.saved.parts.delta(word(told.get("partID")), word(told.get("delta")))
            case "message.part.updated":
                return self._part(table(told.get("part")), now, gap=False)
            case "message.updated":
                return self._message(info)
            case "message.removed":
                self.saved.said.pop(word(told.get("messageID")), None)
                return self.saved.parts.abort(word(told.get("messageID")))
            case "session.created":
                self.saved.conversations.created(info)
            case "session.updated":
                self.saved.conversations.learn(info)
            case "session.deleted":
                return self._session_deleted(word(info.get("id")) or word(told.get("sessionID")))
            case "session.status":
                self._status(word(told.get("sessionID")), table(told.get("status")))
            case "session.error":
                return self._error(word(told.get("sessionID")), told.get("error"))
            case "permission.asked" | "question.asked":
                self.saved.conversations.asked(told)
            case "permission.replied" | "question.replied" | "question.rejected":
                self.saved.conversations.answered(told)
            case _ if kind == SNAPSHOT:
                return self._snapshot(told, now)
        return []

    def interrupted(self) -> None:
        """Note that the stream of events has broken off."""
        self.connected = False
        self.saved.parts.missed()

    def _snapshot(self, found: dict[str, Any], now: float) -> list[SourceEvent]:
        """Take how things stand: ``sessions, status, asks, messages`` as the server answers, ``at``
        when, ``session`` the one that opencode goes on with."""
        if self.saved.failed:
            # The screen was heard meanwhile: what was said until now must not be heard twice.
            self.saved.failed = False
            self.saved.started = float(found.get("at") or self.saved.started)
            for said in self.saved.said.values():
                said.live = False
        for info in found.get("sessions") or []:
            self.saved.conversations.learn(table(info))
        self.saved.conversations.standing(table(found.get("status")), found.get("asks") or [])
        events: list[SourceEvent] = []
        for message in found.get("messages") or []:
            info = table(table(message).get("info"))
            self._message(info)
            for part in table(message).get("parts") or []:
                events += self._part(table(part), now, gap=True)
            events += self._message(info)
        self.connected = True
        self._missing.clear()
        for said in self.saved.said.values():
            said.left = said.waits and self.saved.conversations.at_rest(said.session)
        if not self.conversation:
            self.saved.conversations.current = word(found.get("session"))
        return events

    def _session_deleted(self, name: str) -> list[SourceEvent]:
        self.saved.conversations.deleted(name)
        events: list[SourceEvent] = []
        for message in [m for m, said in self.saved.said.items() if said.session == name]:
            del self.saved.said[message]
            events += self.saved.parts.abort(message)
        return events

    def _status(self, name: str, status: dict[str, Any]) -> None:
        self.saved.conversations.status(name, status)
        for said in self.saved.said.values():
            if said.session == name:
                said.left = said.waits and status.get("type") == "idle"

    def _error(self, name: str, error: Any) -> list[SourceEvent]:
        """End the parts of a turn that ended with an error, or that the person stopped."""
        self.saved.conversations.failed(name, error)
        events: list[SourceEvent] = []
        for message in self.saved.parts.open_messages():
            said = self.saved.said.get(message)
            if said is not None and said.session == name:
                events += self.saved.parts.abort(message)
        return events

    # -- messages -----------------------------------------------------------------------------

    def _message(self, info: dict[str, Any]) -> list[SourceEvent]:
        message, session = word(info.get("id")), word(info.get("sessionID"))
        if not message or not session:
            return []
        said = self.saved.said.get(message)
        if said is None:
            if message <= self.saved.forgotten:
                return []
            if self.saved.conversations.get(session) is None:
                self._miss(session)
                return []
            said = self._new(info, session)
            if (oldest := self.saved.said.put(message, said)) is not None:
                self.saved.forgotten = max(self.saved.forgotten, oldest[0])
        if not said.live:
            return []
        if moment(info.get("time"), "completed") is not None:
            used, cache = table(info.get("tokens")), table(table(info.get("tokens")).get("cache"))
            out = sum(one for name in ("output", "reasoning") if type(one := used.get(name)) is int)
            tokens = (used.get("input"), out, cache.get("read"), cache.get("write"))
            self.saved.usage.add(message, word(info.get("modelID")), tokens)
        if info.get("error"):
            return self.saved.parts.abort(message)
        if info.get("finish") or moment(info.get("time"), "completed") is not None:
            return self.saved.parts.confirm(message)
        return []

    def _new(self, info: dict[str, Any], session: str) -> ConversationMessage:
        role = word(info.get("role"))
        conversation = self.saved.conversations.get(session)
        assert conversation is not None
        # What is older than its session was copied there (it was forked).
        since = max(self.saved.started, conversation.since)
        own = not conversation.parent and (moment(info.get("time"), "created") or 0.0) >= since
        if role == "user" and own:
            self.saved.conversations.current = session
            self._remember_manner(info)
        live = own and role == "assistant" and not info.get("summary")
        if live:
            self.saved.model = word(info.get("modelID")) or self.saved.model
        return ConversationMessage(session, role, live, word(info.get("parentID")))

    def _miss(self, session: str) -> None:
        if session and len(self._missing) < MISSING_MAX:
            self._missing[session] = None

    def _remember_manner(self, info: dict[str, Any]) -> None:
        model = table(info.get("model"))
        manner: dict[str, Any] = {}
        if word(info.get("agent")):
            manner["agent"] = word(info["agent"])
        if word(model.get("providerID")) and word(model.get("modelID")):
            chosen = {"providerID": model["providerID"], "modelID": model["modelID"]}
            manner["model"] = chosen
        variant = word(model.get("variant")) or word(info.get("variant"))
        if variant:
            manner["variant"] = variant
        self.saved.manner = manner

    def _part(self, part: dict[str, Any], now: float, *, gap: bool) -> list[SourceEvent]:
        """Take the state of one part. ``gap``: its deltas until now may have been missed."""
        message, part_id = word(part.get("messageID")), word(part.get("id"))
        said = self.saved.said.get(message)
        if said is None:
            if message > self.saved.forgotten:
                self._miss(word(part.get("sessionID")))
            return []
        kind, text = word(part.get("type")), word(part.get("text"))
        if said.role == "user":
            if kind == "text" and not part.get("synthetic") and not said.head:
                said.head = remembered(text)
            return []
        # A command that the person runs with "!" is a tool's part in an answer that no model gave.
        events = self._reached(said) if kind in _OF_THE_MODEL else []
        if not said.live:
            return events
        events += self.saved.parts.confirm(message, part_id)
        if kind != "text" or part.get("synthetic") or part.get("ignored"):
            return events
        if moment(part.get("time"), "end") is not None:
            return events + self.saved.parts.finish(part_id, message, text, now)
        unknown = not self.saved.parts.knows(part_id)
        return events + self.saved.parts.begin(part_id, message, text, gap=gap and unknown)

    def _reached(self, answer: ConversationMessage) -> list[SourceEvent]:
        """Prove what was said before an answer that has begun: the model has it."""
        events: list[SourceEvent] = []
        if answer.reached:
            return events
        answer.reached = True
        for message, said in self.saved.said.items():
            before = said.session == answer.session and message <= answer.parent
            if before and said.head and not said.reached:
                said.reached = True
                events.append(Proof(said.head, "transcript"))
        return events

    def _look(self) -> list[SourceEvent]:
        """Tell the agent's state if it has changed."""
        if not self.connected:
            return []
        change = self.saved.conversations.now()
        if change == self._told:
            return []
        self.saved.state, self._told = change.state, change
        return [change]

    # -- time, restart ------------------------------------------------------------------------

    def tick(self, now: float) -> list[SourceEvent]:
        return self.saved.parts.settle(now)

    def next_deadline(self) -> float | None:
        return self.saved.parts.next_deadline()

    def finish(self, now: float) -> list[SourceEvent]:
        self.saved.state = AgentState.GONE
        return [*self.saved.parts.all_over(), StateChange(AgentState.GONE)]

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken; how things stand now, the next snapshot tells."""
        super().restore(state)
        self.saved.state = AgentState.STARTING
        self.saved.parts.missed()
