"""Codex's session files as turns: one after the other, each with an id of Codex's own. Pure.

A conversation that was forked says so in its first line, and goes on with the turns of the other;
so does a sub-agent's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.agents.json_lines import object_in, text_in
from relay.agents.past.past_reader import OpenTurn, PastReader, milliseconds_of, whole
from relay.protocol.past_turns import CODEX
from relay.protocol.turns import TurnState

#: Turns back to which a conversation may be rolled back.
BACK_MAX = 64
#: What Codex says in the person's place, where it does not tell apart who has said what.
_OWN_WORDS = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md")
_CALLS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "local_shell_call": "action",
    "web_search_call": "action",
    "tool_search_call": "arguments",
}


class CodexTurns(PastReader):
    """One session file."""

    source = CODEX

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        #: The conversation, and the one in which it is a sub-agent's, or the same.
        self._id = str(state.get("id", ""))
        self._root = str(state.get("root", ""))
        self._number = int(state.get("number", 0))
        #: The turns' own ids, and those of their rows.
        self._back: list[list[str]] = list(state.get("back", []))

    def state(self) -> dict[str, Any]:
        more = {"id": self._id, "root": self._root, "number": self._number, "back": self._back}
        return {**super().state(), **more}

    def read(self, record: dict[str, Any]) -> None:
        payload, at_ms = record.get("payload"), milliseconds_of(record.get("timestamp"))
        if not isinstance(payload, dict):
            return
        kind = record.get("type")
        if kind == "session_meta":
            self._meta(payload, at_ms)
        if not self._id:
            return
        if kind == "event_msg":
            self._event(payload, at_ms)
        elif kind == "response_item":
            self._item(payload, at_ms)
        elif kind == "turn_context":
            turn = self._turn(payload.get("turn_id"), at_ms)
            model = payload.get("model")
            turn.model = model[:256] if isinstance(model, str) else turn.model
        elif kind == "token_usage_record":
            self._tokens(payload, at_ms)
        elif kind == "compacted":
            self._compacted(payload, at_ms)

    def _meta(self, payload: Mapping[str, Any], at_ms: int) -> None:
        id_ = payload.get("id")
        if self._id or not isinstance(id_, str) or not 0 < len(id_) <= 128:
            return  # a copy of another's, where that was copied whole
        above, root = (payload.get(name) for name in ("parent_thread_id", "session_id"))
        self._id = self._root = id_
        parent = payload.get("forked_from_id")
        if isinstance(above, str) and 0 < len(above) <= 128:
            self._root = root if isinstance(root, str) and 0 < len(root) <= 128 else above
            self._id = f"{self._root}/{id_}"
            parent = above if above == self._root else f"{self._root}/{above}"
        parent = parent if isinstance(parent, str) and 0 < len(parent) <= 300 else None
        self.session(self._id, None if parent == id_ else parent, payload.get("cwd"), at_ms)

    def _turn(self, named: object, at_ms: int, *, new: bool = False) -> OpenTurn:
        """The turn of this id, or where none is told the one that runs; a new one where there is
        none."""
        name = named if isinstance(named, str) and 0 < len(named) <= 128 else ""
        turn = self.running.get(self._id)
        known = not name or any(key == name for key, _ in self._back)
        if turn is not None and known and not new:
            return turn
        self._number += 1
        key = name or f"{self._id}#{self._number}"
        before = self._back[-1][1] if self._back else None
        turn = self.begin(self._id, self._id, before, key, _made_at(name) or at_ms)
        self._back = [*self._back, [key, turn.id]][-BACK_MAX:]
        return turn

    def _event(self, payload: Mapping[str, Any], at_ms: int) -> None:
        kind, named = payload.get("type"), payload.get("turn_id")
        if kind in ("task_started", "turn_started"):
            self._turn(named, at_ms, new=not named)
        elif kind in ("task_complete", "turn_complete"):
            error = payload.get("error")
            if isinstance(error, dict):
                reason = str(error.get("message") or "it failed")
                self.over(self._turn(named, at_ms), TurnState.FAILED, at_ms, reason)
            else:
                self.over(self._turn(named, at_ms), TurnState.COMPLETED, at_ms)
        elif kind == "turn_aborted":
            self.over(self._turn(named, at_ms), TurnState.INTERRUPTED, at_ms)
        elif kind == "thread_rolled_back":
            number = whole(payload.get("num_turns"))
            self._back = self._back[:-number] if number else self._back

    def _item(self, payload: Mapping[str, Any], at_ms: int) -> None:
        kind = str(payload.get("type"))
        about = payload.get("internal_chat_message_metadata_passthrough")
        about = about if isinstance(about, dict) else {}
        named = about.get("turn_id")
        if kind == "message":
            self._message(payload, about, at_ms)
        elif kind in _CALLS:
            turn = self._turn(named, at_ms)
            name, given = (
                payload.get("name") or kind.removesuffix("_call"),
                payload.get(_CALLS[kind]),
            )
            call = payload.get("call_id") or payload.get("id")
            self.call(turn, name, given, at_ms, call, turn.id, str(turn.calls))
        elif kind.endswith("_output"):
            output, state = payload.get("output"), "completed"
            if isinstance(output, dict):
                state = "failed" if output.get("success") is False else state
                output = output.get("content") or output
            text = text_in(output)
            child = self._spawned(text)
            self.result(payload.get("call_id"), text or output, state, at_ms, child)
            self.touch(self._turn(named, at_ms), at_ms)

    def _spawned(self, text: str) -> str | None:
        """The conversation of the sub-agent that a tool has begun."""
        said = object_in(text) if text.startswith('{"agent_id":') and len(text) < 4096 else None
        agent = said.get("agent_id") if said else None
        known = isinstance(agent, str) and 0 < len(agent) <= 128
        return f"{self._root}/{agent}" if known else None

    def _message(self, payload: Mapping[str, Any], about: Mapping[str, Any], at_ms: int) -> None:
        role, text = payload.get("role"), text_in(payload.get("content"))
        kinds = about.get("content_item_kinds")
        if role == "user":
            if isinstance(kinds, list):
                if not any(isinstance(one, str) and one.startswith("user.") for one in kinds):
                    return
            elif text.startswith(_OWN_WORDS):
                return
        elif role != "assistant":
            return
        running = self.running.get(self._id)
        # Without a turn's id a prompt begins one, unless one has been begun for it.
        answered = running is not None and (running.said is not None or running.calls > 0)
        over = running is not None and running.state != TurnState.RUNNING
        new = role == "user" and not about.get("turn_id") and (answered or over)
        turn = self._turn(about.get("turn_id"), at_ms, new=new)
        told = payload.get("id")
        key = told if isinstance(told, str) else f"{role} {at_ms} {len(text)} {turn.calls}"
        self.say(turn, str(role), text, at_ms, turn.id, key)

    def _tokens(self, payload: Mapping[str, Any], at_ms: int) -> None:
        usage = payload.get("turn_token_usage")
        if isinstance(usage, dict):
            turn = self._turn(payload.get("turn_id"), at_ms)
            turn.tokens = [whole(usage.get(f"{name}_tokens")) for name in ("input", "output")]
            self.touch(turn, at_ms)

    def _compacted(self, payload: Mapping[str, Any], at_ms: int) -> None:
        turn = self._turn(None, at_ms)
        if turn.said is None:  # else that was the summary
            text = text_in(payload.get("message"))
            self.say(turn, "summary", text, at_ms, turn.id, "compacted")
        turn.reason = "the conversation was compacted"


def _made_at(name: str) -> int:
    """When a turn was begun, of whose id the first 48 bits are a time (UUID version 7); else 0."""
    digits = name.replace("-", "")
    if len(digits) != 32 or digits[12] != "7":
        return 0
    try:
        return int(digits[:12], 16)
    except ValueError:
        return 0
