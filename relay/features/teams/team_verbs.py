"""The verbs ``up`` and ``down``: the team that ``relay.yaml`` names, started and ended."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from typing import Any

from relay.app.spawning import bring_back, release, resumable
from relay.broker.client import check_person, connect
from relay.cli import output, table
from relay.cli.answer_verbs import show_questions
from relay.cli.config_verbs import trust_file
from relay.cli.parser import Parser
from relay.cli.progress import Rows, starting
from relay.cli.verbs import verb
from relay.config.manifest import notices
from relay.config.names import folder_of, holder
from relay.config.programs import in_place
from relay.config.spawned_agents import Spawn, spawned
from relay.config.trust import TRUSTED, ConfigFile, found_at, is_trusted
from relay.core.errors import EXIT_FAILED, ConfigError, NotFound, RelayError, Timeout
from relay.core.paths import Home, working_folder
from relay.core.processes import ancestry
from relay.features.teams.team import (
    BRANCH_PREFIX,
    TEAM_FILE,
    Team,
    TeamAgent,
    TeamError,
    examine_team,
    find_team,
    team_of,
)
from relay.features.teams.worktrees import WorktreeContent, Worktrees
from relay.hooks.hook_types import Command
from relay.protocol.broker import Json
from relay.protocol.message_ops import CANCEL, SEND, SENT
from relay.pump.agent_process import find_program

#: Agents that are started, or ended, at the same time.
_AT_ONCE = 8
#: Messages to look through for a task that waits for its agent already.
_SENT = 1000
_WAITING = ("queued", "waiting")


def add(verbs: Parser) -> None:
    up = verb(verbs, "up", "relay up\n  relay up Alice Bob")
    down = verb(
        verbs,
        "down",
        "relay down                  asks what to do with each worktree\n"
        "  relay down Alice --keep     end one; its worktree stays",
    )
    for parser, run in ((up, up_verb), (down, down_verb)):
        parser.add_argument(
            "names", nargs="*", metavar="NAME", offers="names", help="all of them by default"
        )
        parser.add_argument("--file", metavar="FILE", help=f"the team's file ({TEAM_FILE})")
        parser.add_argument("--json", action="store_true", help="print JSON")
        parser.set_defaults(run=run)
    down.add_argument("--keep", action="store_true", help="keep all worktrees, and do not ask")
    down.add_argument("--now", action="store_true", help="kill them at once; no hooks run")


# -- up


def up_verb(options: Any) -> int:
    """``relay up``: start those that do not run yet."""
    home = Home.from_env()
    check_person(home, "start a team")
    file = find_team(working_folder(), options.file)
    chosen = _team(file).chosen(options.names)
    _check_trust(home, file)
    here = os.path.dirname(file.path)
    ours = _ours(home, file.path)
    rows: dict[str, Json] = {}
    starts: list[tuple[TeamAgent, Spawn]] = []
    for agent in chosen:
        rows[agent.name] = {"name": agent.name, "state": "", "reason": "", "cwd": "", "branch": ""}
        if holder(home, agent.name) is not None:
            if agent.name in ours:
                cwd, branch = ours[agent.name]["cwd"], agent.branch
                rows[agent.name] |= {"state": "already running", "cwd": cwd, "branch": branch}
            else:
                where = folder_of(home, agent.name) or "another folder"
                reason = (
                    f"another {agent.name} runs in {where}; rename yours in {TEAM_FILE}, "
                    f"or end it: relay release {agent.name}"
                )
                rows[agent.name] |= {"state": "failed", "reason": reason}
        else:
            _check_program(agent, here)
            wanted = _spawn_of(agent, file.path)
            if agent.name in ours:  # it has lost its terminal: it goes on where it was
                [(before, _)] = resumable(home, [agent.name])
                wanted = replace(wanted, conversation=before.conversation)
            starts.append((agent, wanted))
    # All that can go wrong with a folder does so before anything is started.
    if any(agent.worktree for agent, _ in starts):
        trees = Worktrees(here)
        inside = os.path.relpath(here, trees.top)
        for number, (agent, wanted) in enumerate(starts):
            if agent.worktree:
                path = trees.make(agent.name, agent.branch)
                cwd = os.path.normpath(os.path.join(path, inside, agent.cwd))
                starts[number] = (agent, replace(wanted, cwd=cwd))
                rows[agent.name]["branch"] = agent.branch
    for line in notices(home, here) if starts else ():
        output.note(f"relay: {line}")
    states = {agent.name: "starting" for agent, _ in starts}
    progress = Rows(sys.stderr, states, wanted=not options.json)
    with starting(_AT_ONCE) as pool, progress:
        for done in as_completed([pool.submit(_start, home, *one) for one in starts]):
            row = done.result()
            rows[row["name"]] |= row
            progress.show(row["name"], row["state"])
    return _tell_up(list(rows.values()), options.json)


def _spawn_of(agent: TeamAgent, path: str) -> Spawn:
    here = os.path.dirname(path)
    words: list[str] = []
    if agent.roles:
        words += ["--role", ",".join(agent.roles)]
    if agent.channels:
        words += ["--join", ",".join(agent.channels)]
    # What was trusted is what runs, also in another folder or on another branch.
    command = [_program(agent, here), *in_place(Command(argv=agent.command), path)[1:]]
    cwd = os.path.normpath(os.path.join(here, agent.cwd))
    return Spawn(agent.name, command, cwd, tuple(words), team=path)


def _program(agent: TeamAgent, here: str) -> str:
    """The program; one with a path is found beside the file, also for who works elsewhere."""
    name = os.path.expanduser(agent.command[0])
    return os.path.join(here, name) if "/" in name else name


def _check_program(agent: TeamAgent, here: str) -> None:
    try:
        find_program(_program(agent, here), os.environ.get("PATH"))
    except RelayError as error:
        hint = f"install it, or change the command of {agent.name} in {TEAM_FILE}"
        raise RelayError(f"{agent.name}: {error.message}", hint=hint, code=error.code) from None


def _start(home: Home, agent: TeamAgent, wanted: Spawn) -> Json:
    """Start one agent; what came of it. Its task waits for it before it is there, so that nothing
    that happens in between takes it away or gives it twice."""
    row: Json = {"name": agent.name, "cwd": wanted.cwd}
    task = ""
    try:
        if agent.task and not wanted.conversation:
            task = _give_task(home, agent)
        made, afresh = bring_back(home, wanted)
        how = ""
        if wanted.conversation:
            how = f"started fresh ({afresh})" if afresh else "in its last conversation"
            if afresh and agent.task:  # of which a new conversation knows nothing
                task = _give_task(home, agent)
        return row | {"state": made.state, "reason": made.reason or how}
    except Timeout as error:
        return row | {"state": "starting", "reason": error.line}
    except RelayError as error:
        if task:
            with connect(home) as client:
                client.request(CANCEL, id=task)
        return row | {"state": "failed", "reason": error.line}


def _give_task(home: Home, agent: TeamAgent) -> str:
    """Send the agent its task, unless the very same waits for it. Returns the message's id."""
    with connect(home) as client:
        for row in client.request(SENT, limit=_SENT)["rows"]:
            waits = row["state"] in _WAITING and row["to"] == agent.name
            if waits and row["body"] == agent.task:
                return str(row["id"])
        return str(client.request(SEND, to=agent.name, body=agent.task, offline=True)["id"])


def _tell_up(rows: list[Json], in_json: bool) -> int:
    failed = [row for row in rows if row["state"] == "failed"]
    if in_json:
        output.as_json(rows)
        return EXIT_FAILED if failed else 0
    table.table(
        ("NAME", "STATE", "BRANCH", "FOLDER"),
        [(row["name"], row["state"], row["branch"] or "-", _shown(row["cwd"])) for row in rows],
        width=table.columns(),
        remarks=[row["reason"] or None for row in rows],
    )
    if not failed and rows:
        name = rows[0]["name"]
        output.note(f"relay attach {name} shows one, Ctrl-\\ d leaves it; relay down ends them")
    if asking := [row["name"] for row in rows if row["state"] == "blocked"]:
        show_questions(asking)
    return EXIT_FAILED if failed else 0


def _shown(cwd: str) -> str:
    return os.path.relpath(cwd) if cwd else "-"


# -- down


def down_verb(options: Any) -> int:
    """``relay down``: end the team's agents, and ask what becomes of each worktree."""
    home = Home.from_env()
    check_person(home, "end a team")
    file = find_team(working_folder(), options.file)
    team = _team(file)
    running = _ours(home, file.path).keys()
    known = {one.name: one for one in team.agents}
    names = options.names and [one.name for one in _with(team, running).chosen(options.names)]
    wanted = names or [*known, *sorted(running - known.keys())]
    rows = {name: {"name": name, "state": "did not run", "worktree": None} for name in wanted}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        ends = [name for name in wanted if name in running]
        for name, said in pool.map(lambda one: _end(home, one, now=options.now), ends):
            rows[name]["state"] = said
            if not options.json:
                output.note(f"{name}: {said}")
    alive = [name for name in wanted if holder(home, name) is not None]
    # git runs what the repository's settings name, filters say, so no stranger's is looked at.
    trusted = is_trusted(home, file.path, file.sha256)
    looked = [name for name in wanted if name not in alive and (trusted or name in running)]
    trees = _worktrees(file) if looked else None
    ask = not options.keep and not options.json and sys.stdin.isatty()
    for name in wanted:
        agent = known.get(name)
        branch = agent.branch if agent and agent.branch else BRANCH_PREFIX + name
        own = branch if agent is None or agent.own_branch else ""
        content = trees.content(name, branch) if trees and name in looked else None
        if trees and content:
            rows[name]["worktree"] = _decide(trees, content, own, ask=ask, quiet=options.json)
    if options.json:
        output.as_json(list(rows.values()))
    elif not any(row["state"] != "did not run" or row["worktree"] for row in rows.values()):
        output.note("no agent of this team is running")
    if not trusted and any(name not in running for name in wanted):
        say = f"relay trust {shlex.quote(file.path)}"
        output.note(
            f"worktrees of agents that were not running were skipped; to include them: {say}"
        )
    still = [name for name in alive if name in running]  # of the team: others are no concern of it
    for name in still:
        output.note(f"{name} is still running: relay release {name}")
    return EXIT_FAILED if still else 0


def _ours(home: Home, path: str) -> dict[str, Json]:
    """What ``relay up`` has started for this file, by name; not where somebody else, perhaps the
    person in a terminal, has the name now."""
    found: dict[str, Json] = {}
    for one in spawned(home):
        pump = holder(home, one["name"])
        above = {process.pid for process in ancestry(pump)} if pump else {one["host"]}
        if one.get("team") == path and one["host"] in above:
            found[one["name"]] = one
    return found


def _with(team: Team, names: AbstractSet[str]) -> Team:
    """The team with those that its file names no more, and that run still."""
    known = {one.name for one in team.agents}
    return Team((*team.agents, *(TeamAgent(name, ()) for name in sorted(names - known))))


def _end(home: Home, name: str, *, now: bool) -> tuple[str, str]:
    try:
        return name, release(home, name, now=now)
    except NotFound:
        return name, "had ended"
    except RelayError as error:
        return name, error.line


def _worktrees(file: ConfigFile) -> Worktrees | None:
    try:
        return Worktrees(os.path.dirname(file.path))
    except RelayError:
        return None  # then no agent has one


def _decide(
    trees: Worktrees, content: WorktreeContent, own_branch: str, *, ask: bool, quiet: bool
) -> Json:
    """Show what is in a worktree, ask what becomes of it, and do that: what came of it."""
    told = {**asdict(content), "became": "kept", "at": content.path}
    if not quiet:
        _show(content)
    choice = _choice(content) if ask else "k"
    try:
        if choice == "m":
            trees.merge(content)
            told["became"] = "merged"
            why = trees.remove_merged(content.name, content.branch, own_branch=bool(own_branch))
            if not why:
                told |= {"became": "removed", "at": ""}
            said = f"its folder stays: {why}" if why else "its folder is removed"
            output.note(f"  merged into {content.target}; {said}")
        elif choice == "d":
            told |= {"became": "discarded", "at": trees.discard(content, own_branch)}
            output.note(f"  moved to {told['at']}")
            output.note(f"  for good: git worktree remove --force {told['at']}")
        elif not quiet:
            output.note("  kept")
    except RelayError as error:
        output.note(f"  kept: {error.line}")
    return told


def _show(content: WorktreeContent) -> None:
    output.data(f"{content.name}'s worktree, {content.branch or 'on no branch'}: {content.path}")
    there = content.target or "the project"
    if content.is_bare:
        output.data(f"  everything in it is on {content.target} too")
    for title, count, lines in (
        (f"commits that {there} does not have", content.ahead, content.commits),
        ("files that are not committed", len(content.changed), content.changed),
        ("files and folders that git ignores", len(content.ignored), content.ignored),
    ):
        if count:
            output.data(f"  {title} ({count}):")
            for line in lines[:_SHOWN]:
                output.data(f"    {line}")
            if count > _SHOWN:
                output.data(f"    … and {count - _SHOWN} more")


_SHOWN = 10


def _choice(content: WorktreeContent) -> str:
    """What the person wants: ``m`` to merge, ``d`` to discard, ``k`` to keep."""
    if content.problem:
        merge = ""
        output.note(f"  It cannot be merged: {content.problem}.")
    else:
        merge = f"[m]erge into {content.target}, " if content.ahead else "[m] remove it, "
    words = f"  {merge}[d]iscard (moved aside, nothing is deleted), or [K]eep?"
    while True:
        answer = (output.asked(words) or "k").lower()[:1]
        if answer == "k":
            return "k"
        if answer == "d" or (answer == "m" and merge):
            return answer


# -- the file


def _team(file: ConfigFile) -> Team:
    """The team; every mistake is told on a line of its own. Raises TeamError."""
    try:
        return team_of(file)
    except TeamError as error:
        if len(error.mistakes) > 1:
            for one in error.mistakes:
                output.note(f"{file.path}:{one.line or 1}: {one.text}")
            details = error.details
            said = f"{file.path} has {len(error.mistakes)} mistakes"
            raise ConfigError(said, hint=error.hint, code=error.code, details=details) from None
        raise


def _check_trust(home: Home, file: ConfigFile) -> None:
    """Raises RelayError unless the person has trusted the file as it is, or does so now."""
    found = found_at(home, file.path)
    notice = found.notice if found is not None else ""
    if found is not None and found.state == TRUSTED and found.entry is not None:
        if examine_team(file)[1] == (found.entry.programs or {}):
            return
        notice = f"{file.path} runs programs that were not there when you trusted it"
    if sys.stdin.isatty():
        output.note(f"{file.path} is not trusted as it is now. It would start:")
        runs = examine_team(file)[0]
        for line in runs:
            output.note(f"  {line}")
        output.note_of_backslash("\n".join(runs))
        if output.agreed("Trust it, and start them?"):
            trust_file(home, file)
            return
    raise RelayError(notice or f"{file.path} is not trusted", code="untrusted")
