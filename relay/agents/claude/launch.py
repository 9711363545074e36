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

from relay.agents.hook_scripts import giver, reporter
from relay.agents.installed import version_of, word_set
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
from relay.agents.primer import primer

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: First words that start something else than a conversation.
SUBCOMMANDS = word_set(
    "agents attach auth auto-mode config doctor gateway import install kill logs mcp"
    " migrate-installer plugin plugins purge respawn rm setup-token stop ultrareview update upgrade"
)
PACKAGE = "@anthropic-ai/claude-code"
#: The oldest version in which every hook that is used here has been seen at work.
OLDEST = (2, 1, 330)
_ASIDE = word_set("-v --version -h --help")
#: Short options that take no value: ``-p`` may stand among them in one word.
_FLAGS = frozenset("cpvh")
_WITHOUT_HOOKS = {"--bare": "--bare turns hooks off", "--safe-mode": "--safe-mode turns hooks off"}

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
#: Before a prompt goes to the model; what is given there it reads beside it.
PROMPTED = "UserPromptSubmit"
#: An argument of a program may have 128 KiB on Linux; what is longer stays as the user wrote it.
ARGUMENT_MAX = 120_000

#: A larger settings file is not read. In bytes.
SETTINGS_MAX = 1024 * 1024
_HOOKS_OFF = "disableAllHooks"
#: Commands in a skill's own text, which run without a question to any hook.
_NO_SKILL_SHELL = "disableSkillShellExecution"
_MANAGED = "/etc/claude-code/managed-settings.json"
#: Where in the environment the command stands for a hook that is to be short.
_SCRIPT = "RELAY_REPORT"
_REPORT = reporter({"X-Relay-Messaging-Socket": "$CLAUDE_CODE_MESSAGING_SOCKET"})


def converses(argv: list[str]) -> bool:
    """Whether ``argv`` starts a conversation (``claude mcp`` and ``claude --version`` do not)."""
    if len(argv) > 1 and argv[1] in SUBCOMMANDS:
        return False
    return not any(word in _ASIDE for word in _options(argv))


def answers_once(argv: list[str]) -> bool:
    """Whether ``argv`` prints one answer and ends (``claude -p …``)."""
    return any(
        word == "--print" or (word[:1] == "-" and "p" in word[1:] and _FLAGS.issuperset(word[1:]))
        for word in _options(argv)
    )


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """Plan the argv with our hooks in it, or as it was, with the reason in ``data["degraded"]``.

    Of one that answers once (``data["headless"]``) the tool calls are asked about, and it is told
    nothing.
    """
    data: dict[str, Any] = {}
    if not converses(argv):
        return Launch(list(argv), {}, "command", {})
    if answers_once(argv) or not run.terminal or run.gate_only:
        data["headless"] = True
    reason = _why_no_hooks(argv, env, run)
    if reason is None:
        try:
            arguments, theirs = _take_settings(argv[1:], os.getcwd())
            off = _why_no_gates(theirs, env, run)
            data |= planned_hooks(run, off, off)
            ours = hooks(run, told="headless" not in data)
            if SKILL_SHELL in run.without:
                theirs[_NO_SKILL_SHELL] = True
            served = _server(run, data, theirs)
            settings = json.dumps(_merged(theirs, ours), separators=(",", ":"))
            if len(settings) > ARGUMENT_MAX:
                raise ValueError("they are too long for a command line")
        except (OSError, ValueError) as error:
            reason = f"the settings given with --settings cannot be extended: {error}"
        else:
            data["hooks"] = True
            if "headless" not in data:
                data["context"] = {"file": context_file(run), "event": PROMPTED}
            more = {_SCRIPT: _REPORT} if "PreCompress" in run.hooks else {}
            added = ["--settings", settings, *served]
            return Launch([argv[0], *added, *arguments], more, "claude", data)
    data |= {"hooks": False, **planned_hooks(run, reason, reason)}
    data["degraded"] = f"{reason}; what Claude says is read from its transcript"
    return Launch(list(argv), {}, "claude", data)


def hooks(run: Run, *, told: bool = True) -> dict[str, list[dict[str, Any]]]:
    """Return our hooks, in the form of Claude Code's settings; ``told``: those too that tell the
    model something."""
    report = {"type": "command", "command": _REPORT, "async": True, "timeout": REPORT_TIMEOUT}
    chosen: dict[str, list[dict[str, Any]]] = {}
    if run.gate_only:
        return {"PreToolUse": [_gate(run)], **_after(run)}
    chosen["MessageDisplay"] = [{"hooks": [_ask(run, DISPLAY_TIMEOUT)]}]
    for event in REPORTED:
        chosen[event] = [{"hooks": [dict(report)]}]
    if "PreCompress" in run.hooks:
        # Claude Code shows the command, and takes what is printed (or what HTTP answers) for words
        # on how to compact.
        short = {**report, "command": f'eval "${_SCRIPT}"'}
        chosen["PreCompact"] = [{"hooks": [short]}]
    if told:
        give = {"type": "command", "command": giver(context_file(run)), "timeout": REPORT_TIMEOUT}
        chosen[PROMPTED][0]["hooks"].append(give)
    if told and run.primer:
        chosen["SessionStart"][0]["hooks"].append(_tell(primer(run.known_as, run.namespaces)))
    if "BeforeTool" in run.hooks:
        chosen["PreToolUse"] = [_gate(run)]
    return chosen | _after(run)


def _after(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The hooks after each tool, where something is registered for them."""
    events = ("PostToolUse", "PostToolUseFailure") if "AfterTool" in run.hooks else ()
    return {event: [{"matcher": "", "hooks": [_ask(run, GATE_TIMEOUT)]}] for event in events}


def _gate(run: Run) -> dict[str, Any]:
    """The hook before each tool. Without a session to ask, what may be forbidden does not run."""
    return {"matcher": "", "hooks": [{**_ask(run, GATE_TIMEOUT), "onFailure": "block"}]}


def _ask(run: Run, timeout: float) -> dict[str, Any]:
    """A hook that Claude Code waits for, ``timeout`` seconds at most."""
    return {
        "type": "http",
        "url": f"http://127.0.0.1:{run.port}/hook",
        "timeout": timeout,
        "headers": {
            "Authorization": "Bearer $RELAY_TOKEN",
            "X-Relay-Messaging-Socket": "$CLAUDE_CODE_MESSAGING_SOCKET",
        },
        "allowedEnvVars": ["RELAY_TOKEN", "CLAUDE_CODE_MESSAGING_SOCKET"],
    }


def _tell(text: str) -> dict[str, Any]:
    """A hook that gives the model ``text`` when a session starts, resumes or was compacted."""
    output = {"hookEventName": "SessionStart", "additionalContext": text}
    quoted = json.dumps({"hookSpecificOutput": output}).replace("'", "'\\''")
    return {"type": "command", "command": f"printf '%s' '{quoted}'", "timeout": REPORT_TIMEOUT}


def _server(run: Run, data: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The flag that brings relay's tools in; ``theirs`` allows them: by a line of its answer the
    agent can do the same without a question."""
    if not run.mcp or "headless" in data:
        return []
    command, *arguments = mcp_command()
    permissions = theirs.get("permissions") or {}
    if not isinstance(permissions, dict):
        raise ValueError("their permissions are no JSON object")
    allowed = [*(permissions.get("allow") or []), f"mcp__{MCP}"]
    theirs["permissions"] = {**permissions, "allow": allowed}
    data["mcp"] = True
    server = {"type": "stdio", "command": command, "args": arguments}
    # In one word: the option takes all words that follow it.
    return [f"--mcp-config={json.dumps({'mcpServers': {MCP: server}}, separators=(',', ':'))}"]


def _why_no_hooks(argv: list[str], env: dict[str, str], run: Run) -> str | None:
    if run.port is None:
        return "no loopback port could be bound for hooks"
    for option in _options(argv):
        if option in _WITHOUT_HOOKS:
            return _WITHOUT_HOOKS[option]
    # A version that does not know one of our hooks stops at its start to complain of it.
    version = version_of(argv[0], env, PACKAGE)
    if version is None:
        return "the version of this Claude Code cannot be told"
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return f"Claude Code before {wanted} may not know the hooks that relay uses"
    return None


def _why_no_gates(theirs: dict[str, Any], env: dict[str, str], run: Run) -> str:
    if not run.hooks:
        return ""
    off = hooks_off(theirs, env, os.getcwd())
    return f"{off} turns off all hooks (disableAllHooks)" if off else ""


def _options(argv: list[str]) -> list[str]:
    """The words before ``--``: after it everything is the prompt."""
    end = argv.index("--") if "--" in argv else len(argv)
    return argv[1:end]


def _take_settings(arguments: list[str], cwd: str) -> tuple[list[str], dict[str, Any]]:
    """The arguments without ``--settings``, and the settings that counted (the last ones).

    Raises OSError or ValueError when those cannot be read: Claude Code will say so itself.
    """
    rest: list[str] = []
    given: str | None = None
    words = iter(arguments)
    for word in words:
        if word == "--":
            rest += [word, *words]
        elif word == "--settings":
            given = next(words, None)
            if given is None:
                raise ValueError("its value is missing")
        elif word.startswith("--settings="):
            given = word.partition("=")[2]
        else:
            rest.append(word)
    return rest, _load(given, cwd) if given is not None else {}


def _load(given: str, cwd: str) -> dict[str, Any]:
    text = given
    if not given.lstrip().startswith("{"):
        with open(os.path.join(cwd, given), encoding="utf-8") as file:
            text = file.read()
    settings = json.loads(text)
    if not isinstance(settings, dict):
        raise ValueError("they are no JSON object")
    return settings


def _merged(theirs: dict[str, Any], ours: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Their settings with our hooks after theirs. ``disableAllHooks`` stays as they set it."""
    mine = theirs.get("hooks") or {}
    if not isinstance(mine, dict):
        raise ValueError("their hooks are no JSON object")
    merged: dict[str, Any] = dict(mine)
    for event, groups in ours.items():
        before = merged.get(event) or []
        if not isinstance(before, list):
            raise ValueError(f"their {event} hooks are no list")
        merged[event] = [*before, *groups]
    return {**theirs, "hooks": merged}


def hooks_off(given: Mapping[str, Any], env: Mapping[str, str], cwd: str) -> str:
    """Name the person's settings that turn all hooks off; "" where none do that can be seen.

    They are only read: turned on again, the person's own would come back with ours.

    ``given`` are those of ``--settings``. The first that says anything decides, as in Claude Code:
    managed ones, those of the command line, the project's local ones, the project's, the user's.
    """
    home = env.get("CLAUDE_CONFIG_DIR") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".claude"
    )
    project = os.path.join(cwd, ".claude")
    if _says(_settings(_MANAGED)):
        return _MANAGED
    if _HOOKS_OFF in given:
        return "--settings" if _says(given) else ""
    for path in (
        os.path.join(project, "settings.local.json"),
        os.path.join(project, "settings.json"),
        os.path.join(home, "settings.json"),
    ):
        settings = _settings(path)
        if _HOOKS_OFF in settings:
            return path if _says(settings) else ""
    return ""


def _says(settings: Mapping[str, Any]) -> bool:
    return settings.get(_HOOKS_OFF) is True


def _settings(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            settings = json.loads(file.read(SETTINGS_MAX))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
