"""What ``relay doctor`` says of installed agents: versions, and which tell hooks of themselves.

A file of its own, apart from what doctor says of relay. Files are read, nothing is run: each
agent's own plan for a start is asked, in a folder that is thrown away.
"""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile

from relay.agents.installed import dotted, version_of
from relay.agents.known_agents import ungated, untold
from relay.agents.launch import (
    PLANNERS,
    TOOL_EVENTS,
    TURN_EVENTS,
    Run,
    newer_than_checked,
    plan,
)
from relay.agents.profile import find_profile, profile_names
from relay.config.manifest import known
from relay.core.paths import Home
from relay.hooks.events import HookEventName


def agent_line(command: str, folder: str) -> tuple[str, str, str, str]:
    """(level, text, hint, fix): what is installed as ``command``, and how relay hears it.

    ``folder`` is the person's own of profiles.
    """
    path = shutil.which(command)
    planner = importlib.import_module(PLANNERS[command])
    if path is None:
        return "absent", f"not installed ({_install(planner.PACKAGE)})", "", ""
    unseen = find_profile(command)[0].unseen
    version = version_of(path, {}, planner.PACKAGE)
    supported = version is not None and version >= planner.OLDEST
    if supported:
        heard, hint = "its own words", f"if its screen has to stand in: {unseen}"
    else:
        least = dotted(planner.OLDEST)
        heard, hint = f"its screen: relay knows its interfaces from {least} on", unseen
    shown = dotted(version) if version else "version unknown"
    text = f"{shown}, heard through {heard} ({path})"
    hint = f"{hint} (docs/screen.md)"
    if newer := newer_than_checked(command, path, {}, folder):
        text = f"{newer}, heard through {heard} ({path})"
        return "warn", text, hint, f"relay agent check {command}"
    return ("ok", text, hint, "") if supported else ("warn", text, hint, _install(planner.PACKAGE))


def _install(package: str) -> str:
    """The command that installs the newest version of an agent."""
    if package.startswith("aider"):
        return f"pipx install {package}"
    return f"npm install -g {package}@latest"


def profiled(home: Home) -> list[tuple[str, str, str, str, str]]:
    """(name, level, text, hint, fix): other installed programs that have a profile, and what is
    wrong with the person's own profiles."""
    lines = []
    for name in profile_names(home.profiles):
        profile, notes = find_profile(name, home.profiles)
        lines += [(name, "warn", note, "mend it: docs/profiles.md", "") for note in notes]
        path = shutil.which(name)
        if path is not None and name not in PLANNERS and not notes:
            hint = f"{profile.unseen} (docs/screen.md)" if profile.unseen else ""
            if newer := newer_than_checked(name, path, {}, home.profiles):
                text = f"{newer}, heard through its screen, by a profile ({path})"
                lines.append((name, "warn", text, hint, f"relay agent check {name}"))
                continue
            checked = f", checked with {profile.checked_with}" if profile.checked_with else ""
            text = f"heard through its screen, by a profile{checked} ({path})"
            lines.append((name, "ok", text, hint, ""))
    return lines


# -- hooks


def native_hooks(home: Home, cwd: str) -> list[tuple[str, str]]:
    """(level, text) of each line; none without hooks for what agents tell of themselves."""
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
    events = [HookEventName(value) for value in known(home, cwd).hooks]
    return [event for event in events if event in (*TOOL_EVENTS, *TURN_EVENTS)]


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
