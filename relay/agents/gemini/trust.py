"""Whether Gemini CLI would ask the person about a folder that is added to what it works in.

Where folders have to be trusted (its default), it asks so at its start for each folder that no rule
names, and a folder of one run is never named. Looks at its settings, starts nothing.
"""

from __future__ import annotations

import os
import sys

from relay.agents.installed import parse_settings, read_text

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Container
    from typing import Any


def asks(folder: str, env: dict[str, str]) -> bool:
    """Whether it may ask; where that cannot be told, it may."""
    home = _home(env)
    if _off(read_text(own_settings(env))) and not any(
        "folderTrust" in read_text(path) for path in _others(env)
    ):
        return False
    rules = env.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH") or os.path.join(home, "trustedFolders.json")
    return not _named(folder, parse_settings(read_text(os.path.expanduser(rules))) or {})


def trusts(folder: str, options: Container[str], env: dict[str, str]) -> bool:
    """Whether it trusts the folder that it works in; where that cannot be told, it does not."""
    said = env.get("GEMINI_CLI_TRUST_WORKSPACE")
    if env.get("GEMINI_RESTRICTED_MODE") == "true" or said == "false":
        return False
    return said == "true" or "--skip-trust" in options or not asks(folder, env)


def own_settings(env: dict[str, str]) -> str:
    """The person's own settings file."""
    return os.path.join(os.path.expanduser(_home(env)), "settings.json")


def _home(env: dict[str, str]) -> str:
    return os.path.join(env.get("GEMINI_CLI_HOME") or env.get("HOME") or "~", ".gemini")


def _others(env: dict[str, str]) -> list[str]:
    """Settings that count beside the person's own."""
    system = "/etc/gemini-cli"
    if sys.platform == "darwin":
        system = "/Library/Application Support/GeminiCli"
    return [
        os.path.join(".gemini", "settings.json"),
        env.get("GEMINI_CLI_SYSTEM_SETTINGS_PATH") or os.path.join(system, "settings.json"),
    ]


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
