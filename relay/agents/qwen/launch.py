"""Starting Qwen Code so that relay can hear it: an event file and an input file for this one run.

Both lie in the run's own folder, and nothing is written to the user's files. Qwen Code never waits
for the reader of the event file, so a session that is slow, stopped or dead costs it nothing.
"""

from __future__ import annotations

import json
import os
import sys

from relay.agents import hook_scripts
from relay.agents.installed import read_settings, read_text, version_of, word_set
from relay.agents.launch import (
    GATE_TIMEOUT,
    TOOL_EVENTS,
    TURN_EVENTS,
    Launch,
    Run,
    context_file,
    option_names,
    planned_hooks,
    wanted_hooks,
    yargs_options,
)
from relay.agents.primer import primer
from relay.core.files import make_private_folder

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

#: First words that start something else than a conversation.
SUBCOMMANDS = word_set(
    "auth board channel extensions hooks mcp review sandbox serve sessions update"
)
PACKAGE = "@qwen-code/qwen-code"
#: The oldest version with which all of this was seen at work.
OLDEST = (0, 24, 4)
#: Where the session finds what Qwen Code tells, and puts what it is to read; in the run's folder.
EVENTS, INPUT = "events.jsonl", "input.jsonl"

_ASIDE = word_set(
    """
    -v --version -h --help -l --list-extensions -p --prompt --acp --experimental-acp
    --json-schema
    """
)
# What ends a conversation in the terminal as soon as it stands on the command line.
_HEADLESS = frozenset(("-o", "--output-format", "--input-format"))
_INTERACTIVE = frozenset(("-i", "--prompt-interactive"))
# Options with a value of their own (some need none), and those that take several; a word after any
# other option is a question.
_VALUED = word_set(
    """
    -m --model -i --prompt-interactive --system-prompt --append-system-prompt --output-style
    --sandbox-image --approval-mode --channel --mcp-config --openai-logging-dir --openai-api-key
    --openai-base-url --json-fd --json-file --input-file -r --resume --session-id --worktree
    --max-session-turns --max-wall-time --max-tool-calls --max-subagent-depth --auth-type
    --proxy --telemetry-target --telemetry-otlp-endpoint --telemetry-otlp-protocol
    --telemetry-outfile
    """
)
_LISTS = word_set(
    """
    --fallback-model --allowed-mcp-server-names --allowed-tools -e --extensions
    --include-directories --add-dir --core-tools --exclude-tools --disabled-slash-commands
    """
)
_TELL = "--append-system-prompt"

SETTINGS = "settings.json"
DEFAULTS_PATH, SYSTEM_PATH = "QWEN_CODE_SYSTEM_DEFAULTS_PATH", "QWEN_CODE_SYSTEM_SETTINGS_PATH"
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
#: With all of these no other hook's word counts for more (see hook_codec.py).
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


def _options(argv: list[str]) -> tuple[dict[str, str], list[str]]:
    return yargs_options(argv[1:], frozenset(), optional=_VALUED, lists=_LISTS)


def converses(argv: list[str]) -> bool:
    """Whether ``argv`` starts a conversation (``qwen mcp`` and ``qwen 'a question'`` do not)."""
    options, words = _options(argv)
    if not options.keys().isdisjoint(_ASIDE | _HEADLESS):
        return False
    # Words make it answer once and end, unless it was told to stay.
    return not words or (
        words[0] not in SUBCOMMANDS and not options.keys().isdisjoint(_INTERACTIVE)
    )


def plan(argv: list[str], env: dict[str, str], run: Run) -> Launch:
    """The argv with our files in it, or as it was, with the reason in ``data["degraded"]``."""
    if not run.gate_only and (not converses(argv) or not run.terminal):
        return Launch(list(argv), {}, "command", {})
    data: dict[str, Any] = {"events": False, "input": False}
    reason = _why_not(argv, env, run)
    if reason is not None:
        data["degraded"] = f"{reason}; Qwen Code is heard by its screen, and messages are typed"
        none = f"no hooks are put in: {reason}"
        data |= planned_hooks(run, none, none)
        return Launch(list(argv), {}, "qwen", data)
    options, _ = _options(argv)
    if run.gate_only:
        return Launch(list(argv), _gate(options, env, run, data), "qwen", data)
    theirs = _theirs(env)
    ours: list[str] = []
    missing = []
    if options.keys().isdisjoint(("--json-file", "--json-fd")) and "jsonFile" not in theirs:
        ours += ["--json-file", os.path.join(run.folder, EVENTS)]
        data["events"] = True
    else:
        missing.append("its events go to a file of yours, so it is heard by its screen")
    if "--input-file" not in options and "inputFile" not in theirs:
        ours += ["--input-file", os.path.join(run.folder, INPUT)]
        data["input"] = True
    else:
        missing.append("its input file is one of yours, so messages are typed")
    if missing:
        data["degraded"] = "; ".join(missing)
    more = _told(argv[1:], primer(run.known_as, run.namespaces)) if run.primer else argv[1:]
    return Launch([argv[0], *ours, *more], _gate(options, env, run, data), "qwen", data)


def _gate(
    options: dict[str, str], env: dict[str, str], run: Run, data: dict[str, Any]
) -> dict[str, str]:
    """What brings our hooks in, as environment; ``data`` says of what, or why not."""
    wanted = wanted_hooks(run, TOOL_EVENTS)
    watched = wanted_hooks(run, TURN_EVENTS)
    reason, added = _why_no_hooks(options, env, run), {}
    if not reason:
        try:
            added = _put_in(env, run, wanted, watched)
            data["context"] = {"file": context_file(run), "event": PROMPTED}
        except (OSError, ValueError, TypeError) as error:
            reason = f"no hooks could be put in: {error}"
    data |= planned_hooks(run, reason, reason)
    return added


def home(env: dict[str, str]) -> str:
    """The folder where Qwen Code keeps what is the person's."""
    own = os.path.join(env.get("HOME") or os.path.expanduser("~"), ".qwen")
    return os.path.expanduser(env.get("QWEN_HOME") or own)


def _why_not(argv: list[str], env: dict[str, str], run: Run) -> str | None:
    version = version_of(argv[0], env, PACKAGE)
    if version is None:
        return "the version of this Qwen Code cannot be told"
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        return f"Qwen Code before {wanted} may not have the files that relay uses"
    try:
        make_private_folder(run.folder)
        # It has to be there: what is in it before Qwen Code looks first is passed over.
        os.close(os.open(os.path.join(run.folder, INPUT), os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        return f"the folder for this run cannot be made: {error}"
    return None


def _theirs(env: dict[str, str]) -> set[str]:
    """Which of the two files the person's own settings name; those files stay theirs."""
    said = [read_text(os.path.join(folder, "settings.json")) for folder in (home(env), ".qwen")]
    return {name for name in ("jsonFile", "inputFile") if any(f'"{name}"' in one for one in said)}


def _told(arguments: list[str], text: str) -> list[str]:
    """The arguments with ``text`` at the end of what is added to the system prompt."""
    told = list(arguments)
    end = told.index("--") if "--" in told else len(told)
    for at, word in enumerate(told[:end]):
        name, given, _ = word.partition("=")
        if option_names(name)[-1] != _TELL:
            continue
        if given:
            told[at] = f"{word}\n\n{text}"
            return told
        if at + 1 < end:
            told[at + 1] = f"{told[at + 1]}\n\n{text}"
            return told
    return [_TELL, text, *told]


# -- hooks
#
# Qwen Code reads system defaults from where ``QWEN_CODE_SYSTEM_DEFAULTS_PATH`` says, and runs their
# hooks beside those of the person and of the project. What the machine has there goes into ours.


def _why_no_hooks(options: dict[str, str], env: dict[str, str], run: Run) -> str:
    """Why there would be no hooks; "" where there are."""
    for option in ("--bare", "--safe-mode"):
        if option in options:
            return f"Qwen Code runs no hooks with {option}"
    for name in ("QWEN_CODE_SAFE_MODE", "QWEN_CODE_SIMPLE"):
        if env.get(name, "").lower() in ("1", "true"):
            return f"Qwen Code runs no hooks with {name}"
    layers = [_defaults(env), _person(env), os.path.join(".qwen", "settings.json"), _system(env)]
    said = [(path, read_settings(path) or {}) for path in layers]
    off = [(path, found["disableAllHooks"]) for path, found in said if "disableAllHooks" in found]
    if off and off[-1][1] is True:  # the last that says anything decides
        return f"hooks are turned off (disableAllHooks in {off[-1][0]})"
    if read_settings(_defaults(env)) is None:
        return f"the settings in {_defaults(env)} cannot be read"
    return hook_scripts.why_not(run, env)


def _put_in(env: dict[str, str], run: Run, gates: list[str], tells: list[str]) -> dict[str, str]:
    """Write the file; return what names it in the environment. Raises OSError or ValueError."""
    path = hook_scripts.write(run, patient=bool(gates))
    settings: dict[str, Any] = read_settings(_defaults(env)) or {"$version": _VERSION}
    theirs = settings.get("hooks") or {}
    if not isinstance(theirs, dict):
        raise ValueError("its hooks are no table")
    settings["hooks"] = dict(theirs)
    ours = _hooks(path, gates)
    give = hook_scripts.giver(context_file(run))
    # With a name of its own: of two hooks with the same name Qwen Code runs one.
    door = {**_hook(give, hook_scripts.TOLD_TIMEOUT), "name": "relay-context"}
    ours[PROMPTED] = [{"hooks": [door]}]
    if tells:
        for event, groups in _observers(hook_scripts.write_teller(run), tells).items():
            ours[event] = [*ours.get(event, []), *groups]
    for event, groups in ours.items():
        settings["hooks"][event] = [*(theirs.get(event) or []), *groups]
    file = os.path.join(run.folder, SETTINGS)
    with open(os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as out:
        json.dump(settings, out)
    return {DEFAULTS_PATH: file}


def _hooks(script: str, gates: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Our hooks, in the form of Qwen Code's settings.

    What was added before a tool is told with its result, so there is always one after it; and
    messages may go to the model with its answer.
    """
    ask = {"BeforeTool": {"PreToolUse": hook_scripts.command(script, json.dumps(REFUSAL))}}
    chosen = ask["BeforeTool"] if "BeforeTool" in gates else {}
    told = hook_scripts.command(script)
    chosen = {**chosen, "PostToolUse": told, "PostToolUseFailure": told}
    timeout = GATE_TIMEOUT if gates else hook_scripts.STEERED_TIMEOUT
    return {
        event: [{"matcher": "*", "hooks": [_hook(command, timeout)]}]
        for event, command in chosen.items()
    }


def _observers(script: str, tells: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Our hooks that tell of turns and notices; Qwen Code does not wait for them."""
    hook = {**_hook(hook_scripts.telling(script), hook_scripts.TOLD_TIMEOUT), "async": True}
    return {TOLD[event]: [{"hooks": [hook]}] for event in tells}


def _hook(command: str, timeout: int) -> dict[str, Any]:
    return {"type": "command", "name": "relay", "command": command, "timeout": timeout}


def _system(env: dict[str, str]) -> str:
    usual = "/etc/qwen-code/settings.json"
    if sys.platform == "darwin":
        usual = "/Library/Application Support/QwenCode/settings.json"
    return env.get(SYSTEM_PATH) or usual


def _defaults(env: dict[str, str]) -> str:
    beside = os.path.join(os.path.dirname(_system(env)), "system-defaults.json")
    return env.get(DEFAULTS_PATH) or beside


def _person(env: dict[str, str]) -> str:
    return os.path.join(home(env), "settings.json")
