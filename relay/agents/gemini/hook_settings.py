"""Writes our hooks for one run of Gemini CLI, where its rules for settings of one run let them in.

Gemini CLI reads system defaults from where ``GEMINI_CLI_SYSTEM_DEFAULTS_PATH`` says, but only from
a file that belongs to root, as all folders above it do, and that nobody else may write. So a run of
root's has them without more. For anybody else there is no file of one run: who wants hooks there
has named them in their own settings once (docs/agents/gemini.md), and they run what ``RELAY_ASK``
names.

Where folders have to be trusted (its default), Gemini CLI asks at its start about each folder that
no rule names, and a folder of one run is never named.
"""

from __future__ import annotations

import os
import stat

from relay.agents import hook_scripts
from relay.agents.hook_install import SystemSettings, command_hook
from relay.agents.installed import parse_settings, read_settings, read_text
from relay.agents.launch import GATE_TIMEOUT

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

    from relay.agents.arguments import Arguments
    from relay.agents.hook_install import Groups
    from relay.agents.launch import Run

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
    return hook_scripts.why_not(run, env)


def why_no_gates(env: dict[str, str], run: Run) -> str:
    """Say why tool calls reach no hooks; "" where they do."""
    reason = "" if person_asks(env) else why_no_file(env, run)
    own = "docs/agents/gemini.md says what to put into your own settings"
    return f"{reason}; {own}" if reason else ""


def why_no_file(env: dict[str, str], run: Run) -> str:
    """Say why there can be no file of hooks for one run; "" where there can."""
    insecure = _insecure(run.folder)
    if insecure:
        return f"Gemini CLI takes hooks for one run only from root's files ({insecure} is not)"
    return SYSTEM.unreadable(env)


def put_in(env: dict[str, str], run: Run, gates: list[str], tells: list[str]) -> dict[str, str]:
    """Write the files; returns what names them in the environment. Raises OSError, ValueError."""
    added: dict[str, str] = {}
    chosen: Groups = {}
    if gates and person_asks(env):
        added[ASK] = hook_scripts.write(run)
    elif gates:
        chosen = hooks(hook_scripts.write(run), gates)
    if tells:
        chosen |= observers(hook_scripts.write_teller(run, aside=True), tells)
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
    chosen = {"AfterTool": hook_scripts.command(script)}
    if "BeforeTool" in gates:
        chosen["BeforeTool"] = hook_scripts.command(script, REFUSAL)
    return {
        event: [{"matcher": "*", "hooks": [_hook(command)]}] for event, command in chosen.items()
    }


def observers(script: str, tells: list[str]) -> Groups:
    """Return our hooks that tell of turns and notices; Gemini CLI is not made to wait for them.

    It would tell of a compaction before each request to the model, whether there is one or not; but
    one that the person wants always is.
    """
    hook = {**_hook(hook_scripts.telling(script)), "timeout": hook_scripts.TOLD_TIMEOUT * 1000}
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
