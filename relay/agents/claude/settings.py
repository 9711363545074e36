"""Whether the person's own settings turn Claude Code's hooks off, ours among them. No clock.

Only read: relay does not turn them on again, because the person's own would come back with ours.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: A larger settings file is not read. In bytes.
SETTINGS_MAX = 1024 * 1024
_KEY = "disableAllHooks"
_MANAGED = "/etc/claude-code/managed-settings.json"


def hooks_off(given: Mapping[str, Any], env: Mapping[str, str], cwd: str) -> str:
    """Which settings turn hooks off; "" where none do that can be seen.

    ``given`` are those of ``--settings``. The first that says anything decides, as in Claude Code:
    managed ones, those of the command line, the project's local ones, the project's, the user's.
    """
    home = env.get("CLAUDE_CONFIG_DIR") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".claude"
    )
    project = os.path.join(cwd, ".claude")
    if _says(_read(_MANAGED)):
        return _MANAGED
    if _KEY in given:
        return "--settings" if _says(given) else ""
    for path in (
        os.path.join(project, "settings.local.json"),
        os.path.join(project, "settings.json"),
        os.path.join(home, "settings.json"),
    ):
        settings = _read(path)
        if _KEY in settings:
            return path if _says(settings) else ""
    return ""


def _says(settings: Mapping[str, Any]) -> bool:
    return settings.get(_KEY) is True


def _read(path: str) -> Mapping[str, Any]:
    try:
        with open(path, "rb") as file:
            settings = json.loads(file.read(SETTINGS_MAX))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
