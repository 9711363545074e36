"""What a shell's line does: whether it reads, writes known files, builds, or cannot be told. Pure.

The worst of its parts counts. What relay cannot take apart, or does not know, is unknown: a line is
never taken for harmless because something in it was not understood.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from relay.governance.command_arguments import (
    READ,
    CommandKind,
    CommandUse,
    UnknownArguments,
    path_of,
    shown,
    unknown,
)
from relay.governance.command_wrappers import HARMLESS_NAMES, PYTHON, WRAPPERS
from relay.governance.file_commands import FILE_PROGRAMS
from relay.governance.intents import GovernanceSettings, Unknown
from relay.governance.project_commands import BUILDS, PROJECT_PROGRAMS
from relay.governance.shell_lines import Simple, UnreadableLine, Word, commands_of

__all__ = ["CommandKind", "CommandUse", "classify"]

#: Paths that one line may name, commands in commands that are followed, and folders in which one
#: command may find itself after several ``cd``.
PATHS_MAX, NESTED_MAX, FOLDERS_MAX = 1000, 5, 8
#: Where programs are that are what their names say, and where a project keeps its own.
_SYSTEM = {"/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/sbin", "/usr/sbin"}
_PROJECT = re.compile(r"(?:.*/)?(?:\.?venv|env)/bin|(?:.*/)?node_modules/\.bin|\.|\.\.")
#: What is written there is kept nowhere.
_NOWHERE = {"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"}
_VERSIONED = (
    "node npm npx cargo rustc go java javac gcc g++ clang make cmake git pip uv ruby perl docker gh"
    " pytest mypy ruff black deno bun dotnet swift relay"
)


def classify(line: str, settings: GovernanceSettings) -> CommandUse:
    """What ``line`` does, which is an agent's: hostile. Never raises."""
    return _classified(line, settings, 0)


def _classified(line: str, settings: GovernanceSettings, nested: int) -> CommandUse:
    whole = _matches(line.strip(), settings.approve_commands)
    try:
        if nested > NESTED_MAX:
            raise UnreadableLine("commands in commands too deep")
        commands = commands_of(line)
    except UnreadableLine as error:
        use = unknown(f"relay cannot read this line ({error})")
    except RecursionError:
        use = unknown("relay cannot read this line (too deep)")
    else:
        use = _Line(settings, nested).read(commands)
    return replace(use, kind=CommandKind.APPROVE, why="a person decides on it") if whole else use


def _matches(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


class _Line:
    """Adds up what the simple commands of one line do, and in which folders they do it."""

    def __init__(self, settings: GovernanceSettings, nested: int) -> None:
        self._settings = settings
        self._nested = nested
        refused = settings.unknown is Unknown.REFUSE
        worst = (CommandKind.APPROVE, CommandKind.UNKNOWN)
        self._order = [CommandKind.READ, CommandKind.WRITE, CommandKind.RUN]
        self._order += worst if refused else reversed(worst)
        self._use = READ
        #: Where the next command may be, relative to where the line begins; None: nobody knows.
        self._folders: list[str] | None = [""]
        #: Where it may be if not everything before it went well.
        self._else: list[str] = []

    def read(self, commands: list[Simple]) -> CommandUse:
        for at, simple in enumerate(commands):
            after = commands[at + 1].after if at + 1 < len(commands) else ""
            if simple.after != "&&":
                self._both()
            if [word.text for word in simple.words[:1]] == ["cd"]:
                self._enter(simple, piped="|" in (simple.after, after))
                continue
            self._add(self._simple(simple, commands[at - 1] if at else None))
        mine = self._use
        count = sum(map(len, (mine.writes, mine.deletes, mine.moves, mine.trees)))
        if count + len(mine.copies) > PATHS_MAX:
            return unknown("it names too many files")
        return self._use

    # -- folders

    def _both(self) -> None:
        if self._folders is not None:
            self._folders = list(dict.fromkeys([*self._folders, *self._else]))
            self._else = []
            if len(self._folders) > FOLDERS_MAX:
                self._folders = None

    def _enter(self, simple: Simple, *, piped: bool) -> None:
        self._add(self._around(simple))
        names = [word for word in simple.words[1:] if word.text not in ("--", "-P")]
        sure = simple.depth == 0 and not simple.in_block and not piped and not simple.assignments
        if self._folders is None or not sure or len(names) != 1 or not names[0].literal:
            self._folders = None
            return
        name = path_of(names[0]) if names[0].text else "-"
        up = ".." in name.split("/")
        late = ".." in name.lstrip("./").split("/")
        below = any(folder.strip("./") for folder in self._folders)
        # A shell goes up by the words, a path by the links: they meet where there is no link.
        if name.startswith(("-", "+")) or (up and (below or late)):
            self._folders = None
            return
        self._else = list(dict.fromkeys([*self._else, *self._folders]))
        self._folders = [_joined(folder, name) for folder in self._folders]
        if simple.after == "||":
            self._both()

    def _add(self, use: CommandUse) -> None:
        """Add what a command does in each folder in which it may do it."""
        kind, why = use.kind, use.why
        use = replace(use, writes=tuple(one for one in use.writes if one not in _NOWHERE))
        if kind is CommandKind.RUN:
            use = replace(use, folders=("",))
        changed = (
            *use.trees,
            *use.writes,
            *use.deletes,
            *(one for pair in (*use.moves, *use.copies) for one in pair),
        )
        folders = self._folders
        if folders is None:
            if any(not one.startswith(("/", "~")) for one in changed):
                use = unknown("nobody can tell in which folder it would write")
                kind, why = use.kind, use.why
                folders = []
            else:
                folders = [""]
                use = replace(use, reads=())
                if kind is CommandKind.RUN:
                    use = unknown("nobody can tell in which folder it would build")
                    kind, why = use.kind, use.why
        mine = self._use
        worse = self._order.index(kind) > self._order.index(mine.kind)
        self._use = CommandUse(
            kind if worse else mine.kind,
            mine.reads + (_each(use.reads, folders) if len(folders) == 1 else ()),
            mine.writes + _each(use.writes, folders),
            mine.deletes + _each(use.deletes, folders),
            mine.moves + _pairs(use.moves, folders),
            mine.copies + _pairs(use.copies, folders),
            mine.trees + _each(use.trees, folders),
            tuple(dict.fromkeys(mine.folders + _each(use.folders, folders))),
            why if worse else mine.why,
        )

    # -- one command

    def _simple(self, simple: Simple, before: Simple | None) -> CommandUse:
        use = self._around(simple)
        if simple.words:
            self._add(use)
            text = " ".join(word.text for word in simple.words)
            use = self._program(simple.words, simple, before)
            settings = self._settings
            if _matches(text, settings.approve_commands):
                use = replace(use, kind=CommandKind.APPROVE, why="a person decides on it")
            elif use.kind is not CommandKind.APPROVE:
                if _matches(text, settings.read_commands):
                    use = replace(use, kind=_least(use), why="")
                elif _matches(text, settings.run_commands):
                    use = replace(use, kind=CommandKind.RUN, why="")
        return use

    def _around(self, simple: Simple) -> CommandUse:
        """What its redirections and assignments do."""
        use = READ
        for name, _ in simple.assignments:
            if not HARMLESS_NAMES.fullmatch(name):
                use = unknown(f"{name} changes what programs do")
        writes = []
        for word in simple.writes:
            try:
                writes.append(path_of(word))
            except UnknownArguments as error:
                use = unknown(f"it writes into a file whose name {error}")
        if any(one.startswith("/dev/") and one not in _NOWHERE for one in writes):
            use = unknown("it writes to a device")
        if use is READ and not _NOWHERE.issuperset(writes):
            use = CommandUse(CommandKind.WRITE)
        return replace(use, writes=tuple(writes))

    def _program(
        self, words: Sequence[Word], simple: Simple, before: Simple | None = None
    ) -> CommandUse:
        """What the program that ``words`` begin with does."""
        if not words or not words[0].literal or not words[0].text:
            return unknown("which program runs is only known when it is run")
        name, rest = words[0].text, words[1:]
        folder, base = posixpath.split(name)
        own = base in BUILDS or PYTHON.fullmatch(base)
        if folder in _SYSTEM or (folder and own and _PROJECT.fullmatch(folder)):
            name = base
        try:
            if row := FILE_PROGRAMS.get(name) or PROJECT_PROGRAMS.get(name):
                if len(rest) == 1 and rest[0].text == "--version" and name in _VERSIONED.split():
                    return READ
                use = row(name, rest)
                inputs = tuple(path_of(one) for one in simple.reads if one.literal and one.text)
                return replace(use, reads=use.reads + inputs) if name == "cat" else use
            if wrapper := WRAPPERS.get("python" if PYTHON.fullmatch(name) else name):
                return wrapper(self, rest, simple, before)
        except UnknownArguments as error:
            return unknown(f"{name}: {error}")
        if [word.text for word in rest] == ["--version"] and name in _VERSIONED.split():
            return READ
        return unknown(f"relay does not know what {shown(words[0])} changes")

    # -- programs that run others

    def words(self, words: Sequence[Word], simple: Simple) -> CommandUse:
        return self._program(words, simple)

    def text(self, text: str) -> CommandUse:
        return _classified(text, self._settings, self._nested + 1)


def _least(use: CommandUse) -> CommandKind:
    """What a command is that is said to read: what it writes is checked all the same."""
    changed = use.writes or use.deletes or use.moves or use.copies or use.trees
    return CommandKind.WRITE if changed else CommandKind.READ


def _joined(folder: str, path: str) -> str:
    if not folder or path.startswith("/") or path == "~" or path.startswith("~/"):
        return path
    return posixpath.join(folder, path)


def _each(paths: tuple[str, ...], folders: list[str]) -> tuple[str, ...]:
    return tuple(_joined(folder, path) for folder in folders for path in paths)


def _pairs(paths: tuple[tuple[str, str], ...], folders: list[str]) -> tuple[tuple[str, str], ...]:
    return tuple((_joined(one, a), _joined(one, b)) for one in folders for a, b in paths)
