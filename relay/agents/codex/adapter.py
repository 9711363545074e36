"""Codex for a session: its adapter, its message queue, its hook codec.

The adapter follows the session files that the process holds open.

Codex keeps a queue of messages for each conversation in a database of its own; a message there
begins a turn when none runs. ``codex queue`` puts one in, but by its command line, which everybody
on the machine can read and which has a limit; ``codex app-server`` takes the same request on its
standard input. It is asked, answers and ends: nothing of it stays. Codex looks into the queue every
ten seconds while nothing happens, and at the end of each turn that the person did not break off.
So typing is quicker, and the queue is for when the input line is not free
(relay.session.typist).

Codex has no way to ask the person from a hook: it would run the tool. So what a hook wants asked is
refused, and the model is told why.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import uuid
from collections.abc import Mapping
from json import dumps
from typing import Any

from relay.agents import hook_codec
from relay.agents.base import AgentAdapter, AgentStart, ChannelClosed, FileFollower, SourceFeed
from relay.agents.codex.source import CodexSource, is_conversation, open_files
from relay.agents.context_door import TranscriptProof
from relay.agents.hook_codec import AgentHookCall, HookCodec, rewritten, text_of
from relay.agents.profile import ComposerState
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: Seconds of a turn without a session file after which the screen is believed instead.
SHOW_ITSELF = 15.0
#: What the process holds open is looked up again after this many seconds, when its session file is
#: not known yet, and when it is (``/new`` and ``/resume`` go on in another one).
LOOK_AGAIN, LOOK_LATER = 0.5, 2.0
#: Bytes of what a hook adds that Codex gives its model for certain; the rest goes to a file.
CONTEXT_ROOM = 8000
#: Conversations of one process that are followed; those that are open no more are dropped first.
FOLLOWED_MAX = 16


class CodexAdapter(AgentAdapter):
    """One Codex."""

    source: CodexSource
    channel: CodexChannel
    #: Its queue is looked into every ten seconds only, and rests after a turn that was broken off.
    typed_first = True
    #: Before it draws, its terminal reads lines, and nobody reads those.
    cooked = "the agent is starting"

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        self._pid = start.pid
        source = self.source = CodexSource(
            start.started_ms / 1000,
            hooks=bool(start.launch.get("hooks")),
            gated=bool(start.launch.get("gates")),
            profile=start.profile,
        )
        self._followers: dict[str, FileFollower] = {}
        self._searched: float | None = None
        self._readable = bool(start.launch.get("heard"))
        self.channel = CodexChannel(
            str(start.launch.get("program") or ""),
            start.cwd,
            start.env,
            source,
        )
        #: What its hooks add stands in its session file.
        self.injection = TranscriptProof(source, CONTEXT_ROOM)
        if start.checkpoint.get("structured"):
            source.restore(start.checkpoint["structured"])
        for path, state in (start.checkpoint.get("native") or {}).items():
            self._follow(path).restore(state)
        if not self._readable:
            source.failed("")  # the launch plan has said why

    def composer(self, rows: list[str]) -> ComposerState:
        """Tell how the input line is; what is pasted into a turn breaks its answer off."""
        found = self.profile.composer(rows)
        if found != "dialog" and self.source.agent_state is AgentState.BUSY:
            return "busy"
        if found == "unknown" and self.profile.input is not None:
            # Another view stands in the place of the input line, or nothing is drawn yet.
            return "busy" if self.source.agent_state is AgentState.STARTING else "dialog"
        return found

    def accepted(self, marker: str) -> bool:
        return self.source.seen(marker) or self.channel.waits(marker)

    def state(self) -> dict[str, Any]:
        return {path: follower.state() for path, follower in self._followers.items()}

    async def read(self, feed: SourceFeed) -> bool:
        self._look()
        return await self._read(feed)

    async def _read(self, feed: SourceFeed) -> bool:
        found = False
        for path, follower in list(self._followers.items()):
            found |= await follower.read(path, feed)
        return found

    def _search(self, feed: SourceFeed) -> None:
        """Look for session files now and then, and give up when there is none to be found."""
        now = self.clock()
        again = LOOK_LATER if self._followers else LOOK_AGAIN
        if not self._readable:
            return
        if not self.source.named and self._searched is not None and now - self._searched < again:
            return
        self._searched = now
        self._look()
        since = self.source.runs_since
        if not self._followers and since is not None and now - since > SHOW_ITSELF:
            feed.give_up(
                "neither hooks nor a session file of this Codex can be found:"
                " relay reads its screen instead"
            )

    def _look(self) -> None:
        """Follow what the process holds open, and what a hook has named."""
        if not self._readable:
            return
        found = open_files(self._pid)
        self.channel.found(found.queue)
        for path in found.rollouts:
            self.source.found(path)
            self._follow(path)
        named, self.source.named = self.source.named, None
        if named and is_conversation(named):
            self.source.in_front(named)
            self._follow(named)
        while len(self._followers) > FOLLOWED_MAX:
            front = self.source.saved.path
            closed = [path for path in self._followers if path not in (*found.rollouts, front)]
            self._followers.pop(closed[0] if closed else next(iter(self._followers)))

    def _follow(self, path: str) -> FileFollower:
        return self._followers.setdefault(path, FileFollower(self.source, self.clock))


#: Seconds that Codex may take to start, to take the message and to end.
DEADLINE = 20.0
#: Bytes that one line of its answers may have: it repeats the message.
ANSWER_MAX = 16 * 1024 * 1024
_CLIENT = {"clientInfo": {"name": "relay", "title": "relay", "version": "1"}}
_CAPABLE = {"capabilities": {"experimentalApi": True}}


class CodexChannel:
    """Puts messages into the queue of the conversation in front, once it has one."""

    def __init__(self, program: str, cwd: str, env: Mapping[str, str], source: CodexSource) -> None:
        """``program`` is Codex, to be started in ``cwd`` with ``env``."""
        self._program = program
        self._cwd = cwd
        self._env = env
        self._source = source
        self._queue: str | None = None

    def found(self, queue: str | None) -> None:
        """Take the path of the queue's database; what is closed at Codex's end was open before."""
        self._queue = queue or self._queue

    @property
    def available(self) -> bool:
        """Whether what is put into the queue will be taken from it."""
        return bool(self._program and self._source.conversation) and not self._source.interrupted

    def waits(self, marker: str) -> bool:
        """Whether a text with ``marker`` in it lies in the queue."""
        path = self._queue
        if not path:
            return False
        look = "SELECT count(*) FROM queued_items WHERE thread_id = ? AND instr(payload_json, ?)"
        try:
            with contextlib.closing(
                sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
            ) as queue:
                [(count,)] = queue.execute(look, (self._source.conversation, marker)).fetchall()
        except sqlite3.Error:
            return False
        return bool(count)

    async def submit(self, text: str, marker: str) -> None:
        """Put ``text`` into the queue. Raises ChannelClosed when it was certainly not taken.

        ``marker`` is not sent: it stands in ``text``, and ``waits`` finds it there.
        """
        thread = self._source.conversation
        if not thread:
            raise ChannelClosed("the conversation has no turn yet")
        process = await self._start()
        try:
            async with asyncio.timeout(DEADLINE):
                await _ask(process, 1, "initialize", {**_CLIENT, **_CAPABLE})
                await _ask(
                    process,
                    2,
                    "thread/queue/add",
                    {
                        "threadId": thread,
                        "clientUserMessageId": str(uuid.uuid4()),
                        "input": [{"type": "text", "text": text}],
                    },
                )
        except (OSError, ValueError, TimeoutError) as error:
            if self.waits(marker):
                return
            raise ChannelClosed(f"Codex's queue: {str(error) or 'no answer'}") from error
        finally:
            await _end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._program,
                "app-server",
                cwd=self._cwd,
                env=dict(self._env),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=ANSWER_MAX,
                start_new_session=True,
            )
        except OSError as error:
            raise ChannelClosed(f"Codex cannot be started for its queue: {error}") from error


async def _ask(
    process: asyncio.subprocess.Process, number: int, method: str, params: dict[str, Any]
) -> None:
    """One request, and its answer. Raises ChannelClosed when it is refused, ConnectionError when
    there is no answer."""
    assert process.stdin is not None and process.stdout is not None
    request = {"id": number, "method": method, "params": params}
    process.stdin.write((json.dumps(request) + "\n").encode())
    await process.stdin.drain()
    while line := await process.stdout.readline():
        answer = json.loads(line)
        if not isinstance(answer, dict) or answer.get("id") != number:
            continue
        if "error" in answer:
            refused = answer["error"]
            words = refused.get("message") if isinstance(refused, dict) else refused
            raise ChannelClosed(f"Codex's queue: {words}")
        return
    raise ConnectionError("its server ended without an answer")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its server ends with its input; what does not is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(DEADLINE / 4):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


#: What is said to the model before the reason, when a person would have to be asked.
ASKS = "a person has to agree to this, and Codex cannot be made to ask them here"


class CodexHookCodec(HookCodec):
    """Reads Claude Code's words and one more event, and words answers as Codex reads them."""

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        if event.get("hook_event_name") != "PermissionRequest":
            return super().read(event)
        if event.get("agent_id"):
            return None  # a subagent's
        tool = text_of(event, "tool_name") or "a tool"
        return hook_codec.noticed(hook_codec.PERMISSION, f"Codex asks to use {tool}")

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = _before(call, result) if before else _afterwards(result)
        if result.system_message:
            said["systemMessage"] = result.system_message
        return said


def _before(call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
    own: dict[str, Any] = {}
    changed = rewritten(call, result)
    if refusal := _refusal(result):
        own = {"permissionDecision": "deny", "permissionDecisionReason": refusal}
    elif changed is not None:
        # Codex takes a rewrite only together with its consent.
        own = {"permissionDecision": "allow", "updatedInput": changed}
    if result.context:
        own["additionalContext"] = result.context
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}} if own else {}


def _refusal(result: Aggregated) -> str:
    """Why the tool must not run; "" when it may."""
    if result.blocked:
        return result.reason
    if result.stop:  # Codex would not heed "continue"
        return result.stop_reason
    if result.decision is Decision.ASK:
        return f"{ASKS}: {result.reason}" if result.reason else ASKS
    return ""


def _afterwards(result: Aggregated) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if result.blocked:
        said = {"decision": "block", "reason": result.reason}
    elif result.response is not None:
        # What a block gives for its reason takes the place of the output.
        given = result.response
        said = {"decision": "block", "reason": given if isinstance(given, str) else dumps(given)}
    if result.stop:
        said |= {"continue": False, "stopReason": result.stop_reason}
    if result.context:
        own = {"hookEventName": "PostToolUse", "additionalContext": result.context}
        said["hookSpecificOutput"] = own
    return said
