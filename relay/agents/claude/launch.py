"""The launch plan of Claude Code: hooks for this one run, by ``--settings``.

Nothing is written to the user's files. Of several ``--settings`` Claude Code reads only the last
one, so the user's own is merged into ours. Which kind of hook is used for what, and why, stands in
docs/agents/claude.md; in short: nothing here can make Claude Code wait or show an error when
relay's session is slow, stopped or dead, unless the configuration has hooks for tool calls: those
it waits for, and what may be forbidden does not run without them.
"""

from __future__ import annotations

import json
import os

from relay.agents.arguments import ArgvReader
from relay.agents.hook_install import command_hook, giver, merged, primer_hook, reporter, turned_off
from relay.agents.installed import own_folder_of, read_settings, why_unknown
from relay.agents.launch import (
    GATE_TIMEOUT,
    MCP,
    SKILL_SHELL,
    Launch,
    Run,
    context_file,
    mcp_command,
    planned_hooks,
)

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

READER = ArgvReader(
    subcommands="agents attach auth auto-mode config doctor gateway import install kill logs mcp"
    " migrate-installer plugin plugins purge respawn rm setup-token stop ultrareview update"
    " upgrade",
    once="-v --version -h --help",
    options="--settings",
)
PACKAGE = "@anthropic-ai/claude-code"
#: The oldest version in which every hook that is used here has been seen at work.
OLDEST = (2, 1, 330)
#: Short options that take no value: ``-p`` may stand among them in one word.
_FLAGS = frozenset("cpvh")

#: Seconds that a text waits for the session before it is shown: what a stopped session costs.
DISPLAY_TIMEOUT = 0.5
#: Seconds that a report may take in the background.
REPORT_TIMEOUT = 5
#: Reported in the background. MessageDisplay is not: Claude Code waits for it, `async` or not.
REPORTED = (
    "SessionStart",
    "UserPromptSubmit",
    "PermissionRequest",
    "Notification",
    "Stop",
    "StopFailure",
    "SessionEnd",
)
#: Shown while a call is asked about, which a person may have to agree to.
WAITS = "relay is asked; if that takes long, it waits for you: relay items"
#: Before a prompt goes to the model; what is given there it reads beside it.
PROMPTED = "UserPromptSubmit"
#: An argument of a program may have 128 KiB on Linux; what is longer stays as the user wrote it.
ARGUMENT_MAX = 120_000

#: Commands in a skill's own text, which run without a question to any hook.
_NO_SKILL_SHELL = "disableSkillShellExecution"
_MANAGED = "/etc/claude-code/managed-settings.json"
#: Where in the environment the command stands for a hook that is to be short.
_SCRIPT = "RELAY_REPORT"
_REPORT = reporter({"X-Relay-Messaging-Socket": "$CLAUDE_CODE_MESSAGING_SOCKET"})


def answers_once(argv: list[str]) -> bool:
    """Whether ``argv`` prints one answer and ends (``claude -p …``)."""
    return any(
        option.name == "--print" or ("p" in option.name and _FLAGS.issuperset(option.name[1:]))
        for option in READER.read(argv[1:]).options
    )


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """Plan the argv with our hooks in it, or as it was, with the reason in ``data["degraded"]``.

    Of one that answers once (``data["headless"]``) the tool calls are asked about, and it is told
    nothing.
    """
    if not READER.converses(argv):
        return Launch(list(argv), {}, "command", {})
    once = answers_once(argv) or not run.terms.terminal or run.terms.gate_only
    data: dict[str, Any] = {"headless": True} if once else {}
    reason = _why_no_hooks(argv, env, run)
    if not reason:
        try:
            arguments, theirs = _take_settings(argv[1:])
            off = _why_no_gates(theirs, env, run)
            ours = hooks(run, told=not once)
            if SKILL_SHELL in run.terms.without:
                theirs[_NO_SKILL_SHELL] = True
            served = [] if once or not run.terms.mcp else _server(theirs)
            theirs["hooks"] = merged(theirs.get("hooks"), ours)
            settings = json.dumps(theirs, separators=(",", ":"))
            if len(settings) > ARGUMENT_MAX:
                raise ValueError("they are too long for a command line")
        except (OSError, ValueError) as error:
            reason = f"the settings given with --settings cannot be extended: {error}"
        else:
            data |= {"hooks": True, **planned_hooks(run, off)}
            if run.primer and not once:
                data["primed"] = True
            if served:
                data["mcp"] = True
            if not once:
                data["context"] = {"file": context_file(run), "event": PROMPTED}
            more = {_SCRIPT: _REPORT} if "PreCompress" in run.terms.hooks else {}
            added = ["--settings", settings, *served]
            return Launch([argv[0], *added, *arguments], more, "claude", data)
    data |= {"hooks": False, **planned_hooks(run, reason)}
    data["degraded"] = f"{reason}; what Claude says is read from its transcript"
    return Launch(list(argv), {}, "claude", data)


def hooks(run: Run, *, told: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Return our hooks, in the form of Claude Code's settings; ``told``: those too that tell the
    model something."""
    report = {"type": "command", "command": _REPORT, "async": True, "timeout": REPORT_TIMEOUT}
    chosen: dict[str, list[dict[str, Any]]] = {}
    if run.terms.gate_only:
        return {"PreToolUse": [_gate(run)], **_after(run)}
    chosen["MessageDisplay"] = [{"hooks": [_ask(run, DISPLAY_TIMEOUT)]}]
    for event in REPORTED:
        chosen[event] = [{"hooks": [dict(report)]}]
    if "PreCompress" in run.terms.hooks:
        # Claude Code shows the command, and takes what is printed (or what HTTP answers) for words
        # on how to compact.
        short = {**report, "command": f'eval "${_SCRIPT}"'}
        chosen["PreCompact"] = [{"hooks": [short]}]
    if told:
        give = command_hook(giver(context_file(run)), REPORT_TIMEOUT)
        chosen[PROMPTED][0]["hooks"].append(give)
    if told and run.primer:
        chosen["SessionStart"][0]["hooks"].append(primer_hook(run.primer, REPORT_TIMEOUT))
    if "BeforeTool" in run.terms.hooks:
        chosen["PreToolUse"] = [_gate(run)]
    return chosen | _after(run)


def _after(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The hooks after each tool, where something is registered for them."""
    events = ("PostToolUse", "PostToolUseFailure") if "AfterTool" in run.terms.hooks else ()
    return {event: [{"matcher": "", "hooks": [_ask(run, GATE_TIMEOUT)]}] for event in events}


def _gate(run: Run) -> dict[str, Any]:
    """The hook before each tool. Without a session to ask, what may be forbidden does not run."""
    asked = {**_ask(run, GATE_TIMEOUT), "statusMessage": WAITS, "onFailure": "block"}
    return {"matcher": "", "hooks": [asked]}


def _ask(run: Run, timeout: float) -> dict[str, Any]:
    """A hook that Claude Code waits for, ``timeout`` seconds at most."""
    return {
        "type": "http",
        "url": f"http://127.0.0.1:{run.endpoint.port}/hook",
        "timeout": timeout,
        "headers": {
            "Authorization": "Bearer $RELAY_TOKEN",
            "X-Relay-Messaging-Socket": "$CLAUDE_CODE_MESSAGING_SOCKET",
        },
        "allowedEnvVars": ["RELAY_TOKEN", "CLAUDE_CODE_MESSAGING_SOCKET"],
    }


def _server(theirs: dict[str, Any]) -> list[str]:
    """The flag that brings relay's tools in; ``theirs`` allows them: by a line of its answer the
    agent can do the same without a question."""
    command, *arguments = mcp_command()
    permissions = theirs.get("permissions") or {}
    if not isinstance(permissions, dict):
        raise ValueError("their permissions are not a JSON object")
    allowed = [*(permissions.get("allow") or []), f"mcp__{MCP}"]
    theirs["permissions"] = {**permissions, "allow": allowed}
    server = {"type": "stdio", "command": command, "args": arguments}
    # In one word: the option takes all words that follow it.
    return [f"--mcp-config={json.dumps({'mcpServers': {MCP: server}}, separators=(',', ':'))}"]


def _why_no_hooks(argv: list[str], env: dict[str, str], run: Run) -> str:
    if run.endpoint.port is None:
        return "no loopback port could be bound for hooks"
    for option in READER.read(argv[1:]).all("--bare", "--safe-mode"):
        return f"{option.name} turns hooks off"
    # A version that does not know one of our hooks stops at its start to complain of it.
    return why_unknown("Claude Code", argv[0], env, PACKAGE, OLDEST)


def _why_no_gates(theirs: dict[str, Any], env: dict[str, str], run: Run) -> str:
    off = hooks_off(theirs, env, os.getcwd()) if run.terms.hooks else ""
    return f"{off} turns off all hooks (disableAllHooks)" if off else ""


def _take_settings(arguments: list[str]) -> tuple[list[str], dict[str, Any]]:
    """The arguments without ``--settings``, and the settings that counted (the last ones).

    Raises OSError or ValueError when those cannot be read: Claude Code will say so itself.
    """
    read = READER.read(arguments)
    options = read.all("--settings")
    if not options:
        return arguments, {}
    text = options[-1].value
    if text is None:
        raise ValueError("its value is missing")
    if not text.lstrip().startswith("{"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    settings = json.loads(text)
    if not isinstance(settings, dict):
        raise ValueError("they are not a JSON object")
    return read.without(options), settings


def hooks_off(given: Mapping[str, Any], env: Mapping[str, str], cwd: str) -> str:
    """Name the person's settings that turn all hooks off; "" where none do that can be seen.

    ``given`` are those of ``--settings``. The first that says anything decides, as in Claude Code:
    managed ones, those of the command line, the project's local ones, the project's, the user's.
    """
    project = os.path.join(cwd, ".claude")
    paths = (
        os.path.join(project, "settings.local.json"),
        os.path.join(project, "settings.json"),
        os.path.join(own_folder_of(env, "CLAUDE_CONFIG_DIR", ".claude"), "settings.json"),
    )
    files = [(path, read_settings(path) or {}) for path in paths]
    managed = turned_off([(_MANAGED, read_settings(_MANAGED) or {})])
    return managed or turned_off([("--settings", given), *files])
