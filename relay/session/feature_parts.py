"""What features of a session are made of, and how they are made: see relay.session.door."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.core.features import Feature, FeatureModule, modules
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.hooks.registry import Registry
from relay.session.actions import SessionActions
from relay.session.background import Tasks
from relay.session.broker_reports import Broker
from relay.session.door import FrameWatcher, MissingGuard, SessionFacts, SessionFeature
from relay.session.run_info import RunInfo
from relay.session.session_commands import AgentRemark, PersonNote
from relay.session.session_events import EventQueue, SourcesRead
from relay.session.sources import SourceSelector

#: The fact of a run's start that names the features without which no tool may run.
GUARDS = "guards"


@dataclass(frozen=True, slots=True)
class FeatureParts:
    """What a session offers to its features. All of it belongs to the session's loop."""

    facts: SessionFacts
    run: RunInfo
    home: Home
    broker: Broker
    actions: SessionActions
    queue: EventQueue
    tasks: Tasks
    sources: SourceSelector
    #: What ``state()`` of the features of an earlier session of this run was, by their names.
    saved: Mapping[str, Any]

    def answer(self, id_: str, text: str, mode: QueueMode | None = None) -> None:
        """Tell the agent what came of the command with this id, once however often it is asked.
        By the mode "steer" it is something to work with, in the turn that runs if that can be."""
        self.actions.answer(id_, text, mode)

    def note(self, text: str) -> None:
        """Tell the person, in ``relay status``."""
        self.queue.post(PersonNote(text))

    def remark(self, text: str) -> None:
        """Have this said beside the agent's state, where that has no reason; "": nothing."""
        self.queue.post(AgentRemark(text))

    def spawn(self, work: Awaitable[None]) -> None:
        """Have it done beside the session; what fails is noted."""
        self.tasks.spawn(work)

    def changed(self) -> None:
        """``state()`` of the feature has become less: store the checkpoint soon."""
        self.queue.post(SourcesRead())


class SessionModules:
    """The modules ``session`` of the features that are installed; loaded when first needed.

    What is wrong with one goes to the run's log, and in a line to ``problems``.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._loaded: list[FeatureModule] | None = None

    def watchers(self, fds: Mapping[str, int | None], profile: str) -> list[FrameWatcher]:
        """What is to be shown the frames of the pump's; ``fds``: descriptors by their names."""
        return [one for one in self._call("watcher", fds, profile).values() if one is not None]

    def register(self, registry: Registry, facts: SessionFacts) -> None:
        """Add the patterns and hooks of features."""
        self._call("register", registry, facts)

    def open(self, parts: FeatureParts) -> dict[str, SessionFeature]:
        """The features of a session, by the names of their parts of the checkpoint. Where one that
        guards the run cannot be opened, another stands for it that refuses every tool."""
        opened = self._call("feature", parts)
        features = {one.name: made for one, made in opened.items() if made is not None}
        guards = (str(name) for name in parts.facts.hello.get(GUARDS) or ())
        return features | {name: MissingGuard(name) for name in guards if name not in features}

    def _call(self, function: str, *given: Any) -> dict[Feature, Any]:
        """What the function of each module that has it returns; one that fails has no row."""
        results: dict[Feature, Any] = {}
        for loaded in self._modules():
            if (called := getattr(loaded.module, function, None)) is None:
                continue
            try:
                results[loaded.feature] = called(*given)
            except Exception as error:
                traceback.print_exc()  # into the log of this run
                why = f"{type(error).__name__}: {error}"
                self._failed(f"the feature {loaded.feature.name} could not be opened: {why}")
        return results

    def _modules(self) -> list[FeatureModule]:
        if self._loaded is None:
            self._loaded = list(modules("session"))
            for loaded in self._loaded:
                if loaded.module is None:
                    print(loaded.trace, file=sys.stderr)
                    self._failed(loaded.problem)
        return self._loaded

    def _failed(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
