"""What programs do that read and write files, told from their arguments. Pure.

What is not known of a program (an option, an argument that is only known when it is run) makes the
command unknown: it is never skipped.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from relay.features.governance.shell_lines import ANY, Word


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
#: What a program does: takes its name and the words behind it, raises UnknownArguments.
Row = Callable[[str, Sequence[Word]], CommandUse]


class UnknownArguments(ValueError):
    """An option or argument of which nobody can tell what it does; the text says which."""


def unknown(why: str) -> CommandUse:
    return CommandUse(CommandKind.UNKNOWN, why=why)


def approve(why: str) -> CommandUse:
    return CommandUse(CommandKind.APPROVE, why=why)


def rows(names: str, row: Row) -> dict[str, Row]:
    """The same row for each of these programs."""
    return dict.fromkeys(names.split(), row)


# -- arguments


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


def options(
    words: Sequence[Word], flags: str, valued: str = "", long: str = ""
) -> tuple[set[str], list[Word]]:
    """The options and the operands of words; an option that is not named here is unknown.

    ``valued``: letters with a value. ``long``: long options, with a value only behind ``=``.
    """
    found: set[str] = set()
    operands: list[Word] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, _, _ = word.text[2:].partition("=")
        if word.literal and word.text == "--":
            return found, [*operands, *rest]
        if not may_be_option(word) or word.text == "-":
            operands.append(word)
        elif word.literal and word.text.startswith("--") and name in long.split():
            found.add(name)
        else:
            letters = word.text[1:]
            while letters and letters[0] in flags:
                found.add(letters[0])
                letters = letters[1:]
            valid = not letters or (letters[0] in valued and (letters[1:] or rest))
            if not word.literal or not valid:
                raise UnknownArguments(f"{shown(word)} is not known here")
            if len(letters) == 1:
                rest.pop(0)
    return found, operands


# -- reading


def _prints(name: str, words: Sequence[Word]) -> CommandUse:
    """Whatever its arguments are, it shows the files that it is given, and changes none."""
    return CommandUse(CommandKind.READ, reads=_named(words))


def _greps(name: str, words: Sequence[Word]) -> CommandUse:
    if bad := hazard(words, "", "pre hostname-bin") if name == "rg" else "":
        return unknown(f"{name} {bad} runs another program")
    return CommandUse(CommandKind.READ, reads=_named(words)[1:])


def _named(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(path_of(one) for one in words if one.literal and one.text and one.text[0] != "-")


def _reads_if(plain: Callable[[Sequence[Word]], bool], why: str) -> Row:
    return lambda name, words: READ if plain(words) else unknown(f"{name} {why}")


def _reads_unless(letters: str, names: str = "") -> Row:
    """It reads, but for these options."""
    return _reads_if(lambda words: not hazard(words, letters, names), "with this can write files")


def _each_is(pattern: str) -> Callable[[Sequence[Word]], bool]:
    return lambda words: all(one.literal and re.fullmatch(pattern, one.text) for one in words)


def _test_is_plain(words: Sequence[Word]) -> bool:
    """Numbers and names are evaluated in some shells, with the commands in them."""
    texts = [word.text for word in words]
    if {"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v", "-R", "-t"} & set(texts):
        return False
    couples = zip(words, words[1:], strict=False)
    unclear = any(one.dynamic and other.dynamic for one, other in couples)
    return not (unclear or any("[" in text for text in texts) or any(one.splits for one in words))


def _printf_is_plain(words: Sequence[Word]) -> bool:
    """Numbers are evaluated by zsh, an option by bash."""
    known = bool(words) and words[0].literal and not may_be_option(words[0])
    return known and re.fullmatch(r"(?:[^%]|%[-0-9.]*s|%%)*", words[0].text) is not None


#: Commands of sed's in the few forms that can be read one way only. ``[`` is not in them: it hides
#: the end of an expression, and each sed has its own rules for that.
_ADDRESS = r"(?:\d+|\$|/(?:[ -.0-Z^-~]|\\[\w.*$^])*/I?)"
_SED = re.compile(
    rf"(?: *(?:{_ADDRESS}(?:,\+?{_ADDRESS})? *!? *)?(?:[pdq=]|s([/|#,@:])"
    r"(?:(?:(?!\1)[ -Z^-~]|\\(?!\1)[\w.*$^?+(){}|&])*\1){2}[gpIi\d]*) *(?:[;\n]|\Z))+",
    re.ASCII,
)


def _sed(name: str, words: Sequence[Word]) -> CommandUse:
    in_place = [word for word in words if re.fullmatch(r"-[nEr]*i|--in-place", word.text)]
    _, operands = options([word for word in words if word not in in_place], "nErsz")
    if in_place and sys.platform == "darwin":
        raise UnknownArguments("its script cannot be told")  # macOS' sed takes it for a suffix
    if not operands or not operands[0].literal or not _SED.fullmatch(operands[0].text):
        files = paths_of(operands[1:]) if in_place else ()
        why = f"{name}: its script may write files or run commands"
        return CommandUse(CommandKind.UNKNOWN, writes=files, why=why)
    if not in_place:
        return CommandUse(CommandKind.READ, reads=_named(operands[1:]))
    return CommandUse(CommandKind.WRITE, writes=paths_of(operands[1:]))


def _awk(name: str, words: Sequence[Word]) -> CommandUse:
    """Only a program that prints: it redirects, pipes, loads and calls nothing."""
    _, operands = options(words, "", "F")
    program = operands[0].text.replace("||", " ") if operands and operands[0].literal else "@"
    if re.search(r"[>|@(]", program):
        raise UnknownArguments("its program may write files or run commands")
    return CommandUse(CommandKind.READ, reads=_named(operands[1:]))


# -- writing


def _deletes(name: str, words: Sequence[Word]) -> CommandUse:
    return CommandUse(CommandKind.WRITE, deletes=paths_of(options(words, "")[1]))


def _each_file(flags: str, valued: str = "", long: str = "") -> Row:
    """It makes or changes each of its operands."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        return CommandUse(
            CommandKind.WRITE, writes=paths_of(options(words, flags, valued, long)[1])
        )

    return row


def _chmod(name: str, words: Sequence[Word]) -> CommandUse:
    if not words or not re.fullmatch(r"[+=,ugoarwx0-7-]+", words[0].text):
        raise UnknownArguments("its mode cannot be told")
    return CommandUse(CommandKind.WRITE, writes=paths_of(options(words[1:], "vcf")[1]))


def _rm(name: str, words: Sequence[Word]) -> CommandUse:
    unclear = [word for word in words if not word.literal]
    longs = "recursive force verbose dir"
    given, operands = options([one for one in words if one.literal], "rRfivd", "", longs)
    # Folders that hold much, or lie elsewhere.
    wide = [word for word in operands if re.match(r"/|~|\.\.?(/|$)", posixpath.normpath(word.text))]
    use = CommandUse(CommandKind.WRITE, deletes=paths_of(operands))
    if given & {"r", "R", "recursive"} and (unclear or wide):
        return replace(use, kind=CommandKind.APPROVE, why="rm -r deletes whole folders")
    why = "what rm deletes is only known when it is run"
    return replace(use, kind=CommandKind.UNKNOWN, why=why) if unclear else use


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


def _mv(name: str, words: Sequence[Word]) -> CommandUse:
    return CommandUse(CommandKind.WRITE, moves=pairs(options(words, "fivnu", "", "force")[1]))


def _cp(name: str, words: Sequence[Word]) -> CommandUse:
    longs = "force recursive archive preserve"
    return CommandUse(CommandKind.WRITE, copies=pairs(options(words, "fivnupaRr", "", longs)[1]))


#: Programs that read and write files.
FILE_PROGRAMS: dict[str, Row] = {
    **rows(
        "echo true false : ls stat du df pwd basename dirname realpath readlink which whoami id"
        " seq sleep md5sum sha1sum sha256sum wc cut tr paste join comm cmp diff rev fold od"
        " hexdump strings jq uname ps pgrep type printenv column",
        lambda name, words: READ,
    ),
    **rows("cat head tail nl tac", _prints),
    **rows("grep egrep fgrep rg", _greps),
    **rows("test [ [[", _reads_if(_test_is_plain, "may evaluate what it is given")),
    "printf": _reads_if(_printf_is_plain, "may evaluate what it is given"),
    **rows(
        "exit break continue wait", _reads_if(_each_is(r"\d+"), "may evaluate what it is given")
    ),
    "read": _reads_if(_each_is(r"-r|(?!\w*path$)[a-z_]+"), "changes what programs heed"),
    "set": _reads_if(_each_is(r"[-+][euxo]+|pipefail"), "changes how the shell reads"),
    "sort": _reads_unless("oT", "output compress-program temporary-directory"),
    "tree": _reads_unless("oR", "output"),
    "file": _reads_unless("C", "compile"),
    "date": _reads_if(_each_is(r"-[uR]|-I\w*|--date=.*|\+.*"), "may set the clock"),
    "fd": _reads_unless("xX", "exec exec-batch"),
    "uniq": _reads_if(
        lambda words: not words or words[0].text == "-c" and not words[1:], "may write"
    ),
    "sed": _sed,
    "awk": _awk,
    "touch": _each_file("acmh"),
    "mkdir": _each_file("pv", "m", "parents verbose"),
    "tee": _each_file("a", "", "append"),
    "truncate": _each_file("c", "s", "size"),
    "chmod": _chmod,
    "rm": _rm,
    **rows("unlink rmdir", _deletes),
    "mv": _mv,
    "cp": _cp,
}
