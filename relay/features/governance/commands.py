"""What a shell's line does: whether it reads, writes known files, builds, or cannot be told. Pure.

The worst of its parts counts. What relay cannot take apart, or does not know, is unknown: a line is
never taken for harmless because something in it was not understood. relay knows only the usual
forms of usual programs: what it does not know the kernel holds, or a person is asked about.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from relay.agents.tool_uses import patch_use
from relay.features.governance.intents import GovernanceSettings, Unknown
from relay.features.governance.shell_lines import ANY, Simple, UnreadableLine, Word, commands_of

#: Paths that one line may name, and shells in shells that are followed.
PATHS_MAX, NESTED_MAX = 1000, 5
#: What stands between the reasons of one line, and a text of them to which none is added.
_AND, _ENOUGH = "; ", 500
#: Where programs are that are what their names say.
_SYSTEM = {"/bin", "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin", "/sbin", "/usr/sbin"}
#: A folder in plain words, or in quotes, that is entered before what follows.
_CD = re.compile(
    r"\s*cd +(?:((?:~/|[\w./])[\w./@%+:,-]*|~)|'([^'\\~+-][^'\\]*)'|\"([^\"$`\\~+-][^\"$`\\]*)\")"
    r" *&&\s*"
)
#: What is written there is kept nowhere.
_NOWHERE = {"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"}
#: Variables that change nothing but what they say; small ones are the line's own.
_HARMLESS_NAMES = re.compile(
    r"(?!\w*path$)[a-z_][a-z0-9_]*|LANG|LC_\w+|TZ|COLUMNS|NO_COLOR|FORCE_COLOR|CI|NODE_ENV"
    r"|PYTHONUNBUFFERED|PYTHONDONTWRITEBYTECODE|RUST_BACKTRACE"
)


class CommandKind(StrEnum):
    """What a line needs, from the least to the most."""

    READ = "read"
    #: Every path that it changes is known, and is checked as an edit's.
    WRITE = "write"
    #: It builds or tests: an intent is enough, and what is in ``writes`` is checked.
    RUN = "run"
    #: Nobody can tell what it changes: as the setting ``unknown`` says.
    UNKNOWN = "unknown"
    #: Always a person's yes.
    APPROVE = "approve"


@dataclass(frozen=True, slots=True)
class CommandUse:
    """What one line does. Paths are relative to where it begins; ``~`` is the home folder.

    They are to be checked whatever the kind is. A folder in ``deletes``, ``moves``, ``copies`` or
    ``trees`` means all that is below it; if the second of a pair is a folder, the first one comes
    into it.
    """

    kind: CommandKind
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    #: Files that are changed, and folders in which any file may be.
    trees: tuple[str, ...] = ()
    #: Where something is built or tested; "" is where the line begins.
    folders: tuple[str, ...] = ()
    #: Why it is unknown or needs a person ("rm -r deletes whole folders"); "" otherwise.
    why: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        """Every path that it names and may change."""
        both = (path for pair in (*self.moves, *self.copies) for path in pair)
        return (*self.writes, *self.deletes, *self.trees, *both)


READ = CommandUse(CommandKind.READ)


class UnknownArguments(ValueError):
    """An option or argument of which nobody can tell what it does; the text says which."""


def unknown(why: str) -> CommandUse:
    return CommandUse(CommandKind.UNKNOWN, why=why)


def approve(why: str) -> CommandUse:
    return CommandUse(CommandKind.APPROVE, why=why)


def classify(line: str, settings: GovernanceSettings) -> CommandUse:
    """What ``line`` does, which is an agent's: hostile. Never raises."""
    return _classified(line, settings, 0)


def _classified(line: str, settings: GovernanceSettings, nested: int) -> CommandUse:
    whole = _matches(line.strip(), settings.approve_commands)
    folder, rest = _entered(line)
    try:
        if nested > NESTED_MAX:
            raise UnreadableLine("commands in commands too deep")
        commands = commands_of(rest)
    except UnreadableLine as error:
        use = _Line(settings, nested, folder).read(error.commands)
        use = _partly(use, f"relay cannot read this line ({error})")
    else:
        use = _Line(settings, nested, folder).read(commands)
    return replace(use, kind=CommandKind.APPROVE, why="a person decides on it") if whole else use


def _entered(line: str) -> tuple[str, str]:
    """The folder that ``cd`` leads to at the beginning of a line, and the rest, which is run there
    only."""
    folder = ""
    while begin := _CD.match(line):
        path = begin[1] or begin[2] or begin[3]
        # A shell goes up by the words, a path by the links: they meet where there is no link.
        if re.search(r"(?:^|/)\.\.(?:/|$)", path if folder else path.lstrip("./")):
            break
        folder, line = _joined(folder, path), line[begin.end() :]
    return folder, line


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

    def __init__(self, settings: GovernanceSettings, nested: int, folder: str) -> None:
        self._settings = settings
        self._nested = nested
        refused = settings.unknown is Unknown.REFUSE
        worst = (CommandKind.APPROVE, CommandKind.UNKNOWN)
        self._order = [CommandKind.READ, CommandKind.WRITE, CommandKind.RUN]
        self._order += worst if refused else reversed(worst)
        self._use = READ
        #: Where the next command is, relative to where the line begins; None: nobody knows.
        self._folder: str | None = folder

    def read(self, commands: Sequence[Simple]) -> CommandUse:
        for at, simple in enumerate(commands):
            if simple.after in (";", "&", "||") and self._folder:
                self._folder = None  # what has led there may have failed
            if simple.words and simple.words[0].text == "cd":
                self._add(self._around(simple))
                self._folder = None
                continue
            use = self._simple(simple)
            before = commands[at - 1].words[:1] if at and simple.after == "|" else []
            if use.kind is CommandKind.UNKNOWN and before and before[0].text in ("curl", "wget"):
                why = "it runs what comes from the network"
                use = replace(use, kind=CommandKind.APPROVE, why=why)
            self._add(use)
        many = len(self._use.changed) > PATHS_MAX
        return unknown("it names too many files") if many else self._use

    def _add(self, use: CommandUse) -> None:
        """Add what a command does where it does it."""
        use = replace(use, writes=tuple(one for one in use.writes if one not in _NOWHERE))
        runs = use.kind is CommandKind.RUN
        if self._folder is None and (runs or use.changed):
            use = _partly(_anywhere(use), "nobody can tell in which folder it would work")
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
        folder, name = posixpath.split(words[0].text)
        if folder and folder not in _SYSTEM:
            name = words[0].text
        use = self._known(_Program(name, words[1:], self, simple))
        if name == "git" and use.kind is CommandKind.READ and self._folder != "":
            use = replace(use, kind=CommandKind.RUN)  # the repository there says what git runs
        text = " ".join((name, *(word.text for word in words[1:] if word.text != "--no-pager")))
        settings = self._settings
        if _matches(text, settings.approve_commands):
            use = replace(use, kind=CommandKind.APPROVE, why="a person decides on it")
        elif use.kind is not CommandKind.APPROVE and _matches(text, settings.read_commands):
            kind = CommandKind.WRITE if use.changed else CommandKind.READ
            use = replace(use, kind=kind, why="")
        elif use.kind is not CommandKind.APPROVE and _matches(text, settings.run_commands):
            use = replace(use, kind=CommandKind.RUN, why="")
        return use

    def _known(self, program: _Program) -> CommandUse:
        name, text = program.name, program.text
        if _READS.fullmatch(text):
            return READ
        if build := _BUILDS.fullmatch(text):
            return CommandUse(
                CommandKind.RUN, folders=(build["folder"],) if build["folder"] else ()
            )
        try:
            if row := _ROWS.get(name):
                return row(program)
        except UnknownArguments as error:
            return replace(_by_names(program), kind=CommandKind.UNKNOWN, why=f"{name}: {error}")
        if name in _PERSONS:
            return approve(f"{name} changes the machine, or acts as somebody else")
        return unknown(f"relay does not know what {text[:40] or name[:40]!r} changes")

    def text(self, text: str) -> CommandUse:
        """What a shell does that is given ``text``."""
        return _classified(text, self._settings, self._nested + 1)


@dataclass(frozen=True, slots=True)
class _Program:
    """A program and the words behind it, in a line."""

    name: str
    words: Sequence[Word]
    line: _Line
    simple: Simple

    @property
    def text(self) -> str:
        """All of it, if each word is known and has no blanks; else ""."""
        plain = (word.text for word in self.words if word.literal or word.text == "=")
        known = [text for text in plain if not re.search(r"\s", text)]
        return " ".join((self.name, *known)) if len(known) == len(self.words) else ""


_Row = Callable[[_Program], CommandUse]


def _by_names(program: _Program) -> CommandUse:
    """What a program changes by those of its words that are known before it runs."""
    name, words = program.name, program.words
    to_last = name in _TO_LAST and words and words[-1].literal
    if name not in _FLAGS or (name in _TO_LAST and not to_last):
        return READ
    try:
        return _changes(replace(program, words=[word for word in words if word.literal]))
    except UnknownArguments:
        return READ


def _anywhere(use: CommandUse) -> CommandUse:
    """What it changes in whatever folder it works."""
    kept = (tuple(p for p in ps if p[0] in "/~") for ps in (use.writes, use.deletes, use.trees))
    both = (
        tuple(pair for pair in pairs if pair[0][0] in "/~" and pair[1][0] in "/~")
        for pairs in (use.moves, use.copies)
    )
    (writes, deletes, trees), (moves, copies) = kept, both
    return CommandUse(use.kind, (), writes, deletes, moves, copies, trees, why=use.why)


def _joined(folder: str, path: str) -> str:
    if not folder or path.startswith("/") or path == "~" or path.startswith("~/"):
        return path
    return posixpath.join(folder, path)


def _each(paths: tuple[str, ...], folder: str) -> tuple[str, ...]:
    return tuple(_joined(folder, path) for path in paths)


def _pairs(paths: tuple[tuple[str, str], ...], folder: str) -> tuple[tuple[str, str], ...]:
    return tuple((_joined(folder, one), _joined(folder, to)) for one, to in paths)


# -- words


def path_of(word: Word) -> str:
    """The path that a word names: a ``~`` that is not the home folder's becomes ``./~``."""
    if not word.literal or not word.text:
        raise UnknownArguments(f"{shown(word)} is only known when it is run")
    return word.text if word.home or not word.text.startswith("~") else "./" + word.text


def paths_of(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(map(path_of, words))


def shown(word: Word) -> str:
    """The word for people and models, shortened."""
    text = word.text.replace(ANY, "…")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def may_be_option(word: Word) -> bool:
    """Whether it is one, or may become one when it is run, or several words with one."""
    unclear = not word.literal and word.text[:1] in ("", ANY, *"*?[{")
    return word.text[:1] == "-" or word.splits or unclear


def hazard(words: Iterable[Word], letters: str, names: str) -> str:
    """The first word that is, or may be, one of these options; long ones may be shortened.

    Words behind ``--`` count, too: it may be the value of an option.
    """
    for word in words:
        if not may_be_option(word):
            continue
        option = word.text.partition("=")[0]
        known = word.literal or (re.match(r"--?\w", option) and not word.splits)
        name = option.lstrip("-")
        long = len(option) > 2 and bool(name) and any(one.startswith(name) for one in names.split())
        short = option[:2] != "--" and any(one in letters for one in word.text[1:])
        if not known or ANY in option or long or short:
            return shown(word)
    return ""


def _operands(words: Sequence[Word], flags: str) -> list[Word]:
    """The words that are no options, if these are known letters and mean no other words."""
    operands: list[Word] = []
    for at, word in enumerate(words):
        if word.literal and word.text == "--":
            return [*operands, *words[at + 1 :]]
        if not may_be_option(word) or word.text == "-":
            operands.append(word)
        elif not word.literal or not set(word.text[1:]) <= set(flags):
            raise UnknownArguments(f"{shown(word)} is not known here")
    return operands


def _named(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(path_of(one) for one in words if one.literal and one.text and one.text[0] != "-")


# -- programs that read

#: Whatever their words are, these change nothing; the second ones show the files that they name.
_ONLY_READ = (
    "echo true false : ls stat du df pwd basename dirname realpath readlink which whoami id seq"
    " sleep md5sum sha1sum sha256sum wc cut tr paste join comm cmp diff rev fold od hexdump strings"
    " jq uname ps pgrep type printenv column"
)
_SHOW = "cat head tail nl tac grep egrep fgrep"
#: Readers with the options by which they do more: letters, and long ones.
_READ_UNLESS = {
    "rg": ("", "pre hostname-bin"),
    "sort": ("oT", "output compress-program temporary-directory"),
}
#: Forms of other programs that read.
_READS = re.compile(
    r"set -[eux]*(?:o pipefail)?|exit(?: \d+)?|break|continue|wait|date|uniq(?: -c)?"
    r"|command -[vV] [\w.-]+|(?:python[\d.]*|node|java|gcc|clang|ruby|perl|relay) --version"
    r"|(?:\[\[?|test)(?: !)?(?: -[defhLnrswxz])? [\w./~-]+(?: !?= [\w./~-]+)?(?: \]\]?)?"
)
#: Commands of sed's in the few forms that can be read one way only. ``[`` is not in them: it hides
#: the end of an expression, and each sed has its own rules for that.
_ADDRESS = r"(?:\d+|\$|/(?:[ -.0-Z^-~]|\\[\w.*$^])*/I?)"
_SED = re.compile(
    rf"(?: *(?:{_ADDRESS}(?:,\+?{_ADDRESS})? *!? *)?(?:[pdq=]|s([/|#,@:])"
    r"(?:(?:(?!\1)[ -Z^-~]|\\(?!\1)[\w.*$^?+(){}|&])*\1){2}[gpIi\d]*) *(?:[;\n]|\Z))+",
    re.ASCII,
)


def _reads(program: _Program) -> CommandUse:
    words, name = program.words, program.name
    if name in _READ_UNLESS and (bad := hazard(words, *_READ_UNLESS[name])):
        return unknown(f"{name} with {bad} does more than read")
    if name in _ONLY_READ.split() or name == "sort":
        return READ
    return CommandUse(
        CommandKind.READ, reads=_named(words)[1 if name.endswith(("grep", "rg")) else 0 :]
    )


def _sed(program: _Program) -> CommandUse:
    in_place = [word for word in program.words if re.fullmatch(r"-[nEr]*i", word.text)]
    operands = _operands([word for word in program.words if word not in in_place], "nErsz")
    if in_place and sys.platform == "darwin":
        raise UnknownArguments("its script cannot be told")  # macOS' sed takes it for a suffix
    if not operands or not operands[0].literal or not _SED.fullmatch(operands[0].text):
        files = paths_of(operands[1:]) if in_place else ()
        why = "sed: its script may write files or run commands"
        return CommandUse(CommandKind.UNKNOWN, writes=files, why=why)
    if not in_place:
        return CommandUse(CommandKind.READ, reads=_named(operands[1:]))
    return CommandUse(CommandKind.WRITE, writes=paths_of(operands[1:]))


# -- programs that write

#: Programs that change the files that they name, with the options that mean no other files.
_FLAGS = {
    **{"touch": "acm", "mkdir": "pv", "tee": "a", "chmod": "vcf", "rm": "rRfivd"},
    **{"unlink": "", "rmdir": "", "mv": "fivnu", "cp": "fivnupaRr"},
}
_TO_LAST = ("mv", "cp")


def _changes(program: _Program) -> CommandUse:
    name, words = program.name, program.words
    if name == "chmod":
        if not words or not re.fullmatch(r"[+=,ugoarwx0-7-]+", words[0].text):
            raise UnknownArguments("its mode cannot be told")
        words = words[1:]
    operands = _operands(words, _FLAGS[name])
    if name == "mv":
        return CommandUse(CommandKind.WRITE, moves=pairs(operands))
    if name == "cp":
        return CommandUse(CommandKind.WRITE, copies=pairs(operands))
    if name in ("rm", "unlink", "rmdir"):
        return CommandUse(CommandKind.WRITE, deletes=paths_of(operands))
    return CommandUse(CommandKind.WRITE, writes=paths_of(operands))


def _rm(program: _Program) -> CommandUse:
    options = [word for word in program.words if may_be_option(word)]
    unclear = not all(word.literal for word in program.words)
    # Folders that hold much, or lie elsewhere.
    names = (posixpath.normpath(word.text) for word in program.words)
    wide = any(re.match(r"/|~|\.\.?(/|$)", one) for one in names)
    if (unclear or wide) and any(re.match(r"-\w*[rR]|--r", word.text) for word in options):
        why = "rm -r deletes whole folders"
        return replace(_by_names(program), kind=CommandKind.APPROVE, why=why)
    return _changes(program)


def pairs(operands: Sequence[Word]) -> tuple[tuple[str, str], ...]:
    """From where to where ``mv`` and ``cp`` bring what."""
    if len(operands) < 2:
        raise UnknownArguments("two names are needed")
    *sources, to = paths_of(operands)
    if any(posixpath.basename(one.rstrip("/")) in ("", ".", "..") for one in sources):
        raise UnknownArguments("all that is in a folder is meant")
    if len(sources) == 1 and not to.endswith("/"):
        return ((sources[0], to),)
    return tuple((one, posixpath.join(to, posixpath.basename(one.rstrip("/")))) for one in sources)


def _patch(program: _Program) -> CommandUse:
    """Codex's patches, which it takes from a shell's line, too."""
    words = program.words
    text = words[0].text if len(words) == 1 and words[0].literal else program.simple.input
    if text is None or ANY in text or len(words) > 1:
        raise UnknownArguments("the patch is only known when it is run")
    use = patch_use(text)
    kind = CommandKind.UNKNOWN if use.blind else CommandKind.WRITE
    return CommandUse(kind, (), use.writes, use.deletes, use.moves, why=use.blind)


# -- programs that run others


def _behind(flags: str = "(?!)", skip: int = 0) -> _Row:
    """It runs what stands behind its options and ``skip`` more words."""

    def row(program: _Program) -> CommandUse:
        rest = list(program.words)
        while rest and may_be_option(rest[0]):
            option = rest.pop(0)
            if not option.literal or not re.fullmatch(flags, option.text):
                raise UnknownArguments(f"{shown(option)} is not known here")
        if any(word.splits for word in rest[:skip]):
            raise UnknownArguments("it may be several words")
        return program.line.program(rest[skip:], program.simple) if rest[skip:] else READ

    return row


def _env(program: _Program) -> CommandUse:
    rest, why = list(program.words), ""
    while rest and (match := re.match(r"(\w+)=", rest[0].text)):
        if rest[0].splits:
            return unknown(f"{match[1]} changes what programs do")
        if not _HARMLESS_NAMES.fullmatch(match[1]):
            why = f"{match[1]} changes what programs do"
        rest.pop(0)
    use = _behind()(replace(program, words=rest))
    return _partly(use, why) if why else use


def _shell(program: _Program) -> CommandUse:
    """A shell: with ``-c`` and its line; everything else could run anything."""
    words = program.words
    if len(words) > 1 and re.fullmatch(r"-[elux]*c", words[0].text) and words[1].literal:
        use = program.line.text(words[1].text)
        known = len(words) == 2 and words[0].text in ("-c", "-lc")
        return use if known else _partly(use, "a shell is given more than its line")
    return unknown("a shell runs what nobody has read")


def _as_another(program: _Program) -> CommandUse:
    words = program.words
    plain = words and not may_be_option(words[0])
    use = program.line.program(words, program.simple) if plain else READ
    why = _reasons("it acts as somebody else", use.why)
    return replace(use, kind=CommandKind.APPROVE, why=why)


def _xargs(program: _Program) -> CommandUse:
    """It runs a program with words that only its input has."""
    more = (*program.words, Word(ANY, dynamic=True, splits=True))
    return _behind(r"-0|-r|-n\d+|-0n\d+|-P\d+|-I\{\}")(replace(program, words=more))


def _find(program: _Program) -> CommandUse:
    words = list(program.words)
    texts = [word.text for word in words]
    at = next((n for n, text in enumerate(texts) if text in ("-exec", "-execdir")), len(words))
    stops = (n for n, text in enumerate(texts) if n > at and text in (";", "+"))
    end = next((n for n in stops if texts[n] == ";" or texts[n - 1] == "{}"), len(words))
    ran = [replace(one, dynamic=one.dynamic or "{}" in one.text) for one in words[at + 1 : end]]
    use = program.line.program(ran, program.simple) if ran else READ
    if use.kind is CommandKind.APPROVE:
        return use
    if use.kind is not CommandKind.READ:
        return _partly(use, "find runs a program that does not only read")
    kept = words[:at] + words[end + 1 :]
    bad = hazard(kept, "", "delete exec execdir ok okdir fprint fprint0 fprintf fls files0-from")
    return unknown(f"find with {bad} changes files that nobody can name") if bad else READ


# -- relay, git, and what builds and tests

#: relay's verbs that an agent may use; the broker decides which of them it refuses.
_RELAY = (
    "send inbox sent cancel show history status agents memory intent approve govern trust allow"
    " refuse held doctor help --help --version"
)
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
_GIT_RISKS = "push clean reset filter-branch update-ref gc reflog rebase"


def _relay(program: _Program) -> CommandUse:
    verb = program.words[0].text if program.words else ""
    if verb not in _RELAY.split():
        return unknown(f"relay {verb} is a person's".replace("  ", " "))
    return READ


def _git(program: _Program) -> CommandUse:
    rest = [word for word in program.words if word.text != "--no-pager"]
    if len(rest) > 2 and rest[0].text == "-C" and rest[1].literal:
        use = _git(replace(program, words=rest[2:]))
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
        return CommandUse(CommandKind.WRITE, moves=pairs(_operands(words, "fkv")))
    if verb == "rm":
        return CommandUse(CommandKind.WRITE, deletes=_without_globs(_operands(words, "rfq")))
    if verb == "restore" and texts[:1] == ["--staged"]:
        _operands(words[1:], "q")  # no --worktree
        return RUN
    if verb == "restore" or (verb == "checkout" and texts[:1] == ["--"]):
        return CommandUse(CommandKind.WRITE, trees=_without_globs(_operands(words, "q")))
    if verb in _GIT_RISKS.split():
        return approve(f"git {verb} may not be easy to undo")
    return unknown(f"relay does not know what git {verb} changes")


def _without_globs(words: Sequence[Word]) -> tuple[str, ...]:
    """Files that are named to a program that looks for globs itself."""
    paths = paths_of(words)
    if not paths or any(re.search(r"^:|[*?\[]", one) for one in paths):
        raise UnknownArguments("it looks for the files itself")
    return paths


RUN = CommandUse(CommandKind.RUN)
#: Options with which a build runs nothing else, and names below its folder.
_OPTION = (
    r"-[qvxsjkrnB]+\d*|-rA|-race|-short|-run|--(?:lf|ff|quiet|verbose|silent|version|help|release"
    r"|all|all-targets|workspace|noEmit|check|maxfail=\d+|tb=\w+)"
)
_BELOW = r"(?!\S*(?<!\.)\.\.(?!\.))[\w.][\w./:@,+-]*"
#: What builds and tests: it runs the project's own code, so an intent is enough.
_BUILDS = re.compile(
    r"(?:(?:uv run|uvx|poetry run|bundle exec|npx(?: -y| --yes)?) )?"
    r"(?:(?P<folder>(?:[\w./-]*/)?(?:(?:\.?venv|env)/bin|node_modules/\.bin)|\.)/)?"
    r"(?:python[\d.]* -m )?"
    r"(?:(?:pytest|unittest|mypy|pyright|flake8|pylint|tox|nox|tsc|jest|vitest|mocha|eslint"
    r"|ruff check|make|gradlew?|mvnw?|cmake --build|cargo (?:build|test|check|clippy|bench)"
    rf"|go (?:build|test|vet)|(?:npm|yarn|pnpm|bun) (?:test|t|run))(?: (?:{_OPTION}|{_BELOW}))*"
    r"|(?:npm|yarn|pnpm|bun) (?:ci|install|i|ls))"
    r"|(?:uv|poetry) (?:sync|install)|(?:source|\.) (?:\./)?(?:\.?venv|env)/bin/activate"
)
#: Programs that only a person starts.
_PERSONS = ("su", "shutdown", "reboot", "crontab", "systemctl", "launchctl")
_ROWS: dict[str, _Row] = {
    **dict.fromkeys((*_ONLY_READ.split(), *_SHOW.split(), *_READ_UNLESS), _reads),
    **dict.fromkeys(_FLAGS, _changes),
    "rm": _rm,
    "sed": _sed,
    "apply_patch": _patch,
    "env": _env,
    **dict.fromkeys(("command", "exec"), _behind()),
    "timeout": _behind(skip=1),
    **dict.fromkeys(("sh", "bash", "zsh", "dash"), _shell),
    **dict.fromkeys(("sudo", "doas"), _as_another),
    "xargs": _xargs,
    "find": _find,
    "relay": _relay,
    "git": _git,
}
