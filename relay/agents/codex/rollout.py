"""Codex's session file (its "rollout"): what its lines mean, and which one is this process's.

A file of its own beside the source, which is pure: here files are looked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from typing import Any, Literal

from relay.agents.interpreters import children_of
from relay.agents.json_lines import object_in, seconds_of, text_in
from relay.agents.structured_source import Tokens

Kind = Literal[
    "said",  # a message of the assistant's is complete; key, text
    "prompt",  # text that reached the model as a user's; text
    "context",  # text that a hook has added; text
    "begun",  # a turn has begun; key is the turn's id
    "over",  # a turn has ended; key, and where it failed error and text (what Codex says of it)
    "aborted",  # the person (or a new message) broke the turn off; key
    "result",  # a tool has run, or was refused
    "model",  # with which model the next turn is answered; text
    "limits",  # what is known of usage limits; resets (epoch seconds, 0 when nothing is reached),
    # and the tokens of the answer before it
]

#: Bytes of a file's first line that are read to learn whose it is: it holds the instructions.
HEAD_MAX = 1024 * 1024
_ROLLOUT = re.compile(r"/rollout-[^/]*-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.jsonl$")
_QUEUE = re.compile(r"/queue_\d+\.sqlite$")
_ENDS = {"task_complete": "over", "turn_complete": "over", "turn_aborted": "aborted"}


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """One line of the file that matters. ``time`` is in seconds since the epoch."""

    kind: Kind
    time: float
    text: str = ""
    key: str = ""
    error: str = ""
    resets: float = 0.0
    #: See relay.agents.structured_source; ``key`` tells answers apart.
    tokens: Tokens = ()


def parse(line: str) -> list[RolloutRecord]:
    """Read one line; empty for lines of no concern or that are damaged."""
    raw = object_in(line)
    payload = raw.get("payload") if raw else None
    if raw is None or not isinstance(payload, dict):
        return []
    time = seconds_of(raw.get("timestamp"))
    if raw.get("type") == "event_msg":
        return _event(payload, time)
    if raw.get("type") == "response_item":
        return _item(payload, time)
    if raw.get("type") == "turn_context" and isinstance(payload.get("model"), str):
        return [RolloutRecord("model", time, text=payload["model"])]
    return []


def _event(payload: dict[str, Any], time: float) -> list[RolloutRecord]:
    kind = str(payload.get("type"))
    key = str(payload.get("turn_id") or "")
    if kind == "item_completed":
        item = payload.get("item")
        # A summary of a compaction is a response item, too, but never an AgentMessage.
        if isinstance(item, dict) and item.get("type") == "AgentMessage":
            name = str(item.get("id") or f"{key}/{payload.get('completed_at_ms')}")
            return [RolloutRecord("said", time, text=text_in(item.get("content")), key=name)]
    elif kind in ("task_started", "turn_started"):
        return [RolloutRecord("begun", time, key=key)]
    elif kind in _ENDS:
        error, text = _error(payload.get("error"))
        ended: Kind = "aborted" if _ENDS[kind] == "aborted" else "over"
        return [RolloutRecord(ended, time, text=text, key=key, error=error)]
    elif kind == "token_count":
        resets = _resets(payload.get("rate_limits"))
        key, tokens = _used(payload.get("info"))
        return [RolloutRecord("limits", time, key=key, resets=resets, tokens=tokens)]
    return []


def _item(payload: dict[str, Any], time: float) -> list[RolloutRecord]:
    kind = str(payload.get("type"))
    if kind == "message" and payload.get("role") == "user":
        text = text_in(payload.get("content"))
        return [RolloutRecord("prompt", time, text=text)] if text else []
    if kind == "message" and payload.get("role") == "developer" and _by_hook(payload):
        return [RolloutRecord("context", time, text=text_in(payload.get("content")))]
    if kind.endswith("_output"):
        return [RolloutRecord("result", time)]
    return []


def _by_hook(payload: dict[str, Any]) -> bool:
    """Whether this is what a hook has added for the model."""
    about = payload.get("internal_chat_message_metadata_passthrough")
    kinds = about.get("content_item_kinds") if isinstance(about, dict) else None
    return isinstance(kinds, list) and "hooks.additional_context" in kinds


def _error(value: object) -> tuple[str, str]:
    """The name of an error, with the status of HTTP where there is one, and its words."""
    if not isinstance(value, dict):
        return "", ""
    info, text = value.get("codex_error_info"), str(value.get("message") or "")
    if isinstance(info, dict) and info:
        name, more = next(iter(info.items()))
        status = more.get("http_status_code") if isinstance(more, dict) else None
        return f"{name}:{status}" if status else str(name), text
    return str(info or "other"), text


def _used(info: object) -> tuple[str, tuple[object, ...]]:
    """The tokens of the last answer, and what tells it from others: the same is told again with
    each news of the limits."""
    usage = info.get("last_token_usage") if isinstance(info, dict) else None
    if not isinstance(info, dict) or not isinstance(usage, dict):
        return "", ()
    into, cached = usage.get("input_tokens"), usage.get("cached_input_tokens")
    if type(into) is int and type(cached) is int:
        into -= cached  # Codex counts it there as well
    written = usage.get("cache_write_input_tokens")
    return str(info.get("total_token_usage"))[:300], (
        *(into, usage.get("output_tokens"), cached, written),
    )


def _resets(limits: object) -> float:
    """When the usage limit that is reached ends; 0 when none is."""
    if not isinstance(limits, dict) or not limits.get("rate_limit_reached_type"):
        return 0.0
    ends = []
    for name in ("primary", "secondary"):
        window = limits.get(name)
        window = window if isinstance(window, dict) else {}
        resets = window.get("resets_at")
        used = window.get("used_percent")
        if isinstance(resets, int | float) and isinstance(used, int | float) and used >= 100:
            ends.append(float(resets))
    return max(ends, default=0.0)


# -- which file ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """Files that a running Codex holds open: its conversations' session files, and its queue."""

    rollouts: tuple[str, ...] = ()
    queue: str | None = None


def open_files(pid: int, proc: str = "/proc") -> OpenFiles:
    """List what Codex holds open, be it the process ``pid`` or one that it has started.

    Nothing where that cannot be told.

    A file is never guessed by its folder: another Codex in the same project would be taken for
    this one. Nor is it looked for below Codex itself: what runs there are its tools, ``codex exec``
    perhaps.
    """
    rollouts: set[str] = set()
    queue = None
    family = [pid]
    for process in family:
        paths = _held_open(process, proc)
        found = {path for path in paths if _ROLLOUT.search(path)}
        queues = [path for path in paths if _QUEUE.search(path)]
        if not found and not queues:
            family += children_of(process, proc)
        rollouts |= found
        queue = queues[-1] if queues else queue
    return OpenFiles(tuple(path for path in sorted(rollouts) if is_conversation(path)), queue)


def thread_of(path: str) -> str:
    """The id of the conversation that the session file ``path`` belongs to, or ""."""
    found = _ROLLOUT.search(path)
    return found.group(1) if found else ""


def is_conversation(path: str) -> bool:
    """Whether a person talks in this session file; a subagent's is not one."""
    try:
        with open(path, "rb") as file:
            meta = json.loads(file.readline(HEAD_MAX))["payload"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    source = meta.get("source")
    return isinstance(source, str) and meta.get("thread_source") in (None, "user")


def _held_open(process: int, proc: str) -> list[str]:
    """The files that a process holds open."""
    folder, paths = os.path.join(proc, str(process), "fd"), []
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                paths.append(os.readlink(os.path.join(folder, number)))
    return paths
