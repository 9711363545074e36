"""The kinds of programs that relay knows: their adapters and codecs, how they are typed into.

The session imports only the modules of the agent that it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from relay.agents.base import AgentAdapter, AgentStart, TypingRules
from relay.agents.hook_codec import HookCodec
from relay.agents.interpreters import launches, refusal, script_of
from relay.agents.launch import TURN_EVENTS
from relay.agents.profile import Profile, find_profile, has_profile
from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import SourceEvent
from relay.hooks.events import TOOL_CALL, HookEventName

#: The class of each agent's adapter, in the module relay.agents.KIND.adapter.
ADAPTERS = {
    "qwen": "QwenAdapter",
    "claude": "ClaudeAdapter",
    "codex": "CodexAdapter",
    "gemini": "GeminiAdapter",
    "aider": "AiderAdapter",
    "opencode": "OpencodeAdapter",
}
#: The same for its hook codec, in the same module. aider has no hooks.
HOOK_CODECS = {
    "claude": "ClaudeHookCodec",
    "codex": "CodexHookCodec",
    "qwen": "QwenHookCodec",
    "gemini": "GeminiHookCodec",
    "opencode": "OpencodeHookCodec",
}


#: Why such a run gets no messages.
ANSWERS_ONCE = "this run answers once and ends: nobody can tell it anything"


def answers_once(kind: str, launch: Mapping[str, Any]) -> bool:
    """Whether this run is no conversation: nothing goes to it, by typing or otherwise.

    ``codex exec``, ``claude -p``, an agent whose input or output is not a terminal.
    """
    return kind == "command" or bool(launch.get("headless"))


def in_conversation(kind: str, launch: Mapping[str, Any]) -> bool:
    """Whether it is an agent that relay knows, and somebody converses with it."""
    return kind in ADAPTERS and not answers_once(kind, launch)


def profile_of_run(args: Mapping[str, Any], folder: str) -> tuple[Profile, list[str]]:
    """The profile of what a run has started, and remarks; ``args`` are those of its session.

    ``python -m gptme``, ``npx gptme``: where what is run there has a profile, it is that.
    ``folder`` is the person's own of profiles. Without a profile it only has the program's name.
    """
    name = args.get("profile") or "unknown"
    script = script_of(list(args.get("argv") or ()))
    if script not in ADAPTERS and has_profile(script, folder):
        name = script
    return find_profile(name, folder)


#: Why a message waits in the inbox of what starts a program that nobody can name.
LAUNCHED = (
    "it may have started a shell, which relay types nothing into: relay wrap --type paste (or"
    " line) says that what runs there takes messages"
)
NO_BOX = "the agent does not read its input line now"


def rules_of(
    profile: Profile, args: Mapping[str, Any], adapter: AgentAdapter | None
) -> TypingRules:
    """Return the rules for typing into any program; ``args`` are those of its session."""
    if answers_once(profile.name, args.get("launch") or {}):
        return TypingRules(refusal=ANSWERS_ONCE)
    chosen = args.get("takes")  # by the person, with --type
    if adapter is not None:
        rules = adapter.typing_rules()
    else:
        enter = profile.enter.encode()
        rules = TypingRules(
            enter=lambda rows: enter,
            shows_paste=profile.shows_paste,
            takes=profile.takes,
            literal=profile.literal.encode(),
            # The kernel edits no line in a box.
            cooked=NO_BOX if profile.input is not None and profile.input.below is not None else "",
            # Most often a shell is what is launched, which would run what it is sent.
            refusal=LAUNCHED if launches(profile.name) and not chosen else refusal(profile.name),
        )
    primed = (args.get("launch") or {}).get("primed") is True
    rules = replace(rules, digits=profile.digits, primed=primed)
    return replace(rules, takes=chosen, vouched=True) if chosen else rules


def make_adapter(kind: str, start: AgentStart) -> AgentAdapter | None:
    """Make the adapter of this kind of agent; None for a program that is only seen and typed to."""
    name = ADAPTERS.get(kind)
    if name is None:
        return None
    made: AgentAdapter = getattr(import_module(f"relay.agents.{kind}.adapter"), name)(start)
    return made


class ScreenStates(StructuredSource):
    """Tells what a program does by its screen and its profile. Its words the screen source has."""

    reads_screen = infers_turns = True

    def __init__(self, profile: Profile) -> None:
        super().__init__(SourceState(AgentState.IDLE, failed=True), profile)

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        if self.saved.state is AgentState.GONE:
            return []
        if self.profile.asks(rows, title):
            return self._change(AgentState.BLOCKED, "a dialog waits for the person")
        busy = self.profile.shows_turn(rows, title)
        return self._change(AgentState.BUSY if busy else AgentState.IDLE)


def source_of(adapter: AgentAdapter | None, profile: Profile) -> StructuredSource | None:
    """What tells of a program beside its screen source; None where nothing does."""
    if adapter is not None:
        return adapter.source
    return ScreenStates(profile) if profile.tells_of_screen else None


def make_hook_codec(kind: str) -> HookCodec | None:
    """Make what reads and answers this kind of agent's hooks; None where it has none."""
    name = HOOK_CODECS.get(kind)
    if name is None:
        return None
    made: HookCodec = getattr(import_module(f"relay.agents.{kind}.adapter"), name)()
    return made


def ungated(kind: str, launch: Mapping[str, Any], hooked: Collection[HookEventName]) -> list[str]:
    """Name the configuration's hooks for tool calls that this agent's calls do not reach, and why.

    ``launch`` is the plan's ``data``: ``gates`` are the events that were put in, ``ungated`` says
    why they were not. ``hooked`` are the events that there are hooks for.
    """
    missed = [
        event for event in TOOL_CALL if event in hooked and event not in launch.get("gates", ())
    ]
    if not missed:
        return []
    names = " and ".join(event.registration for event in missed)
    why = _why(kind, launch, "ungated")
    return [f"tool calls do not reach {names}, and nothing is blocked: {why}"]


def why_ungated(kind: str, launch: Mapping[str, Any]) -> str:
    """Why this agent's tool calls cannot be refused by relay; "" where they can."""
    if HookEventName.BEFORE_TOOL.value in launch.get("gates", ()):
        return ""
    why = _why(kind, launch, "ungated")
    return f"{why}; a persona's agent has them put in when it starts"


def untold(kind: str, launch: Mapping[str, Any], hooked: Collection[HookEventName]) -> list[str]:
    """Name the configuration's hooks for turns and notices that never run here, and why.

    ``launch`` is the plan's ``data``: ``tells`` are the events that were put in, ``untold`` says
    why they were not, and ``hooks`` is true where all of them are, whatever was foreseen.
    """
    always = launch.get("hooks") and not launch.get("untold")
    told = TURN_EVENTS if always else launch.get("tells", ())
    events = map(HookEventName, TURN_EVENTS)
    missed = [event for event in events if event in hooked and event not in told]
    if not missed:
        return []
    names = ", ".join(event.registration for event in missed)
    return [f"these hooks never run here, because {_why(kind, launch, 'untold')}: {names}"]


def _why(kind: str, launch: Mapping[str, Any], said: str) -> str:
    if launch.get(said):
        return str(launch[said])
    if kind == "command":  # ``codex exec``, ``claude mcp``
        return "relay gives nothing to a run that is not a conversation in this terminal"
    if kind not in HOOK_CODECS:
        return f"{kind or 'this program'} has no hooks of its own for them"
    return "that there are such hooks could not be told before the agent started"
