"""opencode's sessions: which one the person is in, what each does, what waits for consent. Pure.

Subagents work in sessions that have a parent; what they ask is asked in the terminal of the session
at the top of their family.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from relay.agents.opencode.records import asked_for, moment, table, trouble, word
from relay.core.bounded import BoundedDict
from relay.core.message import AgentState
from relay.core.source_events import StateChange

#: Sessions and open questions that are remembered; the oldest are forgotten first.
SESSIONS_MAX = 256
ASKS_MAX = 64
#: After an error of the API the next try is worth it after so many seconds; after a limit, so many.
ERROR_RETRY, LIMIT_RETRY = 30.0, 300.0


@dataclass(slots=True)
class Conversation:
    """One session of opencode's. ``since`` is when it was made (milliseconds since the epoch);
    ``trouble`` is why its model does not answer at present, ``retry`` as in StateChange."""

    parent: str = ""
    since: float = 0.0
    status: str = "idle"
    trouble: str = ""
    retry: float | None = None


class Conversations:
    """All sessions of one opencode. ``current`` is the one that the person is in, if known."""

    def __init__(self, current: str) -> None:
        self.current = current
        self._sessions: BoundedDict[str, Conversation] = BoundedDict(SESSIONS_MAX)
        self._asks: BoundedDict[str, tuple[str, str]] = BoundedDict(ASKS_MAX)

    def get(self, name: str) -> Conversation | None:
        return self._sessions.get(name)

    def learn(self, info: dict[str, Any]) -> None:
        """A session, as opencode describes it."""
        name = word(info.get("id"))
        if name:
            known = self._known(name)
            known.parent = word(info.get("parentID"))
            known.since = moment(info.get("time"), "created") or 0.0

    def created(self, info: dict[str, Any]) -> None:
        """A session has just been made: the person is in it, unless it is a subagent's."""
        self.learn(info)
        if not word(info.get("parentID")):
            self.current = word(info.get("id")) or self.current

    def deleted(self, name: str) -> None:
        self._sessions.pop(name, None)
        if self.current == name:
            self.current = ""

    def standing(self, status: dict[str, Any], asks: list[Any]) -> None:
        """What each is doing now (one that is not named rests), and all that is asked now."""
        for name, conversation in self._sessions.items():
            if name not in status:
                conversation.status = "idle"
        for name in status:
            self.status(name, table(status[name]))
        self._asks.clear()
        for request in asks:
            self.asked(table(request))

    def status(self, name: str, status: dict[str, Any]) -> None:
        """A ``session.status``: ``idle``, ``busy`` or ``retry`` with a message."""
        conversation = self._known(name)
        conversation.status = word(status.get("type"))
        if conversation.status == "retry":
            said = " ".join(word(status.get("message")).split())[:200]
            conversation.trouble = f"the model does not answer: {said or 'unknown'}"
            conversation.retry = LIMIT_RETRY
        elif conversation.status == "busy":
            conversation.trouble, conversation.retry = "", None

    def failed(self, name: str, error: Any) -> None:
        """A turn ended with an error."""
        why, lasting = trouble(error)
        if why:
            conversation = self._known(name)
            conversation.trouble = why
            conversation.retry = LIMIT_RETRY if lasting else ERROR_RETRY

    def asked(self, request: dict[str, Any]) -> None:
        """A permission or a question waits for the person."""
        name = word(request.get("id"))
        if name:
            self._asks[name] = (word(request.get("sessionID")), asked_for(request))

    def answered(self, event: dict[str, Any]) -> None:
        self._asks.pop(word(event.get("requestID")) or word(event.get("permissionID")), None)

    def at_rest(self, name: str) -> bool:
        """Whether no turn runs there and nothing is asked."""
        conversation = self._sessions.get(name)
        asked = any(self._top(asking) == name for asking, _ in self._asks.values())
        return conversation is not None and conversation.status == "idle" and not asked

    def now(self) -> StateChange:
        """What the agent is doing."""
        for name, reason in self._asks.values():
            if not self.current or self._top(name) == self.current:
                return StateChange(AgentState.BLOCKED, reason)
        conversation = self._sessions.get(self.current)
        if conversation is None:
            return StateChange(AgentState.IDLE)
        if conversation.trouble:
            return StateChange(AgentState.LIMITED, conversation.trouble, conversation.retry)
        busy = conversation.status == "busy"
        return StateChange(AgentState.BUSY if busy else AgentState.IDLE)

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        sessions = {name: asdict(one) for name, one in self._sessions.items()}
        return {"sessions": sessions, "current": self.current}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken; what is asked now is asked of the server."""
        for name, one in state["sessions"].items():
            self._sessions[name] = Conversation(**one)
        self.current = state["current"]

    def _known(self, name: str) -> Conversation:
        conversation = self._sessions.get(name)
        if conversation is None:
            conversation = self._sessions[name] = Conversation()
        return conversation

    def _top(self, name: str) -> str:
        for _ in range(len(self._sessions)):
            conversation = self._sessions.get(name)
            if conversation is None or not conversation.parent:
                break
            name = conversation.parent
        return name
