"""What a recipe is, and the folders and environment that all of them share."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.real_agents.install import node_cache, node_folder

KEY = "sk-test-local"
#: Nobody listens there (the discard port), so what would leave the machine is refused at once.
NOWHERE = "http://127.0.0.1:9"
NEVER = r"(?!)"


@dataclass(frozen=True)
class Marks:
    """What a program shows: regular expressions to be found on its screen, row by row.

    ``ready``: it takes a prompt (some show it while a turn runs, too); ``taken``: the input line
    is empty or hidden, so Enter did its work (where that can be told); ``booted``: it has begun
    to hear Enter, once it was ``ready``; ``busy``: a turn runs;
    ``dialog``: it asks for permission to run a command; ``busy_title``: a turn runs, in the
    window's title. ``refuse`` holds the keys that decline, ``quit`` those that end it, in turn;
    ``again`` is what it shows when it wants the next of them.
    """

    ready: str
    busy: str
    dialog: str
    busy_title: str = NEVER
    taken: str = ""
    booted: str = ""
    refuse: str = "\x1b"
    quit: tuple[str, ...] = ("\x03", "\x03")
    again: str = r"again to (?:exit|quit)"

    def idle(self, screen: str, title: str) -> bool:
        """Whether it waits for a prompt and does nothing else."""
        return shows(self.ready, screen) and not (
            shows(self.busy, screen) or shows(self.dialog, screen) or shows(self.busy_title, title)
        )


def shows(pattern: str, screen: str) -> bool:
    """Whether the regular expression is found on a screen, ``^`` and ``$`` at each row's ends."""
    return re.search(pattern, screen, re.MULTILINE) is not None


@dataclass
class Options:
    """How to start a program.

    ``renderer`` is one of the agent's, "" its first. ``settings`` goes into its settings file over
    what the recipe puts there (nested tables are merged), ``arguments`` behind the recipe's own on
    the command line, ``env`` into its environment. ``asks``: whether running a command needs the
    person's permission.
    """

    renderer: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    asks: bool = True
    env: dict[str, str] = field(default_factory=dict)


@dataclass
class Recipe:
    """A program, ready to be started: ``argv`` in ``cwd`` with exactly ``env``.

    ``settings_file`` is the person's own settings file of the program; ``scratch`` is what it has
    for a temporary folder.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: Path
    home: Path
    scratch: Path
    settings_file: Path
    agent: str
    marks: Marks

    @property
    def user_settings(self) -> Path:
        return self.settings_file

    def start(self, argv: list[str] | None = None, **more_env: str) -> dict[str, Any]:
        """Keyword arguments for Terminal."""
        return {"argv": argv or self.argv, "env": {**self.env, **more_env}, "cwd": self.cwd}


@dataclass(frozen=True)
class Place:
    """The folders of one recipe, and the environment that every program gets."""

    home: Path
    project: Path
    scratch: Path

    @property
    def env(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": f"{node_folder()}:/usr/local/bin:/usr/bin:/bin",
            "NODE_COMPILE_CACHE": str(node_cache()),
            "LANG": "C.UTF-8",
            "SHELL": "/bin/bash",
            "USER": "tester",
            # Without these two some make folders in the temporary folder that everybody shares.
            "XDG_RUNTIME_DIR": str(self.scratch),
            "TMPDIR": str(self.scratch),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_DATA_HOME": str(self.home / ".local" / "share"),
            "XDG_STATE_HOME": str(self.home / ".local" / "state"),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            # Whoever would call home is refused at once, whether the machine has a network or not.
            "HTTPS_PROXY": NOWHERE,
            "NO_PROXY": "127.0.0.1,localhost",
            "DO_NOT_TRACK": "1",
            "DISABLE_TELEMETRY": "1",
        }


def place(base: Path) -> Place:
    """Make the folders under ``base``; again and again for the same base is fine."""
    made = Place(base / "home", base / "project", base / "run")
    for folder in (made.home, made.project, made.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    made.scratch.chmod(0o700)
    (made.project / "README.md").write_text("# A project\n")
    (made.home / ".gitconfig").write_text("[user]\n\tname = Tester\n\temail = t@example.org\n")
    git = {"PATH": os.environ["PATH"], "HOME": str(made.home)}
    subprocess.run(["git", "init", "-q", str(made.project)], env=git, check=True, timeout=30)
    return made


def make_recipe(
    agent: str,
    argv: list[str],
    env: dict[str, str],
    where: Place,
    settings_file: Path,
    marks: Marks,
    options: Options,
) -> Recipe:
    """The recipe of ``agent`` in the folders ``where``, with the options' own words behind."""
    return Recipe(
        [*argv, *options.arguments],
        {**env, **options.env},
        where.project,
        where.home,
        where.scratch,
        settings_file,
        agent,
        marks,
    )


def save(path: Path, value: dict[str, Any] | str) -> Path:
    """Write a settings file: JSON, or text as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, table by table."""
    result = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result
