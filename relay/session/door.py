"""The session's door: what a feature can add to a session, and how the session asks its features.

A feature's module ``session`` may have these functions:

- ``feature(parts) -> SessionFeature | None`` makes the feature of a session (``parts``: see
  relay.session.feature_parts);
- ``register(registry, facts)`` adds its patterns and hooks, as a user's configuration does;
- ``watcher(fds, profile) -> FrameWatcher | None`` makes what is shown every frame of the pump's.

All of it is called in the session's loop, and must not block.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from relay.agents.hook_codec import AgentHookCall
from relay.config.settings import Settings
from relay.core.errors import RelayError
from relay.core.message import AgentState
from relay.session.background import failure
from relay.session.session_commands import FeatureCommand
from relay.session.session_events import EventQueue

#: Answers a request of another process; whether the person asks, else it is this very agent.
#: Raises RelayError.
FeatureAnswer = Callable[[Mapping[str, Any], bool], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What is known of a session from its start."""

    #: The profile of the program, and the data of its launch plan.
    kind: str
    launch: Mapping[str, Any]
    #: What the pump said first; what features added at the run's start is in it.
    hello: Mapping[str, Any]
    settings: Settings
    #: Why the configuration is not known, and ``settings`` are those without one.
    unusable: RelayError | None = None


class FrameWatcher(Protocol):
    """Is shown every frame between the pump and the session, from the first on."""

    def received(self, kind: int, payload: bytes) -> None:
        """A frame of the pump's."""

    def sent(self, kind: int, payload: bytes) -> None:
        """A frame to the pump."""

    def lost(self) -> None:
        """The pump has hung up."""

    def close(self) -> None:
        """The session ends."""


class SessionFeature:
    """One feature in a session. Each method does nothing; override what the feature needs."""

    #: The namespace of the directives that ``take`` carries out.
    namespace = ""

    def registration(self) -> Mapping[str, Any]:
        """Fields of the op ``register``, by which the broker learns of this agent."""
        return {}

    def requests(self) -> Mapping[str, FeatureAnswer]:
        """What answers the requests of other processes, by their kinds."""
        return {}

    def begin(self) -> None:
        """The run begins, and its session-start hooks have run: called once in a run."""

    def take(self, command: FeatureCommand) -> None:
        """Do it, after those that came before it."""

    def asked(self, op: str) -> None:
        """A handler asks the broker this. May refuse it by a RelayError."""

    def said(self, texts: list[str]) -> None:
        """The agent said these lines."""

    def state_changed(self, state: AgentState) -> None:
        """The agent does something else now."""

    def agent_gone(self) -> None:
        """Nobody can be told anything any more."""

    async def settle(self, seconds: float) -> bool:
        """Wait up to ``seconds`` until no command is pending; whether that is so."""
        return True

    async def end(self) -> None:
        """Do what is left to do after the last command."""

    def state(self) -> Any:
        """What the feature of the next session of this run has to go on with, as JSON."""
        return None

    # -- around the agent's tool calls

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        """Why the call is refused, as its model is to read it; "": it is not. Known in time."""
        return ""

    def agreed(self, call: AgentHookCall) -> bool:
        """Whether a person has just said yes to this very call, which ``before`` let go on."""
        return False

    async def after(self, call: AgentHookCall) -> str:
        """The call is over; what its model is told with the answer, or ""."""
        return ""


class MissingGuard(SessionFeature):
    """Stands for a feature that guards this agent, and could not be opened: no tool runs."""

    def __init__(self, name: str) -> None:
        self._refusal = (
            f"no tool runs, because the feature {name}, which guards this agent, could not be"
            " opened: relay status says why. A person has to mend that, and to start this agent"
            " again"
        )

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        return self._refusal


class SessionFeatures:
    """All of them: the session asks nothing else. Empty until ``use``.

    A fault in one is noted for the person, and harms neither the others nor the session.
    """

    def __init__(self, queue: EventQueue) -> None:
        self._queue = queue
        self._features: dict[str, SessionFeature] = {}

    def use(self, features: Mapping[str, SessionFeature]) -> None:
        """Ask these from now on; each by the name of its part of the checkpoint."""
        self._features.update(features)

    @property
    def guards(self) -> list[SessionFeature]:
        """Those that are asked around tool calls: all of them."""
        return list(self._features.values())

    @contextmanager
    def _contained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._queue.post(failure(error))

    def registration(self) -> dict[str, Any]:
        """Fields of the op ``register``."""
        fields: dict[str, Any] = {}
        for feature in self._features.values():
            with self._contained():
                fields |= feature.registration()
        return fields

    def requests(self) -> dict[str, FeatureAnswer]:
        """What answers the requests of other processes, by their kinds."""
        answers: dict[str, FeatureAnswer] = {}
        for feature in self._features.values():
            with self._contained():
                answers = {**feature.requests(), **answers}
        return answers

    def _tell(self, tell: str, *given: object) -> None:
        for feature in self._features.values():
            with self._contained():
                getattr(feature, tell)(*given)

    def begin(self) -> None:
        """The run begins."""
        self._tell("begin")

    def take(self, namespace: str, command: FeatureCommand) -> None:
        """Have a command done by the feature of its namespace."""
        for feature in self._features.values():
            if feature.namespace == namespace:
                with self._contained():
                    feature.take(command)

    def asked(self, op: str) -> None:
        """A handler asks the broker this. Raises RelayError."""
        for feature in self._features.values():
            feature.asked(op)

    def said(self, texts: list[str]) -> None:
        """The agent said these lines."""
        self._tell("said", texts)

    def state_changed(self, state: AgentState) -> None:
        """The agent does something else now."""
        self._tell("state_changed", state)

    def agent_gone(self) -> None:
        """Nobody can be told anything any more."""
        self._tell("agent_gone")

    async def settle(self, seconds: float) -> None:
        """Wait until no command is pending, up to ``seconds`` for each feature."""
        for name, feature in self._features.items():
            with self._contained():
                if not await feature.settle(seconds):
                    print(f"given up: {name} that the broker did not take", file=sys.stderr)

    async def end(self) -> None:
        """Do what is left to do."""
        for feature in self._features.values():
            with self._contained():
                await feature.end()

    def state(self) -> dict[str, Any]:
        """The parts of the checkpoint, by their names."""
        parts: dict[str, Any] = {}
        for name, feature in self._features.items():
            with self._contained():
                state = feature.state()
                if state is not None:
                    parts[name] = state
        return parts
