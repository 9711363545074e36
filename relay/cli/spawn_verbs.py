"""The verbs ``spawn``, ``attach``, ``resume`` and ``release``: agents that nobody sits at."""

from __future__ import annotations

import os
import shlex
import sys
from typing import Any

from relay.app.spawning import READY, bring_back, in_terminals, release, resumable, spawn
from relay.broker.client import check_person, request
from relay.cli import output
from relay.cli.answer_verbs import show_questions
from relay.cli.parser import Parser
from relay.cli.progress import Rows, starting
from relay.cli.verbs import verb
from relay.cli.wrap import add_agent_options, check_writable
from relay.config import names
from relay.config.manifest import notices
from relay.config.spawned_agents import FLAGS, OPTIONS, Spawn, record_of, spawned
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home, working_folder
from relay.protocol.agent_ops import RELEASE
from relay.protocol.broker import Json

#: Agents that are brought back at the same time.
_AT_ONCE = 8
#: Options that name files as from here, though the agent may work elsewhere.
_PATHS = ("config", "write")


def add(verbs: Parser) -> None:
    one = verb(
        verbs,
        "spawn",
        "relay spawn Bob -- claude\n  relay spawn --name Bob -- claude\n"
        "  relay spawn Bob --cwd ../api --task 'review the API' -- codex --full-auto\n"
        "  relay attach Bob            look at it, and type; Ctrl-\\ d leaves it running",
    )
    one.add_argument("name", nargs="?", metavar="NAME", help="what others call it")
    one.add_argument("command", nargs="*", metavar="COMMAND", help="after --: what to run")
    one.add_argument("--name", dest="called", metavar="NAME", help="its name, as an option")
    one.add_argument("--cwd", metavar="FOLDER", help="where it works (here)")
    add_agent_options(one)
    one.add_argument("--no-wait", action="store_true", help="do not wait until it is ready")
    one.add_argument("--json", action="store_true", help="print JSON")
    one.set_defaults(run=spawn_verb)
    look = verb(
        verbs,
        "attach",
        "relay attach Bob            Ctrl-\\ d leaves it; it runs on\n"
        "  relay attach Bob --read-only",
    )
    look.add_argument("name", metavar="NAME", offers="names", help="the agent")
    look.add_argument("--read-only", action="store_true", help="type nothing; q leaves, too")
    look.set_defaults(run=attach_verb)
    back = verb(
        verbs,
        "resume",
        "relay resume                all that have lost their terminal\n  relay resume Bob",
    )
    back.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        offers="names",
        help="only these agents, even if they ended",
    )
    back.add_argument("--yes", action="store_true", help="start what relay would ask about")
    back.add_argument("--json", action="store_true", help="print JSON")
    back.set_defaults(run=resume_verb)
    end = verb(verbs, "release", "relay release Bob Carol\n  relay release --all --now")
    end.add_argument("names", nargs="*", metavar="NAME", offers="names", help="the agents")
    end.add_argument("--all", action="store_true", help="all spawned agents")
    end.add_argument("--now", action="store_true", help="kill it at once; no hooks run")
    end.add_argument(
        "--yes", action="store_true", help="do not ask about agents in a terminal of their own"
    )
    end.add_argument("--json", action="store_true", help="print JSON")
    end.set_defaults(run=release_verb)


def spawn_verb(options: Any) -> int:
    home = Home.from_env()
    if options.called and options.name:  # what stands in its place is the command
        options.command = [options.name, *options.command]
    options.name = options.called or options.name
    if not options.name:
        raise UsageError("NAME and COMMAND are missing", hint="relay spawn Bob -- claude")
    if not options.command:
        raise UsageError("COMMAND is missing", hint=f"relay spawn {options.name} -- claude")
    check_writable(options)
    words = [f"--{flag}" for flag in FLAGS if getattr(options, flag)]
    for option in OPTIONS:
        given = getattr(options, option)
        for value in given if isinstance(given, list) else [given]:
            if value is not None:
                words += [f"--{option}", os.path.abspath(value) if option in _PATHS else value]
    cwd = os.path.abspath(options.cwd or working_folder())
    wanted = Spawn(options.name, options.command, cwd, tuple(words))
    for line in notices(home, cwd, options.config):
        output.note(f"relay: {line}")
    wait = None if options.no_wait else READY
    with Rows(sys.stderr, {wanted.name: "starting"}, wanted=sys.stderr.isatty()):
        made = spawn(home, wanted, wait=wait, **output.speaker())
    if options.json:
        output.as_json({"name": made.name, "host": made.pid, "state": made.state})
        return 0
    if made.state == "blocked" and show_questions([made.name]):
        return 0
    why = f" ({made.reason})" if made.reason else ""
    shows = f"relay attach {made.name} shows it, Ctrl-\\ d leaves it again"
    output.note(f"{made.name} is {made.state}{why}; {shows}")
    return 0


def attach_verb(options: Any) -> int:
    from relay.ui.attached_terminal import attach

    home = Home.from_env()
    check_person(home, "attach to agents")
    if attach(home, options.name, read_only=options.read_only):
        output.note(f"{options.name} runs on; relay attach {options.name} shows it again")
    else:
        output.note(f"{options.name} has ended")
    return 0


def resume_verb(options: Any) -> int:
    home = Home.from_env()
    check_person(home, "resume agents")
    rows: dict[str, Json] = {}
    chosen: dict[str, Spawn] = {}
    found = resumable(home, options.names)
    for wanted, is_known in found:
        words = shlex.join([*wanted.command, *wanted.options]).replace("\n", " ⏎ ")
        starts = f"{words} in {wanted.cwd}"
        by = "" if is_known else "is not in the ledger, so an agent may have written it"
        how = "Start it, as yours?"
        if not is_known and record_of(home, wanted.name) is None:
            by = "ran in your own terminal"
            how = "Start it in one of its own (of relay wrap's options, only --role is kept)?"
        if wanted.parent:
            by = f"was started by the agent {wanted.parent}"
        # Of a helper by its name only: it would be below that agent no longer.
        if by and not options.names and (wanted.parent or not sys.stdin.isatty()):
            error = f"{by}; relay resume {wanted.name} brings it back as yours ({starts})"
            rows[wanted.name] = {"name": wanted.name, "state": None, "error": error}
            continue
        output.note(f"{wanted.name}: {starts}")
        if by and not output.agreed(f"{wanted.name} {by}. {how}", yes=options.yes):
            continue
        rows[wanted.name] = {"name": wanted.name, "state": "starting"}
        chosen[wanted.name] = wanted
    worst = _bring_back(home, chosen, rows, quiet=options.json)
    if options.json:
        output.as_json(list(rows.values()))
        return worst
    for row in rows.values():
        how = "in its last conversation"
        if not row.get("conversation"):
            how = f"started fresh ({row.get('afresh')})"
        output.data(f"{row['name']}: {row.get('error') or ', '.join((str(row['state']), how))}")
    if asking := [row["name"] for row in rows.values() if row["state"] == "blocked"]:
        show_questions(asking)
    if not found:
        output.note(
            "no agent needs to be brought back; relay resume NAME brings back one that has ended"
        )
    if not options.names and (others := in_terminals(home)):
        output.note(
            f"{_listed(others)} ran in your own terminal{'s' if others[1:] else ''}:"
            f" relay resume {others[0]} starts it again in one of its own"
        )
    return worst


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _bring_back(home: Home, chosen: dict[str, Spawn], rows: dict[str, Json], *, quiet: bool) -> int:
    """Start them all at once, and put into the ``rows`` what came of each; the exit status."""
    from concurrent.futures import as_completed  # slow to import, and only here

    worst = 0
    folders = {wanted.cwd for wanted in chosen.values()}
    for line in dict.fromkeys(line for cwd in sorted(folders) for line in notices(home, cwd)):
        output.note(f"relay: {line}")
    progress = Rows(sys.stderr, dict.fromkeys(chosen, "starting"), wanted=not quiet)
    with starting(_AT_ONCE) as pool, progress:
        starts = {pool.submit(bring_back, home, one): one for one in chosen.values()}
        for done in as_completed(starts):
            wanted = starts[done]
            row = rows[wanted.name]
            try:
                made, afresh = done.result()
            except RelayError as error:
                row |= {"state": None, "error": error.line}
                worst = max(worst, error.exit_status)
                progress.show(wanted.name, "failed")
                continue
            row |= {"name": made.name, "state": made.state}
            row["conversation"] = "" if afresh else wanted.conversation
            if afresh:
                row["afresh"] = afresh
            progress.show(wanted.name, made.state)
    return worst


def release_verb(options: Any) -> int:
    """``relay release``: the status of the worst."""
    home = Home.from_env()
    if not (options.names or options.all):
        raise UsageError("say which agents to release", hint="relay release NAME, or --all")
    here = [one["name"] for one in spawned(home) if names.holder(home, one["name"]) is not None]
    chosen = list(dict.fromkeys([*options.names, *(here if options.all else ())]))
    rows, worst = list[Json](), 0
    for name in chosen:
        try:
            how = _release(home, name, options)
        except RelayError as error:
            if len(chosen) == 1:
                raise
            output.note(f"relay: {error.line}")
            rows.append({"name": name, "how": None, "error": error.line})
            worst = error.exit_status
            continue
        rows.append({"name": name, "how": how})
        if how is None:
            worst = worst or 1
        elif not options.json:
            output.note(f"{name} has {'ended' if how == 'ended' else f'been {how}'}")
    if options.json:
        output.as_json(rows[0] if len(options.names) == 1 and not options.all else rows)
    elif not chosen:
        output.note("no spawned agent is running")
    return worst


def _release(home: Home, name: str, options: Any) -> str | None:
    """How it has ended; None where the person does not want that. Raises RelayError."""
    record = record_of(home, name)
    # Inside an agent the broker says whether it is one of its own helpers.
    if not request(RELEASE, name=name, **output.speaker())["by"]:
        check_person(home, "release agents")
    run = names.run_of(home, name)  # None: release() says so
    by_spawn = record is not None and not record.get("ended") and record["run"] in ("", run)
    if run is not None and not by_spawn and not options.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"{name} was not spawned: to end it in its terminal, add --yes")
        if not output.agreed(f"{name} was not spawned: end it in its terminal?"):
            return None
    return release(home, name, now=options.now)
