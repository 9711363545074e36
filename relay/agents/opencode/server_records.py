"""What opencode's server says of sessions, messages and parts, and what is kept of it. Pure.

The forms are opencode's own (1.18): an event is ``{"type", "properties"}``; a message has an
``info`` (``id, sessionID, role, time{created,completed}, parentID, error, summary, agent, model``)
and parts (``id, messageID, sessionID, type, text, time{start,end}, synthetic``). Ids of one kind
sort by the time at which they were made.

A file of its own beside the template: the source has the rules of what is told, this the state of
the two things that change by themselves, sessions and growing texts. Its classes are checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from relay.agents.structured_source import ERROR_RETRY, LIMIT_RETRY
from relay.core.bounded import BoundedDict
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, Line, SourceEvent, StateChange

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
#: Statuses with which a model refuses for longer than the next try (no credit, no right, a limit).
_REFUSING = frozenset({401, 402, 403, 429})


def table(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def word(value: Any) -> str:
    """``value`` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def moment(time: Any, name: str) -> float | None:
    """A time of opencode's (milliseconds since the epoch), None where it is missing."""
    value = table(time).get(name)
    return float(value) if isinstance(value, int | float) else None


def trouble(error: Any) -> tuple[str, bool]:
    """What is wrong in a message's or session's ``error``, and whether the next try is likely to
    meet it too. Empty for what the person did (Esc) and for what concerns this one answer."""
    name, data = word(table(error).get("name")), table(table(error).get("data"))
    if name in ("", "MessageAbortedError", "MessageOutputLengthError", "ContextOverflowError"):
        return "", False
    said = " ".join(word(data.get("message")).split())[:200]
    if name == "ProviderAuthError":
        return f"the model's provider refuses: {said}" if said else "the provider refuses", True
    if name != "APIError":
        return "", False
    status = data.get("statusCode")
    what = f"the API answers with an error ({status})" if status else "the API cannot be reached"
    if status == 429:
        what = "a usage limit is reached"
    if status == 400 or status == 413 or status == 422:
        return "", False  # something is wrong with this request, not with the model
    return f"{what}: {said}" if said else what, status in _REFUSING


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
    trouble: str = ""  # why its model does not answer at present
    retry: float | None = None  # as in StateChange


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
            said = " ".join(word(status.get("message")).split())[:200]
            conversation.trouble = f"the model does not answer: {said or 'unknown'}"
            conversation.retry = LIMIT_RETRY
        elif conversation.status == "busy":
            conversation.trouble, conversation.retry = "", None

    def failed(self, name: str, error: Any) -> None:
        """Note a turn that ended with an error."""
        why, lasting = trouble(error)
        if why:
            conversation = self._known(name)
            conversation.trouble = why
            conversation.retry = LIMIT_RETRY if lasting else ERROR_RETRY

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
        if conversation.trouble:
            return StateChange(AgentState.LIMITED, conversation.trouble, conversation.retry)
        busy = conversation.status == "busy"
        return StateChange(AgentState.BUSY if busy else AgentState.IDLE)

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
