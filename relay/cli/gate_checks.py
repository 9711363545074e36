"""Which installed agents' tool calls would reach the hooks of the configuration that applies here.

Each one's own plan for a start is asked, in a folder that is thrown away: nothing is started.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from relay.agents.launch import PLANNERS, TOOL_EVENTS, Run, plan
from relay.agents.native import ungated
from relay.foresight import foreseen
from relay.hooks.events import HookEventName
from relay.paths import Home
from relay.trust import find_config, is_trusted, read_config


def tool_hooks(home: Home, cwd: str) -> list[tuple[str, str]]:
    """(level, text) of each line; none without hooks for tool calls. Raises ConfigError."""
    events = _events(home, cwd)
    names = " and ".join(event.registration for event in events)
    if not events:
        return []
    reached: list[str] = []
    missed: list[tuple[str, str]] = []
    for command in PLANNERS:
        if shutil.which(command) is None:
            continue
        notes = _notes(home, command, events)
        if notes:
            missed += [("warn", f"{command}: {note}") for note in notes]
        else:
            reached.append(command)
    whose = f"the tool calls of {', '.join(reached)}" if reached else "no tool calls"
    return [("ok" if reached else "warn", f"{names}: reached by {whose}"), *missed]


def _events(home: Home, cwd: str) -> list[HookEventName]:
    """The tool events that the configuration may have hooks for."""
    path = find_config(cwd)
    if path is None:
        return []
    file = read_config(path)
    if not is_trusted(home, path, file.sha256):
        return []
    return [event for event in foreseen(file) if event in TOOL_EVENTS]


def _notes(home: Home, command: str, events: list[HookEventName]) -> list[str]:
    # Gemini CLI reads hooks from root's folders only: what a run's folder is made in counts.
    place = home.run if os.path.isdir(home.run) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        run = Run(
            name="doctor",
            run_id="doctor",
            token="",
            port=1,
            socket=os.path.join(folder, "socket"),
            folder=os.path.join(folder, "run"),
            hooks=tuple(event.value for event in events),
        )
        data = plan([command], dict(os.environ), run).data
    return ungated(command, data, lambda event: event in events)
