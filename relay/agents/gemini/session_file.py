"""Gemini CLI's session files: what their lines mean, and which of them is this process's.

A file of its own beside the source, which is pure: here files are looked for and read.

The file holds the conversation's id and, as it goes, one record for each message. A record may be
written again under its id (its tool calls are added to it), and ``$set`` and ``$rewindTo`` change
what was: history.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from relay.agents.json_lines import object_in, seconds_of, text_in
from relay.agents.structured_source import Tokens
from relay.core.files import make_private_folder, write_atomically

Kind = Literal[
    "said",  # the model's own words, complete
    "call",  # the model calls tools, or its results have come
    "prompt",  # text that goes to the model as a user's
    "result",  # a tool's result goes to the model
    "cancelled",  # the person stopped the turn
    "note",  # the program's own words: why something failed, what a command did
]

#: Bytes of a file's end that are looked at for a prompt.
LOOK_BACK = 512 * 1024
FIRST_LINE_MAX = 64 * 1024
#: What Gemini CLI notes when the person has stopped the turn.
_CANCELLED = "Request cancelled."


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One record that matters. ``time`` is in seconds since the epoch, ``level`` of a note only:
    info, warning or error."""

    kind: Kind
    id: str
    time: float
    text: str = ""
    level: str = ""
    model: str = ""
    #: See relay.agents.structured_source.
    tokens: Tokens = ()


def parse(line: str) -> SessionRecord | None:
    """Read one line; None for what is of no concern, or damaged."""
    raw = object_in(line)
    if raw is None or not isinstance(raw.get("id"), str):
        return None
    id_, time, content = raw["id"], seconds_of(raw.get("timestamp")), raw.get("content")
    kind = raw.get("type")
    if kind == "gemini":
        # What it has for the model's words that are not words (history, binary data) is a list.
        said = isinstance(content, str) and bool(content.strip())
        text, model = str(content) if said else "", str(raw.get("model") or "")
        tokens = _tokens(raw.get("tokens"))
        return SessionRecord("said" if said else "call", id_, time, text, "", model, tokens)
    if kind == "user":
        return _user(id_, time, content)
    if kind in ("info", "warning", "error"):
        text = text_in(content)
        if text == _CANCELLED:
            return SessionRecord("cancelled", id_, time)
        return SessionRecord("note", id_, time, text, kind)
    return None


def session_of(line: str) -> str:
    """The conversation's id, when this is the line of a file that tells it; else ''."""
    raw = object_in(line)
    if raw is None or raw.get("kind") == "subagent":
        return ""
    found = raw.get("sessionId")
    return found if isinstance(found, str) else ""


def _tokens(found: object) -> tuple[object, ...]:
    if not isinstance(found, dict):
        return ()
    into, out, cached, thoughts = (
        one if type(one := found.get(name)) is int else 0
        for name in ("input", "output", "cached", "thoughts")
    )
    return into - cached, out + thoughts, cached, 0


def _user(id_: str, time: float, content: object) -> SessionRecord:
    parts = content if isinstance(content, list) else [{"text": content}]
    if any(isinstance(part, dict) and "functionResponse" in part for part in parts):
        return SessionRecord("result", id_, time)
    return SessionRecord("prompt", id_, time, text_in(parts))


# -- which file ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidate:
    """One session file that was written since ``since``, and its prompts since then."""

    path: str
    session: str
    prompts: tuple[str, ...]


class SessionFiles:
    """The session files under Gemini CLI's folder (``~/.gemini`` or ``$GEMINI_CLI_HOME/.gemini``).

    They are ``tmp/PROJECT/chats/session-TIME-ID.jsonl``, ID being the first 8 characters of the
    conversation's id. In a macOS sandbox the folder is ``~/.cache/.gemini``.
    """

    def __init__(self, env: dict[str, str]) -> None:
        home = env.get("GEMINI_CLI_HOME") or env.get("HOME") or os.path.expanduser("~")
        self._roots = [
            os.path.join(home, ".gemini", "tmp"),
            os.path.join(home, ".cache", ".gemini", "tmp"),
        ]

    def find(self, session: str) -> str | None:
        """The file of the conversation ``session``; None when it is not (yet) there."""
        ending = f"-{session[:8]}.jsonl"
        found = [
            path
            for chats in self._chats()
            for path in _files(chats)
            if path.endswith(ending) and _session(path) == session
        ]
        return max(found, key=_written, default=None)

    def candidates(
        self, since: float, beside: str | None, claimed: Collection[str]
    ) -> list[Candidate]:
        """The conversations with prompts since ``since`` (seconds since the epoch).

        ``beside``: only those in the folder of this file. ``claimed`` are left out.
        """
        chats = [os.path.dirname(beside)] if beside else list(self._chats())
        found = []
        for path in (path for folder in chats for path in _files(folder)):
            if path == beside or path in claimed or _written(path) < since:
                continue
            session, prompts = _session(path), tuple(_prompts(path, since))
            if session and prompts:
                found.append(Candidate(path, session, prompts))
        return found

    def _chats(self) -> Iterator[str]:
        for root in self._roots:
            try:
                projects = os.listdir(root)
            except OSError:
                continue
            for project in projects:
                yield os.path.join(root, project, "chats")


class Claims:
    """Notes which session file each Gemini CLI of this RELAY_HOME has: none takes another's.

    Each notes its own in the folder of its run; ``pid`` is a process that lives as long as it does.
    """

    NAME = "gemini-session"

    def __init__(self, folder: str, pid: int) -> None:
        self._folder = folder
        self._pid = pid

    def claim(self, path: str) -> None:
        """Note that this file is ours."""
        with contextlib.suppress(OSError):
            make_private_folder(self._folder)
            noted = os.path.join(self._folder, self.NAME)
            write_atomically(noted, f"{self._pid} {path}", durable=False)

    def others(self) -> set[str]:
        """The files of all others that run."""
        runs, own = os.path.split(self._folder)
        found = set()
        with contextlib.suppress(OSError):
            for run in os.listdir(runs):
                if run != own and (path := self._claimed(os.path.join(runs, run, self.NAME))):
                    found.add(path)
        return found

    @staticmethod
    def _claimed(note: str) -> str:
        try:
            with open(note, encoding="utf-8", errors="surrogateescape") as file:
                pid, _, path = file.read().partition(" ")
            os.kill(int(pid), 0)
        except (OSError, ValueError):
            return ""
        return path


def _files(chats: str) -> list[str]:
    try:
        names = os.listdir(chats)
    except OSError:
        return []
    ours = (name for name in names if name.startswith("session-") and name.endswith(".jsonl"))
    return [os.path.join(chats, name) for name in ours]


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _session(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return session_of(file.readline(FIRST_LINE_MAX).decode("utf-8", "replace"))
    except OSError:
        return ""


def _prompts(path: str, since: float) -> Iterator[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOOK_BACK))
            lines = file.read(LOOK_BACK).split(b"\n")
    except OSError:
        return
    for line in lines:
        record = parse(line.decode("utf-8", "replace"))
        if record is not None and record.kind == "prompt" and record.time >= since:
            yield record.text
