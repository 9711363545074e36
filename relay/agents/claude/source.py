"""What Claude Code says and does, from its hooks and its transcript. No I/O, no clock.

The session feeds hook events and lines of the transcript; lines of the assistant's own text,
changes of state and proofs come out. Thinking, tool calls, tool output, subagents, the
program's own words and what was said before this run are never heard.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from relay.agents.base import StructuredSource
from relay.agents.claude.messages import Messages
from relay.agents.claude.screen import composer_state
from relay.agents.claude.transcript import Record, Whereabouts, call_key, parse
from relay.core.bounded import BoundedDict
from relay.core.message import AgentState
from relay.core.source_events import Degraded, Proof, SourceEvent, StateChange

#: Texts whose arrival is remembered, and how many characters of each: its envelope's first lines.
ACCEPTED_MAX = 256
ACCEPTED_HEAD = 400
#: Seconds without any hook, while the transcript grows, after which hooks are taken as dead.
HOOKS_DEADLINE = 5.0
#: Prompts whose turn is over that are remembered.
ENDED_MAX = 64
#: Tool calls that are remembered until their results come.
CALLS_MAX = 256
#: How often the transcript is worth a look, in seconds: when its next line is awaited, busy, idle.
POLL_URGENT, POLL_BUSY, POLL_IDLE = 0.03, 0.25, 1.0

#: After an error of the API the next try is worth it after so many seconds; after a limit, so many.
ERROR_RETRY, LIMIT_RETRY = 30.0, 300.0
_LIMITS = {
    "rate_limit": "a usage limit is reached",
    "billing_error": "there is a problem with the account's billing",
    "authentication_failed": "the account is not signed in",
    "oauth_org_not_allowed": "the account's organisation does not allow it",
    "account_on_hold": "the account is on hold",
    "verification_required": "the account must be verified",
    "cloud_credential_error": "the cloud's credentials are refused",
    "model_not_found": "there is no such model",
}
#: Errors that say something of one request, not of the next.
_THIS_TURN_ONLY = frozenset({"invalid_request", "max_output_tokens"})
_WAITING = frozenset({"permission_prompt", "elicitation_dialog"})


class ClaudeSource(StructuredSource):
    """One Claude Code process, as it is heard.

    ``started`` is when it was started, in seconds since the epoch: older records of a resumed
    conversation are history. ``hooks`` says whether the launch plan could put hooks in, ``gated``
    whether some of them are for tool calls.
    """

    def __init__(self, started: float, *, hooks: bool = True, gated: bool = False) -> None:
        super().__init__()
        self._gated = gated
        self._started = int(started * 1000) / 1000  # the transcript counts in milliseconds
        self._hooks_planned = hooks
        self._hooks_heard = False
        self._silent_since: float | None = None  # the transcript grows, no hook ever came
        self._messages = Messages(displays=hooks)
        self._prompt = ""
        self._session = ""
        self._left: deque[str] = deque(maxlen=ENDED_MAX)  # sessions before the present one
        self._ended: deque[str] = deque(maxlen=ENDED_MAX)
        self._last_words = ""
        self._accepted: deque[str] = deque(maxlen=ACCEPTED_MAX)
        self._proven: deque[str] = deque(maxlen=ACCEPTED_MAX)
        self._calls: BoundedDict[str, str] = BoundedDict(CALLS_MAX)  # a tool call's id -> its key
        self._asked: deque[str] = deque(maxlen=CALLS_MAX)  # keys of calls that wait for consent
        self._dialog_shown = False
        self._transcript: str | None = None
        self.socket_path: str | None = None

    # -- what the session asks ----------------------------------------------------------------

    @property
    def transcript_path(self) -> str | None:
        return self._transcript

    def accepted(self, marker: str) -> bool:
        """Whether a text with ``marker`` at its beginning has been taken by Claude Code already,
        be it that it still waits in its queue: sending it again would double it."""
        return any(marker in text for text in self._accepted)

    def seen(self, marker: str) -> bool:
        """Whether a text with ``marker`` at its beginning has demonstrably reached the model."""
        return any(marker in text for text in self._proven)

    def poll_interval(self) -> float:
        """In how many seconds the transcript should be looked at again."""
        if self._messages.waiting:
            return POLL_URGENT
        return POLL_BUSY if self._state in (AgentState.BUSY, AgentState.BLOCKED) else POLL_IDLE

    def found(self, where: Whereabouts) -> None:
        """What was found without hooks; what hooks told counts more."""
        self._transcript = self._transcript or where.transcript
        self.socket_path = self.socket_path or where.socket

    def failed(self, reason: str) -> list[SourceEvent]:
        """Nothing can be heard here (no hook, no transcript): the screen stands in."""
        if self._failed:
            return []
        self._failed = True
        return [Degraded(reason)]

    # -- hooks --------------------------------------------------------------------------------

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """One hook event, as Claude Code sends it (and ``relay`` with our own headers)."""
        events = self._first_hook()
        own = event.get("relay")
        if isinstance(own, dict) and own.get("door"):
            self.socket_path = str(own["door"])
        if event.get("agent_id"):
            return events  # a subagent's
        self._follow(event)
        handler = self._HOOKS.get(str(event.get("hook_event_name")))
        return events + handler(self, event, now) if handler else events

    def _follow(self, event: dict[str, Any]) -> None:
        """Note which transcript is written now. ``/clear`` begins another one, and what is still
        reported of the old session may come after what the new one reports."""
        session, path = str(event.get("session_id") or ""), event.get("transcript_path")
        name = event.get("hook_event_name")
        if name == "SessionStart" and session != self._session:
            self._left.append(self._session)
            self._session = session
        elif name == "SessionEnd" or session in self._left and session != self._session:
            return
        if isinstance(path, str) and path:
            self._transcript = path

    def _first_hook(self) -> list[SourceEvent]:
        self._failed = False
        self._silent_since = None
        self._hooks_heard = True
        self._messages.displays = True
        return []

    def _session_start(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        # With a prompt on the command line the first turn may be reported before its session.
        fresh = self._state is AgentState.STARTING or event.get("source") == "clear"
        return self._change(AgentState.IDLE) if fresh else []

    def _submitted(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        prompt_id = str(event.get("prompt_id") or "")
        text = event.get("prompt")
        proof = self._accept(text, "hook") if isinstance(text, str) else []
        if prompt_id in self._ended:
            return proof  # overtaken by its own Stop
        self._prompt = prompt_id
        return [*proof, *self._change(AgentState.BUSY)]

    def _display(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        events = self._messages.display(event, now)
        prompt_id = str(event.get("prompt_id") or "")
        # Reports overtake each other: a last piece that comes after Stop is no new activity, and
        # one that comes after PermissionRequest does not mean that the dialog is gone.
        late = prompt_id in self._ended and str(event.get("delta")).strip() in self._last_words
        if late or self._state is AgentState.BLOCKED:
            return events
        self._prompt = prompt_id or self._prompt
        return self._change(AgentState.BUSY) + events

    def _permission(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        name = event.get("tool_name")
        self._asked.append(call_key(name, event.get("tool_input")))
        self._dialog_shown = False
        return self._change(AgentState.BLOCKED, f"asks to use {name or 'a tool'}")

    def _notification(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        kind = str(event.get("notification_type") or "")
        if kind in _WAITING and self._state is AgentState.BUSY:
            return self._change(AgentState.BLOCKED, "a dialog waits for the person")
        # That nobody types does not mean that the model answers again.
        idle = kind == "idle_prompt" and self._state is not AgentState.LIMITED
        return self._change(AgentState.IDLE) if idle else []

    def _stop(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        self._last_words = str(event.get("last_assistant_message") or "")
        return self._turn_over(str(event.get("prompt_id") or ""))

    def _stop_failure(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        events = self._messages.interrupted("")
        events += self._turn_over(str(event.get("prompt_id") or ""))
        error = str(event.get("error") or "")
        if self._state is not AgentState.IDLE or error in _THIS_TURN_ONLY:
            return events
        self._state = AgentState.LIMITED
        retry = LIMIT_RETRY if error in _LIMITS else ERROR_RETRY
        reason = _LIMITS.get(error) or f"the API answers with an error ({error or 'unknown'})"
        return [*events, StateChange(AgentState.LIMITED, reason, retry)]

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
        """One complete line of the transcript, in the order of the file."""
        events: list[SourceEvent] = []
        for record in parse(line):
            if record.time >= self._started:
                events += self._record(record, now)
        return events

    def _record(self, record: Record, now: float) -> list[SourceEvent]:
        self._watch_hooks(now)
        if record.kind in ("said", "break"):
            events = self._messages.transcript(record, now)
            return events if self._hooks_heard else self._change(AgentState.BUSY) + events
        if record.kind == "prompt":
            self._messages.prompt(record.prompt_id)
            events = self._accept(record.text, "transcript")
            if not self._hooks_heard:
                self._prompt = record.prompt_id or self._prompt
                events += self._change(AgentState.BUSY)
            return events
        if record.kind == "queued":
            self._accepted.append(record.text[:ACCEPTED_HEAD])
            return []
        if record.kind == "call":
            self._calls[record.uuid] = record.text
            return []
        if record.kind == "result":
            return self._result(self._calls.pop(record.uuid, ""))
        if record.kind == "interrupted":
            broken_off = self._messages.interrupted(record.message_id)
            return broken_off + self._turn_over(record.prompt_id or self._prompt)
        return self._turn_over(self._prompt) if not self._hooks_heard else []

    def _result(self, key: str) -> list[SourceEvent]:
        """A tool has run or was refused. Another one may still wait for the person's consent."""
        if key in self._asked:
            self._asked.remove(key)
        if self._state is AgentState.BLOCKED and not self._asked:
            return self._change(AgentState.BUSY)
        return self._change(AgentState.BUSY) if self._state is AgentState.STARTING else []

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        """The screen has settled: whether a dialog that was asked for has gone again.

        Consent is reported by nothing else before the tool has run, which may take long.
        """
        if self._state is not AgentState.BLOCKED:
            return []
        composer = composer_state(rows)
        if composer == "dialog":
            self._dialog_shown = True
        elif composer in ("empty", "draft") and self._dialog_shown:
            return self._change(AgentState.BUSY)
        return []

    def _watch_hooks(self, now: float) -> None:
        """Start the clock when the transcript grows though hooks should have come before it."""
        if self._hooks_planned and not self._hooks_heard and self._silent_since is None:
            self._silent_since = now

    # -- time ---------------------------------------------------------------------------------

    def tick(self, now: float) -> list[SourceEvent]:
        """What is due by ``now``."""
        events: list[SourceEvent] = []
        since = self._silent_since
        if since is not None and now - since >= HOOKS_DEADLINE and self._messages.displays:
            self._messages.displays = False
            more = ", and its tool calls do not reach relay's hooks" if self._gated else ""
            dead = "Claude Code's hooks do not reach relay (disableAllHooks, or a policy)"
            events.append(Degraded(f"{dead}: what it says is read from its transcript{more}"))
        return events + self._messages.settle(now)

    def next_deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        due = [self._messages.next_deadline()]
        if self._silent_since is not None and self._messages.displays:
            due.append(self._silent_since + HOOKS_DEADLINE)
        return min((d for d in due if d is not None), default=None)

    def finish(self, now: float) -> list[SourceEvent]:
        """Claude Code has ended: nothing more will come."""
        events = self._messages.settle(now, at_end=True) + self._messages.end_of_turn()
        return [*events, *self._change(AgentState.GONE)]

    # -- for a restart ------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot for :meth:`restore`."""
        return {
            "messages": self._messages.state(),
            "state": self._state.value,
            "prompt": self._prompt,
            "session": self._session,
            "left": list(self._left),
            "ended": list(self._ended),
            "last_words": self._last_words,
            "accepted": list(self._accepted),
            "proven": list(self._proven),
            "calls": dict(self._calls),
            "asked": list(self._asked),
            "hooks_heard": self._hooks_heard,
            "displays": self._messages.displays,
            "transcript": self._transcript,
            "door": self.socket_path,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._messages.restore(state["messages"])
        self._state = AgentState(state["state"])
        self._prompt, self._last_words = state["prompt"], state["last_words"]
        self._session = state["session"]
        self._left.extend(state["left"])
        self._ended.extend(state["ended"])
        self._accepted.extend(state["accepted"])
        self._proven.extend(state["proven"])
        self._calls = BoundedDict(CALLS_MAX, state["calls"])
        self._asked = deque(state["asked"], CALLS_MAX)
        self._hooks_heard = state["hooks_heard"]
        self._messages.displays = state["displays"]
        self._transcript, self.socket_path = state["transcript"], state["door"]

    # -- helpers ------------------------------------------------------------------------------

    def _accept(self, text: str, by: str) -> list[SourceEvent]:
        self._accepted.append(text[:ACCEPTED_HEAD])
        self._proven.append(text[:ACCEPTED_HEAD])
        return [Proof(text, by)]

    def _turn_over(self, prompt_id: str) -> list[SourceEvent]:
        """The turn that answered ``prompt_id`` is over; unless the next one has begun, idle."""
        self._ended.append(prompt_id)
        events = self._messages.end_of_turn()
        if prompt_id and self._prompt and prompt_id != self._prompt:
            return events
        return events + self._change(AgentState.IDLE)

    def _change(
        self, state: AgentState, reason: str = "", retry: float | None = None
    ) -> list[SourceEvent]:
        if state is self._state:
            return []
        if state is not AgentState.BLOCKED:
            self._asked.clear()
        self._state = state
        return [StateChange(state, reason, retry)]
