"""Set-up from a fresh clone with nothing but Python: ``python3 -m relay.bootstrap demo``.

Makes ``.venv`` beside ``pyproject.toml``, installs relay there and runs the command. Only the
standard library is used. A wheel of pip lies in ``.ci/wheels`` and is run from there: Debian's
Python comes without one. Nothing else of the set-up is in the clone.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

USAGE = """\
usage: python3 -m relay.bootstrap demo         set relay up in .venv and run its demo
       python3 -m relay.bootstrap test         set up what the quick tests need, and run them
       python3 -m relay.bootstrap test --all   set up everything, real agents too, and run all tests
       python3 -m relay.bootstrap test ARGS…   set up everything, and run pytest with ARGS
       python3 -m relay.bootstrap setup        only set up; then: .venv/bin/relay
"""
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
#: The quick tests: those of one part each, and twenty of the whole program (tests/conftest.py).
QUICK = "unit or smoke"
#: Everything else but what runs by itself; tests on random examples again, with more of them.
REST = "not alone and not agents and not smoke and (not unit or hypothesis)"
#: Where the tests of a kind are, so that not each process of pytest's reads all tests for them.
FOLDERS = {
    "alone": ["tests/fidelity"],
    "agents": ["tests/real_agents", "tests/features/agent_check"],
}


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] not in ("demo", "test", "setup"):
        print(USAGE, end="", file=sys.stderr)
        return 0 if args in (["-h"], ["--help"]) else 2
    try:
        check_python()
        set_up(extra_of(*args))
    except SetupError as error:
        print(f"relay: {error}", file=sys.stderr)
        return 1
    statuses = [subprocess.run(command, cwd=ROOT).returncode for command in commands(*args)]
    if args[1:] in (["--all"], ["--rest"]) and 1 in statuses:
        # So many programs at a time are much for a small machine: what failed must pass alone.
        again = subprocess.run(failed_again(), cwd=ROOT).returncode
        statuses = [again if status == 1 else status for status in statuses]
    return next((status for status in statuses if status), 0)


def extra_of(verb: str, *more: str) -> str:
    """The extra of pyproject.toml that a command needs; "" for none."""
    if verb != "test":
        return ""
    return "all-tests" if more else "test"


def failed_again() -> list[str]:
    """The command that runs the tests again that failed, one at a time; the first failure ends it,
    for what fails alone is no matter of the machine."""
    pytest = [str(VENV / "bin" / "python"), "-m", "pytest", "-x"]
    return [*pytest, "--last-failed", "--last-failed-no-failures", "none"]


def commands(verb: str, *more: str) -> list[list[str]]:
    """The commands that ``verb`` runs, one after the other."""
    relay = str(VENV / "bin" / "relay")
    if verb != "test":
        return [[relay, *(["demo"] if verb == "demo" else ["--version"]), *more]]
    pytest = [str(VENV / "bin" / "python"), "-m", "pytest"]
    quick = [*pytest, "-n", "auto", "-m", QUICK]
    # ``--rest`` is ``--all`` without the quick tests: for .ci/run, which has run them before.
    more_examples = ["--hypothesis-profile=thorough", "-m", REST]
    rest = [
        # They mostly wait for each other: more at a time than there are processors.
        [*pytest, "-n", "4", "--dist", "worksteal", "--durations=15", *more_examples],
        # Tests that measure a terminal's behaviour want the machine for themselves.
        [*pytest, "--durations=15", "-m", "alone and not smoke", *FOLDERS["alone"]],
        # So do real agents, but each of them is heavy. The slowest come first, one by one.
        [
            *(*pytest, "-n", "3", "--maxschedchunk=1", "--durations=15"),
            *("-m", "agents", *FOLDERS["agents"]),
        ],
    ]
    if more == ("--all",):
        return [quick, *rest]
    if more == ("--rest",):
        return rest
    return [[*pytest, *more]] if more else [quick]


def check_python() -> None:
    """relay needs Python 3.11 and a clone of its source."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older one meets first
        raise SetupError(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} ({sys.executable});"
            " run this line with a newer one, for example python3.12"
        )
    if not (ROOT / "pyproject.toml").is_file():
        raise SetupError(f"{ROOT} is not a clone of relay: there is no pyproject.toml")


def set_up(extra: str) -> None:
    """Make .venv and install relay there, unless the last set-up was for the same files."""
    stamp = VENV / ".relay-setup"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + b"2").hexdigest()
    # Each extra holds what stands before it here.
    extras = ["", "test", "all-tests"]
    done = stamp.read_text().split() if stamp.is_file() else []
    if done[:1] == [wanted] and extras.index(extra) <= extras.index("".join(done[1:])):
        return
    print("setting up .venv (once) …", file=sys.stderr)
    python = VENV / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
    pip = pip_for(python)
    target = f"{ROOT}[{extra}]" if extra else str(ROOT)
    # compat: a plain path entry; setuptools' import hook would cost 15 ms at every start.
    editable = ["--config-settings", "editable_mode=compat", "-e", target]
    run([*pip, "install", "--quiet", "--disable-pip-version-check", *editable])
    stamp.write_text(f"{wanted} {extra}\n")


def pip_for(python: Path) -> list[str]:
    """A command that runs pip for ``python``: the wheel that lies in the clone.

    It is newer than the one that Python brings: the ``relay`` script that it writes starts in half
    the time, because it imports no ``re``.
    """
    wheels = sorted((ROOT / ".ci" / "wheels").glob("pip-*.whl"))
    if not wheels:
        raise SetupError(f"there is no pip in {ROOT / '.ci' / 'wheels'}: the clone is not whole")
    return [str(python), str(wheels[-1] / "pip")]


def run(command: list[str]) -> None:
    """Run a step of the set-up; its output is shown only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SetupError(f"this step failed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
