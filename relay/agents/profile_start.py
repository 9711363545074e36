"""What the start of a program needs of its profile, read without YAML.

The pump imports this before it starts the program, apart from the rest of profiles: reading YAML
would make every agent start later. So each of these facts stands on a line of its own in a profile,
which is held when the session reads all of it (relay.agents.profile).
"""

from __future__ import annotations

import os
import re

#: Profiles that come with relay.
SHIPPED = os.path.join(os.path.dirname(__file__), "profiles")
#: Bytes of a profile that are read.
PROFILE_MAX = 64 * 1024
#: A program's name, as far as it can have a profile.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_LISTS = ("answers_once", "converses_with")
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
