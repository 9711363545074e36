"""What the lines of Gemini CLI's session file mean. Pure.

The file holds the conversation's id and, as it goes, one record for each message. A record may be
written again under its id (its tool calls are added to it), and ``$set`` and ``$rewindTo`` change
what was: history, which is never heard.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Kind = Literal[
    "said",  # the model's own words, complete
    "call",  # the model calls tools, or its results have come
    "prompt",  # text that goes to the model as a user's
    "result",  # a tool's result goes to the model
    "cancelled",  # the person stopped the turn
    "note",  # the program's own words: why something failed, what a command did
]

#: What Gemini CLI notes when the person has stopped the turn.
_CANCELLED = "Request cancelled."


@dataclass(frozen=True, slots=True)
class Record:
    """One record that matters. ``time`` is in seconds since the epoch, ``level`` of a note only:
    info, warning or error."""

    kind: Kind
    id: str
    time: float
    text: str = ""
    level: str = ""


def parse(line: str) -> Record | None:
    """What one line says; None for what is of no concern, or damaged."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
        return None
    id_, time, content = raw["id"], _time(raw.get("timestamp")), raw.get("content")
    kind = raw.get("type")
    if kind == "gemini":
        # What it has for the model's words that are not words (history, binary data) is a list.
        if isinstance(content, str) and content.strip():
            return Record("said", id_, time, content)
        return Record("call", id_, time)
    if kind == "user":
        return _user(id_, time, content)
    if kind in ("info", "warning", "error"):
        text = content if isinstance(content, str) else _text(content)
        if text == _CANCELLED:
            return Record("cancelled", id_, time)
        return Record("note", id_, time, text, kind)
    return None


def session_of(line: str) -> str:
    """The conversation's id, when this is the line of a file that tells it; else ''."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(raw, dict) or raw.get("kind") == "subagent":
        return ""
    found = raw.get("sessionId")
    return found if isinstance(found, str) else ""


def _user(id_: str, time: float, content: object) -> Record:
    parts = content if isinstance(content, list) else [{"text": content}]
    if any(isinstance(part, dict) and "functionResponse" in part for part in parts):
        return Record("result", id_, time)
    return Record("prompt", id_, time, _text(parts))


def _text(parts: object) -> str:
    """The texts of a list of parts, as one."""
    if not isinstance(parts, list):
        return ""
    texts: list[Any] = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _time(value: object) -> float:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value).timestamp()
    return 0.0
