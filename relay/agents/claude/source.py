"""The structured source of Claude Code: its hooks and its transcript. No I/O, no clock.

The session feeds hook events and lines of the transcript; lines of the assistant's own text,
changes of state and proofs come out. Thinking, tool calls, tool output, subagents, the
program's own words and what was said before this run never come out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from relay.agents.claude.transcript import (
    Messages,
    MessagesState,
    TranscriptRecord,
    Whereabouts,
    call_key,
    parse,
)
from relay.agents.profile import Profile
from relay.agents.structured_source import (
    SourceState,
    StructuredSource,
    api_error,
    broken_off,
    remembered,
)
from relay.core.bounded import BoundedDict, RecentSet
from relay.core.message import AgentState
from relay.core.source_events import Degraded, LimitCause, Proof, SourceEvent

#: Texts whose arrival is remembered.
ACCEPTED_MAX = 256
#: Seconds without any hook, while the transcript grows, after which hooks are taken as dead.
HOOKS_DEADLINE = 5.0
#: Prompts whose turn is over that are remembered.
ENDED_MAX = 64
#: Tool calls that are remembered until their results come.
CALLS_MAX = 256
#: How often the transcript is worth a look, in seconds: when its next line is awaited, busy, idle.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.03, 0.25, 1.0
_LIMITS = {
    "rate_limit": (LimitCause.USAGE, "a usage limit is reached"),
    "billing_error": (LimitCause.REFUSED, "there is a problem with the account's billing"),
    "authentication_failed": (LimitCause.REFUSED, "the account is not signed in"),
    "oauth_org_not_allowed": (LimitCause.REFUSED, "the account's organisation does not allow it"),
    "account_on_hold": (LimitCause.REFUSED, "the account is on hold"),
    "verification_required": (LimitCause.REFUSED, "the account must be verified"),
    "cloud_credential_error": (LimitCause.REFUSED, "the cloud's credentials are refused"),
    "model_not_found": (LimitCause.REFUSED, "there is no such model"),
}
#: Errors that say something of one request, not of the next.
_THIS_TURN_ONLY = frozenset({"invalid_request", "max_output_tokens"})
_WAITING = frozenset({"permission_prompt", "elicitation_dialog"})


@dataclass(slots=True)
class ClaudeState(SourceState):
    """The checkpoint of Claude Code's source."""

    messages: MessagesState = field(default_factory=MessagesState)
    #: The id of the prompt that is answered.
    prompt: str = ""
    #: Claude Code's own session, and those before it (``/clear`` begins another one).
    session: str = ""
    left: RecentSet[str] = field(default_factory=lambda: RecentSet(ENDED_MAX))
    #: Prompts whose turn is over, and what the model said last in the last of them.
    ended: RecentSet[str] = field(default_factory=lambda: RecentSet(ENDED_MAX))
    last_words: str = ""
    #: Of these, what was not heard yet when the turn ended.
    owed: str = ""
    #: Beginnings of texts that were taken, and of those that have reached the model.
    accepted: deque[str] = field(default_factory=lambda: deque(maxlen=ACCEPTED_MAX))
    proven: deque[str] = field(default_factory=lambda: deque(maxlen=ACCEPTED_MAX))
    #: The key of each tool call whose result has not come, by the call's id.
    calls: BoundedDict[str, str] = field(default_factory=lambda: BoundedDict(CALLS_MAX))
    #: Keys of calls that wait for consent.
    asked: deque[str] = field(default_factory=lambda: deque(maxlen=CALLS_MAX))
    #: A hook has come.
    hooks_came: bool = False
    transcript: str | None = None
    socket: str | None = None


class ClaudeSource(StructuredSource):
    """One Claude Code process.

    ``started`` is when it was started, in seconds since the epoch: older records of a resumed
    conversation are history. ``hooks`` says whether the launch plan could put hooks in, ``gated``
    whether some of them are for tool calls.
    """

    saved: ClaudeState

    def __init__(
        self,
        started: float,
        *,
        hooks: bool = True,
        gated: bool = False,
        profile: Profile | None = None,
    ) -> None:
        saved = ClaudeState(messages=MessagesState(displays=hooks))
        super().__init__(saved, profile)
        self._gated = gated
        self._started = int(started * 1000) / 1000  # the transcript counts in milliseconds
        self._hooks_planned = hooks
        self._silent_since: float | None = None  # the transcript grows, no hook ever came
        self._messages = Messages(saved.messages)
        self._dialog_shown = False

    @property
    def socket_path(self) -> str | None:
        """Claude Code's messaging socket, once it is known."""
        return self.saved.socket

    # -- what the session asks ----------------------------------------------------------------

    @property
    def transcript_path(self) -> str | None:
        return self.saved.transcript

    @property
    def conversation(self) -> str:
        return self.saved.session

    def accepted(self, marker: str) -> bool:
        return any(marker in text for text in self.saved.accepted)

    def seen(self, marker: str) -> bool:
        return any(marker in text for text in self.saved.proven)

    @property
    def owes_words(self) -> bool:
        if self.saved.owed and self._messages.has_said(self.saved.owed):
            self.saved.owed = ""
        return bool(self.saved.owed)

    def poll_interval(self) -> float:
        if self._messages.waiting:
            return POLL_URGENT
        return POLL_BUSY if self.saved.state in (AgentState.BUSY, AgentState.BLOCKED) else POLL_IDLE

    def found(self, where: Whereabouts) -> None:
        """Take what was found without hooks; what hooks told counts more."""
        self.saved.transcript = self.saved.transcript or where.transcript
        self.saved.socket = self.saved.socket or where.socket

    # -- hooks --------------------------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """Take one hook event, as Claude Code sends it (and ``relay`` with our own headers)."""
        self.saved.failed, self._silent_since = False, None
        self.saved.hooks_came = self.saved.messages.displays = True
        own = event.get("relay")
        if isinstance(own, dict) and own.get("messaging-socket"):
            self.saved.socket = str(own["messaging-socket"])
        if event.get("agent_id"):
            return []  # a subagent's
        self._follow(event)
        handler = self._HOOKS.get(str(event.get("hook_event_name")))
        return handler(self, event, now) if handler else []

    def _follow(self, event: dict[str, Any]) -> None:
        """Note which transcript is written now. ``/clear`` begins another one, and what is still
        reported of the old session may come after what the new one reports."""
        session, path = str(event.get("session_id") or ""), event.get("transcript_path")
        name = event.get("hook_event_name")
        if name == "SessionStart" and session != self.saved.session:
            self.saved.left.add(self.saved.session)
            self.saved.session = session
        elif name == "SessionEnd" or session in self.saved.left and session != self.saved.session:
            return
        if isinstance(path, str) and path:
            self.saved.transcript = path

    def _session_start(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        # With a prompt on the command line the first turn may be reported before its session.
        fresh = self.saved.state is AgentState.STARTING or event.get("source") == "clear"
        return self._change(AgentState.IDLE) if fresh else []

    def _submitted(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        prompt_id = str(event.get("prompt_id") or "")
        text = event.get("prompt")
        proof = self._accept(text, "hook") if isinstance(text, str) else []
        if prompt_id in self.saved.ended:
            return proof  # overtaken by its own Stop
        self.saved.prompt, self.saved.owed = prompt_id, ""
        return [*proof, *self._change(AgentState.BUSY)]

    def _display(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        events = self._messages.display(event, now)
        prompt_id = str(event.get("prompt_id") or "")
        # Reports overtake each other: a last piece that comes after Stop is no new activity, and
        # one that comes after PermissionRequest does not mean that the dialog is gone.
        words = str(event.get("delta")).strip()
        late = prompt_id in self.saved.ended and words in self.saved.last_words
        if late or self.saved.state is AgentState.BLOCKED:
            return events
        self.saved.prompt = prompt_id or self.saved.prompt
        return self._change(AgentState.BUSY) + events

    def _permission(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        name = event.get("tool_name")
        self.saved.asked.append(call_key(name, event.get("tool_input")))
        self._dialog_shown = False
        return self._change(AgentState.BLOCKED, f"asks to use {name or 'a tool'}")

    def _notification(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        kind = str(event.get("notification_type") or "")
        if kind in _WAITING and self.saved.state is AgentState.BUSY:
            return self._change(AgentState.BLOCKED, "a dialog waits for the person")
        # That nobody types does not mean that the model answers again.
        idle = kind == "idle_prompt" and self.saved.state is not AgentState.LIMITED
        return self._change(AgentState.IDLE) if idle else []

    def _stop(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        self.saved.last_words = str(event.get("last_assistant_message") or "")
        events = self._turn_over(str(event.get("prompt_id") or ""))
        if self.saved.state is AgentState.IDLE:
            self.saved.owed = self.saved.last_words
        return events

    def _stop_failure(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        events = self._messages.interrupted("")
        self.saved.last_words = str(event.get("last_assistant_message") or "")
        events += self._turn_over(str(event.get("prompt_id") or ""))
        error = str(event.get("error") or "")
        if self.saved.state is not AgentState.IDLE or error in _THIS_TURN_ONLY:
            return events
        cause, reason = _LIMITS.get(error) or api_error(error or "unknown")
        if cause is LimitCause.USAGE and self.saved.last_words:
            reason = f"{reason}: {' '.join(self.saved.last_words.split())[:160]}"
        return [*events, *self._limited(cause, reason)]

    def _session_end(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        return self._messages.end_of_turn()

    _HOOKS = {
        "SessionStart": _session_start,
        "UserPromptSubmit": _submitted,
        "MessageDisplay": _display,
        "PermissionRequest": _permission,
        "Notification": _notification,
        "Stop": _stop,
        "StopFailure": _stop_failure,
        "SessionEnd": _session_end,
    }

    # -- the transcript -----------------------------------------------------------------------

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        events: list[SourceEvent] = []
        for record in parse(line):
            if record.time >= self._started:
                events += self._record(record, now)
        return events

    def _record(self, record: TranscriptRecord, now: float) -> list[SourceEvent]:
        self._watch_hooks(now)
        if record.kind in ("said", "cut", "break"):
            self.saved.model = record.model or self.saved.model
            if record.kind == "cut":
                self.saved.last_words = record.text  # a display of it may come yet
            events = self._messages.transcript(record, now)
            return events if self.saved.hooks_came else self._change(AgentState.BUSY) + events
        if record.kind == "used":
            # Each block of a message is a record, and each repeats what the whole has used.
            self.saved.usage.add(record.message_id, record.model, record.tokens)
            return []
        if record.kind == "prompt":
            self._messages.prompt(record.prompt_id)
            events = self._accept(record.text, "transcript")
            if not self.saved.hooks_came:
                self.saved.prompt = record.prompt_id or self.saved.prompt
                events += self._change(AgentState.BUSY)
            return events
        if record.kind == "queued":
            self.saved.accepted.append(remembered(record.text))
            return []
        if record.kind == "call":
            self.saved.calls[record.uuid] = record.text
            return []
        if record.kind == "result":
            return self._result(self.saved.calls.pop(record.uuid, ""))
        if record.kind == "interrupted":
            events = self._messages.interrupted(record.message_id)
            return events + broken_off(self._turn_over(record.prompt_id or self.saved.prompt))
        return self._turn_over(self.saved.prompt) if not self.saved.hooks_came else []

    def _result(self, key: str) -> list[SourceEvent]:
        """A tool has run or was refused. Another one may still wait for the person's consent."""
        if key in self.saved.asked:
            self.saved.asked.remove(key)
        if self.saved.state is AgentState.BLOCKED and not self.saved.asked:
            return self._change(AgentState.BUSY)
        return self._change(AgentState.BUSY) if self.saved.state is AgentState.STARTING else []

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """Look whether a dialog that was asked for has gone again.

        Consent is reported by nothing else before the tool has run, which may take long.
        """
        if self.saved.state is not AgentState.BLOCKED:
            return []
        composer = self.profile.composer(rows)
        if composer == "dialog":
            self._dialog_shown = True
        elif composer in ("empty", "draft") and self._dialog_shown:
            return self._change(AgentState.BUSY)
        return []

    def _watch_hooks(self, now: float) -> None:
        """Start the clock when the transcript grows though hooks should have come before it."""
        if self._hooks_planned and not self.saved.hooks_came and self._silent_since is None:
            self._silent_since = now

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[SourceEvent]:
        events: list[SourceEvent] = []
        since = self._silent_since
        if since is not None and now - since >= HOOKS_DEADLINE and self.saved.messages.displays:
            self.saved.messages.displays = False
            more = ", and its tool calls do not reach relay's hooks" if self._gated else ""
            dead = "Claude Code's hooks do not reach relay (disableAllHooks, or a policy)"
            events.append(Degraded(f"{dead}: what it says is read from its transcript{more}"))
        return events + self._messages.settle(now)

    def next_deadline(self) -> float | None:
        due = [self._messages.next_deadline()]
        if self._silent_since is not None and self.saved.messages.displays:
            due.append(self._silent_since + HOOKS_DEADLINE)
        return min((d for d in due if d is not None), default=None)

    def finish(self, now: float) -> list[SourceEvent]:
        events = self._messages.settle(now, at_end=True) + self._messages.end_of_turn()
        return [*events, *self._change(AgentState.GONE)]

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._messages = Messages(self.saved.messages)

    # -- helpers ------------------------------------------------------------------------------

    def _accept(self, text: str, by: str) -> list[SourceEvent]:
        self.saved.accepted.append(remembered(text))
        self.saved.proven.append(remembered(text))
        return [Proof(text, by)]

    def _turn_over(self, prompt_id: str) -> list[SourceEvent]:
        """The turn that answered ``prompt_id`` is over; unless the next one has begun, idle."""
        self.saved.owed = ""
        self.saved.ended.add(prompt_id)
        events = self._messages.end_of_turn()
        if prompt_id and self.saved.prompt and prompt_id != self.saved.prompt:
            return events
        return events + self._change(AgentState.IDLE)

    def _change(self, state: AgentState, reason: str = "") -> list[SourceEvent]:
        if state not in (AgentState.BLOCKED, self.saved.state):
            self.saved.asked.clear()
        return super()._change(state, reason)
