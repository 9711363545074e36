"""The launch plan of Gemini CLI: two flags for this run, by which its session file is found.

Gemini CLI writes each conversation into a file that is named after the conversation's id. relay
chooses that id (``--session-id``), so the file of another Gemini CLI in the same project is never
mistaken for this one's. What the model is told stands in a context file in a folder of the run's
own (``--include-directories``). docs/agents/gemini.md says where hooks can be put in.
"""

from __future__ import annotations

import os

from relay.agents.arguments import Arguments, ArgvReader
from relay.agents.gemini import hook_settings
from relay.agents.installed import read_text, why_unknown
from relay.agents.launch import (
    TOOL_EVENTS,
    TURN_EVENTS,
    Launch,
    Run,
    planned_hooks,
    wanted_hooks,
)
from relay.agents.primer import primer
from relay.core.files import make_private_folder

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "@google/gemini-cli"
#: The oldest version that has been seen to know ``--session-id`` and to write lines of JSON.
OLDEST = (0, 61, 0)
READER = ArgvReader(
    style="yargs",
    subcommands="mcp extension extensions skill skills hook hooks gemma update",
    once="--version --help --prompt --list-extensions --list-sessions --delete-session --acp"
    " --experimental-acp --experimental-zed-integration -v -h -p -l",
    valued="--model --prompt --prompt-interactive --approval-mode --policy --admin-policy"
    " --allowed-mcp-server-names --allowed-tools --extensions --session-file --session-id"
    " --delete-session --include-directories --output-format --fake-responses"
    " --fake-responses-non-strict --record-responses -m -p -i -e -o",
    optional="--resume --worktree -r -w",
    text_after=True,
)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """Plan the argv with the id of the conversation, or as it was, with what is known of it.

    ``data``: ``session`` is the conversation's id, None where only its first prompt will tell;
    ``heard`` is False where the session file is not of a form that is known.
    """
    if not run.gate_only and (not READER.converses(argv) or not run.terminal):
        return Launch(list(argv), {}, "command", {})
    data: dict[str, Any] = {"heard": True, "session": None}
    read = READER.read(argv[1:])
    more, untold = _teaching(read, env, run)
    unknown = why_unknown("Gemini CLI", argv[0], env, PACKAGE, OLDEST)
    if run.gate_only and not unknown:
        return Launch(list(argv), _gate(read, env, run, data), "gemini", data)
    if unknown:
        data |= {"heard": False, **planned_hooks(run, unknown)}
        untold = "; ".join(
            filter(None, (f"{unknown}; what it says is read from its screen", untold))
        )
    if untold:
        data["degraded"] = untold
    if unknown:
        return Launch([argv[0], *more, *argv[1:]], {}, "gemini", data)
    added = _gate(read, env, run, data)
    given, resumed = read.value("--session-id"), read.value("--resume", "-r")
    if given is not None:
        data["session"] = given.strip() or None
    elif resumed is not None:
        data["session"] = resumed.strip() if _is_uuid(resumed.strip()) else None
    elif not read.given("--session-file"):
        data["session"] = new_session_id()
        more += ["--session-id", data["session"]]
    return Launch([argv[0], *more, *argv[1:]], added, "gemini", data)


def _gate(read: Arguments, env: dict[str, str], run: Run, data: dict[str, Any]) -> dict[str, str]:
    """What brings our hooks in, as environment; ``data`` says of what, or why not."""
    gates = wanted_hooks(run, TOOL_EVENTS)
    tells = wanted_hooks(run, TURN_EVENTS)
    if not gates and not tells:
        return {}
    off = hook_settings.why_off(read, env, run)
    ungated = off or hook_settings.why_no_gates(env, run)
    untold = off or hook_settings.why_no_file(env, run)
    added: dict[str, str] = {}
    try:
        added = hook_settings.put_in(env, run, [] if ungated else gates, [] if untold else tells)
    except (OSError, ValueError, TypeError) as error:
        ungated = untold = f"no hooks could be put in: {error}"
    distrust = hook_settings.untrusting(read, env)
    data |= planned_hooks(run, ungated or distrust, untold or distrust)
    return added


def _teaching(read: Arguments, env: dict[str, str], run: Run) -> tuple[list[str], str]:
    """The flag that brings the primer in; empty where it is not wanted or cannot be had, and why.

    Gemini CLI reads the context files of all folders that it works in. In a sandbox ours would
    not be there. A flag with a comma would be two folders.
    """
    if not run.primer or not run.folder or hook_settings.boxed(read, env):
        return [], ""
    folder = os.path.join(run.folder, "relay")
    if "," in folder:
        return [], "the model was not told how to send messages: RELAY_HOME has a comma in it"
    if hook_settings.asks(folder, env):
        return [], (
            "the model was not told how to send messages: Gemini CLI would ask whether relay's"
            " folder is to be trusted (security.folderTrust)"
        )
    try:
        make_private_folder(run.folder)
        make_private_folder(folder)
        first, *others = _context_files(env)
        path = os.path.join(folder, first)
        with open(path, "w", encoding="utf-8") as file:
            # Outside of a code block it would take what follows an @ for a file to put in.
            file.write(f"```\n{primer(run.known_as, run.namespaces)}```\n")
        for name in others:  # the same file under all names is read once
            os.link(path, os.path.join(folder, name))
    except OSError as error:
        return [], f"the model was not told how to send messages: {error}"
    return ["--include-directories", folder], ""


def _context_files(env: dict[str, str]) -> list[str]:
    """The names of the context files that Gemini CLI reads here: GEMINI.md unless settings say so.

    Those of the person's settings and of the project's, because the project's do not always count.
    """
    home = env.get("GEMINI_CLI_HOME") or env.get("HOME") or os.path.expanduser("~")
    names = ["GEMINI.md"]
    for folder in (home, "."):
        text = read_text(os.path.join(folder, ".gemini", "settings.json"))
        if '"fileName"' not in text:
            continue
        import re

        found = re.search(r'"fileName"\s*:\s*(\[[^\]]*\]|"[^"]*")', text)
        names += re.findall(r'"([^"/\\]+)"', found[1]) if found else []
    return list(dict.fromkeys(names))


def new_session_id() -> str:
    """An id for a conversation: a random UUID (RFC 9562, version 4)."""
    chance = os.urandom(16).hex()
    return f"{chance[:8]}-{chance[8:12]}-4{chance[13:16]}-8{chance[17:20]}-{chance[20:32]}"


def _is_uuid(text: str) -> bool:
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12]
