"""Memory as an agent has it: ``@memory:``, recall at its start, reminder and auto_save at its end.

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
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from relay.core.errors import BrokerUnavailable, RelayError, Timeout
from relay.core.json_text import named
from relay.core.message import AgentState
from relay.core.suggest import did_you_mean
from relay.features.memory import session_texts as memory_texts
from relay.features.memory.settings import MemorySettings
from relay.hooks.add_ons import AddOnCommand
from relay.hooks.context import Context
from relay.hooks.registry import BUILTIN, Registry

if TYPE_CHECKING:
    from relay.agents.context_door import ContextDoor
    from relay.features.memory.last_words import LastWords

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

Request = Callable[..., Awaitable[dict[str, Any]]]


def register_memory(registry: Registry, settings: MemorySettings, *, reminds: bool = True) -> None:
    """Add the handlers of memory; what the user's configuration overrides does not run.

    ``reminds``: the program is an agent in a conversation, which knows what a reminder is.
    """
    for action in ACTIONS:
        registry.add_pattern("memory", action, memory, source=BUILTIN)
    if settings.prompt_on_end and reminds:
        registry.add_hook("session_end", remind, name="memory", source=BUILTIN)


def memory(target: str, message: str, ctx: Context) -> None:
    """``@memory:save text``: save ``text``; and so on for the other ACTIONS."""
    ctx.memory.command(target, message)


def remind(ctx: Context) -> str:
    """The last chance to save something, where the agent still has a moment."""
    return REMINDER


@dataclass(frozen=True, slots=True)
class Recall:
    """What an agent of ``project`` is told at its start. ``about`` is what it is to do; what its
    own run ``run_id`` saved is not told, nor anything where ``handlers_asked()``: a session-start
    handler that has looked for memories tells the agent of them itself."""

    about: str
    run_id: str
    project: str
    handlers_asked: Callable[[], bool]


def about(task: str | None, folder: str) -> str:
    """What to look for: bytes that are no Unicode, in the name of a folder say, cannot be asked."""
    words = (named(task or ""), named(os.path.basename(folder)))
    return " ".join(filter(None, words)).strip()


class MemoryAddOn:
    """Does the commands of one agent.

    ``answer(command_id, text)`` tells the agent what came of one, once; ``note(text)`` is for the
    person. Where the agent works, and its store, the broker knows from its registration.
    ``changed()`` is called when ``state()`` has become less: what is done is not to be done again.
    """

    def __init__(
        self,
        request: Request,
        answer: Callable[[str, str], object],
        note: Callable[[str], None],
        spawn: Callable[[Awaitable[None]], None],
        *,
        changed: Callable[[], None] = lambda: None,
        last_words: LastWords | None = None,
        door: ContextDoor | None = None,
        recall: Recall | None = None,
    ) -> None:
        """``last_words``: what auto_save keeps, or None. ``door``: by which the agent is told what
        it has not asked for; ``recall``: what of that at its start."""
        self._request = request
        self._answer = answer
        self._note = note
        self._spawn = spawn
        self._changed = changed
        self._last_words = last_words
        self._door = door
        self._recall = recall
        self._pending: OrderedDict[str, AddOnCommand] = OrderedDict()
        self._size = 0
        self._working = False
        self._gone = False
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Have the agent told what was saved before that it may need."""
        if self._door is not None and self._recall is not None:
            self._spawn(self._tell_earlier(self._door, self._recall))

    def take(self, command: AddOnCommand) -> None:
        """Do it, after those that came before it."""
        if command.id in self._pending:
            return  # heard again while it waits
        problem = _problem(command)
        full = len(self._pending) >= PENDING_MAX
        if not problem and (full or self._size + len(command.text) > PENDING_SIZE_MAX):
            problem = "too many earlier ones still wait"
        if problem:
            self._answer(command.id, _refused(command, problem))
            return
        self._pending[command.id] = command
        self._size += len(command.text)
        if not self._working:
            self._working = True
            self._idle.clear()
            self._spawn(self._work())

    def said(self, texts: list[str]) -> None:
        """The agent said these lines: auto_save may want them."""
        if self._last_words is not None:
            self._last_words.said(texts)

    def state_changed(self, state: AgentState) -> None:
        """Memories have nothing to do with turns."""

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
            self.take(AddOnCommand(**fields))

    async def _work(self) -> None:
        try:
            while self._pending:
                command = next(iter(self._pending.values()))
                try:
                    await self._do(command)
                finally:
                    del self._pending[command.id]
                    self._size -= len(command.text)
                    self._changed()
        finally:
            self._working = False
            self._idle.set()

    async def _do(self, command: AddOnCommand) -> None:
        try:
            reply = await self._asked(command)
            told = memory_texts.answer(command.action, command.text, reply)
        except RelayError as error:
            told = _refused(command, error.line)
            if self._gone:
                self._note(told)
            self._tell(command, told)
            return
        asked = command.action not in _LASTING
        if asked or not self._gave(told) and memory_texts.matters(command.text, reply):
            self._tell(command, told)

    def _gave(self, told: str) -> bool:
        """Whether the agent reads it beside its next prompt."""
        return self._door is not None and self._door.tells_once and self._door.give(told)

    def _tell(self, command: AddOnCommand, told: str) -> None:
        if not self._gone:
            self._answer(command.id, told)

    async def _tell_earlier(self, door: ContextDoor, recall: Recall) -> None:
        found: list[dict[str, Any]] = []
        fields = {"limit": RECALLED_MAX}
        try:
            if recall.about:
                reply = await self._request("memory_search", query=recall.about, **fields)
                found += reply["memories"]
            found += (await self._request("memory_list", **fields))["memories"]
        except RelayError:
            return  # there is no store, and the person knows it; or it is away
        # A slow store answers when this agent has saved something already.
        earlier = [memory for memory in found if memory["session"] != recall.run_id]
        told = memory_texts.at_start(earlier, recall.project)
        if told and not recall.handlers_asked():
            door.give(told)

    async def _asked(self, command: AddOnCommand) -> dict[str, Any]:
        end = asyncio.get_running_loop().time() + SEARCH_DEADLINE
        op, fields = f"memory_{command.action}", _fields(command)
        while True:
            try:
                return await self._request(op, **fields)
            except (BrokerUnavailable, Timeout) as error:
                self._waits(command, error, end)
            except RelayError as error:
                if error.code != "busy":
                    raise
                self._waits(command, error, end)
            await asyncio.sleep(RETRY_SECONDS)

    def _waits(self, command: AddOnCommand, error: RelayError, end: float) -> None:
        """Note that it waits; raises ``error`` when it is not worth waiting any longer."""
        late = asyncio.get_running_loop().time() >= end
        if command.action not in _LASTING and (late or self._gone):
            raise error
        self._note(f"@memory:{command.action} waits: {error.message}")


def _problem(command: AddOnCommand) -> str:
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
        return f"[limit:{limit}] is no number from 1 on"
    return ""


def _fields(command: AddOnCommand) -> dict[str, Any]:
    attributes: dict[str, Any] = dict(command.attributes)
    if command.action in ("search", "list"):
        limit = int(attributes.get("limit", memory_texts.LINES_MAX))
        attributes["limit"] = min(limit, memory_texts.LINES_MAX)
    key = {"save": "text", "search": "query", "forget": "id"}.get(command.action)
    return attributes | ({key: command.text.strip()} if key else {})


def _refused(command: AddOnCommand, why: str) -> str:
    return f"not done: @memory:{command.action}: {why}"
