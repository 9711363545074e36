"""What a shell's line does: whether it reads, writes known files, builds, or cannot be told. Pure.

The worst of its parts counts. What relay cannot take apart, or does not know, is unknown: a line is
never taken for harmless because something in it was not understood.

What a program that builds and tests runs is the project's own code, so an intent is enough; but it
must be given nothing that makes it run something else.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from relay.agents.tool_uses import patch_use
from relay.features.governance.file_commands import (
    FILE_PROGRAMS,
    READ,
    CommandKind,
    CommandUse,
    Row,
    UnknownArguments,
    approve,
    hazard,
    may_be_option,
    options,
    pairs,
    path_of,
    paths_of,
    rows,
    shown,
    unknown,
)
from relay.features.governance.intents import GovernanceSettings, Unknown
from relay.features.governance.shell_lines import ANY, Simple, UnreadableLine, Word, commands_of

__all__ = ["CommandKind", "CommandUse", "classify"]

#: Paths that one line may name, and shells in shells that are followed.
PATHS_MAX, NESTED_MAX = 1000, 5
#: What stands between the reasons of one line, and a text of them to which none is added.
_AND, _ENOUGH = "; ", 500
#: Where programs are that are what their names say, and where a project keeps its own.
_SYSTEM = {"/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/sbin", "/usr/sbin"}
_PROJECT = re.compile(r"(?:.*/)?(?:\.?venv|env)/bin|(?:.*/)?node_modules/\.bin|\.")
#: What is written there is kept nowhere.
_NOWHERE = {"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"}
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?")
_ACTIVATE = re.compile(r"(?:\./)?(?:\.venv|venv|env)/bin/activate")
#: Variables that change nothing but what they say; small ones are the line's own.
_HARMLESS_NAMES = re.compile(
    r"(?!\w*path$)[a-z_][a-z0-9_]*|LANG|LC_\w+|TZ|COLUMNS|NO_COLOR|FORCE_COLOR|CI|NODE_ENV"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|RUST_BACKTRACE"
)
#: relay's verbs that an agent may use; the broker decides which of them it refuses.
_RELAY = (
    "send inbox sent cancel show history status agents memory intent approve govern trust allow"
    " refuse held doctor help --help --version"
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
        use = _Line(settings, nested).read(error.commands)
        use = _partly(use, f"relay cannot read this line ({error})")
    else:
        use = _Line(settings, nested).read(commands)
    return replace(use, kind=CommandKind.APPROVE, why="a person decides on it") if whole else use


def _partly(use: CommandUse, why: str) -> CommandUse:
    """What is known of a command that does more than that, for the reason ``why``."""
    kind = CommandKind.APPROVE if use.kind is CommandKind.APPROVE else CommandKind.UNKNOWN
    return replace(use, kind=kind, why=_reasons(use.why, why))


def _reasons(*whys: str) -> str:
    """Several reasons as one, each once."""
    told = ""
    for why in whys:
        for one in why.split(_AND):
            if one and one not in told.split(_AND) and len(told) < _ENOUGH:
                told += f"{_AND if told else ''}{one}"
    return told


def _matches(text: str, globs: Sequence[str]) -> bool:
    return any(fnmatchcase(text, glob) for glob in globs)


class _Line:
    """Adds up what the simple commands of one line do, and where."""

    def __init__(self, settings: GovernanceSettings, nested: int) -> None:
        self._settings = settings
        self._nested = nested
        refused = settings.unknown is Unknown.REFUSE
        worst = (CommandKind.APPROVE, CommandKind.UNKNOWN)
        self._order = [CommandKind.READ, CommandKind.WRITE, CommandKind.RUN]
        self._order += worst if refused else reversed(worst)
        self._use = READ
        #: Where the next command is, relative to where the line begins; None: nobody knows.
        self._folder: str | None = ""

    def read(self, commands: Sequence[Simple]) -> CommandUse:
        for at, simple in enumerate(commands):
            if simple.after in (";", "&", "||") and self._folder:
                self._folder = None  # what has led there may have failed
            if simple.words and simple.words[0].text == "cd":
                self._add(self._around(simple))
                follows = commands[at + 1].after if at + 1 < len(commands) else ""
                self._folder = self._entered(simple, follows)
                continue
            use = self._simple(simple)
            before = commands[at - 1].words[:1] if at and simple.after == "|" else []
            if use.kind is CommandKind.UNKNOWN and before and before[0].text in ("curl", "wget"):
                why = "it runs what comes from the network"
                use = replace(use, kind=CommandKind.APPROVE, why=why)
            self._add(use)
        many = len(self._use.changed) > PATHS_MAX
        return unknown("it names too many files") if many else self._use

    def _entered(self, simple: Simple, follows: str) -> str | None:
        """Where a ``cd`` leads, if it is sure that what follows is there."""
        sure = simple.depth == 0 and not simple.in_block and simple.after not in ("||", "|")
        if self._folder is None or not sure or follows == "|" or len(simple.words) != 2:
            return None
        word = simple.words[1]
        # A shell goes up by the words, a path by the links: they meet where there is no link.
        up = re.search(r"(?:^|/)\.\.(?:/|$)", self._folder + "/" + word.text.lstrip("./"))
        if not word.literal or not word.text or word.text[0] in "-+" or up:
            return None
        if ".." in word.text.split("/") and self._folder:
            return None
        return _joined(self._folder, path_of(word))

    def _add(self, use: CommandUse) -> None:
        """Add what a command does where it does it."""
        use = replace(use, writes=tuple(one for one in use.writes if one not in _NOWHERE))
        runs = use.kind is CommandKind.RUN
        if self._folder is None and (runs or not _absolute(use.changed)):
            use = _partly(_only_absolute(use), "nobody can tell in which folder it would work")
            runs = False
        folder, mine = self._folder or "", self._use
        worse = self._order.index(use.kind) > self._order.index(mine.kind)
        self._use = CommandUse(
            use.kind if worse else mine.kind,
            mine.reads + (() if self._folder is None else _each(use.reads, folder)),
            mine.writes + _each(use.writes, folder),
            mine.deletes + _each(use.deletes, folder),
            mine.moves + _pairs(use.moves, folder),
            mine.copies + _pairs(use.copies, folder),
            mine.trees + _each(use.trees, folder),
            (*mine.folders, *_each(use.folders, folder), *((folder,) if runs else ())),
            _reasons(mine.why, use.why),
        )

    def _simple(self, simple: Simple) -> CommandUse:
        use = self._around(simple)
        if simple.words:
            self._add(use)
            use = self.program(simple.words, simple)
        return use

    def _around(self, simple: Simple) -> CommandUse:
        """What its redirections and assignments do."""
        use = READ
        for name, _ in simple.assignments:
            if not _HARMLESS_NAMES.fullmatch(name):
                use = unknown(f"{name} changes what programs do")
        writes = []
        for word in simple.writes:
            try:
                writes.append(path_of(word))
            except UnknownArguments as error:
                use = unknown(f"it writes into a file whose name {error}")
        if use is READ and not _NOWHERE.issuperset(writes):
            use = CommandUse(CommandKind.WRITE)
        return replace(use, writes=tuple(writes))

    def program(self, words: Sequence[Word], simple: Simple) -> CommandUse:
        """What the program that ``words`` begin with does."""
        if not words or not words[0].literal or not words[0].text:
            return unknown("which program runs is only known when it is run")
        name, rest = words[0].text, words[1:]
        folder, base = posixpath.split(name)
        own = base in BUILDS or _PYTHON.fullmatch(base)
        outside = not folder or folder in _SYSTEM
        if outside or (own and _PROJECT.fullmatch(folder)):
            name = base
        use = self._known("python" if _PYTHON.fullmatch(name) else name, rest, simple)
        if use.kind is CommandKind.RUN and not outside:
            use = replace(use, folders=(*use.folders, folder))
        if name == "git" and use.kind is CommandKind.READ and self._folder != "":
            use = replace(use, kind=CommandKind.RUN)  # the repository there says what git runs
        text = " ".join((name, *(word.text for word in rest if word.text != "--no-pager")))
        settings = self._settings
        if _matches(text, settings.approve_commands):
            use = replace(use, kind=CommandKind.APPROVE, why="a person decides on it")
        elif use.kind is not CommandKind.APPROVE and _matches(text, settings.read_commands):
            kind = CommandKind.WRITE if use.changed else CommandKind.READ
            use = replace(use, kind=kind, why="")
        elif use.kind is not CommandKind.APPROVE and _matches(text, settings.run_commands):
            use = replace(use, kind=CommandKind.RUN, why="")
        return use

    def _known(self, name: str, rest: Sequence[Word], simple: Simple) -> CommandUse:
        if name in _VERSIONED and [word.text for word in rest] == ["--version"]:
            return READ
        try:
            if row := FILE_PROGRAMS.get(name) or PROJECT_PROGRAMS.get(name):
                return row(name, rest)
            if wrapper := _WRAPPERS.get(name):
                return wrapper(self, rest, simple)
        except UnknownArguments as error:
            return replace(_by_names(name, rest), kind=CommandKind.UNKNOWN, why=f"{name}: {error}")
        return unknown(f"relay does not know what {name[:40]!r} changes")

    def text(self, text: str) -> CommandUse:
        """What a shell does that is given ``text``."""
        return _classified(text, self._settings, self._nested + 1)


def _by_names(name: str, words: Sequence[Word]) -> CommandUse:
    """What a program changes by those of its words that are known before it runs."""
    row = FILE_PROGRAMS.get(name)
    if row is None or not words or not (name in _EACH or (name in _TO_LAST and words[-1].literal)):
        return READ
    try:
        return row(name, [word for word in words if word.literal])
    except UnknownArguments:
        return READ


def _absolute(paths: Sequence[str]) -> bool:
    return all(one[0] in "/~" for one in paths)


def _only_absolute(use: CommandUse) -> CommandUse:
    """What it changes wherever it works."""
    writes, deletes, trees = (
        tuple(one for one in paths if _absolute((one,)))
        for paths in (use.writes, use.deletes, use.trees)
    )
    moves, copies = (tuple(filter(_absolute, pairs)) for pairs in (use.moves, use.copies))
    return replace(
        use, writes=writes, deletes=deletes, trees=trees, moves=moves, copies=copies, folders=()
    )


def _joined(folder: str, path: str) -> str:
    if not folder or path.startswith("/") or path == "~" or path.startswith("~/"):
        return path
    return posixpath.join(folder, path)


def _each(paths: tuple[str, ...], folder: str) -> tuple[str, ...]:
    return tuple(_joined(folder, path) for path in paths)


def _pairs(paths: tuple[tuple[str, str], ...], folder: str) -> tuple[tuple[str, str], ...]:
    return tuple((_joined(folder, one), _joined(folder, to)) for one, to in paths)


# -- programs that run others

#: Programs that change each file that they are given, and that bring files to the last one.
_EACH, _TO_LAST = {"rm", "rmdir", "unlink", "mkdir", "touch", "tee", "truncate"}, {"mv", "cp"}
_Wrapper = Callable[[_Line, Sequence[Word], Simple], CommandUse]
#: Programs that say their version and look at nothing of the project's for it.
_VERSIONED = {"python", "node", "git", "java", "gcc", "clang", "ruby", "perl", "relay"}


def _behind(flags: str = "(?!)", skip: int = 0) -> _Wrapper:
    """It runs what stands behind its options and ``skip`` more words."""

    def wrapper(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
        rest = list(words)
        while rest and may_be_option(rest[0]):
            option = rest.pop(0)
            if not option.literal or not re.fullmatch(flags, option.text):
                raise UnknownArguments(f"{shown(option)} is not known here")
        if any(word.splits for word in rest[:skip]):
            raise UnknownArguments("it may be several words")
        return line.program(rest[skip:], simple) if rest[skip:] else READ

    return wrapper


def _env(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    rest, why = list(words), ""
    while rest and (match := re.match(r"(\w+)=", rest[0].text)):
        if rest[0].splits:
            return unknown(f"{match[1]} changes what programs do")
        if not _HARMLESS_NAMES.fullmatch(match[1]):
            why = f"{match[1]} changes what programs do"
        rest.pop(0)
    use = _behind()(line, rest, simple)
    return _partly(use, why) if why else use


def _command(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    return READ if words and words[0].text in ("-v", "-V") else _behind()(line, words, simple)


def _shell(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    """A shell: with ``-c`` and its line; everything else could run anything."""
    if len(words) > 1 and re.fullmatch(r"-[elux]*c", words[0].text) and words[1].literal:
        use = line.text(words[1].text)
        known = len(words) == 2 and words[0].text in ("-c", "-lc")
        return use if known else _partly(use, "a shell is given more than its line")
    return unknown("a shell runs what nobody has read")


def _as_another(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    use = line.program(words, simple) if words and not may_be_option(words[0]) else READ
    why = _reasons("it acts as somebody else", use.why)
    return replace(use, kind=CommandKind.APPROVE, why=why)


def _project_run(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    """It runs a program of the project's, known only if it builds or tests."""
    rest = [word for word in words if word.text not in ("run", "exec", "--yes", "-y")]
    texts = [word.text for word in rest[:2]]
    if texts[:1] and (texts[0] in BUILDS or (_PYTHON.fullmatch(texts[0]) and "-m" in texts)):
        return line.program(rest, simple)
    return RUN if texts == ["sync"] else unknown("relay does not know what this changes")


def _source(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    known = len(words) == 1 and words[0].literal and _ACTIVATE.fullmatch(words[0].text)
    return RUN if known else unknown("it runs a file that nobody has read")


def _python(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    if len(words) > 1 and words[0].text == "-m" and words[1].text in BUILDS:
        return line.program(words[1:], simple)
    return unknown("python runs code that nobody has read")


def _xargs(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    """It runs a program with words that only its input has."""
    more = (*words, Word(ANY, dynamic=True, splits=True))
    return _behind(r"-0|-r|-n\d+|-0n\d+|-P\d+|-I\{\}")(line, more, simple)


def _ends(words: Sequence[Word], at: int) -> bool:
    """Whether what ``find -exec`` runs ends here."""
    return words[at].text == ";" or (words[at].text == "+" and words[at - 1].text == "{}")


def _find(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    kept: list[Word] = []
    rest = list(words)
    while rest:
        if rest[0].text not in ("-exec", "-execdir"):
            kept.append(rest.pop(0))
            continue
        ends = (at for at, word in enumerate(rest) if _ends(rest, at))
        end = next(ends, len(rest))
        ran = [replace(one, dynamic=one.dynamic or "{}" in one.text) for one in rest[1:end]]
        rest = rest[end + 1 :]
        if (use := line.program(ran, simple)).kind is not CommandKind.READ:
            why = "find runs a program that does not only read"
            return use if use.kind is CommandKind.APPROVE else _partly(use, why)
    bad = hazard(kept, "", "delete exec execdir ok okdir fprint fprint0 fprintf fls files0-from")
    return unknown(f"find with {bad} changes files that nobody can name") if bad else READ


def _patch(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    """Codex's patches, which it takes from a shell's line, too."""
    text = words[0].text if len(words) == 1 and words[0].literal else simple.input
    if text is None or ANY in text or len(words) > 1:
        raise UnknownArguments("the patch is only known when it is run")
    use = patch_use(text)
    kind = CommandKind.UNKNOWN if use.blind else CommandKind.WRITE
    return CommandUse(kind, (), use.writes, use.deletes, use.moves, why=use.blind)


def _relay(line: _Line, words: Sequence[Word], simple: Simple) -> CommandUse:
    verb = words[0].text if words else ""
    if verb not in _RELAY.split():
        return unknown(f"relay {verb} is a person's".replace("  ", " "))
    return READ


#: Programs that run others, or other text.
_WRAPPERS: dict[str, _Wrapper] = {
    "env": _env,
    "command": _command,
    "exec": _behind(),
    "timeout": _behind(skip=1),
    **dict.fromkeys(("npx", "uv", "uvx", "poetry", "bundle"), _project_run),
    **dict.fromkeys(("sh", "bash", "zsh", "dash"), _shell),
    **dict.fromkeys(("source", "."), _source),
    "python": _python,
    **dict.fromkeys(("sudo", "doas"), _as_another),
    "xargs": _xargs,
    "find": _find,
    "apply_patch": _patch,
    "relay": _relay,
}


# -- git, and programs that build and test

RUN = CommandUse(CommandKind.RUN)
#: A path that may lead out of the project, as a word or in an option.
_ELSEWHERE = re.compile(r"(?:^-\w|^|[=:,])((?:[/~]|\.\./|\.\.$|[^=:,]*/\.\.(?:/|$)).*)")
#: git's subcommands that change no file of the project, but for the options that are named below.
_GIT_READS = (
    "status log diff show blame grep ls-files ls-tree rev-parse rev-list describe cat-file shortlog"
    " merge-base show-ref for-each-ref whatchanged check-ignore diff-tree --version"
)
#: Those that only list with these words behind them, and none others.
_GIT_LISTS = {
    "branch": "-a -v -vv -r --list --show-current --all",
    "tag": "-l --list",
    "remote": "-v show get-url origin",
    "stash": "list show",
    "worktree": "list",
    "config": "-l --list",
}


def _git(name: str, words: Sequence[Word]) -> CommandUse:
    rest = [word for word in words if word.text != "--no-pager"]
    if len(rest) > 2 and rest[0].text == "-C" and rest[1].literal:
        use = _git(name, rest[2:])
        # A repository says what git runs: another one than that of the project may say anything.
        there = CommandUse(CommandKind.RUN, folders=paths_of(rest[1:2]))
        return there if use is READ else replace(use, kind=CommandKind.UNKNOWN, why="-C")
    verb = rest[0].text if rest and rest[0].literal else "-"
    words, texts = rest[1:], [word.text for word in rest[1:]]
    if verb in _GIT_READS.split():
        letters = "O" if verb == "grep" else ""
        bad = hazard(words, letters, "output ext-diff open-files-in-pager textconv filters")
        return unknown(f"git {verb} with {bad} does more than read") if bad else READ
    if verb in _GIT_LISTS:
        alone = verb not in ("stash", "worktree", "config") or bool(texts)
        if alone and set(texts) <= set(_GIT_LISTS[verb].split()):
            return READ
        return approve(f"git {verb} may change the repository itself")
    if verb in ("add", "commit"):
        return RUN
    if verb in ("checkout", "switch") and texts[:1] in (["-b"], ["-c"]) and len(texts) == 2:
        return RUN if words[1].literal else unknown("the branch is only known when it is run")
    if verb == "mv":
        return CommandUse(CommandKind.WRITE, moves=pairs(options(words, "fkv")[1]))
    if verb == "rm":
        return CommandUse(CommandKind.WRITE, deletes=_named(options(words, "rfq")[1]))
    if verb == "restore" and texts[:1] == ["--staged"]:
        options(words[1:], "q")  # no --worktree
        return RUN
    if verb == "restore" or (verb == "checkout" and texts[:1] == ["--"]):
        return CommandUse(CommandKind.WRITE, trees=_named(options(words, "q")[1]))
    if verb in ("push", "clean", "reset", "filter-branch", "update-ref", "gc", "reflog", "rebase"):
        return approve(f"git {verb} may change what is not easily brought back")
    return unknown(f"relay does not know what git {verb} changes")


def _named(words: Sequence[Word]) -> tuple[str, ...]:
    """Files that are named to a program that looks for globs itself."""
    paths = paths_of(words)
    if not paths or any(re.search(r"^:|[*?\[]", one) for one in paths):
        raise UnknownArguments("it looks for the files itself")
    return paths


def _runs(letters: str = "", names: str = "") -> Row:
    """It builds or tests, but for these options."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        bad = hazard(words, letters, names)
        if bad or any(word.dynamic for word in words):
            return unknown(f"{name} with {bad or 'these words'} can do anything else")
        elsewhere = map(_ELSEWHERE.search, (word.text for word in words))
        return CommandUse(CommandKind.RUN, folders=tuple(one[1] for one in elsewhere if one))

    return row


def _runs_only(verbs: str, letters: str = "", names: str = "") -> Row:
    """It builds or tests with these words behind its name, and may do anything with others."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        verb = words[0].text if words and words[0].literal else ""
        more = verb in ("install", "i") and len(words) > 1
        if verb not in verbs.split() or more:
            return unknown(f"relay does not know what {name} {verb} changes".replace("  ", " "))
        return _runs(letters, names)(f"{name} {verb}", words[1:])

    return row


def _make(name: str, words: Sequence[Word]) -> CommandUse:
    if any(re.match(r"SHELL|MAKE|\.|.*[$`]", word.text) for word in words):
        return unknown("make is given what to run")
    return _runs("fEIC", "file makefile eval include-dir directory")(name, words)


#: Programs that agents also run from a project's own folders of programs.
BUILDS: dict[str, Row] = {
    "pytest": _runs("", "basetemp override-ini junit-xml junitxml log-file"),
    **rows("mypy pyright flake8 pylint tox nox tsc jest vitest mocha unittest", _runs()),
    **rows("gradlew mvnw", _runs("I", "init-script")),
    "eslint": _runs("o", "output-file fix fix-dry-run init"),
    "ruff": _runs_only("check", "o", "fix fix-only output-file add-noqa config"),
}
PROJECT_PROGRAMS: dict[str, Row] = {
    **BUILDS,
    "git": _git,
    "make": _make,
    "cargo": _runs_only("build test check clippy bench", "CZ", "config fix target-dir"),
    "go": _runs_only("build test vet", "oC", "exec toolexec overlay modfile vettool"),
    **rows(
        "npm yarn pnpm bun",
        _runs_only("test t run ci install i ls", "gC", "prefix script-shell"),
    ),
    **rows("gradle mvn", _runs("I", "init-script")),
    "cmake": _runs_only("--build"),
    "su": lambda name, _: approve(f"{name} acts as somebody else"),
    **rows(
        "shutdown reboot crontab systemctl launchctl",
        lambda name, _: approve(f"{name} changes the machine"),
    ),
}
