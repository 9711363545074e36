"""Claude Code's transcript: what its lines mean, and where the file is.

A file of its own beside the source, which is pure: here files are looked for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from relay.agents.json_lines import object_in, seconds_of, text_in
from relay.agents.structured_source import Tokens

Kind = Literal[
    "said",  # a text block of the assistant's; text, uuid, message_id, model
    "break",  # a block of another kind than text begins; message_id
    "prompt",  # text that reached the model as a user turn or within one; text, prompt_id
    "queued",  # text that was accepted and waits; text
    "call",  # a tool call, ``uuid`` is its id, ``text`` its key (see ``call_key``)
    "result",  # a tool has run, or was refused; ``uuid`` is the call's id
    "interrupted",  # the person stopped the turn; message_id when it was being written
    "turn_end",  # the turn is over
    "used",  # what a message of the model's has cost; message_id, model, tokens
]

_TOKENS = (
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
)
_INTERRUPTED = "[Request interrupted by user"
_SESSION_ID = re.compile(r"[0-9A-Za-z-]{8,64}")


@dataclass(frozen=True, slots=True)
class TranscriptRecord:
    """One line of the transcript that matters. ``time`` is in seconds since the epoch."""

    kind: Kind
    time: float
    text: str = ""
    message_id: str = ""
    prompt_id: str = ""
    uuid: str = ""
    model: str = ""
    #: See relay.agents.structured_source.
    tokens: Tokens = ()


def parse(line: str) -> list[TranscriptRecord]:
    """Read one line; empty for lines of no concern, of subagents, or that are damaged."""
    if line.startswith('{"type":"api-request'):
        return []  # copies of whole requests, often large
    raw = object_in(line)
    if raw is None or raw.get("isCompactSummary"):
        return []
    kind, time = raw.get("type"), seconds_of(raw.get("timestamp"))
    if raw.get("isSidechain"):
        return [one for one in _assistant(raw, time) if one.kind == "used"]
    if kind == "assistant":
        return _assistant(raw, time)
    if kind == "user":
        return _user(raw, time)
    if kind == "attachment":
        return _attachment(raw, time)
    if kind == "queue-operation" and raw.get("operation") == "enqueue":
        return [TranscriptRecord("queued", time, text=text_in(raw.get("content"), "text"))]
    if kind == "system" and raw.get("subtype") == "turn_duration":
        return [TranscriptRecord("turn_end", time)]
    return []


def _assistant(raw: dict[str, Any], time: float) -> list[TranscriptRecord]:
    message = raw.get("message")
    if not isinstance(message, dict) or raw.get("isApiErrorMessage"):
        return []
    if message.get("model") == "<synthetic>":
        return []  # the program's own words in the model's place
    message_id, uuid = str(message.get("id", "")), str(raw.get("uuid", ""))
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    records = []
    for number, block in enumerate(blocks):
        if isinstance(block, dict) and block.get("type") == "text":
            said = TranscriptRecord("said", time, text_in(block.get("text"), "text"), message_id)
            model = str(message.get("model") or "")
            records.append(replace(said, uuid=f"{uuid}.{number}", model=model))
            continue
        records.append(TranscriptRecord("break", time, message_id=message_id))
        if isinstance(block, dict) and block.get("type") == "tool_use":
            key = call_key(block.get("name"), block.get("input"))
            records.append(TranscriptRecord("call", time, text=key, uuid=str(block.get("id"))))
    usage = message.get("usage")
    if isinstance(usage, dict) and message_id:
        tokens = tuple(usage.get(name) for name in _TOKENS)
        used = TranscriptRecord("used", time, message_id=message_id, tokens=tokens)
        records.append(replace(used, model=str(message.get("model") or "")))
    return records


def call_key(name: object, arguments: object) -> str:
    """Make a key from a call's tool and input: hooks do not tell a call's id."""
    whole = json.dumps([name, arguments], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:16]


def _user(raw: dict[str, Any], time: float) -> list[TranscriptRecord]:
    message = raw.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    prompt_id = str(raw.get("promptId", ""))
    results = [b for b in content if _is(b, "tool_result")] if isinstance(content, list) else []
    if results:
        return [
            TranscriptRecord("result", time, uuid=str(block.get("tool_use_id")))
            for block in results
        ]
    text = text_in(content, "text")
    if text.startswith(_INTERRUPTED):
        stopped = str(raw.get("interruptedMessageId") or "")
        return [TranscriptRecord("interrupted", time, message_id=stopped, prompt_id=prompt_id)]
    return [TranscriptRecord("prompt", time, text=text, prompt_id=prompt_id)] if text else []


def _attachment(raw: dict[str, Any], time: float) -> list[TranscriptRecord]:
    attachment = raw.get("attachment")
    if not _is(attachment, "queued_command") or not isinstance(attachment, dict):
        return []
    return [TranscriptRecord("prompt", time, text=text_in(attachment.get("prompt"), "text"))]


def _is(block: object, kind: str) -> bool:
    return isinstance(block, dict) and block.get("type") == kind


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Paths of one running Claude Code, as far as it tells; None: not (yet) there."""

    transcript: str | None = None
    socket: str | None = None


def whereabouts(config: str, pid: int) -> Whereabouts:
    """Read what the process ``pid`` has noted of itself, for when its hooks do not tell.

    ``config`` is ``$CLAUDE_CONFIG_DIR``, usually ``~/.claude``. The transcript appears with the
    first prompt. It is never guessed by its folder alone: another Claude Code in the same project
    would be taken for this one.
    """
    try:
        with open(os.path.join(config, "sessions", f"{pid}.json"), encoding="utf-8") as file:
            noted = json.load(file)
    except (OSError, ValueError):
        return Whereabouts()
    if not isinstance(noted, dict):
        return Whereabouts()
    session, socket = noted.get("sessionId"), noted.get("messagingSocketPath")
    transcript = None
    if isinstance(session, str) and _SESSION_ID.fullmatch(session):
        transcript = _transcript_of(config, session)
    return Whereabouts(transcript, socket if isinstance(socket, str) and socket else None)


def _transcript_of(config: str, session: str) -> str | None:
    projects = os.path.join(config, "projects")
    try:
        folders = os.listdir(projects)
    except OSError:
        return None
    for folder in folders:
        path = os.path.join(projects, folder, f"{session}.jsonl")
        if os.path.exists(path):
            return path
    return None
