"""Memory in a session: ``@memory:``, recall at its start, reminder and auto_save at its end.

Commands are done in the order in which they were said. What an agent has asked for (a search, a
list) and what failed is given to it as a message. What it has not asked for, what is remembered at
its start and that a save is done, goes by the agent's context door or not at all: typed, it would
be a turn of its own, or the answer to what a program asks its person.

A save or a forget that the broker cannot take now is asked again until it has an answer, and is
part of the checkpoint: a session that is killed asks again, which changes nothing that was done.
A search is of use only soon: after SEARCH_DEADLINE the agent is told that nothing came of it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from relay.agents.context_door import ContextDoor, door_of
from relay.agents.known_agents import in_conversation
from relay.config import llm
from relay.core.errors import BrokerUnavailable, ConfigError, RelayError, Timeout, did_you_mean
from relay.core.json_text import named
from relay.directive.escape import clean
from relay.directive.redact import redact
from relay.features.memory import session_texts as memory_texts
from relay.features.memory.ops import (
    MEMORY_EXTRACT,
    MEMORY_FORGET,
    MEMORY_LIST,
    MEMORY_SAVE,
    MEMORY_SEARCH,
    OPS,
    MemoryRow,
)
from relay.features.memory.session_texts import LINES_MAX
from relay.features.memory.settings import MEMORY
from relay.features.memory.spec import StoreSpec
from relay.hooks.context import Context
from relay.hooks.registry import BUILTIN, Registry
from relay.session.door import SessionFacts, SessionFeature
from relay.session.feature_parts import FeatureParts
from relay.session.session_commands import FeatureCommand

if TYPE_CHECKING:
    from relay.protocol.op import Answer, Fields, Op
    from relay.session.broker_reports import Broker

ACTIONS = ("save", "search", "forget", "list")
#: Commands, and characters of their texts, that wait; beyond it the agent is told. As JSON in the
#: checkpoint a character may be twelve bytes.
PENDING_MAX = 1000
PENDING_SIZE_MAX = 256 * 1024
#: A text longer than this is not kept for a broker that is away: no store takes it either.
TEXT_MAX = 64 * 1024
#: How long a search may wait for a broker that is away, and between two tries. Seconds.
SEARCH_DEADLINE = 60.0
RETRY_SECONDS = 1.0
#: Memories that are looked at for an agent that starts; how many fit is decided by their length.
RECALLED_MAX = 20
REMINDER = (
    "This session ends. If you learned something that later sessions should know, save it now, one"
    " line each, as @memory:save and the text, and nothing that is a secret. Otherwise do nothing."
)
_LASTING = ("save", "forget")
_OPTIONS = {
    "save": ("scope", "supersedes"),
    "search": ("scope", "limit"),
    "list": ("scope", "limit"),
    "forget": (),
}


def register(registry: Registry, facts: SessionFacts) -> None:
    """Add the handlers of memory; what the user's configuration overrides does not run."""
    for action in ACTIONS:
        registry.add_pattern("memory", action, memory, source=BUILTIN)
    # A program that is not in a conversation does not know what a reminder is.
    if facts.settings.of(MEMORY).prompt_on_end and in_conversation(facts.kind, facts.launch):
        registry.add_hook("session_end", remind, name="memory", source=BUILTIN)


def feature(parts: FeatureParts) -> MemorySession:
    """The feature in a session."""
    run, facts, settings = parts.run, parts.facts, parts.facts.settings.of(MEMORY)
    fields, problem = chosen(settings.store, run.env, facts.unusable)
    if problem is not None:
        parts.note(f"memories are neither saved nor found: {problem.line}")
    gate = MemoryGate(parts.broker, problem)
    # A project whose name is not Unicode cannot be named: the user's and the agent's remain.
    project = named(run.project) or None
    words = None
    if settings.auto_save and settings.llm is not None:
        words = LastWords(settings.llm, run.env, gate, parts, project=project)
    memories = MemorySession(
        parts,
        gate,
        last_words=words,
        door=door_of(facts.launch),
        recall=Recall(about(run.task, run.cwd), run.run_id, run.project)
        if settings.inject_on_start
        else None,
        registered={"project": project, "secrets": settings.secrets, **fields},
    )
    memories.restore(parts.saved.get("memory") or [])
    return memories


def memory(target: str, message: str, ctx: Context) -> None:
    """``@memory:save text``: save ``text``; and so on for the other ACTIONS."""
    ctx.memory.command(target, message)


def remind(ctx: Context) -> str:
    """The last chance to save something, where the agent still has a moment."""
    return REMINDER


@dataclass(frozen=True, slots=True)
class Recall:
    """What an agent of ``project`` is told at its start. ``about`` is what it is to do; what its
    own run ``run_id`` saved is not told."""

    about: str
    run_id: str
    project: str


def about(task: str | None, folder: str) -> str:
    """What to look for: bytes that are not Unicode, as in a folder's name, cannot be asked."""
    words = (named(task or ""), named(os.path.basename(folder)))
    return " ".join(filter(None, words)).strip()


class MemorySession(SessionFeature):
    """Does the commands of one agent. Where it works, and its store, the broker knows from its
    registration."""

    namespace = "memory"

    def __init__(
        self,
        session: FeatureParts,
        store: MemoryGate,
        *,
        last_words: LastWords | None = None,
        door: ContextDoor | None = None,
        recall: Recall | None = None,
        registered: Mapping[str, Any] | None = None,
    ) -> None:
        """``last_words``: what auto_save keeps, or None. ``door``: by which the agent is told what
        it has not asked for; ``recall``: what of that at its start. ``registered``: what holds for
        every request about memories of this agent or its tools."""
        self._session = session
        self._store = store
        self._registered = registered or {}
        #: A session-start handler that has looked for memories tells the agent of them itself.
        self._handlers_asked = False
        self._last_words = last_words
        self._door = door
        self._recall = recall
        self._pending: OrderedDict[str, FeatureCommand] = OrderedDict()
        self._size = 0
        self._working = False
        self._gone = False
        self._idle = asyncio.Event()
        self._idle.set()

    def registration(self) -> Mapping[str, Any]:
        """Where the memories of this agent are, and what may be in them."""
        return {"memory": dict(self._registered)}

    def asked(self, op: str) -> None:
        """A handler asks for memories. Raises NoStore."""
        self._store.check(op)
        self._handlers_asked |= op in (MEMORY_SEARCH, MEMORY_LIST)

    def begin(self) -> None:
        """Have the agent told what was saved before that it may need."""
        if self._door is not None and self._recall is not None:
            self._session.spawn(self._tell_earlier(self._door, self._recall))

    def take(self, command: FeatureCommand) -> None:
        """Do it, after those that came before it."""
        if command.id in self._pending:
            return  # heard again while it waits
        problem = _problem(command)
        full = len(self._pending) >= PENDING_MAX
        if not problem and (full or self._size + len(command.text) > PENDING_SIZE_MAX):
            problem = "too many earlier ones still wait"
        if problem:
            self._session.answer(command.id, _refused(command, problem))
            return
        self._pending[command.id] = command
        self._size += len(command.text)
        if not self._working:
            self._working = True
            self._idle.clear()
            self._session.spawn(self._work())

    def said(self, texts: list[str]) -> None:
        """The agent said these lines: auto_save may want them."""
        if self._last_words is not None:
            self._last_words.said(texts)

    async def end(self) -> None:
        """Hand over what auto_save has kept."""
        if self._last_words is not None:
            await self._last_words.end()

    def agent_gone(self) -> None:
        """Nobody is told any more what comes of a command: searches need not be done."""
        self._gone = True

    async def settle(self, deadline: float) -> bool:
        """Wait up to ``deadline`` seconds until nothing is pending."""
        try:
            async with asyncio.timeout(deadline):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def state(self) -> list[dict[str, Any]]:
        """What has no answer yet, for the checkpoint."""
        return [asdict(command) for command in self._pending.values()]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go on with what an earlier session of this run had heard."""
        for fields in state:
            self.take(FeatureCommand(**fields))

    async def _work(self) -> None:
        try:
            while self._pending:
                command = next(iter(self._pending.values()))
                try:
                    await self._do(command)
                finally:
                    del self._pending[command.id]
                    self._size -= len(command.text)
                    self._session.changed()
        finally:
            self._working = False
            self._idle.set()

    async def _do(self, command: FeatureCommand) -> None:
        try:
            reply = await self._asked(command)
            told = memory_texts.answer(command.action, command.text, reply)
        except RelayError as error:
            told = _refused(command, error.line)
            if self._gone:
                self._session.note(told)
            self._tell(command, told)
            return
        asked = command.action not in _LASTING
        if asked or not self._gave(told) and memory_texts.matters(command.text, reply):
            self._tell(command, told)

    def _gave(self, told: str) -> bool:
        """Whether the agent reads it beside its next prompt."""
        return self._door is not None and self._door.tells_once and self._door.give(told)

    def _tell(self, command: FeatureCommand, told: str) -> None:
        if not self._gone:
            self._session.answer(command.id, told)

    async def _tell_earlier(self, door: ContextDoor, recall: Recall) -> None:
        found: list[MemoryRow] = []
        store = self._store
        try:
            if recall.about:
                hits = await store.request(MEMORY_SEARCH, query=recall.about, limit=RECALLED_MAX)
                found += hits["memories"]
            found += (await store.request(MEMORY_LIST, limit=RECALLED_MAX))["memories"]
        except RelayError:
            return  # there is no store, and the person knows it; or it is away
        # A slow store answers when this agent has saved something already.
        earlier = [memory for memory in found if memory["session"] != recall.run_id]
        told = memory_texts.at_start(earlier, recall.project)
        if told and not self._handlers_asked:
            door.give(told)

    async def _asked(self, command: FeatureCommand) -> Mapping[str, object]:
        end = asyncio.get_running_loop().time() + SEARCH_DEADLINE
        while True:
            try:
                return await self._request(command)
            except (BrokerUnavailable, Timeout) as error:
                self._waits(command, error, end)
            except RelayError as error:
                if error.code != "busy":
                    raise
                self._waits(command, error, end)
            await asyncio.sleep(RETRY_SECONDS)

    async def _request(self, command: FeatureCommand) -> Mapping[str, object]:
        store, text = self._store, command.text.strip()
        scope = command.attributes.get("scope")
        limit = min(int(command.attributes.get("limit", LINES_MAX)), LINES_MAX)
        match command.action:
            case "save":
                supersedes = command.attributes.get("supersedes")
                return await store.request(
                    MEMORY_SAVE, text=text, scope=scope, supersedes=supersedes
                )
            case "search":
                return await store.request(MEMORY_SEARCH, query=text, scope=scope, limit=limit)
            case "list":
                return await store.request(MEMORY_LIST, scope=scope, limit=limit)
            case _:
                return await store.request(MEMORY_FORGET, id=text)

    def _waits(self, command: FeatureCommand, error: RelayError, end: float) -> None:
        """Note that it waits; raises ``error`` when it is not worth waiting any longer."""
        late = asyncio.get_running_loop().time() >= end
        if command.action not in _LASTING and (late or self._gone):
            raise error
        self._session.note(f"@memory:{command.action} waits: {error.message}")


def _problem(command: FeatureCommand) -> str:
    """What is wrong with it; empty for a command that can be done."""
    if command.action not in ACTIONS:
        return f"memory has no {command.action!r}; {did_you_mean(command.action, ACTIONS)}"
    if command.action != "list" and not command.text.strip():
        return "no id follows it" if command.action == "forget" else "no text follows it"
    if len(command.text) > TEXT_MAX:
        return "the text is too long to remember; save a summary, or the name of a file"
    for name in command.attributes:
        if name not in _OPTIONS[command.action]:
            known = _OPTIONS[command.action]
            return f"it has no option [{name}:…]; {did_you_mean(name, known) or 'it takes none'}"
    limit = command.attributes.get("limit", "1")
    if not limit.isdecimal() or int(limit[:9]) < 1:
        return f"[limit:{limit}] is not a number from 1 on"
    return ""


def _refused(command: FeatureCommand, why: str) -> str:
    return f"not done: @memory:{command.action}: {why}"


class NoStore(ConfigError):
    """Nothing about memories can be asked in this session; the person has been told why."""


def chosen(
    store: StoreSpec, environ: Mapping[str, str], unusable: RelayError | None = None
) -> tuple[dict[str, Any], RelayError | None]:
    """The fields of every request about memories, and why there can be none. Those of the default
    store are empty.

    ``unusable``: why the configuration is not known. In the default store instead memories would
    be where nobody looks once it is mended; ``relay memory`` does nothing either.
    """
    if unusable is not None:
        return {}, unusable
    if store == StoreSpec():
        return {}, None
    if store.backend == "searcher" and not store.file:
        return {}, ConfigError(
            "memory: a searcher is called in a process of its own, by a relay.config.py",
            hint="write it there: a program's own object is not known to that process",
        )
    try:
        return {"store": store.resolved(environ).to_json()}, None
    except ConfigError as error:
        return {}, error


class MemoryGate:
    """The way to the broker, which is asked nothing about memories while it is not known in which
    store (``problem``)."""

    def __init__(self, broker: Broker, problem: RelayError | None = None) -> None:
        self._broker = broker
        self._problem = problem

    def check(self, op: str) -> None:
        """Raises NoStore for what is about memories and cannot be asked."""
        if self._problem is not None and op in OPS:
            raise NoStore(self._problem.message, hint=self._problem.hint)

    async def request(
        self, op: Op[Fields, Any, Answer], *args: Fields.args, **fields: Fields.kwargs
    ) -> Answer:
        """As the broker does; raises NoStore."""
        self.check(op)
        return await self._broker.request(op, *args, **fields)


#: Bytes of UTF-8 of a conversation's tail, which is what is sent.
TAIL_MAX = 64 * 1024
#: Characters that are kept: more than what is sent, so that no secret is cut before it is masked.
KEPT_MAX = 2 * TAIL_MAX
#: For the one request, in seconds: the end waits for no broker that is away.
DEADLINE = 10.0


class LastWords:
    """Of one agent; ``project`` is None where it cannot be named."""

    def __init__(
        self,
        config: Mapping[str, object],
        environ: Mapping[str, str],
        store: MemoryGate,
        session: FeatureParts,
        *,
        project: str | None,
    ) -> None:
        """``config`` is that of the model. What is wrong with it is noted, and nothing is saved."""
        self._store = store
        self._session = session
        self._project = project
        self._lines: deque[str] = deque()
        self._size = 0
        self._model: llm.LLM | None = None
        try:
            self._model = llm.resolved(config, environ)
        except ConfigError as error:
            self._problem(error)

    def said(self, texts: list[str]) -> None:
        """The agent said these lines."""
        if self._model is None:
            return
        for text in texts:
            line = text[-KEPT_MAX:]
            self._lines.append(line)
            self._size += len(line) + 1
        while self._size - len(self._lines[0]) - 1 >= KEPT_MAX:
            self._size -= len(self._lines.popleft()) + 1

    async def end(self) -> None:
        """The agent is gone: hand over what it said, with one request."""
        text = tail(redact(clean("\n".join(self._lines)))).strip()
        if self._model is None or not text:
            return
        if self._project is None:
            self._session.note(
                "auto_save: this folder's name is not Unicode, so nothing is saved for it"
            )
            return
        try:
            await self._store.request(
                MEMORY_EXTRACT,
                deadline=DEADLINE,
                text=text,
                llm={**self._model.public(), "api_key": self._model.key},
            )
        except RelayError as error:
            print(self._problem(error), file=sys.stderr)  # the log: who looks later finds it there

    def _problem(self, error: RelayError) -> str:
        problem = f"auto_save: nothing is kept of this session: {error.line}"
        self._session.note(problem)
        return problem


def tail(text: str, limit: int = TAIL_MAX) -> str:
    """The end of ``text``, in at most ``limit`` bytes of UTF-8, from the beginning of a line on
    where there is one."""
    data = text.encode(errors="replace")
    if len(data) <= limit:
        return data.decode()
    kept = data[-limit:].decode(errors="ignore")
    begins_line = data[-limit - 1 : -limit] == b"\n"
    return kept if begins_line else kept.partition("\n")[2] or kept
