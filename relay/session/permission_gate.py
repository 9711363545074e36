"""The permissions of a wrapped agent's running turn, from the messages that were dispatched to it.

Pure. They hold from the moment in which a message may reach the agent until its turn has ended and
the agent rests. If several messages are in the turn, a tool needs the permission of each. A message
that may have arrived (the session was killed in between) counts as arrived.

A sub-agent keeps the limits under which it was first seen, because it may outlast its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.agents.hook_codec import AgentHookCall, text_of
from relay.agents.known_agents import why_ungated
from relay.agents.tool_uses import canonical, limits, refusal
from relay.core.bounded import BoundedDict
from relay.core.dispatch import PermissionLevel, PermissionSet, ToolRules
from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.core.state import from_json, to_json

#: Messages with limits at a time; the next one is refused.
LIMITED_MAX = 1000
#: Sub-agents that are remembered; the oldest is forgotten first.
SUBAGENTS_MAX = 1000

WAITING, REACHING, OVER = "waiting", "reaching", "over"
_WORKS = (AgentState.BUSY, AgentState.BLOCKED)


@dataclass(slots=True)
class GateCheckpoint:
    """The gate's part of the checkpoint: by the message's id, its permissions and its state."""

    limited: dict[str, list[Any]] = field(default_factory=dict)
    #: The limits of the last such turn that started a sub-agent.
    left: list[dict[str, Any]] = field(default_factory=list)


class PermissionGate:
    """Decides whether the turn may make a tool call.

    ``ungated``: why the agent's calls do not come here; then it gets no message with limits.
    ``unasked``: tools that it uses without asking.
    """

    def __init__(self, ungated: str, unasked: Sequence[str] = ()) -> None:
        self._ungated = ungated
        self._unasked = unasked
        self._saved = GateCheckpoint()
        self._subagents: BoundedDict[str, list[PermissionSet]] = BoundedDict(SUBAGENTS_MAX)
        self._state = AgentState.STARTING

    # -- messages

    def arrived(self, message: Message) -> str:
        """Note a message. Returns why this agent cannot get it, "" if it can."""
        if message.permissions is None:
            return ""
        permissions = _read(message.permissions)
        if not limits(permissions):
            return ""
        if self._ungated:
            return f"this agent cannot be held to what the turn may use: {self._ungated}"
        if found := [one for one in self._unasked if refusal(permissions, one)]:
            return f"this agent uses {', '.join(found)} without asking, which the turn may not use"
        if message.id not in self._saved.limited and len(self._saved.limited) >= LIMITED_MAX:
            return "too many turns with limits wait already"
        place = REACHING if message.attempt else WAITING
        self._saved.limited[message.id] = [permissions.to_json(), place]
        return ""

    def delivered(self, id_: str, state: State) -> None:
        """A delivery has reached ``state``."""
        one = self._saved.limited.get(id_)
        if one is None:
            return
        if state in (State.DELIVERING, State.SUBMITTED, State.SEEN):
            one[1] = REACHING
        elif state in (State.FAILED, State.CANCELLED):
            if one[1] == WAITING:
                del self._saved.limited[id_]
            else:  # a part of it may have arrived
                self.ended([id_])
        elif one[1] == REACHING:
            one[1] = WAITING

    def ended(self, ids: Sequence[str]) -> None:
        """The turn with these messages is over."""
        for id_ in ids:
            if id_ in self._saved.limited:
                self._saved.limited[id_][1] = OVER
        self._lift()

    def state_changed(self, state: AgentState) -> None:
        """The agent does something else now."""
        self._state = state
        self._lift()

    def _lift(self) -> None:
        if self._state not in _WORKS:
            kept = {id_: one for id_, one in self._saved.limited.items() if one[1] != OVER}
            self._saved.limited = kept

    # -- the turn

    @property
    def in_force(self) -> list[PermissionSet]:
        """The permission sets that hold now."""
        sets = [one for one in self._saved.limited.values() if one[1] != WAITING]
        return [_read(one) for one, _ in sets]

    def refuses(self, call: AgentHookCall) -> str:
        """Why a tool call is refused; "" if it is allowed."""
        name, params = text_of(call.fields, "tool_name"), call.fields.get("tool_input")
        sets = self.in_force
        subagent = text_of(call.native, "agent_id")
        if subagent:
            if subagent not in self._subagents:
                before = [_read(one) for one in self._saved.left]
                self._subagents.put(subagent, sets or before)
            sets = [*sets, *self._subagents[subagent]]
        why = next(filter(None, (refusal(one, name, params) for one in sets)), "")
        if not why and canonical(name) == "agent" and not subagent:
            self._saved.left = [one.to_json() for one in sets]
        return why

    def refuses_words(self, namespace: str, target: str) -> str:
        """Why a directive (``@relay:Bob …``) is refused; "" if it is allowed."""
        own = {"relay": "message", "memory": "memory", "intent": "tools"}
        name = own.get(namespace, f"@{namespace}:{target}")
        return next(filter(None, (refusal(one, name) for one in self.in_force)), "")

    # -- the checkpoint

    def state(self) -> Any:
        """The state for the checkpoint."""
        return to_json(self._saved)

    def restore(self, state: Any) -> None:
        """Continue from a checkpoint; messages that waited then may have been delivered since."""
        self._saved = from_json(GateCheckpoint, state or {})
        for one in self._saved.limited.values():
            one[1] = REACHING if one[1] == WAITING else one[1]


def gate_of_run(
    kind: str, launch: Mapping[str, Any], checkpoint: Mapping[str, Any]
) -> PermissionGate:
    """The gate of a run of this kind of agent; ``launch``: how it was started."""
    gate = PermissionGate(why_ungated(kind, launch), launch.get("unasked") or ())
    gate.restore(checkpoint.get("gate"))
    return gate


def _read(value: Mapping[str, Any]) -> PermissionSet:
    """The permission set; one that cannot be read allows nothing."""
    try:
        return PermissionSet.from_json(value)
    except RelayError:
        return PermissionSet(PermissionLevel.RESTRICTED, ToolRules(()))
