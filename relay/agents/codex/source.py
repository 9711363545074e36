"""What Codex says and does: its session file (its "rollout"), its hooks and its screen.

``parse`` reads lines of the session file; ``open_files`` looks for the file that belongs to a
process; :class:`CodexSource`, without I/O or clock, makes events of the lines, hooks and screen.

The words come from the session file alone: it has every message of the assistant's when it is
complete, under an id of its own. Hooks add what the file does not report (a permission dialog) and
where it is; the screen shows when Codex is ready, and when a dialog has gone again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from relay.agents.interpreters import children_of
from relay.agents.profile import Profile
from relay.agents.structured_source import (
    SourceState,
    StructuredSource,
    Tokens,
    api_error,
    broken_off,
    markers_in,
    object_in,
    remembered,
    seconds_of,
    table,
    text_in,
)
from relay.core.bounded import RecentSet
from relay.core.message import AgentState
from relay.core.source_events import Degraded, End, LimitCause, Line, Proof, SourceEvent

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
        item = table(payload.get("item"))
        # A summary of a compaction is a response item, too, but never an AgentMessage.
        if item.get("type") == "AgentMessage":
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
    about = table(payload.get("internal_chat_message_metadata_passthrough"))
    kinds = about.get("content_item_kinds")
    return isinstance(kinds, list) and "hooks.additional_context" in kinds


def _error(value: object) -> tuple[str, str]:
    """The name of an error, with the status of HTTP where there is one, and its words."""
    if not isinstance(value, dict):
        return "", ""
    info, text = value.get("codex_error_info"), str(value.get("message") or "")
    if isinstance(info, dict) and info:
        name, more = next(iter(info.items()))
        status = table(more).get("http_status_code")
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
        window = table(limits.get(name))
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


#: Texts whose arrival is remembered.
ACCEPTED_MAX = 256
#: Messages that are remembered as told, and turns as ended.
SAID_MAX = 1024
ENDED_MAX = 64
#: Seconds after which a dialog that a hook has reported is on the screen, or is gone.
DRAWN = 2.0
#: Seconds without a change of a screen that shows no turn, after which the turn is over.
STALE = 10.0
#: Seconds without any hook, once a turn has begun, after which hooks are taken as dead.
HOOKS_DEADLINE = 10.0
#: What looks as if it were still loading so long after it was drawn first does not.
LOADED = 8.0
#: How often the session file is worth a look, in seconds: while a turn runs, and otherwise.
POLL_BUSY, POLL_IDLE = 0.05, 0.25
_LIMITS = {
    "usage_limit_exceeded": (LimitCause.USAGE, "a usage limit is reached"),
    "usage_not_included": (LimitCause.REFUSED, "the account's plan does not include Codex"),
    "unauthorized": (LimitCause.REFUSED, "the account is not signed in"),
    "response_too_many_failed_attempts:429": (LimitCause.USAGE, "the API's rate limit is reached"),
    "response_too_many_failed_attempts:401": (LimitCause.REFUSED, "the account is not signed in"),
}
#: Errors that say something of one request, not of the next.
_THIS_TURN_ONLY = frozenset(
    {"context_window_exceeded", "bad_request", "thread_rollback_failed", "sandbox_error", "other"}
)
_SHORTCUTS = "? for shortcuts"
_LOADING = re.compile(r"^\s*loading\s*$")


@dataclass(slots=True)
class CodexState(SourceState):
    """The checkpoint of Codex's source."""

    #: Messages that were told, by their ids.
    said: RecentSet[str] = field(default_factory=lambda: RecentSet(SAID_MAX))
    #: Turns that run, and the last ones that have ended.
    open: RecentSet[str] = field(default_factory=lambda: RecentSet(ENDED_MAX))
    ended: RecentSet[str] = field(default_factory=lambda: RecentSet(ENDED_MAX))
    #: Beginnings of texts that have reached the model, or markers of those that a hook added.
    accepted: RecentSet[str] = field(default_factory=lambda: RecentSet(ACCEPTED_MAX))
    #: When the usage limit ends, in seconds since the epoch; 0 where none is reached.
    resets: float = 0.0
    #: The last turn was broken off: Codex's own queue rests.
    interrupted: bool = False
    #: The session file of the conversation in front.
    path: str | None = None
    #: The launch plan put hooks in, and none has come yet.
    awaits_hooks: bool = False


class CodexSource(StructuredSource):
    """One Codex process.

    ``started`` is when it was started, in seconds since the epoch: older records of a resumed
    conversation are history. ``hooks`` says whether the launch plan could put hooks in, ``gated``
    whether some of them are for tool calls.
    """

    saved: CodexState
    reads_screen = True

    def __init__(
        self,
        started: float,
        *,
        hooks: bool = False,
        gated: bool = False,
        profile: Profile | None = None,
    ) -> None:
        super().__init__(CodexState(awaits_hooks=hooks), profile)
        self._gated = gated
        self._silent_since: float | None = None  # a turn has begun, and no hook ever came
        self._started = int(started * 1000) / 1000  # the session file counts in milliseconds
        self._asked: float | None = None  # when a hook has reported a dialog
        self._dialog_shown = False
        self._drawn: float | None = None  # when the input line was seen first
        self._rests: float | None = None  # when the screen last changed, with no turn to be seen
        #: When a turn was first seen on the screen.
        self.runs_since: float | None = None
        #: A session file that a hook has named, to be looked at.
        self.named: str | None = None

    # -- what the session asks ----------------------------------------------------------------

    @property
    def conversation(self) -> str:
        """The id of the conversation in front; empty before its first turn."""
        return thread_of(self.saved.path) if self.saved.path else ""

    @property
    def interrupted(self) -> bool:
        """Whether the last turn was broken off."""
        return self.saved.interrupted

    def seen(self, marker: str) -> bool:
        return any(marker in text for text in self.saved.accepted)

    @property
    def transcript_path(self) -> str | None:
        return self.saved.path

    def poll_interval(self) -> float:
        return POLL_BUSY if self.saved.open else POLL_IDLE

    def found(self, path: str) -> None:
        """Note that a session file of this process's was found."""
        self.saved.failed = False
        self.saved.path = self.saved.path or path

    def in_front(self, path: str) -> None:
        """Note the session file of the conversation that the person has just spoken in."""
        self.saved.failed = False
        self.saved.path = path

    # -- hooks --------------------------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """Take one hook event, as Codex sends it. Reports overtake each other: they only add."""
        self.saved.awaits_hooks, self._silent_since = False, None
        name, path = event.get("hook_event_name"), event.get("transcript_path")
        if event.get("agent_id"):
            return []  # a subagent's
        if name in ("SessionStart", "UserPromptSubmit") and isinstance(path, str) and path:
            self.named = path
        turn = str(event.get("turn_id") or "")
        if name == "UserPromptSubmit":
            # That a turn begins the file says: a subagent's prompt is reported here, too.
            text = event.get("prompt")
            return self._accept(text, "hook") if isinstance(text, str) else []
        if name == "PermissionRequest" and turn not in self.saved.ended:
            self._asked, self._dialog_shown = now, False
            tool = event.get("tool_name") or "a tool"
            return self._change(AgentState.BLOCKED, f"asks to use {tool}")
        return []

    # -- the session file -----------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        events: list[SourceEvent] = []
        before = self.saved.state
        for record in parse(line):
            if record.time >= self._started:
                events += self._record(record)
                if record.kind == "begun" and self.saved.awaits_hooks:
                    self._silent_since = self._silent_since or now
        if self.saved.state is AgentState.BUSY is not before and self._rests is not None:
            self._rests = now  # the screen may not have been looked at since
        return events

    def _record(self, record: RolloutRecord) -> list[SourceEvent]:
        if record.kind == "said":
            return self._hear(record)
        if record.kind == "prompt":
            return self._accept(record.text, "transcript")
        if record.kind == "context":
            # Several messages may have gone with one answer.
            for marker in markers_in(record.text):
                self.saved.accepted.add(marker)
            return [Proof(record.text, "transcript")]
        if record.kind == "begun":
            return self._begun(record.key)
        if record.kind in ("over", "aborted"):
            return self._over(record)
        if record.kind == "model":
            self.saved.model = record.text
            return []
        if record.kind == "limits":
            self.saved.resets = record.resets
            self.saved.usage.add(record.key, self.saved.model, record.tokens)
            return []
        # A tool has run or was refused: what was asked for is answered.
        return self._answered() if self._asked is not None else []

    def _hear(self, record: RolloutRecord) -> list[SourceEvent]:
        if not self.saved.said.add(record.key):
            return []
        lines: list[SourceEvent] = [
            Line(record.key, text.rstrip("\r")) for text in record.text.split("\n")
        ]
        return [*lines, End(record.key)]

    def _begun(self, turn: str) -> list[SourceEvent]:
        if turn in self.saved.ended:
            return []  # overtaken by its own end, or read once more
        self.saved.open.add(turn)
        self.saved.interrupted = False
        return self._change(AgentState.BUSY) if self.saved.state is not AgentState.BLOCKED else []

    def _over(self, record: RolloutRecord) -> list[SourceEvent]:
        if record.key in self.saved.ended:
            return []
        self.saved.open.discard(record.key)
        self.saved.ended.add(record.key)
        self.saved.interrupted = record.kind == "aborted"
        if self.saved.open:
            return []
        if self.saved.interrupted:
            return broken_off(self._change(AgentState.IDLE))
        if not record.error or record.error in _THIS_TURN_ONLY:
            return self._change(AgentState.IDLE)
        words = record.text.strip().partition("\n")[0] or record.error
        cause, reason = _LIMITS.get(record.error) or api_error(words.rstrip("."))
        left = self.saved.resets - record.time
        return self._limited(cause, reason, left if left > 0 else None)

    # -- the screen ---------------------------------------------------------------------------

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """Look whether Codex is ready, and whether a dialog is open."""
        if self.saved.state is AgentState.GONE:
            return []
        self._rests = None
        if not self.profile.shows_turn(rows, title):
            self.runs_since, self._rests = None, now
        elif self.runs_since is None:
            self.runs_since = now
        if self.profile.asks(rows, title):
            self._dialog_shown = True
            if self.saved.state in (AgentState.STARTING, AgentState.BUSY):
                return self._change(AgentState.BLOCKED, "a dialog waits for the person")
            return []
        if self.profile.input is not None and self.profile.composer(rows) == "unknown":
            return []
        if self.saved.state is AgentState.STARTING:
            self._drawn = self._drawn or now
            if loading(rows, self.profile) and now - self._drawn < LOADED:
                return []
            return self._change(AgentState.BUSY if self.saved.open else AgentState.IDLE)
        if self.saved.state is AgentState.BLOCKED:
            awaited = self._asked is not None and now - self._asked < DRAWN
            return [] if awaited and not self._dialog_shown else self._answered()
        return []

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[SourceEvent]:
        """Do what is due by ``now``: a turn whose end was not told, and of which nothing is seen;
        hooks that do not come."""
        events: list[SourceEvent] = []
        if self._silent_since is not None and now >= self._silent_since + HOOKS_DEADLINE:
            self.saved.awaits_hooks, self._silent_since = False, None
            more = ", and tool calls do not reach relay's hooks" if self._gated else ""
            dead = "Codex's hooks do not reach relay (features.hooks, or a policy)"
            events.append(
                Degraded(f"{dead}: a permission dialog is noticed on the screen only{more}")
            )
        stale = self._stale()
        if stale is not None and now >= stale:
            self.saved.open.clear()
            events += self._change(AgentState.IDLE)
        return events

    def next_deadline(self) -> float | None:
        silent = None if self._silent_since is None else self._silent_since + HOOKS_DEADLINE
        return min((due for due in (silent, self._stale()) if due is not None), default=None)

    def _stale(self) -> float | None:
        """When a turn is taken as over."""
        if self.saved.state is not AgentState.BUSY or self._rests is None:
            return None
        return self._rests + STALE

    # -- helpers ------------------------------------------------------------------------------

    def _accept(self, text: str, by: str) -> list[SourceEvent]:
        if not self.seen(kept := remembered(text)):
            self.saved.accepted.add(kept)
        return [Proof(text, by)]

    def _answered(self) -> list[SourceEvent]:
        """A dialog is gone."""
        if self.saved.state is not AgentState.BLOCKED:
            return []
        return self._change(AgentState.BUSY if self.saved.open else AgentState.IDLE)

    def _change(self, state: AgentState, reason: str = "") -> list[SourceEvent]:
        if state is not AgentState.BLOCKED:
            self._asked, self._dialog_shown = None, False
        return super()._change(state, reason)


def loading(rows: list[str], profile: Profile) -> bool:
    """Whether Codex draws its input line already but has not read its settings yet."""
    place = profile.input.find(rows) if profile.input else None
    footer = [row.strip() for row in rows[place[0] + 1 :] if row.strip()] if place else []
    return footer == [_SHORTCUTS] or any(_LOADING.match(row) for row in rows)
