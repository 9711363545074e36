"""Set-up from a fresh clone with nothing but Python: ``python3 -m relay.bootstrap demo``.

Makes ``.venv`` beside ``pyproject.toml``, installs relay there and runs the command. Only the
standard library is used. A wheel of pip lies in ``.ci/wheels`` and is run from there: Debian's
Python comes without one. Nothing else of the set-up is in the clone.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

USAGE = """\
usage: python3 -m relay.bootstrap demo         set relay up in .venv and run its demo
       python3 -m relay.bootstrap test         set up what the quick tests need, and run them
       python3 -m relay.bootstrap test --all   set up everything, real agents too, and run all tests
       python3 -m relay.bootstrap test ARGS…   set up everything, and run pytest with ARGS
       python3 -m relay.bootstrap setup [EXTRA…]
                                               only set up; with extras, such as mem0, or with all
"""
#: What a person runs next, who has set relay up.
ON_PATH = """relay is installed in {folder}. To use it in a terminal:

    export PATH={folder}:"$PATH"
"""
#: Words in the output of a step that has failed, and what a person can do about it.
CAUSES = {
    "No space left on device": "the disk is full\n"
    "  make room (about 60 MB in {root}, and as much in {temp}), and run the same line again",
    "Permission denied": "{line}\n  clone relay into a folder of your own",
    "connection broken by": "the package index cannot be reached\n"
    "  check the network (behind a proxy set HTTPS_PROXY), and run the same line again",
}
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
#: The quick tests: those of one part each, and twenty of the whole program (tests/conftest.py).
QUICK = "unit or smoke"
#: Everything else but what runs by itself.
REST = "not alone and not agents and not smoke and not unit"
#: Where the tests of a kind are, so that not each process of pytest's reads all tests for them.
FOLDERS = {
    "alone": ["tests/fidelity"],
    "agents": ["tests/real_agents", "tests/features/agent_check", "tests/features/link"],
}


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] not in ("demo", "test", "setup"):
        asked = args in (["-h"], ["--help"])
        print(USAGE, end="", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    try:
        check_clone()
        set_up(extras_of(*args))
        return run(*args)
    except (SetupError, OSError) as error:
        print(f"relay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nrelay: interrupted. To go on, run the same line again.", file=sys.stderr)
        return 130


def run(*args: str) -> int:
    """What comes after the set-up; returns its exit status."""
    if args[0] == "setup":
        print(ON_PATH.format(folder=shlex.quote(str(VENV / "bin"))))
    statuses = [subprocess.run(command, cwd=ROOT).returncode for command in commands(*args)]
    if args[1:] in (("--all",), ("--rest",)) and 1 in statuses:
        # So many programs at a time are much for a small machine: what failed must pass alone.
        again = subprocess.run(failed_again(), cwd=ROOT).returncode
        statuses = [again if status == 1 else status for status in statuses]
    return next((status for status in statuses if status), 0)


def extras_of(verb: str, *more: str) -> set[str]:
    """The extras of pyproject.toml that a command needs. Raises SetupError for one that is none."""
    if verb == "demo":
        return set()
    if verb == "test":
        return {"all-tests"} if more else {"test"}
    known = project()["optional-dependencies"]
    if unknown := [name for name in more if name not in known]:
        raise SetupError(f"{unknown[0]} is not an extra; there are {', '.join(known)}")
    return set(more)


def project() -> dict[str, Any]:
    """What pyproject.toml says of relay."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def failed_again() -> list[str]:
    """The command that runs the tests again that failed, one at a time; the first failure ends it,
    for what fails alone is no matter of the machine."""
    pytest = [str(VENV / "bin" / "python"), "-m", "pytest", "-x"]
    return [*pytest, "--last-failed", "--last-failed-no-failures", "none"]


def commands(verb: str, *more: str) -> list[list[str]]:
    relay = str(VENV / "bin" / "relay")
    if verb == "setup":
        return []
    if verb == "demo":
        return [[relay, "demo", *more]]
    pytest = [str(VENV / "bin" / "python"), "-m", "pytest"]
    quick = [*pytest, "-n", "auto", "-m", QUICK]
    # ``--rest`` is ``--all`` without the quick tests: for .ci/run, which has run them before.
    rest = [
        # They mostly wait for each other: more at a time than there are processors.
        [*pytest, "-n", "4", "--dist", "worksteal", "--durations=15", "-m", REST],
        # Tests that measure a terminal's behaviour want a processor for themselves.
        [*pytest, "-n", "auto", "--durations=15", "-m", "alone and not smoke", *FOLDERS["alone"]],
        # Real agents are heavy, but wait as well. The slowest come first, one by one.
        [
            *(*pytest, "-n", "4", "--maxschedchunk=1", "--durations=15"),
            *("-m", "agents", *FOLDERS["agents"]),
        ],
    ]
    if more == ("--all",):
        return [quick, *rest]
    if more == ("--rest",):
        return rest
    return [[*pytest, *more]] if more else [quick]


def check_clone() -> None:
    """relay is set up on a Unix, from a clone of its source. (Which Python that needs, relay itself
    says.)"""
    if os.name != "posix":
        raise SetupError("relay runs on Linux and macOS. On Windows, use it in WSL.")
    if not (ROOT / "pyproject.toml").is_file():
        raise SetupError(f"{ROOT} is not a clone of relay: there is no pyproject.toml")


def set_up(extras: set[str]) -> None:
    """Make .venv and install relay there, unless the last set-up was for the same files. What was
    installed before stays, but where the clone was moved or Python was removed: then nothing in
    .venv starts any more, and it is made anew."""
    stamp = VENV / ".relay-setup"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + b"4").hexdigest()
    done, place = [*(stamp.read_text().splitlines() if stamp.is_file() else []), "", ""][:2]
    there = set(done.split()[1:])
    python, program = VENV / "bin" / "python", VENV / "bin" / "relay"
    # Of Python alone: a relay that a change has broken is no reason to remove what is installed.
    broken = bool(done) and not (place in ("", str(VENV)) and starts(python))
    enough = program.exists() and extras <= there | set().union(*map(joined, there))
    if done.split()[:1] == [wanted] and enough and not broken:
        return
    extras |= there
    steps = Steps()
    if broken or not python.exists():
        with steps.step(f"making {VENV}"):
            clear = ["--clear"] if broken else []
            steps.run([sys.executable, "-m", "venv", "--without-pip", *clear, str(VENV)])
    pip = pip_for(python)
    names = ",".join(sorted(extras))
    target = f"{ROOT}[{names}]" if names else str(ROOT)
    what = "relay" if names in ("", "all") else f"relay[{names}]"
    with steps.step(f"installing {what}"):
        options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        steps.run([*pip, "install", *options, "-e", target])
    stamp.write_text(" ".join([wanted, *sorted(extras)]) + f"\n{VENV}\n")


def starts(program: Path) -> bool:
    """Whether a program can be run."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, timeout=60)
        return done.returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def joined(extra: str) -> set[str]:
    """The extras that this one brings along."""
    table, name = project(), project()["name"]
    found: set[str] = set()
    for requirement in table["optional-dependencies"].get(extra, []):
        if requirement.startswith(f"{name}["):
            names = requirement[len(name) + 1 :].partition("]")[0].split(",")
            found.update(names, *map(joined, names))
    return found


class Steps:
    """The steps of the set-up as they go on: on a terminal each is a line that changes in place,
    elsewhere a line when it begins. The output of a step is shown only when it fails."""

    def __init__(self) -> None:
        self._changes = sys.stderr.isatty()
        self._name = ""

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """What is done meanwhile is the step ``name``."""
        self._name = name
        if not self._changes:
            print(f"relay: {name} …", file=sys.stderr, flush=True)
        self._show("…")
        began = time.monotonic()
        yield
        self._show(f"({time.monotonic() - began:.0f} s)", "\n")

    def _show(self, more: str, end: str = "") -> None:
        if self._changes:
            columns = shutil.get_terminal_size().columns
            line = f"relay: {self._name} {more}"[: columns - 1]
            print(f"\r\x1b[K{line}", end=end, file=sys.stderr, flush=True)

    def run(self, command: list[str]) -> None:
        """Run a command. Raises SetupError."""
        pipe, output = subprocess.PIPE, []
        with subprocess.Popen(
            command, stdout=pipe, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            for line in process.stdout or ():
                output.append(line)
                # pip's words, such as "Collecting numpy>=1.26 (from relay-wrap==0.1.0)" and
                # "Installing build dependencies: started".
                words = line.strip().partition(" (")[0].partition(":")[0]
                if words.startswith(("Collecting", "Downloading", "Installing", "Building")):
                    self._show(f"… {words[0].lower()}{words[1:]}")
        if process.returncode:
            self._show("failed", "\n")
            for words, cause in CAUSES.items():
                if lines := [line.strip() for line in output if words in line]:
                    places = {"root": ROOT, "temp": tempfile.gettempdir()}
                    raise SetupError(cause.format(line=lines[-1], **places))
            print("".join(output), file=sys.stderr)
            raise SetupError(f"{self._name} failed, see above")


def pip_for(python: Path) -> list[str]:
    """A command that runs pip for ``python``: the wheel that lies in the clone.

    It is newer than the one that Python brings: the ``relay`` script that it writes starts in half
    the time, because it imports no ``re``.
    """
    wheels = sorted((ROOT / ".ci" / "wheels").glob("pip-*.whl"))
    if not wheels:
        raise SetupError(f"there is no pip in {ROOT / '.ci' / 'wheels'}: the clone is incomplete")
    return [str(python), str(wheels[-1] / "pip")]


if __name__ == "__main__":
    sys.exit(main())
