"""Starting Qwen Code so that relay can hear it: an event file and an input file for this one run.

Both lie in the run's own folder, and nothing is written to the user's files. Qwen Code never waits
for the reader of the event file, so a session that is slow, stopped or dead costs it nothing.
"""

from __future__ import annotations

import json
import os

from relay.agents import hook_install
from relay.agents.arguments import Arguments, ArgvReader
from relay.agents.hook_install import SystemSettings, command_hook, turned_off
from relay.agents.installed import own_folder_of, read_settings, read_text, why_unknown
from relay.agents.launch import (
    GATE_TIMEOUT,
    TOOL_EVENTS,
    TURN_EVENTS,
    Launch,
    Run,
    context_file,
    planned_hooks,
    private_file,
    wanted_hooks,
)

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

    from relay.agents.hook_install import Groups

READER = ArgvReader(
    style="yargs",
    subcommands="auth board channel extensions hooks mcp review sandbox serve sessions update",
    once="-v --version -h --help -l --list-extensions -p --prompt --acp --experimental-acp"
    " --json-schema -o --output-format --input-format",
    stays="-i --prompt-interactive",
    options="-m? --model? -i? --prompt-interactive? --system-prompt? --append-system-prompt?"
    " --output-style? --sandbox-image? --approval-mode? --channel? --mcp-config?"
    " --openai-logging-dir? --openai-api-key? --openai-base-url? --json-fd? --json-file?"
    " --input-file? -r? --resume? --session-id? --worktree? --max-session-turns?"
    " --max-wall-time? --max-tool-calls? --max-subagent-depth? --auth-type? --proxy?"
    " --telemetry-target? --telemetry-otlp-endpoint? --telemetry-otlp-protocol?"
    " --telemetry-outfile? --fallback-model* --allowed-mcp-server-names* --allowed-tools* -e*"
    " --extensions* --include-directories* --add-dir* --core-tools* --exclude-tools*"
    " --disabled-slash-commands*",
    text_after=True,
)
PACKAGE = "@qwen-code/qwen-code"
#: The oldest version with which all of this was seen at work.
OLDEST = (0, 24, 4)
#: Where the session finds what Qwen Code tells, and puts what it is to read; in the run's folder.
EVENTS, INPUT = "events.jsonl", "input.jsonl"

_TELL = "--append-system-prompt"

SYSTEM = SystemSettings("QWEN_CODE", "qwen-code", "QwenCode")
#: The form of settings that 0.24.4 has; it would bring another one up to date by writing the file.
_VERSION = 4
#: Before a prompt goes to the model; what is given there it reads beside it.
PROMPTED = "UserPromptSubmit"
#: What Qwen Code calls the events of turns and notices.
TOLD = {
    "BeforeAgent": "UserPromptSubmit",
    "AfterAgent": "Stop",
    "Notification": "Notification",
    "PreCompress": "PreCompact",
}
_UNKNOWN = "relay cannot be asked whether this may run"
#: With all of these no other hook's word counts for more (see adapter.py).
REFUSAL = {
    "decision": "block",
    "reason": _UNKNOWN,
    "continue": False,
    "stopReason": _UNKNOWN,
    "hookSpecificOutput": {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": _UNKNOWN,
    },
}


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """The argv with our files in it, or as it was, with the reason in ``data["degraded"]``."""
    if not run.terms.gate_only and (not READER.converses(argv) or not run.terms.terminal):
        return Launch(list(argv), {}, "command", {})
    data: dict[str, Any] = {"events": False, "input": False}
    if reason := _why_not(argv, env, run):
        data["degraded"] = f"{reason}; relay reads its screen and types messages"
        data |= planned_hooks(run, f"no hooks are put in: {reason}")
        return Launch(list(argv), {}, "qwen", data)
    read = READER.read(argv[1:])
    if run.terms.gate_only:
        return Launch(list(argv), _gate(read, env, run, data), "qwen", data)
    theirs = _theirs(env)
    ours: list[str] = []
    missing = []
    if not read.given("--json-file", "--json-fd") and "jsonFile" not in theirs:
        ours += ["--json-file", os.path.join(run.folders.run, EVENTS)]
        data["events"] = True
    else:
        missing.append("its events go to a file of yours, so relay reads its screen")
    if not read.given("--input-file") and "inputFile" not in theirs:
        ours += ["--input-file", os.path.join(run.folders.run, INPUT)]
        data["input"] = True
    else:
        missing.append("its input file is one of yours, so messages are typed")
    if missing:
        data["degraded"] = "; ".join(missing)
    more = argv[1:]
    if run.primer:
        more, data["primed"] = _told(read, run.primer.text()), True
    return Launch([argv[0], *ours, *more], _gate(read, env, run, data), "qwen", data)


def _gate(read: Arguments, env: dict[str, str], run: Run, data: dict[str, Any]) -> dict[str, str]:
    """What brings our hooks in, as environment; ``data`` says of what, or why not."""
    wanted = wanted_hooks(run, TOOL_EVENTS)
    watched = wanted_hooks(run, TURN_EVENTS)
    reason, added = _why_no_hooks(read, env, run), {}
    if not reason:
        try:
            added = _put_in(env, run, wanted, watched)
            data["context"] = {"file": context_file(run), "event": PROMPTED}
        except (OSError, ValueError, TypeError) as error:
            reason = f"no hooks could be put in: {error}"
    data |= planned_hooks(run, reason)
    return added


def home(env: dict[str, str]) -> str:
    """The folder where Qwen Code keeps what is the person's."""
    return own_folder_of(env, "QWEN_HOME", ".qwen")


def _why_not(argv: list[str], env: dict[str, str], run: Run) -> str:
    if unknown := why_unknown("Qwen Code", argv[0], env, PACKAGE, OLDEST):
        return unknown
    try:
        # It has to be there: what is in it before Qwen Code looks first is passed over.
        private_file(run, INPUT, "")
    except OSError as error:
        return f"the folder for this run cannot be made: {error}"
    return ""


def _theirs(env: dict[str, str]) -> set[str]:
    """Which of the two files the person's own settings name; those files stay theirs."""
    said = [read_text(os.path.join(folder, "settings.json")) for folder in (home(env), ".qwen")]
    return {name for name in ("jsonFile", "inputFile") if any(f'"{name}"' in one for one in said)}


def _told(read: Arguments, text: str) -> list[str]:
    """The arguments with ``text`` at the end of what is added to the system prompt."""
    told = list(read.arguments)
    for option in read.all(_TELL):
        if option.value is not None:
            told[option.end - 1] += f"\n\n{text}"
            return told
    return [_TELL, text, *told]


# -- hooks
#
# Qwen Code reads system defaults from where ``QWEN_CODE_SYSTEM_DEFAULTS_PATH`` says, and runs their
# hooks beside those of the person and of the project. What the machine has there goes into ours.


def _why_no_hooks(read: Arguments, env: dict[str, str], run: Run) -> str:
    """Why there would be no hooks; "" where there are."""
    for option in read.all("--bare", "--safe-mode"):
        return f"Qwen Code runs no hooks with {option.name}"
    for name in ("QWEN_CODE_SAFE_MODE", "QWEN_CODE_SIMPLE"):
        if env.get(name, "").lower() in ("1", "true"):
            return f"Qwen Code runs no hooks with {name}"
    own, project = os.path.join(home(env), "settings.json"), os.path.join(".qwen", "settings.json")
    paths = (SYSTEM.system(env), project, own, SYSTEM.defaults(env))
    if off := turned_off([(path, read_settings(path) or {}) for path in paths]):
        return f"hooks are turned off (disableAllHooks in {off})"
    return SYSTEM.unreadable(env) or hook_install.why_not(run, env)


def _put_in(env: dict[str, str], run: Run, gates: list[str], tells: list[str]) -> dict[str, str]:
    """Write the file; return what names it in the environment. Raises OSError or ValueError."""
    path = hook_install.write(run, patient=bool(gates))
    ours = _hooks(path, gates)
    give = hook_install.giver(context_file(run))
    # With a name of its own: of two hooks with the same name Qwen Code runs one.
    door = {**_hook(give, hook_install.TOLD_TIMEOUT), "name": "relay-context"}
    ours[PROMPTED] = [{"hooks": [door]}]
    if tells:
        for event, groups in _observers(hook_install.write_teller(run), tells).items():
            ours[event] = [*ours.get(event, []), *groups]
    theirs = read_settings(SYSTEM.defaults(env)) or {"$version": _VERSION}
    return SYSTEM.put_in(run, theirs, ours)


def _hooks(script: str, gates: list[str]) -> Groups:
    """Our hooks, in the form of Qwen Code's settings.

    What was added before a tool is told with its result, so there is always one after it; and
    messages may go to the model with its answer.
    """
    ask = {"BeforeTool": {"PreToolUse": hook_install.command(script, json.dumps(REFUSAL))}}
    chosen = ask["BeforeTool"] if "BeforeTool" in gates else {}
    told = hook_install.command(script)
    chosen = {**chosen, "PostToolUse": told, "PostToolUseFailure": told}
    timeout = GATE_TIMEOUT if gates else hook_install.STEERED_TIMEOUT
    return {
        event: [{"matcher": "*", "hooks": [_hook(command, timeout)]}]
        for event, command in chosen.items()
    }


def _observers(script: str, tells: list[str]) -> Groups:
    """Our hooks that tell of turns and notices; Qwen Code does not wait for them."""
    hook = {**_hook(hook_install.telling(script), hook_install.TOLD_TIMEOUT), "async": True}
    return {TOLD[event]: [{"hooks": [hook]}] for event in tells}


def _hook(command: str, timeout: int) -> dict[str, Any]:
    return command_hook(command, timeout, name="relay")
