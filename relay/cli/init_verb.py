"""The verb ``init``: a configuration to begin with, a file of intents, or a team."""

from __future__ import annotations

import os
from contextlib import suppress

from relay.cli import output
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.trust import CONFIG_NAME, project_root
from relay.core.errors import RelayError, UsageError
from relay.core.files import write_atomically
from relay.core.paths import working_folder
from relay.features.governance.governed_paths import FOLDER, governed_root
from relay.features.governance.intents import INTENTS_FILE, MAP_FILE, TRACE_FILE
from relay.features.teams.team import TEAM_FILE

TEMPLATE = '''\
"""What relay does for the agents that are wrapped in this folder.

This file runs only after: relay trust. After every change relay asks for that again.
"""

# How long an agent must be silent before on_idle runs, and how long a handler may take: seconds.
config = {
    "idle_seconds": 30,
    "timeout": 30,
}


# An agent that writes the line   @hello:world How are you?   reaches this handler:
#   target  "world"
#   message "How are you?"
#   ctx     who the agent is (ctx.agent_name, ctx.working_dir, ctx.env, ctx.task) and what can be
#           done: ctx.inject(text), ctx.send(to, text), ctx.notify(topic, text)
# A string that comes back is given to the agent. It may also be None, or
# {"inject": "text", "stop": True}; stop keeps other handlers from running.
def hello(target, message, ctx):
    return f"{ctx.agent_name} said to {target}: {message}"


# "hello" is every @hello:…; "hello:world" only that one; "hello:w*" is a glob.
patterns = {
    "hello": hello,
}


# Handlers may be async. Those of events: on_session_start(ctx), on_session_end(ctx),
# on_output(output, ctx), on_message_received(sender, body, ctx), on_idle(ctx).
async def on_session_start(ctx):
    if ctx.task:
        return f"Your task: {ctx.task}"


hooks = {
    "on_session_start": on_session_start,
}
'''

#: ``relay.yaml``, for ``relay init --team``.
TEAM_TEMPLATE = """\
# The team of this project. `relay up` starts all agents, `relay down` ends them; both take names.
# It names commands, so relay asks you before it uses this file for the first time, and after
# every change.

agents:
  Alice:
    command: claude
    # What she is for: messages to @relay:builder reach her too.
    role: builder
    # What she should do. She gets this as a message from you when she has started.
    task: |
      Build what README.md asks for. When something can be looked at, tell @relay:Bob.
    # Channels: what is said to @relay:#build reaches all who have joined it. (Leave out the #.)
    channels: [build]
    # Her own git worktree, on the branch relay/Alice, so that she works undisturbed. It begins at
    # your current commit. `relay down` asks whether to merge, keep or discard it. You can also
    # write the name of a branch instead of true.
    worktree: true

  Bob:
    command: codex
    role: [reviewer, tester]
    channels: [build]
    worktree: true

  # More agents: a command (a text, or a list of its words) is all that one needs.
  # Carol: {command: bash, cwd: docs}
"""

#: ``.orchestration/active_intents.yaml``, for ``relay init --governed``.
INTENTS_TEMPLATE = """\
# What is to be done in this project, and in which files. As long as this folder is here, an agent
# that relay wraps cannot write in the project before it has selected one of these intents.
#
# Change it when you like: changes count from the next tool call on. Mistakes block all writes;
# `relay intent check` shows them. relay changes nothing in here except a status.

active_intents:
  - id: INT-001
    name: Say here in a line what is to be done
    # PENDING, IN_PROGRESS, COMPLETE or BLOCKED. An agent writes for one in progress only, and
    # begins a pending one by selecting it. What is complete or blocked you alone open again.
    status: PENDING
    # Files as seen from the project's folder. ** is any number of folders, * anything in one name.
    # With ! (and in quotes) come exceptions; they always win.
    owned_scope:
      - src/**
      - tests/**
      - "!src/**/secrets*"
    # What the agent is told with the intent.
    constraints:
      - Add no dependencies
    acceptance_criteria:
      - All tests pass

# How strict relay is. The values shown here are the defaults.
#
# governance:
#   unknown: approve           # commands whose effect is not clear: approve (a
#                              # person is asked), refuse, or allow (an intent is enough)
#   read_commands: []          # commands that only read, as globs: "terraform plan*"
#   run_commands: []           # ... that build or test: an intent is enough
#   approve_commands: []       # ... that always need your yes: "make deploy*"
#   read_tools: []             # the same for tools that relay does not know, such as MCP servers'
#   run_tools: []
#   approve_tools: []
#   approve_seconds: 300       # how long an agent waits for your yes
#   lease_seconds: 600         # how long a file stays one agent's after its last write there
#   select_every_turn: false   # true: an agent selects anew in every turn
"""


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
