"""What opencode says and does, from its server's events. No I/O, no clock.

The forms are opencode's own (1.18): an event is ``{"type", "properties"}``; a message has an
``info`` (``id, sessionID, role, time{created,completed}, parentID, error, summary, agent, model``)
and parts (``id, messageID, sessionID, type, text, time{start,end}, synthetic``). Ids of one kind
sort by the time at which they were made. :class:`Conversations` and :class:`TextParts` are parts of
the checkpoint.

The assistant's own words come out as lines, one stream for each text part. Reasoning, tools,
subagents (sessions with a parent), summaries of a compaction, copies in a forked session and what
was said before this run never do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from relay.agents.structured_source import (
    SourceState,
    StructuredSource,
    limited,
    remembered,
    table,
)
from relay.core.bounded import BoundedDict
from relay.core.message import AgentState
from relay.core.source_events import (
    Degraded,
    End,
    LimitCause,
    Line,
    Proof,
    SourceEvent,
    StateChange,
)

#: Sessions and open questions that are remembered; the oldest are forgotten first.
SESSIONS_MAX = 256
ASKS_MAX = 64
#: Parts that are remembered; the oldest are forgotten first.
PARTS_MAX = 256
#: Characters of one part; a longer one is cut off from there, visibly.
TEXT_MAX = 4 * 1024 * 1024
#: Seconds that a part which has its end waits for the news that it was broken off. The end of a
#: part that the person stops looks like any other; why it ended is told beside it.
SETTLE = 0.3
#: Statuses with which a model refuses for longer than the next try: no credit, no right.
_REFUSING = frozenset({401, 402, 403})
#: Statuses of a request that is wrong itself.
_THIS_REQUEST_ONLY = frozenset({400, 413, 422})
#: What opencode says of a usage limit while it tries again: it gives no status then.
_USAGE = re.compile(r"\blimit|quota", re.IGNORECASE)


def word(value: Any) -> str:
    """``value`` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def moment(time: Any, name: str) -> float | None:
    """A time of opencode's (milliseconds since the epoch), None where it is missing."""
    value = table(time).get(name)
    return float(value) if isinstance(value, int | float) else None


def limit(error: Any) -> tuple[LimitCause, str] | None:
    """Why the model does not answer, by a message's or session's ``error``. None for what the
    person did (Esc) and for what concerns this one answer."""
    name, data = word(table(error).get("name")), table(table(error).get("data"))
    detail = " ".join(word(data.get("message")).split())[:200]
    if name == "ProviderAuthError":
        reason = f"the model's provider refuses: {detail}" if detail else "the provider refuses"
        return LimitCause.REFUSED, reason
    status = data.get("statusCode")
    if name != "APIError" or status in _THIS_REQUEST_ONLY:
        return None
    cause, reason = LimitCause.ERROR, f"the API answers with an error ({status})"
    if status == 429:
        cause, reason = LimitCause.USAGE, "a usage limit is reached"
    elif status in _REFUSING:
        cause = LimitCause.REFUSED
    elif not status:
        reason = "the API cannot be reached"
    return cause, f"{reason}: {detail}" if detail else reason


def asked_for(request: dict[str, Any]) -> str:
    """What a permission or question waits for, as a reason."""
    permission = word(request.get("permission"))
    return f"asks to use {permission}" if permission else "asks the person a question"


@dataclass(slots=True)
class Conversation:
    """One session of opencode's."""

    parent: str = ""  # a subagent works in a session that has one
    since: float = 0.0  # when it was made, in milliseconds since the epoch
    status: str = "idle"
    #: Why its model does not answer at present.
    cause: LimitCause | None = None
    reason: str = ""
    broken: bool = False  # its last turn was stopped


@dataclass(slots=True)
class Conversations:
    """All sessions of one opencode: which one the person is in, what each does, what is asked.

    What a subagent asks is asked in the terminal of the session at the top of its family.
    """

    current: str = ""  # the session that the person is in, if known
    sessions: BoundedDict[str, Conversation] = field(
        default_factory=lambda: BoundedDict(SESSIONS_MAX)
    )
    #: Requests that wait for the person: [session, reason] by their ids.
    asks: BoundedDict[str, list[str]] = field(default_factory=lambda: BoundedDict(ASKS_MAX))

    def get(self, name: str) -> Conversation | None:
        return self.sessions.get(name)

    def learn(self, info: dict[str, Any]) -> None:
        """Note a session as opencode describes it."""
        name = word(info.get("id"))
        if name:
            known = self._known(name)
            known.parent = word(info.get("parentID"))
            known.since = moment(info.get("time"), "created") or 0.0

    def created(self, info: dict[str, Any]) -> None:
        """Note a new session: the person is in it, unless it is a subagent's."""
        self.learn(info)
        if not word(info.get("parentID")):
            self.current = word(info.get("id")) or self.current

    def deleted(self, name: str) -> None:
        self.sessions.pop(name, None)
        if self.current == name:
            self.current = ""

    def standing(self, status: dict[str, Any], asks: list[Any]) -> None:
        """Note what each session does (one that is not named rests), and all that is asked now."""
        for name, conversation in self.sessions.items():
            if name not in status:
                conversation.status = "idle"
        for name in status:
            self.status(name, table(status[name]))
        self.asks.clear()
        for request in asks:
            self.asked(table(request))

    def status(self, name: str, status: dict[str, Any]) -> None:
        """Note a ``session.status``: ``idle``, ``busy`` or ``retry`` with a message."""
        conversation = self._known(name)
        conversation.status = word(status.get("type"))
        if conversation.status == "retry":
            words = " ".join(word(status.get("message")).split())[:200]
            conversation.reason = f"the model does not answer: {words or 'unknown'}"
            usage = _USAGE.search(words)
            conversation.cause = LimitCause.USAGE if usage else LimitCause.REFUSED
        elif conversation.status == "busy":
            conversation.cause, conversation.broken = None, False

    def failed(self, name: str, error: Any) -> None:
        """Note a turn that ended with an error, or was stopped."""
        conversation = self._known(name)
        conversation.broken = table(error).get("name") == "MessageAbortedError"
        if (known := limit(error)) is not None:
            conversation.cause, conversation.reason = known

    def asked(self, request: dict[str, Any]) -> None:
        """Note a permission or a question that waits for the person."""
        name = word(request.get("id"))
        if name:
            self.asks[name] = [word(request.get("sessionID")), asked_for(request)]

    def answered(self, event: dict[str, Any]) -> None:
        self.asks.pop(word(event.get("requestID")) or word(event.get("permissionID")), None)

    def at_rest(self, name: str) -> bool:
        """Whether no turn runs there and nothing is asked."""
        conversation = self.sessions.get(name)
        asked = any(self._top(asking) == name for asking, _ in self.asks.values())
        return conversation is not None and conversation.status == "idle" and not asked

    def now(self) -> StateChange:
        """Tell what the agent does in the session that the person is in."""
        for name, reason in self.asks.values():
            if not self.current or self._top(name) == self.current:
                return StateChange(AgentState.BLOCKED, reason)
        conversation = self.sessions.get(self.current)
        if conversation is None:
            return StateChange(AgentState.IDLE)
        if conversation.cause is not None:
            return limited(conversation.cause, conversation.reason)
        if conversation.status == "busy":
            return StateChange(AgentState.BUSY)
        return StateChange(AgentState.IDLE, broken=conversation.broken)

    def _known(self, name: str) -> Conversation:
        conversation = self.sessions.get(name)
        if conversation is None:
            conversation = self.sessions[name] = Conversation()
        return conversation

    def _top(self, name: str) -> str:
        for _ in range(len(self.sessions)):
            conversation = self.sessions.get(name)
            if conversation is None or not conversation.parent:
                break
            name = conversation.parent
        return name


@dataclass(slots=True)
class Part:
    """One text part."""

    message: str
    text: str = ""
    heard: int = 0  # characters that have gone out
    gap: bool = False  # deltas were missed
    due: float | None = None  # when an ended part is believed to be complete
    closed: bool = False


@dataclass(slots=True)
class TextParts:
    """The text parts of all messages that are read: deltas and whole parts in, lines out.

    Each part is a stream of its own, named by opencode's own id, so that it has the same name when
    it is read again after a restart. A part's last state carries its whole text; what was missed of
    the deltas in between is taken from there.
    """

    parts: BoundedDict[str, Part] = field(default_factory=lambda: BoundedDict(PARTS_MAX))
    forgotten: str = ""  # the newest part that was forgotten: none before it is new

    def knows(self, part_id: str) -> bool:
        return part_id in self.parts

    def delta(self, part_id: str, delta: str) -> list[SourceEvent]:
        """Add text to the end of a part."""
        part = self.parts.get(part_id)
        if part is None or part.closed or part.gap or part.due is not None:
            return []
        part.text += delta
        if len(part.text) > TEXT_MAX:
            lost: SourceEvent = Degraded("a message of more than 4 MiB was not heard to its end")
            return [lost, *self._close(part_id, part, aborted=True)]
        return self._lines(part_id, part)

    def begin(self, part_id: str, message: str, text: str, *, gap: bool) -> list[SourceEvent]:
        """Take a part as far as it is written. ``gap``: deltas may have been missed."""
        part = self.parts.get(part_id)
        if part is None:
            if part_id <= self.forgotten:
                return []
            part = Part(message)
            if (oldest := self.parts.put(part_id, part)) is not None:
                self.forgotten = max(self.forgotten, oldest[0])
        if part.closed or part.due is not None:
            return []
        part.gap = part.gap or gap
        if len(text) > len(part.text) and text.startswith(part.text):
            part.text = text[:TEXT_MAX]
        return self._lines(part_id, part)

    def finish(self, part_id: str, message: str, text: str, now: float) -> list[SourceEvent]:
        """Take a part that is complete, with this text."""
        events = self.begin(part_id, message, "", gap=False)
        part = self.parts.get(part_id)
        if part is None or part.closed or part.due is not None:
            return events
        part.due = now + SETTLE
        before = part.text[: part.heard]
        if text.startswith(before):
            part.text = text[:TEXT_MAX]
        elif before.startswith(text):  # blanks at its end were taken off
            part.text = before
        else:
            events.append(Degraded("opencode changed what a message says after it had shown it"))
            part.text = before
        return events + self._lines(part_id, part)

    def settle(self, now: float) -> list[SourceEvent]:
        """End the parts that are believed to be complete by ``now``."""
        events: list[SourceEvent] = []
        for part_id, part in self.parts.items():
            if not part.closed and part.due is not None and now >= part.due:
                events += self._close(part_id, part)
        return events

    def next_deadline(self) -> float | None:
        """When ``settle`` has something to do."""
        due = [p.due for p in self.parts.values() if not p.closed and p.due is not None]
        return min(due, default=None)

    def confirm(self, message: str, besides: str = "") -> list[SourceEvent]:
        """End the message's complete parts: it goes on or is complete, so none was broken off."""
        events: list[SourceEvent] = []
        for part_id, part in self._of(message):
            if part.due is not None and part_id != besides:
                events += self._close(part_id, part)
        return events

    def abort(self, message: str) -> list[SourceEvent]:
        """End all parts of a message that was broken off."""
        events: list[SourceEvent] = []
        for part_id, part in self._of(message):
            events += self._close(part_id, part, aborted=True)
        return events

    def missed(self) -> None:
        """Note that deltas were missed: only its last state tells what an open part says."""
        for part in self.parts.values():
            part.gap = part.gap or not part.closed

    def drop(self) -> None:
        """Close all parts without their rest: the screen has it."""
        for part in self.parts.values():
            part.closed, part.text = True, ""

    def all_over(self) -> list[SourceEvent]:
        """End all parts: the agent has ended."""
        events: list[SourceEvent] = []
        for part_id, part in self.parts.items():
            if not part.closed:
                events += self._close(part_id, part, aborted=part.due is None)
        return events

    def open_messages(self) -> set[str]:
        """The messages with a part that is not closed."""
        return {part.message for part in self.parts.values() if not part.closed}

    def _of(self, message: str) -> list[tuple[str, Part]]:
        return [
            (part_id, part)
            for part_id, part in self.parts.items()
            if part.message == message and not part.closed
        ]

    @staticmethod
    def _lines(part_id: str, part: Part) -> list[SourceEvent]:
        """Take the complete lines that have not gone out yet."""
        end = part.text.rfind("\n") + 1
        if end <= part.heard:
            return []
        lines = part.text[part.heard : end - 1].split("\n")
        part.heard = end
        return [Line(part_id, line.rstrip("\r")) for line in lines]

    @staticmethod
    def _close(part_id: str, part: Part, *, aborted: bool = False) -> list[SourceEvent]:
        rest = part.text[part.heard :]
        part.closed, part.text = True, ""
        lines: list[SourceEvent] = [Line(part_id, rest)] if rest and not aborted else []
        return [*lines, End(part_id, aborted)]


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
