"""Whether the person's own settings turn Codex's hooks off, ours among them. They are only read."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

#: A larger settings file is not read. In bytes.
SETTINGS_MAX = 1024 * 1024


def hooks_off(options: Sequence[tuple[str, str]], env: Mapping[str, str], cwd: str) -> str:
    """Which settings turn hooks off; "" where none do that can be seen.

    ``options`` are those of the command line with their values; what stands there counts more than
    the files do, and the last one of them most. In the files, one that turns them off is enough.
    """
    said = ""
    for name, value in options:
        if name in ("--enable", "--disable") and value == "hooks":
            said = name
        elif name in ("-c", "--config"):
            key, _, given = value.partition("=")
            if key.strip() == "features.hooks":
                said = "--enable" if given.strip() == "true" else f"-c {value}"
    if said:
        return "" if said == "--enable" else said
    home = env.get("CODEX_HOME") or os.path.join(
        env.get("HOME") or os.path.expanduser("~"), ".codex"
    )
    for folder in (home, os.path.join(cwd, ".codex")):
        path = os.path.join(folder, "config.toml")
        if _turned_off(_read(path)):
            return path
    return ""


def _turned_off(settings: Mapping[str, Any]) -> bool:
    """In the file's own table of features, or in that of one of its profiles."""
    profiles = settings.get("profiles")
    tables = [settings, *(profiles.values() if isinstance(profiles, dict) else ())]
    features = [table.get("features") for table in tables if isinstance(table, dict)]
    return any(isinstance(table, dict) and table.get("hooks") is False for table in features)


def _read(path: str) -> Mapping[str, Any]:
    import tomllib

    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read(SETTINGS_MAX).decode())
    except (OSError, ValueError):
        return {}
