"""Reports which messages the agent answered in a turn, and with which words. Pure.

Only for messages that ask for it (``Message.wants_turn``). A turn ends when the agent's own source
says so. For a program without such a source it ends after some seconds of silence at its prompt,
and the report says that this was inferred.

No kill loses or repeats a report: a message goes to the agent only once the checkpoint names it,
the next session hears again what the agent said after the checkpoint, and the broker knows for each
message whether its turn was reported.

``PermissionGate`` keeps what the running turn may use.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from relay.agents.hook_codec import AgentHookCall, text_of
from relay.agents.known_agents import why_ungated
from relay.agents.tool_uses import canonical, limits, refusal
from relay.core.bounded import BoundedDict
from relay.core.dispatch import PermissionLevel, PermissionSet, ToolRules
from relay.core.errors import RelayError
from relay.core.message import AgentState, Message, State
from relay.core.source_events import StateChange
from relay.core.state import from_json, to_json
from relay.directive.envelope import marker_of
from relay.protocol.turns import ToolCall, TurnCause, TurnResult, TurnState
from relay.session.session_commands import (
    DeliverMessage,
    DriverCommand,
    LookUpDeliveries,
    ReportDelivery,
    ReportTurn,
)

if TYPE_CHECKING:
    from relay.session.sources import SourceSelector

#: Messages whose turns are awaited; the next one replaces the oldest.
OWED_MAX = 1000
#: Characters of one turn's words; of more the last. All that the broker does not have yet have
#: room for so many, and at least so many each.
TEXT_MAX = 128 * 1024
PENDING_MAX = 2 * 1024 * 1024
TEXT_LEAST = 4096
#: Seconds after the end of a turn, and after the words that came last, in which more may come;
#: the screen may show the end before the agent's records have the words. A turn without any that
#: nobody broke off may not be over: on a busy machine an agent is seen at rest before it has begun.
SETTLE, SETTLE_SHOWN, SETTLE_MUTE = 0.5, 1.0, 10.0
#: … where the agent itself says that words of it are still on their way.
SETTLE_OWED = 10.0
#: Seconds after words, or after the message, in which an agent that tells of its turns begins one.
LATE, NEVER = 2.0, 30.0
#: Seconds that a message may take from its delivery until it is seen.
ARRIVES = 10.0
#: Seconds of silence at the prompt after which a turn of a program that tells nothing is over:
#: with words of its own since the message, and without.
SILENCE, MUTE = 2.0, 10.0
#: So often a program that tells nothing is looked at meanwhile.
LOOK = 0.5

#: Tool calls of one turn that are told, the first ones, and characters of the input and the result
#: of each.
TOOL_CALLS_MAX, TOOL_TEXT_MAX = 100, 1000

Json = dict[str, Any]


@dataclass(slots=True)
class TurnCheckpoint:
    """The turn's part of the checkpoint."""

    #: Messages on their way that ask for their turn: the marker, by the id.
    owed: BoundedDict[str, str] = field(default_factory=lambda: BoundedDict(OWED_MAX))
    #: Messages in the running turn, in the order in which they were seen; likewise.
    seen: dict[str, str] = field(default_factory=dict)
    #: The turn has certainly begun.
    began: bool = False
    lines: list[str] = field(default_factory=list)
    #: The tools of the turn.
    calls: list[Json] = field(default_factory=list)
    size: int = 0
    left_out: int = 0
    started_ms: int = 0
    #: Reports that the broker has not confirmed.
    pending: list[Json] = field(default_factory=list)


class TurnReports:
    """Collects the words and tools of a turn, and reports it once it is over."""

    def __init__(
        self,
        sources: SourceSelector,
        now_ms: Callable[[], int],
        at_prompt: Callable[[float], bool],
        quiet_for: Callable[[float], float],
        gate: PermissionGate | None = None,
    ) -> None:
        """``at_prompt``: whether a program that is heard by its screen alone can take a message;
        ``quiet_for``: for how many seconds it has written nothing."""
        self.at_prompt = at_prompt
        #: The permissions of the turn, which end with it.
        self.gate = gate or PermissionGate("nothing asks about them")
        self._sources = sources
        self._now_ms = now_ms
        self._quiet_for = quiet_for
        self._saved = TurnCheckpoint()
        self._held: deque[Message] = deque()  # until the checkpoint names them
        self._state = AgentState.STARTING
        self._begun_at = 0.0  # of this turn: when its first message was seen
        self._heard_at: float | None = None  # … when its last words were heard
        self._over_at: float | None = None  # … when it was said to be over
        self._failed = ""  # … why the model did not answer
        self._stopped = ""  # … for what it is being stopped
        self._broken = False  # … it was broken off
        self._look_at: float | None = None
        self._reads_again = False  # the turn began in a session before this one
        self._sent_at: float | None = None  # when a message went over that is not seen yet
        self._untold: list[Json] = []  # reports of an earlier session

    # -- messages ---------------------------------------------------------------------------------

    def arrived(self, message: Message) -> Iterator[DriverCommand]:
        """A message has come: it goes to the agent, unless it has to wait for a checkpoint."""
        if why := self.gate.arrived(message):
            yield ReportDelivery(message, State.FAILED, why)
            return
        if message.wants_turn:
            self._saved.owed.put(message.id, marker_of(message))
        elif not self._held:
            yield DeliverMessage(message)
            return
        self._held.append(message)  # a message that asks for no turn keeps its place

    def written(self) -> Iterator[DriverCommand]:
        """A checkpoint is written: the messages that waited for it go to the agent."""
        while self._held:
            yield DeliverMessage(self._held.popleft())

    def proven(self, text: str, now: float) -> Iterator[DriverCommand]:
        """``text`` has reached the agent: messages in it are in the running turn."""
        saved = self._saved
        silent = self._over_at is not None or (not saved.began and self._heard_at is not None)
        if silent and not any(marker in text for marker in saved.seen.values()):
            yield from self._report(now)  # it begins the next turn
        for id_ in [id_ for id_, marker in saved.owed.items() if marker in text]:
            if not saved.seen:
                saved.started_ms = 0  # earlier words answer something else
            yield from self._seen(id_, now)

    def delivered(self, id_: str, state: State, now: float) -> Iterator[DriverCommand]:
        """A delivery has reached ``state``."""
        self.gate.delivered(id_, state)
        if id_ not in self._saved.owed:
            return
        self._sent_at = now if state in (State.DELIVERING, State.SUBMITTED) else None
        if state in (State.FAILED, State.CANCELLED):
            del self._saved.owed[id_]
        elif state is State.SEEN or (state is State.SUBMITTED and self._sources.screen_only):
            yield from self._seen(id_, now)
        elif state is State.DELIVERING and self._sources.screen_only and not self._saved.seen:
            self._begin(now)  # the answer may come before the report of the delivery

    def _seen(self, id_: str, now: float) -> Iterator[DriverCommand]:
        marker, self._sent_at = self._saved.owed.pop(id_), None
        if self._over_at is not None or self._state is AgentState.GONE:
            yield from self._report(now)  # the next turn has begun
        if not self._saved.seen:
            if not self._saved.started_ms:
                self._begin(now)
            self._saved.began = self._state in (AgentState.BUSY, AgentState.BLOCKED)
        self._saved.seen[id_] = marker
        if self._state is AgentState.GONE:
            yield from self._report(now)

    def _begin(self, now: float) -> None:
        self._saved.lines, self._saved.size, self._saved.left_out = [], 0, 0
        self._saved.calls = []
        self._saved.started_ms, self._begun_at = self._now_ms(), now
        self._heard_at = self._over_at = self._look_at = None
        self._failed, self._stopped, self._broken = "", "", False

    # -- what the agent does ----------------------------------------------------------------------

    def said(self, texts: list[str], now: float) -> None:
        """The agent said these lines."""
        saved = self._saved
        if not saved.started_ms:
            return
        saved.lines += texts
        saved.size += sum(map(len, texts)) + len(texts)
        room = self._room()
        drop = 0
        while saved.size > room and drop < len(saved.lines) - 1:
            saved.size -= len(saved.lines[drop]) + 1
            drop += 1
        del saved.lines[:drop]
        saved.left_out += drop
        if saved.size > room:  # one line that is too long
            saved.lines[0] = saved.lines[0][-room:]
            saved.size = room
        self._heard_at = now

    def _room(self) -> int:
        used = sum(len(one["text"]) for one in self._saved.pending)
        return max(TEXT_LEAST, min(TEXT_MAX, PENDING_MAX - used))

    def used(self, call: Mapping[str, Any]) -> None:
        """The agent will use a tool, or has used it (``phase``), as its own hook reports."""
        calls, id_ = self._saved.calls, call.get("id")
        if not self._saved.started_ms:
            return
        known = [one for one in calls if one["id"] == id_] if id_ else []
        if not known:
            if len(calls) == TOOL_CALLS_MAX:
                return
            params = _json_of(call.get("input"))
            name = str(call.get("tool") or "")
            known = [{"id": id_, "name": name, "params": params, "started_ms": self._now_ms()}]
            calls += known
        if call.get("phase") == "after":
            result = _json_of(call.get("response"))
            known[-1].update(result=result, completed_ms=self._now_ms())

    def _calls(self) -> Iterator[ToolCall]:
        for one in self._saved.calls:
            done = one.get("completed_ms")
            state = "completed" if done else "begun"
            result = one.get("result")
            yield ToolCall(one["name"], one["params"], result, state, one["started_ms"], done)

    def state_changed(self, change: StateChange, now: float) -> None:
        """The agent does something else now."""
        self._state = state = change.state
        self.gate.state_changed(state)
        if not self._saved.seen:
            return
        if state in (AgentState.BUSY, AgentState.BLOCKED):
            self._saved.began, self._over_at = True, None
        elif state is AgentState.LIMITED:
            self._failed, self._over_at = change.reason or "its model does not answer", now
        elif state is AgentState.IDLE and self._saved.began:
            self._over_at, self._broken = now, change.broken

    def stopped(self, what: str) -> None:
        """The agent was told to stop its turn, for this."""
        self._stopped = what

    def settling(self, now: float) -> bool:
        """Whether the last words of a turn may still come, so that nothing may begin the next one;
        for a short time only, where that is unknown."""
        if self._state in (AgentState.BUSY, AgentState.BLOCKED):
            return False
        if self._sent_at is not None and now < self._sent_at + ARRIVES:
            return True
        if not self._saved.seen:
            return False
        return self._over_at is not None or now < self._begun_at + NEVER

    def gone(self, now: float) -> Iterator[DriverCommand]:
        """The agent has ended, and the running turn with it."""
        self._state = AgentState.GONE
        if self._saved.seen:
            yield from self._report(now)

    # -- time -------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """When ``tick`` is due."""
        if self._untold:
            return self._begun_at
        if not self._saved.seen:
            return None
        if self._sources.screen_only:
            return self._look_at or self._begun_at + LOOK
        if self._over_at is not None:
            settle = SETTLE_SHOWN if self._sources.infers_turns else SETTLE
            if self._heard_at is None and not (self._stopped or self._broken or self._failed):
                settle = SETTLE_MUTE
            elif self._sources.owes_words:
                settle = SETTLE_OWED
            return max(self._over_at, self._heard_at or 0.0) + settle
        if self._saved.began:
            return None
        return self._begun_at + NEVER if self._heard_at is None else self._heard_at + LATE

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Report a turn that is over by now."""
        due = self.deadline()
        if due is None or now < due:
            return
        if self._untold:
            yield from map(ReportTurn, self._untold)
            self._untold.clear()
            return
        if self._sources.screen_only:
            self._look_at = now + LOOK
            if not self._rests(now):
                return
        yield from self._report(now)

    def _rests(self, now: float) -> bool:
        """Whether a program without turns of its own has rested at its prompt for long enough."""
        if self._state in (AgentState.BUSY, AgentState.BLOCKED):
            return False
        patience = MUTE if self._heard_at is None else SILENCE
        quiet = min(self._quiet_for(now), now - self._begun_at)
        return quiet >= patience and self.at_prompt(now)

    # -- reports ----------------------------------------------------------------------------------

    def _report(self, now: float) -> Iterator[DriverCommand]:
        saved = self._saved
        text = "\n".join(self._own_lines()).strip("\n")
        ids, saved.seen, self._reads_again = list(saved.seen), {}, False
        self.gate.ended(ids)
        if saved.left_out:
            text = f"[the first {saved.left_out} lines are left out]\n{text}"
        ended = TurnResult()
        if self._failed:
            ended = TurnResult.of(TurnCause.AGENT, self._failed)
        elif self._stopped and (self._over_at is not None or self._state is AgentState.GONE):
            ended = TurnResult.of(TurnCause.STOPPED, self._stopped)
        elif self._broken:
            ended = TurnResult.of(TurnCause.BROKEN_OFF)
        elif self._state is AgentState.GONE:
            ended = TurnResult(TurnState.INTERRUPTED, cause=TurnCause.GONE, detail="the agent")
        ended = replace(
            ended,
            text=text,
            model=self._sources.model or None,
            tool_calls=tuple(self._calls()),
            inferred=self._sources.infers_turns or not (saved.began or self._failed),
            ended_ms=self._now_ms(),
        )
        fields: Json = {**ended.to_json(), "ids": ids, "started_ms": saved.started_ms}
        self._begin(now)
        saved.started_ms, saved.began = 0, False
        if ids:
            saved.pending.append(fields)
            yield ReportTurn(fields)

    def _own_lines(self) -> list[str]:
        """The words without the echo of typed text: a session that reads a screen again after a
        kill cannot tell them apart."""
        lines, markers = self._saved.lines, self._saved.seen.values()
        if not (self._reads_again and self._sources.screen_only):
            return lines
        echoed = [n for n, line in enumerate(lines, 1) if any(one in line for one in markers)]
        return lines[echoed[-1] :] if echoed else lines

    def told(self, ids: list[str]) -> None:
        """The broker has this report, or has refused it for good."""
        self._saved.pending = [one for one in self._saved.pending if one["ids"] != ids]

    @property
    def empty(self) -> bool:
        """Whether the broker has all reports."""
        return not self._saved.pending

    def state(self) -> Any:
        """The state for the checkpoint."""
        return to_json(self._saved)

    def restore(self, state: Any, now: float) -> None:
        """Go on where an earlier session of this run was."""
        self._saved = from_json(TurnCheckpoint, state or {})
        self._begun_at = now
        self._reads_again = bool(self._saved.owed or self._saved.seen)
        self._heard_at = now if self._saved.lines else None
        self._untold = list(self._saved.pending)
        if self._saved.owed and not self._saved.started_ms:
            self._saved.started_ms = self._now_ms()  # words heard now may answer one of them

    def look_up(self, name: str) -> Iterator[DriverCommand]:
        """Ask the broker for the states of messages on their way to the agent ``name``."""
        if self._saved.owed:
            yield LookUpDeliveries(list(self._saved.owed), name)


def _json_of(value: object) -> str | None:
    text = None if value is None else json.dumps(value, ensure_ascii=False, default=str)
    if text is None or len(text) <= TOOL_TEXT_MAX:
        return text
    return json.dumps(text[: TOOL_TEXT_MAX - 20] + " [cut]", ensure_ascii=False)


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
    """Decides whether the turn may make a tool call, by the messages that were dispatched to it.

    Their permissions hold from the moment in which a message may reach the agent until its turn has
    ended and the agent rests. If several messages are in the turn, a tool needs the permission of
    each. A message that may have arrived (the session was killed in between) counts as arrived. A
    sub-agent keeps the limits under which it was first seen, because it may outlast its turn.

    ``ungated``: why the agent's calls do not come here; then it gets no message with limits.
    ``unasked``: tools that it uses without asking.
    """

    def __init__(self, ungated: str, unasked: Sequence[str] = ()) -> None:
        self._ungated = ungated
        self._unasked = unasked
        self._saved = GateCheckpoint()
        self._subagents: BoundedDict[str, list[PermissionSet]] = BoundedDict(SUBAGENTS_MAX)
        self._state = AgentState.STARTING

    @classmethod
    def of_one_turn(cls, permissions: PermissionSet) -> PermissionGate:
        """The gate of a run that is one turn with these permissions."""
        gate = cls("")
        gate._saved.limited["turn"] = [permissions.to_json(), REACHING]
        return gate

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
            return (
                f"this agent uses {', '.join(found)} without asking, which the turn may not use;"
                " allow it in the permissions, or let a headless persona of another name answer"
            )
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
