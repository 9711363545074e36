"""Programs that read and write files, and what a shell has built in. Pure.

Files that a program changes are told as far as its arguments name them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence

from relay.governance.command_arguments import (
    READ,
    CommandKind,
    CommandUse,
    Row,
    UnknownArguments,
    hazard,
    may_be_option,
    options,
    path_of,
    rows,
    shown,
    unknown,
)
from relay.governance.shell_lines import ANY, Word

#: Characters of a sed script that is read.
_SCRIPT_MAX = 4000


def _harmless(name: str, words: Sequence[Word]) -> CommandUse:
    """Whatever its arguments are, it changes no file."""
    return READ


def _prints(name: str, words: Sequence[Word]) -> CommandUse:
    """The same, and it shows the files that it is given."""
    return CommandUse(CommandKind.READ, reads=_named(words))


def _greps(name: str, words: Sequence[Word]) -> CommandUse:
    operands = [word for word in words if not word.text.startswith("-")]
    given = any(word.text.startswith(("-e", "-f", "--reg", "--file")) for word in words)
    bad = hazard(words, "", "pre hostname-bin") if name == "rg" else None
    if bad is not None:
        return unknown(f"{name} {shown(bad)} runs another program")
    return CommandUse(CommandKind.READ, reads=_named(operands if given else operands[1:]))


def _named(words: Iterable[Word]) -> tuple[str, ...]:
    return tuple(path_of(one) for one in words if one.literal and one.text and one.text[0] != "-")


def _reads_unless(letters: str, names: str = "") -> Row:
    """It reads, but for these options."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        bad = hazard(words, letters, names)
        return READ if bad is None else unknown(f"{name} with {shown(bad)} can write files")

    return row


def _at_most_one(name: str, words: Sequence[Word]) -> CommandUse:
    """It writes into its second operand."""
    if len(words) > 1 or not all(word.literal for word in words):
        return unknown(f"{name} can write into its last argument")
    return READ


def _test(name: str, words: Sequence[Word]) -> CommandUse:
    """Comparisons of numbers evaluate names, and commands in their values, in some shells."""
    texts = [word.text for word in words]
    sums = {"-eq", "-ne", "-lt", "-le", "-gt", "-ge"}
    for at, text in enumerate(texts):
        if text in sums and not all(one.isdecimal() for one in texts[at - 1 : at + 2 : 2]):
            return unknown(f"{name} … {text} evaluates what is compared")
    if any(text in ("-v", "-R", "-t") for text in texts):
        return unknown(f"{name} with -v, -R or -t evaluates what follows")
    return READ


def _printf(name: str, words: Sequence[Word]) -> CommandUse:
    """Its numbers are evaluated by zsh, its option by bash."""
    if words and may_be_option(words[0]):
        return unknown("printf with options evaluates names")
    formed = bool(words) and words[0].literal
    if formed and not re.search(r"%(?![-0-9.]*[sbq%])", words[0].text):
        return READ
    return _number(name, words[1 if formed else 0 :])


def _number(name: str, words: Sequence[Word]) -> CommandUse:
    """Words that zsh evaluates as numbers."""
    if all(word.text.isdecimal() for word in words):
        return READ
    return unknown(f"{name} evaluates its arguments")


def _names(name: str, words: Sequence[Word]) -> CommandUse:
    """``read`` and ``unset``, which take names of variables."""
    plain = all(re.fullmatch(r"-r|-p|-rp|[^-\[]+", word.text) for word in words)
    small = all(word.literal and word.text == word.text.lower() for word in words)
    return READ if plain and small else unknown(f"{name} changes variables that programs read")


def _set(name: str, words: Sequence[Word]) -> CommandUse:
    plain = all(re.fullmatch(r"[-+][euxvfo]+|pipefail|errexit|nounset", one.text) for one in words)
    return READ if plain else unknown("set changes how the shell reads")


#: A command of sed's that writes and runs nothing, with its addresses.
_ADDRESS = r"(?:\d+(?:~\d+)?|\$|/(?:[^/\\\n]|\\.)*/I?)"
_SED = re.compile(
    rf"\s*(?:{_ADDRESS}(?:,[+~]?{_ADDRESS})?\s*!?\s*)?"
    r"(?:[pdqQPDnNgGhHx=]|s([/|#,@:!%+_])(?:(?!\1)[^\\\n]|\\.)*\1(?:(?!\1)[^\\\n]|\\[\s\S])*\1[gpIi\d]*"
    r"|y/(?:[^/\\\n]|\\.)*/(?:[^/\\\n]|\\.)*/|[aic]\\?[^\n]*)\s*(?:[;\n]|$)"
)


def _sed_is_plain(script: Word) -> bool:
    if ANY in script.text or not script.literal or len(script.text) > _SCRIPT_MAX:
        return False
    at = 0
    while at < len(script.text):
        match = _SED.match(script.text, at)
        if match is None or match.end() == at:
            return False
        at = match.end()
    return True


def _sed(name: str, words: Sequence[Word]) -> CommandUse:
    scripts, operands, suffix, rest = [], [], None, list(words)
    while rest:
        word = rest.pop(0)
        inplace = re.fullmatch(r"-[nErsuz]*i(.*)|--in-place(?:=(.*))?", word.text, re.DOTALL)
        if not may_be_option(word):
            operands.append(word)
        elif word.literal and word.text in ("-e", "-ne", "-Ee", "--expression") and rest:
            scripts.append(rest.pop(0))
        elif word.literal and word.text.startswith("--expression="):
            scripts.append(Word(word.text.partition("=")[2], quoted=True))
        elif word.literal and inplace:
            suffix = inplace[1] or inplace[2] or ""
            if rest and rest[0].text == "" and rest[0].quoted:  # BSD's and macOS's
                rest.pop(0)
        elif not (
            word.literal
            and re.fullmatch(r"-[nErsuz]+|--(quiet|silent|regexp-extended|posix)", word.text)
        ):
            raise UnknownArguments(f"{shown(word)} is not known here")
    if not scripts and operands:
        scripts.append(operands.pop(0))
    if not all(map(_sed_is_plain, scripts)) or not scripts:
        raise UnknownArguments("its script may write files or run commands")
    if suffix is None:
        return CommandUse(CommandKind.READ, reads=_named(operands))
    if not re.fullmatch(r"[\w.~-]*", suffix) or not operands:
        raise UnknownArguments("its backups cannot be told")
    files = [path_of(word) for word in operands]
    backups = [one + suffix for one in files] if suffix else []
    return CommandUse(CommandKind.WRITE, reads=(), writes=(*files, *backups))


def _awk(name: str, words: Sequence[Word]) -> CommandUse:
    """Only a program that prints: nothing in it that could write a file or run a command."""
    given, operands = options(words, "", "Fv")
    if (
        not operands
        or not operands[0].literal
        or "@" in "".join(one.text for one in given.values())
    ):
        raise UnknownArguments("its program is only known when it is run")
    program = operands[0].text.replace("||", "")
    if re.search(r"[>|@]|system|getline", program):
        raise UnknownArguments("its program may write files or run commands")
    return CommandUse(CommandKind.READ, reads=_named(operands[1:]))


def _tar(name: str, words: Sequence[Word]) -> CommandUse:
    """Only what lists an archive."""
    lists = r"-?t[vzjJ]*f" if name == "tar" else r"-l|-Z1|-t"
    if len(words) == 2 and re.fullmatch(lists, words[0].text) and not may_be_option(words[1]):
        return READ
    raise UnknownArguments("it may write any file")


def _curl(name: str, words: Sequence[Word]) -> CommandUse:
    """Only what it may print, or write into a file that is named."""
    given, operands = options(
        words,
        "fsSLIikvg46",
        "HXmAeuo",
        "fail silent show-error location head include verbose insecure compressed globoff header="
        " request= max-time= connect-timeout= user-agent= retry= output= fail-with-body",
    )
    target = given.get("output") or given.get("o")
    if len(operands) != 1:
        raise UnknownArguments("more than one address")
    if target is None or target.text in ("-", "/dev/null"):
        return READ
    if re.search(r"#\d", target.text):
        raise UnknownArguments("a name that is made of the address")
    return CommandUse(CommandKind.WRITE, writes=(path_of(target),))


# -- writing


def _each_file(flags: str, valued: str = "", long: str = "") -> Row:
    """It makes or changes each of its operands."""

    def row(name: str, words: Sequence[Word]) -> CommandUse:
        _, operands = options(words, flags, valued, long)
        return CommandUse(CommandKind.WRITE, writes=tuple(map(path_of, operands)))

    return row


def _chmod(name: str, words: Sequence[Word]) -> CommandUse:
    mode = next((word for word in words if re.fullmatch(r"[-+=,ugoarwxXst0-7]+", word.text)), None)
    rest = [word for word in words if word is not mode]
    given, operands = options(rest, "RvcfhHLP", "", "recursive verbose changes silent quiet")
    if mode is None or not operands:
        raise UnknownArguments("its mode cannot be told")
    paths = tuple(map(path_of, operands))
    if given.keys() & {"R", "recursive"}:
        return CommandUse(CommandKind.WRITE, trees=paths)
    return CommandUse(CommandKind.WRITE, writes=paths)


def _rm(name: str, words: Sequence[Word]) -> CommandUse:
    longs = "recursive force verbose interactive dir one-file-system no-preserve-root"
    given, operands = options([one for one in words if one.literal], "rRfivIdx", "", longs)
    operands += [one for one in words if not one.literal]
    deep = bool(given.keys() & {"r", "R", "recursive"})
    wide = [word for word in operands if _wide(word)]
    deletes = tuple(path_of(word) for word in operands if word.literal and word.text)
    if "no-preserve-root" in given or (deep and wide):
        kind, why = CommandKind.APPROVE, "rm -r deletes whole folders"
    elif not all(word.literal for word in operands):
        kind, why = CommandKind.UNKNOWN, "what rm deletes is only known when it is run"
    else:
        kind, why = CommandKind.WRITE, ""
    return CommandUse(kind, deletes=deletes, why=why)


def _wide(word: Word) -> bool:
    """It names a folder that holds much, or nobody knows what."""
    path = posixpath.normpath(word.text or ".")
    return not word.literal or word.home or path in (".", "..") or path.startswith(("/", "../"))


def _deletes(flags: str, long: str = "") -> Row:
    def row(name: str, words: Sequence[Word]) -> CommandUse:
        _, operands = options(words, flags, "", long)
        return CommandUse(CommandKind.WRITE, deletes=tuple(map(path_of, operands)))

    return row


def pairs(given: dict[str, Word], operands: Sequence[Word]) -> tuple[tuple[str, str], ...]:
    """From where to where ``mv``, ``cp`` and ``ln`` bring what."""
    paths = [path_of(word) for word in operands]
    target = given.get("t") or given.get("target-directory")
    if target is not None:
        folder = path_of(target)
    elif len(paths) == 2 and not paths[1].endswith("/"):
        return ((paths[0], paths[1]),)
    elif len(paths) < 2:
        raise UnknownArguments("two names are needed")
    else:
        folder = paths.pop()
    return tuple(
        (one, posixpath.join(folder, posixpath.basename(one.rstrip("/")))) for one in paths
    )


def _itself(given: dict[str, Word], operands: Sequence[Word]) -> tuple[str, ...]:
    """The target, where an option says that nothing comes into it even if it is a folder."""
    exact = given.keys() & {"T", "n", "h", "no-target-directory"} and operands
    return (path_of(operands[-1]),) if exact else ()


def _mv(name: str, words: Sequence[Word]) -> CommandUse:
    longs = "force interactive no-clobber verbose update no-target-directory target-directory="
    given, operands = options(words, "fivnuTh", "t", longs)
    exact = _itself(given, operands)
    return CommandUse(CommandKind.WRITE, writes=exact, moves=pairs(given, operands))


def _cp(name: str, words: Sequence[Word]) -> CommandUse:
    longs = "force interactive no-clobber verbose update no-target-directory target-directory="
    longs += " recursive archive preserve no-dereference dereference"
    given, operands = options(words, "fivnupPHLdxTaRrc", "t", longs)
    exact = _itself(given, operands)
    return CommandUse(CommandKind.WRITE, writes=exact, copies=pairs(given, operands))


def _ln(name: str, words: Sequence[Word]) -> CommandUse:
    longs = "symbolic force no-dereference verbose relative no-target-directory target-directory="
    given, operands = options(words, "sfnvTirFh", "t", longs)
    if len(operands) == 1 and not given.keys() & {"t", "target-directory"}:
        operands = [*operands, Word(posixpath.basename(operands[0].text.rstrip("/")) or ".")]
    linked = pairs(given, operands)
    soft = given.keys() & {"s", "symbolic"}
    # A hard link is another way to write into the file itself.
    writes = () if soft else tuple(source for source, _ in linked)
    exact = _itself(given, operands)
    return CommandUse(CommandKind.WRITE, writes=(*writes, *exact), copies=linked)


def _dd(name: str, words: Sequence[Word]) -> CommandUse:
    paths = []
    for word in words:
        key, equals, value = word.text.partition("=")
        if not equals or not word.literal:
            raise UnknownArguments(f"{shown(word)} is not known here")
        if key == "of":
            paths.append(path_of(Word(value, quoted=True)))
    return CommandUse(CommandKind.WRITE, writes=tuple(paths))


#: Programs that read and write files.
FILE_PROGRAMS: dict[str, Row] = {
    **rows(
        "echo true false : ls dir vdir stat du df pwd basename dirname realpath readlink which"
        " whoami id groups seq sleep md5sum sha1sum sha224sum sha256sum sha384sum sha512sum"
        " cksum sum b2sum base32 wc cut tr paste join comm cmp diff rev fold expand"
        " unexpand od hexdump strings jq wait jobs uname uptime free"
        " nproc ps pgrep getconf locale tty ulimit umask type printenv column cal numfmt",
        _harmless,
    ),
    **rows("cat head tail nl tac", _prints),
    **rows("grep egrep fgrep rg", _greps),
    **rows("test [ [[", _test),
    "printf": _printf,
    **rows("exit return break continue shift", _number),
    **rows("read unset", _names),
    "set": _set,
    "sort": _reads_unless("oT", "output compress-program temporary-directory"),
    "base64": _reads_unless("o", "output"),
    "shuf": _reads_unless("o", "output"),
    "tree": _reads_unless("oR", "output"),
    "file": _reads_unless("C", "compile"),
    "date": _reads_unless("s", "set"),
    "fd": _reads_unless("xX", "exec exec-batch"),
    "yq": _reads_unless("is", "inplace in-place split-exp"),
    **rows("uniq xxd", _at_most_one),
    "sed": _sed,
    **rows("awk gawk mawk", _awk),
    **rows("tar unzip", _tar),
    "curl": _curl,
    "touch": _each_file("acmh", "rdt", "no-create reference= date= time="),
    "mkdir": _each_file("pv", "m", "parents verbose mode="),
    "tee": _each_file("aip", "", "append ignore-interrupts"),
    "truncate": _each_file("co", "sr", "no-create size= reference="),
    "sponge": _each_file("a"),
    "chmod": _chmod,
    "rm": _rm,
    "unlink": _deletes(""),
    "rmdir": _deletes("pv", "ignore-fail-on-non-empty parents verbose"),
    "mv": _mv,
    "cp": _cp,
    "ln": _ln,
    "dd": _dd,
}
