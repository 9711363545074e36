"""The shell of an agent whose shell calls the kernel holds, each to what its intent allows then.

An agent that has a place in WAYS runs each call by a shell that its environment names. Here that is
a script, which confines itself and becomes the person's own shell. What the agent starts beside its
model's calls (hooks, MCP servers) is told apart and runs as ever, and a call is the same to the
agent's permissions. relay's session writes the script anew before each call; no confined shell can
write it. Read before the agent starts, so little is imported.
"""

from __future__ import annotations

import os

from relay.agents.hook_install import quoted
from relay.core.files import make_private_folder, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: Kind of agent -> (the variable by which it finds its shell, how the script begins). With PATH the
#: agent takes the first ``bash`` there. The beginning lets pass what is no call of the model's, and
#: sets ``place``, a file of the agent's own in which the call reports; @used tells that the agent
#: uses the script.
WAYS = {
    # The shell that takes down the person's functions writes beside Claude Code's settings, and no
    # model has a word in it. The last words of a call write the working folder into a file.
    "claude": (
        "CLAUDE_CODE_SHELL",
        """\
case $1$2$3 in -c-lSNAPSHOT_FILE=*) @used; exec @real "$@" ;; esac
for last; do :; done
place=${last##*' pwd -P >| '}
""",
    ),
    # Before each call stand these words, and in no hook or MCP server.
    "gemini": (
        "PATH",
        """\
begin='shopt -u promptvars nullglob extglob nocaseglob dotglob; '
case $1$2 in -c"$begin"*) @used ;; *) exec @real "$@" ;; esac
case $2 in "$begin"_bgpids_file=*) place=${2#*=}; place=${place%%[!A-Za-z0-9/._-]*} ;; esac
""",
    ),
    "qwen": ("PATH", 'case $QWEN_CODE$#$1 in 12-c) @used ;; *) exec @real "$@" ;; esac\n'),
    "opencode": ("SHELL", 'case $#$1 in 2-c) @used ;; *) exec @real "$@" ;; esac\n'),
}
#: Where the person has one, Claude Code's shell stays alone: what it writes would be refused.
_PREFIX = "CLAUDE_CODE_SHELL_PREFIX"
_KINDS = ("bash", "zsh")
#: Folders at the top of a project where builds and package managers write, whatever the intent is.
BUILD_FOLDERS = (
    *("target", "node_modules", ".venv", "venv", ".gradle", ".tox", ".nox"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache"),
)
_SCRIPT = """\
#!/bin/sh
# Written by relay: see docs/governance.md. It is written anew before each call.
BEGIN
place=
WAY
case $place in
*[!A-Za-z0-9/._-]*) place= ;;
/*/claude-*-cwd | /*/gemini-shell-*/bgpids.tmp)
    folder=$(cd -P "${place%/*}" && pwd -P) && place=$folder/${place##*/} &&
        [ ! -L "$place" ] && : >>"$place" || place= ;;
*) place= ;;
esac
CONFINE
"""


class ConfinedShell:
    """The script in the folder ``shell`` of a run of an agent of this kind. ``real`` is the shell
    that it becomes, by a command that has ``begin`` before the places; ``usual`` are those that
    every call may write, first its folder for temporary files."""

    def __init__(
        self, run_folder: str, kind: str, real: str, begin: list[str], usual: list[str]
    ) -> None:
        self._folder = os.path.join(run_folder, "shell")
        self._variable, self._way = WAYS[kind]
        self._real = real
        self._begin = begin
        self._usual = usual
        self.path = os.path.join(self._folder, os.path.basename(real))
        self._used = os.path.join(self._folder, "used")
        self._written = ""

    def make(self, env: Mapping[str, str]) -> dict[str, str]:
        """Begin: nothing of the project can be written; returns what the agent's environment has to
        hold beside ``env``. Raises OSError."""
        make_private_folder(self._folder)
        self.hold(())
        if self._variable == "PATH":
            return {"PATH": f"{self._folder}:{env.get('PATH') or os.defpath}"}
        return {self._variable: self.path}

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
        real, used = quoted(self._real), f": >{quoted(self._used)}"
        begin = f"export SHELL={real}"
        if self._variable == "PATH":
            begin = f"PATH=${{PATH#{quoted(self._folder)}:}}"
        elif self._variable != "SHELL":
            begin = f"unset {self._variable}\n{begin}"
        way = self._way.replace("@used", used).replace("@real", real).rstrip()
        parts = {"BEGIN": begin, "WAY": way, "CONFINE": confine}
        text = "\n".join(parts.get(line, line) for line in _SCRIPT.split("\n"))
        if text != self._written or not os.path.exists(self.path):
            self._written = ""
            write_atomically(self.path, text, mode=0o700, durable=False)
            self._written = text


def shell_of(env: Mapping[str, str], kind: str) -> str:
    """The shell that an agent of this kind would run calls by; "" where it is not known, or cannot
    be held without harm."""
    variable = WAYS[kind][0]
    temporary = env.get("CLAUDE_CODE_TMPDIR") or env.get("TMPDIR") or "/tmp"
    plain = temporary.startswith("/") and all(one.isalnum() or one in "/._-" for one in temporary)
    if (kind == "claude" and env.get(_PREFIX)) or not plain or not temporary.isascii():
        return ""
    if variable == "PATH":
        return _in_path(env, "bash")
    for path in (env.get(variable, ""), env.get("SHELL", "")):
        if path.startswith("/") and any(name in path for name in _KINDS) and _runs(path):
            return path if os.path.basename(path) in _KINDS else ""
    if kind != "claude":
        return "" if env.get(variable) else _in_path(env, "bash")
    kinds = _KINDS if "bash" in os.path.basename(env.get("SHELL", "")) else _KINDS[::-1]
    return next(filter(None, (_in_path(env, name) for name in kinds)), "")


def _in_path(env: Mapping[str, str], name: str) -> str:
    for folder in (env.get("PATH") or os.defpath).split(":"):
        if folder.startswith("/") and _runs(path := os.path.join(folder, name)):
            return path
    return ""


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
