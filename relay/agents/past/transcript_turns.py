"""Claude Code's transcripts as turns: its records hang from each other by ``parentUuid``. Pure.

A prompt begins a turn; what hangs from it belongs to it, also over a compaction. A conversation
that was forked begins with copies of the other's records: they keep their uuids, and what the model
said also whose it was (``requestSessionId``). So a prompt waits for the first answer
to it: only then it is known whose turn it is. Where no parent is known the record
belongs to the turn that ran last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.agents.json_lines import text_in
from relay.agents.past.past_reader import OpenTurn, PastReader, milliseconds_of, whole
from relay.core.bounded import BoundedDict
from relay.protocol.past_turns import CLAUDE, shortened
from relay.protocol.turns import TEXT_MAX, TurnState

#: Records, and ends of turns, from which others may hang.
RECORDS_MAX, ENDS_MAX = 128, 128
#: Prompts that wait.
WAITING_MAX = 2
#: What stays of a record that waits.
_KEPT = ("uuid", "parentUuid", "logicalParentUuid", "sessionId", "cwd", "timestamp")
#: Characters of an id that tell it from others.
_SHORT = 18
#: What the program says itself, as if the person had.
_OWN_WORDS = ("<local-command-", "<bash-")
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
        uuid, own = record.get("uuid"), record.get("sessionId")
        if not isinstance(uuid, str) or not isinstance(own, str) or not 0 < len(own) <= 128:
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
        whose = (answer or {}).get("requestSessionId")
        own = record["sessionId"]
        owner = whose if isinstance(whose, str) and 0 < len(whose) <= 128 else own
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
        message = record.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        blocks = content if isinstance(content, list) else []
        results = [one for one in blocks if isinstance(one, dict)]
        results = [one for one in results if one.get("type") == "tool_result"]
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
        if text.startswith(_OWN_WORDS):
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
        about = record.get("toolUseResult")
        agent = about.get("agentId") if isinstance(about, dict) else None
        child = None
        if isinstance(agent, str) and 0 < len(agent) <= 128:
            child = f"{record['sessionId']}/{agent}"
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
        for number, block in enumerate(blocks):
            if not isinstance(block, dict):
                continue
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
        attachment = record.get("attachment")
        if not isinstance(attachment, dict) or attachment.get("type") != "queued_command":
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
    agent = record.get("agentId")
    if isinstance(agent, str) and 0 < len(agent) <= 128:
        return f"{own}/{agent}"
    # Older versions told of sub-agents in the conversation's own file, and gave them no names.
    return f"{own}/sidechain" if record.get("isSidechain") else own
