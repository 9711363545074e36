"""The launch plan of Codex CLI: hooks for this one run, by ``-c``.

Nothing is written to the user's files. Hooks that are new have to be trusted, or Codex asks about
them before anything else; the trust is given for exactly our own, by their hash, on the same
command line. Overrides by ``-c`` make Codex run without its shared background server,
and warn of it; ``--no-daemon`` says the same without the warning, and keeps the conversation in
one process, by which relay knows whose session file it reads.

Codex keeps a hash of each hook that the person has trusted. What it hashes is the hook in a normal
form; its own ``hooks/list`` names the key and the hash, and both are computed here alike. A wrong
hash would make Codex ask about the hook at its start, so only the form that was seen at work is
used (OLDEST).
"""

from __future__ import annotations

import hashlib
import json
import os

from relay.agents.arguments import Arguments, ArgvReader
from relay.agents.hook_install import (
    ANSWER_TIMEOUT,
    asker,
    command_hook,
    giver,
    merged,
    primer_hook,
    reporter,
)
from relay.agents.installed import own_folder_of, why_unknown
from relay.agents.launch import (
    GATE_TIMEOUT,
    MCP,
    MCP_CALL,
    MCP_START,
    MCP_VARIABLES,
    Launch,
    Run,
    context_file,
    has_settings,
    mcp_command,
    planned_hooks,
)

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

PACKAGE = "@openai/codex"
#: The oldest version in which the hooks, their trust and the session file were seen as used here.
OLDEST = (0, 169, 0)
#: Seconds that a hook may take. Codex allows Interrupt and SessionEnd no more than this.
TIMEOUT = 3
#: Reported in the background: nothing waits for them.
REPORTED = ("SessionStart", "UserPromptSubmit", "PermissionRequest", "Stop", "Interrupt")
#: Before a prompt goes to the model; what is given there it reads beside it.
PROMPTED = "UserPromptSubmit"
#: Seconds that an answer is waited for: Codex would let the tool run when it loses patience itself.
PATIENCE = GATE_TIMEOUT - ANSWER_TIMEOUT - 2
#: What the model is told of a tool that could not be asked about.
UNASKED = "relay has hooks for tool calls and could not ask them, so this was not run"
#: What turns off its search of the web, which runs where the model is.
_SEARCH = "web_search"
#: How Codex names the layer of its configuration that ``-c`` makes.
_LAYER = "/<session-flags>/config.toml"
#: A larger settings file is not read. In bytes.
SETTINGS_MAX = 1024 * 1024
READER = ArgvReader(
    style="clap",
    subcommands="agents exec e review login logout mcp mcp-server plugin app-server remote-control"
    " completion update doctor sandbox debug apply a queue archive delete migrate-rollouts"
    " migrate-nfs-db unarchive cloud exec-server features help",
    once="-h --help -V --version",
    options="-c --config --enable --disable --remote --remote-auth-token-env -i --image -m"
    " --model --local-provider -p --profile -s --sandbox -C --cd --add-dir -a"
    " --ask-for-approval",
)


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """Plan the argv with our hooks in it, or as it was, with the reason in ``data["degraded"]``.

    ``data``: ``heard`` is False where the session file cannot be read or is not of a known form;
    ``hooks`` tells whether hooks were put in.
    """
    if run.terms.gate_only:
        return _gated_only(argv, env, run)
    if not READER.converses(argv) or not run.terms.terminal:
        return Launch(list(argv), {}, "command", {})
    read = READER.read(argv[1:])
    if reason := _why_unreadable(read, argv, env):
        data: dict[str, Any] = {"heard": False, "hooks": False, **planned_hooks(run, reason)}
        data["degraded"] = f"{reason}; what it says is read from its screen"
        return Launch(list(argv), {}, "codex", data)
    data = {"heard": True, "hooks": True, "program": argv[0], "unasked": _unasked(read)}
    chosen = [] if read.given("--no-daemon") else ["--no-daemon"]
    try:
        added, kept = hook_flags(run, read)
    except ValueError as error:
        reason = f"the hooks on the command line cannot be extended ({error})"
        data |= {"hooks": False, **planned_hooks(run, reason)}
        data["degraded"] = (
            f"no hooks were put in, because those on the command line cannot be extended ({error});"
            " a permission dialog is noticed on the screen only, and the model was not told how to"
            " send messages"
        )
        return Launch([argv[0], *chosen, *argv[1:]], {}, "codex", data)
    if run.terms.mcp:
        added = [*added, *_server()]
        data["mcp"] = not (read.given("-C", "--cd") or has_settings((".codex",)))
    data["context"] = {"file": context_file(run), "event": PROMPTED}
    if run.endpoint.port is None:
        data["degraded"] = "no loopback port could be bound for hooks; the session file is read"
    if run.primer and not hooks_off(read, env, os.getcwd()):
        data["primed"] = True
    data |= planned_hooks(run, _why_no_gates(read, env, run))
    return Launch([argv[0], *chosen, *added, *kept], {}, "codex", data)


def _gated_only(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """``codex exec`` with the hook before each tool."""
    read = READER.read(argv[1:])
    reason = _why_unreadable(read, argv, env) or _why_no_gates(read, env, run)
    added: list[str] = []
    kept = argv[1:]
    if not reason:
        try:
            added, kept = hook_flags(run, read)
        except ValueError as error:
            reason = f"the hooks on the command line cannot be extended ({error})"
    if "web_search" in run.terms.without and "exec" in kept:  # the last one that is given counts
        place = kept.index("exec") + 1
        kept = [*kept[:place], "-c", f'{_SEARCH}="disabled"', *kept[place:]]
    return Launch([argv[0], *added, *kept], {}, "codex", planned_hooks(run, reason))


def _server() -> list[str]:
    """The flags that bring relay's tools in, which ask nobody: by a line of its answer the agent
    can do the same."""
    command, *arguments = mcp_command()
    server: dict[str, Any] = {
        "command": command,
        "args": arguments,
        "env_vars": list(MCP_VARIABLES),
        "startup_timeout_sec": MCP_START,
        "tool_timeout_sec": MCP_CALL,
        "default_tools_approval_mode": "approve",
    }
    return ["-c", f"mcp_servers.{MCP}={_toml(server)}"]


def _unasked(read: Arguments) -> list[str]:
    """The tools that this Codex may use and no hook is asked about."""
    settings = [option.value or "" for option in read.all("-c", "--config")]
    off = any(one.replace('"', "").replace(" ", "") == f"{_SEARCH}=disabled" for one in settings)
    return ["write_stdin"] if off else ["web_search", "write_stdin"]


def _why_no_gates(read: Arguments, env: dict[str, str], run: Run) -> str:
    if run.endpoint.port is None:
        return "no loopback port could be bound for hooks"
    off = hooks_off(read, env, os.getcwd()) if run.terms.hooks else ""
    return f"{off} turns off all hooks (features.hooks)" if off else ""


def _why_unreadable(read: Arguments, argv: list[str], env: dict[str, str]) -> str:
    if read.given("--remote"):
        return "with --remote the session is kept elsewhere"
    return why_unknown("Codex", argv[0], env, PACKAGE, OLDEST)


# -- hooks -----------------------------------------------------------------------------------------


def hook_flags(run: Run, read: Arguments) -> tuple[list[str], list[str]]:
    """Return the flags to add, and the user's own arguments without those that went into them.

    Of several ``-c`` for one key Codex takes the last, so hooks that the user gives are taken into
    ours, before them. Raises ValueError where theirs are of a form that cannot be extended.
    """
    theirs, kept = _take(read)
    trust = theirs.pop("state", {})
    if not isinstance(trust, dict):
        raise ValueError("hooks.state is not a table")
    added = ours(run)
    whole = merged(theirs, added)
    for event, groups in added.items():
        for number, group in enumerate(groups, len(whole[event]) - len(groups)):
            for place, hook in enumerate(group["hooks"]):
                key = f"{_LAYER}:{_snake(event)}:{number}:{place}"
                trust[key] = {"trusted_hash": trusted_hash(event, hook)}
    tables = {**{event: whole[event] for event in added}, **whole, "state": trust}
    flags = [word for name in tables for word in ("-c", f"hooks.{name}={_toml(tables[name])}")]
    return flags, kept


def ours(run: Run) -> dict[str, list[dict[str, Any]]]:
    """Return our hooks, by event, in the form of Codex's configuration."""
    chosen: dict[str, list[dict[str, Any]]] = {}
    if run.terms.gate_only:
        after = {"PostToolUse": [{"hooks": [_ask()]}]} if "AfterTool" in run.terms.hooks else {}
        return {"PreToolUse": [{"hooks": [_ask(UNASKED)]}], **after}
    if run.endpoint.port is not None:
        report = {**command_hook(reporter(), TIMEOUT), "async": True}
        more = ("PreCompact",) if "PreCompress" in run.terms.hooks else ()
        chosen = {event: [{"hooks": [dict(report)]}] for event in (*REPORTED, *more)}
        if "BeforeTool" in run.terms.hooks:
            chosen["PreToolUse"] = [{"hooks": [_ask(UNASKED)]}]
        # Messages may go to the model with the answer, so it is asked for in any case.
        after = _ask() if "AfterTool" in run.terms.hooks else _steered()
        chosen["PostToolUse"] = [{"hooks": [after]}]
    give = command_hook(giver(context_file(run)), TIMEOUT)
    chosen.setdefault(PROMPTED, []).append({"hooks": [give]})
    if run.primer:
        chosen.setdefault("SessionStart", []).append({"hooks": [primer_hook(run.primer, TIMEOUT)]})
    return chosen


def trusted_hash(event: str, hook: dict[str, Any]) -> str:
    """Return the hash that Codex knows a trusted hook by, one without a matcher."""
    normal = {"async": False, **hook}
    identity = {"event_name": _snake(event), "hooks": [normal]}
    whole = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(whole.encode()).hexdigest()


def _ask(why: str = "") -> dict[str, Any]:
    """A hook that Codex waits for; with ``why`` it refuses where there is no answer."""
    return command_hook(asker(PATIENCE, why), GATE_TIMEOUT)


def _steered() -> dict[str, Any]:
    """A hook by which messages come in: where there is no answer at once, Codex goes on."""
    return command_hook(asker(TIMEOUT - 1), TIMEOUT)


def _take(read: Arguments) -> tuple[dict[str, Any], list[str]]:
    """The user's own ``-c hooks.…``, by what follows the dot, and the other arguments."""
    theirs: dict[str, Any] = {}
    taken = []
    for option in read.all("-c", "--config"):
        key, _, value = (option.value or "").partition("=")
        table, dot, name = key.strip().partition(".")
        if table != "hooks":
            continue
        if not dot or "." in name or '"' in name:
            raise ValueError(f"{key.strip()} is not one event's")
        theirs[name] = _parsed(value)
        taken.append(option)
    return theirs, read.without(taken)


def _parsed(value: str) -> Any:
    import tomllib  # only for those who give hooks of their own

    return tomllib.loads(f"value = {value}")["value"]


def _toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, dict):
        pairs = (f"{_text(key)}={_toml(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    raise ValueError(f"a value of the type {type(value).__name__}")


def _text(text: str) -> str:
    # A basic string of TOML escapes as JSON does, but for DEL and for surrogates.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _snake(event: str) -> str:
    """``UserPromptSubmit`` -> ``user_prompt_submit``."""
    return "".join("_" + c.lower() if c.isupper() else c for c in event).lstrip("_")


def hooks_off(read: Arguments, env: Mapping[str, str], cwd: str) -> str:
    """Name the person's settings that turn hooks off; "" where none do that can be seen.

    What stands on the command line counts more than the files do, and the last one of it most. In
    the files, one that turns them off is enough.
    """
    decided = None
    for option in read.all("--enable", "--disable", "-c", "--config"):
        value = option.value or ""
        if option.name in ("--enable", "--disable"):
            if value == "hooks":
                decided = "" if option.name == "--enable" else "--disable"
        elif value.partition("=")[0].strip() == "features.hooks":
            on = value.partition("=")[2].strip() == "true"
            decided = "" if on else f"-c {value}"
    if decided is not None:
        return decided
    for folder in (own_folder_of(env, "CODEX_HOME", ".codex"), os.path.join(cwd, ".codex")):
        path = os.path.join(folder, "config.toml")
        if _turned_off(_settings(path)):
            return path
    return ""


def _turned_off(settings: Mapping[str, Any]) -> bool:
    """In the file's own table of features, or in that of one of its profiles."""
    profiles = settings.get("profiles")
    tables = [settings, *(profiles.values() if isinstance(profiles, dict) else ())]
    features = [table.get("features") for table in tables if isinstance(table, dict)]
    return any(isinstance(table, dict) and table.get("hooks") is False for table in features)


def _settings(path: str) -> Mapping[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read(SETTINGS_MAX).decode())
    except (OSError, ValueError):
        return {}
