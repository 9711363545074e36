"""Other wrappers, started as their manuals show it; for the table that bench/fidelity.py makes."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fidelity.wrappers import Wrapper

_PEXPECT = """
import os, signal, sys
import pexpect
try:
    columns, rows = os.get_terminal_size()
except OSError:
    columns, rows = 80, 24
child = pexpect.spawn(sys.argv[1], sys.argv[2:], dimensions=(rows, columns))
def resized(*_):
    columns, rows = os.get_terminal_size()
    child.setwinsize(rows, columns)
signal.signal(signal.SIGWINCH, resized)
child.interact(escape_character=None)
child.close()
sys.exit(child.exitstatus if child.signalstatus is None else 128 + child.signalstatus)
"""
_PTY_SPAWN = """
import os, pty, sys
code = os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:]))
sys.exit(code if code >= 0 else 128 - code)
"""
#: What would cost it rows that have nothing to do with its terminal: its status line, its wait.
_TMUX = "set -g status off\nset -g escape-time 0\nset -g focus-events on\n"


@dataclass(frozen=True)
class Peer:
    """A wrapper that is installed here. ``version`` names it with its version."""

    wrapper: Wrapper
    version: str


def installed(folder: Path) -> tuple[list[Peer], list[str]]:
    """The peers that are here, and the names of those that are not.

    ``folder`` takes what they need of files and lasts as long as they are used.
    """
    makers: dict[str, Callable[[Path], Peer | None]] = {
        "script": _script,
        "pexpect": _pexpect,
        "pty.spawn": _pty_spawn,
        "tmux": _tmux,
        "asciinema": _asciinema,
    }
    made = {name: maker(folder) for name, maker in makers.items()}
    here = [peer for peer in made.values() if peer is not None]
    return here, [name for name, peer in made.items() if peer is None]


def _script(folder: Path) -> Peer | None:
    program = shutil.which("script")
    if program is None or sys.platform != "linux":
        return None  # those of BSD and macOS take other options
    wrapper = Wrapper("script", lambda argv: [program, "-qefc", _line(argv, "exec "), "/dev/null"])
    return Peer(wrapper, _say([program, "--version"]))


def _pexpect(folder: Path) -> Peer | None:
    version = importlib.metadata.version("pexpect")
    wrapper = Wrapper("pexpect", lambda argv: [sys.executable, "-c", _PEXPECT, *argv])
    return Peer(wrapper, f"pexpect {version} (`interact`, with a SIGWINCH handler)")


def _pty_spawn(folder: Path) -> Peer | None:
    wrapper = Wrapper("pty.spawn", lambda argv: [sys.executable, "-c", _PTY_SPAWN, *argv])
    return Peer(wrapper, f"`pty.spawn` of Python {platform.python_version()}")


def _tmux(folder: Path) -> Peer | None:
    program = shutil.which("tmux")
    if program is None:
        return None
    settings = folder / "tmux.conf"
    if not settings.exists():
        settings.write_text(_TMUX)
    # A server for each run: its socket is in the folder in which the stage runs it.
    start = [program, "-S", "tmux.sock", "-f", str(settings), "new-session", "--"]
    return Peer(
        Wrapper("tmux", lambda argv: [*start, *argv]),
        f"{_say([program, '-V'])} (without its status line)",
    )


def _asciinema(folder: Path) -> Peer | None:
    program = shutil.which("asciinema")
    if program is None:
        return None
    start = [program, "rec", "-q", "--overwrite", "out.cast", "-c"]
    wrapper = Wrapper("asciinema", lambda argv: [*start, _line(argv, "exec ")])
    return Peer(wrapper, f"{_say([program, '--version'])} (`rec`)")


def _line(argv: list[str], before: str) -> str:
    return before + shlex.join(argv)


def _say(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip()
