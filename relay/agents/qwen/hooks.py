"""Our hooks for one run of Qwen Code, in a file of settings that stands below all others.

Qwen Code reads system defaults from where ``QWEN_CODE_SYSTEM_DEFAULTS_PATH`` says, and runs their
hooks beside those of the person and of the project. What the machine has there goes into ours.
"""

from __future__ import annotations

import json
import os
import sys

from relay.agents import bridge
from relay.agents.commented import read_object
from relay.agents.launch import GATE_TIMEOUT

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

    from relay.agents.launch import Run

FILE = "settings.json"
PATH, SYSTEM_PATH = "QWEN_CODE_SYSTEM_DEFAULTS_PATH", "QWEN_CODE_SYSTEM_SETTINGS_PATH"
#: The form of settings that 0.24.4 has; it would bring another one up to date by writing the file.
_VERSION = 4
#: What Qwen Code calls the events of turns and notices.
TOLD = {
    "BeforeAgent": "UserPromptSubmit",
    "AfterAgent": "Stop",
    "Notification": "Notification",
    "PreCompress": "PreCompact",
}
_UNKNOWN = "relay cannot be asked whether this may run"
#: With all of these no other hook's word counts for more (see gate.py).
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


def why_not(options: set[str], env: dict[str, str], run: Run) -> str:
    """Why there would be no hooks; "" where there are."""
    for option in ("--bare", "--safe-mode"):
        if option in options:
            return f"Qwen Code runs no hooks with {option}"
    for name in ("QWEN_CODE_SAFE_MODE", "QWEN_CODE_SIMPLE"):
        if env.get(name, "").lower() in ("1", "true"):
            return f"Qwen Code runs no hooks with {name}"
    layers = [_defaults(env), _person(env), os.path.join(".qwen", "settings.json"), _system(env)]
    said = [(path, read_object(path) or {}) for path in layers]
    off = [(path, found["disableAllHooks"]) for path, found in said if "disableAllHooks" in found]
    if off and off[-1][1] is True:  # the last that says anything decides
        return f"hooks are turned off (disableAllHooks in {off[-1][0]})"
    if read_object(_defaults(env)) is None:
        return f"the settings in {_defaults(env)} cannot be read"
    return bridge.why_not(run, env)


def put_in(env: dict[str, str], run: Run, gates: list[str], tells: list[str]) -> dict[str, str]:
    """Write the file; returns what names it in the environment. Raises OSError or ValueError."""
    path = bridge.write(run, patient=bool(gates))
    settings: dict[str, Any] = read_object(_defaults(env)) or {"$version": _VERSION}
    theirs = settings.get("hooks") or {}
    if not isinstance(theirs, dict):
        raise ValueError("its hooks are no table")
    settings["hooks"] = dict(theirs)
    ours = hooks(path, gates)
    if tells:
        ours |= observers(bridge.write_teller(run), tells)
    for event, groups in ours.items():
        settings["hooks"][event] = [*(theirs.get(event) or []), *groups]
    file = os.path.join(run.folder, FILE)
    with open(os.open(file, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as out:
        json.dump(settings, out)
    return {PATH: file}


def hooks(script: str, gates: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Our hooks, in the form of Qwen Code's settings.

    What was added before a tool is told with its result, so there is always one after it; and
    messages may go to the model with its answer.
    """
    ask = {"BeforeTool": {"PreToolUse": bridge.command(script, json.dumps(REFUSAL))}}
    chosen = ask["BeforeTool"] if "BeforeTool" in gates else {}
    told = bridge.command(script)
    chosen = {**chosen, "PostToolUse": told, "PostToolUseFailure": told}
    timeout = GATE_TIMEOUT if gates else bridge.STEERED_TIMEOUT
    return {
        event: [{"matcher": "*", "hooks": [_hook(command, timeout)]}]
        for event, command in chosen.items()
    }


def observers(script: str, tells: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Our hooks that tell of turns and notices; Qwen Code does not wait for them."""
    hook = {**_hook(bridge.telling(script), bridge.TOLD_TIMEOUT), "async": True}
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
    return env.get(PATH) or beside


def _person(env: dict[str, str]) -> str:
    home = env.get("QWEN_HOME") or os.path.join(env.get("HOME") or "", ".qwen")
    return os.path.join(os.path.expanduser(home), "settings.json")
