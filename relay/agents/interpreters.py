"""Programs that are no agents: what a message may look like there, and where none may be typed.

An interpreter at its prompt runs what it is given. psql runs ``\\!`` wherever it stands in a line,
gnuplot runs what stands in backquotes, an SQL statement goes on over lines until its semicolon. A
comment does nothing in any of them.
"""

from __future__ import annotations

import os
import re

#: Ends the kind of a program that reads commands at a prompt: ``python-repl``.
REPL = "-repl"

_HASH = "# "
#: A line that is a comment leaves Python waiting for a statement.
_PYTHON = "pass  # "
_COMMENTS = {
    "python": _PYTHON,
    "pypy": _PYTHON,
    "ipython": _PYTHON,
    "bpython": _PYTHON,
    "ptpython": _PYTHON,
    "node": "// ",
    "deno": "// ",
    "bun": "// ",
    "sqlite": "-- ",
    "psql": "-- ",
    "duckdb": "-- ",
    "mysql": "-- ",
    "mariadb": "-- ",
    "lua": "-- ",
    "luajit": "-- ",
    "ghci": "-- ",
    "irb": _HASH,
    "pry": _HASH,
    "julia": _HASH,
    "R": _HASH,
    "octave": _HASH,
    "tclsh": _HASH,
    "gnuplot": _HASH,
    "gdb": _HASH,
    "iex": _HASH,
    "nu": _HASH,
    "xonsh": _HASH,
    "elvish": _HASH,
    "pwsh": _HASH,
    "guile": "; ",
    "racket": "; ",
    "sbcl": "; ",
}
#: These read their words as databases or sessions to open; the others as a program to run.
_ALWAYS = frozenset({"sqlite", "psql", "duckdb", "mysql", "mariadb", "ghci", "gdb", "irb", "pry"})

_EDITORS = frozenset(
    [
        "ed",
        "ex",
        "vi",
        "view",
        "vim",
        "vimdiff",
        "nvim",
        "nano",
        "pico",
        "emacs",
        "emacsclient",
        "hx",
        "helix",
        "kak",
        "micro",
        "joe",
        "ne",
        "mcedit",
        "less",
        "more",
        "most",
        "man",
        "info",
        "top",
        "htop",
        "btop",
        "atop",
        "mc",
        "ranger",
        "lf",
        "nnn",
        "tig",
        "lazygit",
        "watch",
    ]
)
#: Even between quotes these expand ``!``.
_CSH = frozenset({"csh", "tcsh"})

#: These start another program, most often a shell, perhaps on another machine.
_LAUNCHERS = frozenset(
    [
        "ssh",
        "mosh",
        "telnet",
        "docker",
        "podman",
        "kubectl",
        "lxc",
        "machinectl",
        "sudo",
        "doas",
        "su",
        "login",
        "env",
        "nice",
        "nohup",
        "time",
        "stdbuf",
        "setsid",
        "timeout",
        "chroot",
        "nsenter",
        "unshare",
        "busybox",
        "toybox",
        "tmux",
        "screen",
        "zellij",
        "script",
        "rlwrap",
        "direnv",
        "nix",
        "nix-shell",
        "poetry",
        "pipenv",
        "conda",
        "uv",
        "mise",
        "asdf",
        "distrobox",
        "toolbox",
        "flatpak-spawn",
    ]
)

# What an interpreter shows when it waits for a new statement. A continued one ("... ", "db-# ",
# "'> ", "   -> ") is the person's.
_PROMPT = re.compile(r"(?:[\w@(\[][^'\"]{0,78}?[\w)\]=~*]|)(?:>{1,3}|[#$%]|\]:|\)) ?")


def interpreter(argv: list[str]) -> str:
    """The kind of the interpreter whose prompt ``argv`` opens, such as ``python-repl``; else ''.

    ``python3`` and ``psql shop`` do; ``python3 agent.py`` and ``node -e …`` run a program.
    """
    name = os.path.basename(argv[0]) if argv else ""
    if name not in _COMMENTS:
        name = re.sub(r"[0-9.]+$", "", name)
    if name not in _COMMENTS:
        return ""
    if name not in _ALWAYS and any(not re.match(r"-(?![cemp]|$)", word) for word in argv[1:]):
        return ""
    return name + REPL


def comment_of(kind: str) -> str:
    """What begins a comment line in an interpreter of this kind; '' when it is none."""
    return _COMMENTS.get(kind.removesuffix(REPL), "") if kind.endswith(REPL) else ""


def at_prompt(line: str) -> bool:
    """Whether ``line``, up to the cursor, is the prompt of an interpreter that waits."""
    return _PROMPT.fullmatch(line) is not None


def launches(name: str) -> bool:
    """Whether a program of this name runs another one in its place, so that nobody knows which."""
    return name in _LAUNCHERS


def refusal(name: str) -> str:
    """Why nothing may ever be typed into a program of this name; '' when something may."""
    if name in _EDITORS:
        return f"{name} reads keys, not messages"
    if name in _CSH:
        return f"no words are safe at a {name} prompt"
    return ""
