"""Governance at the start of a run: whether the folder is governed, and the agent can be."""

from __future__ import annotations

import os

from relay.app.start_door import StartFeature
from relay.features.governance.governed_paths import governed_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.agents.launch import Launch
    from relay.app.wrapped_run import Choices
    from relay.config.manifest import Known
    from relay.core.paths import Home


def feature(choices: Choices, cwd: str) -> GovernedStart | None:
    """The feature, where the agent would work in a governed project."""
    root = governed_root(cwd)
    return GovernedStart(root, choices.terms.ungoverned) if root else None


class GovernedStart(StartFeature):
    """A start in the project ``root``; ``ungoverned``: without intents, as the person wants it."""

    def __init__(self, root: str, ungoverned: bool) -> None:
        self._root = root
        self._ungoverned = ungoverned
        self.guards = not ungoverned

    def alone(self) -> str:
        return f"{self._root} is governed"

    def begin(self, home: Home) -> None:
        """Raises RelayError where not the person wants it ungoverned."""
        if self._ungoverned:
            from relay.broker.client import check_person

            check_person(home, "start an agent that no intent limits")

    def known(self, known: Known) -> Known:
        if self._ungoverned:
            return known
        from relay.features.governance.governed_start import with_governance

        return with_governance(known)

    def facts(self) -> dict[str, object]:
        return {"governed": self._root, "ungoverned": self._ungoverned}

    def planned(self, program: str, plan: Launch) -> None:
        """Raises NotGoverned for a program that cannot be governed."""
        if self._ungoverned:
            return
        from relay.features.governance.governed_start import check_start, git_environment

        check_start(self._root, program, plan.profile, plan.data)
        plan.env |= git_environment(os.environ)
