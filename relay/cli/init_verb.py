"""The verb ``init``: a configuration to begin with, a file of intents, or a team."""

from __future__ import annotations

import os
from contextlib import suppress

from relay.cli import output
from relay.cli.config_template import INTENTS_TEMPLATE, TEAM_TEMPLATE, TEMPLATE
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.team import TEAM_FILE
from relay.config.trust import CONFIG_NAME, project_root
from relay.core.errors import RelayError, UsageError
from relay.core.files import write_atomically
from relay.core.paths import working_folder
from relay.governance.governed_paths import FOLDER, governed_root
from relay.governance.intents import INTENTS_FILE, MAP_FILE, TRACE_FILE


def add(verbs: Parser) -> None:
    """Declare the verb."""
    init = verb(verbs, "init")
    init.add_argument("--force", action="store_true", help="replace an existing file")
    init.add_argument(
        "--governed",
        action="store_true",
        help="let agents write in this project only what intents allow, in files of yours",
    )
    init.add_argument("--team", action="store_true", help="write a commented relay.yaml")
    init.add_argument("--json", action="store_true", help="print JSON")
    init.set_defaults(run=run_init)


def run_init(args: Options) -> int:
    """Create the file; an existing one is only replaced with --force."""
    if args.governed and args.team:
        raise UsageError("--governed and --team write different files", hint="give one of them")
    if args.governed:
        if args.force:
            raise UsageError("--governed replaces nothing", hint="leave --force out")
        return _init_governed(args)
    name, text = (TEAM_FILE, TEAM_TEMPLATE) if args.team else (CONFIG_NAME, TEMPLATE)
    path = os.path.join(os.getcwd(), name)
    try:
        if args.force:
            write_atomically(path, text, mode=0o644)
        else:
            _write_new(path, text)
    except FileExistsError:
        again = "relay init --team --force" if args.team else "relay init --force"
        raise RelayError(
            f"{path} is already there", hint=f"edit it, or replace it with: {again}"
        ) from None
    except OSError as error:
        raise RelayError(
            f"cannot write {path}: {error.strerror}", hint="check the folder's permissions"
        ) from None
    next_steps = ["relay trust", "relay wrap --name Alice -- claude"]
    if args.team:
        next_steps = [f"relay trust {TEAM_FILE}", "relay up"]
    if args.json:
        output.as_json({"path": path, "next": next_steps})
    elif args.team:
        output.data(path)
        output.note("Edit it: who is in your team, and what each is to do. Then start all of them:")
        output.note("  relay up")
    else:
        output.data(path)
        output.note(f"Edit it. It runs only once you have said so: {next_steps[0]}")
        output.note(f"Then start an agent with it: {next_steps[1]}")
    return 0


def _init_governed(options: Options) -> int:
    """``relay init --governed``: the folder and a commented file of intents, in the project."""
    cwd = working_folder()
    root = governed_root(cwd) or project_root(cwd)
    path, folder = os.path.join(root, FOLDER, INTENTS_FILE), os.path.join(root, FOLDER)
    try:
        made = not os.path.lexists(folder)
        if made:
            os.mkdir(folder, 0o755)
        if governed_root(root) != root:
            if made:
                os.rmdir(folder)
            why = "it is your home folder, or one that others share"
            if not made:
                why = f"its {FOLDER} is there, and is no folder of yours"
            raise RelayError(
                f"{root} cannot be governed: {why}",
                hint="change to the folder of a project" if made else f"look at {folder}",
            )
        _write_new(path, INTENTS_TEMPLATE)
        # A trace that git carries is another one on each branch, and verifies nowhere.
        with suppress(FileExistsError):
            _write_new(os.path.join(folder, ".gitignore"), f"{TRACE_FILE}\n{MAP_FILE}\n")
    except FileExistsError as error:
        raise RelayError(
            f"{error.filename} is already there", hint="edit it; relay intent check finds mistakes"
        ) from None
    except OSError as error:
        raise RelayError(
            f"cannot write {path}: {error.strerror}", hint="check the folder's permissions"
        ) from None
    next_steps = ["relay intent check", "relay wrap --name Alice -- claude"]
    if options.json:
        output.as_json({"path": path, "root": root, "next": next_steps})
        return 0
    output.data(path)
    output.note("From now on, an agent that you wrap here can only write with an intent.")
    output.note(f"Edit the file, then see whether it can be used: {next_steps[0]}")
    output.note(f"Then start an agent: {next_steps[1]}")
    output.note(
        "It selects its intent, or you select one for it: relay intent select INT-001 --agent Alice"
    )
    output.note("If agents run here already, relay agents shows which ones you have to restart.")
    return 0


def _write_new(path: str, text: str) -> None:
    """Write a file that is not there yet, also not as a link. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "w", encoding="utf-8") as file:
        file.write(text)
