"""The door of a run's start: what a feature may refuse, add and say around the agent.

A feature's module ``start`` has ``feature(choices, cwd) -> StartFeature | None`` (``choices``: see
relay.app.wrapped_run). It is asked before each agent starts, so it imports nothing heavy. Only
relay's own features are: to look for those of other packages would take longer than the rest.
"""

from __future__ import annotations

import os

from relay.core.errors import RelayError
from relay.pump.agent_process import CannotRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.agents.launch import Launch, Run
    from relay.config.manifest import Known
    from relay.core.paths import Home

_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "features")


class StartFeature:
    """One feature at the start of a run. Each method does nothing; override what it needs.

    They are called in this order, and may raise RelayError before the agent runs.
    """

    #: The feature's name.
    name = ""
    #: Whether no tool of the agent's may run in a session that lacks the feature.
    guards = False
    #: Whether the session is told what the person types.
    keys = False

    def alone(self) -> str:
        """Why the program may not run without relay, where relay cannot work; "": it may."""
        return ""

    def begin(self, home: Home) -> None:
        """The run begins."""

    def known(self, known: Known) -> Known:
        """What is known of the configuration, with what the feature adds."""
        return known

    def facts(self) -> dict[str, object]:
        """What the feature's side in the session needs to know."""
        return {}

    def planned(self, program: str, plan: Launch) -> None:
        """``program`` will be started so; the environment of ``plan`` may be added to."""

    def command(self, run: Run, plan: Launch, path: str) -> list[str]:
        """What to execute so that it becomes ``plan.argv``, whose file is ``path``; [] for that
        itself. Where ``plan`` says what may be written, it holds the program to that."""
        return []

    def descriptors(self) -> dict[str, int | None]:
        """For the session, by names; they are closed here once it has them."""
        return {}

    def failed(self) -> None:
        """The agent could not be started."""

    def ended(self) -> str:
        """The agent has ended; returns a line for the person, or ""."""
        return ""


def opened(choices: Any, cwd: str) -> list[StartFeature]:
    """What features have to do with this run. One that fails may have been a guard: nothing is
    started. Raises RelayError."""
    features = []
    for name in sorted(os.listdir(_FOLDER) if os.path.isdir(_FOLDER) else ()):
        if not os.path.isfile(os.path.join(_FOLDER, name, "start.py")):
            continue
        try:
            module = __import__(f"relay.features.{name}.start", fromlist=["feature"])
            feature: StartFeature | None = module.feature(choices, cwd)
        except RelayError:
            raise
        except Exception as error:
            raise CannotRun(
                f"{choices.command[0]} is not started, because the feature {name}, which may guard"
                f" it, could not be opened: {type(error).__name__}: {error}",
                1,
            ) from error
        if feature is not None:
            feature.name = name
            features.append(feature)
    return features
