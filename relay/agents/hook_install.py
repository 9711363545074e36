"""Our hooks among those of an agent's own settings, for one run.

Which hooks an agent has, and where it takes them from, stands in its launch module.
"""

from __future__ import annotations

import json
import os
import sys

from relay.agents.installed import read_settings
from relay.agents.launch import private_file
from relay.agents.primer import primer

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from relay.agents.launch import Run

    #: Groups of hooks by event, in the form that Claude Code has made common.
    Groups = dict[str, list[dict[str, Any]]]


def command_hook(command: str, timeout: float, **more: Any) -> dict[str, Any]:
    """A hook that runs a command of the shell's."""
    return {"type": "command", **more, "command": command, "timeout": timeout}


def primer_hook(run: Run, timeout: float) -> dict[str, Any]:
    """A hook that gives the model the primer when a session starts, resumes or was compacted."""
    text = primer(run.known_as, run.namespaces)
    output = {"hookEventName": "SessionStart", "additionalContext": text}
    quoted = json.dumps({"hookSpecificOutput": output}).replace("'", "'\\''")
    return command_hook(f"printf '%s' '{quoted}'", timeout)


def merged(theirs: object, ours: Groups) -> dict[str, Any]:
    """Their hooks with ours after them. Raises ValueError where theirs cannot be extended."""
    whole = theirs or {}  # empty ones have any form
    if not isinstance(whole, dict):
        raise ValueError("their hooks are no table")
    added: dict[str, Any] = {}
    for event, groups in ours.items():
        before = whole.get(event) or []
        if not isinstance(before, list):
            raise ValueError(f"their {event} hooks are no list")
        added[event] = [*before, *groups]
    return {**whole, **added}


def turned_off(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Which of these settings, with their names, turns all hooks off (``disableAllHooks``).

    The first that says anything decides; "" where hooks are on. They are only read: turned on
    again, the person's own would come back with ours.
    """
    for name, settings in layers:
        if "disableAllHooks" in settings:
            return name if settings["disableAllHooks"] is True else ""
    return ""


class SystemSettings:
    """Where Gemini CLI, and Qwen Code after it, read settings of the whole machine.

    Their ``defaults`` may be a file of one run: what the machine has there goes into it.
    """

    def __init__(self, prefix: str, folder: str, mac_folder: str) -> None:
        #: The variables that name other files.
        self.defaults_variable = f"{prefix}_SYSTEM_DEFAULTS_PATH"
        self._system_variable = f"{prefix}_SYSTEM_SETTINGS_PATH"
        self._folder = f"/Library/Application Support/{mac_folder}"
        if sys.platform != "darwin":
            self._folder = f"/etc/{folder}"

    def system(self, env: Mapping[str, str]) -> str:
        """The file that overrules all others."""
        return env.get(self._system_variable) or os.path.join(self._folder, "settings.json")

    def defaults(self, env: Mapping[str, str]) -> str:
        """The file that all others overrule."""
        beside = os.path.join(os.path.dirname(self.system(env)), "system-defaults.json")
        return env.get(self.defaults_variable) or beside

    def unreadable(self, env: Mapping[str, str]) -> str:
        """Say that the defaults are damaged, and cannot be extended; "" where they are not."""
        path = self.defaults(env)
        return f"the settings in {path} cannot be read" if read_settings(path) is None else ""

    def put_in(self, run: Run, theirs: dict[str, Any], ours: Groups) -> dict[str, str]:
        """Write defaults with our hooks; return what names them in the environment.

        Raises OSError, or ValueError where theirs cannot be extended.
        """
        settings = {**theirs, "hooks": merged(theirs.get("hooks"), ours)}
        return {self.defaults_variable: private_file(run, "settings.json", json.dumps(settings))}
