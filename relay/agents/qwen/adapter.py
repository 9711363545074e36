"""Qwen Code for a session: its adapter, its input file, its hook codec.

The adapter follows the event files and the record of the chat, and knows how Qwen Code must spell.

Qwen Code looks at its input file twice a second and queues each complete line that was added. It
answers nothing: that the model got a message shows in the event file (``QwenSource``). The lines in
the file are the messages that were handed over, which a session that follows a killed one reads.

Qwen Code takes no other input for a tool from a hook: a call whose input is to be changed is
refused, and the model is told with which input to call again. What is added before a tool runs
reaches the model with its result (docs/agents/qwen.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import sys
from typing import Any

from relay.agents.base import (
    AgentAdapter,
    AgentStart,
    Blocked,
    ChannelClosed,
    FileFollower,
    SourceFeed,
    poll,
)
from relay.agents.context_door import InjectionProof
from relay.agents.hook_codec import AgentHookCall, DeferredContext, HookCodec, rewritten, text_of
from relay.agents.installed import read_text
from relay.agents.qwen.launch import EVENTS, INPUT, home
from relay.agents.qwen.source import LOOK, POLL_BUSY, QwenSource
from relay.core.bounded import RecentSet
from relay.core.files import write_atomically
from relay.core.message import AgentState
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision

#: Seconds after the first Enter within which the event file must be there; else the screen is read.
SHOW_ITSELF = 20.0
#: Seconds between two looks at the record of the chat: when it has to say how a message ended, in
#: a turn, and at rest.
CHAT_URGENT, CHAT_BUSY, CHAT_IDLE = 0.1, 0.3, 2.0
#: Messages that were given with the answers to hooks are noted in this file of the run's folder.
GIVEN = "given.json"
#: … so many; the oldest are forgotten first.
GIVEN_MAX = 256
#: Characters of a message that is given with a tool's output: Qwen Code cuts off both together
#: behind 25,000.
CONTEXT_ROOM = 8000
#: Looks for the record of the chat of which one is real, while it is not there: recording can be
#: turned off.
SELDOM = 10
#: Bytes: a part of an event file smaller than this is not worth forgetting.
PART = 4 * 1024 * 1024

_SESSION_ID = re.compile(r"[0-9A-Za-z-]{8,64}")
_NUMBERED = re.compile(r"\.(\d+)$")
_KEEP_SIZE, _PUNCH_HOLE, _BLOCK = 1, 2, 4096
_BEHIND_SPACE = re.compile(r"(?<=\s)@")
#: What Qwen Code leaves exactly as it is, as long as nothing has that name.
_HARMLESS = re.compile(r"(?<= )@([\w-]+)(?=[,;!?()\[\]{}\s]|$)")
#: Between two of them white space would be lost.
_CLOSE = re.compile(r"@[\w-]+(?! @)\s+@")
#: An envelope's last words, in which a space more does no harm.
_ANSWER = re.compile(r'a line "@relay:[^"\n]*"')


class QwenAdapter(AgentAdapter):
    """Reads one Qwen Code's event files, record of the chat and screen."""

    source: QwenSource
    channel: QwenChannel | None
    injection: TurnProof
    #: The input file is read from a moment after the start.
    patience = 30.0

    def __init__(self, start: AgentStart) -> None:
        super().__init__(start)
        launch, checkpoint = start.launch, start.checkpoint
        self._cwd, self._home = start.cwd, home(start.env)
        self._events = bool(launch.get("events"))
        self.source = QwenSource(
            start.started_ms / 1000, events=self._events, profile=start.profile
        )
        source = self.source
        self._files = EventFiles(os.path.join(start.folder, EVENTS))
        self._chat = ChatRecord(start.env, source)
        self._follower = FileFollower(source, start.clock)
        self._chats = FileFollower(source, start.clock)
        if checkpoint.get("structured"):
            source.restore(checkpoint["structured"])
        if checkpoint.get("native"):
            self._follower.restore(checkpoint["native"]["events"])
            self._files.restore(checkpoint["native"]["events"]["path"])
            self._chats.restore(checkpoint["native"]["chat"])
        self.channel = None
        if self._events and launch.get("input"):
            self.channel = QwenChannel(os.path.join(start.folder, INPUT), self)
        self.injection = TurnProof(os.path.join(start.folder, GIVEN), self)
        self._feed: SourceFeed | None = None
        self._entered: float | None = None

    def spell(self, text: str) -> str:
        """See TypingRules in relay.agents.base."""
        return spelled(text, self._cwd, self._home)

    def hold(self, now: float) -> Blocked | None:
        """Why nothing should be handed over now, though it could be.

        Qwen Code queues what comes while it is busy, but at Esc it moves its queue into the input
        line, where the person may delete it.
        """
        if self.source.agent_state is AgentState.BLOCKED:
            return Blocked("a dialog waits for the person", 1.0)
        if self.source.in_turn:
            return Blocked("the agent is busy", 1.0)
        on_its_way = self.channel is not None and self.channel.on_its_way(now)
        return Blocked("another message is on its way", 0.1) if on_its_way else None

    def accepted(self, marker: str) -> bool:
        handed_over = self.channel is not None and self.channel.handed_over(marker)
        return handed_over or self.seen(marker)

    def seen(self, marker: str) -> bool:
        return self.source.seen(marker) or self.injection.landed(marker)

    def state(self) -> dict[str, Any]:
        """The files' places for the checkpoint; the source has a state of its own."""
        events = self._follower.state()
        self._files.kept(events["path"], events["offset"])
        return {"events": events, "chat": self._chats.state()}

    def entered(self, now: float) -> None:
        """The person pressed Enter."""
        if self._entered is None:
            self._entered = now

    async def watch(self, feed: SourceFeed) -> None:
        self._feed = feed
        if self._events:
            async with asyncio.TaskGroup() as group:
                group.create_task(super().watch(feed))
                group.create_task(
                    poll(
                        lambda: self._chats.read(self._chat.path(), feed),
                        self._chat_interval,
                        asyncio.Event(),
                        feed,
                    )
                )
                group.create_task(self._look(feed))

    async def read(self, feed: SourceFeed) -> bool:
        if not self._events:
            return False
        found = await self._read(feed)
        return await self._chats.read(self._chat.path(), feed) or found

    async def _read(self, feed: SourceFeed) -> bool:
        return await self._follower.read(self._files.path(), feed)

    async def _look(self, feed: SourceFeed) -> None:
        """Ask the screen what the event file does not tell."""
        while True:
            judges = self.source.in_doubt or self.source.in_turn
            if judges and await self.read(feed):  # what is written decides first
                feed.read()
            events = self.source.glance(feed.visible(), self.clock())
            if events:
                feed.reported(events)
                feed.read()
            await asyncio.sleep(POLL_BUSY if self.source.in_doubt else LOOK)

    async def own(self, call: str) -> bool:
        """Whether a tool call of this id is the agent's own."""
        if not self.source.called(call) and self._feed is not None:
            await self._read(self._feed)
        return self.source.called(call)

    def _chat_interval(self) -> float:
        if self.source.in_doubt:
            return CHAT_URGENT
        return CHAT_BUSY if self.source.in_turn else CHAT_IDLE

    def _search(self, feed: SourceFeed) -> None:
        now = self.clock()
        if self._files.lost:
            feed.give_up("Qwen Code's event file is gone: relay reads its screen instead")
        elif (
            not self.source.conversation
            and self._entered is not None
            and now - self._entered > SHOW_ITSELF
        ):
            feed.give_up("Qwen Code writes no events: relay reads its screen instead")


class EventFiles:
    """The event files of one run that follow each other at ``base``.

    Qwen Code writes its events from the beginning of the file, also when it starts itself again
    (after it was told to trust a folder, for one). So a file that it has opened is given a number,
    and the next process finds none and makes another. What has been read is no longer kept on the
    disk, where the system can forget a part of a file.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self._number = 0
        self._forgotten = 0
        self._read = 0  # up to here a session that follows this one has no need of it

    def path(self) -> str | None:
        """Tell, before each read, which file is next: another only after this one was read."""
        if os.path.exists(self._name(self._number + 1)):
            self._number += 1
            self._forgotten = self._read = 0
        with contextlib.suppress(OSError):
            os.rename(self._base, self._name(self._last() + 1))
        if not self._number and os.path.exists(self._name(1)):
            self._number = 1
        return self._name(self._number) if self._number else None

    @property
    def lost(self) -> bool:
        """Whether the file that was being read is gone."""
        return bool(self._number) and not os.path.exists(self._name(self._number))

    def restore(self, path: str | None) -> None:
        """Go on with the file that an earlier session read last."""
        found = _NUMBERED.search(path or "")
        self._number = int(found[1]) if found else 0

    def kept(self, path: str | None, offset: int) -> None:
        """A checkpoint says that ``path`` was read up to ``offset``; the one before it is safe."""
        if path != self._name(self._number):
            return  # it is still read, and the next one is known already
        done, self._read = self._read, offset
        if done - self._forgotten >= PART and self._number:
            self._forgotten = done
            forget(self._name(self._number), done)

    def _last(self) -> int:
        number = self._number
        while os.path.exists(self._name(number + 1)):
            number += 1
        return number

    def _name(self, number: int) -> str:
        return f"{self._base}.{number}"


def forget(path: str, end: int) -> None:
    """Give the first ``end`` bytes of a file back to the disk, where the system can do that."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            length = ctypes.c_int64(end // _BLOCK * _BLOCK)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(0), length)
        finally:
            os.close(fd)


class ChatRecord:
    """The file in which Qwen Code records the chat of its session.

    It is read for what the event file leaves out: messages that reached the model within a turn,
    and what each answer of the API held.
    """

    def __init__(self, env: dict[str, str], source: QwenSource) -> None:
        folder = os.path.expanduser(env.get("QWEN_RUNTIME_DIR") or home(env))
        self._projects = os.path.join(folder, "projects")
        self._source = source
        self._found: tuple[str, str] = "", ""
        self._asked = 0

    def path(self) -> str | None:
        """The record's file, or None."""
        session = self._source.conversation
        if not _SESSION_ID.fullmatch(session):
            return None
        if self._found[0] != session:
            self._asked += 1
            if self._asked % SELDOM == 1:
                self._found = session, self._search(session)
        if self._found[1]:
            return self._found[1]
        self._found = "", ""
        return None

    def _search(self, session: str) -> str:
        try:
            projects = os.listdir(self._projects)
        except OSError:
            return ""
        for project in projects:
            path = os.path.join(self._projects, project, "chats", f"{session}.jsonl")
            if os.path.exists(path):
                return path
        return ""


def spelled(text: str, cwd: str, home: str) -> str:
    """Write ``text`` so that Qwen Code, at work in ``cwd``, finds nothing to add in it.

    Once an ``@`` stands behind white space anywhere in a message, Qwen Code takes every ``@word``
    in it for the name of a file, a server or a session: it adds what it finds under that name, and
    spaces of its own. A backslash before the ``@`` is its way to say that nothing is meant.
    ``home`` is where it keeps the person's settings.
    """
    if not _BEHIND_SPACE.search(text):
        return text
    body = _ANSWER.sub("", text)
    names = {found[1] for found in _HARMLESS.finditer(body)}
    harmless = len(_HARMLESS.findall(body)) == body.count("@") and not _CLOSE.search(body)
    if harmless and not _known(names, cwd) and not _server_relay(cwd, home):
        return text
    return _BEHIND_SPACE.sub(r"\\@", text)


def _known(names: set[str], cwd: str) -> bool:
    return any(os.path.lexists(os.path.join(cwd, name)) for name in names)


def _server_relay(cwd: str, home: str) -> bool:
    """Whether a server may have the name that an envelope's last words begin with."""
    places = (cwd, ".mcp.json"), (cwd, ".qwen", "settings.json"), (home, "settings.json")
    return any('"relay"' in read_text(os.path.join(*place)) for place in places)


#: Bytes of the file beyond which it begins afresh, when Qwen Code has read all that stands in it.
INPUT_MAX = 1024 * 1024
#: Seconds after which the next message follows though the last one has not reached the model:
#: those that Qwen Code finds together become one.
ON_ITS_WAY = 10.0


class QwenChannel:
    """Appends messages to the input file at ``path``."""

    def __init__(self, path: str, adapter: QwenAdapter) -> None:
        self._path = path
        self._adapter = adapter
        self._source = adapter.source
        self._last: tuple[str, float] | None = None

    @property
    def available(self) -> bool:
        """Whether what is written now will be read."""
        return self._source.telling and os.access(self._path, os.W_OK)

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises ChannelClosed when it was certainly not taken."""
        if not self._source.telling:
            raise ChannelClosed("Qwen Code does not read its input file yet")
        line = json.dumps({"type": "submit", "text": self._adapter.spell(text), "id": marker})
        try:
            await asyncio.to_thread(self._append, line.encode() + b"\n")
        except OSError as error:
            raise ChannelClosed(f"Qwen Code's input file: {error.strerror or error}") from error
        self._last = marker, self._adapter.clock()

    def on_its_way(self, now: float) -> bool:
        """Whether the last message has not reached the model, which takes a second."""
        if (
            self._last is None
            or now - self._last[1] > ON_ITS_WAY
            or self._source.seen(self._last[0])
        ):
            self._last = None
        return self._last is not None

    def handed_over(self, marker: str) -> bool:
        """Whether a message with ``marker`` stands in the file, complete."""
        return marker in self._markers()

    def _append(self, line: bytes) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size > INPUT_MAX and all(map(self._source.seen, self._markers())):
                os.ftruncate(fd, 0)
                size = 0
            # The half line of a session that was killed while it wrote is not for anybody.
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = b"\n" + line if torn else line
            written = os.write(fd, data)
            if written < len(data):
                # The rest must not follow: it would complete a message that is sent again.
                os.ftruncate(fd, size)
                raise OSError(0, "there is no room for the message")
        finally:
            os.close(fd)

    def _markers(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                found.append(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                continue
        return found


class TurnProof(InjectionProof):
    """What Qwen Code's hooks add shows nowhere; but that its model was asked again does.

    What is given stands in the file ``path``, which lasts as long as the run.
    """

    shows = False

    def __init__(self, path: str, adapter: QwenAdapter) -> None:
        self._path = path
        self._adapter = adapter
        self._given: dict[str, int] = _read_given(path)

    @property
    def room(self) -> int:
        return CONTEXT_ROOM if self._adapter.source.trusted else 0

    async def own(self, call: AgentHookCall) -> bool:
        return await self._adapter.own(str(call.fields.get("tool_use_id") or ""))

    def landed(self, marker: str) -> bool:
        return marker in self._given and self._adapter.source.went_on(self._given[marker])

    def giving(self, markers: list[str]) -> None:
        self._given |= dict.fromkeys(markers, self._adapter.source.answers)
        for marker in list(self._given)[:-GIVEN_MAX]:
            del self._given[marker]
        self._write()

    def kept(self, markers: list[str]) -> None:
        for marker in markers:
            self._given.pop(marker, None)
        with contextlib.suppress(OSError):  # the next session may have to guess
            self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._given), durable=False)


def _read_given(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="utf-8") as file:
            return {str(marker): int(count) for marker, count in json.load(file).items()}
    except (OSError, ValueError, AttributeError):
        return {}


#: Inputs that the model was told to use; the oldest are forgotten first.
OFFERED_MAX = 256


class QwenHookCodec(HookCodec):
    """Qwen Code's hooks; context that is added before a tool goes with its result."""

    def __init__(self) -> None:
        self._held = DeferredContext()
        self._offered: RecentSet[str] = RecentSet(OFFERED_MAX)

    def read(self, event: dict[str, Any]) -> AgentHookCall | None:
        call = super().read(event)
        if call is not None and call.event is HookEventName.BEFORE_AGENT:
            # It tells of each result of a tool as of a prompt without words.
            return call if call.fields["prompt"].strip() else None
        if call is not None and (given := text_of(event, "tool_call_id")):
            call.fields["tool_use_id"] = given  # the id that the model's own call has
        return call

    def answer(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        before = call.event is HookEventName.BEFORE_TOOL
        said = self._before(call, result) if before else self._afterwards(call, result)
        if result.system_message:
            said["systemMessage"] = result.system_message
        if result.suppress_output:
            said["suppressOutput"] = True
        return said

    def _before(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        # "allow" is never said: it would skip the person's own permission rules.
        if result.blocked or result.stop:
            return refusal(result.reason if result.blocked else result.stop_reason)
        if result.decision is Decision.ASK:
            return _decided("ask", result.reason)
        changed = rewritten(call, result)
        if changed is not None and changed != call.fields.get("tool_input"):
            told = self._instead(call, changed, result.context)
            if told:
                return refusal(told)
        self._held.keep(call, result.context)
        return {}

    def _instead(self, call: AgentHookCall, changed: dict[str, Any], context: str) -> str:
        """What the model is told to do; "" where it does what it was told."""
        tool = call.fields.get("tool_name")
        if _key(tool, call.fields.get("tool_input")) in self._offered:
            return ""
        self._offered.add(_key(tool, changed))
        words = (
            f"This call was not run: a hook changes its input. Call {tool} again with exactly this"
            f" input: {json.dumps(changed, ensure_ascii=False)}"
        )
        return f"{words}\n{context}" if context else words

    def _afterwards(self, call: AgentHookCall, result: Aggregated) -> dict[str, Any]:
        name = text_of(call.native, "hook_event_name") or "PostToolUse"
        shown = result.response
        text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
        instead = result.stop_reason if result.stop else text if shown is not None else ""
        reason = result.reason if result.blocked else ""
        told = [self._held.take(call), reason, result.context]
        if (result.stop or shown is not None) and name == "PostToolUse":
            # The only way to keep a result from the model is an error in its place, and nothing is
            # told beside that.
            whole = "\n".join(filter(None, (instead, *told)))
            return {"continue": False, "stopReason": whole}
        context = "\n".join(filter(None, (*told[:2], instead, *told[2:])))
        if not context:
            return {}
        return {"hookSpecificOutput": {"hookEventName": name, "additionalContext": context}}


def refusal(reason: str) -> dict[str, Any]:
    """The tool does not run, whatever other hooks say: of ``permissionDecision`` the last one
    counts in Qwen Code, but nothing outweighs a stop."""
    said = _decided("deny", reason)
    return {"decision": "block", "reason": reason, "continue": False, "stopReason": reason, **said}


def _decided(decision: str, reason: str) -> dict[str, Any]:
    own = {"permissionDecision": decision, "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **own}}


def _key(tool: object, given: object) -> str:
    return json.dumps([tool, given], sort_keys=True)
