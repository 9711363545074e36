"""The programs that a trusted file's commands run: found beside it, pinned, and run as pinned.

A file that a command names counts as one of its programs when it is what is run (a command, or the
script that an interpreter is given), when it is executable or begins with ``#!``, and when the hook
lists it under ``files``. Names are
looked up beside the configuration, never where the agent works. ``relay trust`` keeps the hash of
each, and a copy in the state directory; what runs is the copy, and only while the file is still as
it was. So nothing that happens between the look and the start can put another program in its place.
Programs without a path are found by the PATH of the person who trusted the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from relay.config.trust import place_of
from relay.config.trust_store import TrustEntry
from relay.core.errors import ConfigError, RelayError
from relay.core.files import make_private_folder
from relay.core.paths import Home
from relay.hooks.hook_types import Command, Pin
from relay.hooks.run_programs import read_pinned

#: Files that one configuration may pin.
PROGRAMS_MAX = 64

#: What may be a path in a line for a shell, with the variables that hook files use. What stands
#: behind > or < is no program.
_PATH = re.compile(
    r"(?P<to>[<>]\s*)?"
    r"(?P<path>(?:\"?\$\{?(?:CLAUDE|GEMINI)_PROJECT_DIR\}?\"?/|~/)?[\w.@%+,/-]*\w)"
)
#: What ends so is followed by a command.
_COMMAND = re.compile(
    r"(?:^|[;&|(`{!\n]|\b(?:exec|then|do|else|time|eval|command|env|nohup)\s|\s-\w*c\s)"
    r"\s*(?:\w+=\S*\s+)*[\"']?$"
)
#: What ends so is followed by a script: an interpreter with options, or a shell's ``source``.
_INTERPRETER = re.compile(
    r"(?:^|[\s;&|(`'\"/])(?:"
    r"(?:(?:ba|da|z|k|fi)?sh|source|\.)(?:\s+-\w*[oO]\s+\w+|\s+-(?!\w*[coO]\b)[\w=.:-]+)*"
    r"|(?:python[\d.]*|pypy[\d.]*|node|deno|bun|tsx|ts-node|ruby|perl|php|lua[\d.]*|Rscript|pwsh"
    r"|(?:uv|poetry|pdm|hatch|rye|pipenv)(?=\s+run\s)|java(?=\s.*-jar\s)"
    r"|(?:[gm]?awk|sed|g?make|jq)(?=\s.*-f\s))"
    r"(?:\s+run)?(?:\s+-[WXI]\s+[\w./:=-]+|\s+-(?!\w*[mce]\b|[WX]\b)[\w=.:-]+)*"
    r")\s+[\"']?$"
)
#: What ends so is followed by a file, or by the name of a task: ``bun run lint``.
_TASK = re.compile(r"\b(?:bun|deno|uv|poetry|pdm|hatch|rye|pipenv)(?:\s+run)?\s+$")
_PROJECT = re.compile(r"\"?\$\{?(?:CLAUDE|GEMINI)_PROJECT_DIR\}?\"?/")
#: A path of these characters stands for itself in every quoting of a shell.
_PLAIN = re.compile(r"[\w.@%+,/-]+")


def named(commands: Iterable[Command], place: str) -> dict[str, str]:
    """The hash of each program that ``commands`` of the file at ``place`` name, by its path.

    Raises ConfigError where one cannot be read or is too large. One that is not there is left out.
    """
    found: dict[str, str] = {}
    for command in commands:

        def pin(path: str, *, listed: bool = False) -> str:
            if listed or os.path.lexists(path):
                found[path] = hashlib.sha256(_content(path)).hexdigest()
            return path

        for path in _listed(command, place):
            pin(path, listed=True)
        _rewritten(command, place, pin, {})
    if len(found) > PROGRAMS_MAX:
        raise ConfigError(f"{place}: its commands name more than {PROGRAMS_MAX} programs")
    return found


def keep(home: Home, place: str, programs: dict[str, str]) -> None:
    """Keep a copy of each of ``programs`` (hashes by path) for the file at ``place``.

    Raises ConfigError when one has changed in between, RelayError when it cannot be kept.
    """
    folder = _folder(home, place)
    try:
        if os.path.isdir(folder):
            shutil.rmtree(folder)
        for path, sha256 in programs.items():
            data = _content(path)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise ConfigError(f"{path} has just changed", hint="try again: relay trust")
            copy = _copy(folder, place, path)
            make_private_folder(os.path.dirname(copy))
            with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500), "wb") as file:
                file.write(data)
    except OSError as error:
        raise RelayError(
            f"cannot keep the programs of {place} in {folder}: {error.strerror}",
            hint="free some space, or make the state directory writable",
        ) from None


def pinned(home: Home, place: str, entry: TrustEntry) -> Callable[[Command], Command]:
    """What makes a command of the trusted file at ``place`` run as it was trusted.

    It never raises: a command that names what was not there then is made to refuse.
    """
    programs = entry.programs or {}
    folder = _folder(home, place)

    def secured(command: Command) -> Command:
        pins: list[Pin] = []
        missing: list[str] = []

        def copy_of(path: str) -> str:
            if path not in programs:
                missing.append(path)
                return path
            copy = _copy(folder, place, path)
            pins.append(Pin(path, programs[path], copy))
            return copy

        try:
            changed = _rewritten(command, place, copy_of, programs)
        except RelayError as error:
            return replace(command, refusal=error.message)
        refusal = ""
        if missing:
            refusal = (
                f"{missing[0]} was not there, or not pinned, when {place} was trusted."
                f" Read it, then: relay trust {shlex.quote(place)}, and start this agent again"
            )
        env = changed.env
        if entry.search and not any(name == "PATH" for name, _ in env):
            env = (("PATH", entry.search), *env)
        return replace(changed, env=env, pins=tuple(pins), refusal=refusal, trusted_by=place)

    return secured


def in_place(argv: tuple[str, ...], place: str) -> tuple[str, ...]:
    """The words of a command of the file at ``place``, so that each program beside it that they
    name is that one wherever they run. Raises ConfigError as ``named`` does."""
    there = _rewritten(
        Command(argv=argv), place, lambda path: path if os.path.lexists(path) else None, {}
    )
    return there.argv


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


def _rewritten(
    command: Command, place: str, use: Callable[[str], str | None], known: Mapping[str, str]
) -> Command:
    """``command`` with ``use(path)`` for each program that it names, where that is not None.
    ``known``: paths that are programs, whatever is there now."""
    base, where = base_of(place), _where(command, place)
    listed = _listed(command, place)

    def program(text: str, before: str) -> str | None:
        """What ``text`` behind ``before`` becomes if it names a program."""
        path = _resolved(text, base, where)
        if path in listed or path in known:
            return use(path)
        commands, script = _COMMAND.search(before), _INTERPRETER.search(before)
        if text.startswith("-") or ("/" not in text and not script):
            return None  # an option, or it is looked for in PATH, or it is data
        if not os.path.isfile(path):
            # Beside the configuration there is none: the agent's folder must not give one.
            file = commands or (script and not ("." not in text and _TASK.search(before)))
            return use(path) if file and not os.path.exists(path) else None
        if not (commands or script or os.access(path, os.X_OK) or _beginning(path) == b"#!"):
            return None
        real, around = os.path.realpath(path), os.path.realpath(base)
        if _is_in(real, around):
            return use(path)
        mine = _is_in(real, os.path.realpath(os.path.expanduser("~")))
        if mine and (script or _beginning(path) == b"#!"):
            return use(path)
        # The system's runs where it is, but not by a link that an agent could turn elsewhere.
        return real if _is_in(path, base) else None

    def in_line(text: str, before: str) -> str:
        def changed(found: re.Match[str]) -> str:
            became = None
            ahead = before + text[: found.start("to" if found["to"] else "path")]
            # What an interpreter reads from its input is its script, too.
            if not found["to"] or (found["to"][0] == "<" and _INTERPRETER.search(ahead)):
                became = program(found["path"], ahead)
            if became is None:
                return found[0]
            if not _PLAIN.fullmatch(became):
                raise ConfigError(
                    f"{found['path']} is part of a line for a shell, and {became} has characters"
                    " that a shell would read",
                    hint='give the command as a list: ["program", "argument"]',
                )
            return became

        return _PATH.sub(changed, text)

    for path in listed:
        use(path)
    words: list[str] = []
    for number, word in enumerate(command.argv):
        before = " ".join(command.argv[:number]) + " " * bool(number)
        whole = program(word, before) if os.path.isfile(_resolved(word, base, where)) else None
        words.append(whole or in_line(word, before))
    cwd = where if command.cwd else ""
    return replace(command, argv=tuple(words), shell=in_line(command.shell, ""), cwd=cwd)


def unfound(command: Command, place: str) -> Iterator[str]:
    """The programs that ``command`` names by a path and that are not there: it will not run."""
    missing: list[str] = []

    def look(path: str) -> str:
        if not os.path.lexists(path):
            missing.append(path)
        return path

    _rewritten(command, place, look, {})
    yield from dict.fromkeys(missing)


def _where(command: Command, place: str) -> str:
    """The folder in which the names in ``command`` are looked up."""
    base = base_of(place)
    return os.path.join(base, os.path.expanduser(command.cwd)) if command.cwd else base


def _listed(command: Command, place: str) -> list[str]:
    where = _where(command, place)
    return [os.path.normpath(os.path.join(where, name)) for name in command.files]


def _resolved(text: str, base: str, where: str) -> str:
    if _PROJECT.match(text):
        text = os.path.join(base, _PROJECT.sub("", text, count=1))
    return os.path.normpath(os.path.join(where, os.path.expanduser(text)))


def base_of(place: str) -> str:
    """Where the names in the file at ``place`` are looked up: its folder, or the project's of
    ``.claude/settings.json``."""
    folder = os.path.dirname(place)
    if os.path.basename(folder) in (".claude", ".gemini"):
        return os.path.dirname(folder)
    return folder


def _folder(home: Home, place: str) -> str:
    tag = hashlib.sha256(os.fsencode(place_of(place))).hexdigest()[:32]
    return os.path.join(home.root, "trusted", tag)


def _copy(folder: str, place: str, path: str) -> str:
    """Where the copy of ``path`` is: beside the others as the files are beside each other."""
    name = os.path.relpath(path, base_of(place))
    if name.startswith(".."):
        return os.path.join(folder, "elsewhere", path.lstrip("/"))
    return os.path.join(folder, "beside", name)


def _content(path: str) -> bytes:
    try:
        return read_pinned(path)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror or error}", hint="check the path and its size"
        ) from None


def _beginning(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(2)
    except OSError:
        return b""


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
