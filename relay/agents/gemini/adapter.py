"""Gemini CLI for a session: its adapter and its hook codec. It is typed into.

The adapter finds the session file that belongs to this process. What a hook adds before a tool runs
reaches the model with the tool's result: Gemini CLI takes it only there.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any

from relay.agents import hook_codec
from relay.agents.base import AgentAdapter, AgentStart, FileFollower, SourceFeed
from relay.agents.gemini.source import Claims, GeminiSource, SessionFiles, solid
from relay.agents.hook_codec import (
    AgentHookCall,
    DeferredContext,
    HookCodec,
    rewritten,
    text_of,
    tool_fields,
)
from relay.agents.profile import ComposerState
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: After the first prompt the session file must be there within this many seconds, or the screen is
#: believed instead.
SHOW_ITSELF = 15.0
#: The session file is looked for again after this many seconds.
LOOK_AGAIN = 0.5
#: Seconds after a prompt is shown in which it may turn up in another file (a new conversation).
MAY_CHANGE = 15.0
#: Seconds for what is in the present file to be read before another one is looked for.
SETTLED = 0.5
#: Characters that a row cut at the screen's edge must have to tell a prompt.
ROW_TELLS = 20

#: Where Gemini CLI sees a file, a folder or one of its agents named: unless a backslash stands
#: before it, what is found there is added to the prompt.
_REFERENCE = re.compile(
    r"(?<!\\)@((?:\"[^\"]*\"|\\.|[^ \t\n\r,;!?()\[\]{}.\\]|\.(?!$|[ \t\n\r]))+)", re.MULTILINE
)
_AGENTS = frozenset(("codebase_investigator", "cli_help", "generalist", "browser_agent"))


class GeminiAdapter(AgentAdapter):
    """One Gemini CLI."""

    source: GeminiSource
    #: Before it draws and after its end its terminal reads lines, and nobody reads those.
    cooked = "the agent is starting"
    #: While it loads a conversation it drops keys.
    shows_paste = True

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        self._claims = Claims(start.folder, start.pid)
        self._cwd = start.cwd
        self._files = SessionFiles(start.env)
        self._session: str | None = start.launch.get("session")
        self._began = start.started_ms / 1000
        self.source = GeminiSource(self._began, self.wake, start.profile)
        self._follower = FileFollower(self.source, start.clock)
        self._asked: float | None = None
        self._searched = 0.0
        if start.checkpoint.get("structured"):
            self.source.restore(start.checkpoint["structured"])
        kept = start.checkpoint.get("native") or {}
        if kept:
            self._follower.restore(kept["follower"])
            self._session = kept["session"]
        if not start.launch.get("heard", True):
            self.source.failed("")  # the launch plan has said why

    def composer(self, rows: list[str]) -> ComposerState:
        """Tell how the input line is. What is typed while Gemini CLI works would wait with it, out
        of relay's hands; and whatever has taken the place of the input line reads keys."""
        found = self.profile.composer(rows)
        if found == "empty" and self.source.agent_state is AgentState.BUSY:
            return "busy"
        return "dialog" if found == "unknown" and self.source.saved.drawn else found

    def spell(self, body: str) -> str:
        return spelled(body, self._cwd)

    def state(self) -> dict[str, Any]:
        return {"follower": self._follower.state(), "session": self._session}

    def entered(self, now: float) -> None:
        """The person pressed Enter; before the input line is there, in a dialog (to sign in)."""
        if self.source.saved.drawn:
            self._asked = self._asked or now

    async def read(self, feed: SourceFeed) -> bool:
        self._look_for_own()
        return await self._read(feed)

    async def _read(self, feed: SourceFeed) -> bool:
        return await self._follower.read(self.source.saved.path, feed)

    def _search(self, feed: SourceFeed) -> None:
        now = self.clock()
        if not self.source.trusted or now - self._searched < LOOK_AGAIN:
            return
        self._searched = now
        self._look_for_own()
        self._look_for_another(now)
        asked = self._asked or self.source.shown_at
        if self.source.saved.path is None and asked is not None and now - asked > SHOW_ITSELF:
            feed.give_up(
                "the session file of Gemini CLI cannot be found: relay reads its screen instead"
            )

    def _look_for_own(self) -> None:
        if self.source.saved.path is None and self._session:
            self._read_on(self._files.find(self._session))

    def _look_for_another(self, now: float) -> None:
        """``/clear``, ``/resume`` and ``--resume`` go on in a file whose name nobody tells.

        It is the one with a prompt that our own screen shows and that the file we read has not.
        Where that is true of two files, the next prompt must tell.
        """
        shown = self.source.shown_at
        if shown is None or not SETTLED < now - shown < MAY_CHANGE:
            return
        since = max(self._began, time.time() - MAY_CHANGE)
        found = [
            candidate
            for candidate in self._files.candidates(
                since, self.source.saved.path, self._claims.others()
            )
            if any(self._is_ours(prompt) for prompt in candidate.prompts)
        ]
        if len(found) == 1:
            self._session = found[0].session
            self._read_on(found[0].path)

    def _read_on(self, path: str | None) -> None:
        if path is not None:
            self.source.saved.path, self.source.saved.session = path, self._session or ""
            self._claims.claim(path)

    def _is_ours(self, prompt: str) -> bool:
        text = solid(prompt)
        if not text or self.source.knows(prompt):
            return False
        return any(
            text == row or (len(row) >= ROW_TELLS and text.startswith(row))
            for row in self.source.saved.shown
        )


def spelled(text: str, cwd: str) -> str:
    """``text`` with a backslash before each ``@`` that names what there is in ``cwd``.

    Else a peer's words could have the agent read files, and would look otherwise than they were
    written.
    """

    def escaped(found: re.Match[str]) -> str:
        return f"\\{found[0]}" if _exists(found[1], cwd) else found[0]

    return _REFERENCE.sub(escaped, text)


def _exists(name: str, cwd: str) -> bool:
    plain = re.sub(r"\\(.)", r"\1", name.replace('"', ""))
    try:
        return plain in _AGENTS or os.path.exists(os.path.join(cwd, plain))
    except ValueError:  # a null byte
        return False


class GeminiHookCodec(HookCodec):
    """Reads Gemini CLI's hooks and words their answers."""

    def __init__(self) -> None:
        self._held = DeferredContext()

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        name = event.get("hook_event_name")
        if name == "BeforeTool":
            return AgentHookCall(HookEventName.BEFORE_TOOL, tool_fields(event), True, event)
        if name == "AfterTool":
            fields = {
                **tool_fields(event),
                "tool_response": event.get("tool_response"),
                "duration": None,
            }
            return AgentHookCall(HookEventName.AFTER_TOOL, fields, True, event)
        if name == "BeforeAgent":
            return hook_codec.prompted(text_of(event, "prompt"))
        if name == "AfterAgent":
            said, prompt = text_of(event, "prompt_response"), text_of(event, "prompt")
            # What the model said in each of the turn's steps, joined by blanks.
            return hook_codec.answered(said.strip(), prompt)
        if name == "Notification":
            kind = text_of(event, "notification_type")
            kind = hook_codec.PERMISSION if kind == "ToolPermission" else kind
            return hook_codec.noticed(kind, text_of(event, "message"))
        if name == "PreCompress" and event.get("trigger") == "manual":
            return hook_codec.compacting("manual")
        return None

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = self._before(call, result) if before else self._afterwards(call, result)
        if result.stop:
            said |= {"continue": False, "stopReason": result.stop_reason}
        if result.system_message:
            said["systemMessage"] = result.system_message
        if result.suppress_output:
            said["suppressOutput"] = True
        return said

    def _before(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        if result.blocked or result.stop:
            return refusal(result.reason if result.blocked else result.stop_reason)
        changed = rewritten(call, result)
        self._held.keep(call, result.context, changed)
        said: dict[str, Any] = {}
        if result.decision is Decision.ASK:
            # Its dialog shows the system message. Without a terminal it would wait for ever, but
            # only conversations are gated.
            said = {"decision": "ask", "reason": result.reason, "systemMessage": result.reason}
        if changed is not None:
            # Gemini CLI takes it in place of the model's, not beside it.
            said["hookSpecificOutput"] = {"hookEventName": "BeforeTool", "tool_input": changed}
        return said

    def _afterwards(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        context = "\n".join(filter(None, (self._held.take(call), result.context)))
        said: dict[str, Any] = {}
        if result.blocked:
            said = refusal("\n".join(filter(None, (result.reason, context))))
        elif result.response is not None:
            # The only way to keep a result from the model: an error in its place.
            shown = result.response
            text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
            said = refusal("\n".join(filter(None, (text, context))))
        elif context:
            own = {"hookEventName": "AfterTool", "additionalContext": context}
            said = {"hookSpecificOutput": own}
        return said


def refusal(reason: str) -> dict[str, Any]:
    """Word a refusal: the tool does not run, or the model does not see what it gave back."""
    return {"decision": "deny", "reason": reason}
