"""Confining at the start of a run: the agent becomes a program that the kernel holds.

Read before every agent starts, so little is imported.
"""

from __future__ import annotations

import os
import sys

from relay.app.start_door import StartFeature
from relay.config.manifest import read_manifest
from relay.config.trust import candidates, project_root
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.agents.launch import Launch, Run
    from relay.app.wrapped_run import Choices

#: What an agent's git writes in the repository of its worktree. Not its hooks and settings, by
#: which others' git would run something.
_SHARED_GIT = ("objects", "refs", "logs")
#: Agents with a sandbox that needs mounts, which the kernel forbids a confined program; and the
#: option with which they do without it.
_WITHOUT_SANDBOX = {"codex": "--sandbox danger-full-access"}
#: What is compared of a hook, or of git's settings, and of how many hooks: git knows some 30.
_GIT_FILE_BYTES, _HOOKS_READ = 64 * 1024, 100


def feature(choices: Choices, cwd: str) -> ConfinedStart | None:
    """The feature, where the person, or a trusted configuration, wants the agent confined."""
    home, limits = Home.from_env(), choices.terms.limits
    agents, writable = wanted(home, cwd, choices.terms.config)
    confined = limits.confine or limits.intent is not None
    if agents and not confined:
        from fnmatch import fnmatchcase

        name = choices.participant.name or os.path.basename(choices.command[0])
        confined = any(fnmatchcase(name, glob) for glob in agents)
    return ConfinedStart(home, cwd, limits.write, writable) if confined else None


def wanted(home: Home, cwd: str, config: str | None = None) -> tuple[list[str], list[str]]:
    """(globs of the names of agents to confine, more places to write), as the configurations that
    were trusted set it. One that has changed since, or is gone, still confines agents."""
    agents: list[str] = []
    writable: list[str] = []
    try:
        files = candidates(home, cwd, config)
    except RelayError:
        return agents, writable  # it is said where the configuration is read
    for file in files:
        found = read_manifest(home, file.entry.sha256) if file.entry is not None else None
        given = (found.features.get("confine") if found is not None else None) or {}
        agents += given.get("agents", ())
        writable += given.get("writable", ())
    return agents, writable


def of_shells(home: Home, cwd: str, env: dict[str, str]) -> tuple[list[str], list[str]]:
    """(the beginning of a command that holds a shell, the places that each may write); ([], [])
    where none can be held."""
    from relay.features.confine import landlock, places

    if not landlock.version():
        return [], []
    begin = [sys.executable, "-I", "-S", landlock.__file__]
    return begin, places.usual(home, env, wanted(home, cwd)[1])


class ConfinedStart(StartFeature):
    """Holds an agent that works in ``cwd``; ``write`` and ``more`` are further places."""

    def __init__(self, home: Home, cwd: str, write: list[str], more: list[str]) -> None:
        from relay.features.confine import confinement, places

        confinement.check()
        self._home = home
        self._folder = os.path.realpath(cwd)
        self._given = [places.named(path, cwd) for path in write]
        self._more = more
        self._git = ""
        self._before: dict[str, bytes] = {}

    def alone(self) -> str:
        return "it is to be confined"

    def command(self, run: Run, plan: Launch, path: str) -> list[str]:
        """Raises RelayError where it cannot be confined, or its folder cannot be opened."""
        from relay.core.files import make_private_folder
        from relay.features.confine import confinement, places

        scratch = os.path.join(run.folders.run, "scratch")
        make_private_folder(run.folders.run)
        make_private_folder(scratch)
        scratch = os.path.realpath(scratch)
        plan.env |= places.environment(scratch)
        env = {**os.environ, **plan.env}
        own = self._own_folder(env) if plan.writable is None else plan.writable
        _say_nested(plan)
        confinement.tell_weaker()
        folder = project_root(self._folder)
        state = places.state(plan.profile, run.folders.profiles, env, folder)
        usual = places.usual(self._home, env, self._more)
        return confinement.command(
            [*own, *self._given, scratch, *state, *usual], os.path.abspath(path), plan.argv
        )

    def _own_folder(self, env: dict[str, str]) -> list[str]:
        """Where the agent works: its worktree, or the folder in which it is started."""
        from relay.features.confine import places

        root = project_root(self._folder)
        if hazard := places.exposed(root, self._home, env):
            raise UsageError(
                f"{root} cannot be what a confined agent writes: it holds, or is in, {hazard}",
                hint="start it in the folder of a project",
            )
        git = os.path.join(root, ".git")
        if os.path.isdir(git):
            self._git, self._before = git, _what_git_runs(git)
            return [root]
        return [root, *shared_git(git)]

    def ended(self) -> str:
        """Say what others' git would run that was not there before."""
        now = _what_git_runs(self._git) if self._git else {}
        changed = [path for path in now if self._before.get(path) != now[path]]
        if not changed:
            return ""
        return f"{', '.join(changed)} changed, which your git obeys: look before you use it"


def _say_nested(plan: Launch) -> None:
    """Say that the agent's own sandbox cannot be set up in this one, and what to do."""
    option = _WITHOUT_SANDBOX.get(plan.profile, "")
    if option and option.rpartition(" ")[2] not in " ".join(plan.argv):
        print(
            f"relay: the sandbox of {plan.profile} does not work inside this one; {option} does"
            " without it, and the kernel holds it as before",
            file=sys.stderr,
            flush=True,
        )


def _what_git_runs(git: str) -> dict[str, bytes]:
    """Its settings and hooks, as far as they are read."""
    found = {}
    hooks = os.path.join(git, "hooks")
    names = sorted(os.listdir(hooks))[:_HOOKS_READ] if os.path.isdir(hooks) else []
    for path in (os.path.join(git, "config"), *(os.path.join(hooks, name) for name in names)):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            found[path] = os.read(fd, _GIT_FILE_BYTES)
        except OSError:
            found[path] = b""  # a folder
        finally:
            os.close(fd)
    return found


def shared_git(link: str) -> list[str]:
    """What git writes in the repository of a linked worktree, whose file ``.git`` is ``link``."""
    from relay.core.paths import repository_of

    folder = os.path.dirname(link)
    try:
        with open(link, encoding="utf-8") as file:
            own = os.path.realpath(os.path.join(folder, file.read(4096).partition(":")[2].strip()))
    except (OSError, ValueError):
        return []
    worktrees = os.path.dirname(own)
    shared = os.path.dirname(worktrees)
    known = repository_of(folder)  # it has looked whether the repository knows the worktree, too
    if os.path.basename(worktrees) != "worktrees" or known not in (shared, os.path.dirname(shared)):
        return []
    places = [own, *(os.path.join(shared, name) for name in _SHARED_GIT)]
    return [place for place in places if os.path.isdir(place)]
