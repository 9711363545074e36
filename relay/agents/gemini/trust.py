"""Whether Gemini CLI would ask the person about a folder that is added to what it works in.

Where folders have to be trusted (its default), it asks so at its start for each folder that no rule
names, and a folder of one run is never named. Looks at its settings, starts nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from typing import Any

#: Bytes of a settings file that are looked at.
FILE_MAX = 1024 * 1024
_COMMENT = r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/'


def asks(folder: str, env: dict[str, str]) -> bool:
    """Whether it may ask; where that cannot be told, it may."""
    home = os.path.join(env.get("GEMINI_CLI_HOME") or env.get("HOME") or "~", ".gemini")
    own = read(os.path.join(os.path.expanduser(home), "settings.json"))
    if _off(own) and not any("folderTrust" in read(path) for path in _others(env)):
        return False
    rules = env.get("GEMINI_CLI_TRUSTED_FOLDERS_PATH") or os.path.join(home, "trustedFolders.json")
    return not _named(folder, _object(read(os.path.expanduser(rules))))


def read(path: str) -> str:
    """The text of a settings file; nothing where there is no such file, or it is none."""
    try:
        if not os.path.isfile(path):
            return ""  # a pipe has only one reader
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MAX)
    except OSError:
        return ""


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
    found: object = _object(text)
    for name in ("security", "folderTrust", "enabled"):
        found = found.get(name) if isinstance(found, dict) else None
    return found is False


def _object(text: str) -> dict[str, Any]:
    """What the file says, which may hold comments; nothing where it is damaged."""
    import json
    import re

    bare = re.sub(_COMMENT, lambda found: found[1] or " ", text, flags=re.DOTALL)
    try:
        found = json.loads(bare)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _named(folder: str, rules: dict[str, Any]) -> bool:
    """Whether a rule trusts this folder: the longest that applies counts."""
    folder, longest, trusted = os.path.realpath(folder), -1, False
    for path, level in rules.items():
        top = os.path.realpath(os.path.dirname(path) if level == "TRUST_PARENT" else path)
        inside = folder == top or folder.startswith(top.rstrip(os.sep) + os.sep)
        if inside and len(path) > longest:
            longest, trusted = len(path), level in ("TRUST_FOLDER", "TRUST_PARENT")
    return trusted
