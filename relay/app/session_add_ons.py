"""The add-ons of a session, made of their parts: memory, and governance.

Apart from session_parts for the length of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from relay.agents.context_door import door_of
from relay.app.project_opener import project_opener
from relay.config.load import LoadedConfig
from relay.core.json_text import named
from relay.core.paths import Home
from relay.governance.governance_addon import GovernanceAddOn, GovernedAgent
from relay.governance.governed_start import why_not
from relay.memory.session_addon import MemoryAddOn, Recall, about
from relay.session.actions import SessionActions
from relay.session.background import Tasks
from relay.session.broker_reports import Broker
from relay.session.run_info import RunInfo
from relay.session.session_commands import PersonNote
from relay.session.session_events import EventQueue, SourcesRead

if TYPE_CHECKING:
    from relay.memory.last_words import LastWords


class AddOnMaker:
    """Makes the add-ons of one session, which ``checkpoint`` is the state of an earlier one of."""

    def __init__(
        self,
        run: RunInfo,
        broker: Broker,
        actions: SessionActions,
        tasks: Tasks,
        queue: EventQueue,
        launch: Mapping[str, Any],
        checkpoint: Mapping[str, Any],
    ) -> None:
        self._run = run
        self._broker = broker
        self._actions = actions
        self._tasks = tasks
        self._queue = queue
        self._launch = launch
        self._checkpoint = checkpoint

    def memory(self, config: LoadedConfig) -> MemoryAddOn:
        """Make the one for ``@memory:``."""
        run, actions = self._run, self._actions
        known = (about(run.task, run.cwd), run.run_id, run.project)
        recall = Recall(*known, lambda: actions.looked_for_memories)
        memories = MemoryAddOn(
            self._broker.request,
            actions.answer,
            self._note,
            self._tasks.spawn,
            changed=self._changed,
            last_words=self._last_words(config),
            door=door_of(self._launch),
            recall=recall if config.settings.memory.inject_on_start else None,
        )
        memories.restore(self._checkpoint.get("memory", []))
        return memories

    def governance(
        self, home: Home, kind: str, hello: Mapping[str, Any], model: Callable[[], str]
    ) -> GovernanceAddOn:
        """Make the one for ``@intent:``, and for the gate."""
        run = self._run
        agent = GovernedAgent(
            run.name,
            run.run_id,
            kind,
            run.cwd,
            run.person,
            root=str(hello.get("governed") or ""),
            ungoverned=bool(hello.get("ungoverned")),
            ungated=why_not(kind, self._launch),
            mcp=self._launch.get("mcp") is True,
        )
        open_project = project_opener(home, agent, hello["pid"], self._broker, model)
        governance = GovernanceAddOn(
            agent,
            open_project,
            self._actions.answer,
            self._note,
            self._tasks.spawn,
            changed=self._changed,
            door=door_of(self._launch),
        )
        governance.restore(self._checkpoint.get("governance", {}))
        return governance

    def _last_words(self, config: LoadedConfig) -> LastWords | None:
        llm = config.settings.memory.llm
        if not config.settings.memory.auto_save or llm is None:
            return None
        from relay.memory.last_words import LastWords  # nothing of it is imported without

        run = self._run
        project = named(run.project) or None
        return LastWords(llm, run.env, self._broker.request, self._note, project=project)

    def _note(self, text: str) -> None:
        self._queue.post(PersonNote(text))

    def _changed(self) -> None:
        self._queue.post(SourcesRead())
