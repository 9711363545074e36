"""The shell of an agent whose shell calls the kernel holds, each to what its intent allows then.

Claude Code runs each call by the program that CLAUDE_CODE_SHELL names. Here that is a script, which
confines itself and becomes the person's own shell. Neither Claude Code's hooks nor its MCP servers
run by it, and a call is the same to its permissions. relay's session writes the script anew before
each call; no confined shell can write it. Read before the agent starts, so little is imported.
"""

from __future__ import annotations

import os

from relay.agents.hook_install import quoted
from relay.core.files import make_private_folder, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VARIABLE = "CLAUDE_CODE_SHELL"
#: Where the person has one, it stays alone: what it writes would be refused.
_PREFIX = "CLAUDE_CODE_SHELL_PREFIX"
_KINDS = ("bash", "zsh")
#: Folders at the top of a project where builds and package managers write, whatever the intent is.
BUILD_FOLDERS = (
    *("target", "node_modules", ".venv", "venv", ".gradle", ".tox", ".nox"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache"),
)
#: The shell that takes down the person's functions runs as the person's: it writes beside Claude
#: Code's settings, and no model has a word in it. That it ran tells that Claude Code uses the
#: script. The last words of a call write the working folder into a file of Claude Code's own.
_SCRIPT = """\
#!/bin/sh
# Written by relay: see docs/governance.md. It is written anew before each call.
unset {variable}
export SHELL={real}
case $1$2$3 in -c-lSNAPSHOT_FILE=*) : >{used}; exec {real} "$@" ;; esac
for last; do :; done
place=${{last##*' pwd -P >| '}}
case $place in
*[!A-Za-z0-9/._-]*) place= ;;
/*/claude-*-cwd)
    folder=$(cd -P "${{place%/*}}" && pwd -P) && place=$folder/${{place##*/}} && : >>"$place" ||
        place= ;;
*) place= ;;
esac
{confine}
"""


class ConfinedShell:
    """The script in the folder ``shell`` of a run. ``real`` is the shell that it becomes, by a
    command that has ``begin`` before the places; ``usual`` are those that every call may write,
    first its folder for temporary files."""

    def __init__(self, run_folder: str, real: str, begin: list[str], usual: list[str]) -> None:
        self._folder = os.path.join(run_folder, "shell")
        self._real = real
        self._begin = begin
        self._usual = usual
        self.path = os.path.join(self._folder, os.path.basename(real))
        self._used = os.path.join(self._folder, "used")
        self._written = ""

    def make(self) -> None:
        """Begin: nothing of the project can be written. Raises OSError."""
        make_private_folder(self._folder)
        self.hold(())

    @property
    def is_used(self) -> bool:
        """Whether the agent is known to run its shell calls by it."""
        return os.path.exists(self._used)

    def hold(self, places: Iterable[str]) -> None:
        """Let the next calls write ``places``, and what every call may. Raises OSError."""
        words = [*self._begin, *dict.fromkeys((*places, *self._usual))]
        real = quoted(self._real)
        self._write(
            f"export TMPDIR={quoted(self._usual[0])}\n"
            f'exec {" ".join(map(quoted, words))} ${{place:+"$place"}} -- {real} {real} "$@"'
        )

    def free(self) -> None:
        """Let the next call write as the person wants it, who has agreed to it. Raises OSError."""
        self._write(f'exec {quoted(self._real)} "$@"')

    def _write(self, confine: str) -> None:
        text = _SCRIPT.format(
            variable=VARIABLE, real=quoted(self._real), used=quoted(self._used), confine=confine
        )
        if text != self._written or not os.path.exists(self.path):
            self._written = ""
            write_atomically(self.path, text, mode=0o700, durable=False)
            self._written = text


def shell_of(env: Mapping[str, str]) -> str:
    """The shell that Claude Code would run calls by; "" where it is not known, or cannot be held
    without harm."""
    temporary = env.get("CLAUDE_CODE_TMPDIR") or env.get("TMPDIR") or "/tmp"
    plain = temporary.startswith("/") and all(one.isalnum() or one in "/._-" for one in temporary)
    if env.get(_PREFIX) or not plain or not temporary.isascii():
        return ""
    for path in (env.get(VARIABLE, ""), env.get("SHELL", "")):
        if path.startswith("/") and any(kind in path for kind in _KINDS) and _runs(path):
            return path if os.path.basename(path) in _KINDS else ""
    kinds = _KINDS if "bash" in os.path.basename(env.get("SHELL", "")) else _KINDS[::-1]
    for kind in kinds:
        for folder in (env.get("PATH") or os.defpath).split(":"):
            if folder.startswith("/") and _runs(path := os.path.join(folder, kind)):
                return path
    return ""


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
