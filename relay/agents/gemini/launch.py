"""The launch plan of Gemini CLI: flags for its session file, and hooks where its rules allow them.

Gemini CLI writes each conversation into a file that is named after the conversation's id. relay
chooses that id (``--session-id``), so the file of another Gemini CLI in the same project is never
mistaken for this one's. What the model is told stands in a context file in the run's folder
(``--include-directories``).

Hooks come from system defaults, which Gemini CLI reads from where
``GEMINI_CLI_SYSTEM_DEFAULTS_PATH`` says, but only from a file that belongs to root, as all folders
above it do, and that nobody else may write. So a run of root's has them without more. Anybody else
who wants hooks names them in their own settings once (docs/agents/gemini.md), and they run what
``RELAY_ASK`` names.

Where folders have to be trusted (the default), Gemini CLI asks at its start about each folder that
no rule names, and no rule names the folder of one run.
"""

from __future__ import annotations

import os
import stat

from relay.agents import hook_install
from relay.agents.arguments import Arguments, ArgvReader
from relay.agents.hook_install import SystemSettings, command_hook
from relay.agents.installed import parse_settings, read_settings, read_text, why_unknown
from relay.agents.launch import (
    GATE_TIMEOUT,
    TOOL_EVENTS,
    TURN_EVENTS,
    Launch,
    Run,
    planned_hooks,
    wanted_hooks,
)
from relay.core.files import make_private_folder

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

    from relay.agents.hook_install import Groups

PACKAGE = "@google/gemini-cli"
#: The oldest version that has been seen to know ``--session-id`` and to write lines of JSON.
OLDEST = (0, 61, 0)
READER = ArgvReader(
    style="yargs",
    subcommands="mcp extension extensions skill skills hook hooks gemma update",
    once="--version --help --prompt --list-extensions --list-sessions --delete-session --acp"
    " --experimental-acp --experimental-zed-integration -v -h -p -l",
    options="--model --prompt --prompt-interactive --approval-mode --policy --admin-policy"
    " --allowed-mcp-server-names --allowed-tools --extensions --session-file --session-id"
    " --delete-session --include-directories --output-format --fake-responses"
    " --fake-responses-non-strict --record-responses -m -p -i -e -o --resume? --worktree? -r?"
    " -w?",
    text_after=True,
)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """Plan the argv with the id of the conversation, or as it was, with what is known of it.

    ``data``: ``session`` is the conversation's id, None where only its first prompt will tell;
    ``heard`` is False where the session file is not of a form that is known.
    """
    if not run.terms.gate_only and (not READER.converses(argv) or not run.terms.terminal):
        return Launch(list(argv), {}, "command", {})
    data: dict[str, Any] = {"heard": True, "session": None}
    read = READER.read(argv[1:])
    more, untold = _teaching(read, env, run)
    unknown = why_unknown("Gemini CLI", argv[0], env, PACKAGE, OLDEST)
    if run.terms.gate_only and not unknown:
        return Launch(list(argv), _gate(read, env, run, data), "gemini", data)
    if unknown:
        data |= {"heard": False, **planned_hooks(run, unknown)}
        untold = "; ".join(
            filter(None, (f"{unknown}; what it says is read from its screen", untold))
        )
    if untold:
        data["degraded"] = untold
    if more:
        data["primed"] = True
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
    off = why_off(read, env, run)
    ungated = off or why_no_gates(env, run)
    untold = off or why_no_file(env, run)
    added: dict[str, str] = {}
    try:
        added = put_in(env, run, [] if ungated else gates, [] if untold else tells)
    except (OSError, ValueError, TypeError) as error:
        ungated = untold = f"no hooks could be put in: {error}"
    distrust = untrusting(read, env)
    data |= planned_hooks(run, ungated or distrust, untold or distrust)
    return added


def _teaching(read: Arguments, env: dict[str, str], run: Run) -> tuple[list[str], str]:
    """The flag that brings the primer in; empty where it is not wanted or cannot be had, and why.

    Gemini CLI reads the context files of all folders that it works in. In a sandbox ours would
    not be there. A flag with a comma would be two folders.
    """
    if not run.primer or not run.folders.run or boxed(read, env):
        return [], ""
    folder = os.path.join(run.folders.run, "relay")
    if "," in folder:
        return [], "the model was not told how to send messages: RELAY_HOME has a comma in it"
    if asks(folder, env):
        return [], (
            "the model was not told how to send messages: Gemini CLI would ask whether relay's"
            " folder is to be trusted (security.folderTrust)"
        )
    try:
        make_private_folder(run.folders.run)
        make_private_folder(folder)
        first, *others = _context_files(env)
        path = os.path.join(folder, first)
        with open(path, "w", encoding="utf-8") as file:
            # Outside of a code block it would take what follows an @ for a file to put in.
            file.write(f"```\n{run.primer.text()}```\n")
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


SYSTEM = SystemSettings("GEMINI_CLI", "gemini-cli", "GeminiCli")
#: The project's settings, below the folder that Gemini CLI works in.
PROJECT = os.path.join(".gemini", "settings.json")
#: What the person's own hook runs: a script of ours.
ASK = "RELAY_ASK"
#: The name of our hooks, by which the person can turn them off.
NAME = "relay"
REFUSAL = '{"decision": "deny", "reason": "relay cannot be asked whether this may run"}'


def why_off(read: Arguments, env: dict[str, str], run: Run) -> str:
    """Say why there would be no hooks, wherever they stood; "" where there may be."""
    for path in (SYSTEM.defaults(env), own_settings(env), PROJECT, SYSTEM.system(env)):
        config = (read_settings(path) or {}).get("hooksConfig")
        if isinstance(config, dict) and config.get("enabled") is False:
            return f"hooks are turned off (hooksConfig.enabled in {path})"
        if isinstance(config, dict) and NAME in (config.get("disabled") or []):
            return f"hooks named {NAME} are turned off (hooksConfig.disabled in {path})"
    if boxed(read, env):
        return "relay's files are not there in Gemini CLI's sandbox"
    return hook_install.why_not(run, env)


def why_no_gates(env: dict[str, str], run: Run) -> str:
    """Say why tool calls reach no hooks; "" where they do."""
    reason = "" if person_asks(env) else why_no_file(env, run)
    own = "docs/agents/gemini.md says what to put into your own settings"
    return f"{reason}; {own}" if reason else ""


def why_no_file(env: dict[str, str], run: Run) -> str:
    """Say why there can be no file of hooks for one run; "" where there can."""
    insecure = _insecure(run.folders.run)
    if insecure:
        return f"Gemini CLI takes hooks for one run only from root's files ({insecure} is not)"
    return SYSTEM.unreadable(env)


def put_in(env: dict[str, str], run: Run, gates: list[str], tells: list[str]) -> dict[str, str]:
    """Write the files; returns what names them in the environment. Raises OSError, ValueError."""
    added: dict[str, str] = {}
    chosen: Groups = {}
    if gates and person_asks(env):
        added[ASK] = hook_install.write(run)
    elif gates:
        chosen = hooks(hook_install.write(run), gates)
    if tells:
        chosen |= observers(hook_install.write_teller(run, aside=True), tells)
    if chosen:
        theirs = SYSTEM.defaults(env)
        # What Gemini CLI would pass over does not get in by us.
        settings = {} if _insecure(theirs) else read_settings(theirs) or {}
        added |= SYSTEM.put_in(run, settings, chosen)
    return added


def hooks(script: str, gates: list[str]) -> Groups:
    """Return our hooks, in the form of Gemini CLI's settings.

    What was added before a tool is told with its result, so there is always one after it.
    """
    chosen = {"AfterTool": hook_install.command(script)}
    if "BeforeTool" in gates:
        chosen["BeforeTool"] = hook_install.command(script, REFUSAL)
    return {
        event: [{"matcher": "*", "hooks": [_hook(command)]}] for event, command in chosen.items()
    }


def observers(script: str, tells: list[str]) -> Groups:
    """Return our hooks that tell of turns and notices; Gemini CLI is not made to wait for them.

    It would tell of a compaction before each request to the model, whether there is one or not; but
    one that the person wants always is.
    """
    hook = {**_hook(hook_install.telling(script)), "timeout": hook_install.TOLD_TIMEOUT * 1000}
    matcher = {"PreCompress": {"matcher": "manual"}}
    return {event: [{**matcher.get(event, {}), "hooks": [hook]}] for event in tells}


def untrusting(read: Arguments, env: dict[str, str]) -> str:
    """Say why hooks that are put in do not run, as long as the person does not change it."""
    if trusts(os.getcwd(), read, env):
        return ""
    return "Gemini CLI runs hooks only in a folder that it trusts"


def boxed(read: Arguments, env: dict[str, str]) -> bool:
    """Whether it runs in a sandbox."""
    chosen = env.get("GEMINI_SANDBOX", "").lower() not in ("", "0", "false")
    return chosen or read.given("--sandbox", "-s")


def person_asks(env: dict[str, str]) -> bool:
    """Whether the person's own settings have hooks that ask relay, before and after a tool.

    docs/agents/gemini.md says which; they do nothing outside of relay.
    """
    theirs = (read_settings(own_settings(env)) or {}).get("hooks")
    named = theirs if isinstance(theirs, dict) else {}
    return all(f"${ASK}" in str(named.get(event)) for event in ("BeforeTool", "AfterTool"))


def _hook(command: str) -> dict[str, Any]:
    return command_hook(command, GATE_TIMEOUT * 1000, name=NAME)


def _insecure(path: str) -> str:
    """The first of ``path`` and the folders above it that Gemini CLI would refuse, "" if none.

    What is not there yet is made by us: it is as good as the folder that it is made in.
    """
    uid = os.getuid()
    if uid != 0 and not os.path.exists(path):
        return path
    for place in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        while True:
            try:
                found, link = os.stat(place), os.lstat(place)
            except FileNotFoundError:
                pass
            except OSError:
                return place
            else:
                writable = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
                if found.st_uid != 0 or link.st_uid != 0 or writable:
                    return place
            above = os.path.dirname(place)
            if above == place:
                break
            place = above
    return ""


# -- settings and trust ----------------------------------------------------------------------------


def asks(folder: str, env: dict[str, str]) -> bool:
    """Whether Gemini CLI may ask about ``folder``; where that cannot be told, it may."""
    home = _home(env)
    if _off(read_text(own_settings(env))) and not any(
        "folderTrust" in read_text(path) for path in (PROJECT, SYSTEM.system(env))
    ):
        return False
    rules = env.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH") or os.path.join(home, "trustedFolders.json")
    return not _named(folder, parse_settings(read_text(os.path.expanduser(rules))) or {})


def trusts(folder: str, read: Arguments, env: dict[str, str]) -> bool:
    """Whether it trusts the folder that it works in; where that cannot be told, it does not."""
    said = env.get("GEMINI_CLI_TRUST_WORKSPACE")
    if env.get("GEMINI_RESTRICTED_MODE") == "true" or said == "false":
        return False
    return said == "true" or read.given("--skip-trust") or not asks(folder, env)


def own_settings(env: dict[str, str]) -> str:
    """The person's own settings file."""
    return os.path.join(os.path.expanduser(_home(env)), "settings.json")


def _home(env: dict[str, str]) -> str:
    return os.path.join(env.get("GEMINI_CLI_HOME") or env.get("HOME") or "~", ".gemini")


def _off(text: str) -> bool:
    found: object = parse_settings(text)
    for name in ("security", "folderTrust", "enabled"):
        found = found.get(name) if isinstance(found, dict) else None
    return found is False


def _named(folder: str, rules: dict[str, Any]) -> bool:
    """Whether a rule trusts this folder: the longest that applies counts."""
    folder, longest, trusted = os.path.realpath(folder), -1, False
    for path, level in rules.items():
        top = os.path.realpath(os.path.dirname(path) if level == "TRUST_PARENT" else path)
        inside = folder == top or folder.startswith(top.rstrip(os.sep) + os.sep)
        if inside and len(path) > longest:
            longest, trusted = len(path), level in ("TRUST_FOLDER", "TRUST_PARENT")
    return trusted
