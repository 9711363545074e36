"""What a command can do, and how a program's arguments are read to tell it. Pure.

What is not known of a program (an option, an argument that is only known when it is run) makes the
command unknown: it is never skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from relay.governance.shell_lines import ANY, Word


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


READ = CommandUse(CommandKind.READ)
RUN = CommandUse(CommandKind.RUN)
#: What a program does: takes its name and the words behind it, raises UnknownArguments.
Row = Callable[[str, Sequence[Word]], CommandUse]


def unknown(why: str) -> CommandUse:
    return CommandUse(CommandKind.UNKNOWN, why=why)


def approve(why: str) -> CommandUse:
    return CommandUse(CommandKind.APPROVE, why=why)


class UnknownArguments(ValueError):
    """An option or argument of which nobody can tell what it does; the text says which."""


def path_of(word: Word) -> str:
    """The path that a word names: a ``~`` that is not the home folder's becomes ``./~``."""
    if not word.literal or not word.text:
        raise UnknownArguments(f"{shown(word)} is only known when it is run")
    return word.text if word.home or not word.text.startswith("~") else "./" + word.text


def shown(word: Word) -> str:
    """The word for people and models, shortened."""
    text = word.text.replace(ANY, "…")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def may_be_option(word: Word) -> bool:
    """Whether it is one, or may become one when it is run."""
    first = word.text[:1]
    return first == "-" or (not word.literal and first in ("", ANY, *"*?[{"))


def hazard(words: Iterable[Word], letters: str, names: str) -> Word | None:
    """The first word that is, or may be, one of these options; long ones may be shortened."""
    for word in words:
        if word.literal and word.text == "--":
            return None
        if not may_be_option(word):
            continue
        option = word.text.partition("=")[0]
        if not word.literal and not re.match(r"--?\w", option):
            return word
        if option.startswith("--") and (ANY in option or _shortened(option[2:], names)):
            return word
        if not option.startswith("--") and any(one in letters + ANY for one in word.text[1:]):
            return word
        if _shortened(option[1:], names) and len(option) > 2:  # go's and find's
            return word
    return None


def _shortened(name: str, names: str) -> bool:
    return bool(name) and any(one.startswith(name) for one in names.split())


def options(
    words: Sequence[Word], flags: str, valued: str = "", long: str = ""
) -> tuple[dict[str, Word], list[Word]]:
    """The options and the operands of words; one that is not named here is unknown.

    ``long`` names long options, with ``=`` behind those that have a value.
    """
    found: dict[str, Word] = {}
    operands: list[Word] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.literal and word.text == "--":
            operands += rest
            break
        if not may_be_option(word) or word.text == "-":
            operands.append(word)
            continue
        if not word.literal:
            raise UnknownArguments(f"{shown(word)} is only known when it is run")
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            if name in long.split() and not equals:
                found[name] = word
            elif name + "=" in long.split() and (equals or rest):
                found[name] = Word(value, quoted=True) if equals else rest.pop(0)
            else:
                raise UnknownArguments(f"--{name} is not known here")
            continue
        letters = word.text[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in flags:
                found[letter] = word
            elif letter in valued and (letters or rest):
                found[letter] = Word(letters, quoted=True) if letters else rest.pop(0)
                letters = ""
            else:
                raise UnknownArguments(f"-{letter} is not known here")
    return found, operands


def rows(names: str, row: Row) -> dict[str, Row]:
    """The same row for each of these programs."""
    return dict.fromkeys(names.split(), row)
