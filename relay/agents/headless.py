"""How a program is asked one question and ends: its command line, and what it writes.

``claude -p``, ``codex exec``, ``gemini -p`` … each stands in the program's profile (``headless``);
a persona's configuration may give it for a program without one. A :class:`HeadlessOutput` reads the
program's words, its tool calls and its conversation. It ignores lines that it does not understand:
versions add kinds of their own. The answer is what was said after the last tool call, where the
program does not mark it itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from relay.core.errors import UsageError
from relay.protocol.turns import CALL_MAX, CALLS_MAX, TEXT_MAX, ToolCall, TurnCause

#: What the program writes.
FORMATS = ("text", "claude", "codex", "gemini", "opencode")
#: Before a word of its own, in brackets or quotes or not.
_MENTION = re.compile(r"(?<![\w@\\])@(?=\S)")
_COMMAND = re.compile(r"\s*[/!#?\\@]")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class HeadlessForm:
    """The form of one program. Without anything: it reads the prompt and prints the answer.

    ``args`` follow the command; ``{resume}``, ``{model}`` and ``{system}`` as words of their own
    stand for those lists below, where there is something for them. A first word that stands in the
    command already is left out. The prompt comes on standard input, unless
    ``{prompt}`` stands in ``args``.
    """

    args: tuple[str, ...] = ()
    #: Goes on with the conversation ``{id}``.
    resume: tuple[str, ...] = ()
    #: ``{model}``.
    model: tuple[str, ...] = ()
    #: ``{file}`` or ``{text}``: what is added to the system prompt. Without it that is said first
    #: in the prompt.
    system: tuple[str, ...] = ()
    output: str = "text"
    #: The program looks for commands and names of files in its prompt: what makes text of an ``@``
    #: that begins a word, and a first line before what begins like a command.
    escape: str = ""
    #: The program converses in a terminal: what its prompt looks like (a regular expression), and
    #: what is typed to end it.
    prompt: str = ""
    leave: str = ""
    #: How a line of the program begins that says that it is not logged in, or does not trust its
    #: folder (regular expressions).
    login: str = ""
    trust: str = ""

    def needs(self, said: str) -> tuple[TurnCause, str] | None:
        """What the person has to do before it can answer, and the line of its words that says so;
        None: nothing."""
        for cause, begins in ((TurnCause.LOGIN, self.login), (TurnCause.TRUST, self.trust)):
            if begins and (line := re.search(f"^(?:{begins}).*", said, re.MULTILINE)):
                return cause, line[0]
        return None

    @property
    def driven(self) -> bool:
        """Whether its prompt has to be driven, in a terminal."""
        return bool(self.prompt)

    def command(self, command: tuple[str, ...], **said: str) -> list[str]:
        """The command line: ``said`` has what is known of id, model, file, text and prompt."""
        given = {
            "resume": self.resume if said.get("resumed") else (),
            "model": self.model if said.get("model") else (),
            "system": self.system if said.get("text") else (),
        }
        args = list(self.args)
        if args and not args[0].startswith(("-", "{")) and args[0] in command[1:]:
            del args[0]
        words: list[str] = []
        for word in args:
            part = word[1:-1] if word.startswith("{") and word.endswith("}") else ""
            words += given.get(part, (word,))
        return [*command, *(_PLACE.sub(lambda m: said.get(m[1], m[0]), word) for word in words)]

    def inert(self, prompt: str) -> str:
        """The prompt so that the program finds no option, command or file's name in it."""
        if self.takes_argument:
            prompt = prompt.replace("\0", "")
            prompt = f"Message:\n\n{prompt}" if prompt.startswith("-") else prompt
        if not self.escape:
            return prompt
        plain = _MENTION.sub(lambda found: self.escape + found[0], prompt)
        return f"Message:\n\n{plain}" if _COMMAND.match(plain) else plain

    @property
    def takes_argument(self) -> bool:
        """Whether the prompt is an argument."""
        return any("{prompt}" in word for word in self.args)

    @classmethod
    def from_json(cls, value: object) -> HeadlessForm:
        """Read the table of a persona's configuration. Raises UsageError."""
        if not isinstance(value, Mapping):
            raise UsageError(f"headless must be a dictionary, not {value!r}")
        known = {one.name: str(one.type) for one in fields(cls)}
        found: dict[str, Any] = {}
        for key, given in value.items():
            if key not in known:
                raise UsageError(f"headless has no {key!r}", hint=f"it has {', '.join(known)}")
            if known[key] == "str":
                if not isinstance(given, str):
                    raise UsageError(f"headless.{key} must be a text, not {given!r}")
                found[key] = given
                continue
            if not isinstance(given, list | tuple) or not all(isinstance(w, str) for w in given):
                raise UsageError(f"headless.{key} must be a list of texts, not {given!r}")
            found[key] = tuple(given)
        return cls(**found).checked()

    def checked(self) -> HeadlessForm:
        """This form. Raises UsageError where it cannot be used."""
        if self.output not in FORMATS:
            raise UsageError(
                f"headless.output cannot be {self.output!r}", hint=f"one of {', '.join(FORMATS)}"
            )
        for name in ("prompt", "login", "trust"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise UsageError(f"headless.{name} is not a regular expression: {error}") from error
        return self

    def to_json(self) -> dict[str, Any]:
        """What ``from_json`` reads."""
        made = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            name: list(one) if isinstance(one, tuple) else one for name, one in made.items() if one
        }


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
