"""What the lines of Qwen Code's event file, and of its own record of the chat, mean. Pure.

A file of its own beside the template: both file formats, of which the source knows nothing.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from relay.agents.structured_source import Tokens

Kind = Literal[
    "session",  # this process has begun to tell; id is the session's
    "prompt",  # text that goes to the model as a user's; text
    "begin",  # the model begins to answer; text is its name
    "open",  # a block of text begins; id
    "text",  # the block goes on; text, id is that of this event
    "error",  # the API's error, in the place of text; text
    "other",  # something that is no text begins: a block of thinking, a tool call (its id)
    "close",  # the block is complete, or was broken off
    "said",  # the assistant's message is complete; text is "tools" when it holds calls; number
    "stop",  # the answer is over
    "asks",  # a dialog asks for permission; id, text is the tool
    "answered",  # … and was answered; id
    "ran",  # a tool has run or was refused
    "recorded",  # (chat) text that goes to the model as a user's; text
    "response",  # (chat) the API's answer has ended, whole or not; text is what it held
    "refused",  # (chat) the API answered with an error, and may be asked again; number, text
]

#: How the error of an API is worded, which Qwen Code puts where the model's words stand.
_ERROR = re.compile(
    r"\[API Error: .*\](?:\s*\S[^\n]*(?:quota|limit|wait)[^\n]*)?\s*"
    r"|Qwen OAuth (?:quota exceeded:|free tier has been discontinued).*",
    re.DOTALL | re.IGNORECASE,
)

#: The lines of the chat's record that matter, which may be long and many.
_OF_CHAT = re.compile(r'"type":"user"|"subtype":"ui_telemetry"')
#: A turn's own requests to the API, not those for titles, memories and the like.
_TURN = re.compile(r"########\d+")


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a line tells. ``time`` (of the chat only) is in seconds since the epoch;
    ``number`` is how many tokens the API counted for a message (0: it did not get to that), or the
    status of its error."""

    kind: Kind
    text: str = ""
    id: str = ""
    number: int = 0
    time: float = 0.0
    #: See relay.agents.structured_source.
    tokens: Tokens = ()


def parse(line: str) -> Record | None:
    """What one line says; None for a line of no concern, of a subagent, or that is damaged."""
    if not line.startswith('{"type"') and not _OF_CHAT.search(line, 0, 1000):
        return None
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    if "sessionId" in raw:
        return _chat(raw)
    kind = raw.get("type")
    if kind == "control_request":
        return _asks(raw)
    if kind == "control_response":
        return Record("answered", id=str(_table(raw, "response").get("request_id")))
    if raw.get("parent_tool_use_id") is not None:
        return None
    if kind == "stream_event":
        return _stream(_table(raw, "event"), str(raw.get("uuid")))
    if kind == "assistant":
        return _assistant(_table(raw, "message"))
    if kind == "user":
        return _user(_table(raw, "message").get("content"))
    if kind == "system" and raw.get("subtype") == "session_start":
        return Record("session", id=str(raw.get("session_id") or ""))
    return None


def _stream(event: dict[str, Any], uuid: str) -> Record | None:
    kind = event.get("type")
    if kind == "content_block_delta":
        delta = _table(event, "delta")
        if delta.get("type") != "text_delta":
            return None
        text = str(delta.get("text", ""))
        return Record("error" if _ERROR.fullmatch(text) else "text", text, uuid)
    if kind == "content_block_start":
        block = _table(event, "content_block")
        if block.get("type") == "text":
            return Record("open", id=uuid)
        return Record("other", id=str(block.get("id") or ""))
    if kind == "content_block_stop":
        return Record("close")
    if kind == "message_start":
        return Record("begin", str(_table(event, "message").get("model") or ""))
    return Record("stop") if kind == "message_stop" else None


def _assistant(message: dict[str, Any]) -> Record:
    blocks = message.get("content")
    calls = any(_is(block, "tool_use") for block in blocks) if isinstance(blocks, list) else False
    usage = _table(message, "usage")
    counted = sum(usage.get(name) or 0 for name in ("input_tokens", "output_tokens"))
    into, cached = usage.get("input_tokens"), usage.get("cache_read_input_tokens")
    if type(into) is int and type(cached) is int:
        into -= cached
    tokens = (into, usage.get("output_tokens"), cached, 0)
    said, id_ = "tools" if calls else "", str(message.get("id") or "")
    return Record("said", said, id_, number=counted, tokens=tokens if counted else ())


def _user(content: object) -> Record | None:
    if isinstance(content, list) and any(_is(block, "tool_result") for block in content):
        return Record("ran")
    return Record("prompt", _text(content))


def _asks(raw: dict[str, Any]) -> Record | None:
    request = _table(raw, "request")
    if request.get("subtype") != "can_use_tool":
        return None
    return Record("asks", str(request.get("tool_name") or ""), str(raw.get("request_id")))


def _chat(raw: dict[str, Any]) -> Record | None:
    """A line of the record that Qwen Code keeps of the chat, which its event file leaves out."""
    try:
        time = datetime.fromisoformat(str(raw.get("timestamp"))).timestamp()
    except ValueError:
        return None
    if raw.get("type") == "user":
        return Record("recorded", _text(_table(raw, "message").get("parts")), time=time)
    event = _table(_table(raw, "systemPayload"), "uiEvent")
    if event.get("subagent_id") or not _TURN.search(str(event.get("prompt_id"))):
        return None
    if event.get("event.name") == "qwen-code.api_response":
        return Record("response", str(event.get("response_text") or ""), time=time)
    if event.get("event.name") == "qwen-code.api_error":
        status = event.get("status_code")
        number = status if isinstance(status, int) else 0
        return Record("refused", str(event.get("error_message")), number=number, time=time)
    return None


def _table(raw: dict[str, Any], name: str) -> dict[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, dict) else {}


def _is(block: object, kind: str) -> bool:
    return isinstance(block, dict) and block.get("type") == kind


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(str(item["text"]) for item in value if _has_text(item))
    return ""


def _has_text(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("text"), str)
