"""What a command line starts: agents' options by a table, other programs' by their profile.

An :class:`ArgvReader` reads an agent's command line as the agent does. :class:`StartFacts` are what
the start of a program needs of its profile, read without YAML, so that no program starts later for
it: each of these facts stands on one line of the profile, which the session checks when it reads
all of it (relay.agents.profile).

The pump imports this before it starts the agent: nothing heavy may be imported at the top.
"""

from __future__ import annotations

import os
import re


class Option:
    """One option of a command line."""

    __slots__ = ("name", "value", "start", "end")

    def __init__(self, name: str, value: str | None, start: int, end: int) -> None:
        self.name = name
        #: None where it has none.
        self.value = value
        #: Its words are ``arguments[start:end]``.
        self.start, self.end = start, end


class Arguments:
    """A command line that was read, without the program's name."""

    __slots__ = ("arguments", "options", "words")

    def __init__(self, arguments: list[str], options: list[Option], words: list[str]) -> None:
        self.arguments = arguments
        self.options = options
        #: What is neither an option nor the value of one.
        self.words = words

    @property
    def first(self) -> str:
        """The first word that is not an option; empty without one."""
        return self.words[0] if self.words else ""

    def all(self, *names: str) -> list[Option]:
        """The options of these names, in their order."""
        return [option for option in self.options if option.name in names]

    def given(self, *names: str) -> bool:
        """Whether one of these options is there."""
        return bool(self.all(*names))

    def value(self, *names: str) -> str | None:
        """The value that counts, the last: empty where it is missing, None without the option."""
        options = self.all(*names)
        return (options[-1].value or "") if options else None

    def without(self, options: list[Option]) -> list[str]:
        """The words of the command line without these options."""
        gone = {at for option in options for at in range(option.start, option.end)}
        return [word for at, word in enumerate(self.arguments) if at not in gone]


class ArgvReader:
    """The table of one agent's command line. Names are separated by spaces."""

    def __init__(
        self,
        *,
        style: str = "",
        subcommands: str = "",
        once: str = "",
        stays: str = "",
        options: str = "",
        text_after: bool = False,
    ) -> None:
        #: ``clap``: what follows the letter of a short option is its value. ``yargs``: ``-yi`` is
        #: ``-y -i``, and ``--jsonFile`` is ``--json-file``. Else an option is a word, and only the
        #: very first word is a subcommand.
        self._style = style
        #: First words that start something else than a conversation.
        self.subcommands = frozenset(subcommands.split())
        #: Options with which the agent does one thing and ends.
        self._once = tuple(once.split())
        #: Where this is not empty, a question on the command line is answered once, unless one of
        #: these options has the agent stay.
        self._stays = tuple(stays.split())
        #: Options with a value: ``--model`` takes the next word, ``--resume?`` takes it only where
        #: it is not an option, ``--tools*`` takes all words up to the next option.
        words = options.split()
        self._valued = frozenset(word for word in words if word[-1] not in "?*")
        self._optional = frozenset(word[:-1] for word in words if word[-1] == "?")
        self._lists = frozenset(word[:-1] for word in words if word[-1] == "*")
        #: What follows ``--`` are words as any; else it is a prompt, and no subcommand.
        self._text_after = text_after

    def converses(self, argv: list[str]) -> bool:
        """Whether ``argv`` starts a conversation (``claude mcp``, ``claude --version`` do not)."""
        read = self.read(split(argv)[1])
        if read.given(*self._once):
            return False
        if not self._style:
            return not read.arguments or read.arguments[0] not in self.subcommands
        if read.words and self._stays and not read.given(*self._stays):
            return False
        return read.first not in self.subcommands

    def read(self, arguments: list[str]) -> Arguments:
        """Read ``arguments``, which are those after the program's name."""
        end = arguments.index("--") if "--" in arguments else len(arguments)
        options: list[Option] = []
        words: list[str] = []
        at = 0
        while at < end:
            word, start, at = arguments[at], at, at + 1
            if len(word) < 2 or not word.startswith("-"):
                words.append(word)
                continue
            names, value = self._names(word)
            last = names[-1]
            if value is None and at < end and (last in self._valued or arguments[at][:1] != "-"):
                if last in self._valued or last in self._optional:
                    value, at = arguments[at], at + 1
                while last in self._lists and at < end and arguments[at][:1] != "-":
                    value, at = arguments[at], at + 1
            options += [Option(name, None, start, start) for name in names[:-1]]
            options.append(Option(last, value, start, at))
        return Arguments(arguments, options, words + arguments[end + 1 :] * self._text_after)

    def _names(self, word: str) -> tuple[list[str], str | None]:
        """The options in one word as help names them, and the value of the last one."""
        long = word.startswith("--")
        if self._style == "clap" and not long and word not in self._valued:
            return [word[:2]], word[2:].removeprefix("=")
        name, equals, value = word.partition("=")
        if self._style == "yargs" and not long:
            names = [f"-{letter}" for letter in name[1:]] or [name]
        elif self._style == "yargs":
            names = ["".join(f"-{c.lower()}" if c.isupper() else c for c in name)]
        else:
            names = [name]
        return names, value if equals else None


def split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The words that start the program (``aider``, ``python -m aider``), and its arguments."""
    start = after_module(argv) or 1
    return argv[:start], argv[start:]


def after_module(argv: list[str]) -> int | None:
    """Where the arguments of ``python -m MODULE …`` begin; None when ``argv`` is not that."""
    if not argv or not os.path.basename(argv[0]).startswith("python"):
        return None
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        if argv[at] == "-m":
            return at + 2 if at + 1 < len(argv) else None
        if argv[at] in ("-c", "-"):
            return None
        at += 2 if argv[at] in ("-W", "-X") else 1
    return None


#: Profiles that come with relay.
SHIPPED = os.path.join(os.path.dirname(__file__), "profiles")
#: Bytes of a profile that are read.
PROFILE_MAX = 64 * 1024
#: A program's name, as far as it can have a profile.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_LISTS = ("answers_once", "converses_with", "state")
_TEXTS = ("told_by", "spelling", "checked_with", "package")


class StartFacts:
    """Those facts of one profile."""

    __slots__ = (*_LISTS, *_TEXTS)

    def __init__(self, text: str = "") -> None:
        found = {}
        for line in text.split("\n"):
            key, colon, value = line.partition(":")
            if colon and key in self.__slots__:
                found[key] = value.strip()
        #: Options, and first words, with which it is no conversation.
        self.answers_once = _list(found.get("answers_once", ""))
        #: Words of which one must be there for it to be a conversation; none where it always is.
        self.converses_with = _list(found.get("converses_with", ""))
        #: Folders and files that it keeps for itself: ``~/NAME``, ``${VARIABLE:-~/NAME}/NAME``.
        self.state = _list(found.get("state", ""))
        #: What tells it something at its start: ``--option {text}``, ``--option {file}``,
        #: ``VARIABLE={folder}/NAME``.
        self.told_by = _plain(found.get("told_by", ""))
        #: How it must write a block or an escape so that its renderer leaves it alone.
        self.spelling = _plain(found.get("spelling", ""))
        #: The version with which it was checked, and the npm or Python package that it is of.
        self.checked_with = _plain(found.get("checked_with", ""))
        self.package = _plain(found.get("package", ""))

    def converses(self, argv: list[str]) -> int:
        """Where in ``argv`` its options may stand, for a conversation; 0 for what is none."""
        if argv[1:2] and argv[1] in self.answers_once:
            return 0
        for at, word in enumerate(argv[1:], 1):
            if word == "--":
                break
            if word.startswith("-") and word.partition("=")[0] in self.answers_once:
                return 0
            if word in self.converses_with:
                return at + 1
        return 0 if self.converses_with else 1


def path_of(name: str, folder: str) -> str:
    """The file of a program's profile: the person's own in ``folder``, else relay's; else "".

    Raises PermissionError where others could have written it, other OSErrors.
    """
    if not _NAME.fullmatch(name):
        return ""
    path = os.path.join(folder, f"{name}.yaml")
    if folder and os.path.lexists(path):
        _check_private(folder, path)
        return path
    path = os.path.join(SHIPPED, f"{name}.yaml")
    return path if os.path.exists(path) else ""


def _check_private(folder: str, path: str) -> None:
    import errno

    from relay.core.files import own_file, own_folder

    if own_folder(folder, mend=False) or own_file(path, mend=False):
        raise PermissionError(errno.EPERM, "can be written to by others (chmod go-w)", path)


def start_facts(name: str, folder: str) -> StartFacts:
    """What the profile of the program ``name`` says of its start. Never raises.

    What is wrong with the file the session will say.
    """
    try:
        path = path_of(name, folder)
        if not path:
            return StartFacts()
        from relay.core.files import read_file

        return StartFacts(read_file(path, PROFILE_MAX).decode("utf-8", "replace"))
    except OSError:
        return StartFacts()


def _plain(value: str) -> str:
    """A YAML scalar, as far as it is on one line."""
    if len(value) > 1 and value[0] == value[-1] == "'":
        return value[1:-1].replace("''", "'")
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _list(value: str) -> tuple[str, ...]:
    """A YAML list in brackets."""
    words = value.removeprefix("[").removesuffix("]").split(",")
    return tuple(word for word in (_plain(word.strip()) for word in words) if word)
