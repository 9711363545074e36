"""Turns that Claude Code and Codex recorded in their own files, with relay or without it.

A :class:`PastReader` takes lines and makes rows of turns; it does no I/O. A file may be anybody's:
a line is a record of the expected form, or it is passed over. Nothing of it is trusted, and what is
kept from line to line is bounded. What a reader knows between two lines is its ``state``, from
which another one goes on. ``last_turns`` reads the end of a file, which may still be written.

Codex: turns follow one another, each with an id of Codex's own. A conversation that was forked says
so in its first line, and goes on with the turns of the other; so does a sub-agent's.

Claude Code: records hang from each other by ``parentUuid``. A prompt begins a turn; what hangs from
it belongs to it, also over a compaction. A conversation that was forked begins with copies of the
other's records: they keep their uuids, and what the model said also whose it was
(``requestSessionId``). So a prompt waits for the first answer to it: only then it is known whose
turn it is. Where no parent is known the record belongs to the turn that ran last.
"""

from __future__ import annotations

import json
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from relay.agents.structured_source import object_in, seconds_of, table, text_in
from relay.core.bounded import BoundedDict
from relay.protocol.past_turns import (
    CLAUDE,
    CODEX,
    WORD_MAX,
    PastCall,
    PastEnd,
    PastMessage,
    PastResult,
    PastSession,
    PastTurn,
    PastTurns,
    past_id,
    shortened,
)
from relay.protocol.turns import CALL_MAX, TEXT_MAX, TurnState

#: Turns that run beside each other (those of sub-agents) and are known.
RUNNING_MAX = 32
#: Tool calls that are remembered until their results come.
CALLS_MAX = 128
#: Messages of relay's in one prompt.
MARKS_MAX = 64
#: The header that relay types before a message (relay.directive.envelope).
_MARK = re.compile(r"^Relay (?:message|notice) \[([0-9A-Z]{8}_[0-9A-Z]{6})\]", re.MULTILINE)


class OpenTurn:
    """What is known of a turn that may go on."""

    __slots__ = (
        *("id", "state", "reason", "inferred", "ended_ms", "model", "calls", "tokens", "said"),
        "works",
    )

    def __init__(self, id_: str, started_ms: int) -> None:
        self.id = id_
        self.state = TurnState.RUNNING.value
        self.reason: str | None = None
        self.inferred = False
        self.ended_ms = started_ms
        self.model: str | None = None
        self.calls = 0
        #: Into and out of the model; None where nothing is told.
        self.tokens: list[int] | None = None
        #: The last message of the assistant's.
        self.said: str | None = None
        #: Something is to follow what came last: it is no word of the assistant's.
        self.works = True

    def end(self) -> PastEnd:
        into, out = self.tokens or (None, None)
        return PastEnd(
            *(self.id, self.state, self.reason, self.inferred, self.ended_ms, self.model),
            *(into, out, self.calls),
        )

    def to_json(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, value: list[Any]) -> OpenTurn:
        made = cls(value[0], value[4])
        for name, one in zip(cls.__slots__, value, strict=True):
            setattr(made, name, one)
        return made


class PastReader(ABC):
    """One file of one program, from the line on to which ``state`` belongs."""

    source: str
    #: How lines begin that are large and of no concern.
    passes: tuple[bytes, ...] = ()

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.rows = PastTurns()
        #: Characters in ``rows``, about.
        self.size = 0
        self.running: BoundedDict[str, OpenTurn] = BoundedDict(
            RUNNING_MAX,
            ((key, OpenTurn.from_json(one)) for key, one in state.get("running", [])),
        )
        self.called: BoundedDict[str, tuple[str, str]] = BoundedDict(
            CALLS_MAX, ((key, (one[0], one[1])) for key, one in state.get("called", []))
        )
        self._told: dict[str, PastSession] = {}
        self._touched: set[str] = set()

    @abstractmethod
    def read(self, record: dict[str, Any]) -> None:
        """Take one record."""

    @property
    def settled(self) -> bool:
        """Whether no turn goes on."""
        return all(one.state != TurnState.RUNNING for one in self.running.values())

    def release(self) -> None:
        """Nobody goes on with it for now: turns are over as they stand."""
        for turn in self.running.values():
            if turn.state == TurnState.RUNNING:
                self._infer(turn)

    def state(self) -> dict[str, Any]:
        """What ``__init__`` takes."""
        return {
            "running": [[key, one.to_json()] for key, one in self.running.items()],
            "called": [[key, list(one)] for key, one in self.called.items()],
        }

    def take(self) -> PastTurns:
        """The rows since the last call."""
        rows, self.rows, self.size = self.rows, PastTurns(), 0
        rows.ends += [one.end() for one in self.running.values() if one.id in self._touched]
        rows.sessions = list(self._told.values())
        self._touched, self._told = set(), {}
        return rows

    # -- what the records mean

    def session(self, conversation: str, parent: str | None, project: object, at_ms: int) -> None:
        """A record belongs to this conversation."""
        if conversation not in self._told:
            place = shortened(project, WORD_MAX) if isinstance(project, str) else None
            self._told[conversation] = PastSession(conversation, parent, place, at_ms)

    def begin(
        self, conversation: str, key: str, parent: str | None, source_id: str, at_ms: int
    ) -> OpenTurn:
        """A turn begins. ``key`` is what of its conversation runs one turn at a time."""
        before = self.running.get(key)
        if before is not None and before.state == TurnState.RUNNING:
            self._infer(before)
        if before is not None and before.id in self._touched:
            self.rows.ends.append(before.end())
        turn = OpenTurn(past_id(self.source, at_ms, source_id), at_ms)
        gone = self.running.put(key, turn)
        if gone is not None and gone[1].id in self._touched:
            self.rows.ends.append(gone[1].end())
        self._touched.add(turn.id)
        self.rows.turns.append(PastTurn(turn.id, conversation, parent, source_id, at_ms))
        self.size += 200
        return turn

    def say(self, turn: OpenTurn, role: str, text: str, at_ms: int, *key: str) -> None:
        """Something was said in the turn."""
        if not text:
            return
        id_ = past_id(self.source, at_ms, *key)
        text = shortened(text, TEXT_MAX)
        marks = "" if role == "assistant" else " ".join(_MARK.findall(text)[:MARKS_MAX])
        self.rows.messages.append(PastMessage(id_, turn.id, role, text, at_ms, marks))
        self.size += len(text) + 150
        turn.works = role != "assistant"
        if not turn.works:
            turn.said = id_
        self.touch(turn, at_ms)

    def call(
        self, turn: OpenTurn, name: object, params: object, at_ms: int, call: object, *key: str
    ) -> None:
        """A tool was called; ``call`` is what the program calls the call."""
        turn.calls += 1
        turn.works = True
        id_ = past_id(self.source, at_ms, "call", *key)
        given = json_of(params)
        named = shortened(str(name or "?"), 256)
        self.rows.calls.append(PastCall(id_, turn.id, turn.said, named, turn.calls, given, at_ms))
        self.size += len(given) + 200
        if isinstance(call, str) and len(call) <= 256:
            self.called[call] = (id_, turn.id)
        self.touch(turn, at_ms)

    def result(
        self, call: object, result: object, state: str, at_ms: int, child: str | None = None
    ) -> None:
        """A tool has run, or was refused."""
        known = self.called.pop(call, None) if isinstance(call, str) else None
        if known is not None:
            said = json_of(result)
            self.rows.results.append(PastResult(known[0], said, state, at_ms, child))
            self.size += len(said) + 100

    def touch(self, turn: OpenTurn, at_ms: int) -> None:
        """Something of the turn was read."""
        turn.ended_ms = max(turn.ended_ms, at_ms)
        self._touched.add(turn.id)

    def over(
        self,
        turn: OpenTurn,
        state: TurnState,
        at_ms: int,
        reason: str | None = None,
        *,
        inferred: bool = False,
    ) -> None:
        """The turn has ended."""
        turn.state, turn.inferred = state.value, inferred
        turn.reason = None if reason is None else shortened(reason, 1024)
        self.touch(turn, at_ms)

    def _infer(self, turn: OpenTurn) -> None:
        state = TurnState.INTERRUPTED if turn.works else TurnState.COMPLETED
        self.over(turn, state, turn.ended_ms, inferred=True)


#: Makes the reader of a file whose state (of an earlier one) is given.
MakeReader = Callable[[Mapping[str, Any]], PastReader]


def json_of(value: object) -> str:
    """What a tool was given or gave back: its text, or JSON; shortened."""
    if not isinstance(value, str):
        try:
            value = json.dumps(value, ensure_ascii=False)
        except RecursionError:
            value = "[nested too deep]"
    return shortened(value, CALL_MAX)


def milliseconds_of(value: object) -> int:
    """Read an ISO 8601 time; 0 for anything else."""
    return max(0, round(seconds_of(value) * 1000))


def word(value: object, most: int = 128) -> str:
    """An id; "" for anything else."""
    return value if isinstance(value, str) and len(value) <= most else ""


def whole(value: object) -> int:
    """A number of tokens; 0 for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 40 else 0


#: Turns back to which a conversation may be rolled back.
BACK_MAX = 64
#: What Codex says in the person's place, where it does not tell apart who has said what.
_CODEX_WORDS = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md")
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
        id_ = word(payload.get("id"))
        if self._id or not id_:
            return  # a copy of another's, where that was copied whole
        above = word(payload.get("parent_thread_id"))
        self._id = self._root = id_
        parent = word(payload.get("forked_from_id"), 300) or None
        if above:
            self._root = word(payload.get("session_id")) or above
            self._id = f"{self._root}/{id_}"
            parent = above if above == self._root else f"{self._root}/{above}"
        self.session(self._id, None if parent == id_ else parent, payload.get("cwd"), at_ms)

    def _turn(self, named: object, at_ms: int, *, new: bool = False) -> OpenTurn:
        """The turn of this id, or where none is told the one that runs; a new one where there is
        none."""
        name = word(named)
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
        about = table(payload.get("internal_chat_message_metadata_passthrough"))
        named = about.get("turn_id")
        if kind == "message":
            self._message(payload, about, at_ms)
        elif kind in _CALLS:
            turn = self._turn(named, at_ms)
            name, given = payload.get("name") or kind[: -len("_call")], payload.get(_CALLS[kind])
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
        agent = word(said.get("agent_id")) if said else ""
        return f"{self._root}/{agent}" if agent else None

    def _message(self, payload: Mapping[str, Any], about: Mapping[str, Any], at_ms: int) -> None:
        role, text = payload.get("role"), text_in(payload.get("content"))
        kinds = about.get("content_item_kinds")
        if role == "user":
            if isinstance(kinds, list):
                if not any(isinstance(one, str) and one.startswith("user.") for one in kinds):
                    return
            elif text.startswith(_CODEX_WORDS):
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


#: Records, and ends of turns, from which others may hang.
RECORDS_MAX, ENDS_MAX = 128, 128
#: Prompts that wait.
WAITING_MAX = 2
#: What stays of a record that waits.
_KEPT = ("uuid", "parentUuid", "logicalParentUuid", "sessionId", "cwd", "timestamp")
#: Characters of an id that tell it from others.
_SHORT = 18
#: What the program says itself, as if the person had.
_CLAUDE_WORDS = ("<local-command-", "<bash-")
#: … that wakes the model.
_NOTICES = ("<task-notification>", "<system-reminder>")
_INTERRUPTED = "[Request interrupted by user"
_ENDED = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})


class ClaudeTurns(PastReader):
    """One transcript, or one of a sub-agent."""

    source = CLAUDE
    passes = (b'{"type":"api-request', b'{"type":"file-history-snapshot"')

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__(state)
        #: The turn of each record, by the record's id: of the newest, and of the last of each turn.
        self._turns: BoundedDict[str, str] = BoundedDict(RECORDS_MAX, state.get("turns", []))
        self._ends: BoundedDict[str, str] = BoundedDict(ENDS_MAX, state.get("ends", []))
        #: The last message of the model's whose tokens were counted, by conversation.
        self._counted: BoundedDict[str, str] = BoundedDict(32, state.get("counted", []))
        #: Each conversation's prompt that waits.
        self._waiting: dict[str, dict[str, Any]] = dict(state.get("waiting", []))

    def state(self) -> dict[str, Any]:
        return {
            **super().state(),
            "turns": list(self._turns.items()),
            "ends": list(self._ends.items()),
            "counted": list(self._counted.items()),
            "waiting": list(self._waiting.items()),
        }

    @property
    def settled(self) -> bool:
        return not self._waiting and super().settled

    def release(self) -> None:
        for key in list(self._waiting):
            self._prompt(key, None)
        super().release()

    def read(self, record: dict[str, Any]) -> None:
        uuid, own = record.get("uuid"), word(record.get("sessionId"))
        if not isinstance(uuid, str) or not own:
            return
        key = _conversation(record, own, uuid)
        kind = record.get("type")
        if kind == "user":
            self._user(record, key, uuid)
        elif kind == "assistant":
            self._assistant(record, key, uuid)
        elif kind == "attachment":
            self._attachment(record, key, uuid)
        elif kind == "system":
            self._system(record, key)
        self._hang(record, key, uuid)

    # -- the tree

    def _hang(self, record: Mapping[str, Any], key: str, uuid: str) -> None:
        """Remember to which turn the record belongs."""
        waiting = self._waiting.get(key)
        if waiting is not None and waiting["uuid"] != uuid:
            waiting["last"] = uuid[:_SHORT]
        if waiting is None and (turn := self._turn_of(record, key)) is not None:
            self._remember(uuid, turn)

    def _remember(self, uuid: str, turn: str) -> None:
        gone = self._turns.put(uuid[:_SHORT], turn)
        if gone is not None and gone[1] not in self._turns.values():
            self._ends[gone[0]] = gone[1]

    def _turn_of(self, record: Mapping[str, Any], key: str) -> str | None:
        for name in ("parentUuid", "logicalParentUuid"):
            parent = record.get(name)
            if isinstance(parent, str):
                known = self._turns.get(parent[:_SHORT]) or self._ends.get(parent[:_SHORT])
                if known is not None:
                    return known
        running = self.running.get(key)
        return None if running is None else running.id

    def _running(self, record: Mapping[str, Any], key: str) -> OpenTurn | None:
        """The turn to which a record belongs that is no prompt."""
        self._prompt(key, record)
        turn = self._turn_of(record, key)
        found = next((one for one in self.running.values() if one.id == turn), None)
        return found or self.running.get(key)

    def _prompt(self, key: str, answer: Mapping[str, Any] | None) -> None:
        """The prompt that waits begins its turn, now that the first answer to it is known."""
        record = self._waiting.pop(key, None)
        if record is None:
            return
        own = record["sessionId"]
        owner = word((answer or {}).get("requestSessionId")) or own
        conversation = owner + key[len(own) :]
        at_ms = milliseconds_of(record.get("timestamp"))
        parent = owner if conversation != owner else None
        self.session(conversation, parent, record.get("cwd"), at_ms)
        hangs = record.get("parentUuid") or record.get("logicalParentUuid")
        before = self._turn_of(record, key) if hangs is not None else None
        turn = self.begin(conversation, key, before, record["uuid"][:256], at_ms)
        self.say(turn, record["role"], record["text"], at_ms, record["uuid"])
        if record["role"] == "summary":
            self.over(turn, TurnState.COMPLETED, at_ms, "the conversation was compacted")
        for uuid in (record["uuid"], record.get("last")):
            if uuid:
                self._remember(uuid, turn.id)

    # -- records

    def _user(self, record: dict[str, Any], key: str, uuid: str) -> None:
        content = table(record.get("message")).get("content")
        blocks = content if isinstance(content, list) else []
        results = [one for one in blocks if table(one).get("type") == "tool_result"]
        at_ms = milliseconds_of(record.get("timestamp"))
        if results:
            turn = self._running(record, key)
            for block in results:
                self._result(record, block, at_ms)
            if turn is not None:
                self.touch(turn, at_ms)
            return
        text = text_in(content, "text")
        # What comes from another session is meta, too, and says where it comes from.
        if (record.get("isMeta") and not record.get("turnOrigin")) or not text:
            return
        if text.startswith(_CLAUDE_WORDS):
            waiting = self._waiting.get(key)
            if waiting is not None and waiting["text"].startswith("<command-name>"):
                del self._waiting[key]  # a command of the program's own: no turn
            return
        if text.startswith(_INTERRUPTED):
            turn = self._running(record, key)
            if turn is not None:
                self.over(turn, TurnState.INTERRUPTED, at_ms)
            return
        for other in (key, *list(self._waiting)[: 1 - WAITING_MAX]):
            self._prompt(other, None)
        role = "system" if text.startswith(_NOTICES) else "user"
        role = "summary" if record.get("isCompactSummary") else role
        self._waiting[key] = {name: record[name] for name in _KEPT if name in record}
        self._waiting[key] |= {"role": role, "text": shortened(text, TEXT_MAX)}

    def _result(self, record: Mapping[str, Any], block: Mapping[str, Any], at_ms: int) -> None:
        agent = word(table(record.get("toolUseResult")).get("agentId"))
        child = f"{record['sessionId']}/{agent}" if agent else None
        content = block.get("content")
        text = text_in(content, "text") or ("" if content is None else content)
        state = "failed" if block.get("is_error") else "completed"
        self.result(block.get("tool_use_id"), text, state, at_ms, child)

    def _assistant(self, record: Mapping[str, Any], key: str, uuid: str) -> None:
        turn = self._running(record, key)
        message = record.get("message")
        if turn is None or not isinstance(message, dict):
            return
        at_ms = milliseconds_of(record.get("timestamp"))
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if record.get("isApiErrorMessage"):
            self.over(turn, TurnState.FAILED, at_ms, text_in(blocks, "text"))
            return
        for number, block in enumerate(map(table, blocks)):
            if block.get("type") == "text":
                text = text_in(block.get("text"))
                self.say(turn, "assistant", text, at_ms, uuid, str(number))
            elif block.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use"):
                given = (block.get("name"), block.get("input"), at_ms, block.get("id"))
                self.call(turn, *given, uuid, str(number))
        self._count(turn, message, key)
        ended = message.get("stop_reason") in _ENDED
        if ended:
            self.over(turn, TurnState.COMPLETED, at_ms)
        else:
            turn.state, turn.inferred = TurnState.RUNNING.value, False
            self.touch(turn, at_ms)

    def _count(self, turn: OpenTurn, message: Mapping[str, Any], key: str) -> None:
        model, id_, usage = (message.get(name) for name in ("model", "id", "usage"))
        if isinstance(model, str) and model != "<synthetic>":
            turn.model = model[:256]
        # Each block of a message is a record, and each repeats what the whole has used.
        if not isinstance(id_, str) or not isinstance(usage, dict):
            return
        if self._counted.get(key) == id_[:64]:
            return
        self._counted[key] = id_[:64]
        read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        into, out = turn.tokens or (0, 0)
        into += sum(whole(usage.get(name)) for name in read)
        turn.tokens = [into, out + whole(usage.get("output_tokens"))]

    def _attachment(self, record: Mapping[str, Any], key: str, uuid: str) -> None:
        """What the person has said while the model was at work."""
        attachment = table(record.get("attachment"))
        if attachment.get("type") != "queued_command":
            return
        turn = self._running(record, key)
        text = text_in(attachment.get("prompt"), "text")
        if turn is not None and text:
            role = "system" if text.startswith(_NOTICES) else "user"
            self.say(turn, role, text, milliseconds_of(record.get("timestamp")), uuid)

    def _system(self, record: Mapping[str, Any], key: str) -> None:
        turn = self.running.get(key) if record.get("subtype") == "turn_duration" else None
        if turn is not None and turn.state == TurnState.RUNNING:
            self.over(turn, TurnState.COMPLETED, milliseconds_of(record.get("timestamp")))


def _conversation(record: Mapping[str, Any], own: str, uuid: str) -> str:
    """Whose record it is: the conversation's, or that of a sub-agent of it."""
    if agent := word(record.get("agentId")):
        return f"{own}/{agent}"
    # Older versions told of sub-agents in the conversation's own file, and gave them no names.
    return f"{own}/sidechain" if record.get("isSidechain") else own


#: What reads a program's transcript.
READERS: dict[str, MakeReader] = {CLAUDE: ClaudeTurns, CODEX: CodexTurns}
#: The agents of whose files ``last_turns`` knows.
HAVE_TURNS = frozenset({*READERS, "gemini", "aider"})
#: Bytes at the end of a file that are read, and characters of one text.
TAIL_MAX, LAST_TEXT_MAX = 4 * 1024 * 1024, 32 * 1024

Json = dict[str, Any]


def last_turns(kind: str, path: str, count: int) -> list[Json]:
    """The last ``count`` turns in the file of one of HAVE_TURNS, the oldest first. Raises OSError.

    Each has prompt, text, tools (how many were called), state, model, started_ms and ended_ms; of
    Gemini CLI and aider only the first two.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return []
        size = status.st_size
        file.seek(max(0, size - TAIL_MAX))
        lines = file.read(TAIL_MAX).decode("utf-8", "replace").split("\n")
    del lines[: 1 if size > TAIL_MAX else 0]
    if kind not in READERS:
        return [
            {"prompt": prompt[-LAST_TEXT_MAX:], "text": text[-LAST_TEXT_MAX:]}
            for prompt, text in _asked_and_said(kind, lines)[-count:]
        ]
    reader = READERS[kind]({})
    for line in lines:
        record = object_in(line)
        try:
            if record is not None:
                reader.read(record)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            continue  # its form is not ours to promise
    goes_on = {one.id for one in reader.running.values() if one.state == TurnState.RUNNING}
    reader.release()
    rows = reader.take()
    turns: dict[str, Json] = {
        one.id: {"prompt": "", "text": "", "tools": 0, "started_ms": one.started_ms}
        for one in rows.turns
        if "/" not in one.conversation  # a sub-agent's
    }
    for message in rows.messages:
        if (turn := turns.get(message.turn)) is not None:
            name = "text" if message.role == "assistant" else "prompt"
            turn[name] = f"{turn[name]}\n{message.content}".strip()[-LAST_TEXT_MAX:]
    for end in rows.ends:
        if (turn := turns.get(end.turn)) is not None:
            state = TurnState.RUNNING.value if end.turn in goes_on else end.state
            turn.update(state=state, model=end.model, ended_ms=end.ended_ms, tools=end.calls)
    return list(turns.values())[-count:]


def _asked_and_said(kind: str, lines: list[str]) -> list[tuple[str, str]]:
    """The prompts and answers in the files of programs that record little else."""
    # Sessions of other agents do without these modules.
    from relay.agents.aider.chat_history import chat_turns
    from relay.agents.gemini.source import parse

    if kind == "aider":
        return [(turn.prompt, turn.text) for turn in chat_turns(lines)]
    turns: list[tuple[str, list[str]]] = []
    told = set[str]()  # a record may stand there again, as with its tokens
    for record in filter(None, map(parse, lines)):
        if record.kind not in ("prompt", "said") or record.id in told:
            continue
        told.add(record.id)
        if record.kind == "prompt":
            turns.append((record.text, []))
        elif turns:
            turns[-1][1].append(record.text)
        else:
            turns.append(("", [record.text]))
    return [(prompt, "\n".join(texts).strip()) for prompt, texts in turns]
