"""The team of a project: what ``relay.yaml`` names, checked, with the line of every mistake.

``relay up`` starts it. The file may come with a clone: it names commands, so it does nothing before
the person has trusted it, as with a configuration.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay.config import programs
from relay.config.trust import ConfigFile, read_config
from relay.core.agent_names import valid_name
from relay.core.errors import NotFound, did_you_mean
from relay.core.yaml_tree import Mistake, YamlError, YamlForm, YamlNode, read_tree
from relay.directive.escape import clean
from relay.hooks.hook_types import Command

TEAM_FILE = "relay.yaml"
#: The keys of one agent, and what each holds, for the documentation and its tests.
AGENT_KEYS = {
    "command": "the program, with its arguments: a text or a list",
    "role": "what it is for: one role, or a list; messages to a role reach it",
    "task": "what it is asked to do, as a message from you once it has started",
    "channels": "the channels that it joins",
    "worktree": "true: a git worktree of its own, on the branch relay/NAME; or the branch's name",
    "cwd": "the folder that it works in, seen from the file; by default the file's own",
}
#: Characters of a word, and of a task.
WORD_MAX, TASK_MAX = 2000, 20_000
#: The branch of an agent's worktree, where the file names none, begins with it.
BRANCH_PREFIX = "relay/"
#: Where agents' worktrees are, seen from the repository's root.
WORKTREES = ".relay/worktrees"
#: What git allows in no branch's name (git check-ref-format).
_NO_BRANCH = re.compile(
    r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@\{|//|^[-/]|[/.]$|\.lock(?:/|$)|(?:^|/)\.|^(?:@|HEAD)$"
)
_NAMES = "letters, digits, _ . and -, at most 64, none of relay's own names"


class TeamError(YamlError):
    """The team's file cannot be used."""

    code = "team_invalid"
    exit_status = 2
    file = TEAM_FILE


@dataclass(frozen=True, slots=True)
class TeamAgent:
    """One agent of a team. ``cwd`` is relative to the file's folder, "" for that folder itself."""

    name: str
    command: tuple[str, ...]
    roles: tuple[str, ...] = ()
    task: str = ""
    channels: tuple[str, ...] = ()
    worktree: bool = False
    #: The branch of the worktree; ``own_branch``: relay makes it, so relay may remove it.
    branch: str = ""
    own_branch: bool = False
    cwd: str = ""


@dataclass(frozen=True, slots=True)
class Team:
    """The agents of a team, in the file's order."""

    agents: tuple[TeamAgent, ...] = ()

    def chosen(self, names: list[str]) -> list[TeamAgent]:
        """Those of ``names``, or all of them where there are none. Raises NotFound."""
        known = {one.name: one for one in self.agents}
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f"it names {', '.join(known) or 'nobody'}"
                raise NotFound(f"{TEAM_FILE} has no agent {name!r}", hint=hint)
        return [known[name] for name in dict.fromkeys(names)] if names else [*self.agents]


def parse_team(text: str) -> Team:
    """Read the file. Raises TeamError with all mistakes."""
    return _TeamForm(*read_tree(text, TeamError)).team()


def team_of(file: ConfigFile) -> Team:
    """The team in these bytes of the file. Raises TeamError."""
    try:
        text = file.data.decode()
    except UnicodeDecodeError as error:
        line = file.data.count(b"\n", 0, error.start) + 1
        raise TeamError([Mistake(line, "this is not UTF-8")]) from None
    return parse_team(text)


def find_team(cwd: str, explicit: str | None = None) -> ConfigFile:
    """The nearest team file of the project: in ``cwd`` or a folder above it, up to the repository's
    root. In an agent's worktree it is that of the project around it. Raises NotFound."""
    if explicit is not None:
        return read_config(os.path.join(os.path.realpath(cwd), os.path.expanduser(explicit)))
    start = os.path.realpath(cwd)
    folder = start.partition(f"/{WORKTREES}/")[0]
    while True:
        path = os.path.join(folder, TEAM_FILE)
        if os.path.lexists(path):
            return read_config(path)
        above = os.path.dirname(folder)
        if above == folder or os.path.lexists(os.path.join(folder, ".git")):
            raise NotFound(f"there is no {TEAM_FILE} here", hint="write one: relay init --team")
        folder = above


def is_team_file(path: str) -> bool:
    return os.path.basename(path) == TEAM_FILE


def examine_team(file: ConfigFile) -> tuple[list[str], dict[str, str]]:
    """What the file would run, where and to what end, in lines, and the hashes of programs beside
    it that it names.

    Raises TeamError, and ConfigError where a program cannot be read.
    """
    agents = team_of(file).agents
    runs = [clean(line).replace("\n", " ⏎ ") for one in agents for line in _shown(one)]
    commands = [Command(argv=one.command) for one in agents]
    return runs, programs.hashes(commands, file.path)


def _shown(agent: TeamAgent) -> Iterator[str]:
    """All that an agent is started with, for the person who is to agree to it."""
    yield f"{agent.name}: {shlex.join(agent.command)}"
    facts = (
        agent.cwd and f"in {shlex.quote(agent.cwd)}",
        agent.branch and f"on the branch {shlex.quote(agent.branch)}",
        agent.roles and f"as {' '.join(agent.roles)}",
        agent.channels and f"in the channels {' '.join(f'#{one}' for one in agent.channels)}",
    )
    if any(facts):
        yield f"{agent.name} works {', '.join(str(one) for one in facts if one)}"
    if agent.task:
        yield f"{agent.name}'s task, in your name: {agent.task}"


class _TeamForm(YamlForm):
    """Makes a team of a document, and notes every mistake on the way."""

    def __init__(self, root: YamlNode | None, mistakes: list[Mistake]) -> None:
        super().__init__(mistakes)
        self._root = root

    def team(self) -> Team:
        found: list[TeamAgent] = []
        if self._root is None:
            self.mistakes.append(Mistake(0, "it is empty; it needs agents"))
        else:
            top = self.mapping(self._root, ("agents",), ("agents",))
            if "agents" in top:
                found = self._agents(top["agents"])
        if self.mistakes:
            raise TeamError(self.mistakes, "docs/teams.md shows a whole file")
        return Team(tuple(found))

    def _agents(self, node: YamlNode) -> list[TeamAgent]:
        if node.kind != "map" or not node.pairs:
            self.wrong(node, "agents: a name for each agent is meant here, and what it is below it")
            return []
        made: list[TeamAgent] = []
        lines: dict[str, int] = {}
        branches: dict[str, str] = {}
        for key, value in node.pairs:
            name = key.value
            if key.kind != "text" or not valid_name(name):
                self.wrong(key, f"{name[:64]!r} cannot be an agent's name: {_NAMES}")
                continue
            if first := lines.get(name.lower()):
                self.wrong(key, f"there is an agent {name!r} already, in line {first}")
                continue
            lines[name.lower()] = key.line
            agent = self._agent(name, value)
            if agent.branch and agent.branch in branches:
                other = branches[agent.branch]
                self.wrong(value, f"{name}: the branch {agent.branch} is that of {other} already")
            branches[agent.branch] = name
            made.append(agent)
        return made

    def _agent(self, name: str, node: YamlNode) -> TeamAgent:
        if node.kind == "text" and not node.is_null:  # Alice: claude
            return TeamAgent(name, self._command(node))
        found = self.mapping(node, tuple(AGENT_KEYS), ("command",))
        agent = TeamAgent(
            name,
            self._command(found["command"]) if "command" in found else (),
            self._words(found, "role"),
            self.text(found["task"], "task", TASK_MAX).strip() if "task" in found else "",
            self._words(found, "channels"),
            cwd=self._cwd(found),
        )
        return self._with_worktree(agent, found["worktree"]) if "worktree" in found else agent

    def _command(self, node: YamlNode) -> tuple[str, ...]:
        if node.kind == "list":
            words = [self.text(one, "command", WORD_MAX) for one in node.items]
            if not words:
                self.wrong(node, "command: a program is missing here")
            return tuple(words)
        text = self.text(node, "command", WORD_MAX)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            self.wrong(node, f"command: {str(error).lower()}")
            return ()

    def _words(self, found: dict[str, YamlNode], key: str) -> tuple[str, ...]:
        """Roles or channels: one, or a list of them; ``#`` before a channel may be left out."""
        if key not in found:
            return ()
        node = found[key]
        made: list[str] = []
        for one in node.items if node.kind == "list" else [node]:
            if one.is_null and key == "channels":
                self.wrong(one, "channels: what begins with # is a comment; leave the # out")
                continue
            text = self.text(one, key, WORD_MAX)
            word = text.removeprefix("#") if key == "channels" else text
            if text and not valid_name(word):
                self.wrong(one, f"{key}: {word[:64]!r} cannot be a name: {_NAMES}")
            made.append(word)
        return tuple(dict.fromkeys(made))

    def _with_worktree(self, agent: TeamAgent, node: YamlNode) -> TeamAgent:
        if node.plain and node.value.lower() in ("true", "false"):
            own = node.value.lower() == "true"
            branch = BRANCH_PREFIX + agent.name if own else ""
        else:
            own, branch = False, self.text(node, "worktree", WORD_MAX)
        if branch and (_NO_BRANCH.search(branch) or len(branch) > 200):
            self.wrong(node, f"worktree: {branch[:64]!r} is neither a branch name nor true")
        return replace(agent, worktree=bool(branch), branch=branch, own_branch=own)

    def _cwd(self, found: dict[str, YamlNode]) -> str:
        if "cwd" not in found:
            return ""
        text = self.text(found["cwd"], "cwd", WORD_MAX)
        path = os.path.normpath(text or ".")
        if os.path.isabs(text) or path.split(os.sep)[0] in ("..", "~"):
            self.wrong(found["cwd"], f"cwd: {text[:64]!r} is not a folder below the file's own")
        return "" if path == "." else path
