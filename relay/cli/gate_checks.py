"""Which installed agents would tell the hooks of the configuration that applies here of themselves.

Each one's own plan for a start is asked, in a folder that is thrown away: nothing is started.
"""

from __future__ import annotations

import os
import shutil
import tempfile

from relay.agents.known_agents import ungated, untold
from relay.agents.launch import PLANNERS, TOOL_EVENTS, TURN_EVENTS, Run, plan
from relay.config.foresight import foreseen
from relay.config.trust import find_config, is_trusted, read_config
from relay.core.paths import Home
from relay.hooks.events import HookEventName


def native_hooks(home: Home, cwd: str) -> list[tuple[str, str]]:
    """(level, text) of each line; none without hooks for what agents tell of themselves.

    Raises ConfigError.
    """
    events = _events(home, cwd)
    if not events:
        return []
    plans = {command: _plan(home, command, events) for command in PLANNERS if shutil.which(command)}
    lines = []
    for group, missing, what in (
        (TOOL_EVENTS, ungated, "tool calls"),
        (TURN_EVENTS, untold, "turns and notices"),
    ):
        asked = [event for event in events if event in group]
        notes = {command: missing(command, plans[command], asked.__contains__) for command in plans}
        if asked:
            lines += _lines(" and ".join(event.registration for event in asked), what, notes)
    return lines


def _lines(names: str, what: str, notes: dict[str, list[str]]) -> list[tuple[str, str]]:
    """``notes``: command to why its ``what`` do not reach the hooks ``names``."""
    reached = [command for command, why in notes.items() if not why]
    whose = f"the {what} of {', '.join(reached)}" if reached else f"no {what}"
    missed = [("warn", f"{command}: {note}") for command, why in notes.items() for note in why]
    return [("ok" if reached else "warn", f"{names}: reached by {whose}"), *missed]


def _events(home: Home, cwd: str) -> list[HookEventName]:
    """The events about tool calls and turns that the configuration may have hooks for."""
    path = find_config(cwd)
    if path is None:
        return []
    file = read_config(path)
    if not is_trusted(home, path, file.sha256):
        return []
    return [event for event in foreseen(file) if event in (*TOOL_EVENTS, *TURN_EVENTS)]


def _plan(home: Home, command: str, events: list[HookEventName]) -> dict[str, object]:
    """What the plan for a start of ``command`` says to the session."""
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
        return plan([command], dict(os.environ), run).data
