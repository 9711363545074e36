"""The files that a trusted file runs: their hashes are part of what the person trusted.

What counts is the program of a list (``["./check.sh"]``), the script that an interpreter in it is
given (``["sh", "check.sh"]``), each other word of it that names an executable file, and what a hook
lists under ``files``. Names are looked up beside the trusted file, never where the agent works. A
line for a shell is not read: its author lists what it runs under ``files``.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from relay.config.trust import TrustEntry, project_root
from relay.core.errors import ConfigError
from relay.core.files import file_hash
from relay.core.paths import config_base
from relay.directive.escape import clean
from relay.hooks.hook_types import Command

_INTERPRETER = re.compile(
    r"(?:ba|da|z|k|fi)?sh|python[\d.]*|pypy[\d.]*|node|deno|bun|tsx|ts-node|ruby|perl|php|lua[\d.]*"
    r"|Rscript|pwsh"
)
#: Behind it, an interpreter is given no file.
_LINE = re.compile(r"-\w*[cm]")
#: What can only be a file, there or not.
_PATH = re.compile(r"[\w.@+~-]*[./][\w.@+/-]*")


def hashes(commands: Iterable[Command], place: str) -> dict[str, str]:
    """The hash of each file that ``commands`` of the file at ``place`` run, by its path.

    One that is not there is left out, unless a hook lists it. Raises ConfigError where one cannot
    be read.
    """
    commands = list(commands)
    listed = {path for command in commands for path in _listed(command, place)}
    paths = list(dict.fromkeys(path for command in commands for path in _paths(command, place)))
    try:
        return {path: file_hash(path) for path in paths if path in listed or os.path.lexists(path)}
    except OSError as error:
        raise ConfigError(
            f"cannot read {error.filename or 'a program'} for {place}: {error.strerror}",
            hint="check the path and its size",
        ) from None


def secured(command: Command, place: str, entry: TrustEntry) -> Command:
    """``command`` of the trusted file at ``place``, so that it runs as trusted; one that runs what
    was not part of that is made to refuse."""
    programs = entry.programs or {}
    unknown = [path for path in _paths(command, place) if path not in programs]
    refusal = ""
    if unknown:
        refusal = (
            f"{unknown[0]} was not there, or not part of it, when {place} was trusted. Read it,"
            f" then: relay trust {shlex.quote(place)}, and start this agent again"
        )
    env = command.env
    if entry.search and not any(name == "PATH" for name, _ in env):
        env = (("PATH", entry.search), *env)
    return replace(
        command,
        argv=in_place(command, place),
        cwd=_where(command, place) if command.cwd else "",
        env=env,
        programs=tuple(programs.items()),
        refusal=refusal,
        trusted_by=place,
    )


def in_place(command: Command, place: str) -> tuple[str, ...]:
    """The words of a list, in which each program beside ``place`` is that one wherever it runs."""
    return tuple(path or word for word, path in _words(command, place))


def missing(command: Command, place: str) -> list[str]:
    """The programs that ``command`` names by a path and that are not there: it will not run."""
    return [path for path in dict.fromkeys(_paths(command, place)) if not os.path.lexists(path)]


def unread(commands: Iterable[Command]) -> list[str]:
    """A line for people if some of ``commands`` are lines for a shell whose files nobody lists."""
    lines = [one for one in commands if not one.files and (one.shell or "-c" in one.argv)]
    if not lines:
        return []
    text = clean(lines[0].shell or shlex.join(lines[0].argv))
    return [
        f"relay does not read what is for a shell ({text[:80]!r}), so it does not notice when the"
        " files that it runs change: write a list, or name them in files"
    ]


def search_path(place: str, project: str) -> str:
    """The person's PATH, without what is relative or lies where agents work."""
    inside = [os.path.dirname(place), project]
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    kept = [
        folder
        for folder in folders
        if os.path.isabs(folder)
        and not any(_is_in(os.path.realpath(folder), one) for one in inside)
    ]
    return os.pathsep.join(dict.fromkeys(kept)) or os.defpath


def _paths(command: Command, place: str) -> Iterator[str]:
    """The files whose hashes count, there or not."""
    project = _project(place)
    yield from _listed(command, place)
    for _, path in _words(command, place):
        if path and _is_in(os.path.realpath(path), project):
            yield path


def _listed(command: Command, place: str) -> list[str]:
    where = _where(command, place)
    return [os.path.normpath(os.path.join(where, name)) for name in command.files]


def _words(command: Command, place: str) -> Iterator[tuple[str, str]]:
    """Each word of ``command``, and the file that it runs, "" where it runs none.

    A link in the project to a program outside of it counts as that program: so an agent cannot
    turn it elsewhere.
    """
    where, project = _where(command, place), _project(place)
    script = False  # an interpreter has been named, and its script has not
    before = ""
    for number, word in enumerate(command.argv):
        path = os.path.normpath(os.path.join(where, os.path.expanduser(word)))
        runs = number == 0 and "/" in word
        if script and _LINE.fullmatch(before):
            script = False  # a line for a shell, or a program's text
        elif number and word and not word.startswith("-"):
            if os.path.isfile(path):
                runs = script or os.access(path, os.X_OK) or _has_shebang(path)
                script = script and before.startswith("-")  # an option's value, or the script
            else:
                runs = script and _PATH.fullmatch(word) is not None
        script = script or _INTERPRETER.fullmatch(os.path.basename(word)) is not None
        before = word
        if not runs:
            yield word, ""
        elif _is_in(path, project) and not _is_in(real := os.path.realpath(path), project):
            yield word, real
        else:
            yield word, path


def _where(command: Command, place: str) -> str:
    """The folder in which the names in ``command`` are looked up."""
    return os.path.join(config_base(place), os.path.expanduser(command.cwd))


def _project(place: str) -> str:
    return project_root(config_base(place))


def _has_shebang(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
