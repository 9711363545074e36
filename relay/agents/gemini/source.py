"""What Gemini CLI says and does: its session files, its terminal title and its screen.

A session file holds the conversation's id and, as it goes, one record for each message. A record
may be written again under its id (its tool calls are added to it); ``$set`` and ``$rewindTo``
change history. :class:`SessionFiles` looks for the files and reads them.

:class:`GeminiSource` has no I/O and no clock. It takes the model's messages, the prompts that went
to the model and the errors from the session file. The file does not say when a turn is over or a
dialog is open: the terminal title does, and where that is turned off, the screen, where a prompt
that was sent looks like the input line without the rule above it. Thinking, tool calls, tool
output, what the program itself says and what was said before this run never come out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Literal

from relay.agents.profile import Profile
from relay.agents.structured_source import (
    SourceState,
    StructuredSource,
    Tokens,
    limited,
    markers_in,
    object_in,
    seconds_of,
    text_in,
)
from relay.core.bounded import RecentSet
from relay.core.files import make_private_folder, write_atomically
from relay.core.message import AgentState
from relay.core.source_events import End, LimitCause, Line, Proof, SourceEvent

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
        self.roots = [
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
        for root in self.roots:
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


Doing = Literal["idle", "busy", "blocked", "unknown"]

_RULE = re.compile(r"^─{20,}\s*$")
_SENT = re.compile(r"^ > (.+)$")
#: What its title begins with when no turn runs.
_AT_REST = "◇"
#: The dialog that asks whether a tool may be used names it in this row.
_TOOL = re.compile(r"Allow execution of (?:MCP tool )?[\[\"']([^\]\"']+)")
_LIMIT = re.compile(r"Usage limit reached")


def doing(title: str, rows: list[str], profile: Profile) -> Doing:
    """Tell what Gemini CLI does, by its title where that tells, else by its screen.

    The title may be turned off or fixed in the settings; and a dialog about the program itself
    (sign-in, theme, trust) does not show in it.
    """
    if profile.asks(rows, title):
        return "blocked"
    if profile.shows_turn([] if title.startswith(_AT_REST) else rows, title):
        return "busy"
    hidden = profile.input is not None and profile.composer(rows) == "unknown"
    return "unknown" if hidden else "idle"


def question(rows: list[str]) -> str:
    """Say what the dialog on the screen is about, for people to read."""
    for row in reversed(rows):
        if found := _TOOL.search(row):
            return f"asks to use {found[1]}"
        if _LIMIT.search(row):
            return row.strip(" │┃|").rstrip(".")
    return "a dialog waits for the person"


def prompts(rows: list[str]) -> list[str]:
    """Return the first rows of the prompts that are shown as sent, without white space."""
    end = next((at for at in range(len(rows) - 1, -1, -1) if _RULE.match(rows[at])), len(rows))
    found = (_SENT.match(row) for row in rows[:end])
    return [solid(match[1]) for match in found if match]


def solid(text: str) -> str:
    """Return ``text`` without white space: the same however a screen lays it out."""
    return "".join(text.split())


#: Records whose words were told, by their ids. A conversation that is read anew has all of them.
SAID_MAX = 4096
#: Prompts that are remembered by the markers in them.
MARKERS_MAX = 1024
#: Prompts that are remembered as they were shown, or as they went to the model.
SHOWN_MAX = 64
PROMPT_HEAD = 200
#: How often the session file is worth a look, in seconds: while a message may end, and at rest.
POLL_BUSY, POLL_IDLE = 0.1, 1.0
#: So many looks after the end of a turn are as quick as before it.
QUICK_LOOKS = 20
#: Turns without any record in the session file after which it is no longer believed.
SILENT_TURNS = 2
#: Characters of the API's own words in a reason.
REASON_MAX = 160

_API_ERROR = re.compile(r"^\[?API Error:?\s*(.*?)\]?(?:\n|\Z)")
_STATED = re.compile(r'"message":\s*"((?:[^"\\]|\\.)+)"')
_THIS_REQUEST_ONLY = re.compile(r"INVALID_ARGUMENT|\b400\b")
_LIMITED = re.compile(r"quota|usage limit|rate.?limit|RESOURCE_EXHAUSTED|\b429\b", re.IGNORECASE)
_REFUSED = re.compile(
    r"API key|UNAUTHENTICATED|PERMISSION_DENIED|\b40[13]\b|sign.?in", re.IGNORECASE
)


@dataclass(slots=True)
class GeminiState(SourceState):
    """The checkpoint of Gemini CLI's source."""

    #: Records whose words were told, by their ids.
    said: RecentSet[str] = field(default_factory=lambda: RecentSet(SAID_MAX))
    #: Markers of the messages that went to the model, and the beginnings of the last prompts.
    markers: RecentSet[str] = field(default_factory=lambda: RecentSet(MARKERS_MAX))
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_MAX))
    #: The first rows of prompts that were seen on this screen, without white space.
    shown: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_MAX))
    #: Records in the present turn, and turns in a row that had none.
    records: int = 0
    silent_turns: int = 0
    #: The session file, and the id that it gives.
    path: str | None = None
    session: str = ""
    #: Its input line has been seen: this screen is known.
    drawn: bool = False


class GeminiSource(StructuredSource):
    """One Gemini CLI process.

    ``started`` is when it was started, in seconds since the epoch: older records of a resumed
    conversation are history. ``wake`` is set when there may be something in the session file.
    """

    saved: GeminiState
    reads_screen = infers_turns = True

    def __init__(self, started: float, wake: asyncio.Event, profile: Profile | None = None) -> None:
        super().__init__(GeminiState(), profile)
        self._wake = wake
        self._started = int(started * 1000) / 1000  # the session file counts in milliseconds
        self._quick = 0
        self._shows: Doing = "unknown"
        self._rested = True  # since the last error of the API
        #: When another prompt was seen on the screen.
        self.shown_at: float | None = None

    # -- what the session asks ----------------------------------------------------------------

    def seen(self, marker: str) -> bool:
        return marker in self.saved.markers

    def knows(self, prompt: str) -> bool:
        """Whether this prompt stands in the session file that is read already."""
        return prompt[:PROMPT_HEAD] in self.saved.recent

    @property
    def transcript_path(self) -> str | None:
        return self.saved.path

    @property
    def conversation(self) -> str:
        return self.saved.session

    def poll_interval(self) -> float:
        if self.saved.state is AgentState.BUSY:
            self._quick = QUICK_LOOKS
        elif self._quick:
            self._quick -= 1
        return POLL_BUSY if self._quick else POLL_IDLE

    # -- the session file ---------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        record = parse(line)
        if record is None or record.time < self._started:
            return []
        self.saved.records += 1
        self.saved.silent_turns = 0
        self.saved.usage.add(record.id, record.model, record.tokens)
        if record.kind == "said":
            return self._said(record)
        if record.kind == "prompt":
            return self._prompt(record)
        if record.kind == "note":
            return self._error(record)
        return []

    def _said(self, record: SessionRecord) -> list[SourceEvent]:
        if record.id in self.saved.said:
            return []
        self.saved.said.add(record.id)
        self.saved.model = record.model or self.saved.model
        lines = [Line(record.id, text.rstrip("\r")) for text in record.text.split("\n")]
        return [*self._answers(), *lines, End(record.id)]

    def _answers(self) -> list[SourceEvent]:
        """The model has spoken: what kept it from that is over."""
        if self.saved.state is not AgentState.LIMITED:
            return []
        return self._change(AgentState.BUSY if self._shows == "busy" else AgentState.IDLE)

    def _prompt(self, record: SessionRecord) -> list[SourceEvent]:
        if record.id in self.saved.said:
            return []
        self.saved.said.add(record.id)
        self.saved.recent.append(record.text[:PROMPT_HEAD])
        self._rested = True
        for marker in markers_in(record.text):
            self.saved.markers.add(marker)
        return [Proof(record.text, "transcript")]

    def _error(self, record: SessionRecord) -> list[SourceEvent]:
        """An error of the API ends a turn; its words say whether another try is any use."""
        error = _API_ERROR.search(record.text) if record.level == "error" else None
        if error is None:
            return []
        whole = error[1]
        stated = _STATED.search(whole)
        words = " ".join((stated[1] if stated else whole).split())[:REASON_MAX]
        if _LIMITED.search(whole):
            cause, reason = LimitCause.USAGE, f"a usage limit is reached: {words}"
        elif _REFUSED.search(whole):
            cause, reason = LimitCause.REFUSED, f"the API refuses: {words}"
        elif _THIS_REQUEST_ONLY.search(whole):
            return []
        else:
            cause, reason = LimitCause.ERROR, f"the API answers with an error: {words}"
        self.saved.state, self._rested = AgentState.LIMITED, False
        return [limited(cause, reason)]

    # -- the terminal -------------------------------------------------------------------------

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """Look what Gemini CLI does, and which prompts were sent."""
        for prompt in prompts(rows):
            if prompt not in self.saved.shown:
                self.saved.shown.append(prompt)
                self.shown_at = now
        found = self._shows = doing(title, rows, self.profile)
        self.saved.drawn = self.saved.drawn or self.profile.composer(rows) in ("empty", "draft")
        covered = found == "unknown" and self.saved.drawn and self.saved.state is AgentState.IDLE
        if found == "blocked" or covered:
            return self._change(AgentState.BLOCKED, question(rows))
        if found == "busy":
            if self.saved.state is AgentState.LIMITED and not self._rested:
                return []  # what is shown is older than the error
            if (
                self.saved.state is not AgentState.BUSY
                and self.saved.state is not AgentState.BLOCKED
            ):
                self.saved.records = 0
            return self._change(AgentState.BUSY)
        if found == "idle" and self.saved.state is AgentState.LIMITED:
            self._rested = True
        elif found == "idle":
            over = self._turn_over() if self.saved.state is AgentState.BUSY else []
            return over + self._change(AgentState.IDLE)
        return []

    def _turn_over(self) -> list[SourceEvent]:
        """A turn without a trace in the session file: is another one written?"""
        if self.saved.records or self.saved.path is None:
            return []
        self.saved.silent_turns += 1
        if self.saved.silent_turns < SILENT_TURNS:
            return []
        return self.failed(
            "Gemini CLI has stopped writing its session file: relay reads its screen instead"
        )

    def _change(self, state: AgentState, reason: str = "") -> list[SourceEvent]:
        if state is not self.saved.state:
            self._wake.set()
        return super()._change(state, reason)
