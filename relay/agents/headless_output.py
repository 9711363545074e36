"""Reads what a program writes that answers once: its words, its tool calls, its conversation. Pure.

A line that is not understood is passed over: versions add kinds of their own. What counts as the
answer is what was said after the last tool call, where the program does not say so itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relay.protocol.turns import CALL_MAX, CALLS_MAX, TEXT_MAX, ToolCall

Json = Mapping[str, Any]


class HeadlessOutput:
    """What has been read so far. ``plain`` text is an answer as a whole."""

    def __init__(self) -> None:
        self.text = ""
        self.model: str | None = None
        self.external_id: str | None = None
        self.tokens_in: int | None = None
        self.tokens_out: int | None = None
        #: What the program says has gone wrong.
        self.error = ""
        self._calls: dict[str, ToolCall] = {}

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, in order."""
        return tuple(self._calls.values())

    def tells_of(self, id_: str, name: str) -> bool:
        """Whether this call that was refused was told of, be it under an id of the program's."""
        failed = (one.name for one in self._calls.values() if one.state == "failed")
        return id_ in self._calls or name in failed

    def line(self, line: str, now_ms: int) -> list[tuple[str, ToolCall]]:
        """Take a line; returns the calls that have ended with it, by their ids."""
        if len(self.text) < TEXT_MAX:
            self.text += line + "\n"
        return []

    # -- what the readers of single formats share

    def _began(self, id_: object, name: object, params: object, now_ms: int) -> None:
        if len(self._calls) < CALLS_MAX and isinstance(name, str):
            made = ToolCall(name, _text(params), None, "running", now_ms)
            self._calls.setdefault(str(id_), made)

    def _ended(
        self, id_: object, result: object, good: bool, now_ms: int
    ) -> list[tuple[str, ToolCall]]:
        call = self._calls.get(str(id_))
        if call is None or call.state != "running":
            return []
        state = "completed" if good else "failed"
        done = replace(call, result=_text(result), state=state, completed_ms=now_ms)
        self._calls[str(id_)] = done
        return [(str(id_), done)]


class RecordedOutput(HeadlessOutput):
    """A program that writes lines of JSON."""

    def line(self, line: str, now_ms: int) -> list[tuple[str, ToolCall]]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return []
        return self._record(record, now_ms) if isinstance(record, dict) else []

    def _record(self, record: Json, now_ms: int) -> list[tuple[str, ToolCall]]:
        raise NotImplementedError

    def _counted(self, usage: object) -> None:
        if isinstance(usage, dict):
            self.tokens_in = _whole(usage.get("input_tokens"), self.tokens_in)
            self.tokens_out = _whole(usage.get("output_tokens"), self.tokens_out)


class ClaudeOutput(RecordedOutput):
    """``--output-format stream-json`` of Claude Code and of Qwen Code."""

    def _record(self, record: Json, now_ms: int) -> list[tuple[str, ToolCall]]:
        self.external_id = _said(record.get("session_id")) or self.external_id
        kind = record.get("type")
        if kind == "system" and record.get("subtype") == "init":
            self.model = _said(record.get("model")) or self.model
        elif kind == "result":
            self._counted(record.get("usage"))
            self.text = _said(record.get("result")) or self.text
            if record.get("is_error") or record.get("subtype") != "success":
                told = record.get("error")
                told = told.get("message") if isinstance(told, dict) else told
                self.error = _said(told) or self.text or str(record.get("subtype"))
        elif kind in ("assistant", "user"):
            return self._message(record, now_ms)
        return []

    def _message(self, record: Json, now_ms: int) -> list[tuple[str, ToolCall]]:
        ended = []
        own = record["type"] == "assistant" and not record.get("parent_tool_use_id")
        for block in _blocks(record.get("message")):
            kind = block.get("type")
            if kind == "tool_use":
                self._began(block.get("id"), block.get("name"), block.get("input"), now_ms)
            elif kind == "tool_result":
                good = not block.get("is_error")
                ended += self._ended(block.get("tool_use_id"), block.get("content"), good, now_ms)
            elif kind == "text" and own:
                self.text = _said(block.get("text")) or self.text
        return ended


class CodexOutput(RecordedOutput):
    """``codex exec --json``."""

    #: The tools behind its items.
    TOOLS = {
        "command_execution": "exec_command",
        "file_change": "apply_patch",
        "web_search": "web_search",
        "collab_tool_call": "spawn_agent",
    }

    def _record(self, record: Json, now_ms: int) -> list[tuple[str, ToolCall]]:
        kind = record.get("type")
        if kind == "thread.started":
            self.external_id = _said(record.get("thread_id"))
        elif kind == "turn.completed":
            self._counted(record.get("usage"))
        elif kind == "turn.failed" or kind == "error":
            told = record.get("error")
            told = told.get("message") if isinstance(told, dict) else record.get("message")
            self.error = _said(told) or "the turn failed"
        elif kind in ("item.started", "item.updated", "item.completed"):
            item = record.get("item")
            return self._item(item, kind, now_ms) if isinstance(item, dict) else []
        return []

    def _item(self, item: Json, kind: str, now_ms: int) -> list[tuple[str, ToolCall]]:
        what, id_ = str(item.get("type")), item.get("id")
        if what == "agent_message":
            self.text = _said(item.get("text")) or self.text
            return []
        if what == "mcp_tool_call":
            name = f"mcp__{item.get('server')}__{item.get('tool')}"
        elif what in self.TOOLS:
            name = self.TOOLS[what]
        else:
            return []
        rest = {key: one for key, one in item.items() if key not in ("id", "type", "status")}
        self._began(id_, name, rest, now_ms)
        if kind != "item.completed":
            return []
        result = item.get("aggregated_output", item.get("result"))
        good = item.get("status") not in ("failed", "declined") and not item.get("error")
        return self._ended(id_, result, good, now_ms)


class GeminiOutput(RecordedOutput):
    """``--output-format stream-json`` of Gemini CLI."""

    def _record(self, record: Json, now_ms: int) -> list[tuple[str, ToolCall]]:
        kind = record.get("type")
        if kind == "init":
            self.external_id = _said(record.get("session_id"))
            self.model = _said(record.get("model"))
        elif kind == "message" and record.get("role") == "assistant":
            said = _said(record.get("content")) or ""
            self.text = (self.text + said if record.get("delta") else said)[:TEXT_MAX]
        elif kind == "tool_use":
            self.text = ""
            id_, params = record.get("tool_id"), record.get("parameters")
            self._began(id_, record.get("tool_name"), params, now_ms)
        elif kind == "tool_result":
            result = record.get("output", record.get("error"))
            good = record.get("status") != "error"
            return self._ended(record.get("tool_id"), result, good, now_ms)
        elif kind == "result":
            self._counted(record.get("stats"))
            if record.get("status") != "success":
                told = record.get("error")
                told = told.get("message") if isinstance(told, dict) else told
                self.error = _said(told) or "the turn failed"
        return []


class OpencodeOutput(RecordedOutput):
    """``opencode run --format json``: each tool call once, when it has ended."""

    def _record(self, record: Json, now_ms: int) -> list[tuple[str, ToolCall]]:
        self.external_id = _said(record.get("sessionID")) or self.external_id
        kind, part = record.get("type"), record.get("part")
        if kind == "error":
            told = record.get("error")
            data = told.get("data") if isinstance(told, dict) else None
            words = data.get("message") if isinstance(data, dict) else told
            self.error = _said(words) or _text(told) or "the turn failed"
        if not isinstance(part, dict):
            return []
        if kind == "text":
            said = _said(part.get("text")) or ""
            self.text = f"{self.text}\n{said}".strip()[:TEXT_MAX]
        elif kind == "step_finish":
            tokens = part.get("tokens")
            if isinstance(tokens, dict):  # each step counts for itself
                self.tokens_in = (self.tokens_in or 0) + (_whole(tokens.get("input"), 0) or 0)
                self.tokens_out = (self.tokens_out or 0) + (_whole(tokens.get("output"), 0) or 0)
        elif kind == "tool_use":
            self.text = ""
            state = part.get("state")
            state = state if isinstance(state, dict) else {}
            self._began(part.get("callID"), part.get("tool"), state.get("input"), now_ms)
            result = state.get("output", state.get("error"))
            good = state.get("status") == "completed"
            return self._ended(part.get("callID"), result, good, now_ms)
        return []


READERS: dict[str, type[HeadlessOutput]] = {
    "text": HeadlessOutput,
    "claude": ClaudeOutput,
    "codex": CodexOutput,
    "gemini": GeminiOutput,
    "opencode": OpencodeOutput,
}


def _blocks(message: object) -> list[Json]:
    content = message.get("content") if isinstance(message, dict) else None
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _said(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object, otherwise: int | None) -> int | None:
    return value if type(value) is int else otherwise


def _text(value: object) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[: CALL_MAX + 1]
