"""Programs that are no agents: shells, interpreters at their prompt, editors, launchers; and which
processes are in front in a terminal.

What is typed at the prompt of a shell or an interpreter is run, so relay types nothing there. What
they show is anybody's words, so relay hears it only where the person has asked for that.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from itertools import takewhile

from relay.agents.installed import word_set

#: The kind of every shell.
SHELL = "shell"
#: Ends the kind of a program that reads commands at a prompt: ``python-repl``.
REPL = "-repl"
#: Interpreters that open a prompt unless they are given something to run.
_INTERPRETERS = word_set(
    "python node sqlite psql"
    " pypy ipython bpython ptpython deno bun duckdb mysql mariadb lua luajit ghci irb pry julia R"
    " octave tclsh gnuplot gdb iex nu xonsh elvish pwsh guile racket sbcl"
)
#: These read their words as databases or sessions to open; the others as a program to run.
_ALWAYS = word_set("sqlite psql duckdb mysql mariadb ghci gdb irb pry")
_EDITORS = word_set(
    "ed ex vi view vim vimdiff nvim nano pico emacs emacsclient hx helix kak micro joe ne mcedit"
    " less more most man info top htop btop atop mc ranger lf nnn tig lazygit watch"
)
#: These start another program, most often a shell, perhaps on another machine.
_LAUNCHERS = word_set(
    "ssh mosh telnet docker podman kubectl lxc machinectl sudo doas su login env nice nohup time"
    " stdbuf setsid timeout chroot nsenter unshare busybox toybox tmux screen zellij script rlwrap"
    " direnv nix nix-shell poetry pipenv conda uv mise asdf distrobox toolbox flatpak-spawn"
)
_SHELLS = word_set("bash zsh sh dash fish ksh mksh ash csh tcsh")
#: A shell's options after which a word follows that is the option's value.
_WITH_VALUE = word_set("-o +o -O +O --rcfile --init-file -C --init-command")

#: What runs a script or an installed program, with its options that take a word.
_RUNNERS = {
    "python": word_set("-c -W -X"),
    "node": word_set("-e -p -r --require --import --loader"),
    "deno": word_set("-c --config"),
    "bun": word_set("-r --preload"),
    "npx": word_set("-p --package -c"),
    "bunx": word_set("-p --package"),
    "pnpm": word_set("--package"),
    "uvx": word_set("--from --with -p --python"),
    "uv": word_set("--from --with -p --python --project --directory --extra --group"),
    "pipx": word_set("--spec --python"),
}
#: Their words before the program's name.
_RUN_WORDS = word_set("run tool dlx exec x")

#: An option of interpreters: whatever they run, their prompt comes after it.
_PROMPT_AFTER = re.compile(r"-[A-Za-z]*i|--interactive")
#: Processes below one that are looked at for a pager.
_FAMILY_MAX = 256
# struct proc_bsdinfo of macOS' <sys/proc_info.h>: what is read of it, and how large it is.
_PROC_PIDTBSDINFO = 3
_BSDINFO_SIZE = 136
_COMM_AT, _GROUP_AT, _FRONT_AT = 48, 100, 112


def interpreter(argv: list[str]) -> str:
    """The kind of the interpreter whose prompt ``argv`` opens, such as ``python-repl``; else ''.

    ``python3``, ``python3 -i agent.py`` and ``psql shop`` do; ``python3 agent.py`` and
    ``node -e …`` run a program.
    """
    name = os.path.basename(argv[0]) if argv else ""
    name = name if name in _INTERPRETERS else re.sub(r"[0-9.]+$", "", name)
    if name not in _INTERPRETERS:
        return ""
    options = list(takewhile(lambda word: word.startswith("-"), argv[1:]))
    if name in _ALWAYS or any(_PROMPT_AFTER.fullmatch(word) for word in options):
        return name + REPL
    if any(not re.match(r"-(?![cemp]|$)", word) for word in argv[1:]):
        return ""
    return name + REPL


def script_of(argv: list[str]) -> str:
    """The program that ``python``, ``node``, ``npx``, ``uvx`` … is told to run; '' for none.

    ``python -m gptme`` and ``uv run gptme`` run ``gptme``, ``node dist/pi.js`` runs ``pi``.
    """
    name = os.path.basename(argv[0]) if argv else ""
    runner = re.sub(r"[0-9.]+$", "", name)
    if runner not in _RUNNERS:
        return ""
    words = iter(argv[1:])
    for word in words:
        if runner == "python" and word == "-m":
            return next(words, "")
        if word in _RUNNERS[runner]:
            next(words, "")
        elif word in _RUN_WORDS and runner not in ("python", "node"):
            continue
        elif not word.startswith("-"):
            return re.sub(r"(?<=.)(?:\.(?:py|[cm]?[jt]s)|@[^@]*)$", "", os.path.basename(word))
    return ""


def shows_anything(kind: str) -> bool:
    """Whether a program of this kind shows what its person makes it show, and says nothing."""
    return kind == SHELL or kind.endswith(REPL)


def launches(name: str) -> bool:
    """Whether a program of this name runs another one in its place, so that nobody knows which."""
    return name in _LAUNCHERS


def refusal(kind: str) -> str:
    """Why nothing may ever be typed into a program of this kind; '' when something may."""
    if shows_anything(kind):
        where = "a shell" if kind == SHELL else f"the prompt of {kind.removesuffix(REPL)}"
        return f"relay types nothing into {where}: relay inbox --follow there shows it"
    return f"{kind} reads keys, not messages" if kind in _EDITORS else ""


def is_interactive_shell(argv: list[str]) -> bool:
    """Whether ``argv`` starts a shell that reads commands from the person.

    ``bash`` and ``zsh -il`` do; ``bash script.sh`` and ``sh -c 'make'`` do not.
    """
    if not argv or os.path.basename(argv[0]).lstrip("-") not in _SHELLS:
        return False
    rest = iter(argv[1:])
    for word in rest:
        if word in _WITH_VALUE:
            next(rest, None)
        elif word == "-s" or word == "-i":
            return True
        elif word in ("--", "-"):
            return next(rest, None) is None
        elif word.startswith("--"):
            if word.split("=")[0] in ("--command", "--version", "--help"):
                return False
        elif not word.startswith(("-", "+")) or "c" in word:
            return False
    return True


def has_terminal(pid: int) -> bool | None:
    """Whether the process ``pid`` is in front in its terminal; None where there is none of it."""
    found = _darwin(pid) if sys.platform == "darwin" else _linux(pid)
    return None if found is None else found[1] == found[2]


def pager_in_front(pid: int) -> bool | None:
    """Whether a pager or an editor is in front in the terminal of the process ``pid``: that one, or
    one below it. None where that cannot be told.
    """
    names = in_front(pid)
    return None if names is None else not _EDITORS.isdisjoint(names.values())


def in_front(pid: int) -> dict[int, str] | None:
    """The processes that are in front in the terminal of ``pid``, of that one and those below it,
    and their names. None where that cannot be told.
    """
    read = _darwin if sys.platform == "darwin" else _linux
    own = read(pid)
    if own is None or own[2] <= 0:
        return None
    names, family = {}, [pid]
    for process in family:
        found = read(process)
        if found is not None and found[1] == own[2]:
            names[process] = found[0]
        if len(family) < _FAMILY_MAX:
            family += children_of(process)
    return names


def children_of(pid: int, proc: str = "/proc") -> list[int]:
    """The processes that ``pid`` has started and that still run; empty where nobody tells."""
    if sys.platform == "darwin":
        return _darwin_children(pid)
    found: list[int] = []
    tasks = os.path.join(proc, str(pid), "task")
    with contextlib.suppress(OSError, ValueError):
        for task in os.listdir(tasks):
            with open(os.path.join(tasks, task, "children"), encoding="ascii") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _darwin_children(pid: int) -> list[int]:
    import ctypes

    buffer = (ctypes.c_int * _FAMILY_MAX)()
    try:
        libproc = ctypes.CDLL("/usr/lib/libproc.dylib")
        count = libproc.proc_listchildpids(pid, buffer, ctypes.sizeof(buffer))
    except (OSError, AttributeError):
        return []
    return [child for child in buffer[: max(0, count)] if child > 0]


def _linux(pid: int) -> tuple[str, int, int] | None:
    """Name, process group and the terminal's foreground group: proc(5), /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may hold any character.
    name, closed, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if not closed or len(fields) < 6 or fields[0] == b"Z":
        return None
    return os.fsdecode(name), int(fields[2]), int(fields[5])


def _darwin(pid: int) -> tuple[str, int, int] | None:
    """The same from libproc."""
    import ctypes
    import struct

    try:
        libproc = ctypes.CDLL("/usr/lib/libproc.dylib")
        buffer = ctypes.create_string_buffer(_BSDINFO_SIZE)
        size = libproc.proc_pidinfo(
            pid, _PROC_PIDTBSDINFO, ctypes.c_uint64(0), buffer, _BSDINFO_SIZE
        )
    except (OSError, AttributeError):
        return None
    if size != _BSDINFO_SIZE:
        return None
    name = os.fsdecode(buffer.raw[_COMM_AT : _COMM_AT + 16].split(b"\0")[0])
    (group,) = struct.unpack_from("=I", buffer.raw, _GROUP_AT)
    (front,) = struct.unpack_from("=I", buffer.raw, _FRONT_AT)
    return name, group, front
