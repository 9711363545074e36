"""Claude Code for a session: its adapter, its message socket, its hook codec.

The adapter finds the transcript and the socket of this process. Claude Code opens the socket by
itself and names it to its hooks. It takes one JSON line for each message, answers nothing, and
queues what it cannot use at once. So a write is no proof: that the model got the message shows in
the hooks and the transcript (``ClaudeSource``).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, ChannelClosed, FileFollower, SourceFeed
from relay.agents.claude.source import ClaudeSource
from relay.agents.claude.transcript import whereabouts
from relay.agents.hook_codec import AgentHookCall, HookCodec, rewritten, text_of
from relay.agents.installed import own_folder_of
from relay.core.processes import MARKS, is_own_agents, peer
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: After the first Enter Claude Code must show itself somewhere (hooks or transcript) within this
#: many seconds, or the screen is believed instead.
SHOW_ITSELF = 15.0
#: Where the process keeps its things is looked up again after this many seconds.
LOOK_AGAIN = 0.5
#: Where Claude Code sees one.
_MENTION = re.compile(r"(?<![^\s。、？！])@")


class ClaudeAdapter(AgentAdapter):
    """One Claude Code."""

    source: ClaudeSource
    #: The socket is known a moment after the start; typing is for a Claude Code without one.
    patience = 20.0
    #: "Another Claude session sent a message … not typed by your user".
    frames_peers = True
    #: What its socket gets while a tool runs goes to the model with the tool's result.
    steers = True

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        env, checkpoint = start.env, start.checkpoint
        self._pid = start.pid
        self._config = own_folder_of(env, "CLAUDE_CONFIG_DIR", ".claude")
        source = self.source = ClaudeSource(
            start.started_ms / 1000,
            hooks=bool(start.launch.get("hooks")),
            gated=bool(start.launch.get("gates")),
            profile=start.profile,
        )
        self._follower = FileFollower(source, start.clock)
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"])
        self.channel = ClaudeChannel(source)
        self._entered: float | None = None
        self._searched = 0.0

    def state(self) -> dict[str, Any]:
        return self._follower.state()

    def spell(self, body: str) -> str:
        """Write ``body`` so that no ``@word`` in it names a file, whose content Claude Code would
        add to what is typed."""
        return _MENTION.sub(r"\\@", body)

    def entered(self, now: float) -> None:
        if self._entered is None:
            self._entered = now

    async def _read(self, feed: SourceFeed) -> bool:
        return await self._follower.read(self.source.transcript_path, feed)

    def _search(self, feed: SourceFeed) -> None:
        source, now = self.source, self.clock()
        if source.transcript_path and source.socket_path:
            return
        if now - self._searched < LOOK_AGAIN:
            return
        self._searched = now
        source.found(whereabouts(self._config, self._pid))
        silent = self._entered is not None and now - self._entered > SHOW_ITSELF
        if silent and not source.transcript_path:
            feed.give_up(
                "neither hooks nor a transcript of Claude Code can be found:"
                " relay reads its screen instead"
            )


#: Seconds to connect and to write one message.
DEADLINE = 5.0


class ClaudeChannel:
    """Writes messages to the socket that the source names, once it is known."""

    def __init__(self, source: ClaudeSource) -> None:
        self._source = source

    @property
    def available(self) -> bool:
        """Whether the socket is there and ours."""
        path = self._source.socket_path
        if not path:
            return False
        try:
            facts = os.stat(path)
        except OSError:
            return False
        return stat.S_ISSOCK(facts.st_mode) and facts.st_uid == os.getuid()

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises ChannelClosed when it was certainly not taken.

        ``marker`` is not sent: it stands in ``text``, and ``ClaudeSource.accepted`` finds it there.
        """
        path = self._source.socket_path
        if not path or not self.available:
            raise ChannelClosed("Claude Code's messaging socket is not there")
        line = json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n"
        try:
            async with asyncio.timeout(DEADLINE):
                _, writer = await asyncio.open_unix_connection(path)
                try:
                    if MARKS and not is_own_agents(peer(writer.get_extra_info("socket"))):
                        raise ChannelClosed("what listens there is not this agent")
                    writer.write(line.encode())
                    await writer.drain()
                    writer.write_eof()
                    writer.close()
                    await writer.wait_closed()
                finally:
                    # After a failure the rest must not follow: it would complete a message that
                    # is sent again.
                    writer.transport.abort()
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer"
            raise ChannelClosed(f"Claude Code's messaging socket: {reason}") from error


class ClaudeHookCodec(HookCodec):
    """Words answers as Claude Code reads them."""

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = _before(call, result) if before else _afterwards(call, result)
        if result.stop:
            # Claude Code runs the tool all the same: a stop before it is a refusal, too.
            said |= {"continue": False, "stopReason": result.stop_reason}
        if result.system_message:
            said["systemMessage"] = result.system_message
        if result.suppress_output:
            said["suppressOutput"] = True
        return said


def _before(call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
    # "allow" is said of what the person has agreed to and of nothing else: it would skip their own
    # permission rules. What those forbid stays forbidden.
    own: dict[str, Any] = {}
    changed = rewritten(call, result)
    if result.blocked or result.stop:
        changed = None
        reason = result.reason if result.blocked else result.stop_reason
        own = {"permissionDecision": "deny", "permissionDecisionReason": reason}
    elif result.decision is Decision.ASK:
        own = {"permissionDecision": "ask", "permissionDecisionReason": result.reason}
    elif result.agreed:
        own = {"permissionDecision": "allow", "permissionDecisionReason": "agreed to, by relay"}
    if changed is not None:
        own["updatedInput"] = changed
    if result.context:
        own["additionalContext"] = result.context
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}} if own else {}


def _afterwards(call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
    said: dict[str, Any] = {}
    own: dict[str, Any] = {}
    if result.blocked:
        said = {"decision": "block", "reason": result.reason}
    if result.context:
        own["additionalContext"] = result.context
    name = text_of(call.native, "hook_event_name") or "PostToolUse"
    if result.response is not None and name == "PostToolUse":
        own["updatedToolOutput"] = _in_place_of(call.native.get("tool_response"), result.response)
    if own:
        said["hookSpecificOutput"] = {"hookEventName": name, **own}
    return said


def _in_place_of(before: object, given: object) -> object:
    """What is given, in the form of the output that it replaces: another form is not taken."""
    if isinstance(given, str) and isinstance(before, dict) and "stdout" in before:
        return {**before, "stdout": given, "stderr": ""}
    return given
