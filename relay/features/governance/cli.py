"""What governance adds to the kernel's verbs: see relay.cli.door."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from relay.cli import output
from relay.cli.init_verb import write_new
from relay.cli.parser import Options
from relay.config.trust import project_root
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home, working_folder
from relay.features.governance.governed_paths import FOLDER, governed_root

#: Records of the trace that ``relay doctor`` looks at.
_RECORDS = 1000
#: ``.orchestration/active_intents.yaml``, for ``relay init --governed``.
INTENTS_TEMPLATE = """\
# What is to be done in this project, and in which files. As long as this folder is here, an agent
# that relay wraps cannot write in the project before it has selected one of these intents.
# There is none yet, so no agent writes anything.
#
# Change it when you like: changes count from the next tool call on. Mistakes block all writes;
# `relay intent check` shows them. relay changes nothing in here except a status, and adds what you
# have allowed always (relay answer ID always).

active_intents: []

# An example. Take the [] away, then the # of what you need:
#
#   - id: INT-001
#     name: Weather on the start page
#     # PENDING, IN_PROGRESS, COMPLETE or BLOCKED. An agent writes for one in progress only, and
#     # begins a pending one by selecting it. What is complete or blocked you alone open again.
#     status: PENDING
#     # Files as seen from the project's folder. ** is any number of folders, * anything in one
#     # name. With ! (and in quotes) come exceptions; they always win.
#     owned_scope:
#       - src/**
#       - tests/**
#       - "!src/**/secrets*"
#     # What the agent is told with the intent; both may be left out.
#     constraints:
#       - Add no dependencies
#     acceptance_criteria:
#       - All tests pass

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


def _init(options: Options) -> int:
    """``relay init --governed``: the folder and a commented file of intents, in the project."""
    from relay.features.governance.intents import INTENTS_FILE, MAP_FILE, TRACE_FILE

    if options.force:
        raise UsageError("--governed replaces nothing", hint="leave --force out")
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
                why = f"its {FOLDER} exists and is not a folder of yours"
            raise RelayError(
                f"{root} cannot be governed: {why}",
                hint="change to the folder of a project" if made else f"look at {folder}",
            )
        write_new(path, INTENTS_TEMPLATE)
        # A trace that git carries is another one on each branch, and verifies nowhere.
        with suppress(FileExistsError):
            write_new(os.path.join(folder, ".gitignore"), f"{TRACE_FILE}\n{MAP_FILE}\n")
    except FileExistsError as error:
        raise RelayError(
            f"{error.filename} already exists", hint="edit it; relay intent check finds mistakes"
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
    output.note("The file has no intent yet, only an example in comments: nothing is allowed.")
    output.note(f"Write one down, then see whether the file can be used: {next_steps[0]}")
    output.note(f"Then start an agent: {next_steps[1]}")
    output.note(
        "It selects its intent, or you select one for it: relay intent select INT-001 --agent Alice"
    )
    output.note("If agents run here already, relay agents shows which ones you have to restart.")
    return 0


INIT = {
    "governed": (
        "let agents write in this project only what intents allow, in files of yours",
        _init,
    )
}


def _intents() -> list[str]:
    from relay.features.governance.intent_verbs import intents_here

    return list(intents_here())


NAMES = {"intents": _intents}


def checks(home: Home, cwd: str) -> Iterator[tuple[str, str, str]]:
    """What `relay govern` says; relay itself works here whatever that is."""
    from relay.features.governance.govern_verbs import what_holds

    for level, text, hint in what_holds(home, cwd):
        yield "warn" if level == "bad" else level, text, hint
    if ending := _unread(home, cwd):
        from relay.core.extras import adding

        told = f"agents have changed {ending} files, and whether such a change is one of form alone"
        yield "absent", f"{told} cannot be told", adding("languages")


def _unread(home: Home, cwd: str) -> str:
    """How a file ends that an agent has changed and whose language cannot be read here; "": none
    among the first records of the trace."""
    root = governed_root(cwd)
    if not (root and os.path.exists(home.governance)):
        return ""
    from contextlib import closing

    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.mutation import unread_ending
    from relay.features.governance.trace import Trace

    with closing(GovernanceStore.open(home)) as store, suppress(RelayError):
        for _, record in islice(Trace(root, store).records(), _RECORDS):
            for file in record["files"]:
                path = file.get("path") if isinstance(file, dict) else None
                if ending := unread_ending(str(path)):
                    return ending
    return ""
