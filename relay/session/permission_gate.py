"""What the running turn of a wrapped agent may use: the permissions of what was dispatched to it.

Pure. They count from the moment in which a message may reach the agent until its turn has ended and
the agent rests; where several do, a tool needs all of them. What is not known for sure (a session
that was killed in between) counts as if it had reached it.

A sub-agent is judged by the limits under which it was first seen, too: it may outlast its turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.agents.hook_codec import AgentHookCall, text_of
from relay.agents.known_agents import why_ungated
from relay.agents.tool_names import canonical, limits, refusal
from relay.core.bounded import BoundedDict
from relay.core.dispatch import PermissionLevel, PermissionSet, ToolRules
from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.core.state import from_json, to_json

#: Messages with limits that may be there at a time; a further one is refused.
LIMITED_MAX = 1000
#: Sub-agents that are remembered; the oldest is forgotten first.
SUBAGENTS_MAX = 1000

WAITING, REACHING, OVER = "waiting", "reaching", "over"
_WORKS = (AgentState.BUSY, AgentState.BLOCKED)


@dataclass(slots=True)
class GateCheckpoint:
    """The part of the checkpoint: by the message's id, its permissions and where it is."""

    limited: dict[str, list[Any]] = field(default_factory=dict)
    #: Of the last turn with limits that started a sub-agent.
    left: list[dict[str, Any]] = field(default_factory=list)


class PermissionGate:
    """Says of each tool call whether the turn may make it.

    ``ungated``: why the agent's calls do not come here; then what has limits is not for it.
    ``unasked``: tools that it uses without asking.
    """

    def __init__(self, ungated: str, unasked: Sequence[str] = ()) -> None:
        self._ungated = ungated
        self._unasked = unasked
        self._saved = GateCheckpoint()
        self._subagents: BoundedDict[str, list[PermissionSet]] = BoundedDict(SUBAGENTS_MAX)
        self._state = AgentState.STARTING

    # -- what reaches the agent

    def arrived(self, message: Message) -> str:
        """Take note of a message; why it cannot be given to this agent, "" where it can."""
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
        """A delivery has got this far."""
        one = self._saved.limited.get(id_)
        if one is None:
            return
        if state in (State.DELIVERING, State.SUBMITTED, State.SEEN):
            one[1] = REACHING
        elif state in (State.FAILED, State.CANCELLED):
            if one[1] == WAITING:
                del self._saved.limited[id_]
            else:  # a part of it may be there
                self.ended([id_])
        elif one[1] == REACHING:
            one[1] = WAITING

    def ended(self, ids: Sequence[str]) -> None:
        """The turn of these is over."""
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

    # -- what the turn does

    @property
    def in_force(self) -> list[PermissionSet]:
        """The sets that count now."""
        sets = [one for one in self._saved.limited.values() if one[1] != WAITING]
        return [_read(one) for one, _ in sets]

    def refuses(self, call: AgentHookCall) -> str:
        """Why a tool call is refused; "" where it is not."""
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
        """Why a line for somebody else (``@relay:Bob …``) is not acted on; "" where it is."""
        own = {"relay": "message", "memory": "memory", "intent": "tools"}
        name = own.get(namespace, f"@{namespace}:{target}")
        return next(filter(None, (refusal(one, name) for one in self.in_force)), "")

    # -- the checkpoint

    def state(self) -> Any:
        """For the checkpoint."""
        return to_json(self._saved)

    def restore(self, state: Any) -> None:
        """Go on where an earlier session was: what waited then may have gone over since."""
        self._saved = from_json(GateCheckpoint, state or {})
        for one in self._saved.limited.values():
            one[1] = REACHING if one[1] == WAITING else one[1]


def gate_of_run(
    kind: str, launch: Mapping[str, Any], checkpoint: Mapping[str, Any]
) -> PermissionGate:
    """The gate of a run of this kind of agent, that was started as ``launch`` says."""
    gate = PermissionGate(why_ungated(kind, launch), launch.get("unasked") or ())
    gate.restore(checkpoint.get("gate"))
    return gate


def _read(value: Mapping[str, Any]) -> PermissionSet:
    """The set; of one that cannot be read nothing is allowed."""
    try:
        return PermissionSet.from_json(value)
    except RelayError:
        return PermissionSet(PermissionLevel.RESTRICTED, ToolRules(()))
