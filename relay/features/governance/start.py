"""Governance at the start of a run: whether the folder is governed, and the agent can be.

An agent needs hooks there, or a person who does without them. Read before the agent starts, so
little is imported. Wrapped runs and headless turns both begin so.
"""

from __future__ import annotations

import os
import sys

from relay.agents.launch import SKILL_SHELL, TOOL_EVENTS
from relay.app.start_door import StartFeature
from relay.config.manifest import Known
from relay.core.errors import RelayError, UsageError
from relay.features.governance.governed_paths import governed_root

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from relay.agents.launch import Launch, Run
    from relay.app.wrapped_run import Choices
    from relay.core.paths import Home


def feature(choices: Choices, cwd: str) -> GovernedStart | None:
    """The feature, where the agent would work in a governed project."""
    root = governed_root(cwd)
    intent = choices.terms.limits.intent
    if root:
        return GovernedStart(root, choices.terms.ungoverned, intent)
    if intent is not None:
        raise UsageError(
            f"--intent {intent}: {cwd} is not in a governed project",
            hint="relay init --governed makes it a governed one; --confine needs none",
        )
    return None


class GovernedStart(StartFeature):
    """A start in the project ``root``; ``ungoverned``: without intents, as the person wants it;
    ``intent``: the kernel holds the program to what this one allows."""

    def __init__(self, root: str, ungoverned: bool, intent: str | None = None) -> None:
        self._root = root
        self._ungoverned = ungoverned
        self._intent = intent
        self._writable: list[str] = []
        self.guards = not ungoverned

    def alone(self) -> str:
        return f"{self._root} is governed"

    def begin(self, home: Home) -> None:
        """Raises RelayError where not the person wants it ungoverned."""
        if self._ungoverned:
            from relay.broker.client import check_person

            check_person(home, "start an agent that no intent limits")
        if self._intent is not None:
            from relay.features.governance.confined_scope import begun

            self._writable, notes = begun(self._root, self._intent)
            for note in notes:
                print(f"relay: {note}", file=sys.stderr, flush=True)

    def known(self, known: Known) -> Known:
        if self._ungoverned:
            return known
        return with_governance(known)

    def facts(self) -> dict[str, object]:
        facts: dict[str, object] = {"governed": self._root, "ungoverned": self._ungoverned}
        return facts | ({} if self._intent is None else {"intent": self._intent})

    def planned(self, program: str, plan: Launch) -> None:
        """Raises NotGoverned for a program that cannot be governed."""
        if self._ungoverned:
            return
        if self._intent is not None:
            plan.writable = self._writable
            plan.env |= git_environment(os.environ)
            return
        check_start(self._root, program, plan.profile, plan.data)
        plan.env |= git_environment(os.environ)

    def command(self, run: Run, plan: Launch, path: str) -> list[str]:
        """Give the agent a shell that the kernel holds, where that can be; write down that the
        program does without an intent. Raises StorageError, and then it does not start."""
        if self._ungoverned:
            _tell_ungoverned(self._root, run)
        elif self._intent is None:
            _give_shell(run, plan)
        return []


def _tell_ungoverned(root: str, run: Run) -> None:
    from contextlib import closing

    from relay.core.agent_names import owner_name
    from relay.core.paths import Home
    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.trace import Trace
    from relay.features.governance.trace_records import TraceEntry, TraceKind

    how = {"event": "ungoverned", "by": owner_name()}
    with closing(GovernanceStore.open(Home.from_env())) as store:
        Trace(root, store).append(
            TraceEntry(TraceKind.GOVERNANCE, run.name, run.run_id, metadata=how)
        )


def _give_shell(run: Run, plan: Launch) -> None:
    from relay.core.paths import working_folder

    env = {**os.environ, **plan.env}
    added, shell = held_shell(run.folders.run, plan.profile, env, working_folder())
    plan.env |= added
    if shell:
        plan.data["shell"] = shell
        from relay.core.features import named

        if tell_weaker := named("HELD_SHELLS", "weaker"):
            tell_weaker()


def held_shell(
    run_folder: str, kind: str, env: dict[str, str], cwd: str
) -> tuple[dict[str, str], dict[str, Any]]:
    """(what the environment of an agent of this kind has to hold so that the kernel holds its shell
    calls, what else ConfinedShell needs); ({}, {}) where that cannot be. Raises OSError."""
    from relay.core.features import named
    from relay.core.files import make_private_folder
    from relay.core.paths import Home
    from relay.features.governance.confined_shell import WAYS, ConfinedShell, shell_of

    of_shells = named("HELD_SHELLS", "places")
    real = shell_of(env, kind) if kind in WAYS and of_shells is not None else ""
    begin, usual = of_shells(Home.from_env(), cwd, env) if real else ([], [])
    if not begin:
        return {}, {}
    scratch = os.path.join(run_folder, "scratch")
    make_private_folder(run_folder)
    make_private_folder(scratch)
    shell = {"real": real, "begin": begin, "usual": [os.path.realpath(scratch), *usual]}
    return ConfinedShell(run_folder, kind, **shell).make(env), shell


#: The namespace of the directives by which an agent selects its intent.
NAMESPACE = "intent"
#: ``@intent:ACTION``.
ACTIONS = ("select", "learn", "list", "status")


class NotGoverned(RelayError):
    """The program cannot be governed, and the project demands it."""

    code = "not_governed"


def with_governance(known: Known) -> Known:
    """What is known of a configuration, and what governance adds: its hooks and its namespace."""
    own, *others = known.namespaces
    namespaces = dict.fromkeys((own, NAMESPACE, *others))
    return Known(
        tuple(namespaces),
        tuple(dict.fromkeys((*known.hooks, *TOOL_EVENTS))),
        (SKILL_SHELL,),
        known.mcp,
    )


def why_not(kind: str, data: Mapping[str, Any]) -> str:
    """Why the tool calls of a program do not reach the gate; "" where they do.

    ``kind`` and ``data`` are the profile and the data of its launch plan.
    """
    if TOOL_EVENTS[0] in data.get("gates", ()):
        # Of one that was started for a configuration's hooks the calls' ends may not be told: what
        # they did is found out at the turn's end.
        return ""
    if data.get("ungated"):
        return str(data["ungated"])
    if kind == "command":  # ``codex exec``, ``claude mcp``
        return "a run that is not a conversation in this terminal gets no hooks"
    from relay.agents.known_agents import HOOK_CODECS  # not at the top: with it come all agents

    if kind in HOOK_CODECS:
        return "it was started before that, without the hooks by which relay refuses writes"
    return f"{kind or 'it'} has no hooks by which relay could refuse its writes"


def git_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables, beside ``env``, by which git takes no folder for a repository that an agent or a
    clone could have laid there: a bare one needs no ``.git``, and its settings name commands that
    ``git status`` runs."""
    # One variable, as of ``git -c``: of the documented three an agent may leave out the one whose
    # name looks like a secret's (``GIT_CONFIG_KEY_0``), and then git does nothing at all.
    name = "GIT_CONFIG_PARAMETERS"
    return {name: f"{env.get(name, '')} 'safe.bareRepository=explicit'".lstrip()}


def check_start(root: str, program: str, kind: str, data: Mapping[str, Any]) -> None:
    """Raises NotGoverned for a program that would work in the project ``root`` ungoverned."""
    if why := why_not(kind, data):
        raise NotGoverned(
            f"{os.path.basename(program)} is not started, because {root} is governed: {why}",
            hint=f"relay wrap --intent INTENT -- {os.path.basename(program)} … has the kernel hold"
            " it to an intent (relay intent list shows them); relay wrap --ungoverned … lets it"
            " write without one, and the trace records it",
        )
