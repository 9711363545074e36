"""What an agent of a known kind brings along for its session: a source, a way in, an input line.

Each kind has a module with a function ``make(start)`` that puts together what :class:`Native`
describes. The session imports only the one that it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from relay.agents.hook_codec import HookCodec
from relay.agents.launch import TURN_EVENTS
from relay.core.message import AgentState
from relay.core.source_events import SourceEvent, Terminal
from relay.directive.envelope import Style
from relay.hooks.events import TOOL_CALL, HookEventName

#: Where ``make`` is, by the kind that a launch plan names.
MAKERS = {
    "qwen": "relay.agents.qwen.adapter",
    "claude": "relay.agents.claude.adapter",
    "codex": "relay.agents.codex.adapter",
    "gemini": "relay.agents.gemini.adapter",
    "aider": "relay.agents.aider.adapter",
    "opencode": "relay.agents.opencode.adapter",
}
#: Between an agent's hooks and the engine: a module with ``read`` and ``answer``, by the kind (see
#: relay.agents.hook_codec.HookCodec), or with ``translator``, which makes one.
#: Who is not here has no tool calls that could be asked about.
TRANSLATORS = {
    "claude": "relay.agents.claude.hook_codec",
    "codex": "relay.agents.codex.hook_codec",
    "qwen": "relay.agents.qwen.hook_codec",
    "gemini": "relay.agents.gemini.hook_codec",
    "opencode": "relay.agents.opencode.hook_codec",
}


@dataclass(frozen=True, slots=True)
class NativeStart:
    """What there is to build from.

    ``started_ms`` is when the agent was started (since the epoch), ``pid`` its process, ``launch``
    the plan's ``data``, ``folder`` the run's own folder, ``checkpoint`` what the session before
    this one left (empty at first: ``structured`` is the source's own state, ``native`` what
    :meth:`Native.state` gave), ``clock`` a monotonic one, in seconds, ``terminal`` the agent's own
    side of its terminal.
    """

    started_ms: int
    pid: int
    cwd: str
    folder: str
    launch: dict[str, Any]
    env: dict[str, str]
    checkpoint: dict[str, Any]
    clock: Callable[[], float]
    terminal: Terminal | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why nothing may be handed to the agent now."""

    reason: str
    #: Look again after this many seconds at the latest; None when only an event (a key, output, a
    #: state change) can end the wait.
    again: float | None = None


@dataclass(frozen=True, slots=True)
class TypingRules:
    """How one kind of program is typed into; by default as a program that is not known."""

    #: How messages are worded; None for lines or a paste, whatever the program takes.
    style: Style | None = None
    #: An interpreter's comment sign: each typed line begins with it, and nothing is typed but where
    #: ``at_prompt`` says so.
    comment: str = ""
    #: Why nothing is typed while the kernel edits lines; empty where lines are typed then.
    cooked: str = ""
    #: The key that submits a paste, by the screen's rows.
    enter: Callable[[list[str]], bytes] = lambda rows: b"\r"
    #: Writes a body so that the program leaves its words alone.
    spell: Callable[[str], str] = lambda body: body
    #: Its input line surely shows a paste.
    shows_paste: bool = False
    #: Why nothing is ever typed.
    refusal: str = ""
    #: Whether the cursor's row, up to the cursor, is the prompt of an interpreter that waits.
    at_prompt: Callable[[str], bool] = lambda line: True
    #: Whether a shell is itself in front in its terminal; None where that cannot be told.
    in_front: Callable[[], bool | None] = lambda: None


class SourceFeed(Protocol):
    """Where an adapter hands over what it has read of its agent (the session's sources)."""

    def transcript(self, line: str, now: float) -> None:
        """Hand over a complete line of the agent's own records."""
        ...

    def hook(self, event: dict[str, Any], now: float) -> None:
        """Hand over an event of the agent's own."""
        ...

    def reported(self, events: list[SourceEvent]) -> None:
        """Hand over what the adapter has made of records itself."""
        ...

    def give_up(self, reason: str) -> None:
        """Say that the structured source cannot hear: the screen stands in."""
        ...

    def note(self, reason: str) -> None:
        """Leave a remark for ``relay status``."""
        ...

    def visible(self) -> list[str]:
        """The screen's rows."""
        ...

    @property
    def pastes(self) -> bool:
        """Whether the program takes pastes now."""
        ...


class StructuredSource(Protocol):
    """A source that the agent itself offers; ``trusted`` says whether it hears at present.

    One that goes by the screen, too, has a method ``look(rows, title, now)`` as well: it is called
    soon after the agent has drawn.
    """

    @property
    def trusted(self) -> bool: ...
    @property
    def agent_state(self) -> AgentState: ...
    def failed(self, reason: str) -> list[SourceEvent]: ...
    def screen(self, rows: list[str]) -> list[SourceEvent]: ...
    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]: ...
    def transcript(self, line: str, now: float) -> list[SourceEvent]: ...
    def tick(self, now: float) -> list[SourceEvent]: ...
    def next_deadline(self) -> float | None: ...
    def finish(self, now: float) -> list[SourceEvent]: ...
    def state(self) -> dict[str, Any]: ...


class Source(Protocol):
    """What a structured source tells (see relay.session.sources)."""

    def heard(self, marker: str) -> bool:
        """Whether a text that holds ``marker`` was taken already, be it that it still waits."""
        ...

    def seen(self, marker: str) -> bool:
        """Whether a text that holds ``marker`` has demonstrably reached the model."""
        ...


class Submitter(Protocol):
    """A message interface of the agent's own: words go in without being typed."""

    @property
    def available(self) -> bool:
        """Whether it can be used now."""
        ...

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises RelayError when it was certainly not taken."""
        ...


class AgentAdapter(Protocol):
    """One agent's own interfaces, as far as it has them."""

    @property
    def source(self) -> StructuredSource: ...

    @property
    def heard(self) -> Source:
        """The same object as ``source``, as delivery asks it."""
        ...

    @property
    def door(self) -> Submitter | None:
        """The agent's own message interface; None for an agent that is typed into."""
        ...

    @property
    def patience(self) -> float:
        """Seconds from its start during which ``door`` is waited for instead of typing."""
        ...

    @property
    def composer(self) -> Callable[[list[str]], str] | None:
        """What the screen's rows say of the input line: empty, draft, dialog or unknown.

        None where nothing is known of it: then typing is as careful as for any program.
        """
        ...

    def state(self) -> dict[str, Any]:
        """What a next session needs beside the source's own state: JSON-able."""
        ...

    def entered(self, now: float) -> None:
        """The person pressed Enter."""
        ...

    async def watch(
        self, ears: SourceFeed, wake: asyncio.Event, changed: Callable[[], None]
    ) -> None:
        """Follow what the agent writes (files, streams) until cancelled.

        ``wake`` is set when something may be there; ``changed`` is called after something was.
        """
        ...

    async def read(self, ears: SourceFeed) -> bool:
        """Hear what there is now beyond the last look, also after the agent's end."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


def make_native(kind: str, start: NativeStart) -> AgentAdapter | None:
    """What this kind of agent brings along; None for a program that is only seen and typed to."""
    module = MAKERS.get(kind)
    if module is None:
        return None
    native: AgentAdapter = import_module(module).make(start)
    return native


def transcript_of(native: AgentAdapter) -> str:
    """The agent's own transcript, as far as it is known now; "" where there is none."""
    for name in ("transcript_path", "path"):
        if path := getattr(native.source, name, None):
            return str(path)
    return ""


def translator(kind: str) -> HookCodec | None:
    """What reads and answers this kind of agent's hooks; None where it has none for tools."""
    module = TRANSLATORS.get(kind)
    if module is None:
        return None
    found: Any = import_module(module)
    made: HookCodec = found.translator() if hasattr(found, "translator") else found
    return made


def ungated(
    kind: str, launch: Mapping[str, Any], has: Callable[[HookEventName], bool]
) -> list[str]:
    """What there is to say of hooks for tool calls that this agent's do not reach.

    ``launch`` is the plan's ``data``: ``gates`` are the events that were put in, ``ungated`` says
    why they were not. ``has`` tells whether there is any hook for an event.
    """
    missed = [event for event in TOOL_CALL if has(event) and event not in launch.get("gates", ())]
    if not missed:
        return []
    names = " and ".join(event.registration for event in missed)
    why = _why(kind, launch, "ungated")
    return [f"tool calls do not reach {names}, and nothing is blocked: {why}"]


def untold(kind: str, launch: Mapping[str, Any], has: Callable[[HookEventName], bool]) -> list[str]:
    """What there is to say of hooks for turns and notices of which this agent tells nothing.

    ``launch`` is the plan's ``data``: ``tells`` are the events that were put in, ``untold`` says
    why they were not, and ``hooks`` is true where all of them are, whatever was foreseen.
    """
    always = launch.get("hooks") and not launch.get("untold")
    told = TURN_EVENTS if always else launch.get("tells", ())
    events = map(HookEventName, TURN_EVENTS)
    missed = [event for event in events if has(event) and event not in told]
    if not missed:
        return []
    names = ", ".join(event.registration for event in missed)
    return [f"these hooks never run here, because {_why(kind, launch, 'untold')}: {names}"]


def _why(kind: str, launch: Mapping[str, Any], said: str) -> str:
    if launch.get(said):
        return str(launch[said])
    if kind == "command":  # ``codex exec``, ``claude mcp``
        return "nothing is put into what is no conversation in this terminal"
    if kind not in TRANSLATORS:
        return f"{kind or 'this program'} has no hooks of its own for them"
    return "that there are such hooks could not be told before the agent started"
